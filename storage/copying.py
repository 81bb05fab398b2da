"""A fork in steps, so that a long history keeps no other session waiting (ruling B4).

Rules:
- The origin's log is read in pages outside the writer, twice: once to learn where the copy ends and what led to nothing, once
  to copy. It only grows, and what it has got since the beginning is not looked at; so nobody has to hold it still.
- The child's history is appended a page to a transaction. Until the last one the child is hidden: no list and no look-up shows
  it, nothing of it is published, and its id is known to nobody. What is left of a copy that did not come to its end is swept.
- With the last page the child is revealed and `session.forked` appended. Who watches everything is sent `session.created` and
  `session.forked`; the history between them is not news.
"""

from __future__ import annotations

from ..protocol.values import Event, EventData, MessageId, Session, SessionId, decode_event
from ..protocol.values.event import SessionForked
from .forking import NewIds, Renaming, Survey, beginning, placed
from .journal import NewEvent, StoredEvent, Transaction
from .reader import Reader
from .sessions import SessionRecord


class Fork:
    """One fork. Call `survey` until it says False, then `read`, `rename` and `write` in turn until `write` returns the child.

    `created` is epoch milliseconds.
    """

    def __init__(
        self,
        origin_id: SessionId,
        child_id: SessionId,
        *,
        ids: NewIds,
        created: int,
        before: MessageId | None = None,
    ) -> None:
        self._origin_id = origin_id
        self.child_id = child_id
        """The name of its row, hidden or not."""
        self._before = before
        self._ids = ids
        self._created = created
        self._survey = Survey(before)
        self._renaming = Renaming(ids)
        self._origin: Session | None = None
        self._surveyed = 0
        self._read = 0
        self._head = 0
        self._events: list[Event] = []
        self._copies: list[NewEvent] = []
        self._end: NewEvent | None = None
        self._first: StoredEvent | None = None
        self.begun = False
        """Whether anything of it may stand in the store."""

    def survey(self, reader: Reader) -> bool:
        """Look through a page of the origin's log; True when there is more of it.

        Raises `SessionNotFoundError`, or `MessageNotFoundError` when the origin's history has no message `before`.
        """
        if self._origin is None:
            self._origin = reader.session(self._origin_id)
        for event in self._page(reader, self._surveyed):
            if not self._survey.take(event):
                return False
            self._surveyed = event.seq or 0
        if self._surveyed < self._origin.head:
            return True
        self._survey.check()
        return False

    def read(self, reader: Reader) -> None:
        """Read the next page of the origin's history. Raises `SessionNotFoundError` when the origin was removed meanwhile."""
        self._events = self._page(reader, self._read)

    def rename(self) -> None:
        """Make the next page of the child's history. Takes ids, so it runs where they are made."""
        assert self._origin is not None
        self._copies = []
        for event in self._events:
            seq = event.seq or 0
            if seq == 1:
                self._add(self._created, beginning(self._origin, event.data))
            if seq > self._survey.upto:
                break
            self._read = seq
            if self._survey.keeps(event):
                self._add(event.created, placed(self._renaming(event.data), self._head))
        if self._read >= self._survey.upto:
            end = SessionForked(parent_id=self._origin_id, parent_seq=self._survey.upto, before=self._before)
            self._end = NewEvent(self._ids.event(), self._created, end)

    def write(self, transaction: Transaction) -> SessionRecord | None:
        """Append the page that was made; the child once it is whole.

        Raises `ConflictError` when the child's id is taken, and `SessionNotFoundError` when the origin was removed meanwhile:
        the files that the history names went with it.
        """
        self.begun = True
        transaction.head(self._origin_id)
        stored = transaction.copy(self.child_id, self._copies, hidden=self._end is None)
        if self._first is None:
            self._first = stored[0]
        if self._end is None:
            return None
        transaction.reveal(self.child_id, self._first)
        transaction.append(self.child_id, [self._end])
        return transaction.session(self.child_id)

    def _page(self, reader: Reader, after: int) -> list[Event]:
        assert self._origin is not None
        page = reader.events_page(self._origin_id, after)
        return [decode_event(body) for seq, body in page if seq <= self._origin.head]

    def _add(self, created: int, data: EventData) -> None:
        self._head += 1
        self._copies.append(NewEvent(self._ids.event(), created, data))
