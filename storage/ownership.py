"""Who owns a store: a lock on a file beside the database, and one entry per file within this process.

Rules:
- One process owns a store. It holds an OS lock on `<database>.lock` as long as it lives; the kernel frees it however the
  process ends. The file's content only names the owner for whoever is refused.
- The lock is a POSIX record lock: children of a fork do not inherit it, so a tool that outlives its runtime cannot keep a
  store locked. Such locks do not see a second opening within one process, hence the table by device and inode.
- Taking over (ruling C11) puts a new lock file in the place of the old one. The former owner, stopped or wedged, still holds
  a lock that nobody asks for any more, and finds the fence raised before it can write.
- SQLite's locks cannot be trusted on network file systems: they are refused unless forced.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
import threading
from pathlib import Path
from typing import Final

import msgspec

from ..protocol.values.errors import StoreInUseError, StoreUnsuitableError

NETWORK_FILE_SYSTEMS: Final = frozenset(
    {
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "davfs",
        "fuse.davfs",
        "fuse.gcsfuse",
        "fuse.glusterfs",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "smb3",
        "smbfs",
        "virtiofs",
    }
)
"""File system types, as the kernel names them, whose locks other machines may not see."""

MOUNTS: Final = Path("/proc/self/mountinfo")


class Owner(msgspec.Struct, frozen=True):
    """Who opens a store: an id of this opening, and the process behind it."""

    id: str
    pid: int
    host: str


_owned: set[tuple[int, int]] = set()
_guard = threading.Lock()
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Owner)


class Ownership:
    """The lock on one store. `release` frees it; so does the end of the process."""

    def __init__(self, file: int, identity: tuple[int, int]) -> None:
        self._file = file
        self._identity = identity

    def release(self) -> None:
        """Free the store for the next opener. Harmless when done twice."""
        with _guard:
            if self._file < 0:
                return
            os.ftruncate(self._file, 0)
            os.close(self._file)
            self._file = -1
            _owned.discard(self._identity)


def acquire(path: Path, owner: Owner, *, take_over: bool) -> Ownership:
    """Lock the existing database file at `path`. Raises `StoreInUseError` naming pid and host of the owner.

    `take_over` goes past a lock that another process holds. Within one process a store is never opened twice.
    """
    status = path.stat()
    identity = (status.st_dev, status.st_ino)
    with _guard:
        if identity in _owned:
            raise StoreInUseError(
                f"This process has {path} open already; share its runtime.", path=str(path), pid=owner.pid, host=owner.host
            )
        lock = path.with_name(f"{path.name}.lock")
        file = _lock(lock)
        if file is None and take_over:
            lock.unlink(missing_ok=True)
            file = _lock(lock)
        if file is None:
            raise _in_use(path, lock)
        os.ftruncate(file, 0)
        os.pwrite(file, _encoder.encode(owner), 0)
        _owned.add(identity)
    return Ownership(file, identity)


def _lock(lock: Path) -> int | None:
    """The locked file, or None when somebody else holds it."""
    while True:
        file = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file).st_ino == lock.stat().st_ino:
                return file
        except FileNotFoundError:
            pass  # taken over between opening and locking: the lock to have is on another file now
        except (BlockingIOError, PermissionError):
            os.close(file)
            return None
        except BaseException:
            os.close(file)
            raise
        os.close(file)


def is_owned(path: Path) -> bool:
    """Whether a process, this one too, owns the store at `path`. Asks the system who holds the lock, and takes none."""
    try:
        status = path.stat()
        with _guard:
            if (status.st_dev, status.st_ino) in _owned:
                return True  # and the lock file stays closed: closing it would give this process's lock away
            file = os.open(path.with_name(f"{path.name}.lock"), os.O_RDONLY | os.O_CLOEXEC)
            try:
                return _holder(file)
            finally:
                os.close(file)
    except FileNotFoundError:
        return False


def _holder(file: int) -> bool:
    asked = {"type": fcntl.F_WRLCK, "whence": os.SEEK_SET, "start": 0, "length": 0, "pid": 0}
    layout, fields = _FLOCK_BSD if sys.platform == "darwin" else _FLOCK
    answer = fcntl.fcntl(file, fcntl.F_GETLK, struct.pack(layout, *[asked[name] for name in fields]))
    return struct.unpack(layout, answer)[fields.index("type")] != fcntl.F_UNLCK


_FLOCK = ("hhqqi", ("type", "whence", "start", "length", "pid"))
_FLOCK_BSD = ("qqihh", ("start", "length", "pid", "type", "whence"))
"""How the system lays out `struct flock`."""


def _in_use(path: Path, lock: Path) -> StoreInUseError:
    try:
        owner = _decoder.decode(lock.read_bytes())
    except (OSError, msgspec.MsgspecError):
        return StoreInUseError(f"Another process owns {path}.", path=str(path))
    return StoreInUseError(
        f"Process {owner.pid} on {owner.host} owns {path}. Stop it, or take over if it does not answer.",
        path=str(path),
        pid=owner.pid,
        host=owner.host,
    )


def check_file_system(folder: Path, *, force: bool) -> None:
    """Raises `StoreUnsuitableError` when `folder` is on a network file system, unless forced.

    Systems without a mount table in `/proc` are not checked.
    """
    if force:
        return
    try:
        mounts = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return
    kind = file_system_of(folder, mounts)
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreUnsuitableError(
            f"{folder} is on a network file system ({kind}), where locks are not reliable; use a local disk, or force it.",
            path=str(folder),
            file_system=kind,
        )


def file_system_of(folder: Path, mounts: str) -> str | None:
    """The type of the file system that holds `folder`, an absolute path, by a mount table as the kernel prints it."""
    best = (-1, None)
    for line in mounts.splitlines():
        before, separator, after = line.partition(" - ")
        fields = before.split(" ")
        if not separator or len(fields) < 5:
            continue
        point = Path(_unescape(fields[4]))
        # A later line covers an earlier one on the same mount point.
        if folder.is_relative_to(point) and len(point.parts) >= best[0]:
            best = (len(point.parts), after.split(" ")[0])
    return best[1]


def _unescape(text: str) -> str:
    for escape, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(escape, character)
    return text
