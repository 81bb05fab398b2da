"""Requests that wait for somebody's answer: permissions and questions.

A row holds who asks and how it ended; what is asked stands in the event at `asked_seq`. A request has one end (ruling A16).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from ..protocol.values import CallId, SessionId, decode_event
from ..protocol.values.event import PermissionAsked, QuestionAsked
from ..protocol.values.ids import RequestId
from ..protocol.values.permission import PermissionRequest
from ..protocol.values.question import QuestionRequest
from . import sessions
from .statements import Cursor

RequestKind = Literal["permission", "question"]

TABLES: Final[dict[RequestKind, str]] = {"permission": "permission_request", "question": "question_request"}


class RequestState(msgspec.Struct, frozen=True):
    """A request and its standing reply.

    `end` is None while it is open; then `once`, `always`, `reject` or `cancelled` for a permission, `replied`, `rejected` or
    `cancelled` for a question.
    """

    id: RequestId
    session_id: SessionId
    kind: RequestKind
    end: str | None = None


_STATE = {
    kind: f"SELECT r.id, s.id, '{kind}', r.reply FROM {table} r JOIN session s ON s.key = r.session"  # noqa: S608 - constants
    for kind, table in TABLES.items()
}
_ASKED = {
    kind: f"SELECT s.id, e.body FROM {table} r JOIN session s ON s.key = r.session"  # noqa: S608 - constants
    " JOIN event e ON e.session = r.session AND e.seq = r.asked_seq"
    for kind, table in TABLES.items()
}
_ONE = " WHERE r.id = ?1 AND s.hidden = 0"
_ALL = " WHERE r.ended_seq IS NULL AND s.hidden = 0 ORDER BY e.id"
_SESSION = " WHERE r.session = (SELECT key FROM session WHERE id = ?) AND r.ended_seq IS NULL ORDER BY r.asked_seq"
_FAMILY = " WHERE r.session IN (SELECT key FROM family) AND r.ended_seq IS NULL ORDER BY e.id"

_FIND = " UNION ALL ".join(state + _ONE for state in _STATE.values())
_LEFT_OPEN = [state + _SESSION for state in _STATE.values()]


# --- reading ------------------------------------------------------------------------------------------------------


def find(cursor: Cursor, request_id: RequestId) -> RequestState | None:
    """The request with that id in any session, or None when there never was one."""
    rows = cursor.execute(_FIND, (request_id,)).fetchall()
    return RequestState(*rows[0]) if rows else None


def left_open(cursor: Cursor, session_id: SessionId) -> list[RequestState]:
    """Requests of the session without an end."""
    return [RequestState(*row) for statement in _LEFT_OPEN for row in cursor.execute(statement, (session_id,)).fetchall()]


def permission(cursor: Cursor, request_id: RequestId) -> PermissionRequest | None:
    """What that permission request asks, whether it is open or not."""
    rows = cursor.execute(_ASKED["permission"] + _ONE, (request_id,)).fetchall()
    return _permission(*rows[0]) if rows else None


def permissions(cursor: Cursor, session_id: SessionId) -> list[PermissionRequest]:
    """Open permission requests of one session, the oldest first."""
    return [_permission(*row) for row in cursor.execute(_ASKED["permission"] + _SESSION, (session_id,)).fetchall()]


def questions(cursor: Cursor, session_id: SessionId) -> list[QuestionRequest]:
    """Open questions of one session, the oldest first."""
    return [_question(*row) for row in cursor.execute(_ASKED["question"] + _SESSION, (session_id,)).fetchall()]


def family_permissions(cursor: Cursor, session_id: SessionId | None) -> list[PermissionRequest]:
    """Open permission requests of a session and its descendants, or of all sessions, the oldest first."""
    return [_permission(*row) for row in _of_family(cursor, "permission", session_id)]


def family_questions(cursor: Cursor, session_id: SessionId | None) -> list[QuestionRequest]:
    """Open questions of a session and its descendants, or of all sessions, the oldest first."""
    return [_question(*row) for row in _of_family(cursor, "question", session_id)]


def _of_family(cursor: Cursor, kind: RequestKind, session_id: SessionId | None) -> list[tuple[Any, ...]]:
    if session_id is None:
        return cursor.execute(_ASKED[kind] + _ALL).fetchall()
    return cursor.execute(" ".join((sessions.FAMILY, _ASKED[kind] + _FAMILY)), (session_id,)).fetchall()


def _permission(session_id: SessionId, body: bytes) -> PermissionRequest:
    event = decode_event(body)
    data = event.data
    assert isinstance(data, PermissionAsked)
    return PermissionRequest(
        id=data.request_id,
        session_id=session_id,
        assistant_message_id=data.assistant_message_id,
        call_id=data.call_id,
        action=data.action,
        resources=data.resources,
        save=data.save,
        created=event.created,
        metadata=data.metadata,
    )


def _question(session_id: SessionId, body: bytes) -> QuestionRequest:
    event = decode_event(body)
    data = event.data
    assert isinstance(data, QuestionAsked)
    return QuestionRequest(
        id=data.request_id,
        session_id=session_id,
        assistant_message_id=data.assistant_message_id,
        call_id=data.call_id,
        questions=data.questions,
        created=event.created,
    )


# --- writing ------------------------------------------------------------------------------------------------------

_OPEN = {
    kind: f"INSERT INTO {table} (id, session, message, call, asked_seq) VALUES (?, ?, ?, ?, ?)"  # noqa: S608 - constants
    for kind, table in TABLES.items()
}
_END = {
    kind: f"UPDATE {table} SET ended_seq = ?, reply = ? WHERE id = ? AND session = ? AND ended_seq IS NULL"  # noqa: S608 - constants
    for kind, table in TABLES.items()
}


def ask(cursor: Cursor, kind: RequestKind, request_id: RequestId, place: Sequence[int], call_id: CallId) -> None:
    """A new open request; `place` is the keys of session and message, and the sequence of the event that asks.

    Raises `apsw.ConstraintError` when there is one by that id.
    """
    session, message, seq = place
    cursor.execute(_OPEN[kind], (request_id, session, message, call_id, seq))


def end(cursor: Cursor, kind: RequestKind, session: int, request_id: RequestId, seq: int, reply: str) -> bool:
    """End an open request of that session; False when it has none by that id."""
    cursor.execute(_END[kind], (seq, reply, request_id, session))
    return cursor.connection.changes() == 1
