"""Removing sessions: what goes, what stays, and that an id is never used again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from steerway.protocol.operations import ListSessions
from steerway.protocol.values import (
    CallId,
    IdSource,
    MessageId,
    PartId,
    PromptWithdrawn,
    SessionId,
    SyntheticAdded,
    TextStarted,
    ToolCalled,
    ToolSucceeded,
    TurnInterrupted,
)
from steerway.protocol.values.errors import ConflictError, SessionNotFoundError
from steerway.protocol.values.event import PermissionAsked, QuestionAsked
from steerway.protocol.values.ids import RequestId
from steerway.protocol.values.tool import ManagedOutput
from steerway.storage import rebuilding, removal
from steerway.storage.copying import Fork
from steerway.storage.database import Database
from steerway.storage.doctor import examine
from steerway.storage.rebuild import rebuild_check
from steerway.storage.removal import grave
from steerway.storage.writer import Committed, Member
from support.stores import (
    admitted,
    append,
    appending,
    commit,
    copy_all,
    open_store,
    promoted,
    raw,
    remove,
    session_created,
    started,
    sweep,
)

S, CHILD, GRANDCHILD, OTHER, FORK = (SessionId(f"ses_{name}") for name in ("1", "child", "grandchild", "other", "fork"))
TABLES = (
    "session",
    "event",
    "inbox",
    "message",
    "message_part",
    "attempt",
    "permission_request",
    "question_request",
    "managed_output",
    "told_path",
    "open_fragment",
)


def busy(session_id: SessionId) -> list[Any]:
    """Something for every table."""
    prompt, gone, waiting, answer = (MessageId(f"msg_{session_id}_{number}") for number in range(4))
    part, call, over = PartId("prt_1"), CallId("call_1"), CallId("call_2")
    return [
        admitted(prompt),
        admitted(gone),
        PromptWithdrawn(message_id=gone),
        promoted(prompt),
        admitted(waiting),
        started(answer),
        TextStarted(assistant_message_id=answer, part_id=part),
        *(
            ToolCalled(assistant_message_id=answer, call_id=id, provider_call_id="", tool="x", input={}, executed=False)
            for id in (call, over)
        ),
        ToolSucceeded(
            assistant_message_id=answer,
            call_id=over,
            content=(),
            managed_outputs=(ManagedOutput(path=f"/outputs/{session_id}", bytes=1, lines=1, complete=True),),
        ),
        PermissionAsked(
            request_id=RequestId(f"per_{session_id}"),
            assistant_message_id=answer,
            call_id=call,
            action="x",
            resources=(),
            save=(),
        ),
        QuestionAsked(request_id=RequestId(f"que_{session_id}"), assistant_message_id=answer, call_id=call, questions=()),
        SyntheticAdded(message_id=MessageId(f"msg_{session_id}_4"), text="Near.", paths=("/somewhere/AGENTS.md",)),
    ]


def fill(database: Database, session_id: SessionId, **fields: Any) -> None:
    append(database, session_id, session_created(f"Title of {session_id}", **fields), *busy(session_id))
    answer = MessageId(f"msg_{session_id}_3")
    commit(database, lambda transaction: transaction.checkpoint(session_id, answer, {PartId("prt_1"): "so far"}))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[Database]:
    database = open_store(path)
    yield database
    database.close()
    assert rebuild_check(path) == []
    assert raw(path, "PRAGMA foreign_key_check") == []
    assert raw(path, "PRAGMA integrity_check") == [("ok",)]


def rows(path: Path) -> dict[str, list[Any]]:
    return {table: raw(path, f"SELECT * FROM {table} ORDER BY 1") for table in TABLES}


def test_nothing_is_left_of_a_session_but_its_id(store: Database, path: Path) -> None:
    fill(store, OTHER)
    before = rows(path)
    assert all(before.values())
    fill(store, S)
    assert rows(path) != before
    assert remove(store, S) == (S,)
    assert rows(path) == before
    assert raw(path, "SELECT id FROM tombstone") == [(S,)]


def test_descendants_go_along_children_first(store: Database, path: Path) -> None:
    fill(store, S)
    fill(store, CHILD, parent_id=S)
    fill(store, GRANDCHILD, parent_id=CHILD)
    fill(store, OTHER)
    assert remove(store, S) == (GRANDCHILD, CHILD, S)
    assert raw(path, "SELECT id FROM session") == [(OTHER,)]


def test_a_child_goes_without_its_parent(store: Database, path: Path) -> None:
    fill(store, S)
    fill(store, CHILD, parent_id=S)
    assert remove(store, CHILD) == (CHILD,)
    assert raw(path, "SELECT id FROM session") == [(S,)]


def test_a_removed_id_is_never_used_again(store: Database) -> None:
    fill(store, S)
    remove(store, S)
    with pytest.raises(ConflictError):
        append(store, S, session_created())
    with pytest.raises(SessionNotFoundError):
        remove(store, S)
    with pytest.raises(SessionNotFoundError):
        append(store, S, admitted(MessageId("msg_new")))
    reader = store.open_reader()
    with pytest.raises(SessionNotFoundError):
        reader.events_page(S, 0)
    assert reader.sessions_page(ListSessions(search="Title of")).items == ()
    reader.close()


def test_the_store_goes_on_after_a_removal(store: Database) -> None:
    fill(store, S)
    remove(store, S)
    fill(store, OTHER)
    assert commit(store, lambda transaction: transaction.head(OTHER)) == 14
    assert commit(store, lambda transaction: transaction.message_owner(MessageId("msg_ses_1_0"))) is None


@pytest.mark.parametrize("behind", [0, 1, 2])
def test_a_removal_stands_or_falls_with_its_member_alone(store: Database, path: Path, behind: int) -> None:
    fill(store, S)
    fill(store, OTHER)

    def fail(transaction: Any) -> None:
        transaction.remove(OTHER)
        raise RuntimeError

    members = [
        Member(appending(S, admitted(MessageId("msg_last")))),
        Member(lambda transaction: transaction.remove(S)),
        Member(appending(FORK, session_created())),
    ]
    members.insert(behind, Member(fail))
    answers = store.writer.commit(members)
    assert [type(answer) is Committed for answer in answers].count(False) == 1
    assert raw(path, "SELECT id FROM session WHERE hidden = 0 ORDER BY id") == [(FORK,), (OTHER,)]
    assert raw(path, "SELECT id FROM tombstone") == [(S,)]


def test_events_of_a_session_removed_in_the_same_member_are_not_kept(store: Database, path: Path) -> None:
    fill(store, S)

    def work(transaction: Any) -> Any:
        appending(S, admitted(MessageId("msg_last")))(transaction)
        return transaction.remove(S)

    assert commit(store, work) == (S,)
    sweep(store, grave(S))
    assert raw(path, "SELECT count(*) FROM event") == [(0,)]


# --- in parts -----------------------------------------------------------------------------------------------------


def test_a_removal_is_final_and_healthy_before_the_first_row_goes_and_behind_every_part(
    store: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "PART_ROWS", 5)
    fill(store, OTHER)
    before = rows(path)
    fill(store, S)
    fill(store, CHILD, parent_id=S)
    reader = store.open_reader()
    assert commit(store, lambda transaction: transaction.remove(S)) == (CHILD, S)
    parts = 0
    for name in (grave(CHILD), grave(S)):
        more = True
        while more:
            for look in (reader.session, reader.head, reader.family, reader.pending):
                with pytest.raises(SessionNotFoundError):
                    look(S)
            with pytest.raises(ConflictError):
                append(store, S, session_created())
            assert [one.id for one in reader.sessions_page(ListSessions(search="Title of")).items] == [OTHER]
            assert {one.session_id for one in reader.permission_requests()} == {OTHER}
            assert reader.find_request(RequestId(f"per_{S}")) is None
            assert commit(store, lambda transaction: transaction.find_item(MessageId(f"msg_{S}_0"))) is None
            assert (reader.unfinished_sessions(), reader.unanswered_sessions()) == ([OTHER], [OTHER])
            assert_sound(path)
            more = commit(store, lambda transaction: transaction.sweep(name))  # noqa: B023 - committed here
            parts += 1
    assert parts > 6
    assert rows(path) == before
    reader.close()


def assert_sound(path: Path) -> None:
    report = examine(path)
    assert report.compared
    assert report.healthy, report.findings


def test_a_crash_during_a_removal_is_swept_by_whoever_opens_the_store(
    store: Database, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "PART_ROWS", 5)
    fill(store, S)
    commit(store, lambda transaction: transaction.remove(S))
    more = True
    while more:
        left = tmp_path / "left.db"
        shutil.copyfile(path, left)
        shutil.copyfile(f"{path}-wal", f"{left}-wal")
        assert ("unfinished", grave(S)) in [(finding.check, finding.where) for finding in examine(left).findings]
        opened = open_store(left)
        assert opened.swept == (removal.Hidden(grave(S), removed=True),)
        with pytest.raises(ConflictError):
            append(opened, S, session_created())
        opened.close()
        assert_sound(left)
        assert not any(rows(left).values())
        more = commit(store, lambda transaction: transaction.sweep(grave(S)))


def test_building_the_projections_anew_finishes_a_removal(store: Database, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "PART_ROWS", 20)
    fill(store, OTHER)
    before = rows(path)
    fill(store, S)
    commit(store, lambda transaction: transaction.remove(S))
    while commit(store, lambda transaction: transaction.sweep(grave(S))) and raw(path, "SELECT count(*) FROM event") == [(28,)]:
        pass
    assert raw(path, "SELECT count(*) FROM event") < [(28,)]
    commit(store, lambda transaction: transaction.write(rebuilding.rebuild))
    assert raw(path, "SELECT id, body FROM event") == [(row[0], row[-1]) for row in before["event"]]
    assert_sound(path)


def test_a_part_ends_behind_what_makes_it_large(store: Database, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "PART_BYTES", 1_000)
    large = [SyntheticAdded(message_id=MessageId(f"msg_{number}"), text="x" * 2_000) for number in range(3)]
    append(store, S, session_created(), *large)
    commit(store, lambda transaction: transaction.remove(S))
    assert sweep(store, grave(S)) == 7
    assert raw(path, "SELECT count(*) FROM event") == [(0,)]


# --- managed files ------------------------------------------------------------------------------------------------


def test_files_go_with_the_last_session_that_names_them(store: Database) -> None:
    answer = MessageId("msg_answer")
    call = CallId("call_1")
    output = ManagedOutput(path="/outputs/shared", bytes=1, lines=1, complete=True)
    called = ToolCalled(assistant_message_id=answer, call_id=call, provider_call_id="", tool="x", input={}, executed=False)
    succeeded = ToolSucceeded(assistant_message_id=answer, call_id=call, content=(), managed_outputs=(output, output))
    append(store, S, session_created(), started(answer), called, succeeded)
    fill(store, CHILD, parent_id=S)

    def files(session_id: SessionId) -> tuple[str, ...]:
        return commit(store, lambda transaction: transaction.managed_outputs(session_id))

    assert files(S) == ("/outputs/ses_child", "/outputs/shared")
    append(store, S, TurnInterrupted(assistant_message_id=answer, reason="user"))
    ids = IdSource(lambda: 1, bytes)
    copy_all(store, Fork(S, FORK, ids=ids, created=1))
    assert files(S) == ("/outputs/ses_child",)
    remove(store, S)
    assert files(FORK) == ("/outputs/shared",)


def test_a_file_goes_also_where_another_removal_that_named_it_is_not_swept_yet(store: Database) -> None:
    answer, call = MessageId("msg_answer"), CallId("call_1")
    output = ManagedOutput(path="/outputs/shared", bytes=1, lines=1, complete=True)
    called = ToolCalled(assistant_message_id=answer, call_id=call, provider_call_id="", tool="x", input={}, executed=False)
    succeeded = ToolSucceeded(assistant_message_id=answer, call_id=call, content=(), managed_outputs=(output,))
    append(
        store,
        S,
        session_created(),
        started(answer),
        called,
        succeeded,
        TurnInterrupted(assistant_message_id=answer, reason="user"),
    )
    copy_all(store, Fork(S, FORK, ids=IdSource(lambda: 1, bytes), created=1))
    commit(store, lambda transaction: transaction.remove(S))
    assert commit(store, lambda transaction: transaction.managed_outputs(FORK)) == ("/outputs/shared",)
    sweep(store, grave(S))
