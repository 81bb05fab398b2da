"""Session rows: the public projection, and what only the session actor asks for."""

from __future__ import annotations

from typing import Any

import msgspec

from ..protocol.values import CacheTokens, Location, ModelRef, Session, SessionCreated, SessionId, Tokens
from ..protocol.values.errors import SessionNotFoundError
from .statements import Cursor

COLUMNS = (
    "id, title, directory, parent_id, agent, model, metadata, created, updated, head, cost, input, output, reasoning,"
    " cache_read, cache_write, revision, unanswered_seq, compacted_seq, budget"
)
"""The columns of a session row in the order `from_row` and `record_from_row` take them; `budget` is the last."""

_SELECT = f"SELECT {COLUMNS} FROM session WHERE id = ? AND hidden = 0"  # noqa: S608 - put together from a constant
_INSERT = (
    "INSERT INTO session (id, title, directory, parent_id, agent, model, metadata, created, updated, head, revision, cost,"
    " input, output, reasoning, cache_read, cache_write, compacted_seq)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 1, 0.0, 0, 0, 0, 0, 0, 0)"
)

FAMILY = (
    "WITH RECURSIVE family (key, id) AS (SELECT key, id FROM session WHERE id = ? AND hidden = 0"
    " UNION SELECT s.key, s.id FROM family f JOIN session s ON s.parent_id = f.id)"
)
"""Begins a statement about a session and all its descendants; rows leave the recursion in the order they entered it."""
_FAMILY = FAMILY + " SELECT id FROM family"  # noqa: S608 - constants

_encoder = msgspec.msgpack.Encoder()
_model = msgspec.msgpack.Decoder(ModelRef)
_metadata: msgspec.msgpack.Decoder[dict[str, Any]] = msgspec.msgpack.Decoder(dict[str, Any])


class SessionRecord(msgspec.Struct, frozen=True):
    """A session as the runtime sees it.

    `revision` rises when agent, model or location changes, so that a boundary notices it (ruling A14). `unanswered_seq` is
    the sequence of what still waits for a provider turn (ruling B5): a promoted prompt or a settled local call.
    `compacted_seq` is the sequence of the message with which the history of a request begins, 0 without a compaction.
    """

    session: Session
    revision: int
    unanswered_seq: int | None
    compacted_seq: int = 0


def find(cursor: Cursor, session_id: SessionId) -> SessionRecord:
    """The session with that id. Raises `SessionNotFoundError` when there is none."""
    rows = cursor.execute(_SELECT, (session_id,)).fetchall()
    if not rows:
        raise not_found(session_id)
    return record_from_row(rows[0])


def family(cursor: Cursor, session_id: SessionId) -> tuple[SessionId, ...]:
    """The session and all its descendants, children before their parents. Raises `SessionNotFoundError`."""
    rows = cursor.execute(_FAMILY, (session_id,)).fetchall()
    if not rows:
        raise not_found(session_id)
    return tuple([row[0] for row in reversed(rows)])


def not_found(session_id: SessionId) -> SessionNotFoundError:
    """The error that names a session nobody has."""
    return SessionNotFoundError(f"There is no session {session_id!r}.", session_id=session_id)


def record_from_row(row: tuple[Any, ...]) -> SessionRecord:
    """The record of a row of `COLUMNS`."""
    return SessionRecord(session=from_row(row), revision=row[16], unanswered_seq=row[17], compacted_seq=row[18])


def from_row(row: tuple[Any, ...]) -> Session:
    """The public value of a row of `COLUMNS`."""
    return Session(
        id=row[0],
        title=row[1],
        location=Location(directory=row[2]),
        parent_id=row[3],
        agent=row[4],
        model=None if row[5] is None else _model.decode(row[5]),
        metadata=None if row[6] is None else _metadata.decode(row[6]),
        created=row[7],
        updated=row[8],
        head=row[9],
        cost=row[10],
        tokens=Tokens(input=row[11], output=row[12], reasoning=row[13], cache=CacheTokens(read=row[14], write=row[15])),
        budget=row[-1],
    )


def insert(cursor: Cursor, session_id: SessionId, created: int, data: SessionCreated) -> int:
    """A new session, without events yet; returns its key."""
    cursor.execute(
        _INSERT,
        (
            session_id,
            data.title,
            data.location.directory,
            data.parent_id,
            data.agent,
            None if data.model is None else _encoder.encode(data.model),
            None if data.metadata is None else _encoder.encode(data.metadata),
            created,
            created,
        ),
    )
    key = cursor.connection.last_insert_rowid()
    cursor.execute("INSERT INTO session_title (rowid, title) VALUES (?, ?)", (key, data.title))
    return key


