"""Removing sessions through the public surface: running ones, with children, with watchers; and what is left of an id."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import apsw
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from steerway.protocol.values import (
    CompletedOutcome,
    Event,
    IdleOutcome,
    InterruptedOutcome,
    MessageId,
    SessionId,
    SessionRemoved,
    Synced,
    SyntheticAdded,
)
from steerway.protocol.values.errors import (
    ConflictError,
    DeclaredError,
    PermissionNotFoundError,
    SessionNotFoundError,
)
from steerway.protocol.values.event import PermissionAsked
from steerway.storage import removal
from steerway.storage.journal import Transaction
from support.answers import answer, hold, text, tool_call
from support.house import LingeringTool, OpenHouse, Task, Ticks, crash_image, open_house, scripted_house
from support.provider import open_provider
from support.stores import append, open_store, raw, session_created
from support.tools import byte_tool

PROMPT = MessageId("msg_prompt")


async def gone(house: OpenHouse, session: SessionId) -> None:
    """Nobody finds the session in any way, and its id stays taken."""
    for call in (
        house.sessions.get,
        house.sessions.messages,
        house.sessions.pending,
        house.sessions.context,
        house.sessions.attach,
        house.sessions.interrupt,
        house.sessions.resume,
        house.sessions.wait,
        house.sessions.remove,
        house.events,
    ):
        with pytest.raises(SessionNotFoundError):
            await call(session)
    with pytest.raises(SessionNotFoundError):
        await house.sessions.prompt(session, "Are you there?")
    with pytest.raises(ConflictError):
        await house.sessions.create(id=session)
    assert session not in await house.sessions.active()
    assert session not in [item.id for item in (await house.sessions.list()).items]


async def test_a_removed_session_is_gone_and_its_id_stays_taken(tmp_path: Path) -> None:
    ticks = Ticks()
    async with open_provider() as provider:
        async with open_house(provider, tmp_path, ticks=ticks) as house:
            session, other = await house.session(), await house.session()
            for each in (session, other):
                await house.ask(each, "Hello")
            watch = await house.watch()
            await house.sessions.remove(session)
            await gone(house, session)
            await watch.until(SessionRemoved)
            assert [event.session_id for event in watch.events if isinstance(event.data, SessionRemoved)] == [session]
            assert await house.ask(other, "Still there?") == CompletedOutcome()
        async with open_house(provider, tmp_path, ticks=ticks) as house:
            await gone(house, session)


async def test_a_running_session_is_interrupted_before_it_is_removed(tmp_path: Path) -> None:
    """The provider's connection is let go, and those who wait are told."""
    held = hold()
    async with scripted_house(tmp_path, answer(text("Half"), held)) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Hello", id=PROMPT)
        await held.reached.wait()
        later = await house.sessions.prompt(session, "Later", delivery="queue")
        joined = house.task(lambda: house.sessions.resume(session))
        waiting = house.task(lambda: house.sessions.wait(session))
        prompt = house.task(lambda: house.sessions.wait_prompt(session, PROMPT))
        pending = house.task(lambda: house.sessions.wait_prompt(session, later.id))
        await wait_all_tasks_blocked()
        await house.sessions.remove(session)
        assert await joined.result() == InterruptedOutcome(reason="shutdown")
        assert await waiting.result() == IdleOutcome()
        assert await prompt.result() == InterruptedOutcome(reason="shutdown")
        with pytest.raises(SessionNotFoundError):
            await pending.result()
        with trio.fail_after(5):
            await house.provider.answers[0].disconnected.wait()
        await gone(house, session)
        assert len(house.provider.requests) == 1


async def test_children_go_along_wherever_they_are(tmp_path: Path) -> None:
    """A running grandchild, an idle child; a fork and a stranger stay."""
    held = hold()
    async with scripted_house(tmp_path, answer(text("Parent")), answer(text("Half"), held)) as house:
        parent, stranger = await house.session(), await house.session()
        await house.ask(parent, "Hello")
        child = await house.session(parent_id=parent)
        grandchild = await house.session(parent_id=child)
        copy = (await house.sessions.fork(parent)).id
        await house.sessions.prompt(grandchild, "Hello")
        await held.reached.wait()
        await house.sessions.remove(parent)
        for session in (parent, child, grandchild):
            await gone(house, session)
        assert {item.id for item in (await house.sessions.list()).items} == {copy, stranger}
        assert await house.ask(copy, "And you?") == CompletedOutcome()
        assert await house.sessions.active() == {}


async def test_durable_streams_end_with_the_session(tmp_path: Path) -> None:
    """Each gets what was committed before, then the error; those of other sessions go on."""
    async with scripted_house(tmp_path) as house:
        session, other = await house.session(), await house.session()
        await house.ask(session, "Hello")
        head = (await house.sessions.get(session)).head
        seen: list[Event] = []
        synced = trio.Event()

        async def watch() -> None:
            async with house.sessions.events(session) as stream:
                async for event in stream:
                    if isinstance(event.data, Synced):
                        synced.set()
                    else:
                        seen.append(event)

        watching = house.task(watch)
        await synced.wait()
        async with house.sessions.events(other) as stream:
            assert (await anext(stream)).seq == 1
            await house.sessions.remove(session)
            with pytest.raises(SessionNotFoundError) as caught:
                await watching.result()
            assert caught.value.fields["session_id"] == session
            assert [event.seq for event in seen] == list(range(1, head + 1))
            await house.admit(other, "Hello")
            assert isinstance((await anext(stream)).data, Synced)
            assert (await anext(stream)).seq == 2


