"""What each durable event does to the projections: one function per event type, in one table.

Long, because the table is read and checked as a whole: whoever adds an event type sees what every other one does.

Rules:
- A projector runs in the transaction that appends its event. It refuses what cannot have happened by raising, and the
  whole transaction member is undone: `ConflictError` when an id is taken, `IllegalEventError` for everything else.
- The order of calls is the order of the log, also when the projections are rebuilt from it. A projector therefore looks at
  nothing but its event and the projections.
- An event type without a projector changes only the session's head; so does a type that is not known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import apsw
import msgspec

from ..protocol.values import (
    ABORTED,
    AssistantMessage,
    CallId,
    CompactionCompleted,
    CompactionFailed,
    CompactionMessage,
    CompactionStarted,
    CompletedOutcome,
    ContextUpdated,
    ControlAdmitted,
    ControlWithdrawn,
    EpochStarted,
    EventData,
    FailedOutcome,
    Failure,
    InterruptedOutcome,
    Message,
    MessageId,
    ModelSwitched,
    ModelSwitchedMessage,
    Outcome,
    PromptAdmitted,
    PromptPromoted,
    PromptWithdrawn,
    ReasoningEnded,
    ReasoningPart,
    ReasoningStarted,
    SessionCreated,
    SessionId,
    SessionMoved,
    SyntheticAdded,
    SyntheticMessage,
    SystemMessage,
    TextEnded,
    TextPart,
    TextStarted,
    ToolCalled,
    ToolCompleted,
    ToolError,
    ToolFailed,
    ToolInputEnded,
    ToolInputStarted,
    ToolPart,
    ToolPending,
    ToolPruned,
    ToolRunning,
    ToolSucceeded,
    TurnCompleted,
    TurnFailed,
    TurnInterrupted,
    TurnStarted,
    UserMessage,
)
from ..protocol.values.errors import ConflictError, SteerwayError
from ..protocol.values.event import (
    AgentSwitched,
    PermissionAsked,
    PermissionReplied,
    PromptRedelivered,
    QuestionAsked,
    QuestionRejected,
    QuestionReplied,
    RetryScheduled,
    SessionForked,
    SessionUpdated,
)
from ..protocol.values.ids import RequestId
from ..protocol.values.message import AgentSwitchedMessage, Retry
from . import attempts, epochs, fragments, inbox, managed, messages, removal, requests, sessions
from .keys import Keys, SessionKey
from .requests import RequestKind
from .statements import Cursor


class IllegalEventError(SteerwayError):
    """An event that contradicts the log: a second settlement, a second terminal, a promotion of what is not pending.

    It is a defect of whoever appended it; the store is unchanged.
    """


class Place(NamedTuple):
    """Where a projector works: the event's session and sequence, its time, and the connection's cursor and keys."""

    cursor: Cursor
    keys: Keys
    session_id: SessionId
    session: int
    seq: int
    created: int
    unclaimed: set[MessageId]
    """Ids that this transaction has found to belong to no message."""


def create_session(cursor: Cursor, keys: Keys, session_id: SessionId, created: int, data: SessionCreated) -> SessionKey:
    """The row of a new session, before its first event. The caller knows that no session has the id.

    Raises `ConflictError` when a removed one had it (ruling B4).
    """
    if removal.is_removed(cursor, session_id):
        raise ConflictError(f"The id {session_id!r} was a removed session's; use another.", session_id=session_id)
    key = SessionKey(sessions.insert(cursor, session_id, created, data), 0)
    keys.remember_session(session_id, key)
    return key


# --- session and inbox --------------------------------------------------------------------------------------------


def _session_created(place: Place, data: SessionCreated) -> None:
    del data  # the row was made before, because the event refers to it
    if place.seq != 1:
        raise ConflictError(f"There is already a session {place.session_id!r}.", session_id=place.session_id)


def _session_updated(place: Place, data: SessionUpdated) -> None:
    if data.title is not None:
        sessions.rename(place.cursor, place.session, data.title)
    if data.metadata is not None:
        sessions.set_metadata(place.cursor, place.session, data.metadata)
    if data.budget is not msgspec.UNSET:
        sessions.set_budget(place.cursor, place.session, data.budget)


def _session_forked(place: Place, data: SessionForked) -> None:
    del data  # where the history came from is for people to read
    sessions.begin_anew(place.cursor, place.session)


def _agent_switched(place: Place, data: AgentSwitched) -> None:
    _create(
        place,
        AgentSwitchedMessage(id=data.message_id, created=place.created, agent=data.agent, previous=data.previous),
    )
    sessions.select_agent(place.cursor, place.session, data.agent)


def _model_switched(place: Place, data: ModelSwitched) -> None:
    _create(
        place,
        ModelSwitchedMessage(id=data.message_id, created=place.created, model=data.model, previous=data.previous),
    )
    sessions.select_model(place.cursor, place.session, data.model)


def _prompt_admitted(place: Place, data: PromptAdmitted) -> None:
    if data.message_id not in place.unclaimed and messages.owner(place.cursor, data.message_id) is not None:
        raise _taken(data.message_id)
    try:
        inbox.admit(place.cursor, place.session, data.message_id, data.delivery, place.seq)
    except apsw.ConstraintError:
        raise _taken(data.message_id) from None


def _prompt_promoted(place: Place, data: PromptPromoted) -> None:
    if not inbox.promote(place.cursor, place.session, data.message_id, place.seq):
        raise IllegalEventError(f"Prompt {data.message_id!r} is not pending and cannot be promoted.")
    prompt = data.prompt
    _insert(
        place,
        UserMessage(id=data.message_id, created=data.admitted, text=prompt.text, files=prompt.files, metadata=data.metadata),
    )
    sessions.mark_unanswered(place.cursor, place.session, place.seq)


def _prompt_withdrawn(place: Place, data: PromptWithdrawn) -> None:
    if not inbox.withdraw(place.cursor, place.session, data.message_id, place.seq):
        raise IllegalEventError(f"Prompt {data.message_id!r} is not pending and cannot be withdrawn.")


def _prompt_redelivered(place: Place, data: PromptRedelivered) -> None:
    if not inbox.redeliver(place.cursor, place.session, data.message_id, data.delivery):
        raise IllegalEventError(f"Prompt {data.message_id!r} is not pending and keeps its delivery.")


def _control_admitted(place: Place, data: ControlAdmitted) -> None:
    try:
        inbox.admit_control(place.cursor, place.session, data.message_id, data.kind, place.seq)
    except apsw.ConstraintError:
        raise _taken(data.message_id) from None
    place.unclaimed.discard(data.message_id)


def _control_withdrawn(place: Place, data: ControlWithdrawn) -> None:
    if not inbox.withdraw(place.cursor, place.session, data.message_id, place.seq):
        raise IllegalEventError(f"Control item {data.message_id!r} is not pending and cannot be withdrawn.")


def _session_moved(place: Place, data: SessionMoved) -> None:
    if not inbox.promote(place.cursor, place.session, data.message_id, place.seq):
        raise IllegalEventError(f"Control item {data.message_id!r} is not pending and cannot be delivered.")
    sessions.move(place.cursor, place.session, data.location.directory)
    epochs.clear(place.cursor, place.session)


def _synthetic_added(place: Place, data: SyntheticAdded) -> None:
    _create(place, SyntheticMessage(id=data.message_id, created=place.created, text=data.text, paths=data.paths))
    if data.paths:
        messages.tell_paths(place.cursor, place.session, data.paths)
    if data.continues:
        last = attempts.last_turn(place.cursor, place.session_id)
        match last:
            case attempts.TurnRecord(outcome=InterruptedOutcome(reason="recovery" | "shutdown")):
                attempts.conclude(place.cursor, _assistant(place, last.assistant_message_id), last.attempt, None)
            case _:
                pass


# --- System Context -----------------------------------------------------------------------------------------------


def _epoch_started(place: Place, data: EpochStarted) -> None:
    epochs.start(
        place.cursor,
        place.session,
        baseline=data.baseline,
        snapshot=data.snapshot,
        baseline_seq=data.baseline_seq,
        reason=data.reason,
    )


def _context_updated(place: Place, data: ContextUpdated) -> None:
    if not epochs.update(place.cursor, place.session, data.entries, data.dropped):
        raise IllegalEventError(f"Session {place.session_id!r} has no Context Epoch that could be updated.")
    _create(place, SystemMessage(id=data.message_id, created=place.created, text=data.text))


# --- compaction ---------------------------------------------------------------------------------------------------


def _compaction_started(place: Place, data: CompactionStarted) -> None:
    message = CompactionMessage(id=data.message_id, created=place.created, reason=data.reason)
    if inbox.promote(place.cursor, place.session, data.message_id, place.seq):
        _insert(place, message)
    else:
        _create(place, message)


def _compaction_completed(place: Place, data: CompactionCompleted) -> None:
    key, seq, message = _open_compaction(place, data.message_id)
    cost = float(data.cost)
    messages.end_compaction(
        place.cursor,
        key,
        msgspec.structs.replace(
            message,
            summary=data.summary,
            recent=data.recent,
            model=data.model,
            tokens=data.tokens,
            cost=cost,
            completed=place.created,
        ),
    )
    sessions.add_usage(place.cursor, place.session, data.tokens, cost)
    sessions.compact(place.cursor, place.session, seq)
    epochs.make_stale(place.cursor, place.session)


def _compaction_failed(place: Place, data: CompactionFailed) -> None:
    key, _, message = _open_compaction(place, data.message_id)
    cost = None if data.cost is None else float(data.cost)
    messages.end_compaction(
        place.cursor,
        key,
        msgspec.structs.replace(message, error=data.error, tokens=data.tokens, cost=cost, completed=place.created),
    )
    sessions.add_usage(place.cursor, place.session, data.tokens, cost)
    if message.reason == "overflow":
        _give_up(place)


def _give_up(place: Place) -> None:
    """The turn that was to be made again with a smaller history has failed for good."""
    last = attempts.last_turn(place.cursor, place.session_id)
    if last is None or last.outcome is not None:
        return
    key = _assistant(place, last.assistant_message_id)
    error = messages.assistant(place.cursor, key).error
    if error is not None:
        attempts.conclude(place.cursor, key, last.attempt, FailedOutcome(error=error))
        sessions.mark_answered(place.cursor, place.session)


def _tool_pruned(place: Place, data: ToolPruned) -> None:
    found = messages.messages_of_calls(place.cursor, place.session, frozenset(data.call_ids))
    for call_id in data.call_ids:
        key = found.get(call_id)
        part = None if key is None else messages.tool(place.cursor, key, call_id)
        if key is None or part is None:
            raise IllegalEventError(f"Session {place.session_id!r} has no call {call_id!r}.")
        match part.state:
            case ToolCompleted() if not part.executed:
                state = msgspec.structs.replace(part.state, pruned=True)
                messages.update_tool(place.cursor, key, msgspec.structs.replace(part, state=state), settled=True)
            case _:
                raise IllegalEventError(f"Call {call_id!r} has no local result that could be pruned.")
    epochs.make_stale(place.cursor, place.session)


def _open_compaction(place: Place, message_id: MessageId) -> tuple[int, int, CompactionMessage]:
    found = messages.open_compaction(place.cursor, place.session, message_id)
    if found is None:
        raise IllegalEventError(f"Session {place.session_id!r} has no open compaction {message_id!r}.")
    return found


# --- turns --------------------------------------------------------------------------------------------------------


def _turn_started(place: Place, data: TurnStarted) -> None:
    message_id = data.assistant_message_id
    if data.attempt == 1:
        key = _create(
            place,
            AssistantMessage(id=message_id, created=place.created, agent=data.agent, model=data.model, attempt=1, content=()),
        )
        place.keys.remember_assistant(message_id, key, place.session)
    else:
        key = _assistant(place, message_id)
        message = messages.assistant(place.cursor, key)
        if message.completed is not None or data.attempt != message.attempt + 1:
            raise IllegalEventError(f"Turn {message_id!r} has ended or is not at attempt {data.attempt - 1}.")
        if message.retry is None:
            attempts.end(place.cursor, key, place.seq, None)
        messages.update_assistant(
            place.cursor,
            key,
            msgspec.structs.replace(message, attempt=data.attempt, agent=data.agent, model=data.model, retry=None),
        )
    attempts.start(place.cursor, place.session, key, data.attempt, place.seq)


def _turn_completed(place: Place, data: TurnCompleted) -> None:
    key, message = _end_turn(place, data.assistant_message_id, None if data.continues else CompletedOutcome())
    cost = float(data.cost)  # a caller's 0 is 0.0 once it was read back from the log
    messages.update_assistant(
        place.cursor,
        key,
        msgspec.structs.replace(message, finish=data.finish, tokens=data.tokens, cost=cost, completed=place.created),
    )
    sessions.add_usage(place.cursor, place.session, data.tokens, data.cost)
    if not data.continues:
        sessions.mark_answered(place.cursor, place.session)


def _turn_failed(place: Place, data: TurnFailed) -> None:
    key, message = _end_turn(place, data.assistant_message_id, None if data.continues else FailedOutcome(error=data.error))
    cost = None if data.cost is None else float(data.cost)
    messages.update_assistant(
        place.cursor,
        key,
        msgspec.structs.replace(
            message, finish="error", tokens=data.tokens, cost=cost, error=data.error, completed=place.created
        ),
    )
    sessions.add_usage(place.cursor, place.session, data.tokens, data.cost)
    if not data.continues:
        sessions.mark_answered(place.cursor, place.session)


_INTERRUPTIONS = {
    "user": "The turn was interrupted.",
    "shutdown": "The turn was interrupted because the runtime stopped.",
    "recovery": "The turn was interrupted because the runtime ended unexpectedly.",
}


def _turn_interrupted(place: Place, data: TurnInterrupted) -> None:
    key, message = _end_turn(place, data.assistant_message_id, InterruptedOutcome(reason=data.reason))
    error = Failure(type=ABORTED, message=_INTERRUPTIONS[data.reason])
    cost = None if data.cost is None else float(data.cost)
    messages.update_assistant(
        place.cursor,
        key,
        msgspec.structs.replace(message, finish="error", tokens=data.tokens, cost=cost, error=error, completed=place.created),
    )
    sessions.add_usage(place.cursor, place.session, data.tokens, data.cost)
    if data.reason == "user":
        sessions.mark_answered(place.cursor, place.session)


def _retry_scheduled(place: Place, data: RetryScheduled) -> None:
    message_id = data.assistant_message_id
    key = _assistant(place, message_id)
    message = messages.assistant(place.cursor, key)
    if data.attempt != message.attempt + 1 or not attempts.end(place.cursor, key, place.seq, None):
        raise IllegalEventError(f"Turn {message_id!r} has no attempt {data.attempt - 1} that could be made again.")
    retry = Retry(attempt=data.attempt, at=data.at, error=data.error)
    messages.update_assistant(place.cursor, key, msgspec.structs.replace(message, retry=retry))


def _end_turn(place: Place, message_id: MessageId, outcome: Outcome | None) -> tuple[int, AssistantMessage]:
    """End the turn; its message as it was, without the retry it may have waited for."""
    key = _assistant(place, message_id)
    message = messages.assistant(place.cursor, key)
    if message.completed is not None:
        raise IllegalEventError(f"Turn {message_id!r} has ended already.")
    if message.retry is None:
        attempts.end(place.cursor, key, place.seq, outcome)
    else:
        attempts.conclude(place.cursor, key, message.attempt, outcome)
        message = msgspec.structs.replace(message, retry=None)
    fragments.drop_all(place.cursor, place.keys, key)
    return key, message


# --- fragments and calls ------------------------------------------------------------------------------------------


def _text_started(place: Place, data: TextStarted) -> None:
    _begin(place, data.assistant_message_id, TextPart(id=data.part_id, text=""), "text")


def _text_ended(place: Place, data: TextEnded) -> None:
    key = _assistant(place, data.assistant_message_id)
    part = TextPart(id=data.part_id, text=data.text, metadata=data.metadata)
    if not messages.end_fragment(place.cursor, key, part, "text"):
        raise IllegalEventError(f"Text {data.part_id!r} was never started.")
    fragments.drop(place.cursor, place.keys, key, data.part_id)


def _reasoning_started(place: Place, data: ReasoningStarted) -> None:
    _begin(place, data.assistant_message_id, ReasoningPart(id=data.part_id, text=""), "reasoning")


def _reasoning_ended(place: Place, data: ReasoningEnded) -> None:
    key = _assistant(place, data.assistant_message_id)
    part = ReasoningPart(id=data.part_id, text=data.text, metadata=data.metadata)
    if not messages.end_fragment(place.cursor, key, part, "reasoning"):
        raise IllegalEventError(f"Reasoning {data.part_id!r} was never started.")
    fragments.drop(place.cursor, place.keys, key, data.part_id)


def _tool_input_started(place: Place, data: ToolInputStarted) -> None:
    part = ToolPart(
        id=data.call_id,
        name=data.tool,
        provider_call_id="",
        executed=False,
        state=ToolPending(input=""),
        created=place.created,
    )
    _begin(place, data.assistant_message_id, part, "tool")


def _tool_input_ended(place: Place, data: ToolInputEnded) -> None:
    key, part = _call(place, data.assistant_message_id, data.call_id)
    match part.state:
        case ToolPending():
            changed = msgspec.structs.replace(part, state=ToolPending(input=data.text))
            messages.update_tool(place.cursor, key, changed, settled=False)
            fragments.drop(place.cursor, place.keys, key, data.call_id)
        case _:
            raise IllegalEventError(f"The input of call {data.call_id!r} was accepted already.")


def _tool_called(place: Place, data: ToolCalled) -> None:
    key = _assistant(place, data.assistant_message_id)
    part = messages.tool(place.cursor, key, data.call_id)
    known = part is not None
    match part:
        case None:
            created, executed = place.created, data.executed
        case ToolPart(state=ToolPending()):
            created, executed = part.created, part.executed or data.executed
        case _:
            raise IllegalEventError(f"Call {data.call_id!r} was recorded already.")
    called = ToolPart(
        id=data.call_id,
        name=data.tool,
        provider_call_id=data.provider_call_id,
        executed=executed,
        state=ToolRunning(input=data.input),
        created=created,
        ran=place.created,
        metadata=data.metadata,
    )
    if known:
        messages.update_tool(place.cursor, key, called, settled=False)
        fragments.drop(place.cursor, place.keys, key, data.call_id)
    else:
        _begin(place, data.assistant_message_id, called, "tool")


def _tool_succeeded(place: Place, data: ToolSucceeded) -> None:
    key, part = _call(place, data.assistant_message_id, data.call_id)
    match part.state:
        case ToolRunning(input=given):
            state = ToolCompleted(
                input=given,
                content=data.content,
                structured=data.structured,
                managed_outputs=data.managed_outputs,
                lossy=data.lossy,
                result=data.result,
            )
        case _:
            raise IllegalEventError(f"Call {data.call_id!r} is not running and cannot succeed.")
    if data.managed_outputs:
        managed.note(place.cursor, place.session, data.managed_outputs)
    _settle(place, key, msgspec.structs.replace(part, state=state, completed=place.created, result_metadata=data.metadata))


def _tool_failed(place: Place, data: ToolFailed) -> None:
    key, part = _call(place, data.assistant_message_id, data.call_id)
    match part.state:
        case ToolPending():
            given: dict[str, Any] = {}
        case ToolRunning(input=given):
            pass
        case _:
            raise IllegalEventError(f"Call {data.call_id!r} was settled already.")
    state = ToolError(input=given, error=data.error, content=data.content, result=data.result)
    _settle(place, key, msgspec.structs.replace(part, state=state, completed=place.created, result_metadata=data.metadata))


def _settle(place: Place, message: int, part: ToolPart) -> None:
    messages.update_tool(place.cursor, message, part, settled=True)
    fragments.drop(place.cursor, place.keys, message, part.id)
    if not part.executed:
        sessions.mark_unanswered(place.cursor, place.session, place.seq)


# --- requests -----------------------------------------------------------------------------------------------------


def _permission_asked(place: Place, data: PermissionAsked) -> None:
    _ask(place, "permission", data)


def _question_asked(place: Place, data: QuestionAsked) -> None:
    _ask(place, "question", data)


def _permission_replied(place: Place, data: PermissionReplied) -> None:
    _answer(place, "permission", data.request_id, data.reply)


def _question_replied(place: Place, data: QuestionReplied) -> None:
    _answer(place, "question", data.request_id, "replied")


def _question_rejected(place: Place, data: QuestionRejected) -> None:
    _answer(place, "question", data.request_id, "rejected" if data.reason == "user" else "cancelled")


def _ask(place: Place, kind: RequestKind, data: PermissionAsked | QuestionAsked) -> None:
    key, part = _call(place, data.assistant_message_id, data.call_id)
    if not isinstance(part.state, ToolRunning):
        raise IllegalEventError(f"Call {data.call_id!r} is not running and has nothing to ask.")
    try:
        requests.ask(place.cursor, kind, data.request_id, (place.session, key, place.seq), data.call_id)
    except apsw.ConstraintError:
        raise ConflictError(f"The id {data.request_id!r} is taken.", request_id=data.request_id) from None


def _answer(place: Place, kind: RequestKind, request_id: RequestId, reply: str) -> None:
    if not requests.end(place.cursor, kind, place.session, request_id, place.seq, reply):
        raise IllegalEventError(f"Session {place.session_id!r} has no open {kind} request {request_id!r}.")


# --- shared steps -------------------------------------------------------------------------------------------------


def _create(
    place: Place,
    message: AssistantMessage
    | SyntheticMessage
    | SystemMessage
    | CompactionMessage
    | AgentSwitchedMessage
    | ModelSwitchedMessage,
) -> int:
    """A message that is not a promotion: its id must be free in the inboxes, too."""
    if inbox.is_taken(place.cursor, message.id):
        raise _taken(message.id)
    return _insert(place, message)


def _insert(place: Place, message: Message) -> int:
    try:
        key = messages.insert(place.cursor, place.session, place.seq, message)
    except apsw.ConstraintError:
        raise _taken(message.id) from None
    place.unclaimed.discard(message.id)
    return key


def _assistant(place: Place, message_id: MessageId) -> int:
    key = place.keys.assistant(place.session, message_id)
    if key is None:
        raise IllegalEventError(f"Session {place.session_id!r} has no assistant message {message_id!r}.")
    return key


def _begin(place: Place, message_id: MessageId, part: TextPart | ReasoningPart | ToolPart, kind: str) -> None:
    try:
        messages.insert_part(place.cursor, place.session, _assistant(place, message_id), part, kind)
    except apsw.ConstraintError:
        raise IllegalEventError(f"Message {message_id!r} has a part {part.id!r} already.") from None


def _call(place: Place, message_id: MessageId, call_id: CallId) -> tuple[int, ToolPart]:
    key = _assistant(place, message_id)
    part = messages.tool(place.cursor, key, call_id)
    if part is None:
        raise IllegalEventError(f"Message {message_id!r} has no call {call_id!r}.")
    return key, part


def _taken(message_id: MessageId) -> ConflictError:
    return ConflictError(f"The id {message_id!r} is taken by another message.", message_id=message_id)


PROJECTORS: dict[type[EventData], Callable[[Place, Any], None]] = {
    SessionCreated: _session_created,
    SessionUpdated: _session_updated,
    SessionForked: _session_forked,
    AgentSwitched: _agent_switched,
    ModelSwitched: _model_switched,
    PromptAdmitted: _prompt_admitted,
    PromptPromoted: _prompt_promoted,
    PromptWithdrawn: _prompt_withdrawn,
    PromptRedelivered: _prompt_redelivered,
    ControlAdmitted: _control_admitted,
    ControlWithdrawn: _control_withdrawn,
    SessionMoved: _session_moved,
    SyntheticAdded: _synthetic_added,
    EpochStarted: _epoch_started,
    ContextUpdated: _context_updated,
    CompactionStarted: _compaction_started,
    CompactionCompleted: _compaction_completed,
    CompactionFailed: _compaction_failed,
    ToolPruned: _tool_pruned,
    TurnStarted: _turn_started,
    RetryScheduled: _retry_scheduled,
    TurnCompleted: _turn_completed,
    TurnFailed: _turn_failed,
    TurnInterrupted: _turn_interrupted,
    TextStarted: _text_started,
    TextEnded: _text_ended,
    ReasoningStarted: _reasoning_started,
    ReasoningEnded: _reasoning_ended,
    ToolInputStarted: _tool_input_started,
    ToolInputEnded: _tool_input_ended,
    ToolCalled: _tool_called,
    ToolSucceeded: _tool_succeeded,
    ToolFailed: _tool_failed,
    PermissionAsked: _permission_asked,
    PermissionReplied: _permission_replied,
    QuestionAsked: _question_asked,
    QuestionReplied: _question_replied,
    QuestionRejected: _question_rejected,
}
"""Every durable event type that changes a projection, and how."""
