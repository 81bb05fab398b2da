"""The chunks of an HTTP body that arrive together, made one.

A provider that is ahead of us writes one chunk an event, and whoever reads such a body gets one piece an event, at the full
price of every layer above, although all of them came in one read of the socket. Joined here, below the HTTP library, they
cost one piece, and what is made of them can be one as well.

Rules:
- The body stays the same to the byte, and so does what the HTTP library sees of a head, a trailer or an end.
- Only the chunks of an ordinary 200 answer are touched. What is not understood passes as it came, from there to the end of
  the answer: to judge it is the library's.
- Nothing is kept that the library could use: at most the unfinished size line of a chunk.
"""

from __future__ import annotations

import enum
import re
from typing import Final

MAX_INTERIM: Final = 8
"""Interim answers before the one that counts; beyond them everything passes as it comes."""
MAX_HEAD: Final = 64 * 1024
"""Bytes of a head that are looked at; an answer with a longer one passes as it comes."""

_INTERIM = re.compile(rb"HTTP/1\.[01] 1\d\d[ \r]")
_ANSWER = re.compile(rb"HTTP/1\.1 200[ \r]")
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked[ \t]*\r\n", re.IGNORECASE)
_BARE_NEWLINE = re.compile(rb"(?<!\r)\n")
_SIZE = re.compile(rb"[0-9A-Fa-f]{1,8}")
_MAX_SIZE_LINE = 10
_HEAD_END = b"\r\n\r\n"


class _Reading(enum.Enum):
    HEAD = enum.auto()
    CHUNKS = enum.auto()
    REST = enum.auto()


class ChunkJoiner:
    """Stands between a connection and the HTTP library that reads it."""

    def __init__(self) -> None:
        self._reading = _Reading.HEAD
        self._interim = 0
        self._head = b""
        self._open = 0
        """Bytes that are still to come of a chunk whose beginning has passed, its line end included."""
        self._held = b""

    def begin(self) -> None:
        """A request leaves: what comes next is the head of its answer."""
        self._reading = _Reading.HEAD
        self._head = self._held = b""
        self._interim = self._open = 0

    def feed(self, data: bytes) -> bytes:
        """What to hand on now for these bytes. Empty `data` is the peer's end, and gives what was held.

        The result may be empty while the connection goes on: then there is nothing new for the library yet.
        """
        if not data or self._reading is _Reading.REST:
            held, self._held = self._held, b""
            return held + data
        if self._reading is _Reading.CHUNKS:
            return self._join(data)
        known = len(self._head)
        head = self._head + data
        end = head.find(_HEAD_END, max(0, known - len(_HEAD_END)))
        if end < 0:
            self._head = head
            if len(head) > MAX_HEAD or not head.startswith(b"HTTP/1."[: len(head)]):
                self._pass_on()
            return data
        self._head = b""
        end += len(_HEAD_END)
        body = head[end:]
        if _INTERIM.match(head):
            self._interim += 1
            if self._interim > MAX_INTERIM:
                self._pass_on()
                return data
            return data[: len(data) - len(body)] + (self.feed(body) if body else b"")
        if not (_ANSWER.match(head) and _CHUNKED.search(head, 0, end)) or _BARE_NEWLINE.search(head, 0, end):
            self._pass_on()
            return data
        self._reading = _Reading.CHUNKS
        return data[: len(data) - len(body)] + (self._join(body) if body else b"")

    def _pass_on(self) -> None:
        self._reading = _Reading.REST
        self._head = b""

    def _join(self, data: bytes) -> bytes:
        """The rest of the open chunk, all whole chunks as one, the beginning of the next."""
        if self._open >= len(data):
            self._open -= len(data)
            return data
        start, self._open = self._open, 0
        rest = self._held + data[start:]
        self._held = b""
        pieces: list[bytes] = []
        position, size = 0, len(rest)
        while position < size:
            line_end = rest.find(b"\r\n", position)
            if line_end < 0:
                if size - position < _MAX_SIZE_LINE:
                    self._held = rest[position:]
                    position = size
                else:
                    self._pass_on()
                break
            line = rest[position:line_end]
            length = int(line, 16) if _SIZE.fullmatch(line) else 0
            if not length:  # the last chunk, or one that says more than its size
                self._pass_on()
                break
            begin = line_end + 2
            end = begin + length
            if end + 2 > size:
                self._open = end + 2 - size
                break
            if rest[end : end + 2] != b"\r\n":
                self._pass_on()
                break
            pieces.append(rest[begin:end])
            position = end + 2
        beginning = data[:start]
        if not pieces:
            return beginning + rest[position:]
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return b"%b%x\r\n%b\r\n%b" % (beginning, len(body), body, rest[position:])
