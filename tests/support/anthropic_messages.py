"""Anthropic Messages as a provider speaks it: the path, the events of a stream, the shape of an error.

Rules:
- Sans-IO: parts in, bytes and steps out. Steps in time pass through unchanged.
- Content blocks open with their first delta and close when another begins; calls stay open, so that they can interleave.
- The finish waits for the usage that goes with it in one event; the vendor always sends usage.
- It offers the names of every wire module: `PATH`, `render`, `error_body`, `violations`, `usage_asked`.
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
from support.anthropic_messages_rules import violations

__all__ = ["PATH", "SIGNATURE", "error_body", "render", "usage_asked", "violations"]

PATH = "/v1/messages"
SIGNATURE = "c2lnbmVk"
"""What all scripted thinking is signed with."""

_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
_FINISHES = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_NO_USAGE = Usage(0, 0, 0, 0, if_asked=False)


class _Stream(msgspec.Struct):
    """The blocks of one answer so far; `prose` is the index of the open block of text or thinking."""

    number: int
    model: str
    blocks: list[Call | type[Text] | type[Reasoning]]
    prose: int | None = None
    started: bool = False
    finish: str | None = None

    def start(self) -> Iterator[bytes]:
        if not self.started:
            self.started = True
            usage = {"input_tokens": 0, "output_tokens": 1}
            yield _event(
                "message_start",
                message={
                    "id": f"msg_{self.number}",
                    "type": "message",
                    "role": "assistant",
                    "model": self.model,
                    "content": [],
                    "stop_reason": None,
                    "stop_sequence": None,
                    "usage": usage,
                },
            )

    def say(self, kind: type[Text] | type[Reasoning], delta: Mapping[str, Any]) -> Iterator[bytes]:
        if self.prose is None or self.blocks[self.prose] is not kind:
            yield from self.end_prose()
            block = {"type": "text", "text": ""} if kind is Text else {"type": "thinking", "thinking": "", "signature": ""}
            self.prose = len(self.blocks)
            self.blocks.append(kind)
            yield _event("content_block_start", index=self.prose, content_block=block)
        yield _event("content_block_delta", index=self.prose, delta=delta)

    def end_prose(self) -> Iterator[bytes]:
        if self.prose is not None:
            index, self.prose = self.prose, None
            if self.blocks[index] is Reasoning:
                yield _event("content_block_delta", index=index, delta={"type": "signature_delta", "signature": SIGNATURE})
            yield _event("content_block_stop", index=index)

    def call(self, call: Call, arguments: str) -> Iterator[bytes]:
        if call not in self.blocks:
            yield from self.end_prose()
            self.blocks.append(call)
            id = call.id if call.id is not None else f"toolu_{self.number}_{len(self.blocks)}"
            block: dict[str, Any] = {"type": "tool_use", "id": id, "name": call.name, "input": {}}
            yield _event("content_block_start", index=self.blocks.index(call), content_block=block)
        if arguments:
            delta = {"type": "input_json_delta", "partial_json": arguments}
            yield _event("content_block_delta", index=self.blocks.index(call), delta=delta)

    def end(self) -> Iterator[bytes]:
        yield from self.end_prose()
        for index, block in enumerate(self.blocks):
            if isinstance(block, Call):
                yield _event("content_block_stop", index=index)

    def told(self, usage: Usage) -> Iterator[bytes]:
        if self.finish is not None:
            delta = {"stop_reason": _FINISHES.get(self.finish, self.finish), "stop_sequence": None}
            self.finish = None
            yield _event("message_delta", delta=delta, usage=_usage(usage))


def render(parts: Iterable[Part], *, number: int, model: str, with_usage: bool) -> Iterator[bytes | Step]:
    """Spell the parts of the answer to the request of this number; `with_usage` changes nothing in this protocol."""
    stream = _Stream(number, model, [])
    for part in parts:
        if isinstance(part, Text | Reasoning | CallStart | Finish):
            yield from stream.start()
        match part:
            case Text(content):
                yield from stream.say(Text, {"type": "text_delta", "text": content})
            case Reasoning(content):
                yield from stream.say(Reasoning, {"type": "thinking_delta", "thinking": content})
            case CallStart(call, arguments) | CallDelta(call, arguments):
                yield from stream.call(call, arguments)
            case Finish(reason):
                yield from stream.end()
                stream.finish = reason
            case Usage():
                yield from stream.told(part)
            case Done():
                yield from stream.told(_NO_USAGE)
                yield _event("message_stop")
            case Raw(data):
                yield data
            case Hold() | Delay() | Cut():
                yield part
    yield from stream.told(_NO_USAGE)


def usage_asked(body: Mapping[str, Any]) -> bool:
    """Usage is always sent."""
    return True


def error_body(status: int, message: str) -> bytes:
    """The body of an error answer in the vendor's shape."""
    kind = _ERROR_TYPES.get(status, "api_error")
    return json.dumps({"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}).encode()


def _event(type: str, **fields: Any) -> bytes:
    return event({"type": type, **fields}, type).data


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_read_input_tokens": usage.cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion,
        "output_tokens_details": {"thinking_tokens": usage.reasoning},
    }
