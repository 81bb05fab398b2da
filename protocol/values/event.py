"""What happened: the union of durable and live events, each type declared once.

Long, because the union is one list that is read, checked and extended as a whole.

Rules:
- An event is an envelope with a typed `data`. The type's name, version and durability are class facts of its data, and
  `EVENT_TYPES` is the only table of them; the journal, the feed and every client read that table.
- Durable events have a `seq`, gap-free from 1 within their session. Live events have none and are never replayed.
- A reader keeps an event of an unknown type as `UnknownData` and skips it; it never fails on it.
- All times are epoch milliseconds; an absent optional field is left out.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec

from .context import EpochReason, SnapshotEntry
from .failure import Failure
from .ids import CallId, EventId, MessageId, PartId, RequestId, SessionId
from .location import Location
from .message import CompactionReason, Finish
from .model import ModelRef, Tokens
from .permission import PermissionEnd
from .prompt import ControlKind, Delivery, Prompt
from .question import Question
from .session import Outcome
from .tool import ManagedOutput, ToolContent
from .value import Value


class EventData(Value):
    """Root of all event data. Subclasses set `type`; `durable` and `version` where they differ from the defaults."""

    type: ClassVar[str]
    durable: ClassVar[bool] = True
    version: ClassVar[int] = 1


# --- the session itself -------------------------------------------------------------------------------------------


class SessionCreated(EventData):
    """First event of every session."""

    type: ClassVar[str] = "session.created"
    title: str
    location: Location
    parent_id: SessionId | None = None
    agent: str | None = None
    model: ModelRef | None = None
    metadata: dict[str, Any] | None = None


class SessionUpdated(EventData):
    """Title, metadata or budget changed; what is left out stays as it is. A `budget` of null took the budget away."""

    type: ClassVar[str] = "session.updated"
    title: str | None = None
    metadata: dict[str, Any] | None = None
    budget: float | msgspec.UnsetType | None = msgspec.UNSET


class SessionForked(EventData):
    """Behind the copied history of a fork: where it came from."""

    type: ClassVar[str] = "session.forked"
    parent_id: SessionId
    parent_seq: int
    before: MessageId | None = None


class SessionRemoved(EventData):
    """The session, its log and its children are gone. Live only: the log it would stand in is gone too (ruling B4)."""

    type: ClassVar[str] = "session.removed"
    durable: ClassVar[bool] = False


class AgentSwitched(EventData):
    """The next Provider Turn is `agent`'s; the running one, its calls and their permissions stay as they are."""

    type: ClassVar[str] = "session.agent.switched"
    message_id: MessageId
    agent: str
    previous: str | None = None


class ModelSwitched(EventData):
    """The next Provider Turn uses `model`; the running one does not change."""

    type: ClassVar[str] = "session.model.switched"
    message_id: MessageId
    model: ModelRef
    previous: ModelRef | None = None


class SessionMoved(EventData):
    """A move control was delivered: the session works in `location` from here on, and its Context Epoch is cleared."""

    type: ClassVar[str] = "session.moved"
    message_id: MessageId
    location: Location
    previous: Location


# --- the inbox ----------------------------------------------------------------------------------------------------


class PromptAdmitted(EventData):
    """An Admitted Prompt: durable, pending, not yet in history."""

    type: ClassVar[str] = "session.prompt.admitted"
    message_id: MessageId
    prompt: Prompt
    delivery: Delivery
    metadata: dict[str, Any] | None = None


class PromptPromoted(EventData):
    """Prompt Promotion: consumes the pending entry and appends the user message, in one transaction."""

    type: ClassVar[str] = "session.prompt.promoted"
    message_id: MessageId
    prompt: Prompt
    delivery: Delivery
    admitted: int
    """Time of the admission, which becomes the message's `created`."""
    metadata: dict[str, Any] | None = None


class PromptWithdrawn(EventData):
    """The prompt left the inbox without ever being in history."""

    type: ClassVar[str] = "session.prompt.withdrawn"
    message_id: MessageId


