"""What a session's turns left open, as recovery finds it, and the events that end it (semantics, "Recovery")."""

from __future__ import annotations

import msgspec

from ..protocol.values import (
    ABORTED,
    CallId,
    CompactionFailed,
    EventData,
    Failure,
    MessageId,
    PartId,
    ReasoningEnded,
    SessionId,
    TextEnded,
    ToolFailed,
    ToolInputEnded,
    ToolPart,
    ToolPending,
    ToolRunning,
    TurnInterrupted,
)
from ..protocol.values.event import PermissionReplied, QuestionRejected
from . import requests
from .requests import RequestState
from .statements import Cursor

INTERRUPTED_COMPACTION = Failure(type=ABORTED, message="The compaction was interrupted.")
INTERRUPTED_CALL = Failure(type=ABORTED, message="Tool execution interrupted.")

_tool = msgspec.msgpack.Decoder(ToolPart)


class OpenFragment(msgspec.Struct, frozen=True):
    """A text or reasoning part without its end. `text` is its last checkpoint, "" when there was none."""

    assistant_message_id: MessageId
    part_id: PartId
    kind: str
    text: str = ""


class OpenCall(msgspec.Struct, frozen=True):
    """A tool call without its settlement. `running` tells whether it was called, `writing` whether its input has no end.

    `input_text` is what is known of an input that was not accepted yet: its last checkpoint, or all of it when it had ended.
    """

    assistant_message_id: MessageId
    call_id: CallId
    tool: str
    executed: bool
    running: bool
    writing: bool = False
    input_text: str = ""


class Unfinished(msgspec.Struct, frozen=True):
    """Turns without a terminal event, fragments without end, calls without settlement, requests without a reply, compactions
    without an end.
    """

    turns: tuple[MessageId, ...]
    fragments: tuple[OpenFragment, ...]
    calls: tuple[OpenCall, ...]
    requests: tuple[RequestState, ...] = ()
    compactions: tuple[MessageId, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.turns or self.fragments or self.calls or self.requests or self.compactions)


_TURNS = (
    "SELECT id FROM message WHERE session = (SELECT key FROM session WHERE id = ?) AND open = 1"
    " AND kind = 'assistant' ORDER BY seq"
)
_COMPACTIONS = (
    "SELECT id FROM message WHERE session = (SELECT key FROM session WHERE id = ?) AND open = 1"
    " AND kind = 'compaction' ORDER BY seq"
)
_PARTS = (
    "SELECT m.id, p.id, p.kind, p.body, f.text FROM message_part p JOIN message m ON m.key = p.message"
    " LEFT JOIN open_fragment f ON f.message = p.message AND f.part = p.id"
    " WHERE p.session = (SELECT key FROM session WHERE id = ?) AND p.open = 1 ORDER BY m.seq, p.key"
)
_SESSIONS = (
    "SELECT id FROM session WHERE hidden = 0 AND key IN (SELECT session FROM message WHERE open = 1"
    " UNION SELECT session FROM message_part WHERE open = 1"
    " UNION SELECT session FROM permission_request WHERE ended_seq IS NULL"
    " UNION SELECT session FROM question_request WHERE ended_seq IS NULL) ORDER BY key"
)


def unfinished(cursor: Cursor, session_id: SessionId) -> Unfinished:
    """What is open in one session, each in the order of history."""
    turns = [row[0] for row in cursor.execute(_TURNS, (session_id,)).fetchall()]
    fragments: list[OpenFragment] = []
    calls: list[OpenCall] = []
    for message_id, part_id, kind, body, text in cursor.execute(_PARTS, (session_id,)).fetchall():
        if kind == "tool":
            calls.append(_call(message_id, _tool.decode(body), text))
        else:
            fragments.append(OpenFragment(message_id, part_id, kind, text or ""))
    compactions = tuple([row[0] for row in cursor.execute(_COMPACTIONS, (session_id,)).fetchall()])
    asked = tuple(requests.left_open(cursor, session_id))
    return Unfinished(tuple(turns), tuple(fragments), tuple(calls), asked, compactions)


def settlement(found: Unfinished) -> list[EventData]:
    """The events that end all of it, in the order in which it has to end.

    Requests are cancelled, fragments end with their last checkpoint, calls fail as interrupted, turns are interrupted.
    """
    data: list[EventData] = []
    for request in found.requests:
        if request.kind == "permission":
            data.append(PermissionReplied(request_id=request.id, reply="cancelled"))
        else:
            data.append(QuestionRejected(request_id=request.id, reason="cancelled"))
    for part in found.fragments:
        ended = TextEnded if part.kind == "text" else ReasoningEnded
        data.append(ended(assistant_message_id=part.assistant_message_id, part_id=part.part_id, text=part.text))
    for call in found.calls:
        if call.writing:
            written = call.input_text
            data.append(ToolInputEnded(assistant_message_id=call.assistant_message_id, call_id=call.call_id, text=written))
        data.append(ToolFailed(assistant_message_id=call.assistant_message_id, call_id=call.call_id, error=INTERRUPTED_CALL))
    data.extend(CompactionFailed(message_id=message, error=INTERRUPTED_COMPACTION) for message in found.compactions)
    data.extend(TurnInterrupted(assistant_message_id=turn, reason="recovery") for turn in found.turns)
    return data


def unfinished_sessions(cursor: Cursor) -> list[SessionId]:
    """Sessions with anything open, found through partial indexes (ruling B5)."""
    return [row[0] for row in cursor.execute(_SESSIONS).fetchall()]


def _call(message_id: MessageId, part: ToolPart, text: str | None) -> OpenCall:
    writing, given = False, ""
    match part.state:
        case ToolPending(input=""):  # or it ended without a character; ending it so again changes nothing
            writing, given = True, text or ""
        case ToolPending(input=given):
            pass
        case _:
            pass
    running = isinstance(part.state, ToolRunning)
    return OpenCall(message_id, part.id, part.name, part.executed, running, writing, given)
