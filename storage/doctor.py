"""The doctor: whether a store is sound, without touching it, and what of it can be mended.

Rules (the store, "Care"; ruling B12):
- `examine` reads one state of the store in one transaction, takes no ownership and changes nothing, also beside a running
  process. What is unfinished is a finding only when no process owns the store.
- Every invariant is looked at by itself; one that is broken keeps none of the others from being looked at, except that a log
  that cannot be read or contradicts itself is not replayed.
- `repair` owns the store while it works. It settles what is unfinished, drops stale checkpoints, and builds projections anew
  when the log is in order. It never changes what the log says; damage of the file itself is for a backup.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ..protocol.values import EventId, SessionId
from . import rebuilding
from .database import Database, Owner, connect_current
from .examination import Examination
from .findings import Report, counted
from .fragments import drop_stale
from .journal import NewEvent, Transaction
from .leftovers import settlement
from .ownership import is_owned
from .writer import Committed, Member, Refused

T = TypeVar("T")


def examine(path: str | Path, *, rebuild: bool = True) -> Report:
    """Look at everything; with `rebuild` also compare the projections with the log, which takes as long as replaying it.

    Raises `StoreUnsuitableError` when there is no store of ours at `path`, `StoreVersionError` when it is a newer program's.
    """
    resolved = Path(path).resolve()
    owned = is_owned(resolved)
    connection = connect_current(resolved)
    try:
        connection.execute("BEGIN")
        return Examination(connection, resolved, owned=owned or is_owned(resolved)).report(compare=rebuild)
    finally:
        connection.close(True)


def repair(
    path: str | Path,
    *,
    owner: Owner,
    now_ms: Callable[[], int],
    new_generation: Callable[[], str],
    new_event_id: Callable[[], EventId],
) -> tuple[str, ...]:
    """Mend what can be mended; says what was done.

    Raises `StoreInUseError` when a process owns the store, what opening it raises, and `IllegalEventError` when the log
    contradicts itself; then the projections are as they were.
    """
    found = {finding.check for finding in examine(path).findings}
    done: list[str] = []
    database = Database.open(path, owner=owner, now_ms=now_ms, new_generation=new_generation)
    try:
        removed = sum(left.removed for left in database.swept)
        if forks := len(database.swept) - removed:
            done.append(f"deleted {counted(forks, 'fork')} whose history was not copied to the end")
        if removed:
            done.append(f"deleted what was left of {counted(removed, 'removed session')}")
        if found & {"projections", "references", "sequences"}:
            _commit(database, lambda transaction: transaction.write(rebuilding.rebuild))
            done.append("built the projections anew from the log")
        reader = database.open_reader()
        try:
            unfinished = reader.unfinished_sessions()
        finally:
            reader.close()
        for session_id in unfinished:
            _commit(database, _settling(session_id, now_ms, new_event_id))
            done.append(f"settled session {session_id}")
        dropped = _commit(database, lambda transaction: transaction.write(lambda cursor, _: drop_stale(cursor)))
        if dropped:
            done.append(f"dropped {counted(dropped, 'stale checkpoint')}")
    finally:
        database.close()
    return tuple(done)


def _settling(
    session_id: SessionId, now_ms: Callable[[], int], new_event_id: Callable[[], EventId]
) -> Callable[[Transaction], None]:
    def work(transaction: Transaction) -> None:
        data = settlement(transaction.unfinished(session_id))
        transaction.append(session_id, [NewEvent(new_event_id(), now_ms(), each) for each in data])

    return work


def _commit(database: Database, work: Callable[[Transaction], T]) -> T:
    (answer,) = database.writer.commit([Member(work)])
    match answer:
        case Committed(result=result):
            return result
        case Refused(error=error):
            raise error
