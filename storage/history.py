"""Which stored messages the next request is made from, and which of them are new to whoever knows the others.

Rules (semantics, "Safe Provider-Turn Boundary"; seed, "Context Epoch"):
- From the last completed compaction on. Of the system messages those that the baseline covers are left out, and those it
  does not cover stay, also when they are older than the compaction. An `Origin` names that selection.
- Under one origin messages only come behind those there are. One that has its end is changed by pruning alone, and who prunes
  knows it; so a reader that stands at a `Mark` needs no more than what is behind it.
"""

from __future__ import annotations

from typing import NamedTuple

from ..protocol.values import Message, SessionId
from . import messages, pages, sessions
from .statements import Cursor

_SESSION = (
    "SELECT s.key, s.head, s.compacted_seq, c.baseline_seq FROM session s LEFT JOIN context_epoch c ON c.session = s.key"
    " WHERE s.id = ?"
)
_MESSAGES = (
    "SELECT seq, key, kind, body, open FROM message WHERE session = ?1 AND kind <> 'system' AND seq >= ?2 UNION ALL"
    " SELECT seq, key, kind, body, open FROM message WHERE session = ?1 AND kind = 'system' AND seq > ?3 ORDER BY 1"
)
_SIZE = (
    "SELECT sum(length(m.body) + (SELECT coalesce(sum(length(p.body)), 0) FROM message_part p WHERE p.message = m.key))"
    " FROM message m WHERE m.session = ?1 AND (m.kind <> 'system' AND m.seq >= ?2 OR m.kind = 'system' AND m.seq > ?3)"
)


class Origin(NamedTuple):
    """Messages from the sequence `first` on, and system messages behind the sequence `covered`."""

    first: int
    covered: int


class Mark(NamedTuple):
    """Where a reader stands: it knows the messages of the origin up to the sequence `seq`."""

    origin: Origin
    seq: int


class Stretch(NamedTuple):
    """The messages behind `since`, or all of the origin when that is None, up to `mark`."""

    since: Mark | None
    mark: Mark
    messages: tuple[Message, ...]
    size: int
    """Bytes of the messages as they are stored."""
    settled: bool
    """Whether all of them have their end, so that the mark may be stood at."""


class Limit(NamedTuple):
    """What may be read from its beginning: a log of so many events, and messages of so many bytes."""

    events: int
    bytes: int


def stretch(cursor: Cursor, session_id: SessionId, since: Mark | None, *, limit: Limit | None = None) -> Stretch | None:
    """What is behind `since`; everything where that is None or of another origin. Raises `SessionNotFoundError`.

    What is more than the `limit` is not read from its beginning: the answer is then None.
    """
    rows = cursor.execute(_SESSION, (session_id,)).fetchall()
    if not rows:
        raise sessions.not_found(session_id)
    key, head, first, covered = rows[0]
    origin = Origin(first, covered or 0)
    if since is None or since.origin != origin:
        if limit is not None and (head > limit.events or _bytes(cursor, key, origin) > limit.bytes):
            return None
        since = None
    known = -1 if since is None else since.seq
    found = cursor.execute(_MESSAGES, (key, max(first, known + 1), max(origin.covered, known))).fetchall()
    parts = pages.parts_between(cursor, key, max(first, found[0][0]), found[-1][0]) if found else []
    return Stretch(
        since=since,
        mark=Mark(origin, found[-1][0] if found else max(known, 0)),
        messages=tuple(messages.assemble((row[1:4] for row in found), parts)),
        size=sum(len(row[3]) for row in found) + sum(len(body) for _, body in parts),
        settled=not any(row[4] for row in found),
    )


def size(cursor: Cursor, session_id: SessionId) -> int:
    """Bytes of all messages of the origin as they are stored. Raises `SessionNotFoundError`."""
    rows = cursor.execute(_SESSION, (session_id,)).fetchall()
    if not rows:
        raise sessions.not_found(session_id)
    key, _, first, covered = rows[0]
    return _bytes(cursor, key, Origin(first, covered or 0))


def _bytes(cursor: Cursor, key: int, origin: Origin) -> int:
    return cursor.execute(_SIZE, (key, *origin)).fetchall()[0][0] or 0
