"""Which files keep the whole text of an output, and whose history names them. A projection of the log.

Forks name the files of their origin, so a file may have several sessions; it goes with the last of them, or when it expires.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..protocol.values import SessionId
from ..protocol.values.tool import ManagedOutput
from . import sessions
from .statements import Cursor

_OF_FAMILY_ONLY = (
    f"{sessions.FAMILY} SELECT DISTINCT path FROM managed_output WHERE session IN (SELECT key FROM family)"  # noqa: S608
    " AND NOT EXISTS (SELECT 1 FROM managed_output other WHERE other.path = managed_output.path"
    " AND other.session NOT IN (SELECT key FROM family UNION ALL SELECT key FROM session WHERE hidden = 1)) ORDER BY path"
)


def note(cursor: Cursor, session: int, outputs: Iterable[ManagedOutput]) -> None:
    """The session's history names these files."""
    for output in outputs:
        cursor.execute("INSERT OR IGNORE INTO managed_output (session, path) VALUES (?, ?)", (session, output.path))


def only_here(cursor: Cursor, session_id: SessionId) -> tuple[str, ...]:
    """Paths that only this session and its descendants name.

    What is hidden does not count: it was removed, or is a copy that is given up when its origin goes.
    """
    return tuple([row[0] for row in cursor.execute(_OF_FAMILY_ONLY, (session_id,)).fetchall()])
