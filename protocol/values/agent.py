"""What a client is told of an agent."""

from __future__ import annotations

from .model import ModelRef
from .permission import Rule
from .value import Value


class AgentInfo(Value):
    """An agent a session can be given. `rules` are all that apply, built-in ones first; the last match decides."""

    name: str
    rules: tuple[Rule, ...]
    system: str | None = None
    model: ModelRef | None = None
    steps: int | None = None
