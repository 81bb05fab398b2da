"""Managed Tool Output Files: the complete text of outputs that are too large for Session history.

Rules:
- One shared flat folder of its own, mode 0700. A file is `tool_` and a unique rising id, created exclusively, mode 0600.
- A file holds what was written to it and nothing else. Beyond its cap the rest is dropped at a character boundary and the
  file is incomplete, which its `ManagedOutput` says.
- Files are temporary: the bounded text in history is the durable record, so nothing is synchronised to disk, and `sweep`
  removes what is older than the retention period. Only regular files named `tool_...` are ever touched.
- Failures are plain OSErrors. Whoever retains an output decides what a failure means (it never fails the tool).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ..protocol.values import ManagedOutput

PREFIX: Final = "tool_"
RETENTION_MS: Final = 7 * 24 * 60 * 60 * 1000
"""Milliseconds a file is kept, counted from its last modification."""
MAX_FILE_BYTES: Final = 64 * 1024 * 1024
"""What one file holds at most."""

_ATTEMPTS: Final = 8
_ALPHABET: Final = "0123456789abcdefghijklmnopqrstuv"
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class OutputFile:
    """One file being written. End it with `keep` or `discard`; a file that is never ended is swept some day."""

    def __init__(self, path: str, fd: int, cap: int) -> None:
        self._path = path
        self._fd = fd
        self._cap = cap
        self._bytes = 0
        self._newlines = 0
        self._last = b""
        self._complete = True

    def write(self, data: bytes) -> None:
        """Append whole characters of UTF-8. Beyond the cap nothing more is written. Raises OSError."""
        if not self._complete:
            return
        if self._bytes + len(data) > self._cap:
            self._complete = False
            data = data[: self._cap - self._bytes].decode("utf-8", "ignore").encode()
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]
        self._bytes += len(data)
        self._newlines += data.count(b"\n")
        self._last = data[-1:] or self._last

    def keep(self) -> ManagedOutput:
        """Close the file and say what it holds. Raises OSError where the file system finds its errors late."""
        fd, self._fd = self._fd, -1
        os.close(fd)
        lines = self._newlines + (1 if self._last not in (b"", b"\n") else 0)
        return ManagedOutput(path=self._path, bytes=self._bytes, lines=lines, complete=self._complete)

    def discard(self) -> None:
        """Close and remove the file, whatever state it is in. Never raises."""
        fd, self._fd = self._fd, -1
        for step in (lambda: os.close(fd) if fd >= 0 else None, lambda: os.unlink(self._path)):
            try:
                step()
            except OSError:
                pass  # nothing can be done about it here: the sweep takes what is left


class OutputFiles:
    """The folder of managed output files.

    `now_ms` gives epoch milliseconds and `random_bytes(n)` n random bytes; both only name files. The folder is made when
    the first file is, so that constructing this never fails and never touches the disk. Usable from any thread.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        now_ms: Callable[[], int],
        random_bytes: Callable[[int], bytes],
        max_file_bytes: int = MAX_FILE_BYTES,
        retention_ms: int = RETENTION_MS,
    ) -> None:
        self._directory = os.path.abspath(directory)
        self._now_ms = now_ms
        self._random_bytes = random_bytes
        self._max_file_bytes = max_file_bytes
        self._retention_ms = retention_ms

    @property
    def directory(self) -> str:
        """The absolute path of the folder, which need not exist yet."""
        return self._directory

    def create(self) -> OutputFile:
        """A new empty file. Raises OSError; an unsuitable folder (a link, someone else's) is one too."""
        try:
            self._directory.encode()
        except UnicodeEncodeError:
            raise OSError("the folder's path is no UTF-8, so that it cannot be named to a model") from None
        folder = self._open_folder()
        try:
            for _ in range(_ATTEMPTS):
                name = self._name()
                try:
                    fd = os.open(name, _CREATE, 0o600, dir_fd=folder)
                except FileExistsError:
                    continue
                return OutputFile(os.path.join(self._directory, name), fd, self._max_file_bytes)
            raise FileExistsError("no unused name was found")
        finally:
            os.close(folder)

    def sweep(self, now_ms: int) -> int:
        """Remove the files that are past their retention at `now_ms`; the number removed. A missing folder holds none.

        Files that cannot be looked at or removed are left for the next time. Raises OSError only for the folder itself.
        """
        try:
            folder = os.open(self._directory, _FOLDER)
        except FileNotFoundError:
            return 0
        removed = 0
        try:
            with os.scandir(folder) as entries:
                names = [entry.name for entry in entries if entry.name.startswith(PREFIX)]
            for name in names:
                try:
                    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
                    if stat.S_ISREG(found.st_mode) and found.st_mtime_ns // 1_000_000 + self._retention_ms < now_ms:
                        os.unlink(name, dir_fd=folder)
                        removed += 1
                except OSError:
                    continue  # removed by another process, or not ours to remove
        finally:
            os.close(folder)
        return removed

    def _open_folder(self) -> int:
        os.makedirs(os.path.dirname(self._directory), exist_ok=True)
        try:
            os.mkdir(self._directory, 0o700)
        except FileExistsError:
            pass
        folder = os.open(self._directory, _FOLDER)
        try:
            found = os.fstat(folder)
            if found.st_uid != os.geteuid():
                raise PermissionError("the folder belongs to somebody else")
            if stat.S_IMODE(found.st_mode) & 0o077:
                os.fchmod(folder, 0o700)
        except OSError:
            os.close(folder)
            raise
        return folder

    def _name(self) -> str:
        tail = "".join([_ALPHABET[byte % 32] for byte in self._random_bytes(16)])
        return f"{PREFIX}{self._now_ms():012x}{tail}"
