"""What a Safe Provider-Turn Boundary samples and observes before its transaction, and the request it makes afterwards.

Rules (semantics, "Safe Provider-Turn Boundary"; seed, "Relationships"):
- Agent, model and location are sampled anew. What cannot be passed is a `BoundaryFailure`: input stays pending.
- All sources are observed once, at the same time, before the transaction. Without an epoch an incomplete first baseline is
  `ContextUnavailableError` with the keys; with one, what is unavailable keeps its last state.
- A stale epoch (after compaction or pruning) is replaced, or kept while admitted context is unavailable; it then gets the
  updates of what can be observed (decision 0010).
- Nearby instructions are those near the files that the last turn read with success, unless the session has moved since:
  the turn's paths say nothing about the new location.
- Sources with the same key or a reserved one, and renderers that fail or give nothing, or too much, to read, are errors of the
  program that contributes them: the boundary fails with `context.invalid`, which names the source.
- The baseline is sent first, verbatim; the agent's own text follows as its own part.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from ...protocol.llm.invariants import RequestInvariantError
from ...protocol.llm.request import Generation, LLMRequest
from ...protocol.values.context import ContextEpoch, SnapshotEntry
from ...protocol.values.errors import ContextUnavailableError, ModelNotSelectedError, ModelUnavailableError
from ...protocol.values.failure import (
    AGENT_UNKNOWN,
    CONTEXT_INVALID,
    LOCATION_UNAVAILABLE,
    MODEL_NOT_SELECTED,
    MODEL_UNAVAILABLE,
    PROVIDER_INVALID_REQUEST,
    Failure,
)
from ...protocol.values.ids import SessionId
from ...protocol.values.message import AssistantMessage, ToolCompleted, ToolPart
from ...storage.epochs import EpochRecord
from ...storage.history import Mark, Stretch
from ...storage.journal import SessionRecord
from ...storage.reader import Reader
from ..agents import Agent, UnknownAgentError
from ..context.algebra import Blocked, Initialized, ReplacementBlocked, ReplacementReady, SystemContext, Unchanged, Updated
from ..context.entries import entries_context
from ..context.instructions import Instruction
from ..context.observing import Observing
from ..context.skills import SKILLS_KEY
from ..context.snapshot import InvalidSnapshotError, decode_snapshot
from ..context.source import ContextKeyError, RenderingError
from ..models.catalog import ModelInfo
from ..tools.permissions import evaluate
from ..tools.registry import ToolSet
from .budget import over_budget
from .promotion import Admitted
from .retry import RetryBudget
from .services import Services

ENTRIES_KEY = "api/entries"
"""The contribution of a session's API-managed entries; each entry is a source of its own."""


class BoundaryFailure(Exception):
    """The boundary cannot be passed; the drain fails with this, and input stays pending."""

    def __init__(self, type: str, message: str) -> None:
        super().__init__(message)
        self.failure = Failure(type=type, message=message)


class View(NamedTuple):
    """What the store says about a session, for one boundary."""

    record: SessionRecord
    epoch: EpochRecord | None
    entries: dict[str, object]
    read: tuple[str, ...]
    """Paths that the last turn read with success, in the location where the session still is."""
    stretch: Stretch
    """The messages that are behind what the caller knows."""

    @property
    def active(self) -> ContextEpoch | None:
        return None if self.epoch is None else self.epoch.epoch


def view_of(session_id: SessionId, known: Mark | None = None) -> Callable[[Reader], View]:
    """The query that gives the view, for a caller whose history stands at `known`."""

    def query(reader: Reader) -> View:
        epoch = reader.epoch(session_id)
        return View(
            record=reader.record(session_id),
            epoch=epoch,
            entries={entry.key: entry.value for entry in reader.context_entries(session_id)},
            read=_read_paths(reader, session_id, epoch),
            stretch=reader.stretch(session_id, known),
        )

    return query


async def select(services: Services, record: SessionRecord, budget: RetryBudget | None = None) -> tuple[Agent, ModelInfo]:
    """Agent and model of the next turn, and a look at the location. Raises `BoundaryFailure`.

    `budget` knows which fallback a running drain asks instead of the selected model.
    """
    session = record.session
    if (spent := over_budget(session)) is not None:
        raise BoundaryFailure(spent.type, spent.message)
    try:
        agent = services.agents.resolve(session.agent)
        selected = session.model or agent.model
        model = services.models.resolve(selected if budget is None else budget.effective(selected))
    except UnknownAgentError as error:
        raise BoundaryFailure(AGENT_UNKNOWN, str(error)) from error
    except ModelUnavailableError as error:
        raise BoundaryFailure(MODEL_UNAVAILABLE, error.message) from error
    except ModelNotSelectedError as error:
        raise BoundaryFailure(MODEL_NOT_SELECTED, error.message) from error
    directory = session.location.directory
    if not await services.blocking.run(lambda: os.path.isdir(directory)):
        raise BoundaryFailure(LOCATION_UNAVAILABLE, f"The session's directory {directory} is not there any more.")
    return agent, model


