"""One Provider Turn: its attempts, its local calls, and exactly one terminal event.

Long, because all ways in which a turn can end have to be seen together to be one.

Rules (semantics, "Provider turn"; ruling B1):
- An attempt is recorded before its request leaves. Before any output, a retryable failure is followed by another attempt of the
  same turn with the same request; the delay is a durable event. A model switch ends the delay at once; if it, or a steer, is
  there when the delay is over, the turn ends as `superseded` and a new boundary carries it. So it does at once where a fallback
  takes the place of an overloaded model. A cut answer is kept: its parts end at once, the turn when the delay is over, and a
  new turn goes on from it.
- The tool of a call starts after its call is committed. Calls run concurrently, at most `MAX_CONCURRENT_CALLS`, the rest wait;
  all settle before the terminal event.
- Once a tool succeeded, bounding its output and recording its one settlement form a completion region: shielded, and bounded
  in time; when the time runs out the lossy success is recorded, never a failure.
- A turn continues when it had local calls, or when the provider paused in the midst of its own.
- However the turn ends (provider, defect, interrupt, a declined permission), open fragments end with what arrived, calls
  without a settlement fail, and one terminal event follows, in one transaction. If even that cannot be committed, `Unsettled`
  says so and recovery does it before the next drain (ruling A7).
"""

from __future__ import annotations

from typing import Literal, Protocol

import trio
from msgspec import structs

from ...protocol.llm import events as llm
from ...protocol.llm.adapter import Conversation
from ...protocol.llm.request import LLMRequest
from ...protocol.values.errors import StorageUnavailableError
from ...protocol.values.event import (
    EventData,
    RetryScheduled,
    ToolFailed,
    ToolSucceeded,
    TurnCompleted,
    TurnFailed,
    TurnInterrupted,
    TurnStarted,
)
from ...protocol.values.failure import (
    INTERNAL,
    PROVIDER_CONTENT_FILTER,
    PROVIDER_CONTEXT_OVERFLOW,
    PROVIDER_INCOMPLETE,
    PROVIDER_INVALID_OUTPUT,
    PROVIDER_INVALID_REQUEST,
    PROVIDER_OVERLOADED,
    PROVIDER_UNKNOWN,
    STORAGE_UNAVAILABLE,
    SUPERSEDED,
    TOOL_DISABLED,
    TOOL_RESULT_MISSING,
    Failure,
)
from ...protocol.values.ids import MessageId, SessionId
from ...protocol.values.location import Location
from ...protocol.values.model import NO_TOKENS
from ...protocol.values.tool import TextContent
from ...storage.leftovers import INTERRUPTED_CALL
from ..agents import Agent
from ..logs import Logger
from ..mailbox import Answer
from ..models.catalog import ModelInfo
from ..tools.registry import ToolSet
from ..tools.settlement import Failed, Succeeded
from ..tools.tool import DeclinedError, ToolContext
from .journal import SessionJournal
from .requests import Requests
from .response import Call, Response
from .retry import RetryBudget
from .services import Services

MAX_CONCURRENT_CALLS = 8
COMPLETION_SECONDS = 5

MISSING_RESULT = Failure(type=TOOL_RESULT_MISSING, message="The provider did not return a result for its own tool.")
EMPTY_ANSWER = Failure(type=PROVIDER_INVALID_OUTPUT, message="The provider's answer was empty.")

_log = Logger("steerway.turn")


class TurnFailure(Exception):
    """The turn ended durably in an error.

    `again`: the answer was cut, its back-off is over, and a new turn should go on from it.
    `superseded`: a new boundary should follow at once. `overflow`: the request was too large, nothing was answered, and the
    turn goes on if history can be made smaller. `refused`: it was no valid request to the provider, nothing was answered, and
    the turn goes on without what may be the reason.
    """

    def __init__(
        self,
        failure: Failure,
        *,
        again: bool = False,
        superseded: bool = False,
        overflow: bool = False,
        refused: bool = False,
    ) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.again = again
        self.superseded = superseded
        self.overflow = overflow
        self.refused = refused


class TurnStopped(Exception):
    """Somebody declined what the turn asked for; it ended durably as interrupted, and the drain stops."""


class Unsettled(Exception):
    """The turn's terminal event could not be committed; recovery has to."""


class Situation(Protocol):
    """What a turn has to know of its drain."""

    @property
    def stop_reason(self) -> Literal["user", "shutdown"]:
        """Why the drain is being stopped, once it is."""
        ...

    @property
    def steer_pending(self) -> bool:
        """Whether a steer waits for the next boundary."""
        ...

    @property
    def may_concede(self) -> bool:
        """Whether something can be left out of a request that the provider refused."""
        ...

    async def model_switched(self) -> None:
        """Until another model than this turn's was selected."""
        ...

    @property
    def model_was_switched(self) -> bool: ...


