"""INT matrix: a turn interrupted at every point of its life rests at once, has one end, and history goes on.

Long, because the points of a turn are one table, walked by one test.

Rules:
- A point scripts the provider, starts the work, and returns when the turn is where it has to be.
- Virtual time, unless a process or a thread is to be stopped. Two seconds are the bound, five where a process has to be killed.
- What is checked is the same for every point (`support.matrix`); the doctor looks at every store at the end.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest
import trio
from msgspec import structs
from trio.testing import MockClock, wait_all_tasks_blocked

from steerway.actors.blocking import Blocking, Inline, Threads
from steerway.actors.configuration import Agent, Configuration, PermissionRule
from steerway.actors.configuration import Provider as ProviderSettings
from steerway.protocol.values import (
    IdleOutcome,
    Interrupted,
    InterruptedOutcome,
    MessageId,
    ModelRef,
    PermissionAsked,
    QuestionAsked,
    RetryScheduled,
    SessionId,
    TextDelta,
    ToolFailed,
    ToolProgress,
    ToolSucceeded,
    TurnFailed,
    TurnInterrupted,
    TurnStarted,
)
from support.answers import Answer, answer, cut, event, hold, status, stream, text, tool_call
from support.doctor import assert_healthy
from support.house import SCRIPTED, LingeringTool, OpenHouse, Watch, configuration, open_house
from support.matrix import at_rest, cut_turn, gaps, goes_on, held_turn, pace, unpromoted, whole_turn
from support.provider import Provider, open_provider
from support.tools import HeldTool, ScriptedTool, StubbornTool

T = TypeVar("T")


class SlowBlocking(Inline):
    """In-line work that is late by `seconds` of the clock, once they are set."""

    def __init__(self) -> None:
        self.seconds = 0.0

    async def run(self, work: Callable[[], T], *, abandon_on_cancel: bool = False) -> T:
        if self.seconds:
            await trio.sleep(self.seconds)
        return await super().run(work, abandon_on_cancel=abandon_on_cancel)


class Scene:
    """A session about to be interrupted."""

    def __init__(
        self,
        house: OpenHouse,
        session: SessionId,
        watch: Watch,
        blocking: Blocking,
        large: ScriptedTool,
        held_tool: HeldTool,
        lingering: LingeringTool,
        stubborn: StubbornTool,
    ) -> None:
        self.house = house
        self.provider = house.provider
        self.session = session
        self.watch = watch
        self.blocking = blocking
        self.large = large
        self.slow = trio.Event()
        self.held_tool = held_tool
        self.lingering = lingering
        self.stubborn = stubborn
        self.first: MessageId | None = None
        """The first prompt, if there was one."""

    def slow_down(self, seconds: float) -> None:
        """From now on, until the interrupt is over, everything that blocks takes so long."""
        assert isinstance(self.blocking, SlowBlocking)
        self.blocking.seconds = seconds

    def slow_output(self, _: str) -> str:
        """The answer of a tool after which everything is slow."""
        self.slow_down(1.0)
        self.slow.set()
        return "x\n" * 100_000

    def afterwards(self) -> None:
        """The interrupt is over."""
        if isinstance(self.blocking, SlowBlocking):
            self.blocking.seconds = 0.0

    async def begin(self, *answers: Answer, text: str = "Hello", **fields: Any) -> None:
        """Script these answers and send the prompt that starts the work."""
        self.provider.script(*answers)
        receipt = await self.house.sessions.prompt(self.session, text, **fields)
        self.first = self.first or receipt.id


Reach = Callable[[Scene], Awaitable[None]]


class Point(NamedTuple):
    """Where a turn is interrupted; `seconds` is what it may take until the session rests."""

    name: str
    reach: Reach
    seconds: float = 2.0


POINTS: list[Point] = []
REAL_POINTS: list[Point] = []


def point(name: str, *, into: list[Point] = POINTS, seconds: float = 2.0) -> Callable[[Reach], Reach]:
    def register(reach: Reach) -> Reach:
        into.append(Point(name, reach, seconds))
        return reach

    return register


# --- on the way to the provider -----------------------------------------------------------------------------------


def steps_after_the_receipt(steps: int) -> Point:
    """So many turns of the event loop after the receipt: anywhere between the wake and the request."""

    async def reach(scene: Scene) -> None:
        await scene.begin(answer(text("Hi")))
        for _ in range(steps):
            await trio.lowlevel.checkpoint()

    return Point(f"{steps} steps after the receipt", reach)


POINTS.extend(steps_after_the_receipt(steps) for steps in (0, 3, 4, 5, 6, 8, 10, 13, 16, 20, 25))


@point("connecting")
async def connecting(scene: Scene) -> None:
    await scene.house.sessions.switch_model(scene.session, ModelRef(provider="nowhere", id="any"))
    await scene.begin()
    await scene.watch.until(TurnStarted)
    await wait_all_tasks_blocked()


@point("before the head")
async def before_the_head(scene: Scene) -> None:
    held = hold()
    await scene.begin(answer(text("Hi"), before=[held]))
    await held.reached.wait()


@point("in the head")
async def in_the_head(scene: Scene) -> None:
    await scene.begin(answer(text("Hi"), head_pace=1.0))
    await scene.provider.wait_request()
    await trio.sleep(1.5)


# --- in the stream ------------------------------------------------------------------------------------------------


def in_a_gap(gap: int, name: str, *, second: bool) -> Point:
    async def reach(scene: Scene) -> None:
        held = hold()
        first = [answer(text("First"), tool_call("look"))] if second else []
        await scene.begin(*first, held_turn(gap, held))
        await held.reached.wait()
        await wait_all_tasks_blocked()

    return Point(f"{name} of the {'second' if second else 'first'} turn", reach)


def in_the_bytes(share: float) -> Point:
    async def reach(scene: Scene) -> None:
        held = hold()
        await scene.begin(cut_turn(share, held))
        await held.reached.wait()
        await wait_all_tasks_blocked()

    return Point(f"after {share:.0%} of the bytes", reach)


def steps_after_the_last_byte(steps: int) -> Point:
    async def reach(scene: Scene) -> None:
        held = hold()
        await scene.begin(stream(*whole_turn()[:5], held, *answer(text("")).parts[1:]))
        await held.reached.wait()
        held.release()
        for _ in range(steps):
            await trio.lowlevel.checkpoint()

    return Point(f"{steps} steps after the last byte was let go", reach)


POINTS.extend(in_a_gap(gap, name, second=second) for second in (False, True) for gap, name in enumerate(gaps()))
POINTS.extend(in_the_bytes(share) for share in (0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95, 1))
POINTS.extend(steps_after_the_last_byte(steps) for steps in (0, 1, 2, 3, 4, 5, 6))


@point("in a paced answer, behind a checkpoint of its text")
async def behind_a_checkpoint(scene: Scene) -> None:
    await scene.begin(answer(pace(whole_turn(), 0.7)))
    await scene.watch.until(TextDelta, 3)


# --- tools --------------------------------------------------------------------------------------------------------


@point("a tool runs")
async def a_tool_runs(scene: Scene) -> None:
    await scene.begin(answer(tool_call("held")))
    await scene.held_tool.wait_started()


@point("a tool runs in the second turn")
async def a_tool_runs_in_the_second_turn(scene: Scene) -> None:
    await scene.begin(answer(tool_call("look")), answer(text("On it"), tool_call("held")))
    await scene.held_tool.wait_started()


@point("one tool is done and one runs")
async def one_of_two_tools(scene: Scene) -> None:
    await scene.begin(answer(tool_call("look"), tool_call("held")))
    await scene.held_tool.wait_started()
    await scene.watch.until(ToolSucceeded)


@point("eight tools run and two wait")
async def eight_tools(scene: Scene) -> None:
    await scene.begin(answer(*[tool_call("held") for _ in range(10)]))
    await scene.held_tool.wait_started(8)


@point("a tool is slow to clean up")
async def a_slow_cleanup(scene: Scene) -> None:
    await scene.begin(answer(tool_call("linger")))
    await scene.lingering.wait_started()

    async def let_go() -> None:
        await scene.lingering.cancelled.wait()
        await trio.sleep(1)
        scene.lingering.let_go.set()

    scene.house.task(let_go)


@point("a large output is being kept")
async def an_output_is_kept(scene: Scene) -> None:
    scene.large.answer = scene.slow_output
    await scene.begin(answer(tool_call("large")))
    await scene.slow.wait()
    await trio.sleep(0.5)


@point("a tool runs while files and reads are slow")
async def everything_is_late(scene: Scene) -> None:
    await scene.begin(answer(tool_call("look"), tool_call("held")))
    await scene.held_tool.wait_started()
    scene.slow_down(0.1)


# --- people -------------------------------------------------------------------------------------------------------

WRITE = ("write", {"path": "new.txt", "content": "new"})
QUESTION = ("question", {"questions": [{"question": "Which one?", "header": "Choice"}]})


@point("a permission is waited for")
async def a_permission(scene: Scene) -> None:
    await scene.begin(answer(tool_call(*WRITE)))
    await scene.watch.until(PermissionAsked)


@point("two permissions are waited for, and a tool runs")
async def two_permissions(scene: Scene) -> None:
    await scene.begin(answer(tool_call(*WRITE), tool_call("write", {"path": "b", "content": "b"}), tool_call("held")))
    await scene.watch.until(PermissionAsked, 2)
    await scene.held_tool.wait_started()


@point("a permission is waited for in the second turn")
async def a_permission_in_the_second_turn(scene: Scene) -> None:
    await scene.begin(answer(tool_call("look")), answer(tool_call(*WRITE)))
    await scene.watch.until(PermissionAsked)


@point("a permission was just given")
async def a_permission_was_given(scene: Scene) -> None:
    await scene.begin(answer(tool_call(*WRITE)))
    asked = await scene.watch.until(PermissionAsked)
    await scene.house.runtime.permissions.reply(asked.request_id, "once")


@point("a permission was just refused")
async def a_permission_was_refused(scene: Scene) -> None:
    await scene.begin(answer(tool_call(*WRITE), tool_call("held")))
    asked = await scene.watch.until(PermissionAsked)
    await scene.house.runtime.permissions.reply(asked.request_id, "reject")


@point("a question is waited for")
async def a_question(scene: Scene) -> None:
    await scene.begin(answer(text("Well"), tool_call(*QUESTION)))
    await scene.watch.until(QuestionAsked)


@point("a question and a permission are waited for")
async def a_question_and_a_permission(scene: Scene) -> None:
    await scene.begin(answer(tool_call(*QUESTION), tool_call(*WRITE)))
    await scene.watch.until(QuestionAsked)
    await scene.watch.until(PermissionAsked)


# --- in back-off --------------------------------------------------------------------------------------------------


def in_back_off(name: str, *made: Callable[[], Answer], after: int = 1) -> Point:
    async def reach(scene: Scene) -> None:
        await scene.begin(*[make() for make in made])
        await scene.watch.until(RetryScheduled, after)
        await trio.sleep(0.5)

    return Point(f"in back-off after {name}", reach)


OVERLOADED = {"error": {"message": "Overloaded.", "type": "server_error"}}

POINTS.extend(
    [
        in_back_off("an internal error", lambda: status(500)),
        in_back_off("a rate limit of an hour", lambda: status(429, headers={"retry-after": "3600"})),
        in_back_off("a reset", lambda: answer(text(""), cut_at=0, cut_how="reset")),
        in_back_off("a stream that just stops", stream),
        in_back_off("an empty answer", answer),
        in_back_off("an error in the stream", lambda: stream(event(OVERLOADED))),
        in_back_off("three failures", lambda: status(500), lambda: status(503), lambda: status(529), after=3),
    ]
)


@point("in back-off after a cut answer")
async def after_a_cut_answer(scene: Scene) -> None:
    await scene.begin(answer(text("Half"), cut()))
    await scene.watch.until(TurnFailed)
    await trio.sleep(0.5)


@point("in back-off of the second turn, with a steer and a queued prompt waiting")
async def back_off_with_input(scene: Scene) -> None:
    await scene.begin(answer(tool_call("look")), status(500))
    await scene.watch.until(RetryScheduled)
    await scene.begin(text="Steer")
    await scene.begin(text="Queued", delivery="queue")


# --- the inbox, and who else is there -----------------------------------------------------------------------------


@point("in an answer, with steers and queued prompts waiting")
async def with_input(scene: Scene) -> None:
    held = hold()
    await scene.begin(answer(text("Half"), held))
    await held.reached.wait()
    for number in range(2):
        await scene.begin(text=f"Steer {number}")
        await scene.begin(text=f"Queued {number}", delivery="queue")


@point("in a tool, with a prompt that was withdrawn and one that changed its delivery")
async def with_changed_input(scene: Scene) -> None:
    await scene.begin(answer(tool_call("held")))
    await scene.held_tool.wait_started()
    sessions = scene.house.sessions
    queued = [await sessions.prompt(scene.session, f"Queued {number}", delivery="queue") for number in range(3)]
    await sessions.withdraw(scene.session, queued[0].id)
    await sessions.redeliver(scene.session, queued[2].id, "steer")


@point("in the answer to a queued prompt, behind another")
async def in_a_queued_prompt(scene: Scene) -> None:
    held, quiet = hold(), {"resume": False, "delivery": "queue"}
    await scene.begin(answer(text("First")), answer(text("Half"), held), text="Queued 0", **quiet)
    await scene.begin(text="Queued 1", **quiet)
    await scene.begin(text="Queued 2", delivery="queue")
    await held.reached.wait()


@point("in a run that was asked for without a prompt")
async def in_a_forced_run(scene: Scene) -> None:
    held = hold()
    scene.provider.script(answer(text("Half"), held))
    scene.house.task(lambda: scene.house.sessions.resume(scene.session))
    await held.reached.wait()


@point("in a turn whose model and agent were changed meanwhile")
async def after_a_switch(scene: Scene) -> None:
    held = hold()
    await scene.begin(answer(text("Half"), held))
    await held.reached.wait()
    await scene.house.sessions.switch_agent(scene.session, "plain")


@point("while it is being interrupted already")
async def twice(scene: Scene) -> None:
    held = hold()
    await scene.begin(answer(text("Half"), held))
    await held.reached.wait()
    scene.house.task(lambda: scene.house.sessions.interrupt(scene.session))


# --- processes and threads ----------------------------------------------------------------------------------------


@point("a tool in a thread knows nothing of cancellation", into=REAL_POINTS)
async def a_stubborn_tool(scene: Scene) -> None:
    await scene.begin(answer(tool_call("stubborn")))
    await trio.to_thread.run_sync(scene.stubborn.started.wait)


def in_a_command(name: str, command: str) -> Point:
    """The shell says that it is there by its first output."""

    async def reach(scene: Scene) -> None:
        await scene.begin(answer(tool_call("shell", {"command": command})))
        await scene.watch.until(ToolProgress)

    return Point(f"a command {name}", reach, seconds=5.0)


REAL_POINTS.extend(
    [
        in_a_command("that ignores TERM and INT", "trap '' TERM INT; while :; do echo tick; sleep 0.2; done"),
        in_a_command("whose children ignore TERM", "(trap '' TERM; echo up; sleep 50) & (trap '' TERM; sleep 51) & wait"),
        in_a_command("that prints without end", "yes"),
    ]
)


# --- the matrix ---------------------------------------------------------------------------------------------------


@contextmanager
def closed_door() -> Generator[int]:
    """A port where connections are never accepted: its queue is full."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


