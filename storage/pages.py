"""Pages of sessions and messages: keyset queries behind opaque cursors.

Rules (wire contract, "Semantics of the operations"):
- A cursor carries the whole query. A continuation takes only its cursor; anything beside it is `InvalidCursorError`, and so is
  a cursor of another kind or session.
- Items always come in the asked order. A link appears only where there is more in that direction.
- Sessions are ordered by `(created, id)`, messages by `seq`; a page starts strictly behind its anchor, so rows that come or
  go never make it repeat or lose another one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..protocol.cursor import Direction, MessagesCursor, SessionsCursor, decode_cursor, encode_cursor
from ..protocol.operations import ListMessages, ListSessions
from ..protocol.values import DEFAULT_LIMIT, MAX_LIMIT, Message, Order, Page, Session, SessionId
from ..protocol.values.errors import InvalidCursorError, InvalidRequestError
from . import messages, sessions
from .statements import Cursor

Row = tuple[Any, ...]


class _Window(NamedTuple):
    rows: list[Row]
    before: bool
    after: bool


def sessions_page(cursor: Cursor, query: ListSessions) -> Page[Session]:
    """One page of sessions, by creation time. Raises `InvalidRequestError` (limit) or `InvalidCursorError`."""
    if query.cursor is not None:
        _only_cursor(query.directory, query.parent_id, query.search, query.order, query.limit)
        place = decode_cursor(query.cursor, SessionsCursor)
        anchor: tuple[Any, ...] | None = (place.created, place.id)
    else:
        place = SessionsCursor(
            order=query.order or "desc",
            limit=_limit(query.limit),
            direction="next",
            created=0,
            id=SessionId(""),
            directory=query.directory,
            parent_id=query.parent_id,
            search=query.search,
        )
        anchor = None
    clauses, bindings = _filters(place)

    def fetch(ascending: bool, behind: tuple[Any, ...] | None, limit: int) -> list[Row]:
        every = list(clauses)
        if behind is not None:
            every.append("(created, id) > (?, ?)" if ascending else "(created, id) < (?, ?)")
        return cursor.execute(
            " ".join(
                (
                    "SELECT",
                    sessions.COLUMNS,
                    "FROM session",
                    "WHERE " + " AND ".join(every),
                    "ORDER BY created, id" if ascending else "ORDER BY created DESC, id DESC",
                    "LIMIT ?",
                )
            ),
            (*bindings, *(behind or ()), limit),
        ).fetchall()

    window = _window(fetch, lambda row: (row[7], row[0]), place.order, place.direction, anchor, place.limit)

    def link(row: Row, direction: Direction) -> SessionsCursor:
        return SessionsCursor(
            order=place.order,
            limit=place.limit,
            direction=direction,
            created=row[7],
            id=row[0],
            directory=place.directory,
            parent_id=place.parent_id,
            search=place.search,
        )

    return Page(
        items=tuple([sessions.from_row(row) for row in window.rows]),
        previous=encode_cursor(link(window.rows[0], "previous")) if window.before else None,
        next=encode_cursor(link(window.rows[-1], "next")) if window.after else None,
    )


def messages_page(cursor: Cursor, query: ListMessages) -> Page[Message]:
    """One page of a session's messages.

    Raises `SessionNotFoundError`, `InvalidRequestError` (limit) or `InvalidCursorError`.
    """
    rows = cursor.execute("SELECT key FROM session WHERE id = ? AND hidden = 0", (query.session_id,)).fetchall()
    if not rows:
        raise sessions.not_found(query.session_id)
    key = rows[0][0]
    if query.cursor is not None:
        _only_cursor(query.order, query.limit)
        place = decode_cursor(query.cursor, MessagesCursor)
        if place.session_id != query.session_id:
            raise InvalidCursorError("The cursor belongs to another session; start again without it.")
        anchor: tuple[Any, ...] | None = (place.seq,)
    else:
        place = MessagesCursor(
            session_id=query.session_id, order=query.order or "desc", limit=_limit(query.limit), direction="next", seq=0
        )
        anchor = None

    def fetch(ascending: bool, behind: tuple[Any, ...] | None, limit: int) -> list[Row]:
        if behind is None:
            behind = (-1,) if ascending else (1 << 62,)
        return cursor.execute(_MESSAGES_UP if ascending else _MESSAGES_DOWN, (key, *behind, limit)).fetchall()

    window = _window(fetch, lambda row: (row[0],), place.order, place.direction, anchor, place.limit)
    items: tuple[Message, ...] = ()
    if window.rows:
        seqs = sorted((window.rows[0][0], window.rows[-1][0]))
        items = tuple(messages.assemble([row[1:] for row in window.rows], parts_between(cursor, key, *seqs)))

    def link(row: Row, direction: Direction) -> MessagesCursor:
        return MessagesCursor(
            session_id=query.session_id, order=place.order, limit=place.limit, direction=direction, seq=row[0]
        )

    return Page(
        items=items,
        previous=encode_cursor(link(window.rows[0], "previous")) if window.before else None,
        next=encode_cursor(link(window.rows[-1], "next")) if window.after else None,
    )


def parts_between(cursor: Cursor, session: Any, first: int, last: int) -> list[Row]:
    """Content rows `(message key, body)` of the session's messages between two sequences, both included."""
    return cursor.execute(
        "SELECT p.message, p.body FROM message m JOIN message_part p ON p.message = m.key"
        " WHERE m.session = ? AND m.seq BETWEEN ? AND ? ORDER BY m.seq, p.key",
        (session, first, last),
    ).fetchall()


