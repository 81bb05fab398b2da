"""What permission rules say about the many files that one search meets.

Rules (semantics, "Permissions and questions"):
- A rule about an action counts for each file, not only for the folder that a search begins in: what `read` is denied for is
  neither opened nor shown by `grep`, whatever was asked for and whoever allowed it.
- Saved approvals cannot lift a deny, so that the agent's rules alone decide here. What they leave to ask is asked for by the
  tool.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...protocol.values.permission import Effect, Rule
from .permissions import evaluate, matches


class PathRules:
    """The effect of rules on one action, by path. Quick where no rule about the action names a path."""

    def __init__(self, rules: Sequence[Rule], action: str) -> None:
        self._rules = rules
        self._action = action
        paths = any(rule.resource != "*" and matches(rule.action, action) for rule in rules)
        self._always: Effect | None = None if paths else evaluate(rules, action, ("*",))

    def effect(self, shown: str) -> Effect:
        """What the rules say about the path, as it is shown to the model."""
        return self._always or evaluate(self._rules, self._action, (shown,))

    def denies(self, shown: str) -> bool:
        """Whether nothing may be done with the path."""
        return self.effect(shown) == "deny"
