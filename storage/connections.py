"""SQLite connections as this store wants them, every setting read back.

APSW's recommended practices are applied to our own connections one by one; its `apply` would change every connection of an
embedding program.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal, cast

import apsw
import apsw.bestpractice

from ..protocol.values.errors import StorageUnavailableError, StoreUnsuitableError, StoreVersionError
from .statements import Connection

Synchronous = Literal["full", "normal"]

OLDEST_SQLITE: Final = (3, 51, 3)
"""Older libraries can lose commits when a write-ahead log is reset while another connection starts to write."""
APPLICATION_ID: Final = 0x53545731
"""Marks a database file as one of ours ("STW1")."""
BUSY_TIMEOUT_MS: Final = 5_000
AUTOCHECKPOINT_PAGES: Final = 4_000
JOURNAL_SIZE_LIMIT: Final = 64 * 1024 * 1024
"""Bytes the write-ahead log keeps on disk after a checkpoint."""

_SYNCHRONOUS: Final[dict[Synchronous, int]] = {"normal": 1, "full": 2}


def check_library(version: str) -> None:
    """Raises `StoreVersionError` when the SQLite library is older than `OLDEST_SQLITE`."""
    if tuple(int(part) for part in version.split(".")) < OLDEST_SQLITE:
        wanted = ".".join(str(part) for part in OLDEST_SQLITE)
        raise StoreVersionError(
            f"SQLite {version} can lose committed data; install apsw with SQLite {wanted} or newer.", sqlite=version
        )


def connect_writer(path: Path, synchronous: Synchronous) -> Connection:
    """The connection that writes. The file must exist.

    Raises `StoreUnsuitableError` when the file is no database of ours, or refuses a setting.
    """
    check_library(apsw.sqlite_lib_version())
    connection = _open(path, apsw.SQLITE_OPEN_READWRITE)
    try:
        connection.set_busy_timeout(BUSY_TIMEOUT_MS)
        check_application(connection, path)
        _practise(connection)
        _set(connection, "synchronous", _SYNCHRONOUS[synchronous])
        _set(connection, "wal_autocheckpoint", AUTOCHECKPOINT_PAGES)
        _set(connection, "journal_size_limit", JOURNAL_SIZE_LIMIT)
        _expect(connection, "journal_mode", "wal")
        _expect(connection, "foreign_keys", 1)
    except BaseException:
        connection.close()
        raise
    return connection


def connect_reader(path: Path) -> Connection:
    """A read-only connection, which waits for nobody and blocks nobody.

    Raises `StoreUnsuitableError` when the file does not exist or is no database of ours.
    """
    check_library(apsw.sqlite_lib_version())
    connection = _open(path, apsw.SQLITE_OPEN_READONLY)
    try:
        connection.set_busy_timeout(BUSY_TIMEOUT_MS)
        check_application(connection, path)
        _practise(connection)
        _set(connection, "query_only", 1)
        _expect(connection, "foreign_keys", 1)
    except BaseException:
        connection.close()
        raise
    return connection


def connect_scratch(path: str) -> Connection:
    """A connection to a database that nobody will open again; with an empty path SQLite keeps and removes it itself."""
    connection = cast("Connection", apsw.Connection(path))
    _set(connection, "synchronous", 0)
    _practise(connection)
    return connection


def check_application(connection: Connection, path: Path) -> None:
    """Raises `StoreUnsuitableError` when the file holds another program's tables, or no tables but is not a database."""
    try:
        application = connection.pragma("application_id")
        tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()[0][0]
    except apsw.NotADBError:
        raise StoreUnsuitableError(f"{path} is not a database; nothing was changed.", path=str(path)) from None
    except apsw.Error as error:
        raise StorageUnavailableError(f"{path} cannot be read ({error}).", path=str(path)) from error
    if application != APPLICATION_ID and (application != 0 or tables != 0):
        raise StoreUnsuitableError(
            f"{path} is a database of another program; nothing was changed. Name another file.", path=str(path)
        )


def _open(path: Path, flags: int) -> Connection:
    try:
        return cast("Connection", apsw.Connection(str(path), flags=flags))
    except apsw.CantOpenError as error:
        raise StoreUnsuitableError(f"{path} cannot be opened ({error}).", path=str(path)) from error
    except apsw.Error as error:
        raise StorageUnavailableError(f"{path} cannot be opened ({error}).", path=str(path)) from error


def _practise(connection: Connection) -> None:
    # Without this SQLite plans a cached statement anew for every value bound to it: several times the cost of running it.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    practice: Any = apsw.bestpractice
    practice.connection_wal(connection)
    practice.connection_enable_foreign_keys(connection)
    practice.connection_dqs(connection)
    practice.connection_optimize(connection)
    practice.connection_recursive_triggers(connection)


def _set(connection: Connection, name: str, value: int) -> None:
    connection.pragma(name, value)
    _expect(connection, name, value)


def _expect(connection: Connection, name: str, value: int | str) -> None:
    found = connection.pragma(name)
    if found != value:
        raise StoreUnsuitableError(f"SQLite refuses the setting {name} = {value}; it stays at {found}.", setting=name)
