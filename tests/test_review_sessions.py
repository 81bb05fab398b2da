"""What a session keeps, promotes and uses, and what a fork leaves: faults that a second reading found.

Long, because its cases share their provider, tools and stores.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from steerway import ContextSource, Unavailable, codec_of
from steerway.actors.blocking import Threads
from steerway.actors.configuration import Compaction, Configuration, Model, ModelSelection, Provider
from steerway.actors.session import response
from steerway.actors.session.actor import SessionActor
from steerway.actors.session.compaction import Compactor
from steerway.actors.session.history import KEPT_MESSAGES, Histories, History
from steerway.actors.session.promotion import eligible
from steerway.protocol.llm.invariants import PDF_TYPE
from steerway.protocol.values import (
    CallId,
    CompletedOutcome,
    ControlAdmitted,
    EventData,
    IdSource,
    Location,
    MessageId,
    SessionId,
    SyntheticAdded,
    ToolCalled,
    ToolPruned,
    ToolSucceeded,
    TurnCompleted,
    TurnFailed,
)
from steerway.protocol.values.errors import SessionNotFoundError
from steerway.protocol.values.event import (
    CompactionDelta,
    CompactionFailed,
    CompactionStarted,
    EpochStarted,
    PromptPromoted,
    TurnStarted,
)
from steerway.protocol.values.failure import ABORTED
from steerway.protocol.values.model import NO_TOKENS
from steerway.protocol.values.prompt import PromptFileInput
from steerway.protocol.values.tool import TextContent
from steerway.storage import rebuilding, removal
from steerway.storage.connections import connect_writer
from steerway.storage.copying import Fork
from steerway.storage.database import Database
from steerway.storage.doctor import examine
from steerway.storage.history import Limit, Stretch
from steerway.storage.journal import Transaction
from steerway.storage.keys import Keys
from steerway.storage.reader import Reader
from support.answers import Answer, answer, event, hold, stream, text, tool_call
from support.doctor import assert_healthy
from support.house import configuration, open_house, said
from support.provider import Provider as ScriptedProvider
from support.provider import Request, open_provider
from support.stores import admitted, append, commit, open_store, promoted, raw, remove, session_created, started, sweep
from support.stores import event as stored_event
from support.tools import ScriptedTool

S, CHILD = SessionId("ses_1"), SessionId("ses_child")
IDS = IdSource(lambda: 1, bytes)


def with_context(provider: ScriptedProvider, context: int, *, input: tuple[Any, ...] | None = None) -> Configuration:
    made = configuration(provider, compaction=Compaction(keep_tokens=500, buffer=1_000))
    models = {"scripted": Model(context=context, output=500, input=input)}
    made.providers["scripted"] = Provider(protocol="openai-chat", base_url=provider.base_url, models=models)
    return made


# --- what fits ----------------------------------------------------------------------------------------------------------


async def test_small_documents_count_as_pages_also_where_the_boundary_begins_the_turn(tmp_path: Path) -> None:
    """Twenty PDFs are 60,000 tokens by the estimate, which is more than the ceiling of 45,000."""
    files = [PromptFileInput(data=b"%%PDF-1.7\n%d 0 obj" % number, mime=PDF_TYPE) for number in range(20)]
    async with open_provider() as provider:
        limits = with_context(provider, 46_000, input=("text", "pdf"))
        async with open_house(provider, tmp_path, settings=limits) as house:
            session = await house.session()
            await house.ask(session, "Hello")
            await house.ask(session, "Read these", files=files)
            kinds: list[type[EventData]] = [
                type(data) for data in await house.data(session, PromptPromoted, CompactionStarted, TurnStarted)
            ]
            assert kinds[-3:] == [PromptPromoted, CompactionStarted, TurnStarted]


def test_a_transaction_does_not_read_a_short_log_of_large_messages(tmp_path: Path) -> None:
    database = open_store(tmp_path / "store.db")
    prompt = MessageId("msg_1")
    append(database, S, session_created(), admitted(prompt, "x" * 5_000), promoted(prompt, "x" * 5_000))
    limit = Limit(events=10, bytes=5_000)
    assert commit(database, lambda transaction: transaction.stretch(S, None, limit)) is None
    whole = commit(database, lambda transaction: transaction.stretch(S, None, limit._replace(bytes=6_000)))
    assert len(whole.messages) == 1
    database.close()


# --- what is kept -------------------------------------------------------------------------------------------------------


async def test_an_interrupt_while_results_are_pruned_leaves_nothing_stale_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decision is durable; the epoch is not replaced, as its context is unavailable, so nothing else tells of it."""
    prune = getattr(Compactor, "_prune")  # noqa: B009 - it is private
    long = "word " * 600
    pruned = trio.Event()

    async def held(compactor: Compactor, excess: int) -> bool:
        if not (done := await prune(compactor, excess)):
            return done
        pruned.set()
        await trio.sleep_forever()
        return done

    def respond(request: Request) -> Answer:
        asked = request.messages[-1]["role"] == "user"
        return answer(tool_call("look", {"value": "x"})) if asked else answer(text("Seen."))

    async with open_provider() as provider:
        provider.respond = respond
        tool = ScriptedTool("look", lambda _: long).tool
        async with open_house(provider, tmp_path, tools=[tool], settings=with_context(provider, 12_000)) as house:
            available = True

            async def fact() -> str | Unavailable:
                return "there" if available else Unavailable("not now")

            house.runtime.context.register(
                ContextSource(
                    key="acme/fact", codec=codec_of(str), load=fact, baseline=lambda value: value, update=lambda _, value: value
                )
            )
            session = await house.session()
            await house.ask(session, "look first")
            available = False
            monkeypatch.setattr(Compactor, "_prune", held)
            async with trio.open_nursery() as nursery:

                async def interrupt() -> None:
                    await pruned.wait()
                    await house.sessions.interrupt(session)

                nursery.start_soon(interrupt)
                for turn in range(40):
                    if await house.ask(session, f"look {turn}") != CompletedOutcome():
                        break
            monkeypatch.undo()
            assert await house.data(session, ToolPruned)
            assert len(provider.requests[-1].messages) > KEPT_MESSAGES
            assert await house.ask(session, "Go on") == CompletedOutcome()
            assert len(await house.data(session, EpochStarted)) == 1
            results = [line for role, line in said(provider.requests[-1]) if role == "tool"]
            assert results[0].startswith("[This old result was removed")


