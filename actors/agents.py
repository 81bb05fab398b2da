"""Agents: who answers, with what text of its own, which model, how many steps, and what it may do.

`build` and `plan` are always there; configuring one of them adds to it. The agent's own text is sent as its own part behind
nothing and before everything; only another agent changes it.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ..protocol.values.model import ModelRef
from ..protocol.values.permission import Rule
from .tools.permissions import PLAN_AGENT, built_in_rules

DEFAULT_AGENT = "build"


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """`system` is sent first when it is not empty; `model` is used when the session has selected none.

    `steps` is the step allowance between two promotions, unlimited when None. `configured` are the rules that stand behind
    the built-in ones.
    """

    name: str
    system: str = ""
    model: ModelRef | None = None
    steps: int | None = None
    configured: tuple[Rule, ...] = ()

    @property
    def rules(self) -> tuple[Rule, ...]:
        """What the agent may do: the built-in rules, then the configured ones (ruling C6)."""
        return (*built_in_rules(self.name), *self.configured)


class UnknownAgentError(Exception):
    """No agent has that name."""


class Agents:
    """The agents of this runtime, by name. Immutable."""

    def __init__(self, configured: Iterable[Agent] = ()) -> None:
        built_in = [Agent(name=DEFAULT_AGENT), Agent(name=PLAN_AGENT)]
        self._by_name = {agent.name: agent for agent in (*built_in, *configured)}

    def resolve(self, name: str | None) -> Agent:
        """The agent of that name; the default one for None. Raises `UnknownAgentError`."""
        agent = self._by_name.get(name or DEFAULT_AGENT)
        if agent is None:
            raise UnknownAgentError(f"There is no agent {name!r}; configured are {', '.join(sorted(self._by_name))}.")
        return agent

    def list(self) -> tuple[Agent, ...]:
        """All agents: the default one first, the others by name."""
        return tuple(sorted(self._by_name.values(), key=lambda agent: (agent.name != DEFAULT_AGENT, agent.name)))
