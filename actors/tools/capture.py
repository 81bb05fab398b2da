"""Text of any size taken in piece by piece: cleaned, counted, bounded, and kept whole in a file once it is too large.

Rules:
- Bytes are decoded incrementally as UTF-8 with replacement; strings have lone surrogates replaced (ruling B13). Control
  characters are dropped, except tab, line feed and carriage return. This cleaned text is *the text*: it is what is counted,
  previewed, and written to the file, exactly.
- Memory is bounded by the limits, not by the text: its beginning and its end are held, no more.
- The file is begun only when the text outgrows a limit. When it cannot be written, capturing goes on without: the preview
  stays right, and the result is lossy.
- Writing may block on the file: a capture of unknown size belongs into a thread.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from ...protocol.llm.unicode import well_formed
from ...protocol.values import ManagedOutput
from ...protocol.values.value import Value

MAX_LINES: Final = 2_000
MAX_BYTES: Final = 51_200

_CONTROL: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_PIECE: Final = 1 << 20


class OutputLimits(Value):
    """What one Model Tool Output may have in history: lines, and bytes of UTF-8, whichever is reached first."""

    max_lines: int = MAX_LINES
    max_bytes: int = MAX_BYTES


class SpillFile(Protocol):
    """A managed output file being written (see storage)."""

    def write(self, data: bytes) -> None: ...
    def keep(self) -> ManagedOutput: ...
    def discard(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Captured:
    """What became of a text. `bounded` tells whether `text` is a preview; then `managed` or `problem` is set."""

    text: str
    bounded: bool
    managed: ManagedOutput | None = None
    problem: OSError | None = None
    """Why the whole text could not be kept: the output is lossy."""


def clean(text: str) -> str:
    """The text without control characters and lone surrogates."""
    return _CONTROL.sub("", well_formed(text))


class TextCapture:
    """Takes one text in. `create` makes the file for a text that outgrows `limits`; None keeps no file."""

    def __init__(self, limits: OutputLimits, create: Callable[[], SpillFile] | None) -> None:
        self._limits = limits
        self._create = create
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._head = bytearray()
        self._tail = bytearray()
        self._bytes = 0
        self._newlines = 0
        self._ended = True  # whether the text so far ends with a line feed (or is empty)
        self._file: SpillFile | None = None
        self._outgrown = False
        self._problem: OSError | None = None

    def write(self, piece: bytes | str) -> None:
        """Take the next piece. A string is whole: no surrogate pair may be cut between two of them."""
        text = self._decoder.decode(piece) if isinstance(piece, bytes) else piece
        for start in range(0, len(text), _PIECE):
            self._take(clean(text[start : start + _PIECE]).encode())

    def finish(self) -> Captured:
        """End the text, and its file. Call it once."""
        self._take(clean(self._decoder.decode(b"", final=True)).encode())
        if not self._outgrown:
            return Captured(self._head.decode(), bounded=False)
        managed = self._keep()
        problem = None if managed else self._problem or OSError("there is no place to keep it")
        return Captured(self._preview(managed), bounded=True, managed=managed, problem=problem)

    def abandon(self) -> None:
        """Forget the text and remove its file. Never raises."""
        if self._file is not None:
            self._file.discard()
            self._file = None

    @property
    def _lines(self) -> int:
        return self._newlines + (0 if self._ended else 1)

    def _take(self, data: bytes) -> None:
        if not data:
            return
        self._bytes += len(data)
        self._newlines += data.count(b"\n")
        self._ended = data.endswith(b"\n")
        limit = self._limits.max_bytes
        if not self._outgrown:
            if self._bytes <= limit and self._lines <= self._limits.max_lines:
                self._head += data
                return
            self._outgrow()
        self._spill(data)
        room = max(limit - len(self._head), 0)
        if room:
            self._head += data[:room]
        self._tail += data[-limit:] if limit > 0 else b""
        del self._tail[: max(len(self._tail) - limit, 0)]

    def _outgrow(self) -> None:
        self._outgrown = True
        self._tail += self._head
        if self._create is not None:
            try:
                self._file = self._create()
            except OSError as error:
                self._problem = error
        self._spill(bytes(self._head))

    def _spill(self, data: bytes) -> None:
        if self._file is not None:
            try:
                self._file.write(data)
            except OSError as error:
                self._problem = error
                self.abandon()

    def _keep(self) -> ManagedOutput | None:
        if self._file is None:
            return None
        try:
            return self._file.keep()
        except OSError as error:
            self._problem = error
            self.abandon()
            return None

    def _preview(self, managed: ManagedOutput | None) -> str:
        """Head, marker, tail: never more than the limits. Where they leave no room for text, (part of) the marker."""
        limits = self._limits
        longest = self._marker(self._lines, self._bytes, managed)
        lines = limits.max_lines - 4
        room = limits.max_bytes - len(longest.encode()) - 4
        if lines <= 0 or room <= 0:
            return _prefix(longest.encode(), limits.max_bytes).decode()
        head = self._head.decode("utf-8", "ignore").encode()  # the window may end, and the other begin, within a character
        tail = _suffix(bytes(self._tail), len(self._tail))
        if self._lines > lines:
            head = _first_lines(head, lines - lines // 2)
            tail = _last_lines(tail, lines // 2)
        if len(head) + len(tail) > room:
            half = room - room // 2
            head = _prefix(head, max(half, room - len(tail)))
            tail = _suffix(tail, room - len(head))
        missing = self._bytes - len(head) - len(tail)
        hidden = max(self._lines - _count_lines(head) - _count_lines(tail), 0)
        marker = self._marker(hidden, missing, managed)
        return "\n\n".join([head.decode().removesuffix("\n"), marker, tail.decode()])

    def _marker(self, lines: int, count: int, managed: ManagedOutput | None) -> str:
        lost = f"[output truncated: {lines} lines, {count} bytes left out here; "
        if managed is None:
            return f"{lost}the whole text could not be kept]"
        if managed.complete:
            return f"{lost}the whole text is in {managed.path}]"
        return f"{lost}incomplete, only the first {managed.bytes} bytes of the text are in {managed.path}]"


def _count_lines(data: bytes) -> int:
    return data.count(b"\n") + (1 if data and not data.endswith(b"\n") else 0)


def _first_lines(data: bytes, count: int) -> bytes:
    end = 0
    for _ in range(count):
        end = data.find(b"\n", end) + 1
        if end == 0:
            return data
    return data[:end]


def _last_lines(data: bytes, count: int) -> bytes:
    if count == 0:
        return b""
    start = len(data) - (1 if data.endswith(b"\n") else 0)
    for _ in range(count):
        start = data.rfind(b"\n", 0, start)
        if start < 0:
            return data
    return data[start + 1 :]


def _prefix(data: bytes, size: int) -> bytes:
    """At most `size` bytes from the front, cut between characters."""
    return data[: max(size, 0)].decode("utf-8", "ignore").encode() if len(data) > size else data


def _suffix(data: bytes, size: int) -> bytes:
    """At most `size` bytes from the end, cut between characters."""
    start = len(data) - max(size, 0) if len(data) > size else 0
    while start < len(data) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:]