async def system_context(services: Services, view: View, agent: Agent, observing: Observing) -> SystemContext:
    """The composed System Context of one boundary: the registry's sources, the agent's skills, the session's entries.

    Raises `BoundaryFailure` when two of them have one key.
    """
    location = view.record.session.location

    async def entries() -> SystemContext:
        return entries_context(view.entries)

    def permitted(skill: str) -> bool:
        return evaluate(agent.rules, "skill", (skill,)) != "deny"

    own = ((SKILLS_KEY, partial(services.skills.guidance, location, permitted)), (ENTRIES_KEY, entries))
    try:
        return await services.context.load(location, observing, own=own)
    except ContextKeyError as error:
        raise BoundaryFailure(CONTEXT_INVALID, str(error)) from error


def snapshot_of(record: EpochRecord) -> dict[str, SnapshotEntry]:
    """The stored snapshot. Raises `BoundaryFailure` when it is none: no request is made from it."""
    try:
        return decode_snapshot(record.snapshot)
    except InvalidSnapshotError as error:
        raise BoundaryFailure(CONTEXT_INVALID, str(error)) from error


async def observe(services: Services, view: View, agent: Agent, observing: Observing) -> Admitted:
    """Observe all sources and say what the transaction has to do. Raises `ContextUnavailableError` and `BoundaryFailure`."""
    context = await system_context(services, view, agent, observing)
    try:
        return await _compare(context, view, observing)
    except RenderingError as error:
        raise BoundaryFailure(CONTEXT_INVALID, str(error)) from error


async def _compare(context: SystemContext, view: View, observing: Observing) -> Admitted:
    if view.epoch is None:
        match await context.initialize(observing):
            case Initialized() as initialized:
                return initialized
            case Blocked(reasons=reasons):
                listed = "; ".join(f"{key}: {reason}" for key, reason in reasons.items())
                message = f"The System Context cannot be observed completely, which the first turn needs ({listed})."
                raise ContextUnavailableError(message, keys=list(reasons))
    snapshot = snapshot_of(view.epoch)
    outcome = await (context.replace if view.epoch.epoch.stale else context.reconcile)(snapshot, observing)
    match outcome:
        case Updated() | ReplacementReady():
            return outcome
        case ReplacementBlocked(meanwhile=meanwhile):
            return meanwhile
        case Unchanged():
            return None


async def nearby(services: Services, view: View) -> tuple[Instruction, ...]:
    """The instruction files near what the last turn read. Which of them are new is for the transaction to say."""
    location = view.record.session.location
    found: dict[str, Instruction] = {}
    for path in view.read:
        for one in await services.instructions.nearby(path, location, tuple(found)):
            found.setdefault(one.path, one)
    return tuple(found.values())


def request_of(session_id: SessionId, agent: Agent, model: ModelInfo, tools: ToolSet, *, baseline: str) -> LLMRequest:
    """The request of a turn, but for its messages."""
    return LLMRequest(
        model=model.api_model,
        system=tuple(filter(None, (baseline, agent.system))),
        messages=(),
        tools=tools.definitions,
        tool_choice="auto",
        generation=Generation(),
        options={},
        body={},
        cache_key=_cache_key(session_id),
    )


def baseline_of(admitted: Admitted, epoch: ContextEpoch | None) -> str:
    """The baseline that is in force once the boundary is passed."""
    match admitted:
        case Initialized(baseline=baseline) | ReplacementReady(baseline=baseline):
            return baseline
        case _:
            return "" if epoch is None else epoch.baseline


def invalid_history(error: RequestInvariantError) -> BoundaryFailure:
    """No request can be made: a defect of ours."""
    return BoundaryFailure(PROVIDER_INVALID_REQUEST, f"The history gives no valid request: {error}")


def _read_paths(reader: Reader, session_id: SessionId, record: EpochRecord | None) -> tuple[str, ...]:
    last = reader.last_turn(session_id)
    if last is None or record is None:
        return ()
    if record.epoch.reason == "initial" and last.started_seq <= record.epoch.baseline_seq:
        return ()  # a turn before a first baseline is one before a move
    message = reader.message(session_id, last.assistant_message_id)
    if not isinstance(message, AssistantMessage):
        return ()
    paths: list[str] = []
    for part in message.content:
        match part:
            case ToolPart(name="read", executed=False, state=ToolCompleted(input={"path": str() as path})):
                paths.append(path)
            case _:
                pass
    return tuple(paths)


def _cache_key(session_id: SessionId) -> str:
    """Stable for the session's life, and at most 64 characters (reference 3.4)."""
    bare = session_id.removeprefix("ses_")
    if len(bare) == 64 and all(digit in "0123456789abcdef" for digit in bare):
        return bare
    return session_id
