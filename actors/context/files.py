"""Files of instructions and skills: found through links, read without following any, bounded in size.

Rules:
- A file that is not there, is no regular file, or leads out of its root is absent. That holds for a link that leads nowhere or
  round in a circle, too, and for pipes, sockets, devices and folders of that name: they are never opened.
- Everything else that keeps a file from being found or read is a `FileTrouble`, which says what would help: the caller decides
  what that means.
- A file is found first and read later; one that is gone by then is trouble, not absence.
- Text is UTF-8 with replacement, without control characters, and cut at a limit. All of this blocks.
"""

from __future__ import annotations

import errno
import heapq
import os
import stat
from typing import Final, NamedTuple

from ..tools.capture import clean
from ..tools.confinement import Confinement, Place
from ..tools.tool import ToolFailure

_NOWHERE: Final = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ELOOP))
"""A path with these does not lead to anything."""
_ADVICE: Final = "Make it readable or take it away."


class FileTrouble(Exception):
    """A file or folder could not be looked at, although it seems to be there. The message names it."""


class FileText(NamedTuple):
    """The text of a file, and whether it was longer than the limit."""

    text: str
    cut: bool


def find_file(path: str, root: str | None) -> Place | None:
    """The regular file at `path`, links resolved; inside `root`, or anywhere when that is None. Raises `FileTrouble`."""
    try:
        if root is None:
            real = os.path.realpath(path)
            place = Place(os.path.dirname(real), (os.path.basename(real),))
        else:
            place = Confinement(root).resolve(path)
        ordinary = stat.S_ISREG(os.stat(place.path).st_mode)
    except ToolFailure:
        return None
    except OSError as error:
        if error.errno in _NOWHERE:
            return None
        raise FileTrouble(f"{path} cannot be looked at ({error.strerror}). {_ADVICE}") from error
    return place if ordinary else None


def read_file(place: Place, limit: int) -> FileText:
    """What stands in a found file, at most `limit` bytes of it. Raises `FileTrouble`, also when it is gone."""
    try:
        with Confinement(place.root).open(place) as opened:
            if opened.is_directory:
                raise FileTrouble(f"{place.path} is a folder now.")
            data = b""
            while len(data) <= limit and (piece := os.read(opened.fd, limit + 1 - len(data))):
                data += piece
    except ToolFailure as failure:
        raise FileTrouble(f"{place.path} cannot be read: {failure} {_ADVICE}") from failure
    cut = len(data) > limit
    return FileText(clean(data[:limit].decode("utf-8-sig", "ignore" if cut else "replace")), cut)


def list_folder(path: str, limit: int) -> list[str]:
    """The first `limit` names in a folder, sorted; none when it is not there. Raises `FileTrouble`."""
    try:
        with os.scandir(path) as entries:
            return heapq.nsmallest(limit, (entry.name for entry in entries))
    except OSError as error:
        if error.errno in _NOWHERE:
            return []
        raise FileTrouble(f"{path} cannot be listed ({error.strerror}). {_ADVICE}") from error