class PromptRedelivered(EventData):
    """A pending prompt changed its delivery; its place in admission order stays."""

    type: ClassVar[str] = "session.prompt.redelivered"
    message_id: MessageId
    delivery: Delivery


class ControlAdmitted(EventData):
    """A control item entered the inbox (ruling B2); `location` is where a move leads."""

    type: ClassVar[str] = "session.control.admitted"
    message_id: MessageId
    kind: ControlKind
    location: Location | None = None


class ControlWithdrawn(EventData):
    """The control item left the inbox without effect."""

    type: ClassVar[str] = "session.control.withdrawn"
    message_id: MessageId


class SyntheticAdded(EventData):
    """The runtime wrote an instruction into history itself. `paths` are the instruction files that it tells, if any.

    `continues`: a start goes on with the turn that an ended process left interrupted, so that turn's end is not the last word.
    """

    type: ClassVar[str] = "session.synthetic"
    message_id: MessageId
    text: str
    paths: tuple[str, ...] | None = None
    continues: bool = False


# --- System Context -----------------------------------------------------------------------------------------------


class EpochStarted(EventData):
    """A Context Epoch began with this exact baseline. `baseline_seq` is the last sequence that it covers."""

    type: ClassVar[str] = "session.epoch.started"
    baseline: str
    snapshot: dict[str, SnapshotEntry]
    baseline_seq: int
    reason: EpochReason


class ContextUpdated(EventData):
    """A Mid-Conversation System Message, with what changed in the snapshot: entries new or replaced, keys dropped."""

    type: ClassVar[str] = "session.context.updated"
    message_id: MessageId
    text: str
    entries: dict[str, SnapshotEntry]
    dropped: tuple[str, ...]


class CompactionStarted(EventData):
    """The session's history is being summarised. `message_id` is the inbox item's when it was asked for."""

    type: ClassVar[str] = "session.compaction.started"
    message_id: MessageId
    reason: CompactionReason


class CompactionCompleted(EventData):
    """From here on history begins with `summary`, and with `recent`, the record of the last exchanges."""

    type: ClassVar[str] = "session.compaction.completed"
    message_id: MessageId
    summary: str
    recent: str
    model: ModelRef
    tokens: Tokens
    cost: float


class CompactionFailed(EventData):
    """Nothing was summarised; history stays as it is."""

    type: ClassVar[str] = "session.compaction.failed"
    message_id: MessageId
    error: Failure
    tokens: Tokens | None = None
    cost: float | None = None


class ToolPruned(EventData):
    """The results of these settled local calls are not sent any more; the transcript keeps them."""

    type: ClassVar[str] = "session.tool.pruned"
    call_ids: tuple[CallId, ...]


# --- provider turns -----------------------------------------------------------------------------------------------


class TurnStarted(EventData):
    """The record of an attempt, committed before its request leaves (ruling B1)."""

    type: ClassVar[str] = "session.turn.started"
    assistant_message_id: MessageId
    agent: str
    model: ModelRef
    attempt: int


class TurnCompleted(EventData):
    """Terminal: the protocol's explicit end was seen and all calls are settled."""

    type: ClassVar[str] = "session.turn.completed"
    assistant_message_id: MessageId
    finish: Finish
    tokens: Tokens
    cost: float
    continues: bool
    """Whether another turn has to follow: the turn had local tool calls, or the provider paused in the midst of its own."""


class TurnFailed(EventData):
    """Terminal: the turn ended in an error. What arrived stays in history."""

    type: ClassVar[str] = "session.turn.failed"
    assistant_message_id: MessageId
    error: Failure
    tokens: Tokens | None = None
    cost: float | None = None
    continues: bool | None = None
    """Whether another turn follows at once, which goes on from here: after a cut answer, or a superseded request, or with a
    smaller history when the request was too large, or without what the provider may have refused it for.
    """


