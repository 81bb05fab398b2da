"""Everything that is read outside a transaction of the writer.

A reader has a read-only connection and is used by one thread at a time. No read transaction outlives a call, so a reader
never keeps the write-ahead log from being truncated; what one call answers is one state of the store.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import TypeVar

import apsw

from ..protocol.operations import ListMessages, ListSessions
from ..protocol.values import (
    CompactionMessage,
    ContextEntry,
    Message,
    MessageId,
    Page,
    PendingItem,
    Session,
    SessionId,
)
from ..protocol.values.errors import MessageNotFoundError, StorageUnavailableError
from ..protocol.values.ids import RequestId
from ..protocol.values.permission import PermissionRequest, SavedPermission
from ..protocol.values.question import QuestionRequest
from . import approvals, attempts, entries, epochs, history, inbox, leftovers, messages, pages, removal, requests, sessions
from .attempts import TurnRecord
from .epochs import EpochRecord
from .history import Mark, Stretch
from .pages import Weigh, weigh_stored
from .requests import RequestState
from .sessions import SessionRecord
from .statements import Connection

T = TypeVar("T")

PAGE_ROWS = 512
PAGE_BYTES = 1024 * 1024
"""What a page of events holds unless told: so many events, and none behind the one that makes it this large."""


_UNANSWERED = "SELECT id FROM session WHERE unanswered_seq IS NOT NULL AND hidden = 0 ORDER BY key"


class Reader:
    """Reads of one store; `close` ends it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._cursor = connection.cursor()

    def close(self) -> None:
        """Close the connection. Harmless when done twice."""
        self._connection.close()

    def answer(self, query: Callable[[Reader], T]) -> T:
        """The value of `query(reader)`. Raises `StorageUnavailableError` where SQLite or the disk fails."""
        try:
            return query(self)
        except apsw.Error as error:
            raise StorageUnavailableError(f"The store could not be read ({error}).", reason=type(error).__name__) from error

    # --- sessions ---

    def session(self, session_id: SessionId) -> Session:
        """The public value. Raises `SessionNotFoundError`."""
        return sessions.find(self._cursor, session_id).session

    def record(self, session_id: SessionId) -> SessionRecord:
        """The session with its revision and what is unanswered. Raises `SessionNotFoundError`."""
        return sessions.find(self._cursor, session_id)

    def head(self, session_id: SessionId) -> int:
        """Sequence of the session's last event. Raises `SessionNotFoundError`."""
        rows = self._cursor.execute("SELECT head FROM session WHERE id = ? AND hidden = 0", (session_id,)).fetchall()
        if not rows:
            raise sessions.not_found(session_id)
        return rows[0][0]

    def family(self, session_id: SessionId) -> tuple[SessionId, ...]:
        """The session and all its descendants, children before their parents. Raises `SessionNotFoundError`."""
        return sessions.family(self._cursor, session_id)

    def sessions_page(self, query: ListSessions, weigh: Weigh = weigh_stored) -> Page[Session]:
        """A page of sessions. Raises `InvalidRequestError` (field `limit`) or `InvalidCursorError`."""
        with self._snapshot():
            return pages.sessions_page(self._cursor, query, weigh)

    # --- inbox ---

    def pending(self, session_id: SessionId) -> list[PendingItem]:
        """What waits, in admission order. Raises `SessionNotFoundError`."""
        with self._snapshot():
            self.head(session_id)
            return inbox.pending(self._cursor, session_id)

    # --- history ---

    def messages_page(self, query: ListMessages, weigh: Weigh = weigh_stored) -> Page[Message]:
        """A page of messages, which ends early where it would be too large.

        Raises `SessionNotFoundError`, `InvalidCursorError`, or `InvalidRequestError` (`limit`, or one message is too large).
        """
        with self._snapshot():
            return pages.messages_page(self._cursor, query, weigh)

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

    def message(self, session_id: SessionId, message_id: MessageId) -> Message:
        """One message with its content.

        Raises `SessionNotFoundError`, and `MessageNotFoundError` for a message that is another session's or nobody's.
        """
        with self._snapshot():
            self.head(session_id)
            found = messages.find(self._cursor, session_id, message_id)
        if found is None:
            raise MessageNotFoundError(f"The session has no message {message_id!r}.", message_id=message_id)
        return found

    def context(self, session_id: SessionId) -> tuple[Message, ...]:
        """The messages from which the next request is made, in order. Raises `SessionNotFoundError`."""
        return self.stretch(session_id, None).messages

    def context_bytes(self, session_id: SessionId) -> int:
        """How large those messages are as they are stored, without reading them. Raises `SessionNotFoundError`."""
        with self._snapshot():
            return history.size(self._cursor, session_id)

    def stretch(self, session_id: SessionId, since: Mark | None) -> Stretch:
        """Those of them that are behind `since`; all where that is None or of another origin. Raises `SessionNotFoundError`."""
        with self._snapshot():
            found = history.stretch(self._cursor, session_id, since)
        assert found is not None
        return found

    def epoch(self, session_id: SessionId) -> EpochRecord | None:
        """The session's active Context Epoch, or None."""
        return epochs.find(self._cursor, session_id)

    def context_entries(self, session_id: SessionId) -> list[ContextEntry]:
        """The session's API-managed context entries by key. Raises `SessionNotFoundError`."""
        with self._snapshot():
            self.head(session_id)
            return entries.listed(self._cursor, session_id)

    def last_summary(self, session_id: SessionId) -> CompactionMessage | None:
        """The compaction with which the session's history begins, or None."""
        return messages.last_summary(self._cursor, session_id)

    def told_paths(self, session_id: SessionId, paths: Iterable[str]) -> set[str]:
        """Those of the instruction files `paths` that the session was told in messages of their own."""
        return messages.told_paths(self._cursor, session_id, paths)

    def failed_compactions(self, session_id: SessionId, limit: int) -> int:
        """How many compactions failed in a row, counted up to `limit`; a model switch begins anew."""
        return messages.failures_in_a_row(self._cursor, session_id, limit)

    def events_page(
        self, session_id: SessionId, after: int, limit: int = PAGE_ROWS, size: int = PAGE_BYTES
    ) -> list[tuple[int, bytes]]:
        """Up to `limit` events behind the sequence `after`, as `(seq, body)`; fewer once their bodies have `size` bytes.

        Raises `SessionNotFoundError`.
        """
        rows: list[tuple[int, bytes]] = []
        try:
            for seq, body in self._cursor.execute(
                "SELECT seq, body FROM event WHERE session = (SELECT key FROM session WHERE id = ? AND hidden = 0) AND seq > ?"
                " ORDER BY seq LIMIT ?",
                (session_id, after, limit),
            ):
                rows.append((seq, body))
                size -= len(body)
                if size <= 0:
                    break
        finally:
            self._cursor.execute("")  # ends a statement that was left in the middle, and its read transaction with it
        if not rows:
            self.head(session_id)
        return rows

    # --- turns ---

    def last_turn(self, session_id: SessionId) -> TurnRecord | None:
        """The Provider Turn that started last, or None."""
        return attempts.last_turn(self._cursor, session_id)

    # --- requests ---

    def find_request(self, request_id: RequestId) -> RequestState | None:
        """A permission request or question in whatever session, with its standing reply."""
        return requests.find(self._cursor, request_id)

    def permission_requests(self, session_id: SessionId | None = None) -> list[PermissionRequest]:
        """Permission requests that wait in a session or its descendants, or anywhere. Raises `SessionNotFoundError`."""
        with self._snapshot():
            if session_id is not None:
                self.head(session_id)
            return requests.family_permissions(self._cursor, session_id)

    def question_requests(self, session_id: SessionId | None = None) -> list[QuestionRequest]:
        """Questions that wait in a session or its descendants, or anywhere. Raises `SessionNotFoundError`."""
        with self._snapshot():
            if session_id is not None:
                self.head(session_id)
            return requests.family_questions(self._cursor, session_id)

    def saved_permissions(self, directory: str | None = None) -> list[SavedPermission]:
        """Kept approvals of a directory, or all."""
        return approvals.saved(self._cursor, directory)

    # --- recovery ---

    def unfinished_sessions(self) -> list[SessionId]:
        """Sessions with an open turn, fragment, call or request, found through partial indexes (ruling B5)."""
        return leftovers.unfinished_sessions(self._cursor)

    def unanswered_sessions(self) -> list[SessionId]:
        """Sessions where a promoted prompt or a settled call waits for a provider turn (ruling B5)."""
        rows = self._cursor.execute(_UNANSWERED).fetchall()
        return [row[0] for row in rows]

    def hidden(self) -> list[SessionId]:
        """The names of the rows of hidden sessions: removed ones, and copies that are not whole."""
        return [left.name for left in removal.hidden(self._cursor)]

    @contextmanager
    def _snapshot(self) -> Generator[None]:
        self._cursor.execute("BEGIN")
        try:
            yield
        finally:
            self._cursor.execute("END")
