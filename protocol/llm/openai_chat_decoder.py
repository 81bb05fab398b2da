"""Decodes answers of the OpenAI Chat Completions protocol, OpenAI's own and those of the many servers that are like it.

Rules:
- The explicit end is `[DONE]`, or a finish reason followed by the end of the body, since many servers send no `[DONE]`.
  Neither of them: the answer is incomplete, and asking again may help.
- A finish reason is only remembered; everything is closed at the end, so that nothing that still follows is lost, and no
  call of an answer that fails after all is ever executed.
- Valid JSON of a surprising shape is read as far as it makes sense and otherwise passed over. A line that is no JSON, or a
  call with input but without a name, is invalid output: nothing good can be made of the rest.
- A body that is no event stream is read too: an error object is classified, a whole completion gives the same events.
- Calls are told apart by `index`. A new id together with a name at a known index is a new call; so is another name
  without an id, or the same name again after a complete object. Without an index the id decides, then the name.
"""

from __future__ import annotations

from typing import Any, Final, cast

from ..values.failure import PROVIDER_INCOMPLETE, PROVIDER_INTERNAL, PROVIDER_INVALID_OUTPUT, Failure
from ..values.message import Finish
from ..values.model import CacheTokens, Tokens
from .arguments import parse_arguments
from .classify import classify_error, excerpt
from .events import Finished, LLMEvent, ProviderFailed
from .fragments import CallFragment, Fragments
from .payload import json_text
from .shapes import count, mapping, sequence, string, word
from .sse import MAX_EVENT_BYTES, EventTooLarge, ServerSentEvent, SseDecoder
from .unicode import decode_json, well_formed

REASONING_FIELD: Final = "reasoning_content"
"""The field that a provider which gives it also wants back. The metadata of such reasoning says so."""

REASONING_METADATA: Final = {"openai-chat": {"field": REASONING_FIELD}}

_FINISHES: Final[dict[str, Finish]] = {
    "stop": "stop",
    "end_turn": "stop",
    "eos": "stop",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "tool_calls": "tool-calls",
    "function_call": "tool-calls",
    "content_filter": "content-filter",
}
_MAX_HEAD: Final = 4096
_MAX_FINISH: Final = 100
_WHITESPACE: Final = b" \t\r\n"
_BOM: Final = b"\xef\xbb\xbf"


