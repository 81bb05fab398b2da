"""Message rows and the parts of assistant messages.

A message keeps the sequence of the event that created it. An assistant's content stands in rows of its own, in the order in
which the parts began, so that a long turn is not written anew with every event. A kind this program does not know is kept
and skipped.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from ..protocol.values import (
    AssistantContent,
    AssistantMessage,
    CallId,
    Message,
    MessageId,
    ModelSwitchedMessage,
    PartId,
    SessionId,
    SyntheticMessage,
    ToolPart,
    ToolRunning,
    UserMessage,
)
from .statements import Cursor

KINDS: dict[type[Message], str] = {
    UserMessage: "user",
    SyntheticMessage: "synthetic",
    ModelSwitchedMessage: "model-switched",
    AssistantMessage: "assistant",
}
"""What the column `kind` says of each message type: its tag on the wire."""

PartT = TypeVar("PartT", bound=AssistantContent)

_encoder = msgspec.msgpack.Encoder()
_message: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_assistant = msgspec.msgpack.Decoder(AssistantMessage)
_tool = msgspec.msgpack.Decoder(ToolPart)
_content: msgspec.msgpack.Decoder[AssistantContent] = msgspec.msgpack.Decoder(AssistantContent)


class OpenFragment(msgspec.Struct, frozen=True):
    """A text or reasoning part without its end."""

    assistant_message_id: MessageId
    part_id: PartId
    kind: str


class OpenCall(msgspec.Struct, frozen=True):
    """A tool call without its settlement. `running` tells whether it was called or is still being written."""

    assistant_message_id: MessageId
    call_id: CallId
    tool: str
    executed: bool
    running: bool


class Unfinished(msgspec.Struct, frozen=True):
    """What a session's turns left open: turns without a terminal event, fragments without end, calls without settlement."""

    turns: tuple[MessageId, ...]
    fragments: tuple[OpenFragment, ...]
    calls: tuple[OpenCall, ...]

    def __bool__(self) -> bool:
        return bool(self.turns or self.fragments or self.calls)


def owner(cursor: Cursor, message_id: MessageId) -> SessionId | None:
    """The session that shows the message with that id, or None when none does."""
    rows = cursor.execute(
        "SELECT s.id FROM message m JOIN session s ON s.key = m.session WHERE m.id = ?", (message_id,)
    ).fetchall()
    return rows[0][0] if rows else None


def insert(cursor: Cursor, session: int, seq: int, message: Message) -> int:
    """A new message; returns its key. Raises `apsw.ConstraintError` when its id is shown already."""
    cursor.execute(
        "INSERT INTO message (id, session, seq, kind, body) VALUES (?, ?, ?, ?, ?)",
        (message.id, session, seq, KINDS[type(message)], _encoder.encode(message)),
    )
    return cursor.connection.last_insert_rowid()


def assistant(cursor: Cursor, key: int) -> AssistantMessage:
    """The assistant message without its content."""
    rows = cursor.execute("SELECT body FROM message WHERE key = ?", (key,)).fetchall()
    return _assistant.decode(rows[0][0])


def update_assistant(cursor: Cursor, key: int, message: AssistantMessage) -> None:
    """Replace the assistant message; its content stays where it is."""
    cursor.execute("UPDATE message SET body = ? WHERE key = ?", (_encoder.encode(message), key))


def insert_part(cursor: Cursor, message: int, part: AssistantContent, kind: str) -> None:
    """A new open part at the end. Raises `apsw.ConstraintError` when the message has one by that id."""
    cursor.execute(
        "INSERT INTO message_part (message, id, kind, open, body) VALUES (?, ?, ?, 1, ?)",
        (message, part.id, kind, _encoder.encode(part)),
    )


def end_fragment(cursor: Cursor, message: int, part: AssistantContent, kind: str) -> bool:
    """Overwrite a text or reasoning part with its whole value; False when the message has none by that id."""
    cursor.execute(
        "UPDATE message_part SET open = 0, body = ? WHERE message = ? AND id = ? AND kind = ?",
        (_encoder.encode(part), message, part.id, kind),
    )
    return cursor.connection.changes() == 1


def tool(cursor: Cursor, message: int, call_id: CallId) -> ToolPart | None:
    """The call of that message, or None when it has none by that id."""
    rows = cursor.execute(
        "SELECT body FROM message_part WHERE message = ? AND id = ? AND kind = 'tool'", (message, call_id)
    ).fetchall()
    return _tool.decode(rows[0][0]) if rows else None


def update_tool(cursor: Cursor, message: int, part: ToolPart, *, settled: bool) -> None:
    """Replace a call's part."""
    cursor.execute(
        "UPDATE message_part SET open = ?, body = ? WHERE message = ? AND id = ?",
        (0 if settled else 1, _encoder.encode(part), message, part.id),
    )


def open_parts(cursor: Cursor, session_id: SessionId) -> tuple[list[OpenFragment], list[OpenCall]]:
    """Open fragments and unsettled calls of a session, each in the order of history."""
    rows = cursor.execute(
        "SELECT m.id, p.id, p.kind, p.body FROM message m JOIN message_part p ON p.message = m.key AND p.open = 1"
        " WHERE m.session = (SELECT key FROM session WHERE id = ?) AND m.kind = 'assistant' ORDER BY m.seq, p.key",
        (session_id,),
    ).fetchall()
    fragments: list[OpenFragment] = []
    calls: list[OpenCall] = []
    for message_id, part_id, kind, body in rows:
        if kind == "tool":
            part = _tool.decode(body)
            calls.append(OpenCall(message_id, part_id, part.name, part.executed, isinstance(part.state, ToolRunning)))
        else:
            fragments.append(OpenFragment(message_id, part_id, kind))
    return fragments, calls


def assemble(messages: Iterable[tuple[int, str, bytes]], parts: Iterable[tuple[int, bytes]]) -> list[Message]:
    """The messages of rows `(key, kind, body)`, with the content rows `(message key, body)` put into the assistants.

    Content rows are in the order of their parts. A kind that is not known is skipped.
    """
    content: dict[int, list[AssistantContent]] = {}
    for key, body in parts:
        content.setdefault(key, []).append(_content.decode(body))
    assembled: list[Message] = []
    for key, kind, body in messages:
        if kind == "assistant":
            header = _assistant.decode(body)
            of_this = content.get(key)
            assembled.append(msgspec.structs.replace(header, content=tuple(of_this)) if of_this else header)
        elif kind in _KNOWN:
            assembled.append(_message.decode(body))
    return assembled


_KNOWN = frozenset(KINDS.values())
