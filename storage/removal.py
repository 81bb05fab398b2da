"""Removing sessions: rows and log go, the id stays taken (ruling B4).

A session goes with all its descendants. Forks stand alone and stay. What is left of an id is its tombstone.
"""

from __future__ import annotations

from typing import Final

from ..protocol.values import ControlAdmitted, PromptAdmitted, SessionId, decode_event
from . import sessions
from .statements import Cursor

_BY_SESSION: Final = (
    "DELETE FROM open_fragment WHERE message IN (SELECT key FROM message WHERE session = ?)",
    "DELETE FROM managed_output WHERE session = ?",
    "DELETE FROM context_epoch WHERE session = ?",
    "DELETE FROM context_entry WHERE session = ?",
    "DELETE FROM permission_request WHERE session = ?",
    "DELETE FROM question_request WHERE session = ?",
    "DELETE FROM attempt WHERE session = ?",
    "DELETE FROM message_part WHERE message IN (SELECT key FROM message WHERE session = ?)",
    "DELETE FROM message WHERE session = ?",
    "DELETE FROM event WHERE session = ?",
    "DELETE FROM session WHERE key = ?",
)


def is_removed(cursor: Cursor, session_id: SessionId) -> bool:
    """Whether a session of that id was removed."""
    return bool(cursor.execute("SELECT 1 FROM tombstone WHERE id = ?", (session_id,)).fetchall())


def remove(cursor: Cursor, session_id: SessionId) -> tuple[SessionId, ...]:
    """Delete a session and its descendants; returns their ids, children first. Raises `SessionNotFoundError`."""
    removed = sessions.family(cursor, session_id)
    for member in removed:
        ((key, title),) = cursor.execute("SELECT key, title FROM session WHERE id = ?", (member,)).fetchall()
        _remove_inbox(cursor, key)
        cursor.execute("INSERT INTO session_title (session_title, rowid, title) VALUES ('delete', ?, ?)", (key, title))
        for statement in _BY_SESSION:
            cursor.execute(statement, (key,))
        cursor.execute("INSERT INTO tombstone (id) VALUES (?)", (member,))
    return removed


def _remove_inbox(cursor: Cursor, session: int) -> None:
    """By the ids that the log names: the inbox has no index by which a session's rows could be found."""
    rows = cursor.execute(
        "SELECT body FROM event WHERE session = ? AND type IN (?, ?)", (session, PromptAdmitted.type, ControlAdmitted.type)
    ).fetchall()
    for (body,) in rows:
        match decode_event(body).data:
            case PromptAdmitted(message_id=id) | ControlAdmitted(message_id=id):
                cursor.execute("DELETE FROM inbox WHERE id = ?", (id,))
            case _:
                pass
