"""Agents: who answers, with what text of its own and which model.

`build` is always there. The agent's own text is sent as its own part behind nothing and before everything; only another agent
changes it.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ..protocol.values.model import ModelRef

DEFAULT_AGENT = "build"


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """`system` is sent first when it is not empty; `model` is used when the session has selected none."""

    name: str
    system: str = ""
    model: ModelRef | None = None


class UnknownAgentError(Exception):
    """No agent has that name."""


class Agents:
    """The agents of this runtime, by name. Immutable."""

    def __init__(self, configured: Iterable[Agent] = ()) -> None:
        self._by_name = {DEFAULT_AGENT: Agent(name=DEFAULT_AGENT), **{agent.name: agent for agent in configured}}

    def resolve(self, name: str | None) -> Agent:
        """The agent of that name; the default one for None. Raises `UnknownAgentError`."""
        agent = self._by_name.get(name or DEFAULT_AGENT)
        if agent is None:
            raise UnknownAgentError(f"There is no agent {name!r}; configured are {', '.join(sorted(self._by_name))}.")
        return agent
