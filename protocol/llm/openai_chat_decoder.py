"""Decodes answers of the OpenAI Chat Completions protocol, OpenAI's own and those of the many servers that are like it.

Rules:
- The explicit end is `[DONE]`, or a finish reason followed by the end of the body, since many servers send no `[DONE]`.
  Neither of them: the answer is incomplete, and asking again may help.
- A finish reason is only remembered; everything is closed at the end, so that nothing that still follows is lost, and no
  call of an answer that fails after all is ever executed.
- Valid JSON of a surprising shape is read as far as it makes sense and otherwise passed over. A call with input but without
  a name is invalid output: nothing good can be made of the rest. Events have no names here; one that has is a proxy's.
- Usage that comes before the finish reason is what was used until then; it is told once. Reasoning is a part of what was
  completed, except where the total says that the server counted it besides (xAI, and proxies before Gemini).
- Finish reasons that say that the server gave up (`error`, `abort`, no resources) fail the answer; another try may help.
- Calls are told apart by `index`. A new id together with a name at a known index is a new call; so is another name
  without an id, or the same name again after a complete object. Without an index the id decides, then the name.
"""

from __future__ import annotations

from typing import Any, Final

from ..values.failure import PROVIDER_INTERNAL
from ..values.message import Finish
from ..values.model import CacheTokens, Tokens
from .answer import AnswerDecoder
from .arguments import parse_arguments
from .fragments import CallFragment
from .payload import json_text
from .shapes import count, mapping, sequence, string, word
from .sse import MAX_EVENT_BYTES
from .unicode import well_formed

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


_FAILURES: Final = ("error", "abort", "insufficient_system_resource")


class OpenAIChatDecoder(AnswerDecoder):
    """One answer."""

    def __init__(self, limit: int = MAX_EVENT_BYTES) -> None:
        super().__init__(limit)
        self._by_index: dict[int, CallFragment] = {}
        self._last_call: CallFragment | None = None
        self._finish_reason: str | None = None
        self._refused = False

    def _read_event(self, name: str, event: dict[str, Any]) -> None:
        usage = event.get("usage")
        if usage:
            self._tokens = _tokens(mapping(usage)) or self._tokens
        error = event.get("error") or (event if event.get("object") == "error" or event.get("type") == "error" else None)
        if error or name == "error":
            self._provider_error(error or event)
            return
        for choice in sequence(event.get("choices")):
            self._read_choice(mapping(choice))
        if usage and self._finish_reason is None:
            self._report_usage()

    def _read_document(self, document: dict[str, Any]) -> None:
        self._read_event("message", document)
        if self._end is None and sequence(document.get("choices")):
            self._read_mark()

    def _read_mark(self) -> None:
        raw = self._finish_reason
        if raw in _FAILURES:
            self._fail(PROVIDER_INTERNAL, f"The provider ended its answer with an error ({raw}).", retryable=True)
            return
        finish: Finish = _FINISHES.get(raw, "unknown") if raw is not None else "unknown"
        self._finish(finish, raw or "", refused=self._refused)

    def _read_silence(self) -> None:
        if self._finish_reason is not None:
            self._read_mark()

    def _concerns(self, name: str) -> bool:
        return name in ("message", "error")

    # --- choices ------------------------------------------------------------------------------------------------------

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
            self._finish_reason = finish
            self.steps += 1

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
            self._count_pieces(len(self._fragments.calls))
        elif id and not call.provider_id:
            call.provider_id = id
        if index is not None:
            self._by_index[index] = call
        self._last_call = call
        if name and call.name is None:
            self._fragments.name_call(call, name)
        if text:
            self._extend_call(call, text)

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
    reasoning = count(completion.get("reasoning_tokens"))
    if reasoning and count(usage.get("total_tokens")) == total_in + total_out + reasoning:
        total_out += reasoning
    reasoning = min(reasoning, total_out)
    return Tokens(
        input=total_in - read - write,
        output=total_out - reasoning,
        reasoning=reasoning,
        cache=CacheTokens(read=read, write=write),
    )


def _reasoning_details(value: Any) -> str:
    details = map(mapping, sequence(value))
    return "".join([string(detail.get("text")) or string(detail.get("summary")) for detail in details])
