"""Context Epochs: the active baseline and snapshot of each session. A projection of the log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast, get_args

import msgspec

from ..protocol.values import SessionId
from ..protocol.values.context import ContextEpoch, EpochReason, SnapshotEntry
from .statements import Cursor

_FIND = (
    "SELECT baseline, snapshot, baseline_seq, revision, reason, stale FROM context_epoch"
    " WHERE session = (SELECT key FROM session WHERE id = ?)"
)
_REASONS: frozenset[str] = frozenset(get_args(EpochReason))

_json = msgspec.json.Encoder(order="sorted")
_snapshot: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, Any])


class EpochRecord(msgspec.Struct, frozen=True):
    """The active epoch, and its snapshot as it is stored: plain, not yet checked."""

    epoch: ContextEpoch
    snapshot: Any


def find(cursor: Cursor, session_id: SessionId) -> EpochRecord | None:
    """The session's active epoch, or None when it has none."""
    rows = cursor.execute(_FIND, (session_id,)).fetchall()
    if not rows:
        return None
    baseline, snapshot, baseline_seq, revision, reason, stale = rows[0]
    epoch = ContextEpoch(
        baseline=baseline,
        baseline_seq=baseline_seq,
        revision=revision,
        reason=cast("EpochReason", reason) if reason in _REASONS else "transition",
        stale=bool(stale),
    )
    try:
        plain: Any = msgspec.json.decode(snapshot)
    except msgspec.DecodeError:
        plain = snapshot
    return EpochRecord(epoch, plain)


def start(
    cursor: Cursor, session: int, *, baseline: str, snapshot: Mapping[str, SnapshotEntry], baseline_seq: int, reason: str
) -> None:
    """A new epoch, in place of the one there was."""
    cursor.execute(
        "INSERT INTO context_epoch (session, baseline, snapshot, baseline_seq, revision, reason, stale)"
        " VALUES (?, ?, ?, ?, 0, ?, 0) ON CONFLICT (session) DO UPDATE SET baseline = excluded.baseline,"
        " snapshot = excluded.snapshot, baseline_seq = excluded.baseline_seq, revision = 0, reason = excluded.reason,"
        " stale = 0",
        (session, baseline, _json.encode(snapshot).decode(), baseline_seq, reason),
    )


def update(cursor: Cursor, session: int, entries: Mapping[str, SnapshotEntry], dropped: Iterable[str]) -> bool:
    """Advance the snapshot; False when the session has no epoch."""
    rows = cursor.execute("SELECT snapshot FROM context_epoch WHERE session = ?", (session,)).fetchall()
    if not rows:
        return False
    snapshot = _snapshot.decode(rows[0][0])
    snapshot.update({key: msgspec.to_builtins(entry) for key, entry in entries.items()})
    for key in dropped:
        snapshot.pop(key, None)
    cursor.execute(
        "UPDATE context_epoch SET snapshot = ?, revision = revision + 1 WHERE session = ?",
        (_json.encode(snapshot).decode(), session),
    )
    return True


def make_stale(cursor: Cursor, session: int) -> None:
    """The next boundary begins a new epoch."""
    cursor.execute("UPDATE context_epoch SET stale = 1 WHERE session = ?", (session,))


def clear(cursor: Cursor, session: int) -> None:
    """The session has no epoch any more; its next boundary initialises."""
    cursor.execute("DELETE FROM context_epoch WHERE session = ?", (session,))
