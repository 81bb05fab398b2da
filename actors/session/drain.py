"""The Session Drain: promotes eligible input and runs Provider Turns until nothing is left to do.

Rules (semantics, "Session Drain" and "Safe Provider-Turn Boundary"):
- One loop. At each boundary all pending steers are promoted in admission order; if there is none and the last turn needs no
  continuation, one queued prompt is. With nothing to promote, nothing to continue and no forced turn, the drain rests.
- Agent, model and location are sampled anew for each turn. The boundary's transaction expects the revision that was sampled;
  if it moved on, the transaction changes nothing and the boundary starts over (ruling A14).
- The drain looks at the doorbell before it reads the inbox, and once more before it gives up ownership.
- A boundary that cannot be passed (no model, unknown agent, location gone) fails the drain and leaves the input pending.
- The request is built from durable state, history up to the boundary's transaction, and leaves after its attempt is recorded.
- A drain never raises: it returns its outcome.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

import structlog
import trio

from ...protocol.llm.invariants import RequestInvariantError, check
from ...protocol.llm.lowering import lower
from ...protocol.llm.request import Generation, LLMRequest
from ...protocol.values.errors import DeclaredError, ModelNotSelectedError, ModelUnavailableError, StorageUnavailableError
from ...protocol.values.event import EventData, PromptPromoted, SyntheticAdded
from ...protocol.values.failure import (
    AGENT_UNKNOWN,
    INTERNAL,
    LOCATION_UNAVAILABLE,
    MODEL_NOT_SELECTED,
    MODEL_UNAVAILABLE,
    PROVIDER_INVALID_REQUEST,
    STORAGE_UNAVAILABLE,
    Failure,
)
from ...protocol.values.ids import MessageId, SessionId
from ...protocol.values.message import Message
from ...protocol.values.model import ModelRef
from ...protocol.values.session import CompletedOutcome, FailedOutcome, InterruptedOutcome, Outcome
from ...storage.journal import SessionRecord, Transaction
from ...storage.reader import Reader
from ..agents import Agent, UnknownAgentError
from ..models.catalog import ModelInfo
from ..storage import Chain
from . import recovery
from .services import Services
from .stopping import StopReason
from .turn import Turn, TurnFailure, Unsettled

CONTINUE_INSTRUCTION = "Continue."
"""What a forced turn says when the last word in history is the assistant's own (ruling C9)."""

_log = structlog.get_logger("steerway.drain")


class DrainOwner(Protocol):
    """The session actor, as its drain sees it. All synchronous."""

    @property
    def has_pending(self) -> bool:
        """Whether any input waits in the inbox."""
        ...

    def looked(self) -> None:
        """The inbox is about to be read; the doorbell falls silent."""
        ...

    def at_rest(self) -> bool:
        """The drain has nothing left to do. True: look again. False: ownership is given up, and the drain must return."""
        ...

    def promoted(self, ids: tuple[MessageId, ...]) -> None:
        """These left the inbox."""
        ...


class _BoundaryFailure(Exception):
    def __init__(self, type: str, message: str) -> None:
        super().__init__(message)
        self.failure = Failure(type=type, message=message)


class _Sample:
    """What a turn will run with, and the revision it was read at."""

    __slots__ = ("agent", "history", "model", "record")

    def __init__(self, record: SessionRecord, agent: Agent, model: ModelInfo, history: tuple[Message, ...]) -> None:
        self.record = record
        self.agent = agent
        self.model = model
        self.history = history


