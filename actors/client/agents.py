"""`client.agents`: who can be selected."""

from __future__ import annotations

from ...protocol.operations import AGENTS_LIST, NoParams
from ...protocol.values.agent import AgentInfo
from .calls import Calls


class AgentCatalog:
    """Operations on agents, named as in the contract."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def list(self, *, timeout: float | None = None) -> tuple[AgentInfo, ...]:
        """The agents a session can be given; the first is the default."""
        return await self._calls.call(AGENTS_LIST, NoParams(), timeout=timeout)
