"""Removing sessions: rows and log go, the id stays taken (ruling B4).

A session goes with all its descendants. Forks stand alone and stay. What is left of an id is its tombstone. Hidden sessions,
copies that did not come to their end, go in bounded parts and leave nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
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
_ADMISSIONS: Final = (PromptAdmitted.type, ControlAdmitted.type)


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


SWEPT_MESSAGES: Final = 64
SWEPT_EVENTS: Final = 1_024
"""How many rows of a hidden session one part takes."""

_MESSAGE: Final = (
    "DELETE FROM open_fragment WHERE message = ?",
    "DELETE FROM permission_request WHERE message = ?",
    "DELETE FROM question_request WHERE message = ?",
    "DELETE FROM attempt WHERE message = ?",
    "DELETE FROM message_part WHERE message = ?",
    "DELETE FROM message WHERE key = ?",
)


def sweep(cursor: Cursor, session_id: SessionId) -> bool:
    """Delete a part of a hidden session: first its messages, then its log, last itself. True while there is more to delete."""
    rows = cursor.execute("SELECT key, title FROM session WHERE id = ? AND hidden = 1", (session_id,)).fetchall()
    if not rows:
        return False
    key, title = rows[0]
    messages = cursor.execute("SELECT key FROM message WHERE session = ? LIMIT ?", (key, SWEPT_MESSAGES)).fetchall()
    if messages:
        for message in messages:
            for statement in _MESSAGE:
                cursor.execute(statement, message)
        return True
    events = cursor.execute("SELECT id, type, body FROM event WHERE session = ? LIMIT ?", (key, SWEPT_EVENTS)).fetchall()
    if events:
        _remove_items(cursor, [body for _, kind, body in events if kind in _ADMISSIONS])
        for id, _, _ in events:
            cursor.execute("DELETE FROM event WHERE id = ?", (id,))
        return True
    cursor.execute("INSERT INTO session_title (session_title, rowid, title) VALUES ('delete', ?, ?)", (key, title))
    for statement in _BY_SESSION:
        cursor.execute(statement, (key,))
    return True


def hidden(cursor: Cursor) -> list[SessionId]:
    """All hidden sessions."""
    return [row[0] for row in cursor.execute("SELECT id FROM session WHERE hidden = 1").fetchall()]


def _remove_inbox(cursor: Cursor, session: int) -> None:
    """By the ids that the log names: the inbox has no index by which a session's rows could be found."""
    rows = cursor.execute("SELECT body FROM event WHERE session = ? AND type IN (?, ?)", (session, *_ADMISSIONS)).fetchall()
    _remove_items(cursor, [row[0] for row in rows])


def _remove_items(cursor: Cursor, admissions: Iterable[bytes]) -> None:
    for body in admissions:
        match decode_event(body).data:
            case PromptAdmitted(message_id=id) | ControlAdmitted(message_id=id):
                cursor.execute("DELETE FROM inbox WHERE id = ?", (id,))
            case _:
                pass
