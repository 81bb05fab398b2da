"""The storage actor: the order of all commits, and publication right behind each.

Rules:
- Letters are whole transactions. All that wait (up to 1,000) go to the dedicated thread as one group: one BEGIN IMMEDIATE, a
  savepoint each, one COMMIT (the store, "The storage actor").
- After the commit, in this task, member by member in commit order and without awaiting: the member's continuation runs (the
  owner's view advances) and its events are appended to the feed; the waiters wake last (rulings A1, A2).
- What one writer posts without waiting forms a `Chain`: when one member fails, those behind it fail with the same error and
  live events behind it are dropped, until the writer meets the error at a gate (ruling A4). A live event posted behind
  uncommitted members of its chain is published right behind them, and at once when there are none (ruling A3).
- A posted transaction always runs. Waiting for it is shielded by whoever must know; cancelling a wait withdraws nothing
  (ruling A5).
- It runs shielded and ends last: `close` is synchronous, and what was posted before it is still committed (ruling A8).
- An owner that has lost the fence stops: the group is refused, and the actor, with it the runtime, ends.
- A group that could not be committed fails whole with `StorageUnavailableError`, and the next group is the probe: there is no
  state to get stuck in.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import trio

from ..protocol.values.errors import ServiceUnavailableError, StorageUnavailableError, StoreInUseError
from ..protocol.values.event import Event
from ..storage.database import Database
from ..storage.journal import Transaction
from ..storage.reader import Reader
from ..storage.writer import Committed, Member, Refused
from .blocking import Blocking, Worker
from .feed import Feed
from .logs import Logger
from .mailbox import Answer, refused

T = TypeVar("T")

_Outcomes = list[Committed | Refused]
_Run = Callable[[Callable[[], _Outcomes]], Awaitable[_Outcomes]]

IDLE_SECONDS = 5.0
"""Without a commit for so long, the write-ahead log is truncated."""
MAX_GROUP = 1_000
READERS = 3

_log = Logger("steerway.storage")


class Chain:
    """What one writer has posted and not yet been told about."""

    __slots__ = ("error", "tail")

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.tail: _Posted[Any] | None = None


class _Posted(Generic[T]):
    __slots__ = ("answer", "chain", "live", "then", "work")

    def __init__(
        self, work: Callable[[Transaction], T], chain: Chain | None, then: Callable[[T | Exception], None] | None
    ) -> None:
        self.work = work
        self.chain = chain
        self.then = then
        self.answer: Answer[T] = Answer()
        self.live: list[Event] | None = None


class StorageStatistics:
    """Counts since the start, and what waits now."""

    __slots__ = ("failed_groups", "groups", "largest_group", "members", "waiting")

    def __init__(self) -> None:
        self.groups = 0
        self.members = 0
        self.largest_group = 0
        self.failed_groups = 0
        self.waiting = 0


class StorageActor:
    """Owns the write connection through one dedicated thread, and a few read connections."""

    def __init__(self, database: Database, feed: Feed, blocking: Blocking) -> None:
        self._database = database
        self._feed = feed
        self._blocking = blocking
        self._waiting: deque[_Posted[Any]] = deque()
        self._arrival = trio.Event()
        self._closed = False
        self._log_grew = False
        self._ended = False
        self._statistics = StorageStatistics()
        self._idle_readers: list[tuple[Worker, Reader]] = []
        self._reader_limit = trio.CapacityLimiter(READERS)

    @property
    def generation(self) -> str:
        """Identity of the store's history."""
        return self._database.generation

    def statistics(self) -> StorageStatistics:
        """Groups, members and failures since the start."""
        self._statistics.waiting = len(self._waiting)
        return self._statistics

    def post(
        self,
        work: Callable[[Transaction], T],
        *,
        chain: Chain | None = None,
        then: Callable[[T | Exception], None] | None = None,
    ) -> Answer[T]:
        """Have a transaction committed; returns at once.

        `work(transaction)` runs in the storage thread. After the commit `then(value)` runs, before any waiter; if the member
        failed, `then(error)` runs instead. Neither may raise or wait.
        """
        if self._closed:
            return self._refuse(ServiceUnavailableError("The runtime has stopped; nothing more is recorded."), then)
        if chain is not None and chain.error is not None:
            return self._refuse(chain.error, then)
        posted = _Posted(work, chain, then)
        if chain is not None:
            chain.tail = posted
        self._waiting.append(posted)
        self._arrival.set()
        return posted.answer

    async def commit(self, work: Callable[[Transaction], T]) -> T:
        """Have a transaction committed, and wait for it. The wait is shielded, so the outcome is always known."""
        answer = self.post(work)
        if not answer.done:
            with trio.CancelScope(shield=True), contextlib.suppress(Exception):
                await answer.wait()
        return answer.result()

    def post_live(self, event: Event, chain: Chain) -> None:
        """Publish a live event right behind everything its chain has posted; drop it if the chain is broken."""
        if chain.error is not None:
            return
        tail = chain.tail
        if tail is None:
            self._feed.publish_live(event)
        elif tail.live is None:
            tail.live = [event]
        else:
            tail.live.append(event)

    async def gate(self, chain: Chain) -> None:
        """Wait until everything the chain posted is committed. Raises the error of the first member that failed, once.

        The gate is where a writer meets its errors: after it has raised, the chain may be used again.
        """
        while chain.tail is not None:
            answer = chain.tail.answer
            with trio.CancelScope(shield=True), contextlib.suppress(Exception):  # met below, through the chain
                await answer.wait()
        error, chain.error = chain.error, None
        if error is not None:
            raise error
        await trio.lowlevel.checkpoint_if_cancelled()

    async def read(self, query: Callable[[Reader], T]) -> T:
        """The value of `query(reader)` on a read-only connection; it sees every commit answered before the call.

        One query is one page: no read transaction outlives it. Cancelling waits for the page. Raises what the query raises, and
        `StorageUnavailableError` where the disk fails.
        """
        async with self._reader_limit:
            # The reader that rested last has the warmest cache; its own thread is a third of the price of a borrowed one.
            worker, reader = self._idle_readers.pop() if self._idle_readers else await self._open_reader()
            try:
                return await worker.run(lambda: reader.answer(query))
            finally:
                self._idle_readers.append((worker, reader))
                if self._ended:
                    self._close_readers()

    async def _open_reader(self) -> tuple[Worker, Reader]:
        worker = self._blocking.worker("steerway-reader")
        try:
            return worker, await worker.run(self._database.open_reader)
        except BaseException:
            worker.close()
            raise

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """The actor's life: until `close`, and until what was posted before it is committed. Runs shielded."""
        with trio.CancelScope(shield=True):
            worker = self._blocking.worker("steerway-storage")
            try:
                task_status.started()
                while True:
                    while not self._waiting:
                        if self._closed:
                            return
                        self._arrival = trio.Event()
                        with trio.move_on_after(IDLE_SECONDS if self._log_grew else math.inf) as idle:
                            await self._arrival.wait()
                        if idle.cancelled_caught:
                            await self._tidy(worker.run)
                    group = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_GROUP))]
                    await self._commit_group(worker.run, group)
                    if self._database.writer.lost:
                        raise StoreInUseError("Another process has taken the store over; this runtime ends.")
            finally:
                self._closed = self._ended = True
                while self._waiting:
                    self._finish(self._waiting.popleft(), Refused(_over()))
                worker.close()
                self._close_readers()

    def close(self) -> None:
        """Take nothing more. Synchronous, so that it works in a `finally` of a cancelled task."""
        self._closed = True
        self._arrival.set()

    async def _tidy(self, run: Callable[[Callable[[], bool]], Awaitable[bool]]) -> None:
        """Truncate the write-ahead log in an idle moment; a reader that is in the way is not waited for."""
        self._log_grew = False
        try:
            await run(self._database.checkpoint_if_free)
        except StorageUnavailableError as error:
            _log.warning("the write-ahead log could not be truncated", error=str(error))

    def _close_readers(self) -> None:
        for worker, reader in self._idle_readers:
            worker.close()
            reader.close()
        self._idle_readers.clear()

    async def _commit_group(self, run: _Run, group: list[_Posted[Any]]) -> None:
        runnable: list[_Posted[Any]] = []
        for posted in group:
            if posted.chain is not None and posted.chain.error is not None:
                self._finish(posted, Refused(posted.chain.error))
            else:
                runnable.append(posted)
        if not runnable:
            return
        members = [Member(posted.work, posted.chain) for posted in runnable]
        writer = self._database.writer
        try:
            outcomes = await run(lambda: writer.commit(members))
        except BaseException:  # a defect, which ends the runtime; those who wait shielded for this group must learn of it
            for posted in runnable:
                self._finish(posted, Refused(_over()))
            raise
        self._log_grew = True
        statistics = self._statistics
        statistics.groups += 1
        statistics.members += len(members)
        statistics.largest_group = max(statistics.largest_group, len(members))
        first = outcomes[0]
        if isinstance(first, Refused) and isinstance(first.error, StorageUnavailableError):
            statistics.failed_groups += 1
            _log.error("commit failed", members=len(members), error=str(first.error))
        for posted, result in zip(runnable, outcomes, strict=True):
            self._advance(posted, result)
        for posted, result in zip(runnable, outcomes, strict=True):
            self._answer(posted, result)

    def _finish(self, posted: _Posted[Any], result: Committed | Refused) -> None:
        self._advance(posted, result)
        self._answer(posted, result)

    def _advance(self, posted: _Posted[Any], result: Committed | Refused) -> None:
        chain = posted.chain
        if chain is not None and chain.tail is posted:
            chain.tail = None
        if isinstance(result, Refused):
            if chain is not None and chain.error is None:
                chain.error = result.error
            if posted.then is not None:
                posted.then(result.error)
            return
        if posted.then is not None:
            posted.then(result.result)
        if result.events:
            self._feed.publish(result.events)
        if posted.live is not None:
            for event in posted.live:
                self._feed.publish_live(event)

    @staticmethod
    def _answer(posted: _Posted[Any], result: Committed | Refused) -> None:
        if isinstance(result, Refused):
            posted.answer.fail(result.error)
        else:
            posted.answer.resolve(result.result)

    @staticmethod
    def _refuse(error: Exception, then: Callable[[Any], None] | None) -> Answer[Any]:
        if then is not None:
            then(error)
        return refused(error)


def _over() -> ServiceUnavailableError:
    return ServiceUnavailableError("The storage actor has ended.")