class OpenAIChatDecoder:
    """One answer. `limit` bounds an event, the input of a call and a body that is no stream, in bytes."""

    def __init__(self, limit: int = MAX_EVENT_BYTES) -> None:
        self._limit = limit
        self._sse = SseDecoder(limit)
        self._head: bytes | None = b""
        """The first bytes, until they show whether this is an event stream; None afterwards."""
        self._document: bytearray | None = None
        """The body, when it is no event stream."""
        self._fragments = Fragments()
        self._by_index: dict[int, CallFragment] = {}
        self._last_call: CallFragment | None = None
        self._finish: str | None = None
        self._refused = False
        self._tokens: Tokens | None = None
        self._ended = False

    def feed(self, data: bytes) -> list[LLMEvent]:
        """The events that `data` completes, in order."""
        if self._ended:
            return []
        if self._head is not None:
            self._head += data
            visible = self._head.removeprefix(_BOM).lstrip(_WHITESPACE)
            if len(self._head) < _MAX_HEAD and (not visible or _BOM.startswith(self._head)):
                return []
            data, self._head = self._head, None
            if visible and visible[:1] in b"{[<":
                self._document = bytearray()
        if self._document is not None:
            self._document += data
            return self._too_large(len(self._document))
        return self._read(self._sse.feed(data))

    def close(self) -> list[LLMEvent]:
        """The body ended."""
        if self._ended:
            return []
        if self._document is not None:
            return self._close_document(bytes(self._document))
        if self._finish is not None:
            return self._finished()
        return self._failed(PROVIDER_INCOMPLETE, "The provider's answer broke off before it was complete.", retryable=True)

    # --- the stream ---------------------------------------------------------------------------------------------------

    def _read(self, events: list[ServerSentEvent | EventTooLarge]) -> list[LLMEvent]:
        found: list[LLMEvent] = []
        for event in events:
            if isinstance(event, ServerSentEvent):
                found += self._read_event(event.event, event.data)
            else:
                found += self._too_large(self._limit + 1)
            if self._ended:
                break
        return found

    def _read_event(self, name: str, data: bytes) -> list[LLMEvent]:
        text = data.strip()
        if text == b"[DONE]":
            return self._finished()
        if not text:
            return []
        try:
            value = decode_json(text)
        except ValueError:
            if name == "error":
                return self._provider_error(text.decode("utf-8", "replace"))
            if name != "message":
                return []  # a ping of a proxy, or another event that is none of this protocol's
            return self._failed(PROVIDER_INVALID_OUTPUT, f"The provider sent a line that is no JSON: {excerpt(text)}")
        return self._read_value(name, value)

    def _read_value(self, name: str, value: Any) -> list[LLMEvent]:
        chunk = mapping(value)
        if chunk.get("usage"):
            self._tokens = _tokens(mapping(chunk["usage"])) or self._tokens
        error = chunk.get("error") or (chunk if chunk.get("object") == "error" or chunk.get("type") == "error" else None)
        if error or name == "error":
            return self._provider_error(error or value)
        for choice in sequence(chunk.get("choices")):
            self._read_choice(mapping(choice))
            if self._last_call is not None and self._last_call.size > self._limit:
                return self._too_large(self._last_call.size)
        return self._fragments.take()

    def _read_choice(self, choice: dict[str, Any]) -> None:
        if choice.get("index") not in (0, None):
            return  # one answer was asked for
        delta = mapping(choice.get("delta"))
        if not delta and not self._fragments.started:
            delta = mapping(choice.get("message"))
        if delta:
            self._read_delta(delta)
        finish = choice.get("finish_reason")
        if isinstance(finish, str) and finish:
            self._finish = well_formed(finish[:_MAX_FINISH])

    def _read_delta(self, delta: dict[str, Any]) -> None:
        fragments = self._fragments
        content = delta.get("content")
        if content and len(delta) == 1 and isinstance(content, str):  # nearly every delta
            fragments.say("text", content)
            return
        native = string(delta.get(REASONING_FIELD))
        if native:
            fragments.say("reasoning", native, REASONING_METADATA)
        elif reasoning := string(delta.get("reasoning")) or _reasoning_details(delta.get("reasoning_details")):
            fragments.say("reasoning", reasoning)
        if isinstance(content, str):
            if content:
                fragments.say("text", content)
        else:
            self._read_content_parts(sequence(content))
        if refusal := string(delta.get("refusal")):
            self._refused = True
            fragments.say("text", refusal)
        for call in sequence(delta.get("tool_calls")):
            self._read_call(mapping(call))
        if legacy := mapping(delta.get("function_call")):
            self._read_call({"index": 0, "function": legacy})

    def _read_content_parts(self, parts: list[Any]) -> None:
        """Some servers give content as a list of parts, thinking among them."""
        for part in map(mapping, parts):
            if text := string(part.get("text")):
                self._fragments.say("text", text)
            for thought in map(mapping, sequence(part.get("thinking"))):
                if text := string(thought.get("text")):
                    self._fragments.say("reasoning", text)

    # --- calls --------------------------------------------------------------------------------------------------------

    def _read_call(self, piece: dict[str, Any]) -> None:
        function = mapping(piece.get("function"))
        id = word(piece.get("id"))
        name = word(function.get("name"))
        arguments = function.get("arguments")
        if isinstance(arguments, dict | list):
            arguments = json_text(arguments)
        text = string(arguments)
        if not (id or name or text):
            return
        index = piece.get("index")
        index = index if isinstance(index, int) else None
        call = self._find_call(index, id, name, text)
        if call is None:
            call = self._fragments.start_call(id)
        elif id and not call.provider_id:
            call.provider_id = id
        if index is not None:
            self._by_index[index] = call
        self._last_call = call
        if name and call.name is None:
            self._fragments.name_call(call, name)
        if text:
            self._fragments.extend_call(call, text)

    def _find_call(self, index: int | None, id: str, name: str, text: str) -> CallFragment | None:
        """The call that a piece belongs to, or None when it begins one."""
        if index is not None:
            known = self._by_index.get(index)
        elif id:
            known = next((call for call in reversed(self._fragments.calls) if call.provider_id == id), None)
            last = self._last_call
            if known is None and last is not None and not (last.provider_id or last.name):
                known = last
        else:
            known = self._last_call
        if known is None or not name or known.name is None:
            return known
        if id and known.provider_id:
            return known if id == known.provider_id else None
        if well_formed(name) != known.name:
            return None
        return None if text.startswith("{") and _is_whole(known) else known

    # --- the end ------------------------------------------------------------------------------------------------------

    def _finished(self) -> list[LLMEvent]:
        if any(call.name is None for call in self._fragments.calls):
            return self._failed(PROVIDER_INVALID_OUTPUT, "The model called a tool without saying which.")
        raw = self._finish
        if raw == "error":
            return self._failed(PROVIDER_INTERNAL, "The provider ended its answer with an error.", retryable=True)
        finish: Finish = _FINISHES.get(raw, "unknown") if raw is not None else "unknown"
        if self._fragments.calls:
            finish = "tool-calls" if finish in ("stop", "unknown") else finish
        elif finish == "tool-calls":
            finish = "stop"
        if self._refused and finish in ("stop", "unknown"):
            finish = "content-filter"
        self._ended = True
        tokens = self._tokens or _NOTHING_USED
        return [*self._fragments.finish(), Finished(finish=finish, tokens=tokens, raw_finish=raw)]

    def _failed(self, type: str, message: str, *, retryable: bool = False) -> list[LLMEvent]:
        return self._end(ProviderFailed(failure=Failure(type=type, message=message), retryable=retryable))

    def _provider_error(self, error: Any) -> list[LLMEvent]:
        return self._end(classify_error(error))

    def _end(self, failed: ProviderFailed) -> list[LLMEvent]:
        self._ended = True
        if self._tokens is not None:
            failed = ProviderFailed(
                failure=failed.failure,
                retryable=failed.retryable,
                retry_after_ms=failed.retry_after_ms,
                tokens=self._tokens,
            )
        return [*self._fragments.abandon(), failed]

    def _too_large(self, size: int) -> list[LLMEvent]:
        if size <= self._limit:
            return []
        return self._failed(PROVIDER_INVALID_OUTPUT, f"The provider sent more than {self._limit} bytes in one piece.")

    def _close_document(self, body: bytes) -> list[LLMEvent]:
        try:
            value = decode_json(body)
        except ValueError:
            return self._failed(
                PROVIDER_INVALID_OUTPUT,
                f"The provider answered with something that is no event stream and no JSON: {excerpt(body)}",
            )
        if isinstance(value, list) and value:
            value = cast("list[Any]", value)[0]
        events = self._read_value("message", value)
        if self._ended:
            return events
        if not sequence(mapping(value).get("choices")):
            return events + self._failed(
                PROVIDER_INVALID_OUTPUT, f"The provider answered with JSON that is no completion: {excerpt(body)}"
            )
        return events + self._finished()


_NOTHING_USED: Final = Tokens(input=0, output=0, reasoning=0, cache=CacheTokens(read=0, write=0))


def _is_whole(call: CallFragment) -> bool:
    raw = call.raw
    return raw.endswith("}") and parse_arguments(raw) is not None


def _tokens(usage: dict[str, Any]) -> Tokens | None:
    """The parts that do not overlap, out of totals that include them; what a server counts wrongly is clamped."""
    if "prompt_tokens" not in usage and "completion_tokens" not in usage:
        return None
    prompt = mapping(usage.get("prompt_tokens_details"))
    completion = mapping(usage.get("completion_tokens_details"))
    total_in = count(usage.get("prompt_tokens"))
    total_out = count(usage.get("completion_tokens"))
    read = min(count(prompt.get("cached_tokens")) or count(usage.get("prompt_cache_hit_tokens")), total_in)
    write = min(count(prompt.get("cache_write_tokens")), total_in - read)
    reasoning = min(count(completion.get("reasoning_tokens")), total_out)
    return Tokens(
        input=total_in - read - write,
        output=total_out - reasoning,
        reasoning=reasoning,
        cache=CacheTokens(read=read, write=write),
    )


def _reasoning_details(value: Any) -> str:
    details = map(mapping, sequence(value))
    return "".join([string(detail.get("text")) or string(detail.get("summary")) for detail in details])
