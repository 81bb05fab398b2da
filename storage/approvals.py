"""Approvals kept by `always`, for every session of a directory. No projection: they outlive the session that gave them."""

from __future__ import annotations

from ..protocol.values.permission import SavedPermission
from .statements import Cursor

_ALL = "SELECT id, directory, action, resource, created FROM saved_permission"


def save(cursor: Cursor, approval: SavedPermission) -> None:
    """Keep an approval; one that says the same already stays as it is."""
    cursor.execute(
        "INSERT INTO saved_permission (id, directory, action, resource, created) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (directory, action, resource) DO NOTHING",
        (approval.id, approval.directory, approval.action, approval.resource, approval.created),
    )


def saved(cursor: Cursor, directory: str | None) -> list[SavedPermission]:
    """The approvals of a directory, or all of them, in the order in which they were kept."""
    if directory is None:
        rows = cursor.execute(f"{_ALL} ORDER BY created, rowid").fetchall()
    else:
        rows = cursor.execute(f"{_ALL} WHERE directory = ? ORDER BY created, rowid", (directory,)).fetchall()
    return [SavedPermission(id=row[0], directory=row[1], action=row[2], resource=row[3], created=row[4]) for row in rows]


def forget(cursor: Cursor, approval_id: str) -> bool:
    """Drop an approval; False when there is none by that id."""
    cursor.execute("DELETE FROM saved_permission WHERE id = ?", (approval_id,))
    return cursor.connection.changes() == 1
