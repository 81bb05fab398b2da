"""A provider request before any wire format: what is said, and how it should be answered.

Three separate domains never mix (seed: Generation Controls, Model Request Options): `generation` is neutral, `options` is
what the provider's own semantics take, `body` is compatibility fields laid over the final JSON, last.
"""

from __future__ import annotations

from typing import Any, Literal

from ..values.tool import ToolDefinition
from ..values.value import Value


class Text(Value, tag_field="type", tag="text"):
    """`metadata` is Native Continuation Metadata of an answer's text; a user's text has none."""

    text: str
    metadata: dict[str, Any] | None = None


class Media(Value, tag_field="type", tag="media"):
    data: bytes
    mime: str
    name: str | None = None


class Reasoning(Value, tag_field="type", tag="reasoning"):
    text: str
    metadata: dict[str, Any] | None = None


class Call(Value, tag_field="type", tag="call"):
    """A tool call the model made. `id` pairs it with its `ToolMessage`, and is unique within the request.

    A call that the provider executed itself has no `ToolMessage`: its `result` stands here, verbatim; `is_error` says
    that there was none, and that `result` was made here in its place.
    """

    id: str
    name: str
    input: dict[str, Any]
    executed: bool = False
    result: Any = None
    is_error: bool = False
    metadata: dict[str, Any] | None = None
    result_metadata: dict[str, Any] | None = None


class UserMessage(Value, tag_field="role", tag="user"):
    content: tuple[Text | Media, ...]


class AssistantMessage(Value, tag_field="role", tag="assistant"):
    content: tuple[Text | Reasoning | Call, ...]


class ToolMessage(Value, tag_field="role", tag="tool"):
    """The one result of a locally executed call."""

    call_id: str
    name: str
    content: tuple[Text | Media, ...]
    is_error: bool


class SystemUpdate(Value, tag_field="role", tag="system"):
    """A Mid-Conversation System Message: newly effective instructions, at the place where they became so."""

    text: str


RequestMessage = UserMessage | AssistantMessage | ToolMessage | SystemUpdate

ToolChoice = Literal["auto", "none"]


class Generation(Value):
    """Generation Controls: provider-neutral sampling and output limits."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] | None = None


class LLMRequest(Value):
    """`model` is the id the provider knows. `system` parts are sent first, in order. `cache_key` is stable per session."""

    model: str
    system: tuple[str, ...]
    messages: tuple[RequestMessage, ...]
    tools: tuple[ToolDefinition, ...]
    tool_choice: ToolChoice
    generation: Generation
    options: dict[str, Any]
    body: dict[str, Any]
    cache_key: str | None = None


class HttpRequest(Value):
    """What an adapter wants sent. `path` is relative to the provider's base URL. Credentials are the transport's matter."""

    path: str
    headers: dict[str, str]
    body: bytes
