"""Decodes answers of the Anthropic Messages protocol, Anthropic's own and those of servers that are like it.

Rules:
- The explicit end is `message_stop`; a stop reason without it is none, since the last events carry usage and may be lost.
- Content comes in blocks, each with its start, deltas and stop. Every block of text or thinking is a fragment of its own,
  because its signature or its citations belong to it alone. A block whose stop is missing ends with the next one.
- Thinking keeps its signature, redacted thinking its data, text its citations, as Native Continuation Metadata. Thinking
  whose text the provider keeps to itself is reasoning without text.
- Server tools: the call is complete at its stop, the result is one block and kept verbatim. A result whose call is not in
  this answer is passed over; so are blocks, deltas and events that later versions add.
- `input_tokens` is without the cache already. Usage is cumulative: of each number the largest counts. That of the start is
  told at once, since it is nearly all that an answer which is broken off has cost.
"""

from __future__ import annotations

from typing import Any, Final

from ..values.message import Finish
from ..values.model import CacheTokens, Tokens
from .answer import AnswerDecoder
from .fragments import CallFragment
from .payload import json_text
from .shapes import count, mapping, place, sequence, string, word
from .sse import MAX_EVENT_BYTES

PROTOCOL: Final = "anthropic-messages"

_PAUSED: Final = "pause_turn"
"""The work of server tools takes long, and goes on with the next request."""
_FINISHES: Final[dict[str, Finish]] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    _PAUSED: "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool-calls",
    "refusal": "content-filter",
}
_STATUSES: Final = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""What an error that comes inside a stream would have been as an answer."""
_COUNTS: Final = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_CALLS: Final = ("tool_use", "server_tool_use", "mcp_tool_use")


class _Block:
    """A content block that is open. `metadata` is collected while it is written."""

    __slots__ = ("call", "input", "metadata", "type")

    def __init__(self, type: str) -> None:
        self.type = type
        self.call: CallFragment | None = None
        self.input: dict[str, Any] = {}
        """Input that came whole with the start; what deltas write counts before it."""
        self.metadata: dict[str, Any] = {}


class AnthropicMessagesDecoder(AnswerDecoder):
    """One answer."""

    def __init__(self, limit: int = MAX_EVENT_BYTES) -> None:
        super().__init__(limit)
        self._blocks: dict[int, _Block] = {}
        self._writing: _Block | None = None
        """The block that the open text or reasoning belongs to."""
        self._begun = 0
        """Blocks that began."""
        self._usage: dict[str, int] = {}
        self._stop_reason = ""

    def _read_event(self, name: str, event: dict[str, Any]) -> None:
        match string(event.get("type")) or name:
            case "content_block_delta":
                self._read_delta(place(event.get("index")) or 0, mapping(event.get("delta")))
            case "content_block_start":
                self._start(place(event.get("index")) or 0, mapping(event.get("content_block")))
            case "content_block_stop":
                self._stop(place(event.get("index")) or 0)
            case "message_start":
                self._read_usage(mapping(mapping(event.get("message")).get("usage")))
                self._report_usage()
                self.steps += 1
            case "message_delta":
                self._read_usage(mapping(event.get("usage")))
                self._stop_reason = string(mapping(event.get("delta")).get("stop_reason")) or self._stop_reason
                self.steps += 1
            case "message_stop":
                self._stopped()
            case "error":
                self._read_error(event.get("error") or event)
            case _:
                if event.get("error"):
                    self._read_error(event["error"])

    def _read_document(self, document: dict[str, Any]) -> None:
        if document.get("error") or document.get("type") == "error":
            self._read_error(document.get("error") or document)
            return
        if "content" not in document:
            return
        for index, block in enumerate(sequence(document.get("content"))):
            self._start(index, mapping(block))
            self._stop(index)
        self._read_usage(mapping(document.get("usage")))
        self._stop_reason = string(document.get("stop_reason"))
        if self._end is None:
            self._stopped()

    def _stopped(self) -> None:
        reason = self._stop_reason
        self._finish(_FINISHES.get(reason, "unknown"), reason, paused=reason == _PAUSED)

    def _read_error(self, error: Any) -> None:
        said = mapping(error)
        status = _STATUSES.get(string(said.get("type")))
        self._provider_error({**said, "status": status} if status else error)

    # --- blocks -------------------------------------------------------------------------------------------------------

    def _start(self, index: int, start: dict[str, Any]) -> None:
        self._stop(index)
        self.steps += 1
        self._begun += 1
        self._count_pieces(self._begun)
        type = string(start.get("type"))
        block = self._blocks[index] = _Block(type)
        match type:
            case "text":
                self._fragments.end_prose()
                self._writing = None
                for citation in sequence(start.get("citations")):
                    self._cite(block, citation)
                if text := string(start.get("text")):
                    self._write(block, "text", text)
            case "thinking":
                self._sign(block, string(start.get("signature")))
                self._write(block, "reasoning", string(start.get("thinking")))
            case "redacted_thinking":
                block.metadata["redacted"] = string(start.get("data"))
                self._write(block, "reasoning", "")
            case _ if type in _CALLS:
                self._start_call(block, start)
            case _ if type.endswith("_tool_result"):
                self._read_result(type, start)
            case _:
                pass

    def _read_delta(self, index: int, delta: dict[str, Any]) -> None:
        type = string(delta.get("type"))
        block = self._blocks.get(index)
        if block is None:
            if type not in ("text_delta", "thinking_delta"):
                return
            block = self._blocks[index] = _Block("text" if type == "text_delta" else "thinking")
        match type:
            case "text_delta":
                if text := string(delta.get("text")):
                    self._write(block, "text", text)
            case "thinking_delta":
                self._write(block, "reasoning", string(delta.get("thinking")))
            case "signature_delta":
                self._sign(block, string(delta.get("signature")))
                self._write(block, "reasoning", "")
            case "citations_delta":
                self._cite(block, delta.get("citation"))
                self._write(block, "text", "")
            case "input_json_delta":
                if block.call is not None and (text := string(delta.get("partial_json"))):
                    self._extend_call(block.call, text)
            case _:
                pass

    def _write(self, block: _Block, lane: str, text: str) -> None:
        if self._writing is not block:
            self._fragments.end_prose()
            self._writing = block
        metadata = {PROTOCOL: block.metadata} if block.metadata else None
        self._fragments.say("text" if lane == "text" else "reasoning", text, metadata)

    def _sign(self, block: _Block, signature: str) -> None:
        if signature and self._keep():
            block.metadata["signature"] = string(block.metadata.get("signature")) + signature

    def _cite(self, block: _Block, citation: Any) -> None:
        if isinstance(citation, dict) and self._keep():
            block.metadata.setdefault("citations", []).append(citation)

    def _stop(self, index: int) -> None:
        block = self._blocks.pop(index, None)
        if block is None:
            return
        if block is self._writing:
            self._fragments.end_prose()
            self._writing = None
        call = block.call
        if call is not None:
            if not call.size and block.input:
                self._extend_call(call, json_text(block.input))
            if call.executed:
                self._fragments.complete_call(call)

    # --- calls --------------------------------------------------------------------------------------------------------

    def _start_call(self, block: _Block, start: dict[str, Any]) -> None:
        call = block.call = self._fragments.start_call(word(start.get("id")))
        call.executed = block.type != "tool_use"
        block.input = mapping(start.get("input"))
        kept = {name: value for name, value in start.items() if name not in ("id", "input", "name", "type")}
        if mapping(kept.get("caller")).get("type") == "direct":
            del kept["caller"]
        if call.executed:
            kept = {"type": block.type, **kept}
        if kept:
            call.metadata = {PROTOCOL: kept}
        if name := word(start.get("name")):
            self._fragments.name_call(call, name)
            self._writing = None

    def _read_result(self, type: str, start: dict[str, Any]) -> None:
        id = word(start.get("tool_use_id"))
        call = next((call for call in self._fragments.calls if call.executed and call.provider_id == id), None)
        if call is None or call.name is None or call.settled:
            return
        for index, block in tuple(self._blocks.items()):
            if block.call is call:
                self._stop(index)
        content = start.get("content")
        kept = {name: value for name, value in start.items() if name not in ("content", "tool_use_id")}
        failed = start.get("is_error") is True or string(mapping(content).get("type")).endswith("_error")
        self._fragments.settle_call(call, content, is_error=failed, metadata={PROTOCOL: kept})
        self._writing = None

    # --- usage --------------------------------------------------------------------------------------------------------

    def _read_usage(self, usage: dict[str, Any]) -> None:
        if not usage:
            return
        details = mapping(usage.get("output_tokens_details"))
        counts = [(name, usage.get(name)) for name in _COUNTS]
        for name, value in (*counts, ("thinking_tokens", details.get("thinking_tokens"))):
            self._usage[name] = max(self._usage.get(name, 0), count(value))
        found = self._usage
        output = found.get("output_tokens", 0)
        reasoning = min(found.get("thinking_tokens", 0), output)
        self._tokens = Tokens(
            input=found.get("input_tokens", 0),
            output=output - reasoning,
            reasoning=reasoning,
            cache=CacheTokens(read=found.get("cache_read_input_tokens", 0), write=found.get("cache_creation_input_tokens", 0)),
        )
