"""The doctor: every invariant is broken by hand once and found, and what can be mended is mended.

Long, because the broken stores are one table.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import apsw
import pytest

from steerway.protocol.values import (
    CacheTokens,
    CallId,
    Event,
    EventData,
    EventId,
    Failure,
    MessageId,
    ModelSwitched,
    PartId,
    PromptWithdrawn,
    ReasoningStarted,
    SessionId,
    TextEnded,
    TextStarted,
    Tokens,
    ToolCalled,
    ToolFailed,
    ToolInputStarted,
    TurnCompleted,
    TurnInterrupted,
    encode_event,
)
from steerway.protocol.values.errors import StoreInUseError, StoreUnsuitableError
from steerway.protocol.values.event import PermissionAsked, PermissionReplied, PromptRedelivered, RetryScheduled
from steerway.protocol.values.ids import RequestId
from steerway.storage.database import Owner, open_reader
from steerway.storage.doctor import examine, repair
from steerway.storage.findings import Check, Finding
from support.doctor import assert_healthy
from support.stores import MODEL, admitted, append, commit, open_store, promoted, raw, remove, session_created, started

S, OTHER = SessionId("ses_1"), SessionId("ses_2")
ASKED, WAITING, ANSWER = MessageId("msg_asked"), MessageId("msg_waiting"), MessageId("msg_answer")
PART, CALL, REQUEST = PartId("prt_1"), CallId("call_1"), RequestId("per_1")
FAILURE = Failure(type="aborted", message="No.")
CALLED = ToolCalled(assistant_message_id=ANSWER, call_id=CALL, provider_call_id="x", tool="date", input={}, executed=False)
PERMISSION = PermissionAsked(
    request_id=REQUEST, assistant_message_id=ANSWER, call_id=CALL, action="date", resources=(), save=()
)
SETTLED = ToolFailed(assistant_message_id=ANSWER, call_id=CALL, error=FAILURE)
TOKENS = Tokens(input=1, output=1, reasoning=0, cache=CacheTokens(read=0, write=0))
DONE = TurnCompleted(assistant_message_id=ANSWER, finish="stop", tokens=TOKENS, cost=0.0, continues=False)
STORY: list[EventData] = [
    admitted(ASKED),  # 2
    promoted(ASKED),  # 3
    started(ANSWER),  # 4
    RetryScheduled(assistant_message_id=ANSWER, attempt=2, at=5, error=FAILURE),  # 5
    started(ANSWER, attempt=2),  # 6
    TextStarted(assistant_message_id=ANSWER, part_id=PART),  # 7
    TextEnded(assistant_message_id=ANSWER, part_id=PART, text="I shall ask."),  # 8
    CALLED,  # 9
    PERMISSION,  # 10
    PermissionReplied(request_id=REQUEST, reply="reject"),  # 11
    SETTLED,  # 12
    DONE,  # 13
    admitted(WAITING),  # 14
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "store.db"
    database = open_store(path)
    append(database, S, session_created("A title"), *STORY)
    database.close()
    return path


@pytest.fixture
def path(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(whole, tmp_path / "store.db"))


def put(path: Path, *data: EventData, after: int = 14, session_id: SessionId = S) -> None:
    """Write events into the log behind `after` behind everybody's back: no projector looks at them."""
    connection: Any = apsw.Connection(str(path))
    connection.execute("DELETE FROM event WHERE seq > ?", (after,))
    for seq, each in enumerate(data, after + 1):
        event = Event(
            id=EventId(f"evt_put_{seq}"),
            type=each.type,
            session_id=session_id,
            seq=seq,
            version=each.version,
            created=1_000,
            data=each,
        )
        connection.execute(
            "INSERT INTO event (session, seq, type, created, body) VALUES (1, ?, ?, 1000, ?)",
            (seq, each.type, encode_event(event)),
        )
    connection.execute("UPDATE session SET head = (SELECT max(seq) FROM event)")
    connection.close()


def found(path: Path, check: Check, *, rebuild: bool = False) -> list[Finding]:
    findings = [finding for finding in examine(path, rebuild=rebuild).findings if finding.check == check]
    assert findings
    return findings


