"""Group commit: many transactions, one fsync.

Rules (rulings A4 and A6):
- `commit` runs its members in order inside one BEGIN IMMEDIATE: the fence is read once, one COMMIT ends the group.
- A member that raises is undone and refused alone. A savepoint for each member would copy every page that it touches, a
  third of an admission's cost, although hardly any member fails once it has written. So a group begins without savepoints;
  when a member fails after writing, the group is rolled back, what the members before it wrote is written again as it was
  (no work runs twice), and the rest of the group gets savepoints.
- Members of one chain stand or fall in order: behind a failed one, the rest of its chain in this group is refused with the
  same error and not run.
- When SQLite itself ends the transaction, or BEGIN or COMMIT fails, every member is refused with `StorageUnavailableError`
  and nothing of the group is stored. The writer can be used again.
- When another opener has raised the fence, every member is refused with `StoreInUseError`, now and from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import apsw
import msgspec

from ..protocol.values.errors import StorageUnavailableError, StoreInUseError
from .journal import NewEvent, StoredEvent, Transaction
from .keys import Keys
from .statements import Connection

__all__ = ["Committed", "Member", "NewEvent", "Refused", "StoredEvent", "Transaction", "Writer"]


class Member(msgspec.Struct, frozen=True):
    """One transaction of a group. `work` gets the `Transaction`; what it returns is the result.

    `chain` is any object; members with the same one depend on each other in order.
    """

    work: Callable[[Transaction], Any]
    chain: object | None = None


class Committed(msgspec.Struct, frozen=True):
    """The member is durable: what its work returned, and the events to publish: those it appended, and was told to tell."""

    result: Any
    events: tuple[StoredEvent, ...]


class Refused(msgspec.Struct, frozen=True):
    """Nothing of the member is stored."""

    error: Exception


class Writer:
    """The one connection that writes. Used by one thread at a time."""

    def __init__(self, connection: Connection, fence: int) -> None:
        self._connection = connection
        self._cursor = connection.cursor()
        self._keys = Keys(self._cursor)
        self._fence = fence
        self.lost = False
        """Whether another opener has taken the store over; nothing is written any more."""

    def commit(self, members: Sequence[Member]) -> list[Committed | Refused]:
        """Run all members and commit once; returns one answer per member, in order. Never raises an `Exception`.

        Blocks for at most the busy timeout and the disk's fsync. A `BaseException` of a member (a keyboard interrupt)
        undoes the group and passes.
        """
        try:
            if not self._begin():
                return [Refused(_taken_over()) for _ in members]
        except apsw.Error as error:
            return self._all_refused(members, error)
        answers: list[Committed | Refused] = []
        written: list[Transaction] = []
        failed: dict[int, Exception] = {}
        savepoints = False
        try:
            for member in members:
                chain = member.chain
                if failed and chain is not None and id(chain) in failed:
                    answers.append(Refused(failed[id(chain)]))
                    continue
                transaction = Transaction(self._cursor, self._keys, savepoint=savepoints)
                answer = self._run(member.work, transaction)
                if type(answer) is Refused:
                    if chain is not None:
                        failed[id(chain)] = answer.error
                    if not self._connection.in_transaction:
                        return self._all_refused(members, answer.error)
                    if transaction.dirty:
                        if not (self._undo() if savepoints else self._start_over(written)):
                            return [Refused(_taken_over()) for _ in members]
                        savepoints = True
                else:
                    written.append(transaction)
                answers.append(answer)
            self._cursor.execute("COMMIT")
        except apsw.Error as error:
            return self._all_refused(members, error)
        except BaseException:
            self._roll_back()
            raise
        return answers

    def checkpoint(self) -> bool:
        """Move the write-ahead log into the database and truncate it; False when a reader is in the way.

        For idle moments. Raises `StorageUnavailableError` when the disk fails.
        """
        try:
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.BusyError:
            return False
        except apsw.Error as error:
            raise unavailable(error) from error
        return True

    def _begin(self) -> bool:
        """Open the group's transaction and read the fence; False, and no transaction, when the store is another's."""
        if self.lost:
            return False
        self._cursor.execute("BEGIN IMMEDIATE")
        rows = self._cursor.execute("SELECT fence FROM store WHERE only = 1").fetchall()
        if rows and rows[0][0] == self._fence:
            return True
        self.lost = True
        self._roll_back()
        return False

    def _run(self, work: Callable[[Transaction], Any], transaction: Transaction) -> Committed | Refused:
        result: Any = None
        try:
            result = work(transaction)
            failure = transaction.failure
        except Exception as error:
            failure = error
        transaction.ended = True
        if failure is None and transaction.savepoint and transaction.dirty:
            self._cursor.execute("RELEASE member")
        if failure is not None:
            return Refused(unavailable(failure) if isinstance(failure, apsw.Error) else failure)
        return Committed(result, (*transaction.told, *transaction.events))

    def _undo(self) -> bool:
        """Undo the member that has just failed; True, since the rest of the group stands."""
        self._keys.forget()
        self._cursor.execute("ROLLBACK TO member")
        self._cursor.execute("RELEASE member")
        return True

    def _start_over(self, written: Sequence[Transaction]) -> bool:
        """Undo the whole group and write again what its members so far had; False when the store was taken over."""
        self._roll_back()
        if not self._begin():
            return False
        again = Transaction(self._cursor, self._keys, savepoint=False)
        for transaction in written:
            again.repeat(transaction)
        again.ended = True
        return True

    def _all_refused(self, members: Sequence[Member], error: Exception) -> list[Committed | Refused]:
        self._roll_back()
        refusal = error if isinstance(error, StorageUnavailableError) else unavailable(error)
        return [Refused(refusal) for _ in members]

    def _roll_back(self) -> None:
        self._keys.forget()
        if self._connection.in_transaction:
            try:
                self._cursor.execute("ROLLBACK")
            except apsw.Error:
                pass  # the transaction is over all the same; the error that led here is the one to tell


def unavailable(error: Exception) -> StorageUnavailableError:
    """The error that a failure of SQLite or the disk is answered with."""
    declared = StorageUnavailableError(
        f"The store could not commit ({error}); nothing of this was recorded.", reason=type(error).__name__
    )
    declared.__cause__ = error
    return declared


def _taken_over() -> StoreInUseError:
    return StoreInUseError("Another process has taken the store over; this one writes nothing any more.")