async def test_a_history_rests_before_somebody_else_may_own_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A successor may start in the very step in which ownership is given up."""
    resting: list[bool] = []
    at_rest, put = SessionActor.at_rest, Histories.put
    known: list[Histories] = []

    def rest(actor: SessionActor) -> bool:
        resting.append(bool(known))
        known.clear()
        return at_rest(actor)

    def keep(histories: Histories, session_id: SessionId, history: Any) -> None:
        known.append(histories)
        put(histories, session_id, history)

    monkeypatch.setattr(SessionActor, "at_rest", rest)
    monkeypatch.setattr(Histories, "put", keep)
    async with open_provider() as provider, open_house(provider, tmp_path) as house:
        session = await house.session()
        assert await house.ask(session, "Hello") == CompletedOutcome()
        assert await house.ask(session, "Once more") == CompletedOutcome()
    assert resting == [True, True]


async def test_large_additions_are_taken_up_outside_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else is served while megabytes are written into a request."""
    places: list[tuple[bool, bool]] = []
    extend = History.extend

    def noted(history: History, stretch: Stretch) -> None:
        places.append((stretch.size > 1024 * 1024, threading.current_thread() is threading.main_thread()))
        extend(history, stretch)

    monkeypatch.setattr(History, "extend", noted)
    async with open_provider() as provider, open_house(provider, tmp_path, blocking=Threads()) as house:
        session = await house.session()
        for _ in range(2):
            assert await house.ask(session, "x" * 2_000_000) == CompletedOutcome()
    assert (True, False) in places
    assert (True, True) not in places


# --- what is used -------------------------------------------------------------------------------------------------------


def anthropic(provider: ScriptedProvider) -> Configuration:
    return Configuration(
        providers={"anthropic": Provider(protocol="anthropic-messages", base_url=provider.base_url)},
        models=ModelSelection(default="anthropic/claude-sonnet-4-5"),
    )


