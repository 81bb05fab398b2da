"""Who may run, who waits for what: the table of `transitions` put to work.

Rules:
- All of it is synchronous. An input takes one step of the table and performs its effects in order; nothing awaits in between.
- Joiners get the outcome of the drain they joined; those who resume while a drain is stopping get the next one's.
- An interrupt is answered when the drain is settled, or after `INTERRUPT_SECONDS` while cleanup goes on.
- Whoever has given up is forgotten when the next one comes, so that asking again and again costs no memory.
"""

from __future__ import annotations

import contextlib
from typing import Any, Protocol, TypeVar

import trio

from ...protocol.values.errors import ServiceUnavailableError
from ...protocol.values.session import IdleOutcome, Interrupted, Outcome
from ..mailbox import Answer
from .transitions import Effect, Input, State, step, working

T = TypeVar("T")

INTERRUPT_SECONDS = 5


class Worker(Protocol):
    """The session actor, as far as the coordinator moves it."""

    def start(self, *, forced: bool) -> None:
        """Start a drain."""
        ...

    def cancel(self) -> None:
        """Cancel the running drain."""
        ...

    def ended(self) -> Outcome:
        """The drain has given up ownership: let go of it, and say how it ended."""
        ...

    def soon(self, answer: Answer[Interrupted]) -> None:
        """Have `answer_late(answer)` run in a task."""
        ...


class Coordinator:
    """The state of one session, and everybody who waits for it to change."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._state = State.IDLE
        self._rest = trio.Event()
        self._joiners: list[Answer[Outcome]] = []
        self._next_joiners: list[Answer[Outcome]] = []
        self._stoppers: list[Answer[Interrupted]] = []
        self._waiters: list[Answer[IdleOutcome]] = []
        self.idle_since = trio.current_time()

    @property
    def working(self) -> bool:
        """Whether a drain owns the session."""
        return working(self._state)

    @property
    def waited_for(self) -> bool:
        """Whether anybody waits for idleness."""
        return any(not waiter.abandoned for waiter in self._waiters)

    def take(self, given: Input, answer: Answer[Any] | None = None) -> bool:
        """Take the table's step; True when the drain is to look again. Raises `IllegalTransition` and changes nothing."""
        row = step(self._state, given)
        self._state = row.state
        for effect in row.effects:
            self._perform(effect, answer)
        if not self.working:
            self.idle_since = trio.current_time()
            self._rest.set()
        return Effect.CONTINUE in row.effects

    async def wait_settled(self) -> None:
        """Until no drain owns the session. For shutdown and removal; clients wait with a letter."""
        while self.working:
            if self._rest.is_set():
                self._rest = trio.Event()
            await self._rest.wait()

    def close(self, error: Exception) -> None:
        """Answer everybody who still waits with `error`."""
        for answer in (*self._joiners, *self._next_joiners, *self._waiters, *self._stoppers):
            answer.fail(error)

    def _perform(self, effect: Effect, answer: Answer[Any] | None) -> None:
        match effect:
            case Effect.CONTINUE:
                pass
            case Effect.CANCEL:
                self._worker.cancel()
            case Effect.SETTLE:
                self._settle()
            case Effect.START | Effect.START_FORCED:
                self._joiners, self._next_joiners = self._joiners + self._next_joiners, []
                self._worker.start(forced=effect is Effect.START_FORCED)
            case Effect.DROP_NEXT:
                self._joiners += self._next_joiners
                self._next_joiners = []
            case Effect.ANSWER_IDLE:
                waiters, self._waiters = self._waiters, []
                for waiter in waiters:
                    waiter.resolve(IdleOutcome())
            case _:
                if answer is not None:
                    self._keep(effect, answer)

    def _keep(self, effect: Effect, answer: Answer[Any]) -> None:
        match effect:
            case Effect.JOIN:
                self._joiners = [*_wanted(self._joiners), answer]
            case Effect.JOIN_NEXT:
                self._next_joiners = [*_wanted(self._next_joiners), answer]
            case Effect.AWAIT_IDLE:
                self._waiters = [*_wanted(self._waiters), answer]
            case Effect.AWAIT_STOP:
                self._stoppers = [*_wanted(self._stoppers), answer]
                self._worker.soon(answer)
            case Effect.ANSWER_NOTHING_RUNS:
                answer.resolve(Interrupted(interrupted=False))
            case Effect.REFUSE:
                answer.fail(ServiceUnavailableError("The runtime is stopping, or the session is being removed."))
            case _:
                raise AssertionError(effect)

    def _settle(self) -> None:
        outcome = self._worker.ended()
        joiners, self._joiners = self._joiners, []
        for joiner in joiners:
            joiner.resolve(outcome)
        stoppers, self._stoppers = self._stoppers, []
        for stopper in stoppers:
            stopper.resolve(Interrupted(interrupted=True))


def _wanted(answers: list[Answer[T]]) -> list[Answer[T]]:
    return [answer for answer in answers if not answer.abandoned]


async def answer_late(answer: Answer[Interrupted]) -> None:
    """Answer an interrupt whose cleanup takes too long."""
    with trio.move_on_after(INTERRUPT_SECONDS), contextlib.suppress(Exception):
        await answer.wait()
    answer.resolve(Interrupted(interrupted=True))
