"""OpenAI Chat Completions as a provider speaks it: the path, the chunks of a stream, the shape of an error.

Rules:
- Sans-IO: parts in, bytes and steps out. Steps in time pass through unchanged.
- Every wire module offers the same names: `PATH`, `render`, `error_body`, `violations`, `usage_asked`.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
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
    event,
)
from support.openai_chat_rules import violations

__all__ = ["PATH", "chunk", "error_body", "render", "usage_asked", "violations"]

PATH = "/v1/chat/completions"

_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


class _Stream(msgspec.Struct):
    """What the chunks of one answer share: id, model, and the calls in order of appearance."""

    id: str
    model: str
    calls: list[Call]

    def chunk(self, delta: Mapping[str, Any], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return self.event({"choices": [choice]})

    def event(self, fields: Mapping[str, Any]) -> bytes:
        head = {"id": self.id, "object": "chat.completion.chunk", "created": 1, "model": self.model}
        return event(head | dict(fields)).data

    def call_start(self, call: Call, arguments: str) -> bytes:
        self.calls.append(call)
        entry: dict[str, Any] = {"index": self.index(call), "id": call.id, "type": "function"}
        if call.id is None:
            entry["id"] = f"call_{self.id}_{len(self.calls)}"
        entry["function"] = {"name": call.name, "arguments": arguments}
        return self.chunk({"tool_calls": [entry]})

    def index(self, call: Call) -> int:
        return self.calls.index(call) if call.index is None else call.index


def render(parts: Iterable[Part], *, number: int, model: str, with_usage: bool) -> Iterator[bytes | Step]:
    """Spell the parts of the answer to the request of this number; one item for each event, steps in between.

    A chunk with the assistant's role precedes the first part that needs one, as the vendor does it. Usage is left out
    when it was scripted by default and the request did not ask for it.
    """
    stream = _Stream(f"chatcmpl-{number}", model, [])
    role_sent = False
    for part in parts:
        if not role_sent and isinstance(part, Text | Reasoning | CallStart | Finish):
            role_sent = True
            yield stream.chunk({"role": "assistant", "content": ""})
        match part:
            case Text(content):
                yield stream.chunk({"content": content})
            case Reasoning(content, field):
                yield stream.chunk({field: content})
            case CallStart(call, arguments):
                yield stream.call_start(call, arguments)
            case CallDelta(call, arguments):
                yield stream.chunk({"tool_calls": [{"index": stream.index(call), "function": {"arguments": arguments}}]})
            case Finish(reason):
                yield stream.chunk({}, reason)
            case Usage() if with_usage or not part.if_asked:
                yield stream.event({"choices": [], "usage": _usage(part)})
            case Usage():
                pass
            case Done():
                yield b"data: [DONE]\n\n"
            case Raw(data):
                yield data
            case Hold() | Delay() | Cut():
                yield part


def chunk(delta: Mapping[str, Any], finish_reason: str | None = None) -> Raw:
    """A chunk with any delta, for dialects: object arguments, foreign fields, null content."""
    return Raw(_Stream("chatcmpl-x", "scripted", []).chunk(delta, finish_reason))


def usage_asked(body: Mapping[str, Any]) -> bool:
    """Tell whether the request wants a usage chunk."""
    match body:
        case {"stream_options": {"include_usage": True}}:
            return True
        case _:
            return False


def error_body(status: int, message: str) -> bytes:
    """The body of an error answer in the vendor's shape."""
    kind = _ERROR_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": None}}).encode()


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }
