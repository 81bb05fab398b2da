"""One Provider Turn: a request, the response projected from it, and exactly one terminal event.

Rules:
- Everything durable goes through the drain's chain, in order. The tool of a call starts after its call is committed; the
  terminal event comes after every settlement (the gate).
- Fragments: start and end are durable, deltas are live. Deltas of one fragment that arrived in one piece leave as one.
- Calls of a turn run concurrently, at most `MAX_CONCURRENT_CALLS`, the rest wait. Our own call id is their identity.
- Once a tool succeeded, bounding its output and recording its one settlement form a completion region: shielded, and bounded
  in time; when the time runs out the lossy success is recorded, never a failure.
- However the turn ends (provider, defect, interrupt), open fragments end with what arrived, calls without a settlement
  fail, and one terminal event follows, in one transaction. If even that cannot be committed, `Unsettled` says so and recovery
  does it before the next drain (ruling A7).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import structlog
import trio

from ...protocol.llm import events as llm
from ...protocol.llm.request import LLMRequest
from ...protocol.values.event import (
    EventData,
    ReasoningDelta,
    ReasoningEnded,
    ReasoningStarted,
    TextDelta,
    TextEnded,
    TextStarted,
    ToolCalled,
    ToolFailed,
    ToolInputDelta,
    ToolInputEnded,
    ToolInputStarted,
    ToolSucceeded,
    TurnCompleted,
    TurnFailed,
    TurnInterrupted,
    TurnStarted,
)
from ...protocol.values.failure import (
    INTERNAL,
    PROVIDER_CONTENT_FILTER,
    PROVIDER_INVALID_OUTPUT,
    PROVIDER_UNKNOWN,
    TOOL_RESULT_MISSING,
    Failure,
)
from ...protocol.values.ids import CallId, MessageId, PartId, SessionId
from ...protocol.values.location import Location
from ...protocol.values.tool import TextContent
from ..mailbox import Answer
from ..models.catalog import ModelInfo
from ..storage import Chain
from ..tools.registry import ToolSet
from ..tools.settlement import Failed, Succeeded
from ..tools.tool import ToolContext
from .recovery import INTERRUPTED_CALL
from .services import Services
from .stopping import StopReason

MAX_CONCURRENT_CALLS = 8
COMPLETION_SECONDS = 5
SETTLEMENT_SECONDS = 5

_log = structlog.get_logger("steerway.turn")


class TurnFailure(Exception):
    """The turn ended durably in an error, which is also the drain's."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Unsettled(Exception):
    """The turn's terminal event could not be committed; recovery has to."""


@dataclass(slots=True)
class _Fragment:
    part_id: PartId
    reasoning: bool
    pieces: list[str] = field(default_factory=list[str])
    length: int = 0


@dataclass(slots=True)
class _Call:
    call_id: CallId
    tool: str
    pieces: list[str] = field(default_factory=list[str])
    length: int = 0
    input_open: bool = True
    called: bool = False
    executed: bool = False
    settled: bool = False


