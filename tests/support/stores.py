"""Stores for tests: opened on a real file, written through the real writer."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

from steerway.protocol.values import (
    EventData,
    EventId,
    Location,
    MessageId,
    ModelRef,
    Prompt,
    PromptAdmitted,
    PromptPromoted,
    Session,
    SessionCreated,
    SessionId,
    TurnStarted,
)
from steerway.protocol.values.errors import SessionNotFoundError
from steerway.storage.connections import Synchronous
from steerway.storage.copying import Fork
from steerway.storage.database import Database, Owner
from steerway.storage.journal import NewEvent, Transaction
from steerway.storage.removal import grave
from steerway.storage.writer import Committed, Member, Refused

MODEL = ModelRef(provider="demo", id="demo")
_numbers = itertools.count(1)


def open_store(
    path: Path,
    *,
    owner: Owner | None = None,
    generation: str | None = None,
    synchronous: Synchronous = "normal",
    take_over: bool = False,
) -> Database:
    """Open the store at `path`, by default as this process; a generation is a new number unless named."""
    return Database.open(
        path,
        owner=owner or Owner(id=f"owner_{next(_numbers)}", pid=os.getpid(), host="here"),
        now_ms=lambda: 1_000,
        new_generation=lambda: generation or f"gen_{next(_numbers)}",
        synchronous=synchronous,
        take_over=take_over,
    )


def event(data: EventData, created: int = 1_000) -> NewEvent:
    """`data` as an event with an id of its own."""
    return NewEvent(EventId(f"evt_{next(_numbers)}"), created, data)


def appending(session_id: SessionId, *data: EventData, created: int = 1_000) -> Callable[[Transaction], Any]:
    """Work that appends `data` to one session."""
    return lambda transaction: transaction.append(session_id, [event(each, created) for each in data])


def commit(database: Database, work: Callable[[Transaction], Any]) -> Any:
    """Commit one member; its result, or its error raised."""
    match database.writer.commit([Member(work)]):
        case [Committed(result=result)]:
            return result
        case [Refused(error=error)]:
            raise error
        case answers:
            raise AssertionError(answers)


def copy_all(database: Database, copy: Fork) -> Session:
    """Bring a fork to its end; the child."""
    reader = database.open_reader()
    try:
        while copy.survey(reader):
            pass
        while True:
            copy.read(reader)
            copy.rename()
            if (child := commit(database, copy.write)) is not None:
                return child.session
    finally:
        reader.close()


def remove(database: Database, session_id: SessionId) -> tuple[SessionId, ...]:
    """Remove a session and delete all that is left of it; the ids, children first."""
    removed = commit(database, lambda transaction: transaction.remove(session_id))
    for member in removed:
        sweep(database, grave(member))
    return removed


def sweep(database: Database, name: SessionId) -> int:
    """Delete a hidden session; in how many transactions."""
    parts = 1
    while commit(database, lambda transaction: transaction.sweep(name)):
        parts += 1
    return parts


def append(database: Database, session_id: SessionId, *data: EventData, created: int = 1_000) -> list[int]:
    """Append and commit; the sequences."""
    return [stored.seq for stored in commit(database, appending(session_id, *data, created=created))]


def session_created(title: str = "A session", **fields: Any) -> SessionCreated:
    return SessionCreated(title=title, location=Location(directory=fields.pop("directory", "/work")), **fields)


def admitted(message_id: MessageId, text: str = "Hello", **fields: Any) -> PromptAdmitted:
    return PromptAdmitted(message_id=message_id, prompt=Prompt(text=text), delivery=fields.pop("delivery", "steer"), **fields)


def promoted(message_id: MessageId, text: str = "Hello", time: int = 1_000) -> PromptPromoted:
    return PromptPromoted(message_id=message_id, prompt=Prompt(text=text), delivery="steer", admitted=time)


def started(assistant_message_id: MessageId, attempt: int = 1) -> TurnStarted:
    return TurnStarted(assistant_message_id=assistant_message_id, agent="build", model=MODEL, attempt=attempt)


def there(session_id: SessionId) -> Callable[[Transaction], bool]:
    """Work that says whether there is such a session."""

    def work(transaction: Transaction) -> bool:
        try:
            transaction.head(session_id)
        except SessionNotFoundError:
            return False
        return True

    return work


def raw(path: Path, statements: str) -> list[tuple[Any, ...]]:
    """Run SQL on the file behind everybody's back; the rows of the last statement."""
    connection: Any = apsw.Connection(str(path))
    try:
        return connection.execute(statements).fetchall()
    finally:
        connection.close()
