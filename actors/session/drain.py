"""The Session Drain: promotes eligible input and runs Provider Turns until nothing is left to do.

Rules (semantics, "Session Drain" and "Safe Provider-Turn Boundary"):
- One loop. At each boundary all pending steers are promoted in admission order; if there is none and the last turn needs no
  continuation, one queued prompt is. With nothing to promote, nothing to continue and no forced turn, the drain rests.
- The drain looks at the doorbell before it reads the inbox, and once more before it gives up ownership.
- A boundary that cannot be passed (no model, unknown agent, location gone, incomplete first baseline) fails the drain and
  leaves the input pending.
- A control item at the head of the inbox is done before the next boundary; input behind it waits.
- A request that would not fit, or that the provider found too large, is made smaller once; then the same step begins again,
  without promotion.
- A request that the provider refused as invalid is made again without what of its history may be the reason, where there is
  something to leave out: the provider's own metadata first, then media.
- The request leaves after its attempt is recorded. Promoted input resets the allowance of steps; retries consume none.
- After a cut answer the drain goes on with a new turn, within the same budget of retries.
- A drain never raises: it returns its outcome.
"""

from __future__ import annotations

from typing import Literal, Protocol

import trio

from ...protocol.values.errors import ContextUnavailableError, SessionNotFoundError, StorageUnavailableError
from ...protocol.values.failure import CONTEXT_UNAVAILABLE, INTERNAL, STORAGE_UNAVAILABLE, Failure
from ...protocol.values.ids import MessageId, SessionId
from ...protocol.values.prompt import CompactControl, MoveControl
from ...protocol.values.session import CompletedOutcome, FailedOutcome, InterruptedOutcome, Outcome
from ...storage.reader import Reader
from ...storage.sessions import SessionRecord
from ..logs import Logger
from . import recovery
from .boundary import BoundaryFailure, select
from .compaction import Compactor
from .controls import Delivery
from .journal import SessionJournal
from .passage import GoesOn, Passage, Passed
from .promotion import CUT_INSTRUCTION
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
        self._passage = Passage(services, session_id, self._budget, owner.promoted)
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
        self._passage.switched.set()

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
            if self.unsettled:
                self._passage.forget()
            self._passage.rest()
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
        goes_on = GoesOn(forced=self._forced)
        while True:
            self._owner.looked()
            if self._owner.control_first and not goes_on.hold:
                await self._deliver()
                continue
            passed = None
            if goes_on or self._owner.has_pending:
                passed = await self._passage.through(goes_on, self._step)
            if passed is None:
                self._passage.rest()  # before somebody else can own the session
                if self._owner.at_rest():
                    continue
                self.rested = True
                return
            goes_on = await self._step_of(passed, made_smaller=goes_on.hold)

    async def _step_of(self, passed: Passed, *, made_smaller: bool) -> GoesOn:
        """Make the request fit, or run its turn; what follows from it."""
        self._step = passed.step
        turn = self._turn(passed, recoverable=not made_smaller)
        try:
            request = self._passage.request(passed)
        except BoundaryFailure as failure:
            if passed.begun is not None:
                await turn.refuse(failure.failure)
            raise
        if passed.excess > 0 and not made_smaller and await self._relieved(passed):
            return GoesOn(continuing=True, hold=True)
        self.turn = turn
        try:
            return GoesOn(continuing=await turn.run(request))
        except TurnFailure as failure:
            if failure.superseded:
                self._step -= 1  # a retry uses up no step, also where it is a turn of its own
                return GoesOn(continuing=True)
            if failure.again:
                self._step -= 1
                return GoesOn(continuing=True, instruction=CUT_INSTRUCTION)
            if failure.refused:
                self._passage.concede()
                return GoesOn(continuing=True, hold=True)
            if failure.overflow and not made_smaller and await self._compactor.recover(passed.model):
                return GoesOn(continuing=True, hold=True)
            raise
        finally:
            self._owner.turn_ended()

    async def _relieved(self, passed: Passed) -> bool:
        """Whether something was done about a request that is too large."""
        relieved = True  # or an interrupt came behind the commit, and nobody is told
        try:
            relieved = await self._compactor.relieve(passed.excess, passed.model)
        finally:
            if relieved:
                self._passage.forget()  # pruning changes what was taken up
        return relieved

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
    def may_concede(self) -> bool:
        """Whether something can be left out of a request that the provider refused."""
        return self._passage.may_concede

    @property
    def model_was_switched(self) -> bool:
        """Whether another model was selected since the turn was sampled."""
        return self._passage.switched.is_set()

    async def model_switched(self) -> None:
        """Until another model is selected."""
        await self._passage.switched.wait()

    # --- the turn ----------------------------------------------------------------------------------------------------

    def _turn(self, passed: Passed, *, recoverable: bool) -> Turn:
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
            conversation=self._passage.conversation,
        )
