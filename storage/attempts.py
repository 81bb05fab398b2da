"""Attempt rows: one for every `turn.started` (ruling B1).

An attempt has one end: the retry that was scheduled, the next attempt, or the turn's one terminal event. The outcome of a turn
stands at its last attempt, also when that one had ended before the turn did.
"""

from __future__ import annotations

import msgspec

from ..protocol.values import MessageId, Outcome, SessionId, WithdrawnOutcome
from ..protocol.values.session import PromptOutcome
from . import inbox
from .statements import Cursor

_encoder = msgspec.msgpack.Encoder()
_outcome: msgspec.msgpack.Decoder[Outcome] = msgspec.msgpack.Decoder(Outcome)


class TurnRecord(msgspec.Struct, frozen=True):
    """The last attempt of a Provider Turn. `outcome` is None while it runs and when another turn has to follow."""

    assistant_message_id: MessageId
    attempt: int
    started_seq: int
    ended_seq: int | None
    outcome: Outcome | None


def start(cursor: Cursor, session: int, message: int, number: int, seq: int) -> None:
    """A new open attempt. Raises `apsw.ConstraintError` when the turn has one by that number."""
    cursor.execute(
        "INSERT INTO attempt (message, number, session, started_seq) VALUES (?, ?, ?, ?)", (message, number, session, seq)
    )


def end(cursor: Cursor, message: int, seq: int, outcome: Outcome | None) -> bool:
    """End the turn's open attempt; False when it has none. `outcome` is None when something of the turn follows."""
    cursor.execute(
        "UPDATE attempt SET ended_seq = ?, outcome = ? WHERE message = ? AND ended_seq IS NULL",
        (seq, None if outcome is None else _encoder.encode(outcome), message),
    )
    return cursor.connection.changes() == 1


def conclude(cursor: Cursor, message: int, number: int, outcome: Outcome | None) -> None:
    """Note the outcome of a turn at its last attempt, which has ended already."""
    cursor.execute(
        "UPDATE attempt SET outcome = ? WHERE message = ? AND number = ?",
        (None if outcome is None else _encoder.encode(outcome), message, number),
    )


def last_turn(cursor: Cursor, session_id: SessionId) -> TurnRecord | None:
    """The turn that started last, or None when the session has had none."""
    rows = cursor.execute(
        "SELECT m.id, a.number, a.started_seq, a.ended_seq, a.outcome FROM attempt a JOIN message m ON m.key = a.message"
        " WHERE a.session = (SELECT key FROM session WHERE id = ?) ORDER BY a.started_seq DESC LIMIT 1",
        (session_id,),
    ).fetchall()
    if not rows:
        return None
    message_id, number, started_seq, ended_seq, outcome = rows[0]
    return TurnRecord(message_id, number, started_seq, ended_seq, None if outcome is None else _outcome.decode(outcome))


def outcome_after(cursor: Cursor, session_id: SessionId, seq: int) -> Outcome | None:
    """How the first turn started after `seq` that needs no continuation ended; None when there is none yet."""
    rows = cursor.execute(
        "SELECT outcome FROM attempt WHERE session = (SELECT key FROM session WHERE id = ?) AND started_seq > ?"
        " AND outcome IS NOT NULL ORDER BY started_seq LIMIT 1",
        (session_id, seq),
    ).fetchall()
    return _outcome.decode(rows[0][0]) if rows else None


def prompt_outcome(cursor: Cursor, session_id: SessionId, message_id: MessageId) -> PromptOutcome | None:
    """What became of a prompt (ruling C3); None while it waits or is being answered, and for one the session never had."""
    admission = inbox.find(cursor, message_id)
    if admission is None or admission.session_id != session_id:
        return None
    if admission.withdrawn_seq is not None:
        return WithdrawnOutcome()
    if admission.promoted_seq is None:
        return None
    return outcome_after(cursor, session_id, admission.promoted_seq)
