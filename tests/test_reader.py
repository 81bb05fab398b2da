"""Reading: pages and their cursors, history, the events of a session, and what start-up looks for.

Long, because all readings share two stores that are filled once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steerway.protocol.operations import ListMessages, ListSessions
from steerway.protocol.values import (
    AssistantMessage,
    CacheTokens,
    CompletedOutcome,
    MessageId,
    ModelSwitched,
    Order,
    Page,
    PageCursor,
    PartId,
    Session,
    SessionId,
    SyntheticAdded,
    TextEnded,
    TextPart,
    TextStarted,
    Tokens,
    TurnCompleted,
    TurnInterrupted,
)
from steerway.protocol.values.errors import InvalidCursorError, InvalidRequestError, SessionNotFoundError
from steerway.protocol.values.ids import RequestId
from steerway.storage import inbox, leftovers
from steerway.storage.attempts import TurnRecord
from steerway.storage.database import Database
from steerway.storage.journal import Transaction
from steerway.storage.reader import Reader
from support.stores import MODEL, admitted, append, commit, event, open_store, promoted, raw, session_created, started

S = SessionId("ses_1")
OTHER = SessionId("ses_2")
NONE = SessionId("ses_none")
ANSWER = MessageId("msg_answer")
TOKENS = Tokens(input=1, output=1, reasoning=0, cache=CacheTokens(read=0, write=0))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """Sessions 0 to 12, three to a millisecond; session 0 has twenty messages, session 1 none."""
    database = open_store(tmp_path_factory.mktemp("reader") / "store.db")

    def work(transaction: Transaction) -> None:
        for number in range(13):
            data = session_created(
                f"Title {number} of 100%_x" if number % 2 else f"Größe {number}",
                directory="/even" if number % 2 == 0 else "/odd",
                parent_id=SessionId("ses_0") if number in (3, 4) else None,
            )
            transaction.append(SessionId(f"ses_{number}"), [event(data, created=1_000 + number // 3)])
        first = SessionId("ses_0")
        for number in range(10):
            answer, part = MessageId(f"msg_answer{number}"), PartId(f"prt_{number}")
            data = [
                SyntheticAdded(message_id=MessageId(f"msg_note{number}"), text=f"Note {number}"),
                started(answer),
                TextStarted(assistant_message_id=answer, part_id=part),
                TextEnded(assistant_message_id=answer, part_id=part, text=f"Answer {number}"),
            ]
            transaction.append(first, [event(each) for each in data])

    commit(database, work)
    yield database
    database.close()


@pytest.fixture(scope="module")
def reader(store: Database) -> Iterator[Reader]:
    reader = store.open_reader()
    yield reader
    reader.close()


def all_sessions(order: Order) -> list[str]:
    ordered = sorted(range(13), key=lambda number: (number // 3, f"ses_{number}"), reverse=order == "desc")
    return [f"ses_{number}" for number in ordered]


def walk(fetch: Callable[[PageCursor | None], Page[Any]], link: str, start: PageCursor | None = None) -> list[Page[Any]]:
    """All pages that follow one kind of link."""
    pages = [fetch(start)]
    while (cursor := cast("PageCursor | None", getattr(pages[-1], link))) is not None:
        pages.append(fetch(cursor))
    return pages


def ids(pages: list[Page[Any]]) -> list[str]:
    return [item.id for page in pages for item in page.items]


# --- pages of sessions --------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(limit=st.integers(1, 14), order=st.sampled_from(["asc", "desc"]))
def test_pages_cover_all_once_in_order_and_lead_back(reader: Reader, limit: int, order: Order) -> None:
    def fetch(cursor: PageCursor | None) -> Page[Session]:
        return reader.sessions_page(ListSessions(order=order, limit=limit) if cursor is None else ListSessions(cursor=cursor))

    forwards = walk(fetch, "next")
    assert ids(forwards) == all_sessions(order)
    assert len(forwards) == -(-13 // limit)
    assert forwards[0].previous is None
    assert all(page.previous is not None for page in forwards[1:])
    if len(forwards) > 1:
        backwards = walk(fetch, "previous", forwards[-1].previous)
        assert ids(backwards[::-1]) == all_sessions(order)[: -len(forwards[-1].items)]
        assert [page.items for page in backwards[::-1]] == [page.items for page in forwards[:-1]]
        assert all(page.next is not None for page in backwards)


def test_without_a_wish_the_newest_come_first_fifty_at_a_time(reader: Reader) -> None:
    page = reader.sessions_page(ListSessions())
    assert [item.id for item in page.items] == all_sessions("desc")
    assert (page.previous, page.next) == (None, None)


def test_an_exactly_full_page_has_no_link(reader: Reader) -> None:
    page = reader.sessions_page(ListSessions(limit=13))
    assert len(page.items) == 13
    assert page.next is None


@pytest.mark.parametrize("limit", [0, 201, -1])
def test_a_limit_out_of_bounds_names_the_field(reader: Reader, limit: int) -> None:
    for fetch in (
        lambda: reader.sessions_page(ListSessions(limit=limit)),
        lambda: reader.messages_page(ListMessages(session_id=S, limit=limit)),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            fetch()
        assert caught.value.fields["field"] == "limit"


def test_filters_go_along_with_the_cursor(reader: Reader) -> None:
    def fetch(cursor: PageCursor | None) -> Page[Session]:
        first = ListSessions(directory="/even", order="asc", limit=2)
        return reader.sessions_page(first if cursor is None else ListSessions(cursor=cursor))

    assert sorted(ids(walk(fetch, "next"))) == sorted(f"ses_{number}" for number in range(0, 13, 2))


def test_children_are_found_by_their_parent(reader: Reader) -> None:
    page = reader.sessions_page(ListSessions(parent_id=SessionId("ses_0"), order="asc"))
    assert [item.id for item in page.items] == ["ses_3", "ses_4"]
    assert reader.sessions_page(ListSessions(parent_id=NONE)).items == ()


@pytest.mark.parametrize(
    ("search", "found"),
    [
        ("Title 1 ", [1]),
        ("title 11", [11]),
        ("GRÖSS", []),
        ("größe 1", [10, 12]),
        ("0%_x", list(range(1, 13, 2))),
        ("%", list(range(1, 13, 2))),
        ("_", list(range(1, 13, 2))),
        ("\\", []),
        ("1", [1, 3, 5, 7, 9, 10, 11, 12]),
        ('"quoted" OR NOT', []),
        ("a\0b", []),
    ],
)
def test_search_is_for_a_part_of_the_title(reader: Reader, search: str, found: list[int]) -> None:
    page = reader.sessions_page(ListSessions(search=search))
    assert sorted(item.id for item in page.items) == sorted(f"ses_{number}" for number in found)


def test_a_cursor_stands_alone(reader: Reader) -> None:
    cursor = reader.sessions_page(ListSessions(limit=1)).next
    assert cursor is not None
    for query in (
        ListSessions(cursor=cursor, order="asc"),
        ListSessions(cursor=cursor, limit=1),
        ListSessions(cursor=cursor, directory="/even"),
        ListSessions(cursor=cursor, search="x"),
    ):
        with pytest.raises(InvalidCursorError):
            reader.sessions_page(query)


# --- pages of messages --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 3, 19, 20, 21])
def test_message_pages_cover_all_once_in_order_and_lead_back(reader: Reader, limit: int, order: Order) -> None:
    session_id = SessionId("ses_0")

    def fetch(cursor: PageCursor | None) -> Page[Any]:
        first = ListMessages(session_id=session_id, order=order, limit=limit)
        return reader.messages_page(first if cursor is None else ListMessages(session_id=session_id, cursor=cursor))

    whole = list(reader.history(session_id))
    forwards = walk(fetch, "next")
    expected = whole if order == "asc" else whole[::-1]
    assert [item for page in forwards for item in page.items] == expected
    if len(forwards) > 1:
        backwards = walk(fetch, "previous", forwards[-1].previous)
        assert [page.items for page in backwards[::-1]] == [page.items for page in forwards[:-1]]


def test_a_message_cursor_belongs_to_its_session(reader: Reader) -> None:
    cursor = reader.messages_page(ListMessages(session_id=SessionId("ses_0"), limit=1)).next
    assert cursor is not None
    for query in (
        ListMessages(session_id=S, cursor=cursor),
        ListMessages(session_id=SessionId("ses_0"), cursor=cursor, order="asc"),
        ListMessages(session_id=SessionId("ses_0"), cursor=cursor, limit=1),
        ListMessages(session_id=SessionId("ses_0"), cursor=PageCursor("nonsense")),
    ):
        with pytest.raises(InvalidCursorError):
            reader.messages_page(query)


def test_cursors_of_another_kind_are_refused(reader: Reader) -> None:
    of_messages = reader.messages_page(ListMessages(session_id=SessionId("ses_0"), limit=1)).next
    of_sessions = reader.sessions_page(ListSessions(limit=1)).next
    with pytest.raises(InvalidCursorError):
        reader.sessions_page(ListSessions(cursor=of_messages))
    with pytest.raises(InvalidCursorError):
        reader.messages_page(ListMessages(session_id=SessionId("ses_0"), cursor=of_sessions))


def test_a_session_without_messages_has_an_empty_page(reader: Reader) -> None:
    assert reader.messages_page(ListMessages(session_id=S)) == Page(items=())


def test_an_unknown_session_is_not_found(reader: Reader) -> None:
    readings: list[Callable[[], object]] = [
        lambda: reader.session(NONE),
        lambda: reader.record(NONE),
        lambda: reader.head(NONE),
        lambda: reader.pending(NONE),
        lambda: reader.history(NONE),
        lambda: reader.events_page(NONE, 0),
        lambda: reader.messages_page(ListMessages(session_id=NONE)),
    ]
    for reading in readings:
        with pytest.raises(SessionNotFoundError):
            reading()


# --- history and events -------------------------------------------------------------------------------------------


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[tuple[Database, Reader]]:
    database = open_store(tmp_path / "store.db")
    reader = database.open_reader()
    append(database, S, session_created())
    yield database, reader
    reader.close()
    database.close()


def test_history_counts_up_to_a_sequence(fresh: tuple[Database, Reader]) -> None:
    database, reader = fresh
    append(database, S, *(SyntheticAdded(message_id=MessageId(f"msg_{number}"), text="x") for number in range(5)))
    assert [message.id for message in reader.history(S, upto=3)] == ["msg_0", "msg_1"]
    assert len(reader.history(S)) == 5
    assert reader.history(S, upto=1) == ()


def test_history_is_whole_with_the_content_of_every_turn(reader: Reader) -> None:
    answers = [message for message in reader.history(SessionId("ses_0")) if isinstance(message, AssistantMessage)]
    expected = [(TextPart(id=PartId(f"prt_{number}"), text=f"Answer {number}"),) for number in range(10)]
    assert [message.content for message in answers] == expected


def test_a_message_of_an_unknown_kind_is_skipped(fresh: tuple[Database, Reader]) -> None:
    database, reader = fresh
    append(database, S, *(SyntheticAdded(message_id=MessageId(f"msg_{number}"), text="x") for number in range(3)))
    raw(database.path, "UPDATE message SET kind = 'hologram', body = x'c1' WHERE id = 'msg_1'")
    assert [message.id for message in reader.history(S)] == ["msg_0", "msg_2"]
    page = reader.messages_page(ListMessages(session_id=S, limit=1, order="asc"))
    assert page.next is not None
    following = reader.messages_page(ListMessages(session_id=S, cursor=page.next))
    assert [message.id for message in following.items] == ["msg_2"]
    assert following.next is None


def test_events_come_in_pages_behind_a_sequence(fresh: tuple[Database, Reader]) -> None:
    database, reader = fresh
    append(database, S, *(SyntheticAdded(message_id=MessageId(f"msg_{number}"), text="x") for number in range(600)))
    append(database, OTHER, session_created())
    seqs: list[int] = []
    for _ in itertools.count():
        page = reader.events_page(S, seqs[-1] if seqs else 0)
        if not page:
            break
        assert len(page) <= 512
        seqs += [seq for seq, _ in page]
    assert seqs == list(range(1, 602))
    assert [seq for seq, _ in reader.events_page(S, 5, limit=2)] == [6, 7]


def test_a_page_of_large_events_ends_with_the_one_that_fills_it(fresh: tuple[Database, Reader]) -> None:
    database, reader = fresh
    append(database, S, *(SyntheticAdded(message_id=MessageId(f"msg_{number}"), text="x" * 400_000) for number in range(5)))
    assert [seq for seq, _ in reader.events_page(S, 1)] == [2, 3, 4]
    assert [seq for seq, _ in reader.events_page(S, 4)] == [5, 6]
    assert [seq for seq, _ in reader.events_page(S, 1, size=1)] == [2]


def test_no_read_transaction_outlives_a_call(fresh: tuple[Database, Reader]) -> None:
    database, reader = fresh
    append(database, S, admitted(MessageId("msg_1")))
    queries: list[Callable[[], object]] = [
        lambda: reader.events_page(S, 0, limit=1),
        lambda: reader.events_page(S, 0, size=1),
        lambda: reader.sessions_page(ListSessions(limit=1)),
        lambda: reader.history(S),
        lambda: reader.messages_page(ListMessages(session_id=S, cursor=PageCursor("nonsense"))),
        lambda: reader.record(NONE),
    ]
    for number, query in enumerate(queries):
        append(database, S, SyntheticAdded(message_id=MessageId(f"msg_note{number}"), text="x"))
        try:
            query()
        except (InvalidCursorError, SessionNotFoundError):
            pass
        database.set_busy_timeout(0)
        assert database.writer.checkpoint()


def test_a_reader_writes_nothing(fresh: tuple[Database, Reader]) -> None:
    _, reader = fresh
    with pytest.raises(Exception, match="readonly"):
        raw_cursor(reader).execute("DELETE FROM event")


def raw_cursor(reader: Reader) -> Any:
    return vars(reader)["_cursor"]


# --- turns and recovery -------------------------------------------------------------------------------------------


def test_the_last_turn_is_the_one_that_started_last(fresh: tuple[Database, Reader]) -> None:
    database, reader = fresh
    assert reader.last_turn(S) is None
    append(database, S, started(ANSWER), started(ANSWER, attempt=2))
    assert reader.last_turn(S) == TurnRecord(ANSWER, 2, 3, None, None)
    end = TurnCompleted(assistant_message_id=ANSWER, finish="stop", tokens=TOKENS, cost=0.0, continues=False)
    append(database, S, end)
    assert reader.last_turn(S) == TurnRecord(ANSWER, 2, 3, 4, CompletedOutcome())
    append(database, S, started(MessageId("msg_more")))
    assert reader.last_turn(S) == TurnRecord(MessageId("msg_more"), 1, 5, None, None)


def test_start_up_finds_only_what_is_unfinished_or_unanswered(fresh: tuple[Database, Reader]) -> None:
    database, reader = fresh
    append(database, OTHER, session_created(), admitted(MessageId("msg_waits")))
    assert (reader.unfinished_sessions(), reader.unanswered_sessions()) == ([], [])
    append(database, S, admitted(MessageId("msg_1")), promoted(MessageId("msg_1")), started(ANSWER))
    assert (reader.unfinished_sessions(), reader.unanswered_sessions()) == ([S], [S])
    append(database, S, TurnInterrupted(assistant_message_id=ANSWER, reason="recovery"))
    assert (reader.unfinished_sessions(), reader.unanswered_sessions()) == ([], [S])


def plan(reader: Reader, monkeypatch: pytest.MonkeyPatch, call: Callable[[Reader], object]) -> str:
    """How SQLite looks for what `call` asks."""
    statements: list[str] = []

    class Recording:
        def __init__(self, cursor: Any) -> None:
            self.cursor = cursor

        def execute(self, sql: str, bindings: tuple[Any, ...] = ()) -> Any:
            if sql.startswith(("SELECT", "WITH")):
                steps = self.cursor.execute(f"EXPLAIN QUERY PLAN {sql}", bindings).fetchall()
                statements.extend(row[3] for row in steps)
            return self.cursor.execute(sql, bindings)

    monkeypatch.setattr(reader, "_cursor", Recording(raw_cursor(reader)))
    call(reader)
    monkeypatch.undo()
    return "\n".join(statements)


READS: list[Callable[[Reader], object]] = [
    lambda reader: reader.unfinished_sessions(),
    lambda reader: reader.unanswered_sessions(),
    lambda reader: reader.pending(S),
    lambda reader: inbox.find(raw_cursor(reader), MessageId("msg_1")),
    lambda reader: reader.history(S),
    lambda reader: reader.events_page(S, 0),
    lambda reader: reader.messages_page(ListMessages(session_id=S)),
    lambda reader: reader.last_turn(S),
    lambda reader: leftovers.unfinished(raw_cursor(reader), S),
    lambda reader: reader.family(S),
    lambda reader: reader.find_request(RequestId("per_1")),
    lambda reader: reader.permission_requests(),
    lambda reader: reader.question_requests(S),
    lambda reader: reader.sessions_page(ListSessions()),
    lambda reader: reader.sessions_page(ListSessions(directory="/odd")),
    lambda reader: reader.sessions_page(ListSessions(parent_id=S)),
]


@pytest.mark.parametrize("call", READS)
def test_no_read_scans_a_table(reader: Reader, monkeypatch: pytest.MonkeyPatch, call: Callable[[Reader], object]) -> None:
    steps = plan(reader, monkeypatch, call).splitlines()
    assert steps
    allowed = ("_open", "session_unanswered", "session_order", "SCAN f", "SCAN family")
    assert [step for step in steps if step.startswith("SCAN") and not step.endswith(allowed)] == []


def test_a_model_switch_shows_in_the_record(fresh: tuple[Database, Reader]) -> None:
    database, reader = fresh
    append(database, S, ModelSwitched(message_id=MessageId("msg_switch"), model=MODEL))
    record = reader.record(S)
    assert (record.session.model, record.revision, record.unanswered_seq) == (MODEL, 2, None)
    assert reader.session(S) == record.session
