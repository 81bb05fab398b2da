"""Pages of sessions and messages: keyset queries behind opaque cursors.

Rules (wire contract, "Semantics of the operations"):
- A cursor carries the whole query. A continuation takes only its cursor; anything beside it is `InvalidCursorError`, and so is
  a cursor of another kind or session.
- Items always come in the asked order. A link appears only where there is more in that direction.
- A page ends early, with a link, before it would be more than `MAX_PAGE_BYTES` as its reader encodes it; so an answer that
  holds several items always fits into a message. Bodies that fall out of it are not even read.
- Sessions are ordered by `(created, id)`, messages by `seq`; a page starts strictly behind its anchor, so rows that come or
  go never make it repeat or lose another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import msgspec

from ..protocol.cursor import Direction, MessagesCursor, SessionsCursor, decode_cursor, encode_cursor
from ..protocol.operations import ListMessages, ListSessions
from ..protocol.values import DEFAULT_LIMIT, MAX_LIMIT, Message, MessageId, Order, Page, PageCursor, Session, SessionId
from ..protocol.values.errors import InvalidCursorError, InvalidRequestError
from . import messages, sessions
from .statements import Cursor

Row = tuple[Any, ...]


MAX_PAGE_BYTES: Final = 12 * 1024 * 1024
"""Of all items of a page, unless the first one alone is larger."""
MAX_ITEM_BYTES: Final = 16 * 1024 * 1024 - 4_096
"""Of one item: what a message holds beside the rest of an answer."""
_MOST_GROWTH: Final = 6
"""How many bytes one stored byte may become in an encoding: a control character is `\\u0000` in JSON."""

Weigh = Callable[[Any], int]
"""Says how many bytes an item takes, encoded for whoever asked."""


def weigh_stored(item: Any) -> int:
    """The weight of an item as it is stored, in MessagePack."""
    return len(_encoder.encode(item))


_encoder = msgspec.msgpack.Encoder()


class _Window(NamedTuple):
    rows: list[Row]
    before: bool
    after: bool


def sessions_page(cursor: Cursor, query: ListSessions, weigh: Weigh = weigh_stored) -> Page[Session]:
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

    def fit(rows: list[Row]) -> int:
        if sum(len(row[1]) + len(row[6] or b"") for row in rows) <= MAX_PAGE_BYTES // _MOST_GROWTH:
            return len(rows)
        return _leading(weigh(sessions.from_row(row)) for row in rows)

    window = _window(fetch, fit, lambda row: (row[7], row[0]), place.order, place.direction, anchor, place.limit)

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


def messages_page(cursor: Cursor, query: ListMessages, weigh: Weigh = weigh_stored) -> Page[Message]:
    """One page of a session's messages.

    Raises `SessionNotFoundError`, `InvalidRequestError` (limit) or `InvalidCursorError`. A message that is larger than an
    answer may be is an `InvalidRequestError` too, where it would come first; it carries `message_id`, and the cursors of the
    pages before and behind it as `previous` and `next`.
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

    found: dict[int, Message] = {}

    def fit(rows: list[Row]) -> int:
        count = _leading(row[1] for row in rows)
        stored = sum(row[1] for row in rows[:count])
        if count == 1 and stored > MAX_ITEM_BYTES:
            return 1
        first, last = sorted((rows[0][0], rows[count - 1][0]))
        bodies = cursor.execute(_BODIES, (key, first, last)).fetchall()
        read = messages.assemble([row[1:] for row in bodies], parts_between(cursor, key, first, last))
        found.update(zip([row[0] for row in bodies], read, strict=True))
        if stored <= MAX_PAGE_BYTES // _MOST_GROWTH:
            return count
        weights = [weigh(found[row[0]]) for row in rows[:count]]
        if weights[0] > MAX_ITEM_BYTES:
            found.clear()
            return 1
        return _leading(weights)

    window = _window(fetch, fit, lambda row: (row[0],), place.order, place.direction, anchor, place.limit)

    def link(row: Row, direction: Direction) -> MessagesCursor:
        return MessagesCursor(
            session_id=query.session_id, order=place.order, limit=place.limit, direction=direction, seq=row[0]
        )

    previous = encode_cursor(link(window.rows[0], "previous")) if window.before else None
    following = encode_cursor(link(window.rows[-1], "next")) if window.after else None
    if window.rows and not found:
        ((message_id,),) = cursor.execute("SELECT id FROM message WHERE session = ? AND seq = ?", (key, window.rows[0][0]))
        raise _too_large(message_id, previous, following)
    return Page(items=tuple([found[row[0]] for row in window.rows]), previous=previous, next=following)


def _too_large(message_id: MessageId, previous: PageCursor | None, following: PageCursor | None) -> InvalidRequestError:
    links = {name: cursor for name, cursor in (("previous", previous), ("next", following)) if cursor is not None}
    return InvalidRequestError(
        f"Message {message_id} is larger than an answer may be; go on with the cursor `next` or `previous`, if there is one."
        " What it was made of stands in `sessions.events`.",
        message_id=message_id,
        **links,
    )


def parts_between(cursor: Cursor, session: Any, first: int, last: int) -> list[Row]:
    """Content rows `(message key, body)` of the session's messages between two sequences, both included."""
    return cursor.execute(
        "SELECT p.message, p.body FROM message m JOIN message_part p ON p.message = m.key"
        " WHERE m.session = ? AND m.seq BETWEEN ? AND ? ORDER BY m.seq, p.key",
        (session, first, last),
    ).fetchall()


_SHOWN = f"kind IN ({', '.join(map(repr, messages.KINDS.values()))})"
"""A kind that is not known is kept and skipped."""
_SIZES = (
    "SELECT m.seq, length(m.body) + (SELECT coalesce(sum(length(p.body)), 0) FROM message_part p WHERE p.message = m.key)"  # noqa: S608 - constants
    f" FROM message m WHERE m.session = ? AND m.{_SHOWN}"
)
_MESSAGES_UP = f"{_SIZES} AND m.seq > ? ORDER BY m.seq LIMIT ?"
_MESSAGES_DOWN = f"{_SIZES} AND m.seq < ? ORDER BY m.seq DESC LIMIT ?"
_BODIES = f"SELECT seq, key, kind, body FROM message WHERE session = ? AND {_SHOWN} AND seq BETWEEN ? AND ? ORDER BY seq"  # noqa: S608


def _leading(weights: Iterable[int]) -> int:
    """How many items from the first on make a page, by their weights; at least one."""
    count = total = 0
    for weight in weights:
        total += weight
        if count and total > MAX_PAGE_BYTES:
            break
        count += 1
    return count


def _window(
    fetch: Callable[[bool, tuple[Any, ...] | None, int], list[Row]],
    fit: Callable[[list[Row]], int],
    anchor_of: Callable[[Row], tuple[Any, ...]],
    order: Order,
    direction: Direction,
    anchor: tuple[Any, ...] | None,
    limit: int,
) -> _Window:
    """Up to `limit` rows behind `anchor` in the direction, in the asked order, and whether there are more on either side.

    `fit` is told the rows from the anchor on, if there are any, and says how many of them the page may have.
    """
    ascending = (order == "asc") == (direction == "next")
    rows = fetch(ascending, anchor, limit + 1)
    more = len(rows) > limit
    del rows[limit:]
    if not rows:
        return _Window(rows, before=False, after=False)
    fitting = fit(rows)
    more = more or fitting < len(rows)
    del rows[fitting:]
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
