"""Which tools there are, for whom, and the set that one turn offers.

Rules (semantics, "Tools"; reference 6.2):
- Registrations are scoped. For one name a registration of the location shadows the process-wide ones; among equals the latest
  wins; closing one reveals the former.
- A turn materialises its set once. A call runs the generation that was offered, whatever has been registered or closed
  since.
- A tool is hidden from an agent whose rules deny its action for every resource: not offered, and unknown when called.
- Everything here belongs to one event loop and nothing waits but a running tool.
"""

from __future__ import annotations

import os.path
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

from ...protocol.values import Location, ToolDefinition
from ...protocol.values.permission import Rule
from .bounding import OutputBounds
from .permissions import hidden
from .settlement import RawResult, Settlement, malformed_input, run_tool, unknown_tool
from .tool import Tool, ToolContext


class Registration:
    """One tool's place in the registry, until closed. Closing is immediate, idempotent, and possible in any order."""

    def __init__(self, registrations: list[Registration], tool: Tool, location: str | None) -> None:
        self._registrations = registrations
        self.tool = tool
        self.location = location
        registrations.append(self)

    def close(self) -> None:
        self._registrations[:] = [other for other in self._registrations if other is not self]

    def __enter__(self) -> Registration:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class ToolRegistry:
    """The tools of one runtime."""

    def __init__(self, bounds: OutputBounds) -> None:
        self._bounds = bounds
        self._registrations: list[Registration] = []

    def register(self, tool: Tool, *, location: str | None = None) -> Registration:
        """Offer a tool, from the next turn on: to sessions of one location (an absolute directory), or to all of them."""
        return Registration(self._registrations, tool, None if location is None else os.path.normpath(location))

    def materialise(self, location: Location, agent: str, rules: Sequence[Rule] = ()) -> ToolSet:
        """The tools that a turn of `agent` in `location` offers, as they are registered now. `rules` are the agent's."""
        here = os.path.normpath(location.directory)
        chosen: dict[str, Tool] = {}
        for scope in (None, here):
            for registration in self._registrations:
                if registration.location == scope:
                    chosen[registration.tool.name] = registration.tool
        offered = {name: tool for name, tool in chosen.items() if not hidden(rules, name)}
        return ToolSet(offered, agent, self._bounds, rules)

    def statistics(self) -> dict[str, int]:
        return {"tools_registered": len(self._registrations), **self._bounds.statistics()}


class ToolSet:
    """What one turn offers, for the effective agent of that turn, and how its calls are run.

    A call is settled in two steps, so that the turn can shield the second one together with its commit:

        raw = await tools.run(name, arguments, raw_arguments, context)
        with trio.CancelScope(shield=True):
            settlement = await tools.bound(raw, context)
            ...commit it...
    """

    def __init__(self, tools: dict[str, Tool], agent: str, bounds: OutputBounds, rules: Sequence[Rule] = ()) -> None:
        self._tools = tools
        self._bounds = bounds
        self._rules = tuple(rules)
        self.agent = agent
        self.definitions: tuple[ToolDefinition, ...] = tuple(tools[name].definition for name in sorted(tools))

    async def run(self, name: str, arguments: dict[str, Any] | None, raw: str, context: ToolContext) -> RawResult:
        """Run one recorded call. `arguments` is the parsed input, or None where `raw` was not one JSON object.

        Whatever a tool does becomes a result. Cancelling this abandons the call: Cancelled passes through, and the turn settles
        the call as interrupted. `DeclinedError` passes through as well: the turn fails the call with its type, and stops the
        drain.
        """
        tool = self._tools.get(name)
        if tool is None:
            return unknown_tool(name, tuple(sorted(self._tools)))
        if arguments is None:
            return malformed_input(name, raw)
        return await run_tool(tool, arguments, replace(context, rules=self._rules))

    async def bound(self, result: RawResult, context: ToolContext) -> Settlement:
        """The settlement of a call that has run, bounded and storable. Shield it, together with the commit (see above)."""
        return await self._bounds.bound(result, context)
