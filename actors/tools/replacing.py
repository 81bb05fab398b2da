"""Changing a file as one step: what was there when it was looked at, and a replacement that either happens whole or not at all.

Rules:
- Only inside the location, and nothing inside a `.git`. The directory of the file is reached as the confinement reaches
  everything, from the root downwards and never through a link; missing directories are made on the way.
- The new content is written beside the old one and takes its name, with the same permissions (and owner, where allowed).
  A name that is no regular file, or that may not be written, is left alone.
- Between looking and replacing somebody may have been asked for a long time: a file that is not what it was then is not
  replaced. (What happens between the last look and the renaming, some microseconds, nobody can see.)
- Everything here blocks and belongs into a thread. Refusals are `ToolFailure`s.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final, NamedTuple, NoReturn

from .confinement import Confinement, Place
from .stopping import Stop
from .tool import ToolFailure

MAX_CONTENT_BYTES: Final = 16 * 1024 * 1024
"""What one file may have to be edited, and what may be written."""

_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_FOLDER: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_DIRECTORY
_GIT: Final = ".git"
_ATTEMPTS: Final = 8


class Seen(NamedTuple):
    """A place when it was looked at. `content` is None where there is no file, or one that is too large to hold."""

    place: Place
    shown: str
    status: os.stat_result | None
    content: bytes | None


def look(confinement: Confinement, path: str) -> Seen:
    """What is at a path that is about to be written, which need not exist. Raises ToolFailure where it may not be written."""
    place = confinement.resolve(path)
    shown = confinement.shown(place)
    if any(part.lower() == _GIT for part in (*place.root.split("/"), *place.parts)):
        raise ToolFailure(f"`{shown}` is inside a `.git` directory; nothing there is written.")
    if not place.parts:
        raise ToolFailure(f"`{shown}` is a directory.")
    try:
        with _parent(place, make=False) as folder:
            return Seen(place, shown, *_current(folder, place.parts[-1]))
    except FileNotFoundError:
        return Seen(place, shown, None, None)
    except OSError as error:
        _refuse(shown, error)


def replace(seen: Seen, content: bytes, stop: Stop) -> None:
    """Give the place this content, if it is still as it was seen. Raises ToolFailure, and Abandoned if the call has ended."""
    try:
        with _parent(seen.place, make=seen.status is None) as folder:
            _exchange(folder, seen, content, stop)
    except OSError as error:
        _refuse(seen.shown, error)


def _exchange(folder: int, seen: Seen, content: bytes, stop: Stop) -> None:
    name = seen.place.parts[-1]
    fd, beside = _beside(folder)
    try:
        try:
            if seen.status is not None:
                with contextlib.suppress(OSError):  # somebody else's file stays readable to them only if we may say so
                    os.fchown(fd, seen.status.st_uid, seen.status.st_gid)
                os.fchmod(fd, stat.S_IMODE(seen.status.st_mode))
            view = memoryview(content)
            while view:
                stop.check()
                view = view[os.write(fd, view[: 1 << 20]) :]
        finally:
            os.close(fd)
        if not _same(_current(folder, name), (seen.status, seen.content)):
            raise ToolFailure(f"`{seen.shown}` was changed by somebody else meanwhile; read it again.")
        stop.check()
        os.replace(beside, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside, dir_fd=folder)
        raise


def _beside(folder: int) -> tuple[int, str]:
    for _ in range(_ATTEMPTS):
        beside = f".{os.urandom(8).hex()}.steerway"
        try:
            return os.open(beside, _CREATE, 0o666, dir_fd=folder), beside
        except FileExistsError:
            continue
    raise FileExistsError(errno.EEXIST, "no unused name was found")


def _same(now: tuple[os.stat_result | None, bytes | None], then: tuple[os.stat_result | None, bytes | None]) -> bool:
    return _identity(now[0]) == _identity(then[0]) and now[1] == then[1]


def _identity(status: os.stat_result | None) -> tuple[int, ...] | None:
    if status is None:
        return None
    return (status.st_dev, status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns)


def _current(folder: int, name: str) -> tuple[os.stat_result | None, bytes | None]:
    """The file of that name and its content. Raises OSError for what is there and cannot be replaced."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None, None
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "is a directory")
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.ENXIO, "no regular file")
    if not os.access(name, os.W_OK, dir_fd=folder):
        raise PermissionError(errno.EACCES, "may not be written")
    if status.st_size > MAX_CONTENT_BYTES:
        return status, None
    fd = os.open(name, _READ, dir_fd=folder)
    try:
        pieces: list[bytes] = []
        left = MAX_CONTENT_BYTES + 1
        while left > 0 and (piece := os.read(fd, min(left, 1 << 20))):
            pieces.append(piece)
            left -= len(piece)
        return os.fstat(fd), b"".join(pieces) if left > 0 else None
    finally:
        os.close(fd)


@contextmanager
def _parent(place: Place, *, make: bool) -> Generator[int, None, None]:
    """A descriptor of the directory a place is in. Raises OSError."""
    fd = os.open(place.root, _FOLDER)
    try:
        for part in place.parts[:-1]:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=fd)
            inner = os.open(part, _FOLDER, dir_fd=fd)
            os.close(fd)
            fd = inner
        yield fd
    finally:
        os.close(fd)


def _refuse(shown: str, error: OSError) -> NoReturn:
    match error.errno:
        case errno.ENOENT:
            reason = "cannot be written: its directory is gone"
        case errno.EISDIR:
            reason = "is a directory"
        case errno.ENOTDIR | errno.ELOOP:
            reason = "cannot be written: a part of the path is not a directory"
        case errno.ENXIO:
            reason = "is not a regular file"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            reason = "may not be written by this program"
        case _:
            reason = f"cannot be written: {error.strerror or 'an input/output error'}"
    raise ToolFailure(f"`{shown}` {reason}.") from None
