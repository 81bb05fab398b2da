"""Appending to the log, and everything else one transaction may do.

Long, because it is the whole of what a member of a group commit may ask and write; what each does is in the aggregates.

Rules:
- Events of a session are numbered from 1 without gaps. Event, projections and the session's head change in one transaction;
  the stored body is the whole encoded event, made once its sequence is known (ruling B16).
- A `Transaction` is one member of a group commit and is valid only inside its work function. Work that swallows the error of
  a failed append fails all the same: half an append is never committed.
- No SQL outside this floor; what the session code needs of the rows comes as values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from ..protocol.values import (
    Admission,
    AssistantMessage,
    CallId,
    ContextEntry,
    ControlItem,
    ControlKind,
    Delivery,
    Event,
    EventData,
    EventId,
    MessageId,
    PartId,
    PendingItem,
    SessionCreated,
    SessionId,
    decode_event,
    encode_event,
)
from ..protocol.values.errors import PermissionNotFoundError
from ..protocol.values.ids import RequestId
from ..protocol.values.permission import PermissionRequest, SavedPermission
from ..protocol.values.question import QuestionRequest
from ..protocol.values.session import PromptOutcome
from . import approvals, attempts, entries, epochs, fragments, history, inbox, managed, messages, removal, requests, sessions
from .epochs import EpochRecord
from .history import Limit, Mark, Stretch
from .keys import Keys, SessionKey
from .leftovers import Unfinished, unfinished
from .projectors import PROJECTORS, IllegalEventError, Place, create_session
from .requests import RequestState
from .sessions import SessionRecord
from .statements import Cursor

T = TypeVar("T")

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

    __slots__ = ("_cursor", "_keys", "_unclaimed", "dirty", "ended", "events", "failure", "others", "savepoint", "told")

    def __init__(self, cursor: Cursor, keys: Keys, *, savepoint: bool) -> None:
        self._cursor = cursor
        self._keys = keys
        self.savepoint = savepoint
        """Whether its first write makes the savepoint `member`."""
        self._unclaimed: set[MessageId] = set()
        self.dirty = False
        """Whether it has begun to write."""
        self.ended = False
        self.events: list[StoredEvent] = []
        self.others: list[tuple[int, Callable[[Cursor, Keys], object]]] = []
        """What it wrote that is no event, each behind so many events; repeatable, like the events themselves."""
        self.told: list[StoredEvent] = []
        """Events that were committed unseen, and are sent to who watches before those of this transaction."""
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
        if not events:
            return []
        cursor = self._cursor
        session = self._session_for(session_id, events[0].created, events[0].data)
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
            projector = PROJECTORS.get(type(data))
            if projector is not None:
                projector(Place(cursor, self._keys, session_id, session.key, seq, created, self._unclaimed), data)
            stored.append(StoredEvent(session_id, seq, kind, created, body))
        session.head = seq
        sessions.advance(cursor, session.key, seq, created)
        self.events += stored
        return stored

    def checkpoint(self, session_id: SessionId, assistant_message_id: MessageId, texts: Mapping[PartId | CallId, str]) -> None:
        """Save the text so far of open fragments and of calls whose input is being written, over what was saved before.

        Not in the log: gone once the fragment or the turn has its end. Raises `IllegalEventError` when the session has no
        such assistant message.
        """

        def work(cursor: Cursor, keys: Keys) -> None:
            session = keys.session(session_id)
            message = None if session is None else keys.assistant(session.key, assistant_message_id)
            if message is None:
                raise IllegalEventError(f"Session {session_id!r} has no assistant message {assistant_message_id!r}.")
            fragments.checkpoint(cursor, keys, message, texts)

        self.write(work)

    def save_permission(self, *, id: str, directory: str, action: str, resource: str, created: int) -> None:
        """Keep an approval for all sessions of a directory; one that says the same already stays as it is."""
        approval = SavedPermission(id=id, directory=directory, action=action, resource=resource, created=created)
        self.write(lambda cursor, _: approvals.save(cursor, approval))

    def put_entry(self, session_id: SessionId, key: str, value: Any, now: int) -> None:
        """Keep a context entry of the session. Raises `SessionNotFoundError`."""
        self.head(session_id)

        def work(cursor: Cursor, keys: Keys) -> None:
            session = keys.session(session_id)
            assert session is not None
            entries.put(cursor, session.key, key, value, now)

        self.write(work)

    def remove_entry(self, session_id: SessionId, key: str) -> bool:
        """Drop a context entry; False when there is none. Raises `SessionNotFoundError`."""
        self.head(session_id)

        def work(cursor: Cursor, keys: Keys) -> bool:
            session = keys.session(session_id)
            assert session is not None
            return entries.remove(cursor, session.key, key)

        return self.write(work)

    def forget_permission(self, id: str) -> bool:
        """Drop a kept approval; False when there is none by that id."""
        return self.write(lambda cursor, _: approvals.forget(cursor, id))

    def count_continuation(self, session_id: SessionId) -> None:
        """Count durably that a start goes on with the session's unanswered work; `continuations` tells how often."""
        self.write(lambda cursor, _: sessions.count_continuation(cursor, session_id))

    def remove(self, session_id: SessionId) -> tuple[SessionId, ...]:
        """Remove a session and its descendants for everybody; returns the removed ids, children first (ruling B4).

        None of the ids can be used again. What is stored of each goes with `sweep(grave(id))`. Raises `SessionNotFoundError`.
        """

        def work(cursor: Cursor, keys: Keys) -> tuple[SessionId, ...]:
            removed = removal.remove(cursor, session_id)
            keys.forget()
            return removed

        return self.write(work)

    def copy(self, session_id: SessionId, events: Sequence[NewEvent], *, hidden: bool) -> list[StoredEvent]:
        """Append history that was copied from elsewhere: logged and projected as any, but nobody who watches is sent it.

        `hidden`: more of it follows; nobody sees the session until `reveal`, and one that stays so is swept.
        Raises what `append` raises.
        """

        def work(cursor: Cursor, keys: Keys) -> list[StoredEvent]:
            part = Transaction(cursor, keys, savepoint=False)
            part.dirty = True
            stored = part.append(session_id, events)
            if hidden:
                session = keys.session(session_id)
                assert session is not None
                sessions.hide(cursor, session.key, hidden=True)
            return stored

        return self.write(work)

    def reveal(self, session_id: SessionId, first: StoredEvent) -> None:
        """A copied history is whole: everybody may see the session, and who watches is sent its `first` event."""

        def work(cursor: Cursor, keys: Keys) -> None:
            session = keys.session(session_id)
            assert session is not None
            sessions.hide(cursor, session.key, hidden=False)

        self.write(work)
        self.told.append(first)

    def sweep(self, name: SessionId) -> bool:
        """Delete a bounded part of what belongs to the hidden session whose row has that name; True while there is more."""

        def work(cursor: Cursor, keys: Keys) -> bool:
            keys.forget()
            return removal.sweep(cursor, name)

        return self.write(work)

    def write(self, work: Callable[[Cursor, Keys], T]) -> T:
        """Write something that is no event. `work(cursor, keys)` can be repeated after a rollback, with the same result."""
        self._check()
        self._begin_writing()
        try:
            result = work(self._cursor, self._keys)
        except Exception as error:
            self.failure = error
            raise
        self.others.append((len(self.events), work))
        return result

    def repeat(self, other: Transaction) -> None:
        """Write again, as it was, what a transaction wrote that has been rolled back since."""
        done = 0
        for position, work in other.others:
            self.restore(other.events[done:position])
            self.write(work)
            done = position
        self.restore(other.events[done:])

    def restore(self, events: Iterable[StoredEvent]) -> None:
        """Append events exactly as they were stored before, and project them again.

        Raises `IllegalEventError` when a sequence is not the next one of its session.
        """
        self._check()
        cursor = self._cursor
        for stored in events:
            session_id, seq, kind, created, body = stored
            data = decode_event(body).data
            session = self._session_for(session_id, created, data)
            if seq != session.head + 1:
                raise IllegalEventError(f"Session {session_id!r} is at {session.head}; event {seq} does not follow it.")
            cursor.execute(INSERT_EVENT, (session.key, seq, kind, created, body))
            projector = PROJECTORS.get(type(data))
            if projector is not None:
                projector(Place(cursor, self._keys, session_id, session.key, seq, created, self._unclaimed), data)
            session.head = seq
            sessions.advance(cursor, session.key, seq, created)
            self.events.append(stored)

    def _session_for(self, session_id: SessionId, created: int, first: EventData) -> SessionKey:
        """The session to write to, made if this is its first event; from here on the member is writing."""
        session = self._keys.session(session_id)
        if session is None and not isinstance(first, SessionCreated):
            raise sessions.not_found(session_id)
        self._begin_writing()
        if session is None:
            assert isinstance(first, SessionCreated)
            session = create_session(self._cursor, self._keys, session_id, created, first)
        return session

    def _begin_writing(self) -> None:
        if not self.dirty:
            if self.savepoint:
                self._cursor.execute("SAVEPOINT member")
            self.dirty = True

    # --- reading ---

    def session(self, session_id: SessionId) -> SessionRecord:
        """The session as it stands in this transaction. Raises `SessionNotFoundError`."""
        self._check()
        return sessions.find(self._cursor, session_id)

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

    def admitted_delivery(self, message_id: MessageId) -> Delivery | None:
        """The delivery with which a prompt was admitted, whatever it was changed to; None when there is no such prompt."""
        self._check()
        return inbox.admitted_delivery(self._cursor, message_id)

    def message_owner(self, message_id: MessageId) -> SessionId | None:
        """The session whose history shows a message with that id."""
        self._check()
        owner = messages.owner(self._cursor, message_id)
        if owner is None:
            self._unclaimed.add(message_id)
        return owner

    def find_item(self, message_id: MessageId) -> PendingItem | None:
        """The prompt or control item with that id, in whatever session and whatever became of it."""
        self._check()
        return inbox.find_item(self._cursor, message_id)

    def pending_control(self, session_id: SessionId, kind: ControlKind) -> ControlItem | None:
        """The control item of a kind that was admitted last, if any waits."""
        self._check()
        return inbox.pending_control(self._cursor, session_id, kind)

    def is_pending(self, session_id: SessionId, message_id: MessageId) -> bool:
        """Whether the prompt or control item with that id waits in that session."""
        self._check()
        return inbox.is_pending(self._cursor, session_id, message_id)

    def epoch(self, session_id: SessionId) -> EpochRecord | None:
        """The session's active Context Epoch, or None."""
        self._check()
        return epochs.find(self._cursor, session_id)

    def stretch(self, session_id: SessionId, since: Mark | None, limit: Limit) -> Stretch | None:
        """What the next request is made from, behind `since`.

        None where that would be everything of a session that is more than the `limit`: that is for a reader to read, while
        others write.
        """
        self._check()
        return history.stretch(self._cursor, session_id, since, limit=limit)

    def context_entries(self, session_id: SessionId) -> list[ContextEntry]:
        """The session's API-managed context entries by key."""
        self._check()
        return entries.listed(self._cursor, session_id)

    def told_paths(self, session_id: SessionId, paths: Iterable[str]) -> set[str]:
        """Those of the instruction files `paths` that the session was told in messages of their own."""
        self._check()
        return messages.told_paths(self._cursor, session_id, paths)

    def pending(self, session_id: SessionId) -> list[PendingItem]:
        """What waits in the inbox, in admission order."""
        self._check()
        return inbox.pending(self._cursor, session_id)

    def front(self, session_id: SessionId) -> list[PendingItem]:
        """Of what waits the first item, and all steers in front of the first control item: what the next boundary may take."""
        self._check()
        return inbox.front(self._cursor, session_id)

    def unfinished(self, session_id: SessionId) -> Unfinished:
        """What recovery has to settle: open turns, fragments, calls and requests."""
        self._check()
        return unfinished(self._cursor, session_id)

    def continuations(self, session_id: SessionId) -> int:
        """How often starts went on with the session's unanswered work; 0 again after an answer."""
        self._check()
        return sessions.continuations(self._cursor, session_id)

    def prompt_outcome(self, session_id: SessionId, message_id: MessageId) -> PromptOutcome | None:
        """What became of a prompt (ruling C3); None while it waits or is being answered, and for one it never had."""
        self._check()
        return attempts.prompt_outcome(self._cursor, session_id, message_id)

    def running_turn(self, session_id: SessionId) -> AssistantMessage | None:
        """The message of the open turn with its parts, or None. An open fragment's part is empty here."""
        self._check()
        return messages.running_turn(self._cursor, session_id)

    def request(self, request_id: RequestId) -> RequestState | None:
        """A permission request or question in whatever session, with its standing reply."""
        self._check()
        return requests.find(self._cursor, request_id)

    def permission(self, request_id: RequestId) -> PermissionRequest:
        """What that request asks, open or not. Raises `PermissionNotFoundError`."""
        self._check()
        found = requests.permission(self._cursor, request_id)
        if found is None:
            raise PermissionNotFoundError(f"There is no permission request {request_id!r}.", request_id=request_id)
        return found

    def open_permissions(self, session_id: SessionId) -> list[PermissionRequest]:
        """Permission requests of this very session that wait, the oldest first."""
        self._check()
        return requests.permissions(self._cursor, session_id)

    def open_questions(self, session_id: SessionId) -> list[QuestionRequest]:
        """Questions of this very session that wait, the oldest first."""
        self._check()
        return requests.questions(self._cursor, session_id)

    def saved_permissions(self, directory: str | None) -> list[SavedPermission]:
        """Kept approvals of a directory, or all."""
        self._check()
        return approvals.saved(self._cursor, directory)

    def managed_outputs(self, session_id: SessionId) -> tuple[str, ...]:
        """Paths of the files that only the history of this session and its descendants names."""
        self._check()
        return managed.only_here(self._cursor, session_id)

    def _check(self) -> None:
        if self.ended:
            raise RuntimeError("this transaction has ended; it is valid only inside its work function")