class Turn:
    """Runs once."""

    def __init__(
        self,
        services: Services,
        session_id: SessionId,
        journal: SessionJournal,
        requests: Requests,
        situation: Situation,
        budget: RetryBudget,
        *,
        assistant: MessageId,
        agent: Agent,
        model: ModelInfo,
        location: Location,
        tools: ToolSet,
        last_step: bool,
        recoverable: bool,
        begun: bool,
        conversation: Conversation | None,
    ) -> None:
        """`begun`: the first attempt is in the log. `conversation`: what the adapter remembers of earlier requests."""
        self._services = services
        self._session_id = session_id
        self._journal = journal
        self._requests = requests
        self._situation = situation
        self._budget = budget
        self._agent = agent
        self._model = model
        self._location = location
        self._tools = tools
        self._last_step = last_step
        self._recoverable = recoverable
        self.assistant = assistant
        self._response = Response(journal, assistant)
        self._conversation = conversation
        self._was_begun = begun
        self._recorded: Answer[None] | None = None
        self._limit = trio.Semaphore(MAX_CONCURRENT_CALLS)
        self._declined = False
        self._attempt_scope = trio.CancelScope()
        self._used = NO_TOKENS
        self._paid = 0.0
        """What attempts used and cost that were given up for another one. Apart, since each has its own price tier."""

    def texts(self) -> dict[str, str]:
        """The text so far of every fragment, by part or call id."""
        return self._response.texts()

    async def run(self, request: LLMRequest) -> bool:
        """See the request through. True when history continues with another turn.

        Raises `StorageUnavailableError` when the attempt could not be recorded (nothing was sent), `TurnFailure` or
        `TurnStopped` when the turn ended durably that way, `Unsettled` when its end could not be recorded. When cancelled,
        the turn is settled as interrupted: shielded, as long as a commit takes.
        """
        ended = False
        try:
            terminal, again = await self._attempts(request)
            ended = True
        except StorageUnavailableError as error:
            if not self._begun:
                raise  # nothing was sent
            failure = Failure(type=STORAGE_UNAVAILABLE, message=error.message)
            terminal, again = TurnFailed(assistant_message_id=self.assistant, error=failure), False
            ended = True
        finally:
            if not ended and self._begun:
                await self._settle(self._interrupted(self._situation.stop_reason))
        await self._settle(terminal)
        return self._outcome(terminal, again)

    async def refuse(self, failure: Failure) -> None:
        """End a turn that has begun and whose request cannot be made: durably as failed. Raises `Unsettled`."""
        await self._settle(TurnFailed(assistant_message_id=self.assistant, error=failure))

    @property
    def _begun(self) -> bool:
        """Whether the turn is in the log."""
        return self._was_begun or (self._recorded is not None and self._recorded.done and self._recorded.error is None)

    async def _attempts(self, request: LLMRequest) -> tuple[EventData, bool]:
        """Try until there is an end: the terminal event, and what is `TurnFailure.again`."""
        attempt = 1
        while True:
            if attempt > 1 or not self._was_begun:
                await self._begin(attempt)
            await self._attempt(request)
            end = self._judged()
            delay = self._delay(end)
            if delay is None:
                return self._terminal(end), False
            attempt += 1
            if self._response.has_output:
                self._close_parts()
                if not self._fell_back(end):
                    await self._back_off(attempt, delay, end)
                return self._terminal(end, continues=True), True
            self._used += end.tokens or NO_TOKENS
            self._paid += self._model.cost(end.tokens)
            self._response.end = self._response.used = None
            if self._fell_back(end) or not await self._back_off(attempt, delay, end):
                return self._terminal(llm.ProviderFailed(failure=_superseded(end)), continues=True), False

    # --- one attempt -------------------------------------------------------------------------------------------------

    async def _begin(self, attempt: int) -> None:
        started = TurnStarted(
            assistant_message_id=self.assistant, agent=self._agent.name, model=self._model.ref, attempt=attempt
        )
        recorded = self._journal.append([started])
        if self._recorded is None:
            self._recorded = recorded
        await self._journal.gate()

    async def _attempt(self, request: LLMRequest) -> None:
        """Send the request and take what comes, until its end and the end of all calls it made."""
        response = self._response
        self._attempt_scope = trio.CancelScope()
        try:
            with self._attempt_scope:
                async with (
                    trio.open_nursery() as running_calls,
                    self._services.models.stream(self._model, request, self._conversation) as batches,
                ):
                    async for batch in batches:
                        for event in batch:
                            if response.end is not None:
                                break  # whatever follows an end, or a defect, is not listened to
                            called = response.take(event)
                            if called is not None and isinstance(event, llm.ToolCall):
                                self._start_call(running_calls, *called, event)
                        response.flush()
                        response.checkpoint(trio.current_time())
                        if response.end is not None:
                            break
        except* Exception as group:
            reference = self._services.ids.event()
            _log.error("turn crashed", session_id=self._session_id, reference=reference, exc_info=group)
            failure = Failure(type=INTERNAL, message=f"The turn failed inside the runtime (reference {reference}).")
            response.end = llm.ProviderFailed(failure=failure)

    def _judged(self) -> llm.Finished | llm.ProviderFailed:
        """How the attempt ended; an end that is no success is a failure."""
        match self._response.end:
            case None:
                failure = Failure(type=PROVIDER_INCOMPLETE, message="The provider's answer stopped without an end.")
                return llm.ProviderFailed(failure=failure, retryable=True, tokens=self._response.used)
            case llm.Finished(finish="content-filter") as end:
                failure = Failure(type=PROVIDER_CONTENT_FILTER, message="The provider's content filter stopped the answer.")
                return llm.ProviderFailed(failure=failure, tokens=end.tokens)
            case llm.Finished(finish="error") as end:
                failure = Failure(type=PROVIDER_UNKNOWN, message="The provider ended the answer with an error.")
                return llm.ProviderFailed(failure=failure, tokens=end.tokens)
            case llm.Finished() as end if not self._response.has_output:
                return llm.ProviderFailed(failure=EMPTY_ANSWER, retryable=True, tokens=end.tokens)
            case llm.ProviderFailed(tokens=None) as end:  # what ends it from outside, the network or a defect, knows of none
                return structs.replace(end, tokens=self._response.used)
            case end:
                return end

    def _delay(self, end: llm.Finished | llm.ProviderFailed) -> float | None:
        """The seconds before another try, if there is to be one."""
        if self._declined or isinstance(end, llm.Finished) or not end.retryable:
            return None
        return self._budget.take(end.retry_after_ms, empty=end.failure is EMPTY_ANSWER)

    def _fell_back(self, end: llm.Finished | llm.ProviderFailed) -> bool:
        """Whether another model is asked from now on, because this one is overloaded."""
        if isinstance(end, llm.Finished) or end.failure.type != PROVIDER_OVERLOADED:
            return False
        self._budget.overloaded.append(self._model.ref)
        fallback = self._services.models.fallback(self._budget.overloaded)
        if fallback is None:
            return False
        self._budget.ask_instead(fallback)
        return True

    async def _back_off(self, attempt: int, delay: float, end: llm.Finished | llm.ProviderFailed) -> bool:
        """Wait before the next attempt; False when a new boundary should come instead."""
        if isinstance(end, llm.Finished):
            raise AssertionError("only a failure is tried again")
        at = self._services.now_ms() + int(delay * 1000)
        self._journal.append([RetryScheduled(assistant_message_id=self.assistant, attempt=attempt, at=at, error=end.failure)])
        await self._journal.gate()
        with trio.move_on_after(delay):
            await self._situation.model_switched()
        return not (self._situation.model_was_switched or self._situation.steer_pending)

    # --- calls -------------------------------------------------------------------------------------------------------

    def _start_call(self, running_calls: trio.Nursery, call: Call, recorded: Answer[None], event: llm.ToolCall) -> None:
        if self._last_step:
            error = Failure(type=TOOL_DISABLED, message="Tools are disabled after the maximum number of steps.")
            self._settled(call, Failed(error=error))
        else:
            running_calls.start_soon(self._run_call, call, event, recorded)

    async def _run_call(self, call: Call, event: llm.ToolCall, recorded: Answer[None]) -> None:
        """One local call, from its committed record to its one settlement."""
        context = ToolContext(
            session_id=self._session_id,
            agent=self._agent.name,
            assistant_message_id=self.assistant,
            call_id=call.call_id,
            location=self._location,
            blocking=self._services.blocking,
            session=self._requests.owner(self._journal, self.assistant, call.call_id, self._agent, self._location),
        )
        async with self._limit:
            try:
                await recorded.wait()
            except Exception:  # not recorded, so not started; the gate tells the turn
                return
            try:
                result = await self._tools.run(event.name, event.input, event.raw, context)
            except DeclinedError as declined:
                self._settled(call, Failed(error=Failure(type=declined.type, message=str(declined))))
                self._declined = True
                self._attempt_scope.cancel(reason="declined")
                return
            with trio.CancelScope(shield=True):
                settlement: Succeeded | Failed | None = None
                with trio.move_on_after(COMPLETION_SECONDS):
                    settlement = await self._tools.bound(result, context)
                if settlement is None:
                    lost = TextContent(text="[The output could not be kept in time.]")
                    settlement = Succeeded(content=(lost,), lossy=True)
                self._settled(call, settlement)

    def _settled(self, call: Call, settlement: Succeeded | Failed) -> None:
        call.settled = True
        self._response.flush()
        match settlement:
            case Succeeded():
                data: EventData = ToolSucceeded(
                    assistant_message_id=self.assistant,
                    call_id=call.call_id,
                    content=settlement.content,
                    structured=settlement.structured,
                    managed_outputs=settlement.managed_outputs or None,
                    lossy=settlement.lossy or None,
                )
            case Failed():
                data = ToolFailed(
                    assistant_message_id=self.assistant,
                    call_id=call.call_id,
                    error=settlement.error,
                    content=settlement.content or None,
                )
        self._journal.settle([data], self._requests.of_call(call.call_id))

    # --- the end -----------------------------------------------------------------------------------------------------

    def _terminal(self, end: llm.Finished | llm.ProviderFailed, *, continues: bool = False) -> EventData:
        if self._declined:
            return self._interrupted("user")
        match end:
            case llm.Finished():
                return TurnCompleted(
                    assistant_message_id=self.assistant,
                    finish=end.finish,
                    tokens=self._used + end.tokens,
                    cost=self._paid + self._model.cost(end.tokens),
                    continues=(self._response.local_calls or end.paused) and not self._last_step,
                )
            case llm.ProviderFailed():
                overflow = self._recoverable and self._overflowed(end.failure)
                cost = self._paid + self._model.cost(end.tokens)
                return TurnFailed(
                    assistant_message_id=self.assistant,
                    error=end.failure,
                    tokens=(self._used + (end.tokens or NO_TOKENS)) if self._used != NO_TOKENS else end.tokens,
                    cost=cost or None,
                    continues=continues or overflow or self._may_do_without(end.failure) or None,
                )

    def _interrupted(self, reason: Literal["user", "shutdown"]) -> TurnInterrupted:
        end = self._response.end
        tokens = self._response.used if end is None or end.tokens is None else end.tokens
        cost = self._paid + self._model.cost(tokens)
        used = self._used + (tokens or NO_TOKENS)
        return TurnInterrupted(
            assistant_message_id=self.assistant,
            reason=reason,
            tokens=None if used == NO_TOKENS else used,
            cost=cost or None,
        )

    def _overflowed(self, failure: Failure) -> bool:
        return failure.type == PROVIDER_CONTEXT_OVERFLOW and not self._response.has_output

    async def _settle(self, terminal: EventData) -> None:
        """Record what is open and the terminal event in one transaction, and wait for it.

        What was posted is committed or refused, however long that takes (ruling A5); to give up sooner is not to know.
        """
        self._close_parts(terminal)
        with trio.CancelScope(shield=True):
            try:
                await self._journal.gate()
            except Exception as error:
                raise Unsettled(str(error)) from error

    def _close_parts(self, *end: EventData) -> None:
        """Post the ends of what is still open, and `end` with them."""
        interrupted = any(isinstance(data, TurnInterrupted) for data in end)
        requests = [request for call in self._response.calls for request in self._requests.of_call(call.call_id)]
        data = self._response.close(INTERRUPTED_CALL, INTERRUPTED_CALL if interrupted else MISSING_RESULT)
        self._journal.settle([*data, *end], requests)

    def _may_do_without(self, failure: Failure) -> bool:
        refused = failure.type == PROVIDER_INVALID_REQUEST and not self._response.has_output
        return refused and self._situation.may_concede

    def _outcome(self, terminal: EventData, again: bool) -> bool:
        match terminal:
            case TurnCompleted(continues=continues):
                self._budget.succeeded()
                return continues
            case TurnFailed(error=error, continues=continues):
                raise TurnFailure(
                    error,
                    again=again,
                    superseded=error.type == SUPERSEDED,
                    overflow=bool(continues) and error.type == PROVIDER_CONTEXT_OVERFLOW,
                    refused=bool(continues) and error.type == PROVIDER_INVALID_REQUEST,
                )
            case _:
                raise TurnStopped


def _superseded(end: llm.Finished | llm.ProviderFailed) -> Failure:
    last = f" The last failure was: {end.failure.message}" if isinstance(end, llm.ProviderFailed) else ""
    return Failure(type=SUPERSEDED, message=f"Another turn takes this one's place.{last}")
