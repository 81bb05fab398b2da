"""KILL matrix: a server killed at every point of its sessions' turns, and what the next one makes of the store.

Rules:
- The server is `steerway serve` in a process of its own; the provider runs here and holds its answers where a test says.
- One server is killed for many sessions at once, each at a point of its own: a hold of the provider, an event that a client
  saw, a request that waits for somebody. What the server commits at that moment is left to chance, which differs each time.
- The next server finds everything settled, spends nothing, and every session goes on (`support.matrix`); then the doctor looks.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio

from steerway import Client
from steerway.protocol.values import (
    Admission,
    FailedOutcome,
    Interrupted,
    MessageId,
    PermissionAsked,
    PromptAdmitted,
    QuestionAsked,
    ReasoningDelta,
    RetryScheduled,
    SessionId,
    TextDelta,
    TextEnded,
    ToolProgress,
    ToolSucceeded,
    TurnFailed,
    TurnInterrupted,
    TurnStarted,
)
from steerway.protocol.values.errors import ClientError
from support.answers import Answer, answer, cut, hold, reasoning, status, stream, text, tool_call
from support.house import said
from support.matrix import Witness, at_rest, cut_turn, gaps, goes_on, held_turn, pace, unpromoted, whole_turn
from support.program import SECONDS, Serving
from support.provider import Request
from support.site import BUSY, QUESTION, READ, WRITE, WRITE_TOO, Plans, Site, open_site


class Scene:
    """One session of the doomed server; the text of its first prompt is the name of its point."""

    def __init__(self, name: str, client: Client, session: SessionId, witness: Witness, plans: Plans) -> None:
        self.name = name
        self.client = client
        self.session = session
        self.plans = plans
        self._witness = witness

    async def begin(self, respond: Callable[[Request], Answer]) -> Admission:
        """Send the prompt whose conversation is answered so."""
        self.plans.plan(self.name, respond)
        return await self.client.sessions.prompt(self.session, self.name)

    async def saw(self, kind: Any, count: int = 1) -> Any:
        """Wait for so many events of a type."""
        return await self._witness.until(self.session, kind, count)


Reach = Callable[[Scene], Awaitable[None]]


class Point(NamedTuple):
    """Where a session is when its server is killed."""

    name: str
    reach: Reach


def step(request: Request) -> int:
    """How many tool results the conversation has."""
    return Counter(role for role, _ in said(request))["tool"]


def steps(*made: Callable[[], Answer]) -> Callable[[Request], Answer]:
    """An answer for each step of a tool loop."""
    return lambda request: made[step(request)]()


# --- held by the provider -----------------------------------------------------------------------------------------


def held_at(name: str, make: Callable[[Any], Answer], *, second: bool = False) -> Point:
    """In the first turn, or in the second after a call."""

    async def reach(scene: Scene) -> None:
        held = hold()
        respond = steps(lambda: answer(tool_call(*READ)), lambda: make(held)) if second else steps(lambda: make(held))
        await scene.begin(respond)
        await held.reached.wait()

    return Point(f"{name}{' of the second turn' if second else ''}", reach)


def in_gaps(*, second: bool) -> list[Point]:
    before = held_at("before the head", lambda held: answer(text("Hi"), before=[held]), second=second)
    inside = [
        held_at(name, lambda held, gap=gap: held_turn(gap, held, READ), second=second)
        for gap, name in enumerate(gaps()[:-1])  # behind all parts a turn is over, and the next one asks for its answer
    ]
    return [before, *inside]


def in_the_bytes() -> list[Point]:
    shares = (0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95, 1.0)
    return [
        held_at(f"after {share:.0%} of the bytes", lambda held, share=share: cut_turn(share, held, READ)) for share in shares
    ]


# --- tools, people, back-off --------------------------------------------------------------------------------------


def calling(name: str, *calls: tuple[str, str], sees: Sequence[tuple[Any, int]], second: bool = False) -> Point:
    async def reach(scene: Scene) -> None:
        last = lambda: answer(text("Now"), *[tool_call(*call) for call in calls])  # noqa: E731
        await scene.begin(steps(lambda: answer(tool_call(*READ)), last) if second else steps(last))
        for kind, count in sees:
            await scene.saw(kind, count)

    return Point(name, reach)


def failing(name: str, make: Callable[[], Answer], *, sees: Any = RetryScheduled) -> Point:
    async def reach(scene: Scene) -> None:
        await scene.begin(lambda _: make())
        await scene.saw(sees)

    return Point(name, reach)


async def with_input(scene: Scene) -> None:
    held = hold()
    await scene.begin(lambda _: answer(text("Half"), held))
    await held.reached.wait()
    for number in range(2):
        await scene.client.sessions.prompt(scene.session, f"Steer {number}")
        await scene.client.sessions.prompt(scene.session, f"Queued {number}", delivery="queue")


async def with_changed_input(scene: Scene) -> None:
    held = hold()
    await scene.begin(lambda _: answer(text("Half"), held))
    await held.reached.wait()
    sessions = scene.client.sessions
    queued = [await sessions.prompt(scene.session, f"Queued {number}", delivery="queue") for number in range(3)]
    await sessions.withdraw(scene.session, queued[0].id)
    await sessions.redeliver(scene.session, queued[2].id, "steer")


async def only_received(scene: Scene) -> None:
    await scene.client.sessions.prompt(scene.session, scene.name, resume=False)


async def already_answered(scene: Scene) -> None:
    receipt = await scene.begin(lambda _: answer(text("Hi")))
    await scene.client.sessions.wait_prompt(scene.session, receipt.id)


async def already_failed(scene: Scene) -> None:
    receipt = await scene.begin(lambda _: status(400))
    assert isinstance(await scene.client.sessions.wait_prompt(scene.session, receipt.id), FailedOutcome)


async def already_interrupted(scene: Scene) -> None:
    await scene.begin(steps(lambda: answer(tool_call(*QUESTION))))
    await scene.saw(QuestionAsked)
    assert (await scene.client.sessions.interrupt(scene.session)).interrupted


async def just_received(scene: Scene) -> None:
    await scene.begin(lambda _: answer(text("Hi")))


async def behind_a_checkpoint(scene: Scene) -> None:
    """Its text has been open for longer than a second and is still growing."""
    await scene.begin(lambda _: answer(pace(text("word " * 200, deltas=200), 0.05)))
    await scene.saw(TextDelta, 30)


async def behind_a_checkpoint_of_a_thought(scene: Scene) -> None:
    await scene.begin(lambda _: answer(pace(reasoning("word " * 200, deltas=200), 0.05)))
    await scene.saw(ReasoningDelta, 30)


OTHERS = [
    calling("a tool runs", BUSY, sees=[(ToolProgress, 1)]),
    calling("a tool runs in the second turn", BUSY, sees=[(ToolProgress, 1)], second=True),
    calling("one tool is done and one runs", READ, BUSY, sees=[(ToolSucceeded, 1), (ToolProgress, 1)]),
    calling("a permission is waited for", WRITE, sees=[(PermissionAsked, 1)]),
    calling("two permissions are waited for", WRITE, WRITE_TOO, sees=[(PermissionAsked, 2)]),
    calling("a permission is waited for in the second turn", WRITE, sees=[(PermissionAsked, 1)], second=True),
    calling("a question is waited for", QUESTION, sees=[(QuestionAsked, 1)]),
    calling("a question and a permission", QUESTION, WRITE, sees=[(QuestionAsked, 1), (PermissionAsked, 1)]),
    failing("in back-off after an error", lambda: status(500)),
    failing("in back-off after a rate limit", lambda: status(429, headers={"retry-after": "3600"})),
    failing("in back-off after a reset", lambda: answer(text(""), cut_at=0, cut_how="reset")),
    failing("in back-off after an empty answer", answer),
    failing("in back-off after a cut answer", lambda: answer(text("Half"), cut()), sees=TurnFailed),
    Point("with steers and queued prompts", with_input),
    Point("with a withdrawn and a redelivered prompt", with_changed_input),
    Point("with a prompt that woke nobody", only_received),
    Point("answered", already_answered),
    Point("failed", already_failed),
    Point("interrupted", already_interrupted),
    Point("a moment after the receipt", just_received),
]
CHECKPOINTS = [
    Point("behind a checkpoint of a text", behind_a_checkpoint),
    Point("behind a checkpoint of a thought", behind_a_checkpoint_of_a_thought),
]
ROUNDS = (in_gaps(second=False), in_gaps(second=True), [*in_the_bytes(), *CHECKPOINTS], OTHERS)
RANDOM_ROUNDS = 3
BUSY_SESSIONS = 6


# --- the kill, and what comes after -------------------------------------------------------------------------------


async def kill_at(site: Site, serving: Serving, client: Client, points: Sequence[Point]) -> dict[str, SessionId]:
    """Bring a session to each point, and kill the server that they share."""
    sessions: dict[str, SessionId] = {}
    async with trio.open_nursery() as watching:
        witness = Witness()
        watching.start_soon(witness.follow, client)
        await witness.opened.wait()
        async with trio.open_nursery() as reaching:
            for point in points:
                sessions[point.name] = (await client.sessions.create(title=point.name)).id
                scene = Scene(point.name, client, sessions[point.name], witness, site.plans)
                reaching.start_soon(reach_in_time, point, scene)
        serving.process.kill()
        serving.process.wait()
        watching.cancel_scope.cancel()
    return sessions


async def reach_in_time(point: Point, scene: Scene) -> None:
    with trio.move_on_after(SECONDS) as limit:
        await point.reach(scene)
    assert not limit.cancelled_caught, f"{point.name} was not reached"


async def look_after(site: Site, client: Client, sessions: Iterable[SessionId]) -> None:
    """The next server has found its sessions at rest and spends nothing, and every one of them goes on."""
    site.plans.forget()
    asked = len(site.provider.requests)
    assert await client.sessions.active() == {}
    assert await client.permissions.list() == ()
    assert await client.questions.list() == ()
    for session in sessions:
        assert await client.sessions.interrupt(session) == Interrupted(interrupted=False)
        await at_rest(client, session)
    assert len(site.provider.requests) == asked
    async with trio.open_nursery() as nursery:
        for session in sessions:
            nursery.start_soon(goes_on, client, session, site.provider)


async def kill_again_and_again(site: Site, rounds: Iterable[Sequence[Point]]) -> None:
    """One store, one server after the other: each looks after what the one before left, and is killed in its turn."""
    sessions: dict[str, SessionId] = {}
    for points in rounds:
        async with site.serving() as (serving, client):
            await look_after(site, client, sessions.values())
            sessions = await kill_at(site, serving, client, points)
    async with site.serving() as (serving, client):
        await look_after(site, client, sessions.values())
        assert serving.stop().code == 0


@pytest.mark.timeout(120)  # five servers, one after the other
async def test_sessions_of_a_killed_server_are_settled_and_go_on(tmp_path: Path) -> None:
    async with open_site(tmp_path) as site:
        await kill_again_and_again(site, ROUNDS)


@pytest.mark.timeout(120)
async def test_busy_sessions_of_a_server_killed_at_a_random_moment_go_on(tmp_path: Path) -> None:
    """Tool loops in full swing, whose turns begin and end every few milliseconds."""
    chance = random.Random(1)

    async def busy(scene: Scene) -> None:
        await scene.begin(lambda _: stream(*pace(whole_turn(READ), 0.002 + 0.004 * chance.random())))
        await scene.saw(TurnStarted, chance.randrange(1, 6))
        await trio.sleep(0.1 * chance.random())  # the random moment

    points = [Point(f"busy {number}", busy) for number in range(BUSY_SESSIONS)]
    async with open_site(tmp_path) as site:
        await kill_again_and_again(site, [points] * RANDOM_ROUNDS)


def test_the_matrix_has_its_sixty_points() -> None:
    names = [point.name for points in ROUNDS for point in points]
    assert len(set(names)) == len(names)
    assert len(names) + RANDOM_ROUNDS * BUSY_SESSIONS >= 60


@pytest.mark.timeout(120)
async def test_a_recovery_that_is_killed_is_finished_by_the_next_one(tmp_path: Path) -> None:
    """The server is killed as soon as it says that it has settled a session.

    What recovery ended an open text with is what had been checkpointed of it: at most a second is lost.
    """
    async with open_site(tmp_path) as site:
        async with site.serving() as (serving, client):
            sessions = await kill_at(site, serving, client, [*ROUNDS[0], *CHECKPOINTS])
        for _ in range(2):
            with site.home.start("serve", "--port", "0", *site.arguments) as process:
                assert process.stderr is not None
                assert any("settled what an ended process left" in line for line in process.stderr)
                process.kill()
        async with site.serving() as (serving, client):
            events = await at_rest(client, sessions[CHECKPOINTS[0].name])
            await look_after(site, client, sessions.values())
            assert serving.stop().code == 0
    (ended,) = [event.data for event in events if isinstance(event.data, TextEnded)]
    assert ended.text
    assert ("word " * 200).startswith(ended.text)
    assert isinstance(events[-1].data, TurnInterrupted)
    assert events[-1].data.reason == "recovery"


@pytest.mark.timeout(120)
async def test_a_prompt_whose_receipt_came_is_there_exactly_once_after_a_kill(tmp_path: Path) -> None:
    """ADM-01: fifty receipts and five kills, each right behind the last of ten receipts, with others on their way."""
    receipts: dict[MessageId, Admission] = {}
    sent: dict[MessageId, SessionId] = {}
    async with open_site(tmp_path) as site:
        for number in range(5):
            async with site.serving() as (serving, client):
                await check_receipts(client, sent, receipts)
                await admit_and_kill(site, client, serving, number, sent, receipts)
        assert len(receipts) >= 50
        site.plans.forget()
        async with site.serving() as (serving, client):
            await check_receipts(client, sent, receipts)
            assert serving.stop().code == 0


async def admit_and_kill(
    site: Site,
    client: Client,
    serving: Serving,
    number: int,
    sent: dict[MessageId, SessionId],
    receipts: dict[MessageId, Admission],
) -> None:
    wanted = len(receipts) + 10

    async def admit(message: MessageId, session: SessionId, *, resume: bool) -> None:
        site.plans.plan(message, lambda _: answer(hold()))
        try:
            receipt = await client.sessions.prompt(session, message, id=message, resume=resume)
        except ClientError:
            return
        receipts[message] = receipt
        if len(receipts) >= wanted:
            serving.process.kill()

    sessions = [(await client.sessions.create()).id for _ in range(3)]
    async with trio.open_nursery() as nursery:
        for index in range(15):
            message = MessageId(f"msg_{number}_{index}")
            sent[message] = sessions[index % 3]
            nursery.start_soon(lambda m=message, i=index: admit(m, sent[m], resume=i % 2 == 0))
    serving.process.wait()


async def check_receipts(client: Client, sent: dict[MessageId, SessionId], receipts: dict[MessageId, Admission]) -> None:
    """Each prompt with a receipt was admitted once, under the sequence of its receipt; each other one at most once."""
    admitted: Counter[MessageId] = Counter()
    places: dict[MessageId, int | None] = {}
    for session in dict.fromkeys(sent.values()):
        events = await at_rest(client, session)
        for event in events:
            if isinstance(event.data, PromptAdmitted):
                admitted[event.data.message_id] += 1
                places[event.data.message_id] = event.seq
        waiting = set(unpromoted(events))
        history = await client.sessions.messages(session, limit=200)
        shown = Counter(message.id for message in history.items)
        assert all((shown[id] == 1) != (id in waiting) for id in sent if sent[id] == session and admitted[id])
    assert {message: admitted[message] for message in receipts} == dict.fromkeys(receipts, 1)
    assert {message: places[message] for message in receipts} == {id: receipt.admitted_seq for id, receipt in receipts.items()}
    assert all(admitted[message] <= 1 for message in sent)
