"""Opaque page cursors: they carry the whole query, so that a continuation needs nothing else.

A cursor is base64url over a MessagePack Struct whose tag names the kind of query. Anything that does not decode to the
expected kind, or breaks a bound of it, is `InvalidCursorError`: malformed text, another operation's cursor, another
session's cursor (wire contract, "Semantics of the operations").
"""

from __future__ import annotations

import base64
import binascii
from typing import Literal, TypeVar

import msgspec

from .values.errors import InvalidCursorError
from .values.ids import PageCursor, SessionId
from .values.page import MAX_LIMIT, Order
from .values.value import Value

Direction = Literal["next", "previous"]


class SessionsCursor(Value, tag_field="kind", tag="sessions"):
    """A place in a list of sessions, ordered by `(created, id)`; `direction` is relative to the asked order."""

    order: Order
    limit: int
    direction: Direction
    created: int
    id: SessionId
    directory: str | None = None
    parent_id: SessionId | None = None
    search: str | None = None


class MessagesCursor(Value, tag_field="kind", tag="messages"):
    """A place in a session's messages, ordered by `seq`."""

    session_id: SessionId
    order: Order
    limit: int
    direction: Direction
    seq: int


CursorT = TypeVar("CursorT", SessionsCursor, MessagesCursor)

MAX_CURSOR_LENGTH = 32 * 1024
"""Room for the longest query that a list takes."""

_encoder = msgspec.msgpack.Encoder()


def encode_cursor(cursor: SessionsCursor | MessagesCursor) -> PageCursor:
    """The opaque text of a cursor."""
    return PageCursor(base64.urlsafe_b64encode(_encoder.encode(cursor)).rstrip(b"=").decode("ascii"))


def decode_cursor(text: str, kind: type[CursorT]) -> CursorT:
    """The cursor behind `text`. Raises `InvalidCursorError` when it is not one of that kind."""
    if len(text) > MAX_CURSOR_LENGTH:
        raise InvalidCursorError("The cursor is too long to be one of this server's.")
    try:
        packed = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
        cursor = msgspec.msgpack.decode(packed, type=kind)
    except (ValueError, binascii.Error, msgspec.DecodeError):
        raise InvalidCursorError("The cursor is not one that this operation gave; start again without it.") from None
    if not 1 <= cursor.limit <= MAX_LIMIT:
        raise InvalidCursorError("The cursor is not one that this operation gave; start again without it.")
    return cursor
