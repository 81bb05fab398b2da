"""A session against a simple model of it: any letters, any answers of the provider, restarts in between.

The house runs in a thread of its own, so that each rule is one complete step; hypothesis prints the failing program.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest
import trio
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from trio.testing import wait_all_tasks_blocked

from steerway.protocol.values import (
    CompletedOutcome,
    Delivery,
    FailedOutcome,
    IdleOutcome,
    Interrupted,
    InterruptedOutcome,
    MessageId,
    ModelRef,
    Outcome,
    PromotedOutcome,
    PromptPromoted,
    SessionId,
    TurnStarted,
    WithdrawnOutcome,
)
from support.answers import Answer, answer, finish, hold, status, text, tool_call
from support.answers import Hold as Held
from support.house import OTHER, SCRIPTED, TERMINAL, OpenHouse, Task, Ticks, disorder, open_house
from support.provider import Request, open_provider
from support.tools import ScriptedTool

T = TypeVar("T")
Plan = Literal["text", "tool", "broken", "refused"]
PLANS: tuple[Plan, ...] = ("text", "tool", "broken", "refused")
SESSION = SessionId("ses_machine")


@dataclass
class Model:
    """What a session has to be, without time, tasks or storage."""

    pending: list[tuple[MessageId, Delivery]] = field(default_factory=list[tuple[MessageId, Delivery]])
    promoted: list[MessageId] = field(default_factory=list[MessageId])
    withdrawn: set[MessageId] = field(default_factory=set[MessageId])
    asked: list[ModelRef] = field(default_factory=list[ModelRef])
    model: ModelRef = SCRIPTED
    running: bool = False
    bell: bool = False
    ends: list[type[Outcome]] = field(default_factory=list[type[Outcome]])
    """How each drain ended."""

    def wake(self) -> None:
        if self.running:
            self.bell = True
        else:
            self.boundary()

    def resume(self) -> None:
        if not self.running:
            self.boundary(forced=True)

    def boundary(self, *, forced: bool = False, continuing: bool = False) -> None:
        self.bell = False
        chosen = [id for id, delivery in self.pending if delivery == "steer"]
        if not chosen and not continuing:
            chosen = [id for id, _ in self.pending[:1]]
        if not (chosen or forced or continuing):
            self.end(CompletedOutcome)
            return
        self.promoted += chosen
        self.pending = [entry for entry in self.pending if entry[0] not in chosen]
        self.asked.append(self.model)
        self.running = True

    def end(self, how: type[Outcome]) -> None:
        self.running = False
        self.ends.append(how)

    def answered(self, plan: Plan) -> None:
        match plan:
            case "text":
                self.boundary()
            case "tool":
                self.boundary(continuing=True)
            case "broken" | "refused":
                self.end(FailedOutcome)
                if self.bell:
                    self.boundary()

    def interrupted(self) -> None:
        if self.running:
            self.bell = False
            self.end(InterruptedOutcome)


class House:
    """The real one: a provider whose answers stop at two holds each, and a runtime that can be opened again."""

    def __init__(self, folder: Path) -> None:
        self.plans: list[Plan] = []
        """Of the answers so far, by request."""
        self.next_plan: Plan = "text"
        self.holds: list[Held] = []
        """Those of the latest answer that nobody has released."""
        self._folder = folder
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="house")
        self._thread.start()
        self._ready.wait()

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:
            self._error = error
        finally:
            self._ready.set()

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        ticks = Ticks()
        tool = ScriptedTool("look")
        self._over = False
        async with open_provider(respond=self._respond) as self.provider:
            while not self._over:
                async with open_house(self.provider, self._folder, ticks=ticks, tools=[tool.tool]) as self.open:
                    self._leave = trio.Event()
                    self._ready.set()
                    await self._leave.wait()

    def _respond(self, request: Request) -> Answer:
        before, middle = hold(), hold()
        self.holds = [before, middle]
        self.plans.append(self.next_plan)
        match self.next_plan:
            case "text":
                return answer(text("Half"), middle, text(" and half"), before=[before])
            case "tool":
                return answer(text("Half"), middle, tool_call("look"), before=[before])
            case "broken":
                return answer(text("Half"), middle, tool_call("look"), finish("content_filter"), before=[before])
            case "refused":
                return status(400, before=[before, middle])

    def do(self, step: Callable[[OpenHouse], Awaitable[T]]) -> T:
        """Take one step to its end."""
        if self._error is not None:
            raise self._error

        async def run() -> T:
            with trio.fail_after(10):
                return await step(self.open)

        return trio.from_thread.run(run, trio_token=self._token)

    def reopen(self) -> None:
        self._ready.clear()
        trio.from_thread.run_sync(self._leave.set, trio_token=self._token)
        assert self._ready.wait(10)
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        if self._error is None:
            self._over = True
            trio.from_thread.run_sync(self._leave.set, trio_token=self._token)
        self._thread.join(10)
        if self._error is not None:
            raise self._error


class SessionMachine(RuleBasedStateMachine):
    """Rules are letters and what the provider does; the invariants hold once everything has come to rest."""

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.house = House(Path(self.folder.name))
        self.model = Model()
        self.admitted: dict[MessageId, tuple[str, Delivery]] = {}
        self.joiners: list[tuple[Task[Outcome], int]] = []
        self.waiters: list[Task[IdleOutcome]] = []
        self.house.do(lambda house: house.session(id=SESSION))

    # --- letters ---

    @rule(delivery=st.sampled_from(("steer", "queue")), resume=st.booleans(), plan=st.sampled_from(PLANS))
    def admit(self, delivery: Delivery, resume: bool, plan: Plan) -> None:
        self.house.next_plan = plan
        id = MessageId(f"msg_{len(self.admitted)}")
        self.admitted[id] = (f"Text of {id}", delivery)
        self._prompt(id, resume)
        self.model.pending.append((id, delivery))
        if resume:
            self.model.wake()

    @precondition(lambda self: self.admitted)
    @rule(data=st.data(), resume=st.booleans())
    def admit_again(self, data: st.DataObject, resume: bool) -> None:
        id = data.draw(st.sampled_from(sorted(self.admitted)))
        receipt = self._prompt(id, resume)
        assert (receipt.promoted_seq is not None) == (id in self.model.promoted)
        assert (receipt.withdrawn_seq is not None) == (id in self.model.withdrawn)
        if resume:
            self.model.wake()

    def _prompt(self, id: MessageId, resume: bool) -> Any:
        words, delivery = self.admitted[id]
        return self.house.do(lambda house: house.sessions.prompt(SESSION, words, id=id, delivery=delivery, resume=resume))

    @precondition(lambda self: self.admitted)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.admitted)))
        fate = self.house.do(lambda house: house.sessions.withdraw(SESSION, id))
        assert type(fate) is (PromotedOutcome if id in self.model.promoted else WithdrawnOutcome)
        if id not in self.model.promoted:
            self.model.withdrawn.add(id)
            self.model.pending = [entry for entry in self.model.pending if entry[0] != id]

    @rule()
    def resume(self) -> None:
        drain = len(self.model.ends)
        self.joiners.append((self._task(lambda house: house.sessions.resume(SESSION)), drain))
        self.model.resume()

    @rule()
    def interrupt(self) -> None:
        answered = self.house.do(lambda house: house.sessions.interrupt(SESSION))
        assert answered == Interrupted(interrupted=self.model.running)
        self.model.interrupted()

    @rule()
    def wait(self) -> None:
        self.waiters.append(self._task(lambda house: house.sessions.wait(SESSION)))

    def _task(self, call: Callable[[OpenHouse], Awaitable[T]]) -> Task[T]:
        async def start(house: OpenHouse) -> Task[T]:
            task = house.task(lambda: call(house))
            await wait_all_tasks_blocked()
            return task

        return self.house.do(start)

    @rule(model=st.sampled_from((SCRIPTED, OTHER)))
    def switch_model(self, model: ModelRef) -> None:
        assert self.house.do(lambda house: house.sessions.switch_model(SESSION, model)).model == model
        self.model.model = model

    # --- the provider ---

    @precondition(lambda self: self.model.running)
    @rule(plan=st.sampled_from(PLANS))
    def go_on(self, plan: Plan) -> None:
        """The held answer goes on to its next hold, or to its end; `plan` is what the next request is told."""
        self.house.next_plan = plan
        self._release()

    @precondition(lambda self: self.model.running)
    @rule(plan=st.sampled_from(PLANS))
    def finish(self, plan: Plan) -> None:
        """The held answer goes on to its end."""
        self.house.next_plan = plan
        while not self._release():
            pass

    def _release(self) -> bool:
        held, plan = self.house.holds.pop(0), self.house.plans[-1]
        last = not self.house.holds

        async def release(_: OpenHouse) -> None:
            await held.reached.wait()
            held.release()

        self.house.do(release)
        if last:
            self.model.answered(plan)
        return last

    # --- the process ---

    @precondition(lambda self: len(self.admitted) > 2)
    @rule()
    def reopen(self) -> None:
        self.house.reopen()
        self.model.interrupted()
        self.joiners.clear()
        self.waiters.clear()

    # --- what always holds ---

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "house"):
            return
        self.house.do(self._compare)

    async def _compare(self, house: OpenHouse) -> None:
        model = self.model
        for attempt in range(50):  # sockets lie between: what is on its way arrives first
            await wait_all_tasks_blocked(0.001 * (attempt > 0))
            if len(house.provider.requests) == len(model.asked) and bool(await house.sessions.active()) == model.running:
                break
        events = await house.events(SESSION)
        assert [(request.model) for request in house.provider.requests] == [ref.id for ref in model.asked]
        assert set(await house.sessions.active()) == ({SESSION} if model.running else set())
        assert await house.pending(SESSION) == [id for id, _ in model.pending]
        assert [event.data.message_id for event in events if isinstance(event.data, PromptPromoted)] == model.promoted
        assert disorder(events, ended=not model.running) == []
        started = sum(isinstance(event.data, TurnStarted) for event in events)
        assert started == len(model.asked) == sum(isinstance(event.data, TERMINAL) for event in events) + model.running
        assert house.provider.violations == []
        for task, drain in self.joiners:
            assert task.done == (drain < len(model.ends))
            if task.done:
                assert type(await task.result()) is model.ends[drain]
        assert all(task.done == (not model.running) for task in self.waiters)
        if not model.running:
            self.waiters.clear()

    def teardown(self) -> None:
        if hasattr(self, "house"):
            try:
                self.house.close()
            finally:
                self.folder.cleanup()


SessionMachine.TestCase.settings = settings(
    max_examples=20,
    stateful_step_count=25,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestSessionMachine = pytest.mark.timeout(300)(SessionMachine.TestCase)  # finding the smallest failing program takes a while
