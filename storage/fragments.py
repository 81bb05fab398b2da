"""Checkpoints: the text so far of what a provider is still writing, one row each, overwritten.

No projection of the log. A row is gone once its fragment has its end, or its turn has.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..protocol.values import CallId, PartId
from .keys import Keys
from .statements import Cursor

_SAVE = (
    "INSERT INTO open_fragment (message, part, text) SELECT ?, ?, ? WHERE EXISTS"
    " (SELECT 1 FROM message_part WHERE message = ? AND id = ? AND open = 1)"
    " ON CONFLICT (message, part) DO UPDATE SET text = excluded.text"
)


def checkpoint(cursor: Cursor, keys: Keys, message: int, texts: Mapping[PartId | CallId, str]) -> None:
    """Save the texts over what was saved before; one whose fragment is not open, or has ended, is left out."""
    keys.checkpointed().add(message)
    for part, text in texts.items():
        cursor.execute(_SAVE, (message, part, text, message, part))


def drop(cursor: Cursor, keys: Keys, message: int, part: PartId | CallId) -> None:
    """The fragment has its end. Hardly any fragment lives long enough for a checkpoint, so the table is not asked first."""
    if message in keys.checkpointed():
        cursor.execute("DELETE FROM open_fragment WHERE message = ? AND part = ?", (message, part))


def drop_all(cursor: Cursor, keys: Keys, message: int) -> None:
    """The turn has its end."""
    if message in keys.checkpointed():
        cursor.execute("DELETE FROM open_fragment WHERE message = ?", (message,))
        keys.checkpointed().discard(message)


def drop_stale(cursor: Cursor) -> int:
    """Drop checkpoints of what is not open; returns how many there were."""
    cursor.execute(
        "DELETE FROM open_fragment WHERE NOT EXISTS (SELECT 1 FROM message_part p WHERE p.message = open_fragment.message"
        " AND p.id = open_fragment.part AND p.open = 1)"
    )
    return cursor.connection.changes()