class Drain:
    """Runs once. `unsettled` says whether an earlier end may have left something to settle."""

    def __init__(self, services: Services, session_id: SessionId, owner: DrainOwner, *, forced: bool, unsettled: bool) -> None:
        self._services = services
        self._session_id = session_id
        self._owner = owner
        self._forced = forced
        self._scope = trio.CancelScope()
        self._reason = StopReason()
        self._chain = Chain()
        self.unsettled = unsettled
        """After the end: whether something is left for recovery."""
        self.rested = False
        """After the end: whether ownership was given up through `at_rest` already."""

    def cancel(self, *, shutdown: bool) -> None:
        """Stop at the next await; what was started is settled."""
        self._reason.value = "shutdown" if shutdown else "user"
        self._scope.cancel(reason="interrupted")

    @property
    def chain(self) -> Chain:
        """Where the session's live events go while this drain runs, so that they keep their place."""
        return self._chain

    async def run(self) -> Outcome:
        """See the session through until rest, failure or interrupt."""
        try:
            with self._scope:
                await self._work()
                return CompletedOutcome()
        except (TurnFailure, _BoundaryFailure) as error:
            return FailedOutcome(error=error.failure)
        except Unsettled as error:
            self.unsettled = True
            if self._scope.cancel_called:
                return InterruptedOutcome(reason=self._reason.value)
            return FailedOutcome(error=Failure(type=STORAGE_UNAVAILABLE, message=str(error)))
        except StorageUnavailableError as error:
            self.unsettled = True
            return FailedOutcome(error=Failure(type=STORAGE_UNAVAILABLE, message=error.message))
        except DeclaredError as error:
            return FailedOutcome(error=Failure(type=INTERNAL, message=error.message))
        except Exception as error:
            self.unsettled = True
            reference = self._services.ids.event()
            _log.error("drain crashed", session_id=self._session_id, reference=reference, exc_info=error)
            message = f"The session's work failed inside the runtime (reference {reference})."
            return FailedOutcome(error=Failure(type=INTERNAL, message=message))
        return InterruptedOutcome(reason=self._reason.value)

    async def _work(self) -> None:
        if self.unsettled:
            await recovery.settle(self._services, self._session_id)
            self.unsettled = False
        forced, continuing = self._forced, False
        while True:
            self._owner.looked()
            sample = None
            if forced or continuing or self._owner.has_pending:
                sample = await self._boundary(forced=forced, continuing=continuing)
            if sample is None:
                if self._owner.at_rest():
                    continue
                self.rested = True
                return
            forced = False
            continuing = await self._turn(sample)

    # --- the Safe Provider-Turn Boundary -----------------------------------------------------------------------------

    async def _boundary(self, *, forced: bool, continuing: bool) -> _Sample | None:
        """Sample, promote, and read the history; None when there is nothing to answer."""
        storage = self._services.storage
        while True:
            record, history = await storage.read(_record_and_history(self._session_id, with_history=forced))
            agent, model = await self._sample(record)
            nudge = forced and self._needs_a_word(history, model.ref)
            promotion = _Promotion(self._services, self._session_id, record.revision, forced, continuing, nudge)
            promoted = await storage.commit(promotion)
            self._owner.promoted(promotion.promoted)
            if promoted is None:
                continue
            if not promoted:
                return None
            record, history = await storage.read(_record_and_history(self._session_id, with_history=True))
            return _Sample(record, agent, model, history)

    async def _sample(self, record: SessionRecord) -> tuple[Agent, ModelInfo]:
        session = record.session
        try:
            agent = self._services.agents.resolve(session.agent)
            model = self._services.models.resolve(session.model or agent.model)
        except UnknownAgentError as error:
            raise _BoundaryFailure(AGENT_UNKNOWN, str(error)) from error
        except ModelUnavailableError as error:
            raise _BoundaryFailure(MODEL_UNAVAILABLE, error.message) from error
        except ModelNotSelectedError as error:
            raise _BoundaryFailure(MODEL_NOT_SELECTED, error.message) from error
        directory = session.location.directory
        if not await self._services.blocking.run(lambda: os.path.isdir(directory)):
            raise _BoundaryFailure(LOCATION_UNAVAILABLE, f"The session's directory {directory} is not there any more.")
        return agent, model

    @staticmethod
    def _needs_a_word(history: tuple[Message, ...], target: ModelRef) -> bool:
        messages = lower(history, target)
        return not messages or messages[-1].__struct_config__.tag == "assistant"

    # --- the turn ----------------------------------------------------------------------------------------------------

    async def _turn(self, sample: _Sample) -> bool:
        services, session = self._services, sample.record.session
        tools = services.tools.materialise(session.location, sample.agent.name, sample.agent.rules)
        request = LLMRequest(
            model=sample.model.api_model,
            system=(sample.agent.system,) if sample.agent.system else (),
            messages=lower(sample.history, sample.model.ref),
            tools=tools.definitions,
            tool_choice="auto",
            generation=Generation(),
            options={},
            body={},
            cache_key=_cache_key(self._session_id),
        )
        try:
            check(request.messages)
        except RequestInvariantError as error:
            raise _BoundaryFailure(PROVIDER_INVALID_REQUEST, f"The history gives no valid request: {error}") from error
        turn = Turn(
            services,
            self._session_id,
            self._chain,
            assistant_message_id=services.ids.message(),
            agent=sample.agent.name,
            model=sample.model,
            location=session.location,
            tools=tools,
        )
        return await turn.run(request, self._reason)


class _Promotion:
    """The boundary's transaction. True: there is a turn to run. False: nothing to answer. None: sampled values are stale."""

    def __init__(
        self, services: Services, session_id: SessionId, revision: int, forced: bool, continuing: bool, nudge: bool
    ) -> None:
        self._services = services
        self._session_id = session_id
        self._revision = revision
        self._forced = forced
        self._continuing = continuing
        self._nudge = nudge
        self.promoted: tuple[MessageId, ...] = ()

    def __call__(self, transaction: Transaction) -> bool | None:
        if transaction.session(self._session_id).revision != self._revision:
            return None
        pending = transaction.pending(self._session_id)
        chosen = [prompt for prompt in pending if prompt.delivery == "steer"]
        if not chosen and not self._continuing:
            chosen = pending[:1]
        if not chosen and not self._continuing and not self._forced:
            return False
        data: list[EventData] = [
            PromptPromoted(
                message_id=prompt.id,
                prompt=prompt.prompt,
                delivery=prompt.delivery,
                admitted=prompt.created,
                metadata=prompt.metadata,
            )
            for prompt in chosen
        ]
        if not chosen and self._nudge:
            data.append(SyntheticAdded(message_id=self._services.ids.message(), text=CONTINUE_INSTRUCTION))
        if data:
            transaction.append(self._session_id, [self._services.new_event(item) for item in data])
        self.promoted = tuple(prompt.id for prompt in chosen)
        return True


def _record_and_history(
    session_id: SessionId, *, with_history: bool
) -> Callable[[Reader], tuple[SessionRecord, tuple[Message, ...]]]:
    def query(reader: Reader) -> tuple[SessionRecord, tuple[Message, ...]]:
        return reader.record(session_id), reader.history(session_id) if with_history else ()

    return query


def _cache_key(session_id: SessionId) -> str:
    """Stable for the session's life, and at most 64 characters (reference 3.4)."""
    bare = session_id.removeprefix("ses_")
    if len(bare) == 64 and all(digit in "0123456789abcdef" for digit in bare):
        return bare
    return session_id
