"""The only way in which built-in tools reach files: inside the location, or inside the folder of managed outputs.

Rules (seed, "Managed Tool Output Files"; semantics, "Tools"):
- A path is resolved completely, `..` and links included, and then has to lie under a root. Nothing is said about what is
  outside, not even whether it exists.
- What was resolved is opened from the root downwards, one component after another, and never through a link. A link that is
  put in place between the check and the opening therefore makes the opening fail; it cannot lead anywhere.
- Only regular files and directories are opened, without waiting: no pipes, sockets or devices. What a file gives is bounded by
  whoever reads it, since its size may say nothing (`/proc`).
- A hard link cannot be told from the file: one that lies inside leads to content that also has a name outside, and is read. It
  takes somebody who may write inside, and may read the file, to make one. (A write never reaches the other name: files are
  replaced, not changed.)
- Refusals are `ToolFailure`s that the model can act on. Everything here blocks and belongs into a thread.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final, NamedTuple, NoReturn

from ...protocol.llm.unicode import well_formed
from .tool import ToolFailure

_SAFE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_FOLDER: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_DIRECTORY


class Place(NamedTuple):
    """A resolved path: the root it lies under and the components from there; none for the root itself."""

    root: str
    parts: tuple[str, ...]

    @property
    def path(self) -> str:
        return os.path.join(self.root, *self.parts)


class Opened(NamedTuple):
    """An open file or directory, with what its descriptor says about itself."""

    fd: int
    status: os.stat_result

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.status.st_mode)


class Confinement:
    """What one location may read. `location` is where relative paths start; `others` are further readable folders."""

    def __init__(self, location: str, others: tuple[str, ...] = ()) -> None:
        self._location = location
        self._others = others

    def resolve(self, path: str) -> Place:
        """Where a path of the model really leads. Raises ToolFailure if that is outside, or not there."""
        try:
            roots = [os.path.realpath(root) for root in (self._location, *self._others)]
            real = os.path.realpath(os.path.join(roots[0], path))
        except (OSError, ValueError):
            raise ToolFailure(f"`{path}` is not a usable path.") from None
        for root in roots:
            if real == root:
                return Place(root, ())
            if real.startswith(root.rstrip("/") + "/"):
                return Place(root, tuple(real[len(root.rstrip("/")) + 1 :].split("/")))
        raise ToolFailure(f"`{path}` is outside the location; only what is inside it can be reached.")

    def shown(self, place: Place) -> str:
        """How a place is called towards the model and in rules: relative to the location, absolute elsewhere; always text."""
        if place.root == os.path.realpath(self._location):
            return well_formed(os.path.join(*place.parts)) if place.parts else "."
        return well_formed(place.path)

    @contextmanager
    def open(self, place: Place) -> Generator[Opened, None, None]:
        """The file or directory at a place. Raises ToolFailure for anything else, and when it is not there (any more)."""
        try:
            fd = _descend(place)
        except OSError as error:
            _refuse(self.shown(place), error)
        try:
            status = os.fstat(fd)
            if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
                raise ToolFailure(f"`{self.shown(place)}` is neither a file nor a directory.")
            try:
                yield Opened(fd, status)
            except OSError as error:
                _refuse(self.shown(place), error)
        finally:
            os.close(fd)


def _descend(place: Place) -> int:
    """A descriptor for the last component, reached from the root without following a link. Raises OSError."""
    fd = os.open(place.root, _FOLDER)
    for index, part in enumerate(place.parts):
        last = index == len(place.parts) - 1
        try:
            if last and not _is_ordinary(os.stat(part, dir_fd=fd, follow_symlinks=False).st_mode):
                raise OSError(errno.ENXIO, "neither a file nor a directory")  # opening a device may already do something
            inner = os.open(part, _SAFE if last else _FOLDER, dir_fd=fd)
        finally:
            os.close(fd)
        fd = inner
    return fd


def _is_ordinary(mode: int) -> bool:
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def _refuse(shown: str, error: OSError) -> NoReturn:
    match error.errno:
        case errno.ENOENT:
            reason = "does not exist"
        case errno.ENOTDIR:
            reason = "does not exist: a part of the path is not a directory"
        case errno.EACCES | errno.EPERM:
            reason = "may not be read by this program"
        case errno.ENXIO:
            reason = "is neither a file nor a directory"
        case errno.ELOOP:
            reason = "changed while it was being opened"
        case _:
            reason = f"cannot be read: {error.strerror or 'an input/output error'}"
    raise ToolFailure(f"`{shown}` {reason}.") from None
