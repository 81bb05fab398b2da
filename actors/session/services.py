"""What a Session needs of the house; handed down, never reached for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...protocol.values.event import EventData
from ...protocol.values.ids import IdSource
from ...protocol.values.permission import Effect
from ...storage.journal import NewEvent
from ..agents import Agents
from ..blocking import Blocking
from ..configuration import Compaction
from ..context.instructions import Instructions
from ..context.observing import SourceDefect
from ..context.registry import SystemContextRegistry
from ..context.skills import Skills
from ..models.models import Models
from ..storage import StorageActor
from ..tools.registry import ToolRegistry
from .history import Histories
from .sweeping import Sweeper


@dataclass(frozen=True, slots=True)
class Services:
    """The other actors, and time and ids, which tests own."""

    storage: StorageActor
    models: Models
    tools: ToolRegistry
    agents: Agents
    ids: IdSource
    now_ms: Callable[[], int]
    blocking: Blocking
    max_pending: int
    policy: Effect
    """What becomes of a request that the rules leave to ask: `ask` somebody, or decide at once in unattended runs."""
    random: Callable[[], float]
    """Numbers from 0 up to 1, for jitter."""
    context: SystemContextRegistry
    skills: Skills
    instructions: Instructions
    diagnose: Callable[[SourceDefect], None]
    """Tells operators of a source that could not be observed, and should have been."""
    compaction: Compaction
    histories: Histories
    sweeper: Sweeper

    def new_event(self, data: EventData) -> NewEvent:
        """A durable event with its id and time, ready for the journal."""
        return NewEvent(self.ids.event(), self.now_ms(), data)
