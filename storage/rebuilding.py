"""Building the projections anew from the log, in place.

Everything that is a projection goes and the log is replayed, all in the transaction of one member. What is no projection stays;
a checkpoint follows its message to that one's new key, a context entry its session, and so do two columns that no log tells.
What is left of removed sessions is deleted first.
"""

from __future__ import annotations

from typing import Final

from ..protocol.values import SessionId, decode_event
from . import fragments, removal
from .journal import StoredEvent, Transaction
from .keys import Keys
from .statements import Cursor

_TABLES: Final = (
    "open_fragment",
    "managed_output",
    "told_path",
    "context_epoch",
    "context_entry",
    "permission_request",
    "question_request",
    "attempt",
    "message_part",
    "message",
    "inbox",
    "event",
    "session",
)
"""What is emptied, in this order: rows that refer before those they refer to."""


def rebuild(cursor: Cursor, keys: Keys) -> None:
    """Replace all projections. Raises `IllegalEventError` when the log contradicts itself; nothing is kept then."""
    for left in removal.hidden(cursor):
        while left.removed and removal.sweep(cursor, left.name):
            pass
    checkpoints = cursor.execute(
        "SELECT m.id, f.part, f.text FROM open_fragment f JOIN message m ON m.key = f.message"
    ).fetchall()
    kept = cursor.execute(
        "SELECT s.id, c.name, c.value, c.created, c.updated FROM context_entry c JOIN session s ON s.key = c.session"
    ).fetchall()
    beside = cursor.execute("SELECT continued, hidden, id FROM session WHERE continued > 0 OR hidden = 1").fetchall()
    cursor.execute("DROP TABLE IF EXISTS temp.log")
    cursor.execute("CREATE TEMP TABLE log AS SELECT id, type, created, body FROM main.event ORDER BY id")
    cursor.execute("INSERT INTO session_title (session_title) VALUES ('delete-all')")
    cursor.execute("PRAGMA defer_foreign_keys = ON")
    for table in _TABLES:
        cursor.execute(f"DELETE FROM {table}")  # noqa: S608 - names from above
    keys.forget()
    transaction = Transaction(cursor, keys, savepoint=False)
    for kind, created, body in cursor.connection.execute("SELECT type, created, body FROM temp.log ORDER BY id"):
        event = decode_event(body)
        assert event.session_id is not None
        assert event.seq is not None
        transaction.restore((StoredEvent(SessionId(event.session_id), event.seq, kind, created, body),))
        transaction.events.clear()
    transaction.ended = True
    for columns in beside:
        cursor.execute("UPDATE session SET continued = ?, hidden = ? WHERE id = ?", columns)
    for message_id, part, text in checkpoints:
        rows = cursor.execute("SELECT key FROM message WHERE id = ?", (message_id,)).fetchall()
        for (key,) in rows:
            fragments.checkpoint(cursor, keys, key, {part: text})
    for session_id, name, value, created, updated in kept:
        cursor.execute(
            "INSERT INTO context_entry (session, name, value, created, updated)"
            " SELECT key, ?, ?, ?, ? FROM session WHERE id = ?",
            (name, value, created, updated, session_id),
        )
    cursor.execute("DROP TABLE temp.log")
