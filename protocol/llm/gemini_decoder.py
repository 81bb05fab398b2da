"""Decodes answers of Google's Gemini API (`streamGenerateContent`), and of servers that are like it.

Rules:
- A finish reason is only remembered, and the end is the end of the body (or a proxy's `[DONE]`): usage may follow, there is no
  other mark, and some servers send a reason with every chunk. A body that ends without a reason is incomplete.
- Every chunk holds parts that came since the last one. Text goes on over chunks, thoughts are reasoning, a call comes whole.
- A signature belongs to the part it came with, and parts with one are never joined with others. One fragment holds many parts,
  so its Native Continuation Metadata say which characters were signed, and by what. A signed part without text belongs behind
  the text that is open; where none is, it says nothing. What the text was grounded on is kept there too. What is no base64 is
  no signature: sent back, it would make every further request invalid.
- Calls of the provider's own tools are executed calls; their results are kept as they came. A result without its call is passed
  over, as are parts of kinds that later versions add. Media among an answer are told as text, since nothing here holds them.
- The counts do not overlap, except that those of the prompt include the cached ones. Of each the largest counts.
- A call that the model could not write down (`MALFORMED_FUNCTION_CALL` and its like) fails the answer; another try may help.
- An error in the middle of a stream may stand there as bare JSON that is no event.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Any, Final

from ..values.failure import PROVIDER_CONTENT_FILTER, PROVIDER_INVALID_OUTPUT
from ..values.message import Finish
from ..values.model import CacheTokens, Tokens
from .answer import AnswerDecoder
from .classify import excerpt
from .events import LLMEvent
from .fragments import CallFragment, Lane
from .payload import json_text
from .shapes import count, mapping, sequence, string, word
from .sse import MAX_EVENT_BYTES
from .unicode import decode_json

PROTOCOL: Final = "gemini"

HOSTED: Final = {"executableCode": "codeExecutionResult", "toolCall": "toolResponse"}
"""Parts that tell of a tool the provider ran, and the parts with their results."""

_FINISHES: Final[dict[str, Finish]] = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    **dict.fromkeys(
        (
            *("SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR"),
            *("IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION"),
        ),
        "content-filter",
    ),
}
_FAILURES: Final = {
    "MALFORMED_FUNCTION_CALL": True,
    "UNEXPECTED_TOOL_CALL": True,
    "MALFORMED_RESPONSE": True,
    "TOO_MANY_TOOL_CALLS": False,
    "MISSING_THOUGHT_SIGNATURE": False,
}
"""Finish reasons of answers that are of no use, and whether the same request may do better."""
_RESULTS: Final = frozenset(HOSTED.values())
_SOURCES: Final = ("groundingMetadata", "citationMetadata", "urlContextMetadata")
_PLAIN: Final = frozenset(("content", "index"))
_BASE64: Final = re.compile(r"([A-Za-z0-9+/_-]+)={0,2}")
"""Either alphabet, padded or not, as Google's JSON takes bytes."""
_MAX_BARE: Final = 64 * 1024
_CODE_EXECUTION: Final = "code_execution"
_COUNTS: Final = (
    "promptTokenCount",
    "cachedContentTokenCount",
    "candidatesTokenCount",
    "thoughtsTokenCount",
    "toolUsePromptTokenCount",
)