def settings(provider: Provider, door: int) -> Configuration:
    """The house's own; commands need no permission, and the provider `nowhere` is behind the closed door."""
    usual = configuration(provider)
    allowed = Agent(permissions=(PermissionRule(action="shell", resource="*", effect="allow"),))
    nowhere = ProviderSettings(protocol="openai-chat", base_url=f"http://127.0.0.1:{door}/v1")
    return structs.replace(usual, agents={**usual.agents, "build": allowed}, providers={**usual.providers, "nowhere": nowhere})


@asynccontextmanager
async def open_scene(folder: Path, blocking: Blocking) -> AsyncGenerator[Scene]:
    large, held, linger, stubborn = ScriptedTool("large"), HeldTool("held"), LingeringTool("linger"), StubbornTool("stubborn")
    tools = [ScriptedTool("look").tool, large.tool, held.tool, linger.tool, stubborn.tool]
    async with open_provider() as provider:
        with closed_door() as door:
            async with open_house(
                provider, folder, tools=tools, blocking=blocking, settings=settings(provider, door), check=False
            ) as house:
                try:
                    yield Scene(house, await house.session(), await house.watch(), blocking, large, held, linger, stubborn)
                finally:
                    stubborn.release()
                    linger.let_go.set()
    assert_healthy(folder / "sessions.db")


