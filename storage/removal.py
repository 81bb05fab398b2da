"""Removing sessions: rows and log go, the id stays taken (ruling B4).

Rules:
- A session goes with all its descendants. Forks stand alone and stay. What is left of an id is its tombstone.
- `remove` only hides: the rows get a name that is no id, so that nobody finds them, and the id gets its tombstone. That takes
  no longer for a long session than for a short one.
- `sweep` deletes what is hidden, removed sessions and copies that did not come to their end, in parts so small that others are
  not kept waiting. Whoever hides sweeps; opening the store sweeps what a crash left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from ..protocol.values import ControlAdmitted, MessageId, PromptAdmitted, SessionId
from . import sessions
from .statements import Cursor

PART_ROWS: Final = 1_024
PART_BYTES: Final = 4 * 1024 * 1024
"""What one part of a sweep takes: so many rows, and none behind the one that makes it this large."""

_GRAVE: Final = "removed:"
"""Before a removed session's id, in its row; an id has no colon."""


class Hidden(NamedTuple):
    """A hidden session: the name of its row, and whether it was removed; otherwise it is a copy that is not whole."""

    name: SessionId
    removed: bool


def is_removed(cursor: Cursor, session_id: SessionId) -> bool:
    """Whether a session of that id was removed."""
    return bool(cursor.execute("SELECT 1 FROM tombstone WHERE id = ?", (session_id,)).fetchall())


def grave(session_id: SessionId) -> SessionId:
    """The name of a removed session's row, until it is swept."""
    return SessionId(f"{_GRAVE}{session_id}")


def remove(cursor: Cursor, session_id: SessionId) -> tuple[SessionId, ...]:
    """Hide a session and its descendants for good; returns their ids, children first. Raises `SessionNotFoundError`.

    `sweep(grave(id))` then deletes what is stored of each.
    """
    removed = sessions.family(cursor, session_id)
    for member in removed:
        cursor.execute("UPDATE session SET id = ?, parent_id = NULL, hidden = 1 WHERE id = ?", (grave(member), member))
        cursor.execute("INSERT INTO tombstone (id) VALUES (?)", (member,))
    return removed


def hidden(cursor: Cursor) -> list[Hidden]:
    """All hidden sessions."""
    rows = cursor.execute("SELECT id FROM session WHERE hidden = 1 ORDER BY id").fetchall()
    return [Hidden(name, name.startswith(_GRAVE)) for (name,) in rows]


def sweep(cursor: Cursor, name: SessionId) -> bool:
    """Delete a part of a hidden session: first its messages, then its log, last itself. True while there is more to delete."""
    rows = cursor.execute("SELECT key, title FROM session WHERE id = ? AND hidden = 1", (name,)).fetchall()
    if not rows:
        return False
    key, title = rows[0]
    part = _Part(cursor)
    if not (_sweep_messages(part, key) and _sweep_log(part, key) and _sweep_facts(part, key)):
        return True
    cursor.execute("DELETE FROM context_epoch WHERE session = ?", (key,))
    cursor.execute("INSERT INTO session_title (session_title, rowid, title) VALUES ('delete', ?, ?)", (key, title))
    cursor.execute("DELETE FROM session WHERE key = ?", (key,))
    return False


class _Part:
    """Deletes, and knows when it is enough."""

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self.rows = PART_ROWS
        self._bytes = PART_BYTES

    @property
    def full(self) -> bool:
        return self.rows <= 0 or self._bytes <= 0

    def delete(self, statement: str, bindings: Sequence[object], size: int = 0) -> None:
        """`size`: the bytes of what goes."""
        self.cursor.execute(statement, bindings)
        self.rows -= self.cursor.connection.changes()
        self._bytes -= size


_OF_MESSAGE: Final = (
    "DELETE FROM open_fragment WHERE message = ?",
    "DELETE FROM permission_request WHERE message = ?",
    "DELETE FROM question_request WHERE message = ?",
    "DELETE FROM attempt WHERE message = ?",
)
_FACTS: Final = (("managed_output", "path"), ("told_path", "path"), ("context_entry", "name"))
"""Tables whose rows belong to a session, and what tells these apart."""


def _sweep_messages(part: _Part, session: int) -> bool:
    """True when none is left."""
    messages = "SELECT key, length(body) FROM message WHERE session = ? LIMIT ?"
    parts = "SELECT key, length(body) FROM message_part WHERE message = ? LIMIT ?"
    for message, size in part.cursor.execute(messages, (session, part.rows)).fetchall():
        for statement in _OF_MESSAGE:
            part.delete(statement, (message,))
        for key, of_part in part.cursor.execute(parts, (message, max(part.rows, 1))).fetchall():
            part.delete("DELETE FROM message_part WHERE key = ?", (key,), of_part)
            if part.full:
                return False
        part.delete("DELETE FROM message WHERE key = ?", (message,), size)
        if part.full:
            return False
    return True


def _sweep_log(part: _Part, session: int) -> bool:
    """True when nothing is left. The inbox goes along, by the ids that the log names: it has no index by session."""
    events = "SELECT id, type, length(body) FROM event WHERE session = ? LIMIT ?"
    for event, kind, size in part.cursor.execute(events, (session, part.rows)).fetchall():
        if kind in (PromptAdmitted.type, ControlAdmitted.type):
            ((body,),) = part.cursor.execute("SELECT body FROM event WHERE id = ?", (event,)).fetchall()
            part.delete("DELETE FROM inbox WHERE id = ?", (_admission.decode(body).data.message_id,))
        part.delete("DELETE FROM event WHERE id = ?", (event,), size)
        if part.full:
            return False
    return True


def _sweep_facts(part: _Part, session: int) -> bool:
    """True when none is left."""
    for table, column in _FACTS:
        rows = part.cursor.execute(f"SELECT {column} FROM {table} WHERE session = ? LIMIT ?", (session, part.rows)).fetchall()  # noqa: S608
        for (value,) in rows:
            part.delete(f"DELETE FROM {table} WHERE session = ? AND {column} = ?", (session, value))  # noqa: S608
            if part.full:
                return False
    return True


class _Item(msgspec.Struct):
    message_id: MessageId


class _Admission(msgspec.Struct):
    """Of an admission as much as is needed here: a prompt of megabytes is passed over."""

    data: _Item


_admission = msgspec.msgpack.Decoder(_Admission)