class GeminiDecoder(AnswerDecoder):
    """One answer."""

    def __init__(self, limit: int = MAX_EVENT_BYTES) -> None:
        super().__init__(limit)
        self._usage: dict[str, int] = {}
        self._told: Any = None
        """What the last chunk said of usage: most say the same."""
        self._finish_reason = ""
        self._finish_message = ""
        self._lane: Lane | None = None
        """The lane of the open text or thought; what follows is of that fragment."""
        self._length = 0
        self._native: dict[str, Any] = {}
        self._pieces = 0
        self._waiting: dict[tuple[str, str], deque[CallFragment]] = {}
        """Hosted calls without a result, by the kind of part that it comes in and the call's id."""
        self._last = b"\n"
        """The byte before the piece that is fed."""
        self._bare: bytearray | None = None
        """All that came from a line on that begins with a brace."""

    def feed(self, data: bytes) -> list[LLMEvent]:
        """The events that `data` completes, in order."""
        events = super().feed(data)
        if not self._ended and self._document is None:
            self._look_for_bare(data)
        return events

    def _look_for_bare(self, data: bytes) -> None:
        if self._bare is None:
            if data[:1] == b"{" and self._last == b"\n":
                self._bare = bytearray(data)
            elif (end := data.find(b"\n{")) >= 0:
                self._bare = bytearray(data[end + 1 :])
            self._last = data[-1:] or self._last
        elif len(self._bare) <= _MAX_BARE:
            self._bare += data

    def _read_event(self, name: str, event: dict[str, Any]) -> None:
        usage = event.get("usageMetadata")
        if usage != self._told:
            self._told = usage
            self._read_usage(mapping(usage))
        if error := event.get("error"):
            self._provider_error(error)
            return
        for candidate in sequence(event.get("candidates")):
            self._read_candidate(mapping(candidate))
        if self._end is not None:
            return
        if reason := string(mapping(event.get("promptFeedback")).get("blockReason")):
            said = string(mapping(event["promptFeedback"]).get("blockReasonMessage"))
            self._fail(PROVIDER_CONTENT_FILTER, f"The provider refused the prompt ({_shown(reason, said)}).")
        elif self._tokens is not None and not self._finish_reason:
            self._report_usage()

    def _read_document(self, document: dict[str, Any]) -> None:
        self._read_event("message", document)
        if self._end is None:
            self._read_silence()

    def _read_body(self, body: bytes) -> None:
        """Without `alt=sse` a server sends one array of all chunks."""
        try:
            value = decode_json(body)
        except ValueError:
            value = None
        if not isinstance(value, list):
            super()._read_body(body)
            return
        for chunk in sequence(value):
            if self._end is None:
                self._read_event("message", mapping(chunk))
        if self._end is None:
            self._read_silence()

    def _read_mark(self) -> None:
        reason = self._finish_reason
        if not reason:
            return
        retryable = _FAILURES.get(reason)
        if retryable is not None:
            message = f"The provider gave up its answer ({_shown(reason, self._finish_message)})."
            self._fail(PROVIDER_INVALID_OUTPUT, message, retryable=retryable)
        else:
            self._finish(_FINISHES.get(reason, "unknown"), reason)

    def _read_silence(self) -> None:
        if self._bare is not None:
            self._read_bare(bytes(self._bare))
        if self._end is None:
            self._read_mark()

    def _read_bare(self, text: bytes) -> None:
        try:
            value = decode_json(text.strip())
        except ValueError:
            return
        if error := mapping(value).get("error"):
            self._provider_error(error)

    # --- parts --------------------------------------------------------------------------------------------------------

    def _read_candidate(self, candidate: dict[str, Any]) -> None:
        if candidate.get("index") not in (0, None):
            return  # one answer was asked for
        for part in sequence(mapping(candidate.get("content")).get("parts")):
            self._read_part(mapping(part))
        if candidate.keys() <= _PLAIN:  # nearly every chunk
            return
        if self._lane == "text":
            for name in _SOURCES:
                if (found := mapping(candidate.get(name))) and self._keep():
                    self._native[name] = found
                    self._say("text", "")
        reason = string(candidate.get("finishReason"))
        if reason and reason != "FINISH_REASON_UNSPECIFIED":
            self._finish_reason = reason
            self._finish_message = string(candidate.get("finishMessage"))

    def _read_part(self, part: dict[str, Any]) -> None:
        text = part.get("text")
        if isinstance(text, str):
            lane: Lane = "reasoning" if part.get("thought") is True else "text"
            if text and "thoughtSignature" not in part:
                self._say(lane, text)
            else:
                self._read_prose(lane, text, _signature(part))
            return
        for kind, value in part.items():
            match kind:
                case "functionCall":
                    self._read_call(mapping(value), part)
                case "executableCode" | "toolCall":
                    self._start_hosted(kind, mapping(value), part)
                case _ if kind in _RESULTS:
                    self._settle_hosted(kind, value, part)
                case "inlineData" | "fileData":
                    mime = string(mapping(value).get("mimeType")) or "unknown type"
                    self._say("text", f"\n[The model gave a file of {mime[:100]}, which is not kept here.]\n")
                case _:
                    pass

    def _read_prose(self, lane: Lane, text: str, signature: str) -> None:
        if not text and (not signature or self._lane != lane):
            return
        if not signature:
            self._say(lane, text)
        elif self._keep():
            if self._lane != lane:
                self._enter_lane(lane)
            start = self._length
            signed = {"start": start, "end": start + len(text), "signature": signature}
            self._native.setdefault("signed", []).append(signed)
            self._say(lane, text)

    def _say(self, lane: Lane, text: str) -> None:
        if self._lane != lane:
            self._enter_lane(lane)
        self._length += len(text)
        self._fragments.say(lane, text, {PROTOCOL: self._native} if self._native else None)

    def _enter_lane(self, lane: Lane) -> None:
        self._leave_lane()
        self._lane = lane
        self._pieces += 1
        self._count_pieces(self._pieces)

    def _leave_lane(self) -> None:
        """What comes next is of another fragment."""
        self._lane = None
        self._length = 0
        self._native = {}

    # --- calls --------------------------------------------------------------------------------------------------------

    def _start_call(self, name: str, native: dict[str, Any], part: dict[str, Any], *, executed: bool) -> CallFragment:
        call = self._fragments.start_call(word(native.get("id")))
        self._pieces += 1
        self._count_pieces(self._pieces)
        call.executed = executed
        if signature := _signature(part):
            native["signature"] = signature
        call.metadata = {PROTOCOL: native} if native else None
        if name:
            self._fragments.name_call(call, name)
            self._leave_lane()
        return call

    def _read_call(self, function: dict[str, Any], part: dict[str, Any]) -> None:
        if function.get("willContinue") is True or function.get("partialArgs"):
            self._fail(PROVIDER_INVALID_OUTPUT, "The provider sent the arguments of a call in pieces, which was not asked for.")
            return
        native = {"id": id} if (id := word(function.get("id"))) else {}
        call = self._start_call(word(function.get("name")), native, part, executed=False)
        match function.get("args"):
            case None:
                pass
            case str(text):
                self._extend_call(call, text)
            case args:
                self._extend_call(call, json_text(args))

    def _start_hosted(self, kind: str, body: dict[str, Any], part: dict[str, Any]) -> None:
        if kind == "executableCode":
            name, input = _CODE_EXECUTION, {name: value for name, value in body.items() if name != "id"}
            fields = {name: body[name] for name in ("id",) if name in body}
        else:
            name, input = word(body.get("toolType")).lower() or "unnamed_tool", mapping(body.get("args"))
            fields = {name: value for name, value in body.items() if name != "args"}
        native: dict[str, Any] = {"part": kind, "fields": fields}
        if not self._keep():
            return
        call = self._start_call(name, native, part, executed=True)
        call.provider_id = word(body.get("id"))
        self._extend_call(call, json_text(input))
        self._fragments.complete_call(call)
        self._waiting.setdefault((HOSTED[kind], call.provider_id), deque()).append(call)

    def _settle_hosted(self, kind: str, result: Any, part: dict[str, Any]) -> None:
        """The result of the oldest call that waits for one of its kind, and with its id if that has one."""
        id = word(mapping(result).get("id"))
        calls = self._waiting.get((kind, id)) or self._waiting.get((kind, ""))
        if not calls:
            return
        call = calls.popleft()
        native: dict[str, Any] = {"part": kind}
        if signature := _signature(part):
            native["signature"] = signature
        outcome = mapping(result).get("outcome", "OUTCOME_OK")
        self._fragments.settle_call(call, result, is_error=outcome != "OUTCOME_OK", metadata={PROTOCOL: native})
        self._leave_lane()

    # --- usage --------------------------------------------------------------------------------------------------------

    def _read_usage(self, usage: dict[str, Any]) -> None:
        if not usage:
            return
        found = self._usage
        changed = False
        for name in _COUNTS:
            value = count(usage.get(name))
            if value > found.get(name, 0):
                found[name] = value
                changed = True
        if not changed:
            return
        self.steps += 1
        prompt, cached, output, reasoning, tools = (found.get(name, 0) for name in _COUNTS)
        cached = min(cached, prompt)
        self._tokens = Tokens(
            input=prompt - cached + tools, output=output, reasoning=reasoning, cache=CacheTokens(read=cached, write=0)
        )


def _signature(part: dict[str, Any]) -> str:
    signature = string(part.get("thoughtSignature"))
    found = _BASE64.fullmatch(signature)
    return signature if found and len(found[1]) % 4 != 1 else ""


def _shown(reason: str, said: str) -> str:
    words = excerpt(said.encode("utf-8", "replace")) if said else ""
    name = excerpt(reason.encode("utf-8", "replace"))
    return f"{name}: {words}" if words else name
