"""Server-sent events, sans-IO, by the WHATWG rules.

Rules:
- Bytes come in pieces cut anywhere; the events that come out do not depend on the cuts. Lines end in LF, CR or CRLF, a
  leading byte order mark is skipped, comments are skipped, several data lines are joined by LF, and an event that no blank
  line ended before the body did is dropped.
- `data` stays bytes: what stands in it is JSON, and a JSON decoder wants bytes. `event` and `id` are decoded with
  replacement. `retry` is skipped, because nothing here reconnects.
- A line, and the data of one event, are bounded, also in the number of its lines. The first that is too large becomes one
  `EventTooLarge`, in its place in the order, and nothing follows it.

The work is done by `bytes.splitlines` and slices: a piece is looked at once, and no Python loop runs over bytes.
"""

from __future__ import annotations

from typing import Final

from ..values.value import Value

MAX_EVENT_BYTES: Final = 8 * 1024 * 1024
"""Default limit of one line and of one event's data."""

MAX_EVENT_LINES: Final = 65_536
"""Lines that the data of one event may have: each takes more room than stands in it."""

_BOM: Final = b"\xef\xbb\xbf"


class ServerSentEvent(Value):
    """One dispatched event. `id` is the last one the stream named, also by an earlier event."""

    data: bytes
    event: str = "message"
    id: str = ""


class EventTooLarge(Value):
    """A line or an event passed `limit` bytes; the decoder gives nothing more."""

    limit: int


class SseDecoder:
    """Decodes one body. Bytes it holds back are at most the limit and the piece that was fed last."""

    def __init__(self, limit: int = MAX_EVENT_BYTES) -> None:
        self._limit = limit
        self._start: bytes | None = b""
        """The first bytes, while they may still be a byte order mark; None afterwards."""
        self._line = bytearray()
        """The beginning of a line whose end has not come."""
        self._skip_newline = False
        """The last piece ended in CR: an LF at the start of the next one belongs to it."""
        self._data: list[bytes] = []
        self._data_size = 0
        self._event = ""
        self._id = ""
        self._failed = False

    def feed(self, data: bytes) -> list[ServerSentEvent | EventTooLarge]:
        """The events that `data` completes, in order."""
        if self._failed:
            return []
        if self._start is not None:
            self._start += data
            if len(self._start) < len(_BOM) and _BOM.startswith(self._start):
                return []
            data = self._start.removeprefix(_BOM)
            self._start = None
        if self._skip_newline and data:
            self._skip_newline = False
            data = data.removeprefix(b"\n")
        if not data:
            return []
        if b"\n" not in data and b"\r" not in data:
            return self._hold(data)
        if self._line:
            data = bytes(self._line) + data
            self._line.clear()
        lines = data.splitlines()
        rest = b""
        if data.endswith(b"\r"):
            self._skip_newline = True
        elif not data.endswith(b"\n"):
            rest = lines.pop()
        events = self._take(lines)
        if rest and not self._failed:
            events += self._hold(rest)
        return events

    def _hold(self, piece: bytes) -> list[ServerSentEvent | EventTooLarge]:
        self._line += piece
        return self._fail() if len(self._line) > self._limit else []

    def _fail(self) -> list[ServerSentEvent | EventTooLarge]:
        self._failed = True
        self._line.clear()
        self._data.clear()
        return [EventTooLarge(limit=self._limit)]

    def _take(self, lines: list[bytes]) -> list[ServerSentEvent | EventTooLarge]:
        events: list[ServerSentEvent | EventTooLarge] = []
        data = self._data
        limit = self._limit
        for line in lines:
            if not line:
                if data:
                    joined = data[0] if len(data) == 1 else b"\n".join(data)
                    events.append(ServerSentEvent(data=joined, event=self._event or "message", id=self._id))
                    data.clear()
                    self._data_size = 0
                self._event = ""
                continue
            if len(line) > limit:
                return events + self._fail()
            if line.startswith(b"data: "):  # nearly every line, so it is spared the partition
                name, value = b"data", line[6:]
            else:
                name, _, value = line.partition(b":")
                if value[:1] == b" ":
                    value = value[1:]
            if name == b"data":
                data.append(value)
                self._data_size += len(value) + 1
                if self._data_size > limit + 1 or len(data) > MAX_EVENT_LINES:
                    return events + self._fail()
            elif name == b"event":
                self._event = value.decode("utf-8", "replace")
            elif name == b"id" and b"\0" not in value:
                self._id = value.decode("utf-8", "replace")
        return events