class Turn:
    """Runs once."""

    def __init__(
        self,
        services: Services,
        session_id: SessionId,
        chain: Chain,
        *,
        assistant_message_id: MessageId,
        agent: str,
        model: ModelInfo,
        location: Location,
        tools: ToolSet,
    ) -> None:
        self._services = services
        self._session_id = session_id
        self._chain = chain
        self._assistant = assistant_message_id
        self._agent = agent
        self._model = model
        self._location = location
        self._tools = tools
        self._fragments: dict[str, _Fragment] = {}
        self._calls: list[_Call] = []
        self._open_inputs: dict[str, _Call] = {}
        self._hosted: dict[str, _Call] = {}
        self._durable: list[EventData] = []
        self._delta: tuple[_Fragment | _Call, list[str]] | None = None
        self._end: llm.Finished | llm.ProviderFailed | None = None
        self._limit = trio.Semaphore(MAX_CONCURRENT_CALLS)

    async def run(self, request: LLMRequest, reason: StopReason) -> bool:
        """Record the attempt, send the request, see it through. True when history continues with another turn.

        Raises `StorageUnavailableError` when the attempt could not be recorded (nothing was sent), `TurnFailure` when the
        turn failed durably, `Unsettled` when its end could not be recorded. When cancelled, the turn is settled as
        interrupted (shielded, at most `SETTLEMENT_SECONDS`) with the reason that `reason` holds by then.
        """
        started = TurnStarted(assistant_message_id=self._assistant, agent=self._agent, model=self._model.ref, attempt=1)
        recorded = self._services.append(self._session_id, self._chain, [started])
        ended: EventData | None = None
        try:
            await self._services.storage.gate(self._chain)
            try:
                async with (
                    trio.open_nursery() as running_calls,
                    self._services.models.stream(self._model, request) as batches,
                ):
                    async for batch in batches:
                        for event in batch:
                            self._take(event, running_calls)
                        self._flush()
                        if self._end is not None:
                            break
            except* Exception as group:
                reference = self._services.ids.event()
                _log.error("turn crashed", session_id=self._session_id, reference=reference, exc_info=group)
                failure = Failure(type=INTERNAL, message=f"The turn failed inside the runtime (reference {reference}).")
                self._end = llm.ProviderFailed(failure=failure)
            ended = self._terminal()
            return await self._settle(ended)
        finally:
            if ended is None and recorded.done and recorded.error is None:
                with trio.CancelScope(shield=True):
                    await self._settle(TurnInterrupted(assistant_message_id=self._assistant, reason=reason.value))

    # --- what arrives ------------------------------------------------------------------------------------------------

    def _take(self, event: llm.LLMEvent, running_calls: trio.Nursery) -> None:
        """One canonical event. Synchronous, so that an interrupt never lies inside one."""
        match event:
            case llm.TextDelta() | llm.ReasoningDelta():
                fragment = self._fragments.get(event.id)
                if fragment is None:
                    self._defect(f"a delta for the fragment {event.id!r}, which is not open")
                    return
                self._grow(fragment, event.text)
            case llm.TextStart():
                self._open(event.id, reasoning=False)
            case llm.ReasoningStart():
                self._open(event.id, reasoning=True)
            case llm.TextEnd() | llm.ReasoningEnd():
                fragment = self._fragments.pop(event.id, None)
                if fragment is None:
                    self._defect(f"the end of the fragment {event.id!r}, which is not open")
                    return
                self._record(self._ended(fragment, event.metadata))
            case llm.ToolInputStart():
                if event.id in self._open_inputs:
                    self._defect(f"a second start of the call {event.id!r}")
                    return
                call = _Call(self._services.ids.call(), event.name)
                self._open_inputs[event.id] = call
                self._calls.append(call)
                self._record(ToolInputStarted(assistant_message_id=self._assistant, call_id=call.call_id, tool=event.name))
            case llm.ToolInputDelta():
                call = self._open_inputs.get(event.id)
                if call is None:
                    self._defect(f"more input for the call {event.id!r}, which is not open")
                    return
                self._grow(call, event.text)
            case llm.ToolInputEnd():
                call = self._open_inputs.get(event.id)
                if call is not None and call.input_open:
                    self._flush_delta()
                    self._close_input(call, "".join(call.pieces))
            case llm.ToolCall():
                self._called(event, running_calls)
            case llm.ToolResult():
                self._hosted_result(event)
            case llm.Finished() | llm.ProviderFailed():
                self._end = event

    def _open(self, id: str, *, reasoning: bool) -> None:
        if id in self._fragments:
            self._defect(f"a second start of the fragment {id!r}")
            return
        fragment = _Fragment(self._services.ids.part(), reasoning)
        self._fragments[id] = fragment
        started = ReasoningStarted if reasoning else TextStarted
        self._record(started(assistant_message_id=self._assistant, part_id=fragment.part_id))

    def _grow(self, target: _Fragment | _Call, text: str) -> None:
        if not text:
            return
        if self._delta is not None and self._delta[0] is target:
            self._delta[1].append(text)
        else:
            self._flush()
            self._delta = (target, [text])

    def _called(self, event: llm.ToolCall, running_calls: trio.Nursery) -> None:
        call = self._open_inputs.pop(event.id, None)
        if call is None:
            call = _Call(self._services.ids.call(), event.name)
            self._calls.append(call)
            self._record(ToolInputStarted(assistant_message_id=self._assistant, call_id=call.call_id, tool=event.name))
        if call.input_open:
            self._close_input(call, event.raw)
        call.called = True
        call.executed = event.executed
        self._record(
            ToolCalled(
                assistant_message_id=self._assistant,
                call_id=call.call_id,
                provider_call_id=event.provider_call_id,
                tool=event.name,
                input=event.input if event.input is not None else {},
                executed=event.executed,
                metadata=event.metadata,
            )
        )
        recorded = self._flush()
        if event.executed:
            self._hosted[event.id] = call
        elif recorded is not None:
            running_calls.start_soon(self._run_call, call, event, recorded)

    def _close_input(self, call: _Call, raw: str) -> None:
        call.input_open = False
        self._record(ToolInputEnded(assistant_message_id=self._assistant, call_id=call.call_id, text=raw))

    def _hosted_result(self, event: llm.ToolResult) -> None:
        call = self._hosted.pop(event.id, None)
        if call is None:
            self._defect(f"a result for the call {event.id!r}, which was not made")
            return
        call.settled = True
        if event.is_error:
            error = Failure(type=PROVIDER_UNKNOWN, message="The provider's own tool failed.")
            self._record(
                ToolFailed(
                    assistant_message_id=self._assistant,
                    call_id=call.call_id,
                    error=error,
                    result=event.result,
                    metadata=event.metadata,
                )
            )
        else:
            self._record(
                ToolSucceeded(
                    assistant_message_id=self._assistant,
                    call_id=call.call_id,
                    content=(),
                    result=event.result,
                    metadata=event.metadata,
                )
            )

    def _defect(self, what: str) -> None:
        """The provider broke the protocol; the turn fails with what arrived so far."""
        if self._end is None:
            failure = Failure(type=PROVIDER_INVALID_OUTPUT, message=f"The provider sent {what}.")
            self._end = llm.ProviderFailed(failure=failure)

    # --- what leaves -------------------------------------------------------------------------------------------------

    def _record(self, data: EventData) -> None:
        self._flush_delta()
        self._durable.append(data)

    def _flush(self) -> Answer[None] | None:
        """Post what was recorded, then the delta behind it."""
        delta, self._delta = self._delta, None
        answer = None
        if self._durable:
            answer = self._services.append(self._session_id, self._chain, self._durable)
            self._durable = []
        self._delta = delta
        self._send_delta()
        return answer

    def _flush_delta(self) -> None:
        if self._delta is not None:
            self._flush()

    def _send_delta(self) -> None:
        if self._delta is None:
            return
        target, pieces = self._delta
        self._delta = None
        text = pieces[0] if len(pieces) == 1 else "".join(pieces)
        offset = target.length
        target.pieces.append(text)
        target.length += len(text)
        match target:
            case _Call():
                data: EventData = ToolInputDelta(
                    assistant_message_id=self._assistant, call_id=target.call_id, offset=offset, delta=text
                )
            case _Fragment(reasoning=reasoning):
                kind = ReasoningDelta if reasoning else TextDelta
                data = kind(assistant_message_id=self._assistant, part_id=target.part_id, offset=offset, delta=text)
        self._services.storage.post_live(self._services.live_event(self._session_id, data), self._chain)

    def _ended(self, fragment: _Fragment, metadata: dict[str, object] | None = None) -> EventData:
        self._flush_delta()
        ended = ReasoningEnded if fragment.reasoning else TextEnded
        return ended(
            assistant_message_id=self._assistant,
            part_id=fragment.part_id,
            text="".join(fragment.pieces),
            metadata=metadata,
        )

    # --- tools -------------------------------------------------------------------------------------------------------

    async def _run_call(self, call: _Call, event: llm.ToolCall, recorded: Answer[None]) -> None:
        """One local call, from its committed record to its one settlement."""
        context = ToolContext(
            session_id=self._session_id,
            agent=self._agent,
            assistant_message_id=self._assistant,
            call_id=call.call_id,
            location=self._location,
            blocking=self._services.blocking,
        )
        async with self._limit:
            try:
                await recorded.wait()
            except Exception:  # not recorded, so not started; the gate tells the turn
                return
            result = await self._tools.run(event.name, event.input, event.raw, context)
            with trio.CancelScope(shield=True):
                settlement: Succeeded | Failed | None = None
                with trio.move_on_after(COMPLETION_SECONDS):
                    settlement = await self._tools.bound(result, context)
                if settlement is None:
                    lost = TextContent(text="[The output could not be kept in time.]")
                    settlement = Succeeded(content=(lost,), lossy=True)
                self._settled(call, settlement)

    def _settled(self, call: _Call, settlement: Succeeded | Failed) -> None:
        call.settled = True
        match settlement:
            case Succeeded():
                self._record(
                    ToolSucceeded(
                        assistant_message_id=self._assistant,
                        call_id=call.call_id,
                        content=settlement.content,
                        structured=settlement.structured,
                        managed_outputs=settlement.managed_outputs or None,
                        lossy=settlement.lossy or None,
                    )
                )
            case Failed():
                self._record(
                    ToolFailed(
                        assistant_message_id=self._assistant,
                        call_id=call.call_id,
                        error=settlement.error,
                        content=settlement.content or None,
                    )
                )
        self._flush()

    # --- the end -----------------------------------------------------------------------------------------------------

    def _terminal(self) -> EventData:
        match self._end:
            case llm.Finished(finish="content-filter") as end:
                error = Failure(type=PROVIDER_CONTENT_FILTER, message="The provider's content filter stopped the answer.")
                return TurnFailed(assistant_message_id=self._assistant, error=error, tokens=end.tokens, cost=0.0)
            case llm.Finished(finish="error") as end:
                error = Failure(type=PROVIDER_UNKNOWN, message="The provider ended the answer with an error.")
                return TurnFailed(assistant_message_id=self._assistant, error=error, tokens=end.tokens, cost=0.0)
            case llm.Finished() as end:
                return TurnCompleted(
                    assistant_message_id=self._assistant,
                    finish=end.finish,
                    tokens=end.tokens,
                    cost=0.0,
                    continues=any(call.called and not call.executed for call in self._calls),
                )
            case llm.ProviderFailed() as end:
                return TurnFailed(assistant_message_id=self._assistant, error=end.failure, tokens=end.tokens)
            case None:
                error = Failure(type=PROVIDER_INVALID_OUTPUT, message="The provider's answer stopped without an end.")
                return TurnFailed(assistant_message_id=self._assistant, error=error)

    async def _settle(self, terminal: EventData) -> bool:
        """Record what is open and the terminal event in one transaction, and wait for it."""
        self._flush_delta()
        for fragment in self._fragments.values():
            self._record(self._ended(fragment))
        self._fragments.clear()
        missing = Failure(type=TOOL_RESULT_MISSING, message="The provider did not return a result for its own tool.")
        for call in self._calls:
            if call.settled:
                continue
            call.settled = True
            if call.input_open:
                self._close_input(call, "".join(call.pieces))
            interrupted = isinstance(terminal, TurnInterrupted) or not call.executed
            error = INTERRUPTED_CALL if interrupted else missing
            self._record(ToolFailed(assistant_message_id=self._assistant, call_id=call.call_id, error=error))
        self._record(terminal)
        self._flush()
        with trio.move_on_after(SETTLEMENT_SECONDS, shield=True) as limit:
            try:
                await self._services.storage.gate(self._chain)
            except Exception as error:
                raise Unsettled(str(error)) from error
        if limit.cancelled_caught:
            raise Unsettled("The store did not answer in time.")
        match terminal:
            case TurnFailed(error=error):
                raise TurnFailure(error)
            case TurnCompleted(continues=continues):
                return continues
            case _:
                return False