def unended(words: str) -> Answer:
    """An answer of the Anthropic protocol that tells at its beginning that 700 tokens were used, and has no end."""
    used = {"input_tokens": 700, "output_tokens": 1}
    message: dict[str, Any] = {"id": "msg_1", "role": "assistant", "content": [], "usage": used}
    return stream(
        event({"type": "message_start", "message": message}, "message_start"),
        event({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
        event({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": words}}),
        hold(),
    )


async def test_an_answer_that_is_broken_off_for_its_size_does_not_lose_what_was_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response, "MAX_ANSWER", response.PART_SIZE + 100)
    async with (
        open_provider(unended("word " * 100)) as provider,
        open_house(provider, tmp_path, settings=anthropic(provider)) as house,
    ):
        session = await house.session()
        await house.ask(session, "Hello")
        (failed,) = await house.data(session, TurnFailed)
        assert "more than" in failed.error.message
        assert failed.tokens is not None
        assert failed.tokens.input == 700
        assert (await house.sessions.get(session)).tokens == failed.tokens


async def test_a_summary_that_is_interrupted_does_not_lose_what_was_used(tmp_path: Path) -> None:
    async with (
        open_provider(answer(text("Well.")), unended("## Goal")) as provider,
        open_house(provider, tmp_path, settings=anthropic(provider)) as house,
    ):
        session, watch = await house.session(), await house.watch()
        await house.ask(session, "Hello")
        before = (await house.sessions.get(session)).tokens
        await house.sessions.compact(session)
        await watch.until(CompactionDelta)
        await house.sessions.interrupt(session)
        (failed,) = await house.data(session, CompactionFailed)
        assert failed.error.type == ABORTED
        assert failed.tokens is not None
        assert failed.tokens.input == 700
        assert (await house.sessions.get(session)).tokens == before + failed.tokens


# --- what a fork leaves -------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Database]:
    database = open_store(tmp_path / "store.db")
    notes = [SyntheticAdded(message_id=MessageId(f"msg_{number}"), text="Note.") for number in range(700)]
    append(database, S, session_created("Origin"), *notes)
    yield database
    database.close()


@pytest.fixture
def reader(store: Database) -> Iterator[Reader]:
    reader = store.open_reader()
    yield reader
    reader.close()


def begun(database: Database, reader: Reader) -> Fork:
    """A fork of which a page is written, and one is to come."""
    copy = Fork(S, CHILD, ids=IDS, created=9_000)
    while copy.survey(reader):
        pass
    copy.read(reader)
    copy.rename()
    assert commit(database, copy.write) is None
    return copy


def test_a_fork_does_not_outlive_an_origin_that_goes_before_its_last_page(store: Database, reader: Reader) -> None:
    """What was read is not committed yet: its files went with the origin, whose they alone seemed to be."""
    copy = begun(store, reader)
    copy.read(reader)
    copy.rename()
    remove(store, S)
    with pytest.raises(SessionNotFoundError):
        commit(store, copy.write)
    sweep(store, CHILD)
    assert raw(store.path, "SELECT id FROM session") == []


def test_half_a_fork_is_nothing_that_could_be_read_removed_or_gone_on_with(store: Database, reader: Reader) -> None:
    begun(store, reader)
    with pytest.raises(SessionNotFoundError):
        reader.family(CHILD)
    with pytest.raises(SessionNotFoundError):
        reader.events_page(CHILD, 0)
    with pytest.raises(SessionNotFoundError):
        commit(store, lambda transaction: transaction.remove(CHILD))


def test_half_a_fork_that_has_work_is_not_gone_on_with(tmp_path: Path) -> None:
    database = open_store(tmp_path / "store.db")
    asked, turn = MessageId("msg_asked"), MessageId("msg_turn")
    notes = [SyntheticAdded(message_id=MessageId(f"msg_{number}"), text="Note.") for number in range(600)]
    end = TurnCompleted(assistant_message_id=turn, finish="stop", tokens=NO_TOKENS, cost=0.0, continues=False)
    append(database, S, session_created(), admitted(asked), promoted(asked), started(turn), *notes, end)
    reader = database.open_reader()
    begun(database, reader)
    assert raw(database.path, "SELECT count(*) FROM session WHERE unanswered_seq IS NOT NULL") == [(1,)]
    assert (reader.unfinished_sessions(), reader.unanswered_sessions()) == ([], [])
    reader.close()
    database.close()


def test_after_a_crash_behind_any_commit_a_fork_is_whole_or_gone(store: Database, reader: Reader, tmp_path: Path) -> None:
    copy = Fork(S, CHILD, ids=IDS, created=9_000)
    while copy.survey(reader):
        pass
    found: list[list[str]] = []
    whole = False
    for step in itertools.count():
        copy.read(reader)
        copy.rename()
        whole = commit(store, copy.write) is not None
        left = tmp_path / f"left_{step}.db"
        shutil.copyfile(store.path, left)
        shutil.copyfile(f"{store.path}-wal", f"{left}-wal")
        open_store(left).close()
        assert_healthy(left)
        found.append([row[0] for row in raw(left, "SELECT id FROM session ORDER BY key")])
        if whole:
            break
    assert found == [[S], [S, CHILD]]


def test_building_the_projections_anew_keeps_what_no_log_tells_of_a_session(store: Database, reader: Reader) -> None:
    begun(store, reader)
    commit(store, lambda transaction: transaction.count_continuation(S))
    commit(store, lambda transaction: transaction.write(rebuilding.rebuild))
    columns = "SELECT id, continued, hidden FROM session ORDER BY key"
    assert raw(store.path, columns) == [(S, 1, 0), (CHILD, 0, 1)]
    assert_healthy(store.path)


def test_a_full_disk_that_keeps_half_a_fork_keeps_nobody_from_opening(
    store: Database, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(store, reader)
    reader.close()
    store.close()
    original, parts = removal.sweep, [True, True]

    def full(*given: Any) -> bool:
        if not parts:
            raise apsw.FullError("database or disk is full")
        parts.pop()
        return original(*given)

    monkeypatch.setattr(removal, "PART_ROWS", 100)
    monkeypatch.setattr(removal, "sweep", full)
    opened = open_store(store.path)
    assert opened.swept == ()
    again = opened.open_reader()
    with pytest.raises(SessionNotFoundError):
        again.session(CHILD)
    again.close()
    append(opened, S, SyntheticAdded(message_id=MessageId("msg_more"), text="It goes on."))
    opened.close()
    assert [(finding.check, finding.where) for finding in examine(store.path).findings] == [("unfinished", CHILD)]
    monkeypatch.undo()
    opened = open_store(store.path)
    assert opened.swept == (removal.Hidden(CHILD, removed=False),)
    opened.close()
    assert examine(store.path).healthy


# --- what a transaction takes -------------------------------------------------------------------------------------------


STEER, QUEUE, MOVE = "steer", "queue", "move"


@given(st.lists(st.sampled_from((STEER, QUEUE, MOVE)), max_size=8), st.booleans())
@settings(deadline=None, max_examples=40)
def test_a_boundary_takes_from_the_front_of_the_inbox_what_it_would_from_all(kinds: list[str], continuing: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        database = open_store(Path(folder) / "store.db")
        data: list[EventData] = [session_created()]
        for number, kind in enumerate(kinds):
            id = MessageId(f"msg_{number}")
            if kind == MOVE:
                data.append(ControlAdmitted(message_id=id, kind="move", location=Location(directory=f"/{number}")))
            else:
                data.append(admitted(id, delivery=kind))
        append(database, S, *data)
        front = commit(database, lambda transaction: transaction.front(S))
        pending = commit(database, lambda transaction: transaction.pending(S))
        database.close()
    assert eligible(front, continuing=continuing) == eligible(pending, continuing=continuing)
    assert front[:1] == pending[:1]
    assert sum(item not in front for item in pending) >= kinds.count(QUEUE) - 1


def _steps_of_pruning(path: Path, calls: int) -> int:
    """How many thousand steps SQLite takes to note that all results of a session are pruned."""
    database = open_store(path)
    data: list[EventData] = []
    for number in range(calls):
        turn, call = MessageId(f"msg_{number}"), CallId(f"call_{number}")
        called = ToolCalled(
            assistant_message_id=turn, call_id=call, provider_call_id="x", tool="look", input={}, executed=False
        )
        result = ToolSucceeded(assistant_message_id=turn, call_id=call, content=(TextContent(text="x" * 300),))
        end = TurnCompleted(assistant_message_id=turn, finish="tool-calls", tokens=NO_TOKENS, cost=0.0, continues=True)
        data += [started(turn), called, result, end]
    append(database, S, session_created(), *data)
    database.close()
    connection: Any = connect_writer(path, "normal")
    steps = 0

    def step() -> bool:
        nonlocal steps
        steps += 1
        return False

    connection.set_progress_handler(step, 100)
    cursor = connection.cursor()
    cursor.execute("BEGIN IMMEDIATE")
    pruned = ToolPruned(call_ids=tuple(CallId(f"call_{number}") for number in range(calls)))
    Transaction(cursor, Keys(cursor), savepoint=False).append(S, [stored_event(pruned)])
    cursor.execute("COMMIT")
    connection.close()
    return steps


def test_pruning_costs_what_is_pruned_and_not_its_square(tmp_path: Path) -> None:
    few, many = (_steps_of_pruning(tmp_path / f"{calls}.db", calls) for calls in (50, 400))
    assert many < 12 * few
