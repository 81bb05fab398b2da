"""What does a turn cost as its history grows, beyond sending that history?

Rules:
- Sessions of 10, 1,000 and 10,000 stored messages get one prompt after another; the provider is a real HTTP server in another
  process that answers 50 deltas in one piece. Counted is the CPU time of the runtime's process for a turn.
- The raw limit sends a body of the same size with h11 on a bare socket, made before, and reads the same answer.
- Beside it stand the steps of a first turn over the 10,000 messages, which see the whole history, each by itself; and those
  of a later one, which has kept what it knows and adds an exchange of two.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from urllib.parse import urlsplit

import trio
from measure import Finding, Medians, beside, interleave, report, scratch_folder
from plain_turns import DELTAS, asking
from stack import Stack, open_stack
from stored import MODEL, QUESTION, fill

from steerway.actors.session.letters import Admit, Wait
from steerway.protocol.llm.invariants import Checker, check
from steerway.protocol.llm.lowering import Lowering, lower
from steerway.protocol.llm.openai_chat import OpenAIChatAdapter
from steerway.protocol.llm.request import Generation, LLMRequest, RequestMessage
from steerway.protocol.llm.transcript import measure as measure_size
from steerway.protocol.values.ids import SessionId
from steerway.protocol.values.message import Message
from steerway.protocol.values.prompt import Prompt
from steerway.storage.database import open_reader
from support.bare_reader import BareConnection
from support.serve_provider import running_provider

SIZES = {10: 16, 1_000: 8, 10_000: 2}
"""Messages of history, and how many sessions have so many."""


async def turns(stack: Stack, sessions: Sequence[SessionId]) -> float:
    """CPU milliseconds of a turn: one in each session, one after another."""
    begun = time.process_time()
    for session_id in sessions:
        letter = Admit(Prompt(text=QUESTION), id=None, delivery="steer", metadata=None, resume=True)
        stack.sessions.post(session_id, letter)
        await letter.answer.wait()
        idle = Wait()
        stack.sessions.post(session_id, idle)
        await idle.answer.wait()
    return 1e3 * (time.process_time() - begun) / len(sessions)


async def send_bare(connection: BareConnection, path: str, body: bytes, times: int) -> float:
    """CPU milliseconds to post the body and read the answer."""
    begun = time.process_time()
    for _ in range(times):
        await connection.read(path, body)
    return 1e3 * (time.process_time() - begun) / times


def request_of(messages: tuple[RequestMessage, ...]) -> LLMRequest:
    """As a turn asks."""
    return LLMRequest(
        model=MODEL.id,
        system=(),
        messages=messages,
        tools=(),
        tool_choice="auto",
        generation=Generation(),
        options={},
        body={},
        cache_key=None,
    )


async def timed(step: Callable[[], object]) -> float:
    """CPU milliseconds of one step."""
    begun = time.process_time()
    step()
    return 1e3 * (time.process_time() - begun)


class Later:
    """What a session keeps between its turns, over this history."""

    def __init__(self, adapter: OpenAIChatAdapter, history: Sequence[Message]) -> None:
        self._lowering, self._checker, self._conversation = Lowering(MODEL), Checker(), adapter.conversation()
        self._exchange = history[-2:]
        self._messages: list[RequestMessage] = []
        self._take(history)
        self.write()

    def take_up(self) -> None:
        """An exchange more."""
        self._take(self._exchange)

    def write(self) -> None:
        """The request."""
        self._conversation.write(request_of(tuple(self._messages)))

    def _take(self, messages: Sequence[Message]) -> None:
        new = self._lowering.extend(messages)
        self._checker.extend(new)
        measure_size(new)
        self._messages += new


def report_steps(found: Medians, of: str, names: Sequence[str]) -> list[Finding]:
    """One line a step."""
    return [beside(f"{of}: {name}", ours=f"{found[name]:.2f} ms") for name in names]


async def measure() -> list[Finding]:
    """Turns by size, then the steps of the largest."""
    with running_provider(deltas=DELTAS, one_piece=True) as provider, scratch_folder() as folder:
        made = fill(folder / "sessions.db", [size // 2 for size, count in SIZES.items() for _ in range(count)])
        of_size: dict[int, list[SessionId]] = {}
        for size, count in SIZES.items():
            of_size[size], made = made[:count], made[count:]
        adapter, url = OpenAIChatAdapter(), urlsplit(f"{provider.url}/chat/completions")
        socket = await trio.open_tcp_stream(url.hostname or "", url.port or 80)
        async with open_stack(folder, asking(provider.url)) as stack, socket:
            bare = BareConnection(socket, url.netloc)
            variants: dict[str, Callable[[], Awaitable[float]]] = {}
            for size, sessions in of_size.items():
                history = await stack.storage.read(lambda reader, first=sessions[0]: reader.history(first))
                body = adapter.encode(request_of(lower(history, MODEL))).body
                variants[f"turn {size}"] = partial(turns, stack, sessions)
                variants[f"bare {size}"] = partial(send_bare, bare, url.path, body, len(sessions))
            found = await interleave(variants)
            largest = of_size[max(SIZES)][0]
            history = await stack.storage.read(lambda reader: reader.history(largest))
            messages = lower(history, MODEL)
            reader = open_reader(folder / "sessions.db")
            known = reader.stretch(largest, None).mark
            later = Later(adapter, history)
            steps: dict[str, Callable[[], object]] = {
                "reading and decoding": lambda: reader.history(largest),
                "lowering": lambda: lower(history, MODEL),
                "checking": lambda: check(messages),
                "encoding": lambda: adapter.encode(request_of(messages)),
            }
            again: dict[str, Callable[[], object]] = {
                "reading what is new": lambda: reader.stretch(largest, known),
                "lowering, checking and measuring it": later.take_up,
                "writing the request": later.write,
            }
            by_step = await interleave({name: partial(timed, step) for name, step in {**steps, **again}.items()})
            reader.close()
    lines = [
        beside(
            f"a turn over {size:,} messages, CPU, against sending them",
            ours=f"{found[f'turn {size}']:.1f} ms",
            raw=f"{found[f'bare {size}']:.1f} ms",
            ratio=found.ratio(f"turn {size}", f"bare {size}"),
        )
        for size in SIZES
    ]
    return [
        *lines,
        *report_steps(by_step, "a first turn over 10,000 messages", list(steps)),
        *report_steps(by_step, "a later one", list(again)),
    ]


if __name__ == "__main__":
    report(measure)
