"""The integer keys behind text ids, remembered by the one connection that writes.

Only the fenced writer changes keys and heads, so what it has seen stays true until it rolls something back; then everything
is forgotten and read anew. Readers do not use this: a removed session's key may come back under another id.
"""

from __future__ import annotations

from typing import TypeVar

from ..protocol.values import MessageId, SessionId
from .statements import Cursor

MAX_REMEMBERED = 16_384
"""Sessions, and assistants, whose keys stay in memory; beyond that the one met first is looked up again."""

T = TypeVar("T")


class SessionKey:
    """One session's key and the sequence of its last event, as the running transaction sees it."""

    __slots__ = ("head", "key")

    def __init__(self, key: int, head: int) -> None:
        self.key = key
        self.head = head


class Keys:
    """Look-ups through `cursor`, each answered from memory where it can be."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._sessions: dict[str, SessionKey] = {}
        self._assistants: dict[str, tuple[int, int]] = {}
        self._checkpointed: set[int] | None = None

    def session(self, session_id: SessionId) -> SessionKey | None:
        """Key and head of a session, or None when there is none."""
        found = self._sessions.get(session_id)
        if found is None:
            rows = self._cursor.execute("SELECT key, head FROM session WHERE id = ?", (session_id,)).fetchall()
            if not rows:
                return None
            found = SessionKey(*rows[0])
            self.remember_session(session_id, found)
        return found

    def remember_session(self, session_id: SessionId, found: SessionKey) -> None:
        _remember(self._sessions, session_id, found)

    def assistant(self, session: int, message_id: MessageId) -> int | None:
        """Key of an assistant message of that session, or None when it has none by that id."""
        found = self._assistants.get(message_id)
        if found is None:
            rows = self._cursor.execute(
                "SELECT key, session FROM message WHERE id = ? AND kind = 'assistant'", (message_id,)
            ).fetchall()
            if not rows:
                return None
            found = (rows[0][0], rows[0][1])
            _remember(self._assistants, message_id, found)
        return found[0] if found[1] == session else None

    def remember_assistant(self, message_id: MessageId, key: int, session: int) -> None:
        _remember(self._assistants, message_id, (key, session))

    def checkpointed(self) -> set[int]:
        """Keys of the messages that may have checkpoints, kept up by whoever writes and drops those."""
        if self._checkpointed is None:
            rows = self._cursor.execute("SELECT DISTINCT message FROM open_fragment").fetchall()
            self._checkpointed = {row[0] for row in rows}
        return self._checkpointed

    def forget(self) -> None:
        """Drop everything, after a rollback or a removal."""
        self._sessions.clear()
        self._assistants.clear()
        self._checkpointed = None


def _remember(known: dict[str, T], name: str, value: T) -> None:
    if len(known) >= MAX_REMEMBERED:
        del known[next(iter(known))]
    known[name] = value
