"""Canonical LLM events: what every provider protocol is decoded into.

Rules:
- Ids here are the provider's, or the adapter's own counters; they are unique only within one stream, and may repeat across
  turns. The turn gives parts and calls their durable identity.
- A decoder gives events in the order things arrived: a start before its deltas, deltas before the end, each id once. All
  strings are well-formed Unicode (ruling B13).
- `Finished` is the protocol's explicit end. A stream without it failed (`ProviderFailed`), however much text it gave.
- After `Finished` or `ProviderFailed` a decoder gives nothing more.
"""

from __future__ import annotations

from typing import Any

from ..values.failure import Failure
from ..values.message import Finish
from ..values.model import Tokens
from ..values.value import Value


class TextStart(Value):
    id: str


class TextDelta(Value):
    id: str
    text: str


class TextEnd(Value):
    id: str
    metadata: dict[str, Any] | None = None


class ReasoningStart(Value):
    id: str


class ReasoningDelta(Value):
    id: str
    text: str


class ReasoningEnd(Value):
    id: str
    metadata: dict[str, Any] | None = None


class ToolInputStart(Value):
    id: str
    name: str


class ToolInputDelta(Value):
    id: str
    text: str


class ToolInputEnd(Value):
    id: str


class ToolCall(Value):
    """A complete call. `input` is the parsed object, or None when `raw` is not one (the turn settles such a call as failed).

    `provider_call_id` is what the provider will want back beside the result. `executed`: run by the provider itself.
    """

    id: str
    provider_call_id: str
    name: str
    raw: str
    input: dict[str, Any] | None
    executed: bool = False
    metadata: dict[str, Any] | None = None


class ToolResult(Value):
    """The result of a provider-executed call, verbatim."""

    id: str
    result: Any
    is_error: bool = False
    metadata: dict[str, Any] | None = None


class UsageReported(Value):
    """What the answer has used until now, where a provider says so before the end; the end's own figures take its place."""

    tokens: Tokens


class Finished(Value):
    """The explicit end. `raw_finish` is the provider's own word for it.

    `paused`: the provider broke off work of its own, and goes on with it when it is given back what it said.
    """

    finish: Finish
    tokens: Tokens
    raw_finish: str | None = None
    paused: bool = False


class ProviderFailed(Value):
    """The provider, or the way to it, failed.

    `retryable` says whether the same request may work later; `retry_after_ms` is the provider's own wish.
    """

    failure: Failure
    retryable: bool = False
    retry_after_ms: int | None = None
    tokens: Tokens | None = None


LLMEvent = (
    TextStart
    | TextDelta
    | TextEnd
    | ReasoningStart
    | ReasoningDelta
    | ReasoningEnd
    | ToolInputStart
    | ToolInputDelta
    | ToolInputEnd
    | ToolCall
    | ToolResult
    | UsageReported
    | Finished
    | ProviderFailed
)
