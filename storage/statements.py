"""The part of APSW that this floor uses, as types.

APSW's own stubs name a buffer type that a strict check on the oldest supported Python cannot resolve; behind these protocols
rows are tuples of anything, as SQLite's are. Statements on the way of a commit do without RETURNING, whose rows go through a
temporary table: `changes` and `last_insert_rowid` tell the same in a third of the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol


class Cursor(Protocol):
    """Runs statements. A new statement ends the one before; `fetchall` ends its own."""

    def execute(self, statements: str, bindings: Sequence[Any] = ..., /) -> Cursor: ...

    @property
    def connection(self) -> Connection: ...

    def fetchall(self) -> list[tuple[Any, ...]]: ...

    def __iter__(self) -> Iterator[tuple[Any, ...]]: ...


class Backup(Protocol):
    """A copy of a database in the making."""

    done: bool

    def step(self, npages: int = ..., /) -> bool: ...


class Connection(AbstractContextManager["Connection", bool | None], Protocol):
    """One connection; as a context manager it is one transaction."""

    in_transaction: bool

    def execute(self, statements: str, bindings: Sequence[Any] = ..., /) -> Cursor: ...

    def cursor(self) -> Cursor: ...

    def changes(self) -> int: ...

    def last_insert_rowid(self) -> int: ...

    def pragma(self, name: str, value: Any = ..., /) -> Any: ...

    def config(self, op: int, /, *args: int) -> int: ...

    def wal_checkpoint(self, dbname: str | None = ..., mode: int = ...) -> tuple[int, int]: ...

    def backup(
        self, databasename: str, sourceconnection: Connection, sourcedatabasename: str, /
    ) -> AbstractContextManager[Backup, bool | None]: ...

    def set_busy_timeout(self, milliseconds: int, /) -> None: ...

    def close(self, force: bool = ...) -> None: ...
