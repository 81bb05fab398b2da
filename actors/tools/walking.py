"""Directories: their entries, and all files below one, in a fixed order and without following a link.

Rules:
- Every directory is opened through the confinement, so that a walk cannot leave its root, whatever is moved meanwhile.
- `.git` is skipped. Links are named but never followed. What may not be read is passed over.
- A walk ends after `MAX_ENTRIES`; whoever walks says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

from .confinement import Confinement, Place
from .stopping import Stop
from .tool import ToolFailure

MAX_ENTRIES: Final = 200_000

_SKIPPED: Final = ".git"


class Entry(NamedTuple):
    """A name in a directory."""

    name: str
    kind: Literal["file", "directory", "link", "other"]

    @property
    def shown(self) -> str:
        return self.name + {"file": "", "directory": "/", "link": "@", "other": "?"}[self.kind]


def list_directory(fd: int, stop: Stop) -> tuple[list[Entry], bool]:
    """The entries by name, and whether there were more than `MAX_ENTRIES`. Raises OSError."""
    found: list[Entry] = []
    with os.scandir(fd) as entries:
        for entry in entries:
            stop.check()
            if len(found) == MAX_ENTRIES:
                return sorted(found), True
            found.append(Entry(entry.name, _kind(entry)))
    return sorted(found), False


class Walk:
    """All files and links below a place, each as its place and its path from the start. `cut_short` tells of the limit."""

    def __init__(self, confinement: Confinement, start: Place, stop: Stop) -> None:
        self._confinement = confinement
        self._start = start
        self._stop = stop
        self.cut_short = False

    def __iter__(self) -> Iterator[tuple[Place, Entry, tuple[str, ...]]]:
        depth = len(self._start.parts)
        waiting: list[tuple[Place, Entry]] = [(self._start, Entry("", "directory"))]
        left = MAX_ENTRIES
        while waiting:
            place, entry = waiting.pop()
            if entry.kind != "directory":
                yield place, entry, place.parts[depth:]
                continue
            if self.cut_short:
                continue  # only what is waiting already
            entries = self._entries(place)
            self.cut_short |= len(entries) > left
            inner = [
                (Place(place.root, (*place.parts, entry.name)), entry) for entry in entries[:left] if entry.name != _SKIPPED
            ]
            left -= len(inner)
            waiting.extend(reversed(inner))

    def _entries(self, place: Place) -> list[Entry]:
        try:
            with self._confinement.open(place) as opened:
                entries, more = list_directory(opened.fd, self._stop)
        except ToolFailure:
            if place == self._start:
                raise
            return []  # removed, moved or not readable: as if it were not there
        self.cut_short |= more
        return entries


def _kind(entry: os.DirEntry[str]) -> Literal["file", "directory", "link", "other"]:
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "directory"
    if entry.is_file(follow_symlinks=False):
        return "file"
    return "other"
