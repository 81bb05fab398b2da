"""Session History: the projected messages a session shows and a provider request is built from.

The union is open at the reader's side: a message type that is not known is kept by the store and skipped by a reader.
Order is the session's `seq` of the event that first created a message; it never moves (reference 1.4, 1.5).
"""

from __future__ import annotations

from typing import Any, Literal

from .failure import Failure
from .ids import CallId, MessageId, PartId
from .model import ModelRef, Tokens
from .prompt import PromptFile
from .tool import ManagedOutput, ToolContent
from .value import Value


class TextPart(Value, tag_field="type", tag="text"):
    """Visible answer text. While its fragment is open the text is empty here; deltas are live only."""

    id: PartId
    text: str
    metadata: dict[str, Any] | None = None


class ReasoningPart(Value, tag_field="type", tag="reasoning"):
    """What the model thought aloud. `metadata` is Native Continuation Metadata, for that exact model only."""

    id: PartId
    text: str
    metadata: dict[str, Any] | None = None


class ToolPending(Value, tag_field="status", tag="pending"):
    """The input is still arriving, or arrived and was not accepted yet. `input` is the raw text."""

    input: str


class ToolRunning(Value, tag_field="status", tag="running"):
    """The call is recorded; its tool may have started."""

    input: dict[str, Any]


class ToolCompleted(Value, tag_field="status", tag="completed"):
    """The one settlement of a call that worked. `result` is a provider-executed result, verbatim."""

    input: dict[str, Any]
    content: tuple[ToolContent, ...]
    structured: Any = None
    managed_outputs: tuple[ManagedOutput, ...] | None = None
    lossy: bool | None = None
    result: Any = None
    pruned: bool | None = None
    """The result is not sent to the model any more."""


class ToolError(Value, tag_field="status", tag="error"):
    """The one settlement of a call that failed, was interrupted, or was never run."""

    input: dict[str, Any]
    error: Failure
    content: tuple[ToolContent, ...] | None = None
    result: Any = None


ToolState = ToolPending | ToolRunning | ToolCompleted | ToolError


class ToolPart(Value, tag_field="type", tag="tool"):
    """One tool call of an assistant message. `id` is ours; `provider_call_id` is what the provider called it."""

    id: CallId
    name: str
    provider_call_id: str
    executed: bool
    """Run by the provider itself, never here."""
    state: ToolState
    created: int
    ran: int | None = None
    completed: int | None = None
    metadata: dict[str, Any] | None = None
    result_metadata: dict[str, Any] | None = None


AssistantContent = TextPart | ReasoningPart | ToolPart


class UserMessage(Value, tag_field="type", tag="user"):
    """A promoted prompt. `created` is the time of its admission."""

    id: MessageId
    created: int
    text: str
    files: tuple[PromptFile, ...] | None = None
    metadata: dict[str, Any] | None = None


class SyntheticMessage(Value, tag_field="type", tag="synthetic"):
    """An instruction the runtime wrote in the user's role, such as the request to go on after a cut stream."""

    id: MessageId
    created: int
    text: str
    paths: tuple[str, ...] | None = None


class SystemMessage(Value, tag_field="type", tag="system"):
    """A Mid-Conversation System Message: the exact text that the model was sent. Transcripts may hide it."""

    id: MessageId
    created: int
    text: str


CompactionReason = Literal["auto", "overflow", "manual"]


class CompactionMessage(Value, tag_field="type", tag="compaction"):
    """One attempt to summarise. With a `summary` history begins here; with an `error` it has no effect."""

    id: MessageId
    created: int
    reason: CompactionReason
    summary: str | None = None
    recent: str | None = None
    model: ModelRef | None = None
    tokens: Tokens | None = None
    cost: float | None = None
    error: Failure | None = None
    completed: int | None = None


class AgentSwitchedMessage(Value, tag_field="type", tag="agent-switched"):
    """A visible marker; it lowers to nothing."""

    id: MessageId
    created: int
    agent: str
    previous: str | None = None


class ModelSwitchedMessage(Value, tag_field="type", tag="model-switched"):
    """A visible marker; it lowers to nothing."""

    id: MessageId
    created: int
    model: ModelRef
    previous: ModelRef | None = None


class Retry(Value):
    """An attempt that will be made: its number, when, and why the last one failed."""

    attempt: int
    at: int
    error: Failure


Finish = Literal["stop", "length", "tool-calls", "content-filter", "error", "unknown"]


class AssistantMessage(Value, tag_field="type", tag="assistant"):
    """One Provider Turn as history shows it. `completed` is set by its one terminal event; `attempt` counts from 1."""

    id: MessageId
    created: int
    agent: str
    model: ModelRef
    attempt: int
    content: tuple[AssistantContent, ...]
    finish: Finish | None = None
    tokens: Tokens | None = None
    cost: float | None = None
    error: Failure | None = None
    completed: int | None = None
    retry: Retry | None = None
    """The attempt that is scheduled, while the turn waits for it."""


Message = (
    UserMessage
    | SyntheticMessage
    | SystemMessage
    | CompactionMessage
    | AgentSwitchedMessage
    | ModelSwitchedMessage
    | AssistantMessage
)
