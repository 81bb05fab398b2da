"""A fork's log: its origin's settled history under new ids, so that each log stands alone (ruling B4).

Rules:
- What is copied ends where no turn was open for the last time, or before the message that was named, whichever comes first.
- The child gets history, not work: prompts that were not promoted stay behind, requests without an end too. Nothing that
  was copied is used up or waits in the child; its totals begin at nothing, for the spending was its origin's.
- It is no child in the sense of `parent_id`: a conversation of its own, that stays when its origin is removed. Its first
  event takes title and metadata as they are now; agent and model follow from the copied switches.
- The baseline and the snapshot of its Context Epoch are its origin's, verbatim; it works where its origin worked then.
- Copied events keep their times; events of a type that is not known cannot be renamed and stay behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from ..protocol.values import (
    CallId,
    CompactionCompleted,
    CompactionFailed,
    CompactionStarted,
    ContextUpdated,
    ControlAdmitted,
    ControlWithdrawn,
    EpochStarted,
    Event,
    EventData,
    EventId,
    MessageId,
    PartId,
    PromptAdmitted,
    PromptPromoted,
    PromptWithdrawn,
    Session,
    SessionCreated,
    SessionMoved,
    SyntheticAdded,
    ToolPruned,
    TurnCompleted,
    TurnFailed,
    TurnInterrupted,
    TurnStarted,
    UnknownData,
)
from ..protocol.values.errors import MessageNotFoundError
from ..protocol.values.event import (
    AgentSwitched,
    ModelSwitched,
    PermissionAsked,
    PermissionReplied,
    PromptRedelivered,
    QuestionAsked,
    QuestionRejected,
    QuestionReplied,
    SessionForked,
    SessionUpdated,
)
from ..protocol.values.ids import RequestId


class NewIds(Protocol):
    """Where a copy's ids come from; `protocol.values.ids.IdSource` is one."""

    def event(self) -> EventId: ...

    def message(self) -> MessageId: ...

    def part(self) -> PartId: ...

    def call(self) -> CallId: ...

    def permission(self) -> RequestId: ...

    def question(self) -> RequestId: ...


class Copied(NamedTuple):
    """One event of the child: its new id, the time of the original, its data under new ids."""

    id: EventId
    created: int
    data: EventData


def fork(
    origin: Session, log: Sequence[Event], *, before: MessageId | None, ids: NewIds, created: int, title: str | None
) -> list[Copied]:
    """All events of the child, from its creation to `session.forked`. `log` is the origin's whole log, `created` now.

    Raises `MessageNotFoundError` when the origin's history has no message `before`.
    """
    settled = settled_events(log, before)
    first = log[0].data
    assert isinstance(first, SessionCreated)
    beginning = SessionCreated(
        title=origin.title if title is None else title,
        location=first.location,
        agent=first.agent,
        model=first.model,
        metadata=origin.metadata,
    )
    rename = _Renaming(ids)
    history = enumerate(_history(settled), 1)
    copies = [Copied(ids.event(), event.created, _placed(rename(event.data), seq)) for seq, event in history]
    end = SessionForked(parent_id=origin.id, parent_seq=len(settled), before=before)
    return [Copied(ids.event(), created, beginning), *copies, Copied(ids.event(), created, end)]


def _placed(data: EventData, before: int) -> EventData:
    """The event for its place in the child's log, behind the sequence `before`: a baseline covers what stands before it."""
    match data:
        case EpochStarted():
            return msgspec.structs.replace(data, baseline_seq=before)
        case _:
            return data


def settled_events(log: Sequence[Event], before: MessageId | None) -> Sequence[Event]:
    """The part of a log that a fork may have. Raises `MessageNotFoundError` when there is no message `before`."""
    upto = 0
    turn: MessageId | None = None
    for index, event in enumerate(log):
        if before is not None and _shown(event.data) == before:
            break
        match event.data:
            case TurnStarted(assistant_message_id=turn) | CompactionStarted(message_id=turn):
                pass
            case TurnCompleted() | TurnFailed() | TurnInterrupted() | CompactionCompleted() | CompactionFailed():
                turn = None
            case _:
                pass
        if turn is None:
            upto = index + 1
    else:
        if before is not None:
            raise MessageNotFoundError(f"The session has no message {before!r}.", message_id=before)
    return log[:upto]


def _shown(data: EventData) -> MessageId | None:
    """The message that history shows from this event on."""
    match data:
        case PromptPromoted(message_id=id) | SyntheticAdded(message_id=id) | TurnStarted(assistant_message_id=id):
            return id
        case AgentSwitched(message_id=id) | ModelSwitched(message_id=id):
            return id
        case ContextUpdated(message_id=id) | CompactionStarted(message_id=id):
            return id
        case _:
            return None


def _history(events: Iterable[Event]) -> list[Event]:
    """Without what is the origin's own: its creation and names, its forking, prompts and requests that led to nothing."""
    promoted: set[MessageId] = set()
    ended: set[RequestId] = set()
    for event in events:
        match event.data:
            case PromptPromoted(message_id=id) | SessionMoved(message_id=id) | CompactionStarted(message_id=id):
                promoted.add(id)
            case PermissionReplied(request_id=request) | QuestionReplied(request_id=request):
                ended.add(request)
            case QuestionRejected(request_id=request):
                ended.add(request)
            case _:
                pass
    kept: list[Event] = []
    for event in events:
        match event.data:
            case SessionCreated() | SessionUpdated() | SessionForked() | PromptWithdrawn() | ControlWithdrawn() | UnknownData():
                continue
            case PromptAdmitted(message_id=id) | PromptRedelivered(message_id=id) if id not in promoted:
                continue
            case ControlAdmitted(message_id=id) if id not in promoted:
                continue
            case PermissionAsked(request_id=request) | QuestionAsked(request_id=request) if request not in ended:
                continue
            case _:
                kept.append(event)
    return kept


class _Renaming:
    """Gives every id of the origin one new id."""

    def __init__(self, ids: NewIds) -> None:
        self._known: dict[str, str] = {}
        self._makers: dict[str, Callable[[], str]] = {
            "message_id": ids.message,
            "assistant_message_id": ids.message,
            "part_id": ids.part,
            "call_id": ids.call,
        }
        self._permission = ids.permission
        self._question = ids.question

    def __call__(self, data: EventData) -> EventData:
        match data:
            case PermissionAsked() | PermissionReplied():
                request = self._permission
            case _:
                request = self._question
        changed: dict[str, Any] = {}
        for field, make in (*self._makers.items(), ("request_id", request)):
            former = getattr(data, field, None)
            if former is not None:
                if former not in self._known:
                    self._known[former] = make()
                changed[field] = self._known[former]
        match data:
            case ToolPruned(call_ids=calls):
                changed["call_ids"] = tuple(self._known.get(call, call) for call in calls)
            case _:
                pass
        return msgspec.structs.replace(data, **changed)