async def test_open_requests_go_with_their_session(tmp_path: Path) -> None:
    async with scripted_house(tmp_path, answer(tool_call("write", {"path": "a.txt", "content": "x"}))) as house:
        session = await house.session()
        watch = await house.watch()
        await house.sessions.prompt(session, "Write")
        request = await watch.until(PermissionAsked)
        await house.sessions.remove(session)
        assert await house.runtime.permissions.list() == ()
        with pytest.raises(PermissionNotFoundError):
            await house.runtime.permissions.reply(request.request_id, "once")
        assert not (tmp_path / "a.txt").exists()


async def test_managed_output_files_go_with_the_last_session_that_names_them(tmp_path: Path) -> None:
    """Ruling B4; a fork names them too."""
    tool = byte_tool("print", 200_000)
    async with scripted_house(tmp_path, answer(tool_call("print")), tools=[tool.tool]) as house:
        session = await house.session()
        await house.ask(session, "Print")
        copy = (await house.sessions.fork(session)).id
        (file,) = (tmp_path / "tool-output").iterdir()
        await house.sessions.remove(session)
        assert file.exists()
        await house.sessions.remove(copy)
        assert not file.exists()


async def test_a_removal_whose_caller_left_is_seen_through(tmp_path: Path) -> None:
    """No session is left that is neither removed nor able to work."""
    tool = LingeringTool("linger")
    async with scripted_house(tmp_path, answer(tool_call("linger")), tools=[tool.tool]) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Look")
        await tool.wait_started()
        removing = house.task(lambda: house.sessions.remove(session))
        await tool.cancelled.wait()
        removing.scope.cancel()
        await wait_all_tasks_blocked()
        tool.let_go.set()
        await wait_all_tasks_blocked()
        await gone(house, session)


async def test_two_removals_at_once_are_one_and_neither_is_kept_waiting(tmp_path: Path, mock_clock: MockClock) -> None:
    """In a time that stands still, so that nothing can come of a time-out."""
    held = hold()
    async with scripted_house(tmp_path, answer(text("Half"), held)) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Hello")
        await held.reached.wait()
        tasks = [house.task(lambda: house.sessions.remove(session)) for _ in range(2)]
        answers: list[str] = []
        for task in tasks:
            try:
                answers.append(str(await task.result()))
            except DeclaredError as error:
                answers.append(type(error).__name__)
        assert sorted(answers) == ["None", "SessionNotFoundError"]
        await gone(house, session)


# --- long ones ----------------------------------------------------------------------------------------------------

LONG = SessionId("ses_long")


def long_session(folder: Path) -> None:
    database = open_store(folder / "sessions.db")
    append(database, LONG, session_created())
    append(database, LONG, *(SyntheticAdded(message_id=MessageId(f"msg_{number}"), text="Note.") for number in range(300)))
    database.close()


def held_sweep(monkeypatch: pytest.MonkeyPatch, during: Callable[[], None]) -> list[int]:
    """Sweeps take small parts, and behind the second one `during` is called; the numbers of the parts so far."""
    original, parts = Transaction.sweep, list[int]()

    def sweep(transaction: Transaction, name: SessionId) -> bool:
        more = original(transaction, name)
        parts.append(len(parts) + 1)
        if len(parts) == 2:
            during()
        return more

    monkeypatch.setattr(removal, "PART_ROWS", 50)
    monkeypatch.setattr(Transaction, "sweep", sweep)
    return parts


async def test_others_are_served_while_a_long_session_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is gone for everybody long before its last row is."""
    long_session(tmp_path)
    async with scripted_house(tmp_path) as house:
        other = await house.session()
        watch = await house.watch()
        seen: list[int] = []

        async def look() -> None:
            await house.sessions.update(other, title="Served")
            seen.append(len(parts))
            await gone(house, LONG)
            await watch.until(SessionRemoved)

        looks: list[Task[None]] = []
        parts = held_sweep(monkeypatch, lambda: looks.append(house.task(look)))
        await house.sessions.remove(LONG)
        await looks[0].result()
        assert 2 <= seen[0] < len(parts)
        assert raw(house.path, "SELECT id FROM session") == [(other,)]


async def test_a_process_that_dies_while_a_session_is_deleted_leaves_none_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_session(tmp_path)
    async with scripted_house(tmp_path) as house:
        images: list[Path] = []
        held_sweep(monkeypatch, lambda: images.append(crash_image(house, tmp_path / "left")))
        await house.sessions.remove(LONG)
    assert raw(images[0] / "sessions.db", "SELECT hidden FROM session") == [(1,)]
    async with scripted_house(images[0]) as house:
        await gone(house, LONG)
        assert raw(house.path, "SELECT count(*) FROM session") == [(0,)]


async def test_a_removal_that_cannot_be_swept_is_one_all_the_same_and_the_next_one_sweeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_session(tmp_path)
    async with scripted_house(tmp_path) as house:
        other = await house.session()

        def full() -> None:
            raise apsw.FullError("database or disk is full")

        parts = held_sweep(monkeypatch, full)
        await house.sessions.remove(LONG)
        await gone(house, LONG)
        assert (len(parts), raw(house.path, "SELECT count(*) FROM session")) == (2, [(2,)])
        await house.sessions.remove(other)
        assert raw(house.path, "SELECT count(*) FROM session") == [(0,)]
