"""Canonical events as tests write them, streams fed in pieces, and the order that every decoder owes its reader."""

import json
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from steerway.protocol.llm.adapter import Adapter
from steerway.protocol.llm.events import (
    Finished,
    LLMEvent,
    ProviderFailed,
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
from steerway.protocol.values.message import Finish
from steerway.protocol.values.model import NO_TOKENS, CacheTokens, Tokens

Metadata = dict[str, Any] | None


def line(value: Any) -> bytes:
    """One event of a stream, named by its type as both vendors do it; surrogates are escaped, as servers do it."""
    match value:
        case {"type": str(name)} if name.isascii() and name.isprintable():
            head = f"event: {name}\n".encode()
        case _:
            head = b""
    return head + b"data: " + json.dumps(value).encode() + b"\n\n"


def decode(adapter: Adapter, pieces: Iterable[bytes]) -> list[LLMEvent]:
    """All events of one answer that arrives in these pieces."""
    decoder = adapter.decoder()
    return [event for piece in pieces for event in decoder.feed(piece)] + decoder.close()


def byte_by_byte(stream: bytes) -> Iterable[bytes]:
    return (stream[at : at + 1] for at in range(len(stream)))


def cut_at(stream: bytes, cuts: Iterable[float]) -> list[bytes]:
    """The stream in pieces; each cut is a share of its length."""
    places = [0, *sorted(int(cut * len(stream)) for cut in cuts), len(stream)]
    return [stream[start:end] for start, end in pairwise(places)]


def text(number: int, *deltas: str, metadata: Metadata = None) -> list[LLMEvent]:
    id = f"text-{number}"
    return [TextStart(id=id), *(TextDelta(id=id, text=delta) for delta in deltas), TextEnd(id=id, metadata=metadata)]


def reasoning(number: int, *deltas: str, metadata: Metadata = None) -> list[LLMEvent]:
    id = f"reasoning-{number}"
    end = ReasoningEnd(id=id, metadata=metadata)
    return [ReasoningStart(id=id), *(ReasoningDelta(id=id, text=delta) for delta in deltas), end]


def tool(number: int, name: str, *deltas: str) -> list[LLMEvent]:
    id = f"call-{number}"
    return [ToolInputStart(id=id, name=name), *(ToolInputDelta(id=id, text=delta) for delta in deltas)]


def called(
    number: int,
    provider_id: str,
    name: str,
    raw: str,
    input: dict[str, Any] | None,
    *,
    executed: bool = False,
    metadata: Metadata = None,
) -> list[LLMEvent]:
    id = f"call-{number}"
    call = ToolCall(id=id, provider_call_id=provider_id, name=name, raw=raw, input=input, executed=executed, metadata=metadata)
    return [ToolInputEnd(id=id), call]


def settled(number: int, result: Any, *, is_error: bool = False, metadata: Metadata = None) -> ToolResult:
    return ToolResult(id=f"call-{number}", result=result, is_error=is_error, metadata=metadata)


def finished(finish: Finish, raw: str | None, tokens: Tokens = NO_TOKENS) -> Finished:
    return Finished(finish=finish, tokens=tokens, raw_finish=raw)


def used(input: int, output: int, reasoning: int = 0, read: int = 0, write: int = 0) -> Tokens:
    return Tokens(input=input, output=output, reasoning=reasoning, cache=CacheTokens(read=read, write=write))


def check_order(events: list[LLMEvent]) -> None:
    """Assert what every reader relies on: starts before deltas before ends, ids and usage once, one end that is the last."""
    assert isinstance(events[-1], Finished | ProviderFailed)
    open_ids: dict[str, str] = {}
    seen: set[str] = set()
    calls: set[str] = set()
    assert sum(isinstance(event, UsageReported) for event in events) <= 1
    for event in events[:-1]:
        match event:
            case TextStart(id=id) | ReasoningStart(id=id) | ToolInputStart(id=id):
                assert id not in seen
                seen.add(id)
                open_ids[id] = type(event).__name__[:4]
            case TextDelta(id=id, text=delta) | ReasoningDelta(id=id, text=delta) | ToolInputDelta(id=id, text=delta):
                assert open_ids[id] == type(event).__name__[:4]
                assert delta
                delta.encode()
            case TextEnd(id=id) | ReasoningEnd(id=id) | ToolInputEnd(id=id):
                assert open_ids.pop(id) == type(event).__name__[:4]
            case ToolCall(id=id, name=name):
                assert id in seen
                assert id not in open_ids
                assert id not in calls
                assert name
                calls.add(id)
            case ToolResult(id=id):
                assert id in calls
                calls.remove(id)
            case UsageReported(tokens=tokens):
                assert tokens != NO_TOKENS
            case _:
                raise AssertionError(f"{event} before the end")
    assert not open_ids