def mend(path: Path) -> tuple[str, ...]:
    numbers = itertools.count(1)
    return repair(
        path,
        owner=Owner(id="doctor", pid=os.getpid(), host="here"),
        now_ms=lambda: 9_000,
        new_generation=lambda: "gen_doctor",
        new_event_id=lambda: EventId(f"evt_doctor_{next(numbers)}"),
    )


# --- a sound store ------------------------------------------------------------------------------------------------


def test_a_sound_store_is_left_as_it_is(path: Path) -> None:
    before = path.read_bytes()
    report = examine(path)
    assert (report.findings, report.compared, report.owned) == ((), True, False)
    assert (report.sessions, report.events, report.schema) == (1, 14, 1)
    assert report.file_bytes == sum(table.bytes for table in report.tables) == len(before)
    assert "event" in [table.name for table in report.tables]
    assert path.read_bytes() == before


def test_without_the_rebuild_the_projections_are_not_compared(path: Path) -> None:
    raw(path, "UPDATE session SET title = title || '!' WHERE key = 1")
    assert examine(path, rebuild=False).healthy
    assert found(path, "projections", rebuild=True)


def test_there_has_to_be_a_store(tmp_path: Path) -> None:
    with pytest.raises(StoreUnsuitableError):
        examine(tmp_path / "nothing.db")
    raw(tmp_path / "other.db", "CREATE TABLE other (id)")
    with pytest.raises(StoreUnsuitableError):
        examine(tmp_path / "other.db")


def test_beside_its_owner_what_is_unfinished_is_work(path: Path) -> None:
    database = open_store(path)
    append(database, S, started(MessageId("msg_now")))
    report = examine(path)
    assert (report.owned, report.findings) == (True, ())
    with pytest.raises(StoreInUseError):
        mend(path)
    database.close()
    (finding,) = examine(path).findings
    assert (finding.check, finding.severity, finding.where) == ("unfinished", "warning", S)


def test_an_owner_in_another_process_is_seen_and_not_disturbed(path: Path) -> None:
    program = (
        "import sys, pathlib; sys.path[:0] = sys.argv[2:]; from support.stores import open_store\n"
        "store = open_store(pathlib.Path(sys.argv[1])); print('open', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", program, str(path), *sys.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        assert examine(path).owned
        assert examine(path).owned
        with pytest.raises(StoreInUseError):
            mend(path)
    finally:
        other.kill()
        other.communicate()
    assert not examine(path).owned


def test_the_owner_keeps_its_lock_when_the_doctor_comes_by(path: Path) -> None:
    database = open_store(path)
    assert examine(path).owned
    program = "import sys; from pathlib import Path; from steerway.storage.ownership import is_owned\n"
    program += "print(is_owned(Path(sys.argv[1])))"
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
    database.close()


# --- the file -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("check", "statements"),
    [
        ("settings", "PRAGMA journal_mode = delete"),
        ("references", "UPDATE message_part SET session = 7"),
        ("references", "UPDATE inbox SET session = 7"),
        ("references", "UPDATE attempt SET session = 7"),
        ("references", "DELETE FROM message WHERE kind = 'assistant'"),
        ("sequences", "DELETE FROM event WHERE seq = 8"),
        ("sequences", "DELETE FROM event WHERE seq = 1"),
        ("sequences", "UPDATE session SET head = 15"),
        ("sequences", "DELETE FROM event"),
        ("events", "UPDATE event SET body = X'c1' WHERE seq = 8"),
        ("events", "UPDATE event SET type = 'session.other' WHERE seq = 8"),
        ("events", "UPDATE event SET created = 7 WHERE seq = 8"),
        ("events", "UPDATE session SET id = 'ses_other'"),
        ("text", "UPDATE session SET directory = CAST(X'eda080' AS TEXT)"),
        ("checkpoints", "INSERT INTO open_fragment (message, part, text) SELECT key, 'prt_1', '' FROM message"),
        ("tombstones", "INSERT INTO tombstone VALUES ('ses_1')"),
    ],
)
def test_what_was_changed_by_hand_is_found(path: Path, check: Check, statements: str) -> None:
    raw(path, statements)
    found(path, check)


def test_text_in_an_event_that_is_not_unicode_is_found(path: Path) -> None:
    ((body,),) = raw(path, "SELECT body FROM event WHERE seq = 8")
    spoilt = body.replace(b"shall", b"\xed\xa0\x80al")
    assert spoilt != body
    raw(path, f"UPDATE event SET body = X'{spoilt.hex()}' WHERE seq = 8")
    (finding,) = found(path, "events")
    assert "event 8" in finding.message


