"""Reading a file as text without ever holding it: pieces, and the beginnings of its lines.

Everything here blocks, works on an open descriptor, and raises OSError.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Final

from .stopping import Stop

MAX_LINE: Final = 2_000
"""Characters of one line that are looked at or shown."""
SAMPLE: Final = 8_192
"""Bytes that tell text from other things."""

_CHUNK: Final = 1 << 16
_LINE_BYTES: Final = 4 * MAX_LINE + 4
_STRANGE: Final = re.compile("[\x00-\x06\x0e-\x1a\x1c-\x1f\x7f\ufffd]")


def is_binary(sample: bytes) -> bool:
    """Whether a file that begins like this is better not shown as text."""
    if b"\x00" in sample:
        return True
    text = sample[: -3 if len(sample) >= SAMPLE else None].decode("utf-8", "replace")
    return len(_STRANGE.findall(text)) * 10 > len(text) * 3


class Pieces:
    """The file from where it stands, `first` put in front, at most `budget` bytes. `cut_short` tells that there was more."""

    def __init__(self, fd: int, first: bytes, budget: int, stop: Stop) -> None:
        self._fd = fd
        self._first = first
        self._budget = budget
        self._stop = stop
        self.taken = 0
        self.cut_short = False

    def __iter__(self) -> Iterator[bytes]:
        piece = self._first
        while piece:
            if self.taken >= self._budget:
                self.cut_short = True
                return
            self.taken += len(piece)
            yield piece
            self._stop.check()
            piece = os.read(self._fd, _CHUNK)


class Lines:
    """Lines as `(number, beginning)`, from `first` on, counted from 1; longer than `MAX_LINE` only if the line is.

    `count` is the number of lines gone by so far, after the last one the number of lines of the file.
    """

    def __init__(self, pieces: Pieces, first: int = 1) -> None:
        self._pieces = pieces
        self._first = first
        self.count = 0

    def __iter__(self) -> Iterator[tuple[int, str]]:
        line = bytearray()
        begun = False
        for piece in self._pieces:
            start = 0
            if self.count + piece.count(b"\n") < self._first - 1:
                self.count += piece.count(b"\n")
                begun = not piece.endswith(b"\n")
                continue
            while (end := piece.find(b"\n", start)) >= 0:
                line += piece[start : min(end, start + _LINE_BYTES - len(line))]
                self.count += 1
                if self.count >= self._first:
                    yield self.count, _decoded(line)
                line.clear()
                start = end + 1
            line += piece[start : start + _LINE_BYTES - len(line)]
            begun = start < len(piece)
        if begun:
            self.count += 1
            if self.count >= self._first:
                yield self.count, _decoded(line)


def _decoded(line: bytearray) -> str:
    return line.decode("utf-8", "replace").removesuffix("\r")
