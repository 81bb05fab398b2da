"""The one seam for everything that blocks: SQLite, files, synchronous tools (ruling E5).

In production the work runs in threads. Under a virtual clock it runs in the loop, because an autojumping clock does not see
threads and would leap over every time-out while one works.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import outcome
import trio

T = TypeVar("T")


class Blocking(Protocol):
    """Runs blocking work."""

    async def run(self, work: Callable[[], T], *, abandon_on_cancel: bool = False) -> T:
        """The value of `work()`, or its exception.

        A cancelled caller waits for the work to end, unless `abandon_on_cancel`: then it leaves at once and the work's
        result is dropped (ruling A17).
        """
        ...

    def worker(self, name: str) -> Worker:
        """A dedicated place that runs one piece of work after another, in order."""
        ...


class Worker(Protocol):
    """One dedicated thread, or its in-line stand-in."""

    async def run(self, work: Callable[[], T]) -> T:
        """The value of `work()`. The wait is not cancellable: what was handed over happens."""
        ...

    def close(self) -> None:
        """Let the thread end once it has nothing left to do. Idempotent; no further work may be given."""
        ...


class Threads:
    """Threads, at most `limit` of each kind.

    Work that its caller may abandon, as tools are, has a limiter apart: abandoned threads go on as long as they like and keep
    their places, which must not be those of work that somebody waits for (ruling A17).
    """

    def __init__(self, limit: int = 64) -> None:
        self._limiter = trio.CapacityLimiter(limit)
        self._abandonable = trio.CapacityLimiter(limit)

    async def run(self, work: Callable[[], T], *, abandon_on_cancel: bool = False) -> T:
        limiter = self._abandonable if abandon_on_cancel else self._limiter
        return await trio.to_thread.run_sync(work, abandon_on_cancel=abandon_on_cancel, limiter=limiter)

    def worker(self, name: str) -> Worker:
        return ThreadWorker(name)


class Inline:
    """No threads: for a virtual clock."""

    async def run(self, work: Callable[[], T], *, abandon_on_cancel: bool = False) -> T:
        await trio.lowlevel.checkpoint()
        return work()

    def worker(self, name: str) -> Worker:
        return InlineWorker()


class ThreadWorker:
    """A thread that takes work from a queue and wakes the waiting task once for each piece."""

    def __init__(self, name: str) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    async def run(self, work: Callable[[], T]) -> T:
        token = trio.lowlevel.current_trio_token()
        task = trio.lowlevel.current_task()

        def hand_back(result: outcome.Outcome[T]) -> None:
            trio.lowlevel.reschedule(task, result)

        def piece() -> None:
            result: outcome.Outcome[T] = outcome.capture(work)
            try:
                token.run_sync_soon(hand_back, result)
            except trio.RunFinishedError:
                pass  # the loop is gone, and so is everybody who waited

        self._queue.put(piece)

        def no_abort(_: Any) -> trio.lowlevel.Abort:
            return trio.lowlevel.Abort.FAILED

        return await trio.lowlevel.wait_task_rescheduled(no_abort)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._queue.put(None)

    def _loop(self) -> None:
        while (piece := self._queue.get()) is not None:
            piece()


class InlineWorker:
    """Runs work where it is asked for."""

    async def run(self, work: Callable[[], T]) -> T:
        await trio.lowlevel.cancel_shielded_checkpoint()
        return work()

    def close(self) -> None:
        pass
