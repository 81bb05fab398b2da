"""Opening a store: version gate, ownership, pragmas, schema, generation.

Rules:
- Opening either gives a store that this process owns and whose settings were read back, or raises and leaves the file as it
  was. Files are private to the user.
- Every opening raises the fence in the `store` row. A former owner that is still there reads another number in its next
  transaction and stops writing.
- The generation names the store's history. It changes when the database file turns out to be a copy: its inode is another
  one, or a backup marked it (ruling C11).
- What an ended process left of removed sessions, and of copies that were not whole, is deleted before anything else is
  written, if the disk lets it.
- Read-only openers take no ownership and change nothing (ruling B12).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import apsw

from ..protocol.values import Generation
from ..protocol.values.errors import StorageUnavailableError, StoreUnsuitableError
from . import removal
from .connections import BUSY_TIMEOUT_MS, Synchronous, check_library, connect_reader, connect_writer
from .ownership import Owner, Ownership, acquire, check_file_system
from .reader import Reader
from .removal import Hidden
from .schema import check_version, load_migrations, migrate, version
from .statements import Connection
from .writer import Writer

__all__ = ["Database", "Owner", "open_reader"]

MODE = 0o600


class Database:
    """An owned store. Made by `open`, used by one writing thread and any number of readers, ended by `close`."""

    def __init__(
        self,
        path: Path,
        connection: Connection,
        ownership: Ownership,
        generation: Generation,
        fence: int,
        swept: tuple[Hidden, ...],
    ) -> None:
        self.path = path
        self.swept = swept
        """The hidden sessions of an ended process that were deleted when the store was opened."""
        self.generation = generation
        self.writer = Writer(connection, fence)
        self._connection = connection
        self._busy_timeout = BUSY_TIMEOUT_MS
        self._ownership = ownership

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        owner: Owner,
        now_ms: Callable[[], int],
        new_generation: Callable[[], str],
        synchronous: Synchronous = "full",
        take_over: bool = False,
        force_network: bool = False,
    ) -> Database:
        """Open or make the store at `path`, parent folders included, and own it.

        `synchronous="normal"` may lose the last moments on power loss, never consistency. `take_over` goes past an owner
        that does not answer (ruling C11), `force_network` past the check of the file system.
        Raises `StoreInUseError`, `StoreVersionError`, `StoreUnsuitableError` or `StorageUnavailableError`.
        """
        check_library(apsw.sqlite_lib_version())
        resolved = Path(path).absolute()
        try:
            resolved.parent.mkdir(parents=True, exist_ok=True)
            resolved = resolved.resolve()
            check_file_system(resolved.parent, force=force_network)
            _make_private(resolved)
            ownership = acquire(resolved, owner, take_over=take_over)
        except OSError as error:
            raise StoreUnsuitableError(f"{resolved} cannot be opened ({error}).", path=str(resolved)) from error
        try:
            connection = connect_writer(resolved, synchronous)
            try:
                migrate(connection, resolved, load_migrations(), now_ms())
                generation, fence = _enter(connection, resolved, owner, now_ms(), new_generation)
                swept = _sweep(connection)
            except BaseException:
                connection.close()
                raise
        except apsw.Error as error:
            ownership.release()
            raise StorageUnavailableError(f"{resolved} cannot be opened ({error}).", path=str(resolved)) from error
        except BaseException:
            ownership.release()
            raise
        return cls(resolved, connection, ownership, generation, fence, swept)

    def open_reader(self) -> Reader:
        """A reader of this store, with a connection of its own for a thread of its own. Its opener closes it.

        Raises `StorageUnavailableError`: this store was found suitable, so what is wrong now (no free file descriptor, say) may
        pass.
        """
        try:
            return Reader(connect_reader(self.path))
        except StoreUnsuitableError as error:
            raise StorageUnavailableError(str(error), **error.fields) from error

    def limit_pages(self, pages: int | None) -> None:
        """Let the file grow to at most `pages` pages (None: without limit); beyond that nothing is committed."""
        self._connection.pragma("max_page_count", 0xFFFFFFFE if pages is None else pages)

    def set_busy_timeout(self, milliseconds: int) -> None:
        """How long a commit waits for somebody else's lock on the file; 5 s unless set."""
        self._busy_timeout = milliseconds
        self._connection.set_busy_timeout(milliseconds)

    def checkpoint_if_free(self) -> bool:
        """Truncate the write-ahead log, unless a reader is in the way: then False at once, so that no commit waits for it.

        Raises `StorageUnavailableError` when the disk fails.
        """
        self._connection.set_busy_timeout(0)
        try:
            return not self.writer.lost and self.writer.checkpoint()
        finally:
            self._connection.set_busy_timeout(self._busy_timeout)

    def close(self) -> None:
        """Checkpoint, close the writing connection and free the store. Harmless when done twice; readers stay open."""
        try:
            if not self.writer.lost:
                self.writer.checkpoint()
        except (StorageUnavailableError, apsw.ConnectionClosedError):
            pass  # what is committed stands in the write-ahead log, and the next opener reads it from there
        finally:
            self._connection.close()
            self._ownership.release()


