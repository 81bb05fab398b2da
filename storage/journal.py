"""Appending to the log, and everything else one transaction may do.

Rules:
- Events of a session are numbered from 1 without gaps. Event, projections and the session's head change in one transaction;
  the stored body is the whole encoded event, made once its sequence is known (ruling B16).
- A `Transaction` is one member of a group commit and is valid only inside its work function. Its savepoint is made by its
  first write, so that work which only looks costs nothing. Work that swallows the error of a failed append fails all the
  same: half an append is never committed.
- No SQL outside this floor; what the session code needs of the rows comes as values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import apsw

from ..protocol.values import (
    Admission,
    Event,
    EventData,
    EventId,
    MessageId,
    Outcome,
    SessionCreated,
    SessionId,
    encode_event,
)
from . import attempts, inbox, messages, sessions
from .keys import Keys, SessionKey
from .messages import Unfinished
from .projectors import Place, create_session, project
from .sessions import SessionRecord

INSERT_EVENT = "INSERT INTO event (session, seq, type, created, body) VALUES (?, ?, ?, ?, ?)"


class NewEvent(NamedTuple):
    """An event before it has a sequence. `created` is epoch milliseconds."""

    id: EventId
    created: int
    data: EventData


class StoredEvent(NamedTuple):
    """An event of the log. `body` is its MessagePack encoding, the same bytes for row, live frame and replay."""

    session_id: SessionId
    seq: int
    type: str
    created: int
    body: bytes


class Transaction:
    """What one member of a group commit reads and writes. Made by the `Writer`, ended by it."""

    __slots__ = ("_cursor", "_keys", "_unclaimed", "dirty", "ended", "events", "failure")

    def __init__(self, cursor: apsw.Cursor, keys: Keys) -> None:
        self._cursor = cursor
        self._keys = keys
        self._unclaimed: set[MessageId] = set()
        self.dirty = False
        """Whether the savepoint of this member exists."""
        self.ended = False
        self.events: list[StoredEvent] = []
        self.failure: Exception | None = None
        """The error of an append, which fails the member whatever its work makes of it."""

    # --- writing ---

    def append(self, session_id: SessionId, events: Sequence[NewEvent]) -> list[StoredEvent]:
        """Append events to a session's log and project them; returns them with their sequences.

        `SessionCreated` must be the first event of a session and makes it. Raises `SessionNotFoundError`, `ConflictError`
        (an id is taken) or `IllegalEventError`; then nothing of this member will be committed.
        """
        self._check()
        try:
            return self._append(session_id, events)
        except Exception as error:
            self.failure = error
            raise

    def _append(self, session_id: SessionId, events: Sequence[NewEvent]) -> list[StoredEvent]:
        cursor = self._cursor
        if not events:
            return []
        if not self.dirty:
            cursor.execute("SAVEPOINT member")
            self.dirty = True
        session = self._session_for(session_id, events[0])
        stored: list[StoredEvent] = []
        seq = session.head
        created = 0
        for event_id, created, data in events:
            seq += 1
            kind = data.type
            if not data.durable:
                raise ValueError(f"{kind} is live only and has no place in the log")
            body = encode_event(
                Event(
                    id=event_id,
                    type=kind,
                    session_id=session_id,
                    seq=seq,
                    version=data.version,
                    created=created,
                    data=data,
                )
            )
            cursor.execute(INSERT_EVENT, (session.key, seq, kind, created, body))
            project(Place(cursor, self._keys, session_id, session.key, seq, created, self._unclaimed), data)
            stored.append(StoredEvent(session_id, seq, kind, created, body))
        session.head = seq
        sessions.advance(cursor, session.key, seq, created)
        self.events += stored
        return stored

    def _session_for(self, session_id: SessionId, first: NewEvent) -> SessionKey:
        session = self._keys.session(session_id)
        if session is None:
            if not isinstance(first.data, SessionCreated):
                raise sessions.not_found(session_id)
            session = create_session(self._cursor, self._keys, session_id, first.created, first.data)
        return session

    # --- reading ---

    def session(self, session_id: SessionId) -> SessionRecord:
        """The session as it stands in this transaction. Raises `SessionNotFoundError`."""
        self._check()
        return sessions.find(self._cursor, session_id)

    def exists(self, session_id: SessionId) -> bool:
        """Whether there is such a session."""
        self._check()
        return self._keys.session(session_id) is not None

    def head(self, session_id: SessionId) -> int:
        """Sequence of the session's last event. Raises `SessionNotFoundError`."""
        self._check()
        session = self._keys.session(session_id)
        if session is None:
            raise sessions.not_found(session_id)
        return session.head

    def find_prompt(self, message_id: MessageId) -> Admission | None:
        """The receipt of the prompt with that id, in whatever session and whatever became of it."""
        self._check()
        return inbox.find(self._cursor, message_id)

    def message_owner(self, message_id: MessageId) -> SessionId | None:
        """The session whose history shows a message with that id."""
        self._check()
        owner = messages.owner(self._cursor, message_id)
        if owner is None:
            self._unclaimed.add(message_id)
        return owner

    def pending(self, session_id: SessionId) -> list[Admission]:
        """Admitted Prompts that wait, in admission order."""
        self._check()
        return inbox.pending(self._cursor, session_id)

    def pending_count(self, session_id: SessionId) -> int:
        """How many Admitted Prompts wait."""
        self._check()
        return inbox.pending_count(self._cursor, session_id)

    def unfinished(self, session_id: SessionId) -> Unfinished:
        """What recovery has to settle: open turns, fragments and calls."""
        self._check()
        return unfinished(self._cursor, session_id)

    def outcome_after(self, session_id: SessionId, seq: int) -> Outcome | None:
        """How the first turn started after `seq` that needs no continuation ended (ruling C3)."""
        self._check()
        return attempts.outcome_after(self._cursor, session_id, seq)

    def _check(self) -> None:
        if self.ended:
            raise RuntimeError("this transaction has ended; it is valid only inside its work function")


def unfinished(cursor: apsw.Cursor, session_id: SessionId) -> Unfinished:
    """What the session's turns left open."""
    fragments, calls = messages.open_parts(cursor, session_id)
    return Unfinished(tuple(attempts.open_turns(cursor, session_id)), tuple(fragments), tuple(calls))