async def interrupt(scene: Scene, seconds: float) -> None:
    """Interrupt what runs, and look at everything that has to be true then."""
    house, session = scene.house, scene.session
    began = trio.current_time()
    await house.sessions.interrupt(session)
    await house.sessions.wait(session)
    assert trio.current_time() - began <= seconds
    scene.afterwards()
    events = await at_rest(house.runtime, session)
    assert {event.data.reason for event in events if isinstance(event.data, TurnInterrupted)} <= {"user"}
    if scene.first is not None and scene.first not in unpromoted(events):
        with trio.fail_after(1):
            await house.sessions.wait_prompt(session, scene.first)
    await house.sessions.switch_model(session, SCRIPTED)
    await goes_on(house.runtime, session, scene.provider)


@pytest.mark.parametrize("where", POINTS, ids=lambda where: where.name)
async def test_a_session_rests_at_once_and_goes_on_after_an_interrupt(
    tmp_path: Path, autojump_clock: MockClock, where: Point
) -> None:
    async with open_scene(tmp_path, SlowBlocking()) as scene:
        await where.reach(scene)
        await interrupt(scene, where.seconds)


@pytest.mark.parametrize("where", REAL_POINTS, ids=lambda where: where.name)
async def test_a_session_rests_in_time_after_an_interrupt_of_what_cannot_be_cancelled(tmp_path: Path, where: Point) -> None:
    async with open_scene(tmp_path, Threads()) as scene:
        await where.reach(scene)
        await interrupt(scene, where.seconds)
        failed = [event.data.error for event in await scene.house.events(scene.session) if isinstance(event.data, ToolFailed)]
        assert [error.type for error in failed] == ["aborted"]


