"""Forks: what of a history is copied, under which ids, and that the copy stands alone.

Long, because all forks are made of one history that holds everything.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from steerway.protocol.operations import ListMessages, ListSessions
from steerway.protocol.values import (
    AssistantMessage,
    CacheTokens,
    CallId,
    Event,
    Failure,
    IdSource,
    Message,
    MessageId,
    ModelRef,
    ModelSwitched,
    PartId,
    PromptWithdrawn,
    SessionId,
    SyntheticAdded,
    TextEnded,
    TextStarted,
    Tokens,
    ToolCalled,
    ToolFailed,
    ToolSucceeded,
    TurnCompleted,
    TurnInterrupted,
    UserMessage,
    decode_event,
)
from steerway.protocol.values.errors import ConflictError, MessageNotFoundError, SessionNotFoundError
from steerway.protocol.values.event import PermissionAsked, PermissionReplied, SessionForked, SessionUpdated
from steerway.protocol.values.ids import RequestId
from steerway.protocol.values.tool import ManagedOutput, TextContent
from steerway.storage import removal
from steerway.storage.copying import Fork
from steerway.storage.database import Database, Owner
from steerway.storage.doctor import examine, repair
from steerway.storage.reader import PAGE_ROWS, Reader
from steerway.storage.rebuild import rebuild_check
from steerway.storage.writer import Committed, Member
from support.doctor import assert_healthy
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

S, CHILD, OTHER = (SessionId(f"ses_{name}") for name in ("1", "child", "other"))
FIRST, SECOND, PENDING, GONE, ANSWER, RUNNING, NOTE = (
    MessageId(f"msg_{name}") for name in ("first", "second", "pending", "gone", "answer", "running", "note")
)
PART, CALL, REQUEST = PartId("prt_1"), CallId("call_1"), RequestId("per_1")
TOKENS = Tokens(input=10, output=5, reasoning=2, cache=CacheTokens(read=3, write=1))
OUTPUT = ManagedOutput(path="/outputs/one", bytes=9, lines=1, complete=True)
SWITCHED = ModelRef(provider="demo", id="other")


def completed(message_id: MessageId) -> TurnCompleted:
    return TurnCompleted(assistant_message_id=message_id, finish="stop", tokens=TOKENS, cost=0.5, continues=False)


SETTLED: list[Any] = [
    admitted(GONE),
    PromptWithdrawn(message_id=GONE),
    admitted(FIRST, "What day is it?"),
    promoted(FIRST, "What day is it?"),
    started(ANSWER),
    TextStarted(assistant_message_id=ANSWER, part_id=PART),
    TextEnded(assistant_message_id=ANSWER, part_id=PART, text="I shall look."),
    ToolCalled(assistant_message_id=ANSWER, call_id=CALL, provider_call_id="x", tool="date", input={}, executed=False),
    PermissionAsked(request_id=REQUEST, assistant_message_id=ANSWER, call_id=CALL, action="date", resources=("*",), save=()),
    PermissionReplied(request_id=REQUEST, reply="once"),
    ToolSucceeded(assistant_message_id=ANSWER, call_id=CALL, content=(TextContent(text="Monday"),), managed_outputs=(OUTPUT,)),
    completed(ANSWER),
    ModelSwitched(message_id=NOTE, model=SWITCHED),
    SessionUpdated(title="Days", metadata={"colour": "red"}),
]
IDS = IdSource(lambda: 1, bytes)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Database]:
    database = open_store(tmp_path / "store.db")
    append(database, S, session_created("Untitled", agent="build"), *SETTLED)
    yield database
    database.close()
    assert rebuild_check(tmp_path / "store.db") == []


def fork(database: Database, child: SessionId = CHILD, origin: SessionId = S, **fields: Any) -> Any:
    return copy_all(database, Fork(origin, child, ids=IDS, created=9_000, **fields))


def history(database: Database, session_id: SessionId) -> tuple[Message, ...]:
    reader = database.open_reader()
    try:
        return reader.history(session_id)
    finally:
        reader.close()


def log(database: Database, session_id: SessionId) -> list[Event]:
    reader = database.open_reader()
    try:
        return [decode_event(body) for _, body in reader.events_page(session_id, 0)]
    finally:
        reader.close()


def nameless(value: Any) -> str:
    """The value as JSON without any of our ids."""
    return re.sub(r'"id":"(msg|prt|call)_\w+"', "", msgspec.json.encode(value).decode())


def ids(events: list[Event]) -> set[str]:
    found: set[str] = set()
    for event in events:
        assert event.id is not None
        found.add(event.id)
        found |= {
            value
            for name in ("message_id", "assistant_message_id", "part_id", "call_id", "request_id")
            if (value := getattr(event.data, name, None)) is not None
        }
    return found


def test_a_fork_shows_the_same_history_under_new_ids(store: Database) -> None:
    fork(store)
    assert nameless(history(store, CHILD)) == nameless(history(store, S))
    assert len(history(store, CHILD)) == 3
    assert not ids(log(store, CHILD)) & ids(log(store, S))


def test_a_fork_has_names_and_selections_of_its_origin_and_totals_of_its_own(store: Database) -> None:
    child = fork(store)
    assert (child.title, child.metadata, child.agent, child.model) == ("Days", {"colour": "red"}, "build", SWITCHED)
    assert (child.cost, child.tokens.input, child.parent_id) == (0.0, 0, None)
    assert (child.created, child.updated) == (9_000, 9_000)


def test_a_fork_ends_with_where_it_came_from(store: Database) -> None:
    fork(store)
    events = log(store, CHILD)
    assert events[-1].data == SessionForked(parent_id=S, parent_seq=15)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert {event.session_id for event in events} == {CHILD}


def test_what_waits_in_the_origin_stays_there(store: Database) -> None:
    append(store, S, admitted(PENDING))
    fork(store)
    assert commit(store, lambda transaction: transaction.pending(CHILD)) == []
    assert "session.prompt.withdrawn" not in [event.type for event in log(store, CHILD)]
    assert [event.type for event in log(store, CHILD)].count("session.prompt.admitted") == 1


def test_an_open_turn_is_not_copied(store: Database) -> None:
    append(store, S, admitted(SECOND), promoted(SECOND), started(RUNNING))
    append(store, S, SyntheticAdded(message_id=MessageId("msg_amid"), text="Go on."))
    fork(store)
    assert [type(message) for message in history(store, CHILD)[3:]] == [UserMessage]
    reader = store.open_reader()
    assert not commit(store, lambda transaction: transaction.unfinished(CHILD))
    assert reader.unanswered_sessions() == [S]
    reader.close()
    append(store, S, TurnInterrupted(assistant_message_id=RUNNING, reason="user"))


@pytest.mark.parametrize(("before", "count"), [(FIRST, 0), (ANSWER, 1), (NOTE, 2)])
def test_a_fork_ends_before_the_named_message(store: Database, before: MessageId, count: int) -> None:
    child = fork(store, before=before)
    assert nameless(history(store, CHILD)) == nameless(history(store, S)[:count])
    assert child.model is None
    forked = log(store, CHILD)[-1].data
    assert isinstance(forked, SessionForked)
    assert forked.before == before


def test_a_message_nobody_sees_is_no_boundary(store: Database) -> None:
    append(store, S, admitted(PENDING))
    for before in (PENDING, GONE, MessageId("msg_never")):
        with pytest.raises(MessageNotFoundError):
            fork(store, before=before)
    with pytest.raises(SessionNotFoundError):
        fork(store, origin=SessionId("ses_never"))


def test_a_fork_needs_an_id_of_its_own(store: Database) -> None:
    append(store, OTHER, session_created())
    with pytest.raises(ConflictError):
        fork(store, OTHER)


def test_a_fork_can_be_forked_and_go_on(store: Database) -> None:
    fork(store)
    append(store, CHILD, admitted(SECOND), promoted(SECOND), started(RUNNING), completed(RUNNING))
    again = fork(store, OTHER, CHILD)
    assert nameless(history(store, OTHER)) == nameless(history(store, CHILD))
    assert [event.type for event in log(store, OTHER)].count("session.forked") == 1
    assert again.cost == 0.0
    reader = store.open_reader()
    assert reader.session(CHILD).cost == 0.5
    reader.close()


def test_a_fork_stands_when_a_later_member_of_its_group_fails(store: Database) -> None:
    def fail(transaction: Any) -> None:
        appending(OTHER, session_created())(transaction)
        raise RuntimeError

    copy = Fork(S, CHILD, ids=IDS, created=9_000)
    reader = store.open_reader()
    assert not copy.survey(reader)
    copy.read(reader)
    copy.rename()
    reader.close()
    answers = store.writer.commit([Member(copy.write), Member(fail)])
    assert [type(answer) is Committed for answer in answers] == [True, False]
    assert nameless(history(store, CHILD)) == nameless(history(store, S))


def test_a_failed_call_and_an_unanswered_request_are_history_too(store: Database) -> None:
    failed = ToolFailed(assistant_message_id=RUNNING, call_id=CALL, error=Failure(type="aborted", message="No."))
    called = ToolCalled(assistant_message_id=RUNNING, call_id=CALL, provider_call_id="y", tool="date", input={}, executed=False)
    asked = PermissionAsked(
        request_id=RequestId("per_2"), assistant_message_id=RUNNING, call_id=CALL, action="date", resources=(), save=()
    )
    append(store, S, started(RUNNING), called, asked, failed, completed(RUNNING))
    fork(store)
    last = history(store, CHILD)[-1]
    assert isinstance(last, AssistantMessage)
    assert nameless(last) == nameless(history(store, S)[-1])
    reader = store.open_reader()
    assert [request.session_id for request in reader.permission_requests()] == [S]
    reader.close()


# --- in steps -----------------------------------------------------------------------------------------------------


def lengthen(database: Database, notes: int) -> None:
    for first in range(0, notes, 100):
        append(
            database, S, *(SyntheticAdded(message_id=MessageId(f"msg_n{n}"), text="Note.") for n in range(first, first + 100))
        )


@pytest.fixture
def reader(store: Database) -> Iterator[Reader]:
    lengthen(store, 1_200)
    reader = store.open_reader()
    yield reader
    reader.close()


def begin(database: Database, reader: Reader, copy: Fork) -> None:
    """The first page of a fork."""
    while copy.survey(reader):
        pass
    copy.read(reader)
    copy.rename()
    assert commit(database, copy.write) is None


def everything(path: Path) -> dict[str, list[Any]]:
    tables = [row[0] for row in raw(path, "SELECT name FROM sqlite_schema WHERE type = 'table' AND sql LIKE '%STRICT%'")]
    return {table: raw(path, f"SELECT * FROM {table} ORDER BY 1") for table in tables if table not in ("store", "migration")}


def test_a_long_history_is_copied_a_page_to_a_transaction(store: Database, reader: Reader) -> None:
    copy = Fork(S, CHILD, ids=IDS, created=9_000)
    while copy.survey(reader):
        pass
    told: list[list[str]] = []
    heads: list[int] = []
    child = None
    while child is None:
        copy.read(reader)
        copy.rename()
        (answer,) = store.writer.commit([Member(copy.write)])
        assert isinstance(answer, Committed)
        child = answer.result
        told.append([stored.type for stored in answer.events])
        heads.append(commit(store, lambda transaction: transaction.head(CHILD)))
    assert told == [[], [], ["session.created", "session.forked"]]
    steps = [head - before for before, head in zip([0, *heads], heads, strict=False)]
    assert max(steps) <= PAGE_ROWS
    assert nameless(history(store, CHILD)) == nameless(history(store, S))
    assert child.session.head == heads[-1]


def test_nobody_sees_a_fork_that_is_not_whole(store: Database, reader: Reader) -> None:
    call = CallId("call_2")
    asked = RequestId("per_2")
    append(
        store,
        S,
        started(RUNNING),
        ToolCalled(assistant_message_id=RUNNING, call_id=call, provider_call_id="y", tool="date", input={}, executed=False),
        PermissionAsked(request_id=asked, assistant_message_id=RUNNING, call_id=call, action="x", resources=(), save=()),
        *(TextStarted(assistant_message_id=RUNNING, part_id=PartId(f"prt_t{n}")) for n in range(600)),
        *(TextEnded(assistant_message_id=RUNNING, part_id=PartId(f"prt_t{n}"), text="") for n in range(600)),
        PermissionReplied(request_id=asked, reply="once"),
        ToolSucceeded(assistant_message_id=RUNNING, call_id=call, content=()),
        completed(RUNNING),
    )
    copy = Fork(S, CHILD, ids=IDS, created=9_000)
    begin(store, reader, copy)
    open_requests = 0
    while True:
        assert [session.id for session in reader.sessions_page(ListSessions()).items] == [S]
        assert [session.id for session in reader.sessions_page(ListSessions(search="Days")).items] == [S]
        assert reader.permission_requests() == []
        for look in (reader.session, reader.head, reader.pending):
            with pytest.raises(SessionNotFoundError):
                look(CHILD)
        with pytest.raises(SessionNotFoundError):
            reader.messages_page(ListMessages(session_id=CHILD))
        open_requests += raw(store.path, "SELECT count(*) FROM permission_request WHERE ended_seq IS NULL")[0][0]
        copy.read(reader)
        copy.rename()
        if commit(store, copy.write) is not None:
            break
    assert open_requests > 0
    assert reader.permission_requests() == []
    assert {session.id for session in reader.sessions_page(ListSessions()).items} == {S, CHILD}


def test_what_the_origin_gets_meanwhile_is_not_copied(store: Database, reader: Reader) -> None:
    copy = Fork(S, CHILD, ids=IDS, created=9_000)
    length = len(history(store, S))
    begin(store, reader, copy)
    append(store, S, admitted(SECOND), promoted(SECOND), SessionUpdated(title="Nights"))
    child = copy_all(store, copy)
    assert child.title == "Days"
    assert len(history(store, CHILD)) == length


def test_a_crash_during_a_fork_leaves_nothing(store: Database, reader: Reader, tmp_path: Path) -> None:
    """The process is killed after the first page: the file is as it stands then, and somebody opens it anew."""
    before = everything(store.path)
    begin(store, reader, Fork(S, CHILD, ids=IDS, created=9_000))
    left = tmp_path / "left.db"
    shutil.copyfile(store.path, left)
    shutil.copyfile(f"{store.path}-wal", f"{left}-wal")
    assert [(finding.check, finding.where) for finding in examine(left).findings if finding.check != "settings"] == [
        ("unfinished", CHILD)
    ]
    done = repair(
        left, owner=Owner(id="d", pid=1, host="h"), now_ms=lambda: 1, new_generation=lambda: "gen_d", new_event_id=IDS.event
    )
    assert done == ("deleted 1 fork whose history was not copied to the end",)
    assert everything(left) == before
    assert_healthy(left)


def test_a_fork_is_healthy_at_every_step(store: Database, reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = Fork(S, CHILD, ids=IDS, created=9_000)
    begin(store, reader, copy)
    assert_healthy(store.path)
    monkeypatch.setattr(removal, "PART_ROWS", 100)
    steps = 1
    while commit(store, lambda transaction: transaction.sweep(CHILD)):
        assert_healthy(store.path)
        steps += 1
    assert steps > 3
    assert raw(store.path, "SELECT id FROM session") == [(S,)]


def test_a_fork_whose_origin_goes_is_given_up_and_swept(store: Database, reader: Reader) -> None:
    copy = Fork(S, CHILD, ids=IDS, created=9_000)
    begin(store, reader, copy)
    remove(store, S)
    with pytest.raises(SessionNotFoundError):
        copy.read(reader)
    sweep(store, CHILD)
    left = everything(store.path)
    assert left.pop("tombstone") == [(S,)]
    assert not any(left.values())


def test_sweeping_one_fork_leaves_another_alone(store: Database, reader: Reader) -> None:
    given_up, other = (Fork(S, id, ids=IDS, created=9_000) for id in (CHILD, OTHER))
    begin(store, reader, other)
    begin(store, reader, given_up)
    sweep(store, CHILD)
    assert copy_all(store, other).id == OTHER
    assert nameless(history(store, OTHER)) == nameless(history(store, S))
