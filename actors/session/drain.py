"""The Session Drain: promotes eligible input and runs Provider Turns until nothing is left to do.

Rules (semantics, "Session Drain" and "Safe Provider-Turn Boundary"):
- One loop. At each boundary all pending steers are promoted in admission order; if there is none and the last turn needs no
  continuation, one queued prompt is. With nothing to promote, nothing to continue and no forced turn, the drain rests.
- Agent, model and location are sampled anew for each turn. The boundary's transaction expects the revision that was sampled;
  if it moved on, the transaction changes nothing and the boundary starts over (ruling A14).
- The drain looks at the doorbell before it reads the inbox, and once more before it gives up ownership.
- A boundary that cannot be passed (no model, unknown agent, location gone) fails the drain and leaves the input pending.
- The request is built from durable state and leaves after its attempt is recorded. Promoted input resets the allowance of
  steps; retries consume none.
- After a cut answer the drain goes on with a new turn, within the same budget of retries.
- A drain never raises: it returns its outcome.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Literal, Protocol

import structlog
import trio

from ...protocol.llm.invariants import RequestInvariantError, check
from ...protocol.llm.lowering import lower
from ...protocol.llm.request import AssistantMessage, Generation, LLMRequest
from ...protocol.values.errors import (
    DeclaredError,
    ModelNotSelectedError,
    ModelUnavailableError,
    StorageUnavailableError,
)
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
from ...protocol.values.session import CompletedOutcome, FailedOutcome, InterruptedOutcome, Outcome
from ...storage.journal import SessionRecord
from ...storage.reader import Reader
from ..agents import Agent, UnknownAgentError
from ..models.catalog import ModelInfo
from . import recovery
from .budget import over_budget
from .journal import SessionJournal
from .requests import Requests
from .retry import RetryBudget
from .services import Services
from .transactions import CONTINUE_INSTRUCTION, CUT_INSTRUCTION, Promotion
from .turn import Turn, TurnFailure, TurnStopped, Unsettled

_log = structlog.get_logger("steerway.drain")


class DrainOwner(Protocol):
    """The session actor, as its drain sees it. All synchronous."""

    @property
    def has_pending(self) -> bool:
        """Whether any input waits in the inbox."""
        ...

    @property
    def steer_pending(self) -> bool:
        """Whether a steer waits in the inbox."""
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

    def turn_ended(self) -> None:
        """A turn has its terminal event; somebody may wait for it."""
        ...


class _BoundaryFailure(Exception):
    def __init__(self, type: str, message: str) -> None:
        super().__init__(message)
        self.failure = Failure(type=type, message=message)


class _Sample:
    """What a turn will run with, and the history it answers."""

    __slots__ = ("agent", "history", "last_step", "model", "record")

    def __init__(
        self, record: SessionRecord, agent: Agent, model: ModelInfo, history: tuple[Message, ...], *, last_step: bool
    ) -> None:
        self.record = record
        self.agent = agent
        self.model = model
        self.history = history
        self.last_step = last_step


class Drain:
    """Runs once. `unsettled` says whether an earlier end may have left something to settle."""

    def __init__(
        self,
        services: Services,
        session_id: SessionId,
        owner: DrainOwner,
        requests: Requests,
        *,
        forced: bool,
        unsettled: bool,
    ) -> None:
        self._services = services
        self._session_id = session_id
        self._owner = owner
        self._requests = requests
        self._forced = forced
        self._scope = trio.CancelScope()
        self._budget = RetryBudget(services.random)
        self._step = 0
        self._switched = trio.Event()
        self.stop_reason: Literal["user", "shutdown"] = "user"
        self.journal = SessionJournal(services, session_id)
        """Where the session's live events go while this drain runs, so that they keep their place."""
        self.turn: Turn | None = None
        """The running turn."""
        self.unsettled = unsettled
        """After the end: whether something is left for recovery."""
        self.rested = False
        """After the end: whether ownership was given up through `at_rest` already."""

    def cancel(self, *, shutdown: bool) -> None:
        """Stop at the next await; what was started is settled."""
        self.stop_reason = "shutdown" if shutdown else "user"
        self._scope.cancel(reason="interrupted")

    def switched(self) -> None:
        """Another model was selected; a back-off ends."""
        self._switched.set()

    async def run(self) -> Outcome:
        """See the session through until rest, failure or interrupt."""
        try:
            with self._scope:
                await self._work()
                return CompletedOutcome()
        except TurnStopped:
            return InterruptedOutcome(reason="user")
        except (TurnFailure, _BoundaryFailure) as error:
            return FailedOutcome(error=error.failure)
        except Unsettled as error:
            self.unsettled = True
            if self._scope.cancel_called:
                return InterruptedOutcome(reason=self.stop_reason)
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
        finally:
            self.turn = None
        return InterruptedOutcome(reason=self.stop_reason)

    async def _work(self) -> None:
        if self.unsettled:
            await recovery.settle(self._services, self._session_id)
            self.unsettled = False
        forced, continuing, instruction = self._forced, False, None
        while True:
            self._owner.looked()
            sample = None
            if forced or continuing or self._owner.has_pending:
                sample = await self._boundary(forced=forced, continuing=continuing, instruction=instruction)
            if sample is None:
                if self._owner.at_rest():
                    continue
                self.rested = True
                return
            forced, instruction = False, None
            try:
                continuing = await self._turn(sample)
            except TurnFailure as failure:
                if failure.superseded:
                    continuing = True
                elif failure.again is not None:
                    with trio.move_on_after(failure.again):
                        await self._switched.wait()
                    continuing, instruction = True, CUT_INSTRUCTION
                else:
                    raise
                self._step -= 1  # a retry uses up no step, also where it is a turn of its own
            finally:
                self._owner.turn_ended()

    # --- what a turn has to know (Situation) -------------------------------------------------------------------------

    @property
    def steer_pending(self) -> bool:
        """Whether a steer waits for the next boundary."""
        return self._owner.steer_pending

    @property
    def model_was_switched(self) -> bool:
        """Whether another model was selected since the turn was sampled."""
        return self._switched.is_set()

    async def model_switched(self) -> None:
        """Until another model is selected."""
        await self._switched.wait()

    # --- the Safe Provider-Turn Boundary -----------------------------------------------------------------------------

    async def _boundary(self, *, forced: bool, continuing: bool, instruction: str | None) -> _Sample | None:
        """Sample, promote, and read the history; None when there is nothing to answer."""
        storage = self._services.storage
        while True:
            self._switched = trio.Event()
            record, history = await storage.read(_record_and_history(self._session_id, with_history=forced))
            agent, model = await self._sample(record)
            if forced and self._assistant_had_the_last_word(history, model):
                instruction = CONTINUE_INSTRUCTION
            promotion = Promotion(
                self._services,
                self._session_id,
                revision=record.revision,
                forced=forced,
                continuing=continuing,
                instruction=instruction,
                step=self._step,
                steps=agent.steps,
            )
            promoted = await storage.commit(promotion)
            self._owner.promoted(promotion.promoted)
            if promoted is None:
                continue
            if not promoted:
                return None
            self._step = promotion.step
            record, history = await storage.read(_record_and_history(self._session_id, with_history=True))
            return _Sample(record, agent, model, history, last_step=promotion.last_step)

    async def _sample(self, record: SessionRecord) -> tuple[Agent, ModelInfo]:
        session = record.session
        if (spent := over_budget(session)) is not None:
            raise _BoundaryFailure(spent.type, spent.message)
        try:
            agent = self._services.agents.resolve(session.agent)
            model = self._services.models.resolve(self._budget.effective(session.model or agent.model))
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
    def _assistant_had_the_last_word(history: tuple[Message, ...], model: ModelInfo) -> bool:
        messages = lower(history, model.ref)
        return not messages or isinstance(messages[-1], AssistantMessage)

    # --- the turn ----------------------------------------------------------------------------------------------------

    async def _turn(self, sample: _Sample) -> bool:
        services, session = self._services, sample.record.session
        tools = services.tools.materialise(session.location, sample.agent.name, sample.agent.rules)
        request = LLMRequest(
            model=sample.model.api_model,
            system=(sample.agent.system,) if sample.agent.system else (),
            messages=lower(sample.history, sample.model.ref),
            tools=tools.definitions,
            tool_choice="none" if sample.last_step else "auto",
            generation=Generation(),
            options={},
            body={},
            cache_key=_cache_key(self._session_id),
        )
        try:
            check(request.messages)
        except RequestInvariantError as error:
            raise _BoundaryFailure(PROVIDER_INVALID_REQUEST, f"The history gives no valid request: {error}") from error
        self.turn = Turn(
            services,
            self._session_id,
            self.journal,
            self._requests,
            self,
            self._budget,
            assistant=services.ids.message(),
            agent=sample.agent,
            model=sample.model,
            location=session.location,
            tools=tools,
            last_step=sample.last_step,
        )
        return await self.turn.run(request)


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