@pytest.mark.parametrize("table", ["message_part", "session", "event", "store", "session_title_data"])
def test_a_damaged_page_is_found(path: Path, table: str) -> None:
    ((page,),) = raw(path, f"SELECT pageno FROM dbstat WHERE name = '{table}'")
    with path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\0" * 4096)
    assert found(path, "integrity", rebuild=True)
    assert not examine(path).compared


def test_a_file_that_others_can_read_is_found(path: Path) -> None:
    path.chmod(0o640)
    (finding,) = found(path, "settings")
    assert (finding.severity, finding.advice) == ("warning", "`chmod 600` it.")


def test_a_log_that_grows_without_end_is_found(path: Path) -> None:
    with path.with_name("store.db-wal").open("wb") as file:
        file.truncate(200 * 1024 * 1024)
    assert found(path, "log size")


# --- the log ------------------------------------------------------------------------------------------------------

LATER = MessageId("msg_later")


@pytest.mark.parametrize(
    ("data", "after", "fault"),
    [
        ([session_created()], 14, "creates the session again"),
        ([admitted(ASKED)], 0, "event 1 is session.prompt.admitted"),
        ([admitted(WAITING)], 14, "admits msg_waiting again"),
        ([promoted(ASKED)], 14, "another fate of msg_asked"),
        ([PromptWithdrawn(message_id=ASKED)], 14, "another fate of msg_asked"),
        ([PromptWithdrawn(message_id=LATER)], 14, "a fate of unknown msg_later"),
        ([PromptRedelivered(message_id=ASKED, delivery="queue")], 14, "redelivers msg_asked"),
        ([started(ANSWER)], 14, "starts msg_answer again"),
        ([started(LATER), started(MessageId("msg_more"))], 14, "while msg_later is open"),
        ([started(ANSWER, attempt=3)], 14, "attempt 3 of msg_answer"),
        ([started(LATER), started(LATER, attempt=3)], 14, "is not at 2"),
        ([DONE], 14, "ends msg_answer again"),
        ([TurnInterrupted(assistant_message_id=LATER, reason="user")], 14, "ends msg_later, which never started"),
        ([STORY[3]], 14, "a second end of attempt 1"),
        ([STORY[3]], 5, "a second end of attempt 1"),
        ([STORY[5]], 7, "starts prt_1 again"),
        ([STORY[5]], 14, "not the open turn"),
        ([ReasoningStarted(assistant_message_id=LATER, part_id=PART)], 14, "not the open turn"),
        ([STORY[6]], 8, "ends prt_1, which is not open"),
        ([CALLED], 9, "makes call call_1 running, which is running"),
        ([ToolInputStarted(assistant_message_id=ANSWER, call_id=CALL, tool="x")], 9, "which is running"),
        ([SETTLED], 12, "makes call call_1 settled, which is settled"),
        ([SETTLED], 8, "makes call call_1 settled, which is unknown"),
        ([SETTLED], 10, "settles call call_1 while per_1 is open"),
        ([DONE], 11, "ends msg_answer before call_1"),
        ([DONE], 7, "ends msg_answer before prt_1"),
        ([PERMISSION], 8, "asks for call call_1, which does not run"),
        ([PERMISSION], 10, "asks per_1 again"),
        ([STORY[9]], 11, "ends per_1, which is not open"),
        ([STORY[9]], 9, "ends per_1, which is not open"),
    ],
)
def test_a_log_that_breaks_a_rule_is_found(path: Path, data: list[EventData], after: int, fault: str) -> None:
    put(path, *data, after=after)
    assert any(fault in finding.message for finding in found(path, "log")), examine(path).findings


@pytest.mark.parametrize(
    ("after", "left"),
    [
        (4, "turn msg_answer has no terminal event"),
        (5, "turn msg_answer has no terminal event"),
        (7, "fragment prt_1 has no end"),
        (9, "call call_1 has no settlement"),
        (10, "request per_1 has no end"),
    ],
)
def test_what_is_unfinished_without_a_process_is_found(path: Path, after: int, left: str) -> None:
    put(path, after=after)
    (finding,) = found(path, "unfinished")
    assert left in finding.message


