"""The schema's numbered migrations, and how a store is brought up to date.

Rules:
- A migration is one `.sql` file of `migrations/`; its number is the schema version that it makes. It runs in one transaction
  together with the record that it ran, so a store is always at exactly one version.
- A store that is newer than this program is refused and left alone.
- Before the first migration of a store that has a history, a copy is kept beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple, cast

import apsw

from ..protocol.values.errors import StoreUnsuitableError, StoreVersionError
from .connections import APPLICATION_ID
from .statements import Connection


class Migration(NamedTuple):
    """One step of the schema. `sql` is run as it stands, any number of statements."""

    number: int
    name: str
    sql: str


def load_migrations() -> tuple[Migration, ...]:
    """All migrations of this program in order, numbered from 1 without gaps."""
    found: list[Migration] = []
    for entry in sorted((files(__name__.rpartition(".")[0]) / "migrations").iterdir(), key=lambda entry: entry.name):
        number, _, name = entry.name.removesuffix(".sql").partition("_")
        if entry.name.endswith(".sql"):
            found.append(Migration(int(number), name, entry.read_text(encoding="utf-8")))
    return tuple(found)


def version(connection: Connection) -> int:
    """The schema version of an open store; 0 for an empty file."""
    return int(connection.pragma("user_version"))


def check_version(found: int, newest: int) -> None:
    """Raises `StoreVersionError` when a store of version `found` is beyond this program."""
    if found > newest:
        raise StoreVersionError(
            f"The store has schema version {found}, this program knows {newest}; use a newer program.", store=found
        )


def migrate(connection: Connection, path: Path, migrations: Sequence[Migration], now: int) -> Path | None:
    """Run the migrations that the store lacks; returns where the copy of the former store is, if one was made.

    Raises `StoreVersionError` when the store is newer than the last migration. `now` is epoch milliseconds.
    """
    found = version(connection)
    check_version(found, migrations[-1].number)
    missing = migrations[found:]
    if not missing:
        return None
    kept = _keep_copy(connection, path, found) if found > 0 else None
    for migration in missing:
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.execute(migration.sql)
            connection.execute(
                "INSERT INTO migration (number, name, applied) VALUES (?, ?, ?)", (migration.number, migration.name, now)
            )
            connection.pragma("application_id", APPLICATION_ID)
            connection.pragma("user_version", migration.number)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    return kept


def _keep_copy(connection: Connection, path: Path, found: int) -> Path:
    """A complete copy beside the store, marked so that opening it makes a new generation (ruling C11)."""
    target = path.with_name(f"{path.name}.version-{found}")
    if target.exists():
        raise StoreUnsuitableError(
            f"{target} is in the way: an earlier copy has that name. Move it away and start again.", path=str(target)
        )
    partial = target.with_name(f"{target.name}.partial")
    partial.unlink(missing_ok=True)
    partial.touch(mode=0o600)
    copy = cast("Connection", apsw.Connection(str(partial)))
    try:
        with copy.backup("main", connection, "main") as backup:
            while not backup.done:
                backup.step(4096)
        copy.pragma("journal_mode", "delete")
        copy.execute("UPDATE store SET copied = 1")
    finally:
        copy.close()
    partial.rename(target)
    return target
