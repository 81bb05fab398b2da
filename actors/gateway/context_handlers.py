"""`context.*`, and the operations of a session that concern its context: a look, a compaction, a move.

Entries are kept by a transaction of their own and wake nobody: the next boundary reads them. Compaction and move are letters,
since they wait in the inbox.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

from ...protocol import operations as op
from ...protocol.values.context import ContextEntry
from ...protocol.values.errors import InvalidRequestError
from ...protocol.values.ids import SessionId
from ...protocol.values.location import Location
from ...protocol.values.prompt import ControlItem
from ...storage.journal import Transaction
from ..context.entries import checked_entry
from ..mailbox import Answer
from ..session.letters import Control
from ..session.preview import provider_context
from ..session.registry import SessionRegistry
from ..session.services import Services
from .handling import Handler, Peer, in_task, reply_to


class ContextHandlers:
    """Everything about the System Context of a session."""

    def __init__(self, services: Services, sessions: SessionRegistry) -> None:
        self._services = services
        self._sessions = sessions

    def handlers(self) -> Mapping[str, Handler]:
        """By wire method."""
        return {
            "sessions.provider_context": self._provider_context,
            "sessions.compact": lambda params, _: self._control(params.session_id, None),
            "sessions.move": self._move,
            "context.list": self._list,
            "context.put": self._put,
            "context.remove": self._remove,
        }

    def _provider_context(self, params: op.SessionParams, peer: Peer) -> Answer[Any]:
        return in_task(peer, partial(provider_context, self._services, params.session_id))

    def _control(self, session_id: SessionId, location: Location | None) -> Answer[Any]:
        letter = Control(location)
        self._sessions.post(session_id, letter)
        return letter.answer

    def _move(self, params: op.MoveSession, peer: Peer) -> Answer[Any]:
        directory = params.location.directory

        async def move() -> ControlItem:
            if not await self._services.blocking.run(lambda: _is_directory(directory)):
                raise InvalidRequestError(
                    f"location.directory must be an existing absolute directory, not {directory!r}.", field="location.directory"
                )
            return await reply_to(self._control(params.session_id, params.location))

        return in_task(peer, move)

    def _list(self, params: op.SessionParams, peer: Peer) -> Answer[Any]:
        query = partial(self._services.storage.read, lambda reader: tuple(reader.context_entries(params.session_id)))
        return in_task(peer, query)

    def _put(self, params: op.PutContextEntry, peer: Peer) -> Answer[Any]:
        now = self._services.now_ms()

        def work(transaction: Transaction) -> ContextEntry:
            transaction.head(params.session_id)  # raises SessionNotFoundError
            existing = [entry.key for entry in transaction.context_entries(params.session_id)]
            value = checked_entry(params.key, params.value, existing)
            transaction.put_entry(params.session_id, params.key, value, now)
            return next(entry for entry in transaction.context_entries(params.session_id) if entry.key == params.key)

        return in_task(peer, partial(self._services.storage.commit, work))

    def _remove(self, params: op.RemoveContextEntry, peer: Peer) -> Answer[Any]:
        async def remove() -> None:
            await self._services.storage.commit(lambda transaction: transaction.remove_entry(params.session_id, params.key))

        return in_task(peer, remove)


def _is_directory(path: str) -> bool:
    return os.path.isabs(path) and "\0" not in path and os.path.isdir(path)
