"""Messages written once: what the protocols' `Conversation`s have in common.

Rules:
- A message is JSON as soon as nothing that follows can change it, and is never looked at again. What a request adds to what
  was written (the end of a turn's results, cache markers) is put in while the whole is copied, and taken back.
- The written messages stand in the body as `msgspec.Raw`, as bytes that the encoder copies.
- Messages continue those of the last call when these are as many or more, and the last known one is at its place, the same
  object. So messages must not be replaced in the midst of a list that is handed in again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from .payload import encoded
from .request import RequestMessage


class Messages(Protocol):
    """A protocol's messages, in the making."""

    def add(self, message: RequestMessage) -> None:
        """Take the next one."""
        ...


M = TypeVar("M", bound=Messages)


class Growth(Generic[M]):
    """Messages that are handed in as a whole, again and again, and taken only where they are new. `begin` makes a start."""

    def __init__(self, begin: Callable[[], M]) -> None:
        self._begin = begin
        self._messages: M | None = None
        self._count = 0
        self._last: RequestMessage | None = None

    def extend(self, messages: Sequence[RequestMessage]) -> M:
        """What `messages` give, all of them. When this raises, the next call begins anew."""
        made, count = self._messages, self._count
        self._messages = None
        if made is None or len(messages) < count or (count and messages[count - 1] is not self._last):
            made, count = self._begin(), 0
        for message in messages[count:]:
            made.add(message)
        self._messages, self._count = made, len(messages)
        self._last = messages[-1] if messages else None
        return made


class Written:
    """The inside of a JSON array that grows at its end."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def __len__(self) -> int:
        """How many bytes were written."""
        return len(self._bytes)

    def add(self, value: Mapping[str, Any]) -> None:
        """Write the next value."""
        if self._bytes:
            self._bytes += b","
        self._bytes += encoded(value)

    @contextmanager
    def for_now(self) -> Generator[None]:
        """What is written in here is taken back at the end."""
        length = len(self._bytes)
        try:
            yield
        finally:
            del self._bytes[length:]

    def array(self, *, first: Iterable[Mapping[str, Any]] = (), inserted: Iterable[tuple[int, bytes]] = ()) -> msgspec.Raw:
        """The whole array, with values in front of the written ones, and bytes put in at these places, in ascending order."""
        front = b",".join(map(encoded, first))
        view = memoryview(self._bytes)
        pieces: list[bytes | memoryview] = [b"[", front, b"," if front and self._bytes else b""]
        begin = 0
        for place, piece in inserted:
            pieces += (view[begin:place], piece)
            begin = place
        return msgspec.Raw(b"".join((*pieces, view[begin:], b"]")))
