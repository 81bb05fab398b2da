"""Control items: what stands in the inbox beside prompts and is done between turns, in its place (ruling B2).

Rules:
- An item bounds promotion: input behind it waits until it was delivered. A failed compaction was delivered too.
- Asking twice for what waits already answers with the item that waits; of moves only the last one, behind which another
  place means a new item.
- Delivering a move changes the location and clears the Context Epoch, in one transaction; the next boundary initialises there.
"""

from __future__ import annotations

from ...protocol.values.errors import InboxFullError
from ...protocol.values.event import ControlAdmitted, SessionMoved
from ...protocol.values.ids import SessionId
from ...protocol.values.location import Location
from ...protocol.values.prompt import CompactControl, ControlItem, ControlKind, MoveControl
from ...storage.journal import Transaction
from .services import Services


class ControlAdmission:
    """Admits a control item, or answers with the one that waits already."""

    def __init__(
        self, services: Services, session_id: SessionId, location: Location | None, *, full: InboxFullError | None
    ) -> None:
        self._services = services
        self._session_id = session_id
        self._location = location
        self._full = full
        self._kind: ControlKind = "compact" if location is None else "move"
        self._id = services.ids.message()
        self._event = services.new_event(ControlAdmitted(message_id=self._id, kind=self._kind, location=location))

    def __call__(self, transaction: Transaction) -> ControlItem:
        waiting = transaction.pending_control(self._session_id, self._kind)
        match waiting:
            case CompactControl():
                return waiting
            case MoveControl(location=location) if location == self._location:
                return waiting
            case _:
                pass
        if self._full is not None:
            raise self._full
        transaction.append(self._session_id, [self._event])
        item = transaction.find_item(self._id)
        assert isinstance(item, CompactControl | MoveControl)
        return item


class Delivery:
    """Delivers a move that is the first to wait; answers the control item that was found there, or None."""

    def __init__(self, services: Services, session_id: SessionId) -> None:
        self._services = services
        self._session_id = session_id

    def __call__(self, transaction: Transaction) -> ControlItem | None:
        front = transaction.front(self._session_id)
        match front[0] if front else None:
            case MoveControl(id=id, location=location) as item:
                previous = transaction.session(self._session_id).session.location
                moved = SessionMoved(message_id=id, location=location, previous=previous)
                transaction.append(self._session_id, [self._services.new_event(moved)])
                return item
            case CompactControl() as item:
                return item
            case _:
                return None