def test_a_log_that_cannot_be_replayed_is_found(path: Path) -> None:
    switched = ModelSwitched(message_id=ASKED, model=MODEL)
    put(path, switched)  # in order by itself, but the id is another message's
    assert "cannot be replayed" in found(path, "log", rebuild=True)[0].message


# --- projections --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statements",
    [
        "UPDATE session SET title = 'Other'",
        "UPDATE session SET unanswered_seq = 3",
        "UPDATE inbox SET delivery = 'queue'",
        "DELETE FROM inbox WHERE id = 'msg_waiting'",
        "UPDATE message SET seq = 9 WHERE kind = 'assistant'",
        "UPDATE message SET open = 1",
        "UPDATE message_part SET open = 1",
        "DELETE FROM message_part",
        "UPDATE attempt SET ended_seq = NULL WHERE number = 2",
        "UPDATE permission_request SET reply = NULL, ended_seq = NULL",
        "INSERT INTO managed_output VALUES (1, '/outputs/one')",
    ],
)
def test_a_projection_that_differs_is_found_and_mended(path: Path, statements: str) -> None:
    raw(path, statements)
    assert found(path, "projections", rebuild=True)
    assert mend(path) == ("built the projections anew from the log",)
    assert_healthy(path)


def test_the_index_of_titles_is_mended_too(path: Path) -> None:
    raw(path, "INSERT INTO session_title (session_title) VALUES ('delete-all')")
    assert examine(path).findings
    raw(path, "UPDATE session SET title = 'Other'")
    mend(path)
    assert_healthy(path)
    assert raw(path, "SELECT rowid FROM session_title WHERE session_title MATCH 'title'") == [(1,)]


def test_mending_keeps_what_is_no_projection(path: Path) -> None:
    database = open_store(path)
    append(database, S, started(MessageId("msg_now")), TextStarted(assistant_message_id=MessageId("msg_now"), part_id=PART))

    def keep(transaction: Any) -> None:
        transaction.checkpoint(S, MessageId("msg_now"), {PART: "So far"})
        transaction.save_permission(id="psv_1", directory="/work", action="x", resource="*", created=1)

    append(database, OTHER, session_created())
    commit(database, keep)
    remove(database, OTHER)
    database.close()
    raw(path, "UPDATE session SET title = 'Other'")
    assert mend(path) == ("built the projections anew from the log", f"settled session {S}")
    assert_healthy(path)
    reader = open_reader(path)
    assert reader.saved_permissions()[0].id == "psv_1"
    assert b"So far" in reader.events_page(S, 0)[-2][1]
    reader.close()
    assert raw(path, "SELECT id FROM tombstone") == [(OTHER,)]


def test_a_log_that_contradicts_itself_is_not_rebuilt(path: Path) -> None:
    put(path, ModelSwitched(message_id=ASKED, model=MODEL))
    raw(path, "UPDATE message_part SET session = 7")
    before = raw(path, "SELECT * FROM message")
    with pytest.raises(Exception, match="taken"):
        mend(path)
    assert raw(path, "SELECT * FROM message") == before


# --- unfinished work ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", range(3, 14))
def test_a_turn_that_stopped_anywhere_is_settled(tmp_path: Path, count: int) -> None:
    path = tmp_path / "store.db"
    database = open_store(path)
    append(database, S, session_created(), *STORY[:count])
    if count >= 6:
        commit(database, lambda transaction: transaction.checkpoint(S, ANSWER, {PART: "I sh"}))
    database.close()
    ended = count >= 12
    assert examine(path).healthy == ended
    assert mend(path) == (() if ended else (f"settled session {S}",))
    assert_healthy(path)
    assert mend(path) == ()


def test_a_stale_checkpoint_is_dropped(path: Path) -> None:
    raw(path, "INSERT INTO open_fragment (message, part, text) SELECT key, 'prt_1', '' FROM message WHERE kind = 'assistant'")
    assert mend(path) == ("dropped 1 stale checkpoint",)
    assert_healthy(path)


def test_findings_of_one_kind_are_not_repeated_without_end(path: Path) -> None:
    put(path, *[PromptWithdrawn(message_id=MessageId(f"msg_{number}")) for number in range(100)])
    assert len(found(path, "log")) == 20
