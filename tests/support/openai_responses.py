"""OpenAI Responses as a provider speaks it: the path, the events of a stream, the shape of an error.

Rules:
- Sans-IO: parts in, bytes and steps out. Steps in time pass through unchanged.
- Output items open with their first delta and close when another begins; calls stay open, so that they can interleave.
- The finish waits for the mark of the end, which carries the whole response with its usage; the vendor always sends usage.
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
from support.openai_responses_rules import violations

__all__ = ["ENCRYPTED", "PATH", "error_body", "render", "usage_asked", "violations"]

PATH = "/v1/responses"
ENCRYPTED = "ZW5jcnlwdGVk"
"""The encrypted content of all scripted reasoning."""

_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
_NO_USAGE = Usage(0, 0, 0, 0, if_asked=False)


class _Stream(msgspec.Struct):
    """The output items of one answer so far. `open` is the index of the item that text or reasoning goes on in."""

    number: int
    model: str
    items: list[dict[str, Any]]
    calls: list[tuple[Call, int]]
    open: int | None = None
    sent: int = 0
    finish: str = "stop"
    usage: Usage = _NO_USAGE

    def event(self, type: str, **fields: Any) -> bytes:
        self.sent += 1
        return event({"type": type, "sequence_number": self.sent - 1, **fields}, type).data

    def response(self, status: str, **fields: Any) -> dict[str, Any]:
        head: dict[str, Any] = {"id": f"resp_{self.number}", "object": "response", "created_at": 1, "model": self.model}
        head |= {"status": status, "error": None, "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
        return head | fields

    def start(self) -> Iterator[bytes]:
        if not self.sent:
            yield self.event("response.created", response=self.response("in_progress", output=[], usage=None))

    def say(self, kind: str, text: str) -> Iterator[bytes]:
        if self.open is None or self.items[self.open]["type"] != kind:
            yield from self.end_prose()
            self.open = len(self.items)
            id = f"{'msg' if kind == 'message' else 'rs'}_{self.number}_{self.open}"
            item: dict[str, Any] = {"id": id, "type": kind}
            item |= {"role": "assistant", "status": "in_progress", "content": []} if kind == "message" else {"summary": []}
            self.items.append(item)
            yield self.event("response.output_item.added", output_index=self.open, item=item)
        item = self.items[self.open]
        where = {"item_id": item["id"], "output_index": self.open}
        item["text"] = item.get("text", "") + text
        if kind == "message":
            yield self.event("response.output_text.delta", **where, content_index=0, delta=text, logprobs=[])
        else:
            yield self.event("response.reasoning_summary_text.delta", **where, summary_index=0, delta=text)

    def end_prose(self) -> Iterator[bytes]:
        if self.open is None:
            return
        index, self.open = self.open, None
        item = self.items[index]
        text = item.pop("text")
        if item["type"] == "message":
            item |= {"status": "completed", "content": [{"type": "output_text", "text": text, "annotations": []}]}
        else:
            item |= {"summary": [{"type": "summary_text", "text": text}], "encrypted_content": ENCRYPTED}
        yield self.event("response.output_item.done", output_index=index, item=item)

    def call(self, call: Call, arguments: str) -> Iterator[bytes]:
        index = next((index for known, index in self.calls if known is call), None)
        if index is None:
            yield from self.end_prose()
            index = len(self.items)
            self.calls.append((call, index))
            id = call.id if call.id is not None else f"call_{self.number}_{index}"
            item = {"id": f"fc_{self.number}_{index}", "type": "function_call", "call_id": id, "name": call.name}
            self.items.append(item | {"arguments": "", "status": "in_progress"})
            yield self.event("response.output_item.added", output_index=index, item=self.items[index])
        item = self.items[index]
        if arguments:
            item["arguments"] += arguments
            where = {"item_id": item["id"], "output_index": index}
            yield self.event("response.function_call_arguments.delta", **where, delta=arguments)

    def end(self) -> Iterator[bytes]:
        yield from self.end_prose()
        for _, index in self.calls:
            item = self.items[index]
            item["status"] = "completed"
            where = {"item_id": item["id"], "output_index": index}
            yield self.event("response.function_call_arguments.done", **where, arguments=item["arguments"])
            yield self.event("response.output_item.done", output_index=index, item=item)

    def done(self) -> bytes:
        reason = _INCOMPLETE.get(self.finish)
        status = "incomplete" if reason else "completed"
        details = {"reason": reason} if reason else None
        response = self.response(status, output=self.items, incomplete_details=details, usage=_usage(self.usage))
        return self.event(f"response.{status}", response=response)


def render(parts: Iterable[Part], *, number: int, model: str, with_usage: bool) -> Iterator[bytes | Step]:
    """Spell the parts of the answer to the request of this number; `with_usage` changes nothing in this protocol."""
    stream = _Stream(number, model, [], [])
    for part in parts:
        if isinstance(part, Text | Reasoning | CallStart | Finish):
            yield from stream.start()
        match part:
            case Text(content):
                yield from stream.say("message", content)
            case Reasoning(content):
                yield from stream.say("reasoning", content)
            case CallStart(call, arguments) | CallDelta(call, arguments):
                yield from stream.call(call, arguments)
            case Finish(reason):
                yield from stream.end()
                stream.finish = reason
            case Usage():
                stream.usage = part
            case Done():
                yield stream.done()
            case Raw(data):
                yield data
            case Hold() | Delay() | Cut():
                yield part


def usage_asked(body: Mapping[str, Any]) -> bool:
    """Usage is always sent."""
    return True


def error_body(status: int, message: str) -> bytes:
    """The body of an error answer in the vendor's shape."""
    kind = _ERROR_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": None}}).encode()


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.completion,
    }
