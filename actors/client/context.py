"""`client.context`: facts that a client keeps for one session, told to its model as Context Sources."""

from __future__ import annotations

from typing import Any

from ...protocol.operations import CONTEXT_LIST, CONTEXT_PUT, CONTEXT_REMOVE, PutContextEntry, RemoveContextEntry, SessionParams
from ...protocol.values.context import ContextEntry
from ...protocol.values.ids import SessionId
from .calls import Calls


class ContextEntries:
    """Operations on context entries, named as in the contract."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def list(self, session_id: SessionId, *, timeout: float | None = None) -> tuple[ContextEntry, ...]:
        """The session's entries by key."""
        return await self._calls.call(CONTEXT_LIST, SessionParams(session_id=session_id), timeout=timeout)

    async def put(self, session_id: SessionId, key: str, value: Any, *, timeout: float | None = None) -> ContextEntry:
        """Keep an entry: its model is told at the next turn, and nothing is woken. `value` is any JSON value up to 8 KiB."""
        params = PutContextEntry(session_id=session_id, key=key, value=value)
        return await self._calls.call(CONTEXT_PUT, params, timeout=timeout)

    async def remove(self, session_id: SessionId, key: str, *, timeout: float | None = None) -> None:
        """Remove an entry; its model is told once that it no longer applies."""
        await self._calls.call(CONTEXT_REMOVE, RemoveContextEntry(session_id=session_id, key=key), timeout=timeout)
