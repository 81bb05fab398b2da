"""API-managed context entries: facts that clients keep for one session. No projection (ruling B3)."""

from __future__ import annotations

from typing import Any

import msgspec

from ..protocol.values import SessionId
from ..protocol.values.context import ContextEntry
from .statements import Cursor


def listed(cursor: Cursor, session_id: SessionId) -> list[ContextEntry]:
    """The session's entries by key."""
    rows = cursor.execute(
        "SELECT name, value, created, updated FROM context_entry WHERE session = (SELECT key FROM session WHERE id = ?)"
        " ORDER BY name",
        (session_id,),
    ).fetchall()
    return [
        ContextEntry(session_id=session_id, key=name, value=msgspec.msgpack.decode(value), created=created, updated=updated)
        for name, value, created, updated in rows
    ]


def put(cursor: Cursor, session: int, key: str, value: Any, now: int) -> None:
    """A new entry, or another value for the one there is."""
    cursor.execute(
        "INSERT INTO context_entry (session, name, value, created, updated) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (session, name) DO UPDATE SET value = excluded.value, updated = excluded.updated",
        (session, key, msgspec.msgpack.encode(value), now, now),
    )


def remove(cursor: Cursor, session: int, key: str) -> bool:
    """Drop an entry; False when there is none by that key."""
    cursor.execute("DELETE FROM context_entry WHERE session = ? AND name = ?", (session, key))
    return cursor.connection.changes() == 1
