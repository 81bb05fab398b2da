"""What recovery finds: checkpoints, turns that wait for a retry, and everything without an end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from steerway.protocol.values import (
    AssistantMessage,
    CallId,
    FailedOutcome,
    Failure,
    InterruptedOutcome,
    MessageId,
    PartId,
    ReasoningEnded,
    ReasoningStarted,
    SessionId,
    TextEnded,
    TextPart,
    TextStarted,
    ToolCalled,
    ToolFailed,
    ToolInputEnded,
    ToolInputStarted,
    TurnFailed,
    TurnInterrupted,
)
from steerway.protocol.values.event import RetryScheduled
from steerway.protocol.values.message import Retry
from steerway.storage.database import Database
from steerway.storage.leftovers import OpenCall, OpenFragment, Unfinished
from steerway.storage.projectors import IllegalEventError
from steerway.storage.rebuild import rebuild_check
from steerway.storage.writer import Committed, Member
from support.stores import admitted, append, appending, commit, open_store, promoted, raw, session_created, started

S = SessionId("ses_1")
OTHER = SessionId("ses_2")
ASKED = MessageId("msg_asked")
ANSWER = MessageId("msg_answer")
PART = PartId("prt_1")
CALL = CallId("call_1")
FAILURE = Failure(type="provider.overloaded", message="Too much to do.")
TEXT = TextStarted(assistant_message_id=ANSWER, part_id=PART)
INPUT = ToolInputStarted(assistant_message_id=ANSWER, call_id=CALL, tool="date")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[Database]:
    database = open_store(path)
    append(database, S, session_created(), admitted(ASKED), promoted(ASKED), started(ANSWER))
    yield database
    database.close()
    assert rebuild_check(path) == []


def checkpoint(database: Database, texts: dict[Any, str], session_id: SessionId = S) -> None:
    commit(database, lambda transaction: transaction.checkpoint(session_id, ANSWER, texts))


def unfinished(database: Database, session_id: SessionId = S) -> Unfinished:
    return commit(database, lambda transaction: transaction.unfinished(session_id))


def turn(database: Database) -> AssistantMessage | None:
    return commit(database, lambda transaction: transaction.running_turn(S))


# --- checkpoints --------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_overwritten_and_comes_with_its_fragment(store: Database, path: Path) -> None:
    append(store, S, TEXT, INPUT)
    assert unfinished(store).fragments == (OpenFragment(ANSWER, PART, "text", ""),)
    checkpoint(store, {PART: "He"})
    checkpoint(store, {PART: "Hello", CALL: '{"zo'})
    found = unfinished(store)
    assert found.fragments == (OpenFragment(ANSWER, PART, "text", "Hello"),)
    assert found.calls == (OpenCall(ANSWER, CALL, "date", executed=False, running=False, writing=True, input_text='{"zo'),)
    assert raw(path, "SELECT count(*) FROM open_fragment") == [(2,)]


def test_a_checkpoint_is_no_event_and_no_history(store: Database) -> None:
    append(store, S, TEXT)
    head = commit(store, lambda transaction: transaction.head(S))
    checkpoint(store, {PART: "Hello"})
    assert commit(store, lambda transaction: transaction.head(S)) == head
    running = turn(store)
    assert running is not None
    assert running.content == (TextPart(id=PART, text=""),)


@pytest.mark.parametrize(
    ("begin", "end", "id"),
    [
        (TEXT, TextEnded(assistant_message_id=ANSWER, part_id=PART, text="Hello"), PART),
        (
            ReasoningStarted(assistant_message_id=ANSWER, part_id=PART),
            ReasoningEnded(assistant_message_id=ANSWER, part_id=PART, text="Hm"),
            PART,
        ),
        (INPUT, ToolInputEnded(assistant_message_id=ANSWER, call_id=CALL, text="{}"), CALL),
        (INPUT, ToolFailed(assistant_message_id=ANSWER, call_id=CALL, error=FAILURE), CALL),
        (
            INPUT,
            ToolCalled(assistant_message_id=ANSWER, call_id=CALL, provider_call_id="", tool="date", input={}, executed=False),
            CALL,
        ),
        (TEXT, TurnInterrupted(assistant_message_id=ANSWER, reason="recovery"), PART),
    ],
)
def test_a_checkpoint_vanishes_with_the_end(store: Database, path: Path, begin: Any, end: Any, id: Any) -> None:
    append(store, S, begin)
    checkpoint(store, {id: "so far"})
    assert raw(path, "SELECT text FROM open_fragment") == [("so far",)]
    append(store, S, end)
    assert raw(path, "SELECT count(*) FROM open_fragment") == [(0,)]


def test_a_checkpoint_behind_the_end_is_left_out(store: Database, path: Path) -> None:
    append(store, S, TEXT, TextEnded(assistant_message_id=ANSWER, part_id=PART, text="Hello"))
    checkpoint(store, {PART: "Hel", PartId("prt_never"): "what"})
    assert raw(path, "SELECT count(*) FROM open_fragment") == [(0,)]


def test_an_input_that_ended_is_known_without_a_checkpoint(store: Database) -> None:
    append(store, S, INPUT, ToolInputEnded(assistant_message_id=ANSWER, call_id=CALL, text='{"zone": 1}'))
    (call,) = unfinished(store).calls
    assert (call.running, call.input_text) == (False, '{"zone": 1}')


def test_a_checkpoint_needs_a_turn_of_its_session(store: Database) -> None:
    append(store, OTHER, session_created())
    for session_id in (OTHER, SessionId("ses_never")):
        with pytest.raises(IllegalEventError):
            checkpoint(store, {PART: "text"}, session_id)


def test_a_checkpoint_stands_when_a_later_member_of_its_group_fails(store: Database) -> None:
    append(store, S, TEXT)

    def fail(transaction: Any) -> None:
        appending(OTHER, session_created())(transaction)
        raise RuntimeError

    def save(transaction: Any) -> None:
        appending(S, INPUT)(transaction)
        transaction.checkpoint(S, ANSWER, {PART: "Hello", CALL: "{"})
        appending(S, ToolInputEnded(assistant_message_id=ANSWER, call_id=CALL, text="{}"))(transaction)

    answers = store.writer.commit([Member(save), Member(fail), Member(appending(OTHER, session_created()))])
    assert [type(answer) is Committed for answer in answers] == [True, False, True]
    found = unfinished(store)
    assert found.fragments == (OpenFragment(ANSWER, PART, "text", "Hello"),)
    assert [call.input_text for call in found.calls] == ["{}"]


# --- retries ------------------------------------------------------------------------------------------------------


def retry(attempt: int) -> RetryScheduled:
    return RetryScheduled(assistant_message_id=ANSWER, attempt=attempt, at=5_000, error=FAILURE)


def attempts(path: Path) -> list[tuple[Any, ...]]:
    return raw(path, "SELECT number, started_seq, ended_seq, outcome IS NULL FROM attempt ORDER BY number")


def test_a_scheduled_retry_ends_the_attempt_and_shows_until_the_next(store: Database, path: Path) -> None:
    append(store, S, retry(2))
    assert attempts(path) == [(1, 4, 5, 1)]
    waiting = turn(store)
    assert waiting is not None
    assert waiting.retry == Retry(attempt=2, at=5_000, error=FAILURE)
    assert unfinished(store).turns == (ANSWER,)
    append(store, S, started(ANSWER, attempt=2))
    assert attempts(path) == [(1, 4, 5, 1), (2, 6, None, 1)]
    again = turn(store)
    assert again is not None
    assert (again.attempt, again.retry) == (2, None)


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        (TurnInterrupted(assistant_message_id=ANSWER, reason="user"), InterruptedOutcome(reason="user")),
        (TurnFailed(assistant_message_id=ANSWER, error=FAILURE), FailedOutcome(error=FAILURE)),
    ],
)
def test_a_turn_may_end_while_it_waits_for_a_retry(store: Database, path: Path, end: Any, outcome: Any) -> None:
    append(store, S, retry(2), end)
    assert attempts(path) == [(1, 4, 5, 0)]
    assert not unfinished(store)
    reader = store.open_reader()
    message = reader.message(S, ANSWER)
    assert isinstance(message, AssistantMessage)
    assert (message.retry, message.completed) == (None, 1_000)
    reader.close()
    assert commit(store, lambda transaction: transaction.prompt_outcome(S, ASKED)) == outcome
    with pytest.raises(IllegalEventError):
        append(store, S, end)
    with pytest.raises(IllegalEventError):
        append(store, S, started(ANSWER, attempt=2))


@pytest.mark.parametrize("then", [retry(2), retry(3), started(ANSWER, attempt=3)])
def test_a_retry_is_scheduled_once_and_in_order(store: Database, then: Any) -> None:
    with pytest.raises(IllegalEventError):
        append(store, S, retry(3))
    append(store, S, retry(2))
    with pytest.raises(IllegalEventError):
        append(store, S, then)


def test_a_turn_in_back_off_is_found_at_start_up(store: Database) -> None:
    append(store, S, retry(2))
    append(store, OTHER, session_created())
    reader = store.open_reader()
    assert reader.unfinished_sessions() == [S]
    reader.close()


def test_a_checkpoint_of_an_earlier_process_vanishes_too(store: Database, path: Path) -> None:
    append(store, S, TEXT)
    checkpoint(store, {PART: "Hello"})
    store.close()
    again = open_store(path)
    append(again, S, TextEnded(assistant_message_id=ANSWER, part_id=PART, text="Hello"))
    again.close()
    assert raw(path, "SELECT count(*) FROM open_fragment") == [(0,)]


def test_a_checkpoint_vanishes_after_a_member_was_undone(store: Database, path: Path) -> None:
    append(store, S, TEXT)
    checkpoint(store, {PART: "Hello"})

    def fail(transaction: Any) -> None:
        transaction.checkpoint(S, ANSWER, {PART: "Hello, you"})
        appending(S, TextEnded(assistant_message_id=ANSWER, part_id=PART, text=""))(transaction)
        raise RuntimeError

    assert [type(answer) is Committed for answer in store.writer.commit([Member(fail)])] == [False]
    assert unfinished(store).fragments == (OpenFragment(ANSWER, PART, "text", "Hello"),)
    append(store, S, TurnInterrupted(assistant_message_id=ANSWER, reason="recovery"))
    assert raw(path, "SELECT count(*) FROM open_fragment") == [(0,)]