class TurnInterrupted(EventData):
    """Terminal: stopped by a user, by shutdown, or found unfinished by recovery (ruling B2)."""

    type: ClassVar[str] = "session.turn.interrupted"
    assistant_message_id: MessageId
    reason: Literal["user", "shutdown", "recovery"]
    tokens: Tokens | None = None
    """What the provider said until then that was used; None where it says so only at the end."""
    cost: float | None = None


class RetryScheduled(EventData):
    """Ends an attempt without ending the turn: the same request leaves again at `at`, as attempt `attempt`."""

    type: ClassVar[str] = "session.retry.scheduled"
    assistant_message_id: MessageId
    attempt: int
    at: int
    error: Failure


class TextStarted(EventData):
    """A text fragment opened."""

    type: ClassVar[str] = "session.text.started"
    assistant_message_id: MessageId
    part_id: PartId


class TextEnded(EventData):
    """The fragment's whole value."""

    type: ClassVar[str] = "session.text.ended"
    assistant_message_id: MessageId
    part_id: PartId
    text: str
    metadata: dict[str, Any] | None = None


class ReasoningStarted(EventData):
    """A reasoning fragment opened."""

    type: ClassVar[str] = "session.reasoning.started"
    assistant_message_id: MessageId
    part_id: PartId


class ReasoningEnded(EventData):
    """The fragment's whole value, with Native Continuation Metadata if the provider gave any."""

    type: ClassVar[str] = "session.reasoning.ended"
    assistant_message_id: MessageId
    part_id: PartId
    text: str
    metadata: dict[str, Any] | None = None


class ToolInputStarted(EventData):
    """The model began to write a call's input."""

    type: ClassVar[str] = "session.tool.input.started"
    assistant_message_id: MessageId
    call_id: CallId
    tool: str


class ToolInputEnded(EventData):
    """The raw input text, as it arrived."""

    type: ClassVar[str] = "session.tool.input.ended"
    assistant_message_id: MessageId
    call_id: CallId
    text: str


class ToolCalled(EventData):
    """A complete call, committed before its tool starts."""

    type: ClassVar[str] = "session.tool.called"
    assistant_message_id: MessageId
    call_id: CallId
    provider_call_id: str
    tool: str
    input: dict[str, Any]
    executed: bool
    metadata: dict[str, Any] | None = None


class ToolSucceeded(EventData):
    """The call's one settlement: it worked."""

    type: ClassVar[str] = "session.tool.succeeded"
    assistant_message_id: MessageId
    call_id: CallId
    content: tuple[ToolContent, ...]
    structured: Any = None
    managed_outputs: tuple[ManagedOutput, ...] | None = None
    lossy: bool | None = None
    result: Any = None
    metadata: dict[str, Any] | None = None


class ToolFailed(EventData):
    """The call's one settlement: it failed, was interrupted, or was never run."""

    type: ClassVar[str] = "session.tool.failed"
    assistant_message_id: MessageId
    call_id: CallId
    error: Failure
    content: tuple[ToolContent, ...] | None = None
    result: Any = None
    metadata: dict[str, Any] | None = None


# --- requests that wait for an answer -----------------------------------------------------------------------------


class PermissionAsked(EventData):
    """A call waits until somebody answers."""

    type: ClassVar[str] = "session.permission.asked"
    request_id: RequestId
    assistant_message_id: MessageId
    call_id: CallId
    action: str
    resources: tuple[str, ...]
    save: tuple[str, ...]
    metadata: dict[str, Any] | None = None


class PermissionReplied(EventData):
    """The request's one end. `message` is a correction for the model."""

    type: ClassVar[str] = "session.permission.replied"
    request_id: RequestId
    reply: PermissionEnd
    message: str | None = None


class QuestionAsked(EventData):
    """The model asks its user."""

    type: ClassVar[str] = "session.question.asked"
    request_id: RequestId
    assistant_message_id: MessageId
    call_id: CallId
    questions: tuple[Question, ...]


class QuestionReplied(EventData):
    """One list of answers for each question."""

    type: ClassVar[str] = "session.question.replied"
    request_id: RequestId
    answers: tuple[tuple[str, ...], ...]


