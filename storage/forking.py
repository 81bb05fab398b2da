"""A fork's log: its origin's settled history under new ids, so that each log stands alone (ruling B4).

Rules:
- What is copied ends where no turn was open for the last time, or before the message that was named, whichever comes first.
- The child gets history, not work: prompts that were not promoted stay behind, requests without an end too. Nothing that
  was copied is used up or waits in the child; its totals begin at nothing, for the spending was its origin's.
- It is no child in the sense of `parent_id`: a conversation of its own, that stays when its origin is removed. Its first
  event takes title and metadata as they are now; agent and model follow from the copied switches.
- The baseline and the snapshot of its Context Epoch are its origin's, verbatim; it works where its origin worked then.
- All of it is told event by event; `copying` brings a long log over in steps.
- Copied events keep their times; events of a type that is not known cannot be renamed and stay behind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

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


class Survey:
    """What has to be known of a log before any of it is copied: where the copy ends, and what led to nothing.

    It is given the events of the log in order, and keeps only ids.
    """

    def __init__(self, before: MessageId | None) -> None:
        self._before = before
        self._met = False
        self._turn: MessageId | None = None
        self._used: dict[str, int] = {}
        """Where an input was delivered, or a request ended."""
        self.upto = 0
        """Sequence of the last event that a fork may have."""

    def take(self, event: Event) -> bool:
        """The next event; False when what follows it does not matter."""
        if self._before is not None and _shown(event.data) == self._before:
            self._met = True
            return False
        seq = event.seq or 0
        match event.data:
            case TurnStarted(assistant_message_id=turn) | CompactionStarted(message_id=turn):
                self._turn = turn
            case TurnCompleted() | TurnFailed() | TurnInterrupted() | CompactionCompleted() | CompactionFailed():
                self._turn = None
            case _:
                pass
        match event.data:
            case PromptPromoted(message_id=id) | SessionMoved(message_id=id) | CompactionStarted(message_id=id):
                self._used.setdefault(id, seq)
            case PermissionReplied(request_id=id) | QuestionReplied(request_id=id) | QuestionRejected(request_id=id):
                self._used.setdefault(id, seq)
            case _:
                pass
        if self._turn is None:
            self.upto = seq
        return True

    def check(self) -> None:
        """The log is at its end. Raises `MessageNotFoundError` when it had no message `before`."""
        if self._before is not None and not self._met:
            raise MessageNotFoundError(f"The session has no message {self._before!r}.", message_id=self._before)

    def keeps(self, event: Event) -> bool:
        """Whether an event up to `upto` is the child's history too.

        Not its origin's creation, names and forking, nor prompts and requests that led to nothing.
        """
        match event.data:
            case SessionCreated() | SessionUpdated() | SessionForked() | PromptWithdrawn() | ControlWithdrawn() | UnknownData():
                return False
            case PromptAdmitted(message_id=id) | PromptRedelivered(message_id=id) | ControlAdmitted(message_id=id):
                return self._is_used(id)
            case PermissionAsked(request_id=id) | QuestionAsked(request_id=id):
                return self._is_used(id)
            case _:
                return True

    def _is_used(self, id: str) -> bool:
        return self._used.get(id, self.upto + 1) <= self.upto


def beginning(origin: Session, first: EventData) -> SessionCreated:
    """The child's first event. `first` is the origin's, `origin` the session as it is now."""
    assert isinstance(first, SessionCreated)
    return SessionCreated(
        title=origin.title,
        location=first.location,
        agent=first.agent,
        model=first.model,
        metadata=origin.metadata,
    )


def placed(data: EventData, before: int) -> EventData:
    """The event for its place in the child's log, behind the sequence `before`: a baseline covers what stands before it."""
    match data:
        case EpochStarted():
            return msgspec.structs.replace(data, baseline_seq=before)
        case _:
            return data


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


class Renaming:
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
