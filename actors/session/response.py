"""The response of a provider as it arrives: canonical events in, durable and live events out, in their one order.

Rules:
- Fragments: start and end are durable, deltas are live. Deltas of one fragment that arrived in one piece leave as one. A live
  event is posted behind the durable ones before it (ruling A3).
- While a fragment is open, its text so far is checkpointed at most once a second, to a row that is overwritten.
- Our own part and call ids are the identity; what the provider calls them is data and may repeat.
- What breaks the protocol (a delta before its start, a second start, a result without a call) ends the response as a defect.
- So does what passes `MAX_ANSWER`: everything that would be kept counts, so that a stream without an end fills neither the
  memory nor the log. What passed it is not taken; what came before stays.
- Taking an event is synchronous, so that an interrupt never lies inside one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from ...protocol.llm import events as llm
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
)
from ...protocol.values.failure import PROVIDER_INVALID_OUTPUT, PROVIDER_UNKNOWN, Failure
from ...protocol.values.ids import CallId, MessageId, PartId
from ...protocol.values.model import Tokens
from ..mailbox import Answer
from .journal import SessionJournal

CHECKPOINT_SECONDS = 1.0
MAX_ANSWER: Final = 8 * 1024 * 1024
"""Size of one answer: the characters of its text, reasoning and tool input, the bytes of hosted results and metadata."""
PART_SIZE: Final = 2048
"""What a part or call counts beside its content, since each is several events, however little stands in it."""


@dataclass(slots=True)
class Fragment:
    """A text or reasoning part, or the input of a call, while it grows."""

    id: PartId | CallId
    kind: str
    pieces: list[str] = field(default_factory=list[str])
    length: int = 0
    saved: int = 0
    """How much of it the last checkpoint had."""

    def text(self) -> str:
        """What has arrived so far."""
        if len(self.pieces) > 1:
            self.pieces = ["".join(self.pieces)]
        return self.pieces[0] if self.pieces else ""


@dataclass(slots=True)
class Call:
    """One tool call, from the first word of its input to its settlement."""

    call_id: CallId
    tool: str
    input: Fragment
    input_open: bool = True
    called: bool = False
    executed: bool = False
    settled: bool = False


class Response:
    """What one attempt brought. `end` is set once, by the provider's last event or a defect."""

    def __init__(self, journal: SessionJournal, assistant: MessageId) -> None:
        self._journal = journal
        self._assistant = assistant
        self._fragments: dict[str, Fragment] = {}
        self._inputs: dict[str, Call] = {}
        self._hosted: dict[str, Call] = {}
        self._texts: dict[str, Fragment] = {}
        self._durable: list[EventData] = []
        self._delta: tuple[Fragment, list[str]] | None = None
        self._last_checkpoint = 0.0
        self._size = 0
        self.calls: list[Call] = []
        self.end: llm.Finished | llm.ProviderFailed | None = None
        self.used: Tokens | None = None
        """What the provider said before any end that this attempt has used."""

    @property
    def has_output(self) -> bool:
        """Whether anything of an answer arrived."""
        return bool(self._texts)

    @property
    def local_calls(self) -> bool:
        """Whether a complete call for us arrived."""
        return any(call.called and not call.executed for call in self.calls)

    def texts(self) -> dict[str, str]:
        """The text so far of every fragment of this response, by part or call id."""
        self.flush()
        return {id: fragment.text() for id, fragment in self._texts.items()}

    def take(self, event: llm.LLMEvent) -> tuple[Call, Answer[None]] | None:
        """Take one event; a complete local call comes back with the answer that says when it is recorded."""
        match event:
            case llm.TextDelta() | llm.ReasoningDelta():
                fragment = self._fragments.get(event.id)
                if fragment is None:
                    return self._defect(f"a delta for the fragment {event.id!r}, which is not open")
                self._grow(fragment, event.text)
            case llm.TextStart():
                self._open(event.id, "text")
            case llm.ReasoningStart():
                self._open(event.id, "reasoning")
            case llm.TextEnd() | llm.ReasoningEnd():
                if not self._fits(_size_of(event.metadata)):
                    return None
                fragment = self._fragments.pop(event.id, None)
                if fragment is None:
                    return self._defect(f"the end of the fragment {event.id!r}, which is not open")
                self._record(self._ended(fragment, event.metadata))
            case llm.ToolInputStart():
                if event.id in self._inputs:
                    return self._defect(f"a second start of the call {event.id!r}")
                if not self._fits(PART_SIZE + len(event.name)):
                    return None
                self._inputs[event.id] = self._new_call(event.name)
            case llm.ToolInputDelta():
                call = self._inputs.get(event.id)
                if call is None:
                    return self._defect(f"more input for the call {event.id!r}, which is not open")
                self._grow(call.input, event.text)
            case llm.ToolInputEnd():
                call = self._inputs.get(event.id)
                if call is not None and call.input_open:
                    self._flush_delta()
                    self._close_input(call, call.input.text())
            case llm.ToolCall():
                return self._called(event)
            case llm.ToolResult():
                self._hosted_result(event)
            case llm.UsageReported(tokens=tokens):
                self.used = tokens
            case llm.Finished() | llm.ProviderFailed():
                self.end = event
        return None

    def flush(self) -> Answer[None] | None:
        """Post what was recorded, then the delta behind it; the answer of the former."""
        answer = None
        if self._durable:
            answer = self._journal.append(self._durable)
            self._durable = []
        self._send_delta()
        return answer

    def checkpoint(self, now: float) -> None:
        """Save the text of open fragments, if the last time is long enough ago and something is new."""
        if now - self._last_checkpoint < CHECKPOINT_SECONDS:
            return
        grown = [fragment for fragment in self._open_fragments() if fragment.length > fragment.saved]
        if grown:
            self._last_checkpoint = now
            self._journal.checkpoint(self._assistant, {fragment.id: fragment.text() for fragment in grown})
            for fragment in grown:
                fragment.saved = fragment.length

    def close(self, error: Failure, missing: Failure) -> list[EventData]:
        """The ends of everything still open: fragments with what arrived, local calls with `error`, hosted with `missing`.

        What was recorded and not posted yet comes first.
        """
        self._flush_delta()
        for fragment in self._fragments.values():
            self._durable.append(self._ended(fragment, None))
        self._fragments.clear()
        for call in self.calls:
            if call.settled:
                continue
            call.settled = True
            if call.input_open:
                self._close_input(call, call.input.text())
            reason = missing if call.executed else error
            self._durable.append(ToolFailed(assistant_message_id=self._assistant, call_id=call.call_id, error=reason))
        data, self._durable = self._durable, []
        return data

    # --- pieces ------------------------------------------------------------------------------------------------------

    def _open(self, id: str, kind: str) -> None:
        if id in self._fragments:
            self._defect(f"a second start of the fragment {id!r}")
            return
        if not self._fits(PART_SIZE):
            return
        part_id = self._journal.new_part()
        self._fragments[id] = self._texts[part_id] = Fragment(part_id, kind)
        started = ReasoningStarted if kind == "reasoning" else TextStarted
        self._record(started(assistant_message_id=self._assistant, part_id=part_id))

    def _grow(self, fragment: Fragment, text: str) -> None:
        if not text or not self._fits(len(text)):
            return
        if self._delta is not None and self._delta[0] is fragment:
            self._delta[1].append(text)
        else:
            self.flush()
            self._delta = (fragment, [text])

    def _ended(self, fragment: Fragment, metadata: dict[str, Any] | None) -> EventData:
        self._flush_delta()
        ended = ReasoningEnded if fragment.kind == "reasoning" else TextEnded
        return ended(
            assistant_message_id=self._assistant,
            part_id=PartId(fragment.id),
            text=fragment.text(),
            metadata=metadata,
        )

    def _new_call(self, tool: str) -> Call:
        call_id = self._journal.new_call()
        call = Call(call_id, tool, Fragment(call_id, "input"))
        self._texts[call_id] = call.input
        self.calls.append(call)
        self._record(ToolInputStarted(assistant_message_id=self._assistant, call_id=call_id, tool=tool))
        return call

    def _called(self, event: llm.ToolCall) -> tuple[Call, Answer[None]] | None:
        begun = event.id in self._inputs
        size = _size_of(event.metadata) + len(event.provider_call_id)
        if not self._fits(size + (0 if begun else PART_SIZE + len(event.name) + len(event.raw))):
            return None
        call = self._inputs.pop(event.id) if begun else self._new_call(event.name)
        if call.input_open:
            self._flush_delta()
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
        recorded = self.flush()
        if event.executed:
            self._hosted[event.id] = call
            return None
        if recorded is None:
            raise AssertionError("a recorded call was posted")
        return call, recorded

    def _close_input(self, call: Call, raw: str) -> None:
        call.input_open = False
        self._record(ToolInputEnded(assistant_message_id=self._assistant, call_id=call.call_id, text=raw))

    def _hosted_result(self, event: llm.ToolResult) -> None:
        if not self._fits(_size_of(event.result) + _size_of(event.metadata)):
            return
        call = self._hosted.pop(event.id, None)
        if call is None:
            self._defect(f"a result for the call {event.id!r}, which was not made")
            return
        call.settled = True
        if event.is_error:
            data: EventData = ToolFailed(
                assistant_message_id=self._assistant,
                call_id=call.call_id,
                error=Failure(type=PROVIDER_UNKNOWN, message="The provider's own tool failed."),
                result=event.result,
                metadata=event.metadata,
            )
        else:
            data = ToolSucceeded(
                assistant_message_id=self._assistant,
                call_id=call.call_id,
                content=(),
                result=event.result,
                metadata=event.metadata,
            )
        self._record(data)

    def _fits(self, size: int) -> bool:
        """Count what came; False, with the defect, when it is more than an answer may hold."""
        self._size += size
        if self._size <= MAX_ANSWER:
            return True
        self._defect(f"an answer of more than {MAX_ANSWER // (1024 * 1024)} MiB")
        return False

    def _defect(self, what: str) -> None:
        if self.end is None:
            failure = Failure(type=PROVIDER_INVALID_OUTPUT, message=f"The provider sent {what}.")
            self.end = llm.ProviderFailed(failure=failure)

    def _open_fragments(self) -> Iterator[Fragment]:
        yield from self._fragments.values()
        for call in self.calls:
            if call.input_open:
                yield call.input

    # --- order -------------------------------------------------------------------------------------------------------

    def _record(self, data: EventData) -> None:
        self._flush_delta()
        self._durable.append(data)

    def _flush_delta(self) -> None:
        if self._delta is not None:
            self.flush()

    def _send_delta(self) -> None:
        if self._delta is None:
            return
        fragment, pieces = self._delta
        self._delta = None
        text = pieces[0] if len(pieces) == 1 else "".join(pieces)
        offset = fragment.length
        fragment.pieces.append(text)
        fragment.length += len(text)
        data: EventData
        if fragment.kind == "input":
            data = ToolInputDelta(assistant_message_id=self._assistant, call_id=CallId(fragment.id), offset=offset, delta=text)
        else:
            kind = ReasoningDelta if fragment.kind == "reasoning" else TextDelta
            data = kind(assistant_message_id=self._assistant, part_id=PartId(fragment.id), offset=offset, delta=text)
        self._journal.publish(data)


def _size_of(value: Any) -> int:
    """The bytes of a JSON value; 0 for None."""
    return 0 if value is None else len(msgspec.json.encode(value))
