"""Message rows and the parts of assistant messages.

A message keeps the sequence of the event that created it. An assistant's content stands in rows of its own, in the order in
which the parts began, so that a long turn is not written anew with every event. A kind this program does not know is kept
and skipped.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import TypeVar

import msgspec

from ..protocol.values import (
    AssistantContent,
    AssistantMessage,
    CallId,
    CompactionMessage,
    Message,
    MessageId,
    ModelSwitchedMessage,
    SessionId,
    SyntheticMessage,
    SystemMessage,
    ToolPart,
    UserMessage,
)
from ..protocol.values.message import AgentSwitchedMessage
from .statements import Cursor

KINDS: dict[type[Message], str] = {
    UserMessage: "user",
    SyntheticMessage: "synthetic",
    SystemMessage: "system",
    CompactionMessage: "compaction",
    AgentSwitchedMessage: "agent-switched",
    ModelSwitchedMessage: "model-switched",
    AssistantMessage: "assistant",
}
"""What the column `kind` says of each message type: its tag on the wire."""

_HAVE_AN_END = (AssistantMessage, CompactionMessage)
_RECENT_COMPACTIONS = (
    "SELECT kind, body FROM message WHERE session = (SELECT key FROM session WHERE id = ?)"
    " AND kind IN ('compaction', 'model-switched') ORDER BY seq DESC LIMIT ?"
)

PartT = TypeVar("PartT", bound=AssistantContent)

_encoder = msgspec.msgpack.Encoder()
_message: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_assistant = msgspec.msgpack.Decoder(AssistantMessage)
_compaction = msgspec.msgpack.Decoder(CompactionMessage)
_tool = msgspec.msgpack.Decoder(ToolPart)
_content: msgspec.msgpack.Decoder[AssistantContent] = msgspec.msgpack.Decoder(AssistantContent)


def owner(cursor: Cursor, message_id: MessageId) -> SessionId | None:
    """The session that shows the message with that id, or None when none does."""
    rows = cursor.execute(
        "SELECT s.id FROM message m JOIN session s ON s.key = m.session WHERE m.id = ?", (message_id,)
    ).fetchall()
    return rows[0][0] if rows else None


def insert(cursor: Cursor, session: int, seq: int, message: Message) -> int:
    """A new message; returns its key. Raises `apsw.ConstraintError` when its id is shown already."""
    cursor.execute(
        "INSERT INTO message (id, session, seq, kind, open, body) VALUES (?, ?, ?, ?, ?, ?)",
        (message.id, session, seq, KINDS[type(message)], int(type(message) in _HAVE_AN_END), _encoder.encode(message)),
    )
    return cursor.connection.last_insert_rowid()


def assistant(cursor: Cursor, key: int) -> AssistantMessage:
    """The assistant message without its content."""
    rows = cursor.execute("SELECT body FROM message WHERE key = ?", (key,)).fetchall()
    return _assistant.decode(rows[0][0])


def update_assistant(cursor: Cursor, key: int, message: AssistantMessage) -> None:
    """Replace the assistant message; its content stays where it is. Once it is completed its turn is not open any more."""
    if message.completed is None:
        cursor.execute("UPDATE message SET body = ? WHERE key = ?", (_encoder.encode(message), key))
    else:
        cursor.execute("UPDATE message SET open = 0, body = ? WHERE key = ?", (_encoder.encode(message), key))


def open_compaction(cursor: Cursor, session: int, message_id: MessageId) -> tuple[int, int, CompactionMessage] | None:
    """Key, sequence and message of a compaction that has no end yet, or None."""
    rows = cursor.execute(
        "SELECT key, seq, body FROM message WHERE id = ? AND session = ? AND kind = 'compaction' AND open = 1",
        (message_id, session),
    ).fetchall()
    return (rows[0][0], rows[0][1], _compaction.decode(rows[0][2])) if rows else None


def end_compaction(cursor: Cursor, key: int, message: CompactionMessage) -> None:
    """The compaction has its end."""
    cursor.execute("UPDATE message SET open = 0, body = ? WHERE key = ?", (_encoder.encode(message), key))


def failures_in_a_row(cursor: Cursor, session_id: SessionId, limit: int) -> int:
    """How many compactions failed since one was completed or the model was switched; counted up to `limit`."""
    count = 0
    for kind, body in cursor.execute(_RECENT_COMPACTIONS, (session_id, limit)).fetchall():
        if kind != "compaction" or _compaction.decode(body).error is None:
            break
        count += 1
    return count


def last_summary(cursor: Cursor, session_id: SessionId) -> CompactionMessage | None:
    """The compaction with which the session's history begins."""
    rows = cursor.execute(
        "SELECT m.body FROM session s JOIN message m ON m.session = s.key AND m.seq = s.compacted_seq WHERE s.id = ?",
        (session_id,),
    ).fetchall()
    return _compaction.decode(rows[0][0]) if rows else None