def open_reader(path: str | Path) -> Reader:
    """Read a store that may belong to a running process, without owning it.

    Raises `StoreUnsuitableError` when there is no store, `StoreVersionError` when its schema is not this program's.
    """
    return Reader(connect_current(Path(path).resolve()))


def connect_current(resolved: Path) -> Connection:
    """A read-only connection to a store of this program's schema. Raises what `open_reader` raises."""
    connection = connect_reader(resolved)
    try:
        found, newest = version(connection), load_migrations()[-1].number
        check_version(found, newest)
        if found < newest:
            raise StoreUnsuitableError(
                f"{resolved} has not been brought up to date (schema {found} of {newest}); start the runtime once.",
                path=str(resolved),
            )
    except BaseException:
        connection.close()
        raise
    return connection


def _make_private(path: Path) -> None:
    """Make the file if it is missing, readable and writable for its user only; SQLite's side files follow its mode."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, MODE))
    if path.stat().st_mode & 0o177:
        path.chmod(MODE)


def _sweep(connection: Connection) -> tuple[Hidden, ...]:
    """Delete the hidden sessions that an ended process has left, a part to a transaction; says which those were.

    What a full disk keeps from being deleted stays hidden for the next time: a copy may be what filled it.
    """
    cursor = connection.cursor()
    swept: list[Hidden] = []
    for left in removal.hidden(cursor):
        more = True
        while more:
            cursor.execute("BEGIN IMMEDIATE")
            try:
                more = removal.sweep(cursor, left.name)
                cursor.execute("COMMIT")
            except apsw.FullError:
                return tuple(swept)
            finally:
                if connection.in_transaction:
                    cursor.execute("ROLLBACK")
        swept.append(left)
    return tuple(swept)


def _enter(
    connection: Connection, path: Path, owner: Owner, now: int, new_generation: Callable[[], str]
) -> tuple[Generation, int]:
    """Write ourselves into the store row; returns generation and fence."""
    inode = path.stat().st_ino
    with connection:
        rows = connection.execute("SELECT generation, fence, inode, copied FROM store WHERE only = 1").fetchall()
        if not rows:
            generation, fence = new_generation(), 1
            connection.execute(
                "INSERT INTO store (only, generation, created, inode, copied, fence, owner, pid, host)"
                " VALUES (1, ?, ?, ?, 0, ?, ?, ?, ?)",
                (generation, now, inode, fence, owner.id, owner.pid, owner.host),
            )
        else:
            generation, fence, known_inode, copied = rows[0]
            if copied or known_inode != inode:
                generation = new_generation()
            fence += 1
            connection.execute(
                "UPDATE store SET generation = ?, inode = ?, copied = 0, fence = ?, owner = ?, pid = ?, host = ?"
                " WHERE only = 1",
                (generation, inode, fence, owner.id, owner.pid, owner.host),
            )
    return Generation(generation), fence
