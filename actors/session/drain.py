"""The Session Drain: promotes eligible input and runs Provider Turns until nothing is left to do.

Rules (semantics, "Session Drain" and "Safe Provider-Turn Boundary"):
- One loop. At each boundary all pending steers are promoted in admission order; if there is none and the last turn needs no
  continuation, one queued prompt is. With nothing to promote, nothing to continue and no forced turn, the drain rests.
- Agent, model and location are sampled anew for each turn. The boundary's transaction expects the revision that was sampled;
  if it moved on, the transaction changes nothing and the boundary starts over (ruling A14).
- The drain looks at the doorbell before it reads the inbox, and once more before it gives up ownership.
- A boundary that cannot be passed (no model, unknown agent, location gone, incomplete first baseline) fails the drain and
  leaves the input pending.
- A control item at the head of the inbox is done before the next boundary; input behind it waits.
- A request that would not fit, or that the provider found too large, is made smaller once; then the same step begins again,
  without promotion.
- The request is built from durable state, of which a drain knows what it has read before (`History`), and leaves after its
  attempt is recorded: with the promotions where it surely fits. Promoted input resets the allowance of
  steps; retries consume none.
- After a cut answer the drain goes on with a new turn, within the same budget of retries.
- A drain never raises: it returns its outcome.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

import trio
from msgspec import structs

from ...protocol.llm.invariants import RequestInvariantError
from ...protocol.llm.request import LLMRequest
from ...protocol.llm.transcript import estimate, tokens
from ...protocol.values.errors import ContextUnavailableError, SessionNotFoundError, StorageUnavailableError
from ...protocol.values.event import TurnStarted
from ...protocol.values.failure import CONTEXT_UNAVAILABLE, INTERNAL, STORAGE_UNAVAILABLE, Failure
from ...protocol.values.ids import MessageId, SessionId
from ...protocol.values.location import Location
from ...protocol.values.prompt import CompactControl, MoveControl
from ...protocol.values.session import CompletedOutcome, FailedOutcome, InterruptedOutcome, Outcome
from ...storage.history import Stretch
from ...storage.reader import Reader
from ...storage.sessions import SessionRecord
from ..agents import Agent
from ..context.observing import Observing
from ..logs import Logger
from ..models.catalog import ModelInfo
from ..tools.registry import ToolSet
from . import recovery
from .boundary import BoundaryFailure, baseline_of, invalid_history, nearby, observe, request_of, select, view_of
from .compaction import Compactor, ceiling
from .controls import Delivery
from .history import LONG_STRETCH, History
from .journal import SessionJournal
from .promotion import CONTINUE_INSTRUCTION, CUT_INSTRUCTION, Promotion
from .requests import Requests
from .retry import RetryBudget
from .services import Services
from .transactions import InterruptMark
from .turn import Turn, TurnFailure, TurnStopped, Unsettled

_log = Logger("steerway.drain")


class DrainOwner(Protocol):
    """The session actor, as its drain sees it. All synchronous."""

    @property
    def has_pending(self) -> bool:
        """Whether any input waits in the inbox."""
        ...

    @property
    def steer_pending(self) -> bool:
        """Whether a steer waits in the inbox, in front of all control items."""
        ...

    @property
    def control_first(self) -> bool:
        """Whether a control item is the first to wait."""
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
        self._history = services.histories.take(session_id)
        self._switched = trio.Event()
        self.stop_reason: Literal["user", "shutdown"] = "shutdown"
        """A cancellation that nobody asked this drain for is the end of its actor, not a user's interrupt."""
        self.journal = SessionJournal(services, session_id)
        """Where the session's live events go while this drain runs, so that they keep their place."""
        self._compactor = Compactor(services, session_id, self.journal, lambda id: owner.promoted((id,)))
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
        except (TurnFailure, BoundaryFailure) as error:
            return FailedOutcome(error=error.failure)
        except ContextUnavailableError as error:
            return FailedOutcome(error=Failure(type=CONTEXT_UNAVAILABLE, message=error.message, fields=error.fields))
        except Unsettled as error:
            self.unsettled = True
            if self._scope.cancel_called:
                return InterruptedOutcome(reason=self.stop_reason)
            return FailedOutcome(error=Failure(type=STORAGE_UNAVAILABLE, message=str(error)))
        except StorageUnavailableError as error:
            self.unsettled = True
            return FailedOutcome(error=Failure(type=STORAGE_UNAVAILABLE, message=error.message))
        except Exception as error:
            self.unsettled = True
            reference = self._services.ids.event()
            _log.error("drain crashed", session_id=self._session_id, reference=reference, exc_info=error)
            message = f"The session's work failed inside the runtime (reference {reference})."
            return FailedOutcome(error=Failure(type=INTERNAL, message=message))
        finally:
            self.turn = None
            if self._history is not None:
                self._services.histories.put(self._session_id, self._history)
        if self.stop_reason == "user":
            with trio.CancelScope(shield=True):
                await self._mark_interrupted()
        return InterruptedOutcome(reason=self.stop_reason)

    async def _mark_interrupted(self) -> None:
        """Between turns there is nothing that could end as interrupted, yet the work a user stopped must not come back."""
        try:
            record = await self._services.storage.read(self._record)
            if record.unanswered_seq is not None:
                agent, model = await select(self._services, record, self._budget)
                mark = InterruptMark(self._services, self._session_id, agent.name, model.ref)
                await self._services.storage.commit(mark)
        except BoundaryFailure:
            pass  # nothing here can be a turn at all, also not one that is over
        except (StorageUnavailableError, SessionNotFoundError) as error:
            _log.warning("an interrupt was not recorded", session_id=self._session_id, error=str(error))

    async def _work(self) -> None:
        if self.unsettled:
            await recovery.settle(self._services, self._session_id)
            self.unsettled = False
        goes_on = _GoesOn(forced=self._forced)
        while True:
            self._owner.looked()
            if self._owner.control_first and not goes_on.hold:
                await self._deliver()
                continue
            passed = None
            if goes_on or self._owner.has_pending:
                passed = await self._boundary(goes_on)
            if passed is None:
                if self._owner.at_rest():
                    continue
                self.rested = True
                return
            goes_on = await self._step_of(passed, made_smaller=goes_on.hold)

    async def _step_of(self, passed: _Passed, *, made_smaller: bool) -> _GoesOn:
        """Make the request fit, or run its turn; what follows from it."""
        turn = self._turn(passed, recoverable=not made_smaller)
        try:
            request = self._request(passed)
        except BoundaryFailure as failure:
            if passed.begun is not None:
                await turn.refuse(failure.failure)
            raise
        if passed.begun is None and not made_smaller and await self._relieved(passed):
            return _GoesOn(continuing=True, hold=True)
        self.turn = turn
        try:
            return _GoesOn(continuing=await turn.run(request))
        except TurnFailure as failure:
            if failure.superseded:
                self._step -= 1  # a retry uses up no step, also where it is a turn of its own
                return _GoesOn(continuing=True)
            if failure.again:
                self._step -= 1
                return _GoesOn(continuing=True, instruction=CUT_INSTRUCTION)
            if failure.overflow and not made_smaller and await self._compactor.recover(passed.model):
                return _GoesOn(continuing=True, hold=True)
            raise
        finally:
            self._owner.turn_ended()

    async def _relieved(self, passed: _Passed) -> bool:
        if passed.room is None or passed.room >= 0:
            return False
        self._history = None  # pruning changes what was taken up
        return await self._compactor.relieve(-passed.room, passed.model)

    async def _deliver(self) -> None:
        """Do what the control item at the head of the inbox asks."""
        match await self._services.storage.commit(Delivery(self._services, self._session_id)):
            case MoveControl(id=id):
                self._owner.promoted((id,))
            case CompactControl(id=id):
                record = await self._services.storage.read(self._record)
                try:
                    _, model = await select(self._services, record, self._budget)
                except BoundaryFailure as error:
                    await self._compactor.refuse(id, error.failure)
                else:
                    await self._compactor.summarise("manual", model, id)
            case None:
                pass

    def _record(self, reader: Reader) -> SessionRecord:
        return reader.record(self._session_id)

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

    async def _boundary(self, goes_on: _GoesOn) -> _Passed | None:
        """Sample, observe, promote, and take up what is new in history; None when there is nothing to answer."""
        services, session_id, storage = self._services, self._session_id, self._services.storage
        instruction = goes_on.instruction
        while True:
            self._switched = trio.Event()
            known = None if self._history is None else self._history.mark
            view = await storage.read(view_of(session_id, known))
            agent, model = await select(services, view.record, self._budget)
            history = await self._follow(view.stretch, model)
            if goes_on.forced and history.assistant_had_the_last_word:
                instruction = CONTINUE_INSTRUCTION
            tools = services.tools.materialise(view.record.session.location, agent.name, agent.rules)
            admitted = await observe(services, view, agent, Observing(diagnose=services.diagnose))
            frame = request_of(session_id, agent, model, tools, baseline=baseline_of(admitted, view.active))
            assistant = services.ids.message()
            promotion = Promotion(
                services,
                session_id,
                revision=view.record.revision,
                epoch=view.active,
                admitted=admitted,
                nearby=await nearby(services, view),
                forced=goes_on.forced,
                continuing=goes_on.continuing,
                hold=goes_on.hold,
                instruction=instruction,
                step=self._step,
                steps=agent.steps,
                known=history.mark,
                room=None if goes_on.hold else self._room(model, frame, history),
                started=TurnStarted(assistant_message_id=assistant, agent=agent.name, model=model.ref, attempt=1),
            )
            promoted = await storage.commit(promotion)
            self._owner.promoted(promotion.promoted)
            if promoted is None:
                continue
            if not promoted:
                return None
            self._step = promotion.step
            if not promotion.begun:
                stretch = promotion.stretch or (await storage.read(view_of(session_id, history.mark))).stretch
                history = await self._follow(stretch, model)
            return _Passed(
                view.record.session.location,
                agent,
                model,
                tools,
                structs.replace(frame, tool_choice="none") if promotion.last_step else frame,
                assistant,
                room=self._room(model, frame, history),
                last_step=promotion.last_step,
                begun=promotion.stretch if promotion.begun else None,
            )

    def _room(self, model: ModelInfo, frame: LLMRequest, history: History) -> int | None:
        """How many tokens may be added to the history before something is done about it; None without a limit."""
        limit = ceiling(self._services, model)
        return None if limit is None else limit - estimate(frame) - tokens(history.size)

    async def _follow(self, stretch: Stretch, model: ModelInfo) -> History:
        """The drain's history, made for that model, with the stretch taken up."""
        history = self._history
        if history is None or not history.serves(model):
            history = self._history = History(self._services.models, model)
        if not history.follows(stretch):
            stretch = await self._services.storage.read(lambda reader: reader.stretch(self._session_id, None))
        try:
            if len(stretch.messages) > LONG_STRETCH:
                await self._services.blocking.run(lambda: history.extend(stretch))
            else:
                history.extend(stretch)
        except RequestInvariantError as error:
            raise invalid_history(error) from error
        return history

    # --- the turn ----------------------------------------------------------------------------------------------------

    def _request(self, passed: _Passed) -> LLMRequest:
        """The request of the turn, from durable state. Raises `BoundaryFailure`."""
        history = self._history
        if history is None:
            raise AssertionError("a boundary that was passed has a history")
        try:
            if passed.begun is not None:
                history.extend(passed.begun)
            messages = history.messages()
        except RequestInvariantError as error:
            raise invalid_history(error) from error
        return structs.replace(passed.frame, messages=messages)

    def _turn(self, passed: _Passed, *, recoverable: bool) -> Turn:
        services = self._services
        return Turn(
            services,
            self._session_id,
            self.journal,
            self._requests,
            self,
            self._budget,
            assistant=passed.assistant,
            agent=passed.agent,
            model=passed.model,
            location=passed.location,
            tools=passed.tools,
            last_step=passed.last_step,
            recoverable=recoverable and services.compaction.auto,
            begun=passed.begun is not None,
            conversation=None if self._history is None else self._history.conversation,
        )


class _Passed(NamedTuple):
    """A boundary that was passed: what its turn runs with.

    `frame` is the request without its messages, `room` the tokens that might be added to the history; it may be negative.
    `begun`: the first attempt is recorded, and this is what the history has to take up before its request. No await may come
    between that record and the turn, which sees to its end.
    """

    location: Location
    agent: Agent
    model: ModelInfo
    tools: ToolSet
    frame: LLMRequest
    assistant: MessageId
    room: int | None
    last_step: bool
    begun: Stretch | None


class _GoesOn(NamedTuple):
    """What the next boundary is there for, beside the inbox.

    `hold`: the same step of the turn before, whose request was made smaller; nothing is promoted.
    """

    forced: bool = False
    continuing: bool = False
    hold: bool = False
    instruction: str | None = None

    def __bool__(self) -> bool:
        return self.forced or self.continuing
