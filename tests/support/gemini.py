"""Google's Gemini API as a provider speaks it: the path, the chunks of a stream, the shape of an error.

Rules:
- Sans-IO: parts in, bytes and steps out. Steps in time pass through unchanged.
- Arguments never come in pieces: the calls of an answer are held back until something else is said, then each is one part.
- Signatures come as Gemini 3 gives them: on the first call, or on an empty part of text in the last chunk.
- Every chunk says what the prompt took, the last one everything, if the script has usage at all. Lines end in CRLF.
- It offers the names of every wire module: `PATH`, `render`, `error_body`, `violations`, `usage_asked`.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from support.answers import (
    Call,
    CallDelta,
    CallStart,
    Cut,
    Delay,
    Done,
    Finish,
    Hold,
    Part,
    Raw,
    Reasoning,
    Step,
    Text,
    Usage,
)
from support.gemini_rules import violations

__all__ = ["METHOD", "PATH", "SIGNATURE", "chunk", "error_body", "render", "usage_asked", "violations"]

METHOD = ":streamGenerateContent"
PATH = f"/v1/models/{{model}}{METHOD}"
SIGNATURE = "Z2VtaW5pIHdhcyBoZXJl"
"""What all scripted answers are signed with."""

_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_FINISHES = {"stop": "STOP", "length": "MAX_TOKENS", "tool_calls": "STOP", "content_filter": "SAFETY"}


class _Stream(msgspec.Struct):
    """What the chunks of one answer share, and the calls that wait."""

    number: int
    model: str
    usage: Usage | None
    calls: dict[int, tuple[Call, str]]
    finish: str | None = None
    signed: bool = False

    def chunk(self, *parts: Mapping[str, Any], finish: str | None = None) -> bytes:
        candidate: dict[str, Any] = {"content": {"parts": parts, "role": "model"}} if parts else {}
        if finish is not None:
            candidate["finishReason"] = finish
        body: dict[str, Any] = {"candidates": [{**candidate, "index": 0}]}
        if self.usage is not None:
            body["usageMetadata"] = _usage(self.usage) if finish else _prompt(self.usage)
        return chunk({**body, "modelVersion": self.model, "responseId": f"response-{self.number}"})

    def take_calls(self) -> Iterator[bytes]:
        for call, raw in self.calls.values():
            function: dict[str, Any] = {"name": call.name, "args": _arguments(raw)}
            if call.id is not None:
                function["id"] = call.id
            part: dict[str, Any] = {"functionCall": function}
            if not self.signed:
                part["thoughtSignature"] = SIGNATURE
                self.signed = True
            yield self.chunk(part)
        self.calls.clear()

    def end(self) -> Iterator[bytes]:
        yield from self.take_calls()
        if self.finish is not None:
            finish, self.finish = self.finish, None
            last = () if self.signed else ({"text": "", "thoughtSignature": SIGNATURE},)
            yield self.chunk(*last, finish=_FINISHES.get(finish, finish))


def render(parts: Iterable[Part], *, number: int, model: str, with_usage: bool) -> Iterator[bytes | Step]:
    """Spell the parts of the answer to the request of this number; `with_usage` changes nothing in this protocol."""
    script = tuple(parts)
    usage = next((part for part in script if isinstance(part, Usage)), None)
    stream = _Stream(number, model, usage, {})
    for part in script:
        match part:
            case Text(content):
                yield from stream.take_calls()
                yield stream.chunk({"text": content})
            case Reasoning(content):
                yield from stream.take_calls()
                yield stream.chunk({"text": content, "thought": True})
            case CallStart(call, arguments) | CallDelta(call, arguments):
                _, raw = stream.calls.get(id(call), (call, ""))
                stream.calls[id(call)] = (call, raw + arguments)
            case Finish(reason):
                yield from stream.take_calls()
                stream.finish = reason
            case Usage() | Done():
                yield from stream.end()
            case Raw(data):
                yield from stream.take_calls()
                yield data
            case Hold() | Delay() | Cut():
                yield part
    yield from stream.end()


def chunk(body: Mapping[str, Any] | Sequence[Any]) -> bytes:
    """One event of a stream."""
    return b"data: " + json.dumps(body).encode() + b"\r\n\r\n"


def usage_asked(body: Mapping[str, Any]) -> bool:
    """Usage is always sent."""
    return True


def error_body(status: int, message: str) -> bytes:
    """The body of an error answer in the vendor's shape."""
    error = {"code": status, "message": message, "status": _STATUSES.get(status, "INTERNAL")}
    return json.dumps({"error": error}, indent=2).encode()


def _arguments(raw: str) -> Any:
    """The object that the text stands for; what stands for none goes out as the text."""
    try:
        return json.loads(raw)
    except ValueError:
        return raw


def _prompt(usage: Usage) -> dict[str, Any]:
    details = [{"modality": "TEXT", "tokenCount": usage.prompt}]
    return {"promptTokenCount": usage.prompt, "totalTokenCount": usage.prompt, "promptTokensDetails": details}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        **_prompt(usage),
        "cachedContentTokenCount": usage.cached,
        "candidatesTokenCount": usage.completion - usage.reasoning,
        "thoughtsTokenCount": usage.reasoning,
        "totalTokenCount": usage.prompt + usage.completion,
    }