def test_the_matrix_has_its_sixty_points() -> None:
    names = [where.name for where in (*POINTS, *REAL_POINTS)]
    assert len(names) >= 60
    assert len(set(names)) == len(names)


async def test_an_output_that_is_being_kept_at_an_interrupt_is_a_success(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The completion region: the tool has succeeded, so its one settlement says so, whenever the interrupt comes."""
    async with open_scene(tmp_path, SlowBlocking()) as scene:
        await an_output_is_kept(scene)
        await interrupt(scene, 2.0)
        (succeeded,) = await scene.house.data(scene.session, ToolSucceeded)
        assert succeeded.managed_outputs
        assert not await scene.house.data(scene.session, ToolFailed)


async def test_everybody_who_waits_is_answered_by_an_interrupt(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_scene(tmp_path, Inline()) as scene:
        await a_tool_runs(scene)
        sessions, session, first = scene.house.sessions, scene.session, scene.first
        assert first is not None
        joined, idle = scene.house.task(lambda: sessions.resume(session)), scene.house.task(lambda: sessions.wait(session))
        prompt = scene.house.task(lambda: sessions.wait_prompt(session, first))
        await wait_all_tasks_blocked()
        with trio.fail_after(2):
            both = [scene.house.task(lambda: sessions.interrupt(session)) for _ in range(2)]
            assert [await each.result() for each in both] == [Interrupted(interrupted=True)] * 2
            assert await joined.result() == InterruptedOutcome(reason="user")
            assert await prompt.result() == InterruptedOutcome(reason="user")
            assert await idle.result() == IdleOutcome()
        await goes_on(scene.house.runtime, session, scene.provider)
