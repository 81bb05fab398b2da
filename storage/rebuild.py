"""Whether the stored projections are what the log says: they are built anew beside the store and compared byte for byte.

Integer keys are not compared, since removing sessions may hand them out again; wherever one refers to a row, the row's text
id stands for it. Checkpoints, approvals, tombstones, `store` and `migration` are not projections (ruling B3).
Hidden sessions, whose log is only partly there, are left out.
"""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, NamedTuple

from .connections import connect_reader, connect_scratch
from .journal import StoredEvent, Transaction
from .keys import Keys
from .schema import check_version, load_migrations, migrate, version
from .statements import Connection, Cursor

PROJECTIONS: Final = {
    "session": "SELECT id, title, directory, parent_id, agent, model, metadata, budget, created, updated, head, revision,"
    " unanswered_seq, compacted_seq, cost, input, output, reasoning, cache_read, cache_write FROM session"
    " WHERE hidden = 0 ORDER BY id",
    "session_title": "SELECT s.id, t.sz FROM session_title_docsize t LEFT JOIN session s ON s.key = t.id"
    " WHERE s.hidden IS NOT 1 ORDER BY s.id",
    "inbox": "SELECT i.id, s.id, i.kind, i.delivery, i.admitted_seq, i.promoted_seq, i.withdrawn_seq"
    " FROM inbox i JOIN session s ON s.key = i.session AND s.hidden = 0 ORDER BY i.id",
    "context_epoch": "SELECT s.id, c.baseline, c.snapshot, c.baseline_seq, c.revision, c.reason, c.stale"
    " FROM context_epoch c JOIN session s ON s.key = c.session AND s.hidden = 0 ORDER BY s.id",
    "message": "SELECT m.id, s.id, m.seq, m.kind, m.open, m.body FROM message m JOIN session s ON s.key = m.session"
    " WHERE s.hidden = 0 ORDER BY m.id",
    "message_part": "SELECT m.id, s.id, p.id, p.kind, p.open, p.body FROM message_part p JOIN message m ON m.key = p.message"
    " LEFT JOIN session s ON s.key = p.session WHERE s.hidden IS NOT 1 ORDER BY m.id, p.key",
    "attempt": "SELECT m.id, a.number, s.id, a.started_seq, a.ended_seq, a.outcome FROM attempt a"
    " JOIN message m ON m.key = a.message JOIN session s ON s.key = a.session AND s.hidden = 0 ORDER BY m.id, a.number",
    "permission_request": "SELECT r.id, s.id, m.id, r.call, r.asked_seq, r.ended_seq, r.reply FROM permission_request r"
    " JOIN session s ON s.key = r.session AND s.hidden = 0 JOIN message m ON m.key = r.message ORDER BY r.id",
    "question_request": "SELECT r.id, s.id, m.id, r.call, r.asked_seq, r.ended_seq, r.reply FROM question_request r"
    " JOIN session s ON s.key = r.session AND s.hidden = 0 JOIN message m ON m.key = r.message ORDER BY r.id",
    "managed_output": "SELECT s.id, o.path FROM managed_output o JOIN session s ON s.key = o.session"
    " WHERE s.hidden = 0 ORDER BY s.id, o.path",
    "told_path": "SELECT s.id, t.path FROM told_path t JOIN session s ON s.key = t.session"
    " WHERE s.hidden = 0 ORDER BY s.id, t.path",
}
"""Every projection with the query that shows it without its keys."""

_EVENTS = (
    "SELECT s.id, e.seq, e.type, e.created, e.body FROM event e JOIN session s ON s.key = e.session"
    " WHERE s.hidden = 0 ORDER BY e.id"
)


class Difference(NamedTuple):
    """A row of a projection that differs; `stored` or `rebuilt` is None where there is none."""

    table: str
    stored: tuple[Any, ...] | None
    rebuilt: tuple[Any, ...] | None


def rebuild_check(path: str | Path, *, scratch: str | Path = "", limit: int = 20) -> list[Difference]:
    """Rebuild all projections of the store at `path` and return up to `limit` differences; none is how it should be.

    Takes no ownership and changes nothing; reads one state of the store, however long it takes. The rebuilt projections
    stand in a database at `scratch`, an unused path; by default SQLite keeps them in memory and in a file of its own.
    Raises `IllegalEventError` when the log itself contradicts the rules of the projectors.
    """
    stored = connect_reader(Path(path).resolve())
    try:
        stored.execute("BEGIN")
        return compare(stored, scratch=scratch, limit=limit)
    finally:
        stored.close(True)


def compare(stored: Connection, *, scratch: str | Path = "", limit: int = 20) -> list[Difference]:
    """The same for a connection that is in a read transaction."""
    rebuilt = connect_scratch(str(scratch))
    try:
        migrations = load_migrations()
        check_version(version(stored), migrations[-1].number)
        migrate(rebuilt, Path(scratch), migrations[: version(stored)], 0)
        writing = rebuilt.cursor()
        writing.execute("BEGIN")
        _replay(stored.cursor(), writing)
        return _differences(stored.cursor(), writing, limit)
    finally:
        rebuilt.close(True)


def _replay(reading: Cursor, writing: Cursor) -> None:
    transaction = Transaction(writing, Keys(writing), savepoint=False)
    for row in reading.execute(_EVENTS):
        transaction.restore((StoredEvent(*row),))
        transaction.events.clear()
    transaction.ended = True


def _differences(stored: Cursor, rebuilt: Cursor, limit: int) -> list[Difference]:
    found: list[Difference] = []
    for table, query in PROJECTIONS.items():
        for ours, theirs in zip_longest(stored.execute(query), rebuilt.execute(query)):
            if ours != theirs:
                found.append(Difference(table, ours, theirs))
                if len(found) >= limit:
                    return found
    return found