def advance(cursor: Cursor, session: int, head: int, updated: int) -> None:
    """The session's last event is now the one at `head`."""
    cursor.execute("UPDATE session SET head = ?, updated = ? WHERE key = ?", (head, updated, session))


def rename(cursor: Cursor, session: int, title: str) -> None:
    """The session has another title, in the index of titles too."""
    former = cursor.execute("SELECT title FROM session WHERE key = ?", (session,)).fetchall()[0][0]
    cursor.execute("INSERT INTO session_title (session_title, rowid, title) VALUES ('delete', ?, ?)", (session, former))
    cursor.execute("UPDATE session SET title = ? WHERE key = ?", (title, session))
    cursor.execute("INSERT INTO session_title (rowid, title) VALUES (?, ?)", (session, title))


def set_metadata(cursor: Cursor, session: int, metadata: dict[str, Any]) -> None:
    """The session's metadata, all of it."""
    cursor.execute("UPDATE session SET metadata = ? WHERE key = ?", (_encoder.encode(metadata), session))


def set_budget(cursor: Cursor, session: int, budget: float | None) -> None:
    """What the session may cost, in US dollars; None is no limit."""
    cursor.execute("UPDATE session SET budget = ? WHERE key = ?", (budget, session))


def select_agent(cursor: Cursor, session: int, agent: str) -> None:
    """The agent of the next turn; a change that a sampled boundary has to notice."""
    cursor.execute("UPDATE session SET agent = ?, revision = revision + 1 WHERE key = ?", (agent, session))


def select_model(cursor: Cursor, session: int, model: ModelRef) -> None:
    """The model of the next turn; a change that a sampled boundary has to notice."""
    cursor.execute("UPDATE session SET model = ?, revision = revision + 1 WHERE key = ?", (_encoder.encode(model), session))


def move(cursor: Cursor, session: int, directory: str) -> None:
    """The session works somewhere else; a change that a sampled boundary has to notice."""
    cursor.execute("UPDATE session SET directory = ?, revision = revision + 1 WHERE key = ?", (directory, session))


def compact(cursor: Cursor, session: int, seq: int) -> None:
    """The history of a request begins with the message at `seq`."""
    cursor.execute("UPDATE session SET compacted_seq = ? WHERE key = ?", (seq, session))


def begin_anew(cursor: Cursor, session: int) -> None:
    """What was copied into a fork is history, not work: nothing was used for it here, and nothing of it waits."""
    cursor.execute(
        "UPDATE session SET unanswered_seq = NULL, cost = 0.0, input = 0, output = 0, reasoning = 0, cache_read = 0,"
        " cache_write = 0 WHERE key = ?",
        (session,),
    )


def hide(cursor: Cursor, session: int, *, hidden: bool) -> None:
    """Whether nobody may see the session; one that stays hidden is swept."""
    cursor.execute("UPDATE session SET hidden = ? WHERE key = ?", (int(hidden), session))


def mark_unanswered(cursor: Cursor, session: int, seq: int) -> None:
    """A provider turn has to follow the event at `seq`."""
    cursor.execute("UPDATE session SET unanswered_seq = ? WHERE key = ?", (seq, session))


def mark_answered(cursor: Cursor, session: int) -> None:
    """Nothing waits for a provider turn any more."""
    cursor.execute("UPDATE session SET unanswered_seq = NULL, continued = 0 WHERE key = ?", (session,))


def count_continuation(cursor: Cursor, session_id: SessionId) -> None:
    """A start goes on once more with what is unanswered. The count begins anew with an answer."""
    cursor.execute("UPDATE session SET continued = continued + 1 WHERE id = ?", (session_id,))


def continuations(cursor: Cursor, session_id: SessionId) -> int:
    """How often starts went on with what is unanswered."""
    rows = cursor.execute("SELECT continued FROM session WHERE id = ?", (session_id,)).fetchall()
    if not rows:
        raise not_found(session_id)
    return rows[0][0]


def add_usage(cursor: Cursor, session: int, tokens: Tokens | None, cost: float | None) -> None:
    """Add what a turn used to the session's totals."""
    if tokens is None and cost is None:
        return
    used = (0, 0, 0, 0, 0)
    if tokens is not None:
        used = (tokens.input, tokens.output, tokens.reasoning, tokens.cache.read, tokens.cache.write)
    cursor.execute(
        "UPDATE session SET input = input + ?, output = output + ?, reasoning = reasoning + ?, cache_read = cache_read + ?,"
        " cache_write = cache_write + ?, cost = cost + ? WHERE key = ?",
        (*used, cost or 0.0, session),
    )
