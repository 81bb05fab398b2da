"""Whoever reads a history in stretches knows the same as who reads it whole; who asks for one row reads one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steerway.protocol.values import (
    AssistantMessage,
    CacheTokens,
    CompactControl,
    ControlAdmitted,
    ControlWithdrawn,
    Location,
    Message,
    MessageId,
    MoveControl,
    PartId,
    SessionId,
    SyntheticAdded,
    TextEnded,
    TextStarted,
    Tokens,
    TurnCompleted,
)
from steerway.protocol.values.errors import SessionNotFoundError
from steerway.protocol.values.event import CompactionCompleted, CompactionStarted, ContextUpdated, EpochStarted, EventData
from steerway.storage.database import Database
from steerway.storage.history import Limit, Mark, Origin
from steerway.storage.reader import Reader
from support.stores import MODEL, admitted, append, commit, open_store, raw, session_created, started

S, OTHER = SessionId("ses_1"), SessionId("ses_2")
NO_TOKENS = Tokens(input=0, output=0, reasoning=0, cache=CacheTokens(read=0, write=0))

Step = Callable[[int, int], list[EventData]]
"""Events of one step; it is told its number and the head before it."""


def note(number: int, head: int) -> list[EventData]:
    return [SyntheticAdded(message_id=MessageId(f"msg_{number}"), text=f"Note {number}")]


def answer(number: int, head: int) -> list[EventData]:
    id, part = MessageId(f"msg_{number}"), PartId(f"prt_{number}")
    return [
        started(id),
        TextStarted(assistant_message_id=id, part_id=part),
        TextEnded(assistant_message_id=id, part_id=part, text=f"Answer {number}"),
        TurnCompleted(assistant_message_id=id, finish="stop", tokens=NO_TOKENS, cost=0.0, continues=False),
    ]


def update(number: int, head: int) -> list[EventData]:
    return [ContextUpdated(message_id=MessageId(f"msg_{number}"), text=f"Update {number}", entries={}, dropped=())]


def epoch(number: int, head: int) -> list[EventData]:
    return [EpochStarted(baseline=f"Baseline {number}", snapshot={}, baseline_seq=head, reason="transition")]


def compaction(number: int, head: int) -> list[EventData]:
    id = MessageId(f"msg_{number}")
    end = CompactionCompleted(message_id=id, summary="So far.", recent="", model=MODEL, tokens=NO_TOKENS, cost=0.0)
    return [CompactionStarted(message_id=id, reason="manual"), end]


def perform(database: Database, steps: list[Step]) -> None:
    for number, step in enumerate(steps):
        reader = database.open_reader()
        head = reader.head(S)
        reader.close()
        append(database, S, *step(number, head))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([note, answer, update, epoch, compaction]), st.booleans()), max_size=14))
def test_stretches_add_up_to_the_whole(plan: list[tuple[Step, bool]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        database = open_store(Path(folder) / "store.db")
        append(database, S, session_created(), *epoch(0, 1))
        reader = database.open_reader()
        known: list[Message] = []
        mark: Mark | None = None
        for number, (step, looks) in enumerate(plan, 1):
            append(database, S, *step(number, reader.head(S)))
            if not looks:
                continue
            found = reader.stretch(S, mark)
            assert found.settled
            known = [*known, *found.messages] if found.since == mark is not None else list(found.messages)
            mark = found.mark
            assert tuple(known) == reader.context(S)
        reader.close()
        database.close()


@pytest.fixture
def database(tmp_path: Path) -> Database:
    database = open_store(tmp_path / "store.db")
    append(database, S, session_created())
    return database


def test_a_reader_at_the_end_reads_nothing(database: Database) -> None:
    perform(database, [note, answer])
    reader: Reader = database.open_reader()
    whole = reader.stretch(S, None)
    assert (whole.since, len(whole.messages), whole.mark) == (None, 2, Mark(Origin(0, 0), 3))
    assert whole.size > len("Note 0Answer 1")
    rest = reader.stretch(S, whole.mark)
    assert rest == (whole.mark, whole.mark, (), 0, True)
    reader.close()
    database.close()


def test_a_message_without_its_end_cannot_be_stood_behind(database: Database) -> None:
    append(database, S, started(MessageId("msg_open")))
    reader = database.open_reader()
    found = reader.stretch(S, None)
    assert isinstance(found.messages[0], AssistantMessage)
    assert not found.settled
    reader.close()
    database.close()


def test_a_transaction_does_not_read_a_long_log_from_its_beginning(database: Database) -> None:
    perform(database, [note] * 3)
    whole = commit(database, lambda transaction: transaction.stretch(S, None, Limit(events=4, bytes=1_000)))
    assert len(whole.messages) == 3
    assert commit(database, lambda transaction: transaction.stretch(S, None, Limit(events=3, bytes=1_000))) is None
    assert commit(database, lambda transaction: transaction.stretch(S, whole.mark, Limit(events=3, bytes=1_000))).messages == ()
    append(database, S, *epoch(9, 4))
    assert commit(database, lambda transaction: transaction.stretch(S, whole.mark, Limit(events=4, bytes=1_000))) is None
    database.close()


def test_a_session_that_is_not_there_has_no_history(database: Database) -> None:
    reader = database.open_reader()
    with pytest.raises(SessionNotFoundError):
        reader.stretch(SessionId("ses_none"), None)
    reader.close()
    database.close()


# --- one row of many ---------------------------------------------------------------------------------------------


def test_one_item_is_found_without_looking_into_the_others(database: Database) -> None:
    """Prompts here cannot even be read."""
    compacts, moves = ([MessageId(f"msg_{kind}_{number}") for number in range(3)] for kind in ("compact", "move"))
    for compact, move in zip(compacts, moves, strict=True):
        append(database, S, admitted(MessageId(f"{compact}_prompt")))
        append(database, S, ControlAdmitted(message_id=compact, kind="compact"))
        append(database, S, ControlAdmitted(message_id=move, kind="move", location=Location(directory=f"/{move}")))
    append(database, S, ControlWithdrawn(message_id=compacts[2]))
    raw(database.path, "UPDATE event SET body = x'c1' WHERE type = 'prompt.admitted'")

    def waits(message_id: MessageId, session_id: SessionId = S) -> bool:
        return commit(database, lambda transaction: transaction.is_pending(session_id, message_id))

    found = commit(database, lambda transaction: transaction.pending_control(S, "compact"))
    assert isinstance(found, CompactControl)
    assert found.id == compacts[1]
    found = commit(database, lambda transaction: transaction.pending_control(S, "move"))
    assert isinstance(found, MoveControl)
    assert (found.id, found.location.directory) == (moves[2], f"/{moves[2]}")
    assert [waits(id) for id in compacts] == [True, True, False]
    assert not waits(compacts[0], OTHER)
    assert commit(database, lambda transaction: transaction.pending_control(OTHER, "move")) is None


def test_told_instruction_files_are_known_without_looking_into_messages(database: Database) -> None:
    one, two, three = "/a/AGENTS.md", "/b/AGENTS.md", "/c/AGENTS.md"
    note = SyntheticAdded(message_id=MessageId("msg_note"), text="Near.", paths=(one, two))
    append(database, S, note, SyntheticAdded(message_id=MessageId("msg_plain"), text="Continue."))
    append(database, S, SyntheticAdded(message_id=MessageId("msg_again"), text="Near.", paths=(two,)))
    append(database, OTHER, session_created(), SyntheticAdded(message_id=MessageId("msg_other"), text="Near.", paths=(three,)))
    raw(database.path, "UPDATE message SET body = x'c1'")
    told = commit(database, lambda transaction: transaction.told_paths(S, [two, three]))
    assert told == {two}
