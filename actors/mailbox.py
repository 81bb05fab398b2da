"""Mailboxes and answers: how actors are asked for things, and what becomes of a letter when its actor ends.

Rules (the house, "Actors"):
- A mailbox is bounded. Posting never waits: a full one is `OverloadedError`, a closed one `ActorStopped` (ruling A11).
- A letter carries an `Answer`. Whoever posts may wait for it, give it a callback, or let it be.
- When a mailbox closes, every letter still in it is answered with `ActorStopped`, or the error given.
- Abandoning an answer withdraws its letter only while it is still in the mailbox; after that the outcome stands and the
  answer is dropped (ruling A5).
- Waiting goes straight to trio's scheduler: an `Event` for every letter and answer was a third of what an ask costs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import trio

from ..protocol.values.errors import ActorStopped, OverloadedError

T = TypeVar("T")


class Answer(Generic[T]):
    """A value or an error that comes once. The first settlement wins; later ones change nothing."""

    __slots__ = ("_callbacks", "_error", "_value", "_waiting", "abandoned", "done")

    def __init__(self) -> None:
        self.done = False
        self.abandoned = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._waiting: list[trio.lowlevel.Task] | None = None
        self._callbacks: list[Callable[[Answer[T]], None]] | None = None

    def resolve(self, value: T) -> None:
        """Settle with a value; callbacks run now, in the order they were given."""
        if not self.done:
            self._value = value
            self._settle()

    def fail(self, error: BaseException) -> None:
        """Settle with an error; `result` and `wait` raise it."""
        if not self.done:
            self._error = error
            self._settle()

    def abandon(self) -> None:
        """Nobody wants the answer any more. A letter that was not taken yet will not be."""
        self.abandoned = True

    def when_done(self, callback: Callable[[Answer[T]], None]) -> None:
        """Call `callback(self)` synchronously at settlement, or at once if that has passed. It must not raise."""
        if self.done:
            callback(self)
        elif self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)

    @property
    def error(self) -> BaseException | None:
        """The error it was settled with, if it was."""
        return self._error

    def result(self) -> T:
        """The value, or the error raised. Only after settlement."""
        if not self.done:
            raise RuntimeError("The answer is not there yet.")
        if self._error is not None:
            # A fresh traceback each time: several waiters may raise the one error.
            raise self._error.with_traceback(None)
        return self._value  # type: ignore[return-value]

    async def wait(self) -> T:
        """Wait for the settlement. Cancelling the wait cancels nothing else."""
        if not self.done:
            task = trio.lowlevel.current_task()
            waiting = self._waiting
            if waiting is None:
                waiting = self._waiting = []
            waiting.append(task)

            def leave(_: object) -> trio.lowlevel.Abort:
                waiting.remove(task)
                return trio.lowlevel.Abort.SUCCEEDED

            await trio.lowlevel.wait_task_rescheduled(leave)
        return self.result()

    def _settle(self) -> None:
        self.done = True
        waiting, self._waiting = self._waiting, None
        for task in waiting or ():
            trio.lowlevel.reschedule(task)
        callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            callback(self)


def settled(value: T) -> Answer[T]:
    """An answer that is there already."""
    answer: Answer[T] = Answer()
    answer.resolve(value)
    return answer


def refused(error: BaseException) -> Answer[Any]:
    """An answer that has failed already."""
    answer: Answer[Any] = Answer()
    answer.fail(error)
    return answer


class Letter(Generic[T]):
    """Something an actor is asked, with room for its answer. Subclasses add what is asked."""

    __slots__ = ("answer",)

    def __init__(self) -> None:
        self.answer: Answer[T] = Answer()


LetterT = TypeVar("LetterT", bound=Letter[Any])


class MailboxStatistics:
    """How full a mailbox is and was."""

    __slots__ = ("capacity", "peak", "waiting")

    def __init__(self, waiting: int, capacity: int, peak: int) -> None:
        self.waiting = waiting
        self.capacity = capacity
        self.peak = peak


class Mailbox(Generic[LetterT]):
    """A bounded queue of letters with one taker."""

    def __init__(self, capacity: int, name: str) -> None:
        self._letters: deque[LetterT] = deque()
        self._capacity = capacity
        self._name = name
        self._taker: trio.lowlevel.Task | None = None
        self._closed: BaseException | None = None
        self._peak = 0

    def __len__(self) -> int:
        return len(self._letters)

    def post(self, letter: LetterT) -> None:
        """Put a letter in. Raises `OverloadedError` when full and `ActorStopped` when closed; never waits."""
        if self._closed is not None:
            raise self._closed
        if len(self._letters) >= self._capacity:
            raise OverloadedError(f"{self._name} has {self._capacity} letters waiting; ask again a little later.")
        self._letters.append(letter)
        self._peak = max(self._peak, len(self._letters))
        taker, self._taker = self._taker, None
        if taker is not None:
            trio.lowlevel.reschedule(taker)

    def take_nowait(self) -> LetterT | None:
        """The next letter that anybody still wants, or None."""
        while self._letters:
            letter = self._letters.popleft()
            if not letter.answer.abandoned:
                return letter
        return None

    async def take(self) -> LetterT:
        """The next letter that anybody still wants. Cancelling loses none. Only one task may take at a time."""
        while (letter := self.take_nowait()) is None:
            self._taker = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._stop_waiting)
        return letter

    def _stop_waiting(self, _: object) -> trio.lowlevel.Abort:
        self._taker = None
        return trio.lowlevel.Abort.SUCCEEDED

    def close(self, error: BaseException | None = None) -> None:
        """Refuse further letters and answer those that wait with `error` (default `ActorStopped`). Idempotent."""
        if self._closed is None:
            self._closed = error or ActorStopped(f"{self._name} has ended.")
        while self._letters:
            self._letters.popleft().answer.fail(self._closed)

    def statistics(self) -> MailboxStatistics:
        """Letters waiting now, capacity, and the most that ever waited."""
        return MailboxStatistics(len(self._letters), self._capacity, self._peak)