class QuestionRejected(EventData):
    """Dismissed by the user, or cancelled with its call."""

    type: ClassVar[str] = "session.question.rejected"
    request_id: RequestId
    reason: Literal["user", "cancelled"]


# --- live only ----------------------------------------------------------------------------------------------------


class TextDelta(EventData):
    """More of an open text fragment. `offset` counts the code points of the fragment before it (ruling A12)."""

    type: ClassVar[str] = "session.text.delta"
    durable: ClassVar[bool] = False
    assistant_message_id: MessageId
    part_id: PartId
    offset: int
    delta: str


class ReasoningDelta(EventData):
    """More of an open reasoning fragment."""

    type: ClassVar[str] = "session.reasoning.delta"
    durable: ClassVar[bool] = False
    assistant_message_id: MessageId
    part_id: PartId
    offset: int
    delta: str


class ToolInputDelta(EventData):
    """More of a call's raw input."""

    type: ClassVar[str] = "session.tool.input.delta"
    durable: ClassVar[bool] = False
    assistant_message_id: MessageId
    call_id: CallId
    offset: int
    delta: str


class ToolProgress(EventData):
    """What a running tool wants seen before it settles. Never stored."""

    type: ClassVar[str] = "session.tool.progress"
    durable: ClassVar[bool] = False
    assistant_message_id: MessageId
    call_id: CallId
    text: str


class CompactionDelta(EventData):
    """More of a summary that is being written."""

    type: ClassVar[str] = "session.compaction.delta"
    durable: ClassVar[bool] = False
    message_id: MessageId
    offset: int
    delta: str


class Activity(EventData):
    """A Session Drain began or ended; going idle carries its outcome (ruling B15)."""

    type: ClassVar[str] = "session.activity"
    durable: ClassVar[bool] = False
    state: Literal["running", "idle"]
    outcome: Outcome | None = None


class Synced(EventData):
    """On a durable stream: everything up to `seq`, the head when the stream opened, has been delivered (ruling C2)."""

    type: ClassVar[str] = "synced"
    durable: ClassVar[bool] = False
    seq: int


class ServerConnected(EventData):
    """First item of every live stream."""

    type: ClassVar[str] = "server.connected"
    durable: ClassVar[bool] = False


class ServerHeartbeat(EventData):
    """Every 15 s on a live stream, so that silence means trouble."""

    type: ClassVar[str] = "server.heartbeat"
    durable: ClassVar[bool] = False


class ServerDisposed(EventData):
    """The runtime ends in an orderly way; nothing follows."""

    type: ClassVar[str] = "server.disposed"
    durable: ClassVar[bool] = False


class ServerDiagnostic(EventData):
    """Something an operator should know. `name` is stable, `message` is for people."""

    type: ClassVar[str] = "server.diagnostic"
    durable: ClassVar[bool] = False
    name: str
    message: str


class UnknownData(EventData):
    """Data of a type this program does not know, kept as it came. Never written."""

    type: ClassVar[str] = "unknown"
    fields: dict[str, Any]


EVENT_TYPES: dict[str, type[EventData]] = {
    data.type: data
    for data in (
        SessionCreated,
        SessionUpdated,
        SessionForked,
        SessionRemoved,
        AgentSwitched,
        ModelSwitched,
        SessionMoved,
        PromptAdmitted,
        PromptPromoted,
        PromptWithdrawn,
        PromptRedelivered,
        ControlAdmitted,
        ControlWithdrawn,
        SyntheticAdded,
        EpochStarted,
        ContextUpdated,
        CompactionStarted,
        CompactionCompleted,
        CompactionFailed,
        ToolPruned,
        TurnStarted,
        TurnCompleted,
        TurnFailed,
        TurnInterrupted,
        RetryScheduled,
        TextStarted,
        TextEnded,
        ReasoningStarted,
        ReasoningEnded,
        ToolInputStarted,
        ToolInputEnded,
        ToolCalled,
        ToolSucceeded,
        ToolFailed,
        PermissionAsked,
        PermissionReplied,
        QuestionAsked,
        QuestionReplied,
        QuestionRejected,
        TextDelta,
        ReasoningDelta,
        ToolInputDelta,
        ToolProgress,
        CompactionDelta,
        Activity,
        Synced,
        ServerConnected,
        ServerHeartbeat,
        ServerDisposed,
        ServerDiagnostic,
    )
}
"""Every event type by its name on the wire."""


