"""Everything that is read outside a transaction of the writer.

A reader has a read-only connection and is used by one thread at a time. No read transaction outlives a call, so a reader
never keeps the write-ahead log from being truncated; what one call answers is one state of the store.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from ..protocol.operations import ListMessages, ListSessions
from ..protocol.values import (
    Admission,
    Message,
    MessageId,
    Outcome,
    Page,
    Session,
    SessionId,
    WithdrawnOutcome,
)
from . import attempts, inbox, messages, pages, sessions
from .attempts import TurnRecord
from .journal import unfinished
from .messages import Unfinished
from .sessions import SessionRecord
from .statements import Connection

PAGE_ROWS = 512
"""Events a page holds unless told."""


class Reader:
    """Reads of one store; `close` ends it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._cursor = connection.cursor()

    def close(self) -> None:
        """Close the connection. Harmless when done twice."""
        self._connection.close()

    # --- sessions ---

    def session(self, session_id: SessionId) -> Session:
        """The public value. Raises `SessionNotFoundError`."""
        return sessions.find(self._cursor, session_id).session

    def record(self, session_id: SessionId) -> SessionRecord:
        """The session with its revision and what is unanswered. Raises `SessionNotFoundError`."""
        return sessions.find(self._cursor, session_id)

    def head(self, session_id: SessionId) -> int:
        """Sequence of the session's last event. Raises `SessionNotFoundError`."""
        rows = self._cursor.execute("SELECT head FROM session WHERE id = ?", (session_id,)).fetchall()
        if not rows:
            raise sessions.not_found(session_id)
        return rows[0][0]

    def sessions_page(self, query: ListSessions) -> Page[Session]:
        """A page of sessions. Raises `InvalidRequestError` (field `limit`) or `InvalidCursorError`."""
        with self._snapshot():
            return pages.sessions_page(self._cursor, query)

    # --- inbox ---

    def pending(self, session_id: SessionId) -> list[Admission]:
        """Admitted Prompts that wait, in admission order. Raises `SessionNotFoundError`."""
        with self._snapshot():
            self.head(session_id)
            return inbox.pending(self._cursor, session_id)

    def find_prompt(self, message_id: MessageId) -> Admission | None:
        """The receipt of the prompt with that id, in whatever session and whatever became of it."""
        return inbox.find(self._cursor, message_id)

    # --- history ---

    def messages_page(self, query: ListMessages) -> Page[Message]:
        """A page of messages. Raises `SessionNotFoundError`, `InvalidRequestError` (`limit`) or `InvalidCursorError`."""
        with self._snapshot():
            return pages.messages_page(self._cursor, query)

    def history(self, session_id: SessionId, upto: int | None = None) -> tuple[Message, ...]:
        """All messages of the session in order; with `upto`, those created by events up to that sequence.

        Raises `SessionNotFoundError`.
        """
        last = 1 << 62 if upto is None else upto
        with self._snapshot():
            rows = self._cursor.execute("SELECT key FROM session WHERE id = ?", (session_id,)).fetchall()
            if not rows:
                raise sessions.not_found(session_id)
            key = rows[0][0]
            found = self._cursor.execute(
                "SELECT key, kind, body FROM message WHERE session = ? AND seq <= ? ORDER BY seq", (key, last)
            ).fetchall()
            parts = pages.parts_between(self._cursor, key, 0, last)
        return tuple(messages.assemble(found, parts))

    def events_page(self, session_id: SessionId, after: int, limit: int = PAGE_ROWS) -> list[tuple[int, bytes]]:
        """Up to `limit` events behind the sequence `after`, as `(seq, body)`. Raises `SessionNotFoundError`."""
        rows = self._cursor.execute(
            "SELECT seq, body FROM event WHERE session = (SELECT key FROM session WHERE id = ?) AND seq > ?"
            " ORDER BY seq LIMIT ?",
            (session_id, after, limit),
        ).fetchall()
        if not rows:
            self.head(session_id)
        return rows

    # --- turns ---

    def last_turn(self, session_id: SessionId) -> TurnRecord | None:
        """The Provider Turn that started last, or None."""
        return attempts.last_turn(self._cursor, session_id)

    def outcome_after(self, session_id: SessionId, seq: int) -> Outcome | None:
        """How the first turn started after `seq` that needs no continuation ended; None when none has."""
        return attempts.outcome_after(self._cursor, session_id, seq)

    def prompt_outcome(self, session_id: SessionId, message_id: MessageId) -> Outcome | WithdrawnOutcome | None:
        """What became of a prompt (ruling C3): the end of the first turn after its promotion that needs no continuation.

        None while it waits or is being answered, and for a prompt this session never had.
        """
        with self._snapshot():
            admission = inbox.find(self._cursor, message_id)
            if admission is None or admission.session_id != session_id:
                return None
            if admission.withdrawn_seq is not None:
                return WithdrawnOutcome()
            if admission.promoted_seq is None:
                return None
            return attempts.outcome_after(self._cursor, session_id, admission.promoted_seq)

    # --- recovery ---

    def unfinished(self, session_id: SessionId) -> Unfinished:
        """What the session's turns left open."""
        with self._snapshot():
            return unfinished(self._cursor, session_id)

    def unfinished_sessions(self) -> list[SessionId]:
        """Sessions with an open turn, fragment or call, found through partial indexes (ruling B5)."""
        rows = self._cursor.execute(_UNFINISHED).fetchall()
        return [row[0] for row in rows]

    def unanswered_sessions(self) -> list[SessionId]:
        """Sessions where a promoted prompt or a settled call waits for a provider turn (ruling B5)."""
        rows = self._cursor.execute("SELECT id FROM session WHERE unanswered_seq IS NOT NULL ORDER BY key").fetchall()
        return [row[0] for row in rows]

    @contextmanager
    def _snapshot(self) -> Generator[None]:
        self._cursor.execute("BEGIN")
        try:
            yield
        finally:
            self._cursor.execute("END")


_UNFINISHED = (
    "SELECT id FROM session WHERE key IN (SELECT session FROM attempt WHERE ended_seq IS NULL UNION"
    " SELECT m.session FROM message_part p JOIN message m ON m.key = p.message WHERE p.open = 1) ORDER BY key"
)
