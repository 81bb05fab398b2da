"""The open fragments of one answer: what a decoder says piece by piece becomes canonical events in a legal order.

Rules:
- Prose runs in one lane: text after reasoning ends the reasoning, and the other way round, and a call that starts ends
  both. Calls stay open beside the lane and beside each other until the answer ends, because their pieces may interleave.
- A call the provider executes itself is complete, and has its result, in the middle of the answer.
- Ids are counters of this answer, so that no provider can repeat one. A provider's call id is kept as data.
- A call shows itself once its name is known; what came of its input before is kept until then.
- `finish` ends what is open in the order it was opened and completes the calls; `abandon` only ends it: input of an answer
  that failed is never executed.
- Strings come out well-formed (ruling B13): each fragment joins its own surrogate pairs. Results and metadata are kept as they
  came, as far as the wire can carry them (ruling B14).
"""

from __future__ import annotations

from typing import Any, Literal

from ..values.model import Tokens
from .arguments import MAX_ARGUMENT_DEPTH, parse_arguments
from .events import (
    LLMEvent,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCall,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    ToolResult,
    UsageReported,
)
from .unicode import SurrogateJoiner, bounded_value, well_formed

Lane = Literal["text", "reasoning"]


class CallFragment:
    """A call that is being written. `name` is None until the provider has said it; `executed` by the provider itself."""

    __slots__ = ("_joiner", "_pieces", "executed", "id", "metadata", "name", "open", "provider_id", "settled", "size")

    def __init__(self, id: str, provider_id: str) -> None:
        self.id = id
        self.provider_id = provider_id
        self.name: str | None = None
        self.executed = False
        self.metadata: dict[str, Any] | None = None
        self.open = False
        self.settled = False
        self.size = 0
        """Characters of input so far."""
        self._pieces: list[str] = []
        self._joiner = SurrogateJoiner()

    @property
    def raw(self) -> str:
        """The input so far, without half a surrogate pair that still waits."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    def add(self, delta: str) -> str:
        text = self._joiner.feed(delta)
        self.size += len(delta)
        if text:
            self._pieces.append(text)
        return text

    def close(self) -> str:
        text = self._joiner.close()
        if text:
            self._pieces.append(text)
        return text


class _Prose:
    """The open fragment of the lane."""

    __slots__ = ("id", "joiner", "lane", "metadata")

    def __init__(self, id: str, lane: Lane) -> None:
        self.id = id
        self.lane: Lane = lane
        self.joiner = SurrogateJoiner()
        self.metadata: dict[str, Any] | None = None

    def delta(self, text: str) -> LLMEvent:
        return TextDelta(id=self.id, text=text) if self.lane == "text" else ReasoningDelta(id=self.id, text=text)


class Fragments:
    """Collects the events of one answer; `take` hands them over."""

    def __init__(self) -> None:
        self._events: list[LLMEvent] = []
        self._open: list[_Prose | CallFragment] = []
        self._prose: _Prose | None = None
        self._calls: list[CallFragment] = []
        self._count = 0

    @property
    def calls(self) -> list[CallFragment]:
        """All calls of this answer, named or not, in the order they came."""
        return self._calls

    @property
    def started(self) -> bool:
        """Whether any fragment was ever opened."""
        return self._count > 0

    def take(self) -> list[LLMEvent]:
        """The events since the last time."""
        events, self._events = self._events, []
        return events

    def report(self, tokens: Tokens) -> None:
        """What the answer has used until now."""
        self._events.append(UsageReported(tokens=tokens))

    def say(self, lane: Lane, delta: str, metadata: dict[str, Any] | None = None) -> None:
        """More text or reasoning. `metadata` goes with the end of the fragment; the last one given counts."""
        prose = self._prose
        if prose is None or prose.lane != lane:
            self.end_prose()
            prose = self._prose = _Prose(self._next_id(lane), lane)
            self._open.append(prose)
            self._events.append(TextStart(id=prose.id) if lane == "text" else ReasoningStart(id=prose.id))
        if metadata is not None:
            prose.metadata = metadata
        if text := prose.joiner.feed(delta):
            self._events.append(prose.delta(text))

    def end_prose(self) -> None:
        """The open text or reasoning, if there is any, is complete: what comes next is another fragment."""
        prose = self._prose
        if prose is None:
            return
        if text := prose.joiner.close():
            self._events.append(prose.delta(text))
        end = TextEnd if prose.lane == "text" else ReasoningEnd
        self._events.append(end(id=prose.id, metadata=_kept(prose.metadata)))
        self._open.remove(prose)
        self._prose = None

    def start_call(self, provider_id: str) -> CallFragment:
        """A further call. `provider_id` may be empty, and set later."""
        call = CallFragment(self._next_id("call"), provider_id)
        self._calls.append(call)
        return call

    def name_call(self, call: CallFragment, name: str) -> None:
        """The call's name came; it never changes afterwards."""
        self.end_prose()
        call.name = well_formed(name)
        call.open = True
        self._open.append(call)
        self._events.append(ToolInputStart(id=call.id, name=call.name))
        if call.raw:
            self._events.append(ToolInputDelta(id=call.id, text=call.raw))

    def extend_call(self, call: CallFragment, delta: str) -> None:
        """More input of a call."""
        text = call.add(delta)
        if text and call.open:
            self._events.append(ToolInputDelta(id=call.id, text=text))

    def complete_call(self, call: CallFragment) -> None:
        """The input of an executed call is complete, before the answer is."""
        if call.open:
            self._open.remove(call)
            self._end_call(call, complete=True)

    def settle_call(self, call: CallFragment, result: Any, *, is_error: bool, metadata: dict[str, Any] | None) -> None:
        """The result of an executed call, which completes it as well."""
        self.end_prose()
        self.complete_call(call)
        call.settled = True
        result = _kept(result)
        self._events.append(ToolResult(id=call.id, result=result, is_error=is_error, metadata=_kept(metadata)))

    def finish(self) -> list[LLMEvent]:
        """The answer is complete: everything ends, and every named call is a call."""
        return self._close(complete=True)

    def abandon(self) -> list[LLMEvent]:
        """The answer failed: everything ends with what arrived."""
        return self._close(complete=False)

    def _next_id(self, kind: str) -> str:
        self._count += 1
        return f"{kind}-{self._count}"

    def _close(self, *, complete: bool) -> list[LLMEvent]:
        for fragment in tuple(self._open):
            match fragment:
                case _Prose():
                    self.end_prose()
                case CallFragment():
                    self._end_call(fragment, complete=complete)
        self._open.clear()
        return self.take()

    def _end_call(self, call: CallFragment, *, complete: bool) -> None:
        call.open = False
        if text := call.close():
            self._events.append(ToolInputDelta(id=call.id, text=text))
        self._events.append(ToolInputEnd(id=call.id))
        if complete:
            self._events.append(_completed(call))


def _completed(call: CallFragment) -> ToolCall:
    raw = call.raw
    return ToolCall(
        id=call.id,
        provider_call_id=well_formed(call.provider_id),
        name=call.name or "",
        raw=raw,
        input=parse_arguments(raw),
        executed=call.executed,
        metadata=_kept(call.metadata),
    )


def _kept(value: Any) -> Any:
    return bounded_value(value, MAX_ARGUMENT_DEPTH)
