"""What is set on a session from outside: title, metadata, budget."""

from __future__ import annotations

import msgspec

from ...protocol.values.event import SessionUpdated
from ...protocol.values.ids import SessionId
from ...protocol.values.session import Session
from ...storage.journal import Transaction
from . import letters
from .services import Services


class Update:
    """The transaction of an update; what is as it should be already makes no event."""

    def __init__(self, services: Services, session_id: SessionId, wanted: letters.Update) -> None:
        self._services = services
        self._session_id = session_id
        self._wanted = wanted

    def __call__(self, transaction: Transaction) -> Session:
        wanted, before = self._wanted, transaction.session(self._session_id).session
        updated = SessionUpdated(
            title=wanted.title if wanted.title != before.title else None,
            metadata=wanted.metadata if wanted.metadata != before.metadata else None,
            budget=wanted.budget if wanted.budget != before.budget else msgspec.UNSET,
        )
        if updated == SessionUpdated():
            return before
        transaction.append(self._session_id, [self._services.new_event(updated)])
        return transaction.session(self._session_id).session
