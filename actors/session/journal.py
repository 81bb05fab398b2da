"""One drain's pen: what it writes and publishes for its session, in one chain (rulings A3, A4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...protocol.values.event import Event, EventData
from ...protocol.values.ids import CallId, MessageId, PartId, RequestId, SessionId
from ...storage.journal import NewEvent, Transaction
from ..mailbox import Answer
from ..storage import Chain
from .services import Services
from .transactions import Settlement


class SessionJournal:
    """Posts without waiting; `gate` waits for everything posted, and raises the first failure among it, once."""

    def __init__(self, services: Services, session_id: SessionId) -> None:
        self._services = services
        self._session_id = session_id
        self._chain = Chain()

    def append(self, data: Sequence[EventData]) -> Answer[None]:
        """Post durable events behind everything posted before."""
        events = [self._services.new_event(item) for item in data]
        return self._services.storage.post(_Append(self._session_id, events), chain=self._chain)

    def settle(self, data: Sequence[EventData], requests: Sequence[RequestId]) -> Answer[None]:
        """Post settlements, closing what their calls still wait for."""
        work = Settlement(self._services, self._session_id, data, requests)
        return self._services.storage.post(work, chain=self._chain)

    def checkpoint(self, assistant: MessageId, texts: Mapping[PartId | CallId, str]) -> None:
        """Post the text so far of open fragments, over what was saved of them before."""

        def work(transaction: Transaction) -> None:
            transaction.checkpoint(self._session_id, assistant, texts)

        self._services.storage.post(work, chain=self._chain)

    def publish(self, data: EventData) -> None:
        """Publish a live event right behind everything posted before."""
        event = Event(type=data.type, created=self._services.now_ms(), data=data, session_id=self._session_id)
        self._services.storage.post_live(event, self._chain)

    async def gate(self) -> None:
        """Wait, shielded, until everything posted is committed."""
        await self._services.storage.gate(self._chain)

    def new_part(self) -> PartId:
        """A fresh part id."""
        return self._services.ids.part()

    def new_call(self) -> CallId:
        """A fresh call id."""
        return self._services.ids.call()


class _Append:
    __slots__ = ("_events", "_session_id")

    def __init__(self, session_id: SessionId, events: list[NewEvent]) -> None:
        self._session_id = session_id
        self._events = events

    def __call__(self, transaction: Transaction) -> None:
        transaction.append(self._session_id, self._events)