_MESSAGES_UP = (
    "SELECT seq, key, kind, body FROM message WHERE session = ? AND seq > ?"
    " AND kind IN ('user', 'synthetic', 'system', 'compaction', 'agent-switched', 'model-switched', 'assistant')"
    " ORDER BY seq LIMIT ?"
)
_MESSAGES_DOWN = (
    "SELECT seq, key, kind, body FROM message WHERE session = ? AND seq < ?"
    " AND kind IN ('user', 'synthetic', 'system', 'compaction', 'agent-switched', 'model-switched', 'assistant')"
    " ORDER BY seq DESC LIMIT ?"
)


def _window(
    fetch: Callable[[bool, tuple[Any, ...] | None, int], list[Row]],
    anchor_of: Callable[[Row], tuple[Any, ...]],
    order: Order,
    direction: Direction,
    anchor: tuple[Any, ...] | None,
    limit: int,
) -> _Window:
    """Up to `limit` rows behind `anchor` in the direction, in the asked order, and whether there are more on either side."""
    ascending = (order == "asc") == (direction == "next")
    rows = fetch(ascending, anchor, limit + 1)
    more = len(rows) > limit
    del rows[limit:]
    if not rows:
        return _Window(rows, before=False, after=False)
    opposite = anchor is not None and bool(fetch(not ascending, anchor_of(rows[0]), 1))
    if direction == "next":
        return _Window(rows, before=opposite, after=more)
    rows.reverse()
    return _Window(rows, before=more, after=opposite)


def _filters(place: SessionsCursor) -> tuple[list[str], list[str]]:
    clauses = ["hidden = 0"]
    bindings: list[str] = []
    if place.directory is not None:
        clauses.append("directory = ?")
        bindings.append(place.directory)
    if place.parent_id is not None:
        clauses.append("parent_id = ?")
        bindings.append(place.parent_id)
    if place.search:
        if len(place.search) < 3 or "\0" in place.search:  # the index knows only runs of three characters
            clauses.append("title LIKE ? ESCAPE '\\'")
            bindings.append("%" + place.search.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%")
        else:
            clauses.append("key IN (SELECT rowid FROM session_title WHERE session_title MATCH ?)")
            bindings.append('"' + place.search.replace('"', '""') + '"')
    return clauses, bindings


def _limit(limit: int | None) -> int:
    if limit is None:
        return DEFAULT_LIMIT
    if not 1 <= limit <= MAX_LIMIT:
        raise InvalidRequestError(f"limit must be between 1 and {MAX_LIMIT}.", field="limit")
    return limit


def _only_cursor(*others: object) -> None:
    if any(other is not None for other in others):
        raise InvalidCursorError("A cursor carries the whole query; give it alone.")
