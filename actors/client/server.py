"""`client.server`: what the server says of itself."""

from __future__ import annotations

from ...protocol.operations import SERVER_HEALTH, SERVER_INFO, NoParams
from ...protocol.values.server import Health, ServerInfo
from .calls import Calls


class Server:
    """Operations on the server, named as in the contract."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def info(self, *, timeout: float | None = None) -> ServerInfo:
        """Name, version, store generation and limits."""
        return await self._calls.call(SERVER_INFO, NoParams(), timeout=timeout)

    async def health(self, *, timeout: float | None = None) -> Health:
        """Whether the runtime answers."""
        return await self._calls.call(SERVER_HEALTH, NoParams(), timeout=timeout)
