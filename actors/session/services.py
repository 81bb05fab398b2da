"""What a Session needs of the house; handed down, never reached for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...protocol.values.event import Event, EventData
from ...protocol.values.ids import IdSource, SessionId
from ...storage.journal import NewEvent, Transaction
from ..agents import Agents
from ..blocking import Blocking
from ..mailbox import Answer
from ..models.models import Models
from ..storage import Chain, StorageActor
from ..tools.registry import ToolRegistry


@dataclass(frozen=True, slots=True)
class Services:
    """The other actors, and time and ids, which tests own."""

    storage: StorageActor
    models: Models
    tools: ToolRegistry
    agents: Agents
    ids: IdSource
    now_ms: Callable[[], int]
    blocking: Blocking
    max_pending: int

    def new_event(self, data: EventData) -> NewEvent:
        """A durable event with its id and time, ready for the journal."""
        return NewEvent(self.ids.event(), self.now_ms(), data)

    def live_event(self, session_id: SessionId, data: EventData) -> Event:
        """A live event of a session."""
        return Event(type=data.type, created=self.now_ms(), data=data, session_id=session_id)

    def append(self, session_id: SessionId, chain: Chain, data: list[EventData]) -> Answer[None]:
        """Post events of a session to the journal behind everything the chain has posted."""
        return self.storage.post(partial(_append, session_id, [self.new_event(item) for item in data]), chain=chain)


def _append(session_id: SessionId, events: list[NewEvent], transaction: Transaction) -> Any:
    transaction.append(session_id, events)