class Event(Value):
    """The envelope. Durable events have `id`, `session_id`, `seq` and `version`; a live one may have only a part.

    `type` is always `data.type`, except for `UnknownData`, where it is the name that is not known.
    """

    type: str
    created: int
    data: EventData
    id: EventId | None = None
    session_id: SessionId | None = None
    seq: int | None = None
    version: int | None = None


class _Envelope(Value):
    type: str
    created: int
    data: msgspec.Raw
    id: EventId | None = None
    session_id: SessionId | None = None
    seq: int | None = None
    version: int | None = None


_msgpack = msgspec.msgpack.Encoder()
_json = msgspec.json.Encoder()
_envelope_msgpack = msgspec.msgpack.Decoder(_Envelope)
_envelope_json = msgspec.json.Decoder(_Envelope)
_data_msgpack: dict[str, msgspec.msgpack.Decoder[EventData]] = {
    name: msgspec.msgpack.Decoder(data) for name, data in EVENT_TYPES.items()
}
_data_json: dict[str, msgspec.json.Decoder[EventData]] = {
    name: msgspec.json.Decoder(data) for name, data in EVENT_TYPES.items()
}
_fields_msgpack: msgspec.msgpack.Decoder[dict[str, Any]] = msgspec.msgpack.Decoder(dict[str, Any])
_fields_json: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, Any])


class _UnknownEnvelope(Value):
    type: str
    created: int
    data: dict[str, Any]
    id: EventId | None = None
    session_id: SessionId | None = None
    seq: int | None = None
    version: int | None = None


def encode_event(event: Event) -> bytes:
    """The event as MessagePack: the row's body, the live frame's body and the replay's body are these same bytes."""
    return _msgpack.encode(_encodable(event))


def encode_event_json(event: Event) -> bytes:
    """The event as JSON, for subscribers of the JSON subprotocol; bytes become base64."""
    return _json.encode(_encodable(event))


def decode_event(body: bytes) -> Event:
    """The event of a MessagePack body. Raises `msgspec.ValidationError` or `DecodeError` when it is not one."""
    envelope = _envelope_msgpack.decode(body)
    decoder = _data_msgpack.get(envelope.type)
    return _event(
        envelope,
        decoder.decode(envelope.data) if decoder else UnknownData(fields=_fields_msgpack.decode(envelope.data)),
    )


def decode_event_json(body: bytes) -> Event:
    """The event of a JSON body. Raises `msgspec.ValidationError` or `DecodeError` when it is not one."""
    envelope = _envelope_json.decode(body)
    decoder = _data_json.get(envelope.type)
    return _event(
        envelope, decoder.decode(envelope.data) if decoder else UnknownData(fields=_fields_json.decode(envelope.data))
    )


def event_as_json(body: bytes) -> bytes:
    """Transcode a MessagePack body to JSON; the caller does it once per event and shares the result (ruling B16)."""
    return encode_event_json(decode_event(body))


def _event(envelope: _Envelope, data: EventData) -> Event:
    return Event(
        type=envelope.type,
        created=envelope.created,
        data=data,
        id=envelope.id,
        session_id=envelope.session_id,
        seq=envelope.seq,
        version=envelope.version,
    )


def _encodable(event: Event) -> Event | _UnknownEnvelope:
    if isinstance(event.data, UnknownData):
        return _UnknownEnvelope(
            type=event.type,
            created=event.created,
            data=event.data.fields,
            id=event.id,
            session_id=event.session_id,
            seq=event.seq,
            version=event.version,
        )
    return event
