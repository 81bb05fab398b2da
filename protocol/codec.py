"""The two encodings of one contract: MessagePack in binary frames, JSON in text frames.

Rules:
- What a peer sends is unpacked with hard limits (size, depth, number and kinds of values) before anything looks at it. What
  both codecs cannot carry alike is refused: integers beyond 64 bits, NaN and infinities, keys that are not strings (ruling
  B14).
- Too many values are refused before they are made: millions of tiny ones fit into one frame, and making them would hold up
  everybody else for many seconds.
- What we send is encoded by msgspec straight from the Structs. An event's encoded bytes come last in its frame, so that
  one encoding serves every subscriber (wire contract, "Envelope").
"""

from __future__ import annotations

import math
import re
from typing import Any, Protocol, TypeVar

import msgpack  # pyright: ignore[reportMissingTypeStubs]
import msgspec

T = TypeVar("T")

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
MAX_DEPTH = 64
MAX_VALUES = 100_000
"""Values in one message of a peer, which bounds what a small frame can make us allocate and the time it takes."""

_unpackb: Any = msgpack.unpackb  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
_JSON_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_INT_MIN, _INT_MAX = -(1 << 63), (1 << 64) - 1


class MalformedFrameError(Exception):
    """The frame's content is not what the codec can carry; the message says what is wrong in one clause."""


class Codec(Protocol):
    """One encoding of the envelope. Stateless and shared."""

    @property
    def subprotocol(self) -> str: ...

    @property
    def binary(self) -> bool:
        """Whether frames are binary (MessagePack) or text (JSON)."""
        ...

    def encode(self, value: Any) -> bytes:
        """A value of ours, as it goes on the wire."""
        ...

    def unpack(self, frame: bytes) -> Any:
        """Plain values out of a stranger's frame, checked against the limits. Raises `MalformedFrameError`."""
        ...

    def convert(self, value: Any, kind: type[T]) -> T:
        """A typed value out of plain ones. Raises `msgspec.ValidationError` naming the field."""
        ...

    def decode(self, frame: bytes | msgspec.Raw, kind: type[T]) -> T:
        """A typed value straight out of bytes of a peer we trust. Raises `msgspec.DecodeError`."""
        ...

    def item_prefix(self, subscription: int) -> bytes:
        """What stands before an event's encoded bytes in a `next` frame."""
        ...

    @property
    def item_suffix(self) -> bytes:
        """What stands behind them."""
        ...


def check_plain(value: Any) -> None:
    """Raise `MalformedFrameError` unless both codecs carry `value` alike and it is at most `MAX_DEPTH` deep."""
    pending: list[tuple[Any, int]] = [(value, 1)]
    while pending:
        item, depth = pending.pop()
        match item:
            case None | bool() | str() | bytes():
                continue
            case int():
                if not _INT_MIN <= item <= _INT_MAX:
                    raise MalformedFrameError("it holds an integer beyond 64 bits")
            case float():
                if not math.isfinite(item):
                    raise MalformedFrameError("it holds a number that is not finite")
            case list() | dict():
                if depth > MAX_DEPTH:
                    raise MalformedFrameError(f"it is nested deeper than {MAX_DEPTH} levels")
                children: Any = item  # pyright: ignore[reportUnknownVariableType]
                if isinstance(children, dict):
                    if not all(isinstance(key, str) for key in children):  # pyright: ignore[reportUnknownVariableType]
                        raise MalformedFrameError("it holds a map whose keys are not all strings")
                    children = children.values()  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
                pending.extend((child, depth + 1) for child in children)  # pyright: ignore[reportUnknownVariableType]
            case _:
                raise MalformedFrameError(f"it holds a value of a kind that is not allowed ({type(item).__name__})")


def _too_many() -> MalformedFrameError:
    return MalformedFrameError(f"it holds more than {MAX_VALUES} values")


def _count_json(frame: bytes) -> None:
    """Raise `MalformedFrameError` when a text must hold more than `MAX_VALUES` values, without making one of them."""
    if _most_values(frame) > MAX_VALUES:  # if so, it may still be the punctuation of a long text
        bare, strings = _JSON_STRING.subn(b"", frame, count=2 * MAX_VALUES)
        if strings == 2 * MAX_VALUES or _most_values(bare) > MAX_VALUES:
            raise _too_many()


def _most_values(text: bytes) -> int:
    return sum(map(text.count, (b",", b"[", b"{")))


class _Counted:
    """Counts values while they are unpacked, container by container, and stops when they are too many."""

    def __init__(self) -> None:
        self._left = MAX_VALUES

    def __call__(self, container: Any) -> Any:
        self._left -= 1 + len(container)
        if self._left < 0:
            raise _too_many()
        return container


class MsgpackCodec:
    """`steerway.v1.msgpack`."""

    subprotocol = "steerway.v1.msgpack"
    binary = True
    item_suffix = b""

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder()

    def encode(self, value: Any) -> bytes:
        return self._encoder.encode(value)

    def unpack(self, frame: bytes) -> Any:
        # A frame of so many bytes holds no more values than that.
        counted = _Counted() if len(frame) > MAX_VALUES else None
        try:
            value: Any = _unpackb(
                frame,
                raw=False,
                strict_map_key=True,
                max_str_len=MAX_MESSAGE_BYTES,
                max_bin_len=MAX_MESSAGE_BYTES,
                max_array_len=min(MAX_VALUES, len(frame)),
                max_map_len=min(MAX_VALUES, len(frame)),
                max_ext_len=0,
                list_hook=counted,
                object_hook=counted,
            )
        except (ValueError, RecursionError) as error:
            raise MalformedFrameError("it is not one complete MessagePack value within the limits") from error
        check_plain(value)
        return value

    def convert(self, value: Any, kind: type[T]) -> T:
        return msgspec.convert(value, kind, builtin_types=(bytes,))

    def decode(self, frame: bytes | msgspec.Raw, kind: type[T]) -> T:
        return msgspec.msgpack.decode(frame, type=kind)

    def item_prefix(self, subscription: int) -> bytes:
        head = self.encode({"jsonrpc": "2.0", "method": "next", "params": {"subscription": subscription, "event": None}})
        return head[:-1]


class JsonCodec:
    """`steerway.v1.json`."""

    subprotocol = "steerway.v1.json"
    binary = False
    item_suffix = b"}}"

    def __init__(self) -> None:
        self._encoder = msgspec.json.Encoder()

    def encode(self, value: Any) -> bytes:
        return self._encoder.encode(value)

    def unpack(self, frame: bytes) -> Any:
        if len(frame) > MAX_VALUES:
            _count_json(frame)
        try:
            value: Any = msgspec.json.decode(frame)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise MalformedFrameError("it is not one complete JSON value within the limits") from error
        check_plain(value)
        return value

    def convert(self, value: Any, kind: type[T]) -> T:
        return msgspec.convert(value, kind)

    def decode(self, frame: bytes | msgspec.Raw, kind: type[T]) -> T:
        return msgspec.json.decode(frame, type=kind)

    def item_prefix(self, subscription: int) -> bytes:
        return b'{"jsonrpc":"2.0","method":"next","params":{"subscription":%d,"event":' % subscription


MSGPACK = MsgpackCodec()
JSON = JsonCodec()

CODECS: dict[str, Codec] = {codec.subprotocol: codec for codec in (MSGPACK, JSON)}
"""By subprotocol; a client that offers none speaks JSON."""