def tell_paths(cursor: Cursor, session: int, paths: Iterable[str]) -> None:
    """A synthetic message of the session tells these instruction files."""
    for path in paths:
        cursor.execute("INSERT OR IGNORE INTO told_path (session, path) VALUES (?, ?)", (session, path))


def told_paths(cursor: Cursor, session_id: SessionId, paths: Iterable[str]) -> set[str]:
    """Those of the instruction files `paths` that synthetic messages of the session have told already."""
    told = "SELECT 1 FROM told_path WHERE session = (SELECT key FROM session WHERE id = ?) AND path = ?"
    return {path for path in paths if cursor.execute(told, (session_id, path)).fetchall()}


def messages_of_calls(cursor: Cursor, session: int, call_ids: Container[CallId]) -> dict[CallId, int]:
    """Keys of the messages to which these calls of the session belong, found in one pass over all its calls."""
    rows = cursor.execute(
        "SELECT p.id, p.message FROM message m JOIN message_part p ON p.message = m.key"
        " WHERE m.session = ? AND p.kind = 'tool'",
        (session,),
    )
    return {call: message for call, message in rows if call in call_ids}


def running_turn(cursor: Cursor, session_id: SessionId) -> AssistantMessage | None:
    """The message of the session's open turn with its parts, or None when no turn is open."""
    rows = cursor.execute(
        "SELECT key, kind, body FROM message WHERE session = (SELECT key FROM session WHERE id = ?) AND open = 1"
        " AND kind = 'assistant' ORDER BY seq DESC LIMIT 1",
        (session_id,),
    ).fetchall()
    if not rows:
        return None
    (message,) = assemble(rows, parts_of(cursor, rows[0][0]))
    assert isinstance(message, AssistantMessage)
    return message


def find(cursor: Cursor, session_id: SessionId, message_id: MessageId) -> Message | None:
    """A message of that session with its parts, or None when the session shows none by that id."""
    rows = cursor.execute(
        "SELECT key, kind, body FROM message WHERE id = ? AND session = (SELECT key FROM session WHERE id = ?)",
        (message_id, session_id),
    ).fetchall()
    found = assemble(rows, parts_of(cursor, rows[0][0])) if rows else []
    return found[0] if found else None


def parts_of(cursor: Cursor, message: int) -> list[tuple[int, bytes]]:
    """Content rows `(message key, body)` of one message."""
    rows = cursor.execute("SELECT message, body FROM message_part WHERE message = ? ORDER BY key", (message,)).fetchall()
    return [(key, body) for key, body in rows]


def insert_part(cursor: Cursor, session: int, message: int, part: AssistantContent, kind: str) -> None:
    """A new open part at the end. Raises `apsw.ConstraintError` when the message has one by that id."""
    cursor.execute(
        "INSERT INTO message_part (message, session, id, kind, open, body) VALUES (?, ?, ?, ?, 1, ?)",
        (message, session, part.id, kind, _encoder.encode(part)),
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
