"""What does a Safe Provider-Turn Boundary cost with 20 Context Sources, and how much of a request is the cached prefix?

Rules:
- A boundary is counted from its first read to the end of its transaction: sampling, observing, promotion, and what is admitted.
  The sources answer at once, so that what is counted is the runtime's own work.
- The raw limit is the same boundary without any source: it reads, samples and commits just as often. A change is one durable
  event; its raw limit appends one, too.
- The prefix is counted in the bytes of 200 recorded requests of one session, a source changing every tenth turn: what a request
  has in common with the one before it, from its first message on, over all that was sent.
"""

from __future__ import annotations

import time
from functools import partial
from itertools import pairwise

from measure import Finding, at_least, at_most, beside, interleave, report, scratch_folder
from stack import Stack, open_stack

from steerway.actors.blocking import Inline
from steerway.actors.configuration import Configuration, ModelSelection
from steerway.actors.context.observing import Observing
from steerway.actors.context.source import ContextSource, codec_of
from steerway.actors.models.catalog import DEMO_MODEL
from steerway.actors.session.boundary import observe, select, view_of
from steerway.actors.session.promotion import Promotion
from steerway.protocol.values.event import TurnStarted
from steerway.protocol.values.ids import SessionId
from support.house import open_house
from support.provider import open_provider

SOURCES = 20
EACH = 40
TURNS = 200
CHANGE_EVERY = 10


class Numbered:
    """A source that says a number."""

    def __init__(self, index: int) -> None:
        self.number = 0
        self.source = ContextSource(
            key=f"bench/source-{index:02}",
            codec=codec_of(int),
            load=self._load,
            baseline=lambda number: f"Source {index} says {number}.",
            update=lambda _, number: f"Source {index} now says {number}.",
        )

    async def _load(self) -> int:
        return self.number


async def pass_boundary(stack: Stack, session_id: SessionId, instruction: str | None = None) -> None:
    """One boundary that has nothing to promote and goes on all the same, as in a tool loop, up to the turn that it would begin.

    An `instruction` is appended.
    """
    services = stack.services
    view = await services.storage.read(view_of(session_id))
    agent, model = await select(services, view.record)
    promotion = Promotion(
        services,
        session_id,
        revision=view.record.revision,
        epoch=view.active,
        admitted=await observe(services, view, agent, Observing()),
        nearby=(),
        forced=False,
        continuing=True,
        hold=False,
        instruction=instruction,
        step=1,
        steps=None,
        known=view.stretch.mark,
        room=-1,
        started=TurnStarted(assistant_message_id=services.ids.message(), agent=agent.name, model=model.ref, attempt=1),
    )
    if not await services.storage.commit(promotion):
        raise RuntimeError("the boundary was not passed")


async def boundaries(stack: Stack, sources: list[Numbered], *, change: bool = False, instruction: str | None = None) -> float:
    """Milliseconds of a boundary, of all sources or of none."""
    (session_id,) = await stack.create_sessions(1)
    opened = [stack.services.context.register(one.source) for one in sources]
    try:
        await pass_boundary(stack, session_id)
        begun = time.perf_counter()
        for _ in range(EACH):
            if change:
                sources[0].number += 1
            await pass_boundary(stack, session_id, instruction)
        return 1e3 * (time.perf_counter() - begun) / EACH
    finally:
        for one in opened:
            one.close()


async def measure_boundaries() -> list[Finding]:
    """Unchanged, one changed, and none."""
    sources = [Numbered(index) for index in range(SOURCES)]
    configuration = Configuration(models=ModelSelection(default=str(DEMO_MODEL)))
    with scratch_folder() as folder:
        async with open_stack(folder, configuration) as stack:
            found = await interleave(
                {
                    "unchanged": partial(boundaries, stack, sources),
                    "changed": partial(boundaries, stack, sources, change=True),
                    "none": partial(boundaries, stack, []),
                    "none, one event": partial(boundaries, stack, [], instruction="Go on."),
                }
            )
    what = f"a boundary with {SOURCES} sources"
    return [
        at_most(f"{what}, unchanged", ours=found["unchanged"], raw=found["none"], unit="ms", target=5),
        beside(
            f"{what}, one changed, against one event without sources",
            ours=f"{found['changed']:.2f} ms",
            raw=f"{found['none, one event']:.2f} ms",
            ratio=found.ratio("changed", "none, one event"),
        ),
    ]


def messages_of(body: bytes) -> bytes:
    """The bytes of a request's messages, as they were sent."""
    return body[body.index(b'"messages"') : body.index(b'],"tools"')]


def common(before: bytes, body: bytes) -> int:
    """How many bytes both begin with."""
    if body.startswith(before):
        return len(before)
    return next((index for index, (one, other) in enumerate(zip(before, body, strict=False)) if one != other), len(before))


async def measure_prefix() -> list[Finding]:
    """The share of the bytes that a provider can take from its cache."""
    source = Numbered(0)
    with scratch_folder() as folder:
        async with open_provider() as provider, open_house(provider, folder, blocking=Inline(), check=False) as house:
            house.runtime.context.register(source.source)
            session_id = await house.session()
            for turn in range(TURNS):
                source.number += turn % CHANGE_EVERY == 0
                await house.ask(session_id, f"This is what turn {turn} is about, in a sentence of usual length.")
            bodies = [messages_of(request.body) for request in provider.requests]
    same = sum(common(before, body) for before, body in pairwise(bodies))
    sent = sum(map(len, bodies[1:]))
    what = f"bytes of a request that the one before it sent too, {TURNS} turns, a change every {CHANGE_EVERY}th"
    return [
        at_least(what, ours=100 * same / sent, raw=100, unit="%", target=0.9, ratio=same / sent),
        beside("requests, and bytes of the last one", ours=f"{len(bodies)}, {len(bodies[-1]):,}"),
    ]


async def measure() -> list[Finding]:
    """The boundary, then the prefix."""
    return [*await measure_boundaries(), *await measure_prefix()]


if __name__ == "__main__":
    report(measure)
