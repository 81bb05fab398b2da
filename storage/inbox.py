"""Inbox rows: every Admitted Prompt and control item, and its fate.

A row is kept after promotion and withdrawal, so that an exact retry finds its receipt. It holds no prompt: that stands in
the event of the admission, and a prompt of megabytes is written once less.
"""

from __future__ import annotations

from typing import Any

from ..protocol.values import (
    Admission,
    CompactControl,
    ControlAdmitted,
    ControlItem,
    ControlKind,
    Delivery,
    MessageId,
    MoveControl,
    PendingItem,
    PromptAdmitted,
    SessionId,
    decode_event,
)
from .statements import Cursor

_ADMISSION = (
    "SELECT i.id, s.id, i.delivery, i.admitted_seq, i.promoted_seq, i.withdrawn_seq, e.created, e.body FROM inbox i"
    " JOIN session s ON s.key = i.session JOIN event e ON e.session = i.session AND e.seq = i.admitted_seq"
)
_FIND = f"{_ADMISSION} WHERE i.id = ? AND s.hidden = 0"
_WAITING = "i.session = (SELECT key FROM session WHERE id = ?) AND i.promoted_seq IS NULL AND i.withdrawn_seq IS NULL"
_PENDING = f"{_ADMISSION} WHERE {_WAITING} ORDER BY i.admitted_seq"
_CONTROL = f"{_ADMISSION} WHERE {_WAITING} AND i.kind = ? ORDER BY i.admitted_seq DESC LIMIT 1"
_IS_PENDING = f"SELECT 1 FROM inbox i WHERE {_WAITING} AND i.id = ?"  # noqa: S608 - constants
_PLACES = f"SELECT i.id, i.kind, i.delivery FROM inbox i WHERE {_WAITING} ORDER BY i.admitted_seq"  # noqa: S608 - constants


def find(cursor: Cursor, message_id: MessageId) -> Admission | None:
    """The receipt of the prompt with that id in any session, or None when it was never admitted."""
    found = find_item(cursor, message_id)
    return found if isinstance(found, Admission) else None


def admitted_delivery(cursor: Cursor, message_id: MessageId) -> Delivery | None:
    """The delivery with which a prompt was admitted, whatever it was changed to; None when there is no such prompt."""
    rows = cursor.execute(_FIND, (message_id,)).fetchall()
    if not rows:
        return None
    match decode_event(rows[0][-1]).data:
        case PromptAdmitted(delivery=delivery):
            return delivery
        case _:
            return None


def find_item(cursor: Cursor, message_id: MessageId) -> PendingItem | None:
    """The prompt or control item with that id in any session, whatever became of it."""
    rows = cursor.execute(_FIND, (message_id,)).fetchall()
    return _item(rows[0]) if rows else None


def pending(cursor: Cursor, session_id: SessionId) -> list[PendingItem]:
    """What waits, in admission order."""
    return [_item(row) for row in cursor.execute(_PENDING, (session_id,)).fetchall()]


def front(cursor: Cursor, session_id: SessionId) -> list[PendingItem]:
    """Of what waits the first item, and the steers that no control item stands before; the others' prompts are not read."""
    wanted: list[MessageId] = []
    for message_id, kind, delivery in cursor.execute(_PLACES, (session_id,)).fetchall():
        if not wanted or (kind == "prompt" and delivery == "steer"):
            wanted.append(message_id)
        if kind != "prompt":
            break
    return [item for message_id in wanted if (item := find_item(cursor, message_id)) is not None]


def pending_control(cursor: Cursor, session_id: SessionId, kind: ControlKind) -> ControlItem | None:
    """The control item of a kind that was admitted last, if any waits."""
    for row in cursor.execute(_CONTROL, (session_id, kind)).fetchall():
        match _item(row):
            case CompactControl() | MoveControl() as item:
                return item
            case _:
                pass
    return None


def is_pending(cursor: Cursor, session_id: SessionId, message_id: MessageId) -> bool:
    """Whether the prompt or control item with that id waits in that session."""
    return bool(cursor.execute(_IS_PENDING, (session_id, message_id)).fetchall())


def is_taken(cursor: Cursor, message_id: MessageId) -> bool:
    """Whether some session's inbox holds or held that id."""
    return bool(cursor.execute("SELECT 1 FROM inbox WHERE id = ?", (message_id,)).fetchall())


def admit(cursor: Cursor, session: int, message_id: MessageId, delivery: Delivery, seq: int) -> None:
    """A new pending row. Raises `apsw.ConstraintError` when the inbox knows the id."""
    cursor.execute(
        "INSERT INTO inbox (id, session, kind, delivery, admitted_seq) VALUES (?, ?, 'prompt', ?, ?)",
        (message_id, session, delivery, seq),
    )


def admit_control(cursor: Cursor, session: int, message_id: MessageId, kind: ControlKind, seq: int) -> None:
    """A new pending row of a control item. Raises `apsw.ConstraintError` when the inbox knows the id."""
    cursor.execute(
        "INSERT INTO inbox (id, session, kind, delivery, admitted_seq) VALUES (?, ?, ?, '', ?)",
        (message_id, session, kind, seq),
    )


def promote(cursor: Cursor, session: int, message_id: MessageId, seq: int) -> bool:
    """Mark a pending row as promoted at `seq`; False when nothing was pending under that id."""
    cursor.execute(
        "UPDATE inbox SET promoted_seq = ? WHERE id = ? AND session = ? AND promoted_seq IS NULL AND withdrawn_seq IS NULL",
        (seq, message_id, session),
    )
    return cursor.connection.changes() == 1


def redeliver(cursor: Cursor, session: int, message_id: MessageId, delivery: Delivery) -> bool:
    """Change the delivery of a pending row; False when nothing was pending under that id."""
    cursor.execute(
        "UPDATE inbox SET delivery = ? WHERE id = ? AND session = ? AND promoted_seq IS NULL AND withdrawn_seq IS NULL",
        (delivery, message_id, session),
    )
    return cursor.connection.changes() == 1


def withdraw(cursor: Cursor, session: int, message_id: MessageId, seq: int) -> bool:
    """Mark a pending row as withdrawn at `seq`; False when nothing was pending under that id."""
    cursor.execute(
        "UPDATE inbox SET withdrawn_seq = ? WHERE id = ? AND session = ? AND promoted_seq IS NULL AND withdrawn_seq IS NULL",
        (seq, message_id, session),
    )
    return cursor.connection.changes() == 1


def _item(row: tuple[Any, ...]) -> PendingItem:
    message_id, session_id, delivery, admitted_seq, promoted_seq, withdrawn_seq, created, body = row
    match decode_event(body).data:
        case PromptAdmitted(prompt=prompt, metadata=metadata):
            return Admission(
                id=message_id,
                session_id=session_id,
                prompt=prompt,
                delivery=delivery,
                admitted_seq=admitted_seq,
                created=created,
                metadata=metadata,
                promoted_seq=promoted_seq,
                withdrawn_seq=withdrawn_seq,
            )
        case ControlAdmitted(kind="move", location=location) if location is not None:
            return MoveControl(
                id=message_id,
                session_id=session_id,
                location=location,
                admitted_seq=admitted_seq,
                created=created,
                delivered_seq=promoted_seq,
                withdrawn_seq=withdrawn_seq,
            )
        case _:
            return CompactControl(
                id=message_id,
                session_id=session_id,
                admitted_seq=admitted_seq,
                created=created,
                delivered_seq=promoted_seq,
                withdrawn_seq=withdrawn_seq,
            )
