"""Forks through the public surface: what they take along, where they end, and that both go their own ways."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from steerway.actors.blocking import Inline
from steerway.actors.feed import Feed
from steerway.actors.session import forking
from steerway.actors.session.sweeping import Sweeper
from steerway.actors.storage import StorageActor
from steerway.protocol.values import (
    AssistantMessage,
    CompletedOutcome,
    IdSource,
    Message,
    MessageId,
    Session,
    SessionId,
    SyntheticAdded,
    TextPart,
    ToolCompleted,
    ToolPart,
    UserMessage,
)
from steerway.protocol.values.errors import MessageNotFoundError, SessionNotFoundError
from steerway.protocol.values.event import PermissionAsked, SessionForked
from steerway.storage.copying import Fork
from steerway.storage.database import Database
from steerway.storage.reader import Reader
from support.answers import answer, hold, text, tool_call
from support.doctor import assert_healthy
from support.house import OTHER, Task, Ticks, open_house, said, scripted_house
from support.provider import open_provider
from support.stores import append, open_store, raw, session_created
from support.tools import HeldTool, ScriptedTool


def shown(messages: tuple[Message, ...]) -> list[str]:
    """What people see of a history."""
    lines: list[str] = []
    for message in messages:
        match message:
            case UserMessage(text=said):
                lines.append(f"user {said}")
            case AssistantMessage(content=content):
                parts = [
                    part.text if isinstance(part, TextPart) else part.state.__class__.__name__
                    for part in content
                    if isinstance(part, TextPart | ToolPart)
                ]
                lines.append("assistant " + " ".join(parts))
            case _:
                lines.append(type(message).__name__)
    return lines


async def test_a_fork_has_the_history_under_new_ids_and_goes_its_own_way(tmp_path: Path) -> None:
    tool = ScriptedTool("look")
    async with scripted_house(tmp_path, answer(tool_call("look")), tools=[tool.tool]) as house:
        session = await house.session(title="Garden", metadata={"a": 1})
        await house.ask(session, "Look")
        fork = await house.sessions.fork(session)
        assert (fork.title, fork.metadata, fork.parent_id) == ("Garden", {"a": 1}, None)
        assert fork.location == (await house.sessions.get(session)).location
        ours, theirs = await house.history(session), await house.history(fork.id)
        assert shown(theirs) == shown(ours)
        assert not {message.id for message in ours} & {message.id for message in theirs}
        (forked,) = await house.data(fork.id, SessionForked)
        assert (forked.parent_id, forked.before) == (session, None)
        before = await house.events(session)
        assert await house.ask(fork.id, "And further") == CompletedOutcome()
        assert await house.events(session) == before
        assert await house.ask(session, "Go on") == CompletedOutcome()
        theirs_sent, ours_sent = said(house.provider.requests[2]), said(house.provider.requests[3])
        assert theirs_sent[:-1] == ours_sent[:-1]
        assert (theirs_sent[-1], ours_sent[-1]) == (("user", "And further"), ("user", "Go on"))
        assert tool.executions == 1


async def test_a_fork_ends_before_the_named_message(tmp_path: Path) -> None:
    async with scripted_house(tmp_path, answer(text("One")), answer(text("Two")), answer(text("Other"))) as house:
        session = await house.session()
        await house.ask(session, "First")
        await house.ask(session, "Second")
        second = (await house.history(session))[2]
        fork = await house.sessions.fork(session, before=second.id)
        assert shown(await house.history(fork.id)) == ["user First", "assistant One"]
        await house.ask(fork.id, "Instead")
        assert said(house.provider.requests[2]) == [("user", "First"), ("assistant", "One"), ("user", "Instead")]
        beginning = await house.sessions.fork(session, before=(await house.history(session))[0].id)
        assert await house.history(beginning.id) == ()


async def test_a_fork_during_a_turn_has_what_was_settled_before_it(tmp_path: Path) -> None:
    """The running turn is not disturbed, and the fork does not wait for it."""
    held = hold()
    script = [answer(text("One")), answer(text("Half"), held, text(" and half"))]
    async with scripted_house(tmp_path, *script) as house:
        session = await house.session()
        await house.ask(session, "First")
        joined = house.task(lambda: house.ask(session, "Second"))
        await held.reached.wait()
        fork = await house.sessions.fork(session)
        history = shown(await house.history(fork.id))
        assert history[:2] == ["user First", "assistant One"]
        assert not any("Half" in line for line in history)
        assert fork.id not in await house.sessions.active()
        assert await house.ask(fork.id, "Third") == CompletedOutcome()
        held.release()
        assert await joined.result() == CompletedOutcome()
        assert shown(await house.history(session))[-1] == "assistant Half and half"


async def test_a_fork_during_a_tool_runs_nothing_twice(tmp_path: Path) -> None:
    tool = HeldTool("look")
    async with scripted_house(tmp_path, answer(tool_call("look")), tools=[tool.tool]) as house:
        session = await house.session()
        joined = house.task(lambda: house.ask(session, "Look"))
        await tool.wait_started()
        fork = await house.sessions.fork(session)
        assert not any(isinstance(message, AssistantMessage) for message in await house.history(fork.id))
        tool.release()
        assert await joined.result() == CompletedOutcome()
        assert await house.ask(fork.id, "Leave it") == CompletedOutcome()
        assert tool.executions == 1


async def test_what_waits_in_the_origin_stays_there(tmp_path: Path) -> None:
    """Prompts, requests, and the drain: a fork has nothing to do."""
    ticks = Ticks()
    async with open_provider(answer(tool_call("write", {"path": "a", "content": "b"}))) as provider:
        async with open_house(provider, tmp_path, ticks=ticks) as house:
            session = await house.session()
            watch = await house.watch()
            await house.sessions.prompt(session, "Write")
            await watch.until(PermissionAsked)
            await house.sessions.prompt(session, "Later", delivery="queue")
            fork = await house.sessions.fork(session)
            assert await house.pending(fork.id) == []
            assert await house.runtime.permissions.list(session_id=fork.id) == ()
            await wait_all_tasks_blocked()
            assert set(await house.sessions.active()) == {session}
            view = await house.sessions.attach(fork.id)
            assert (view.turn, view.active, view.permissions) == (None, False, ())
        async with open_house(provider, tmp_path, ticks=ticks) as house:
            assert (await house.types(fork.id))[-1] == "forked"


async def test_totals_of_a_fork_begin_at_nothing_and_selections_follow(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        await house.sessions.switch_agent(session, "plan")
        await house.sessions.switch_model(session, OTHER)
        await house.ask(session, "Hello")
        fork = await house.sessions.fork(session)
        assert (fork.agent, fork.model) == ("plan", OTHER)
        assert fork.tokens.input == fork.tokens.output == 0
        assert (await house.sessions.get(session)).tokens.input > 0


async def test_calls_of_a_fork_have_results_of_their_own(tmp_path: Path) -> None:
    tool = ScriptedTool("look")
    async with scripted_house(tmp_path, answer(tool_call("look")), tools=[tool.tool]) as house:
        session = await house.session()
        await house.ask(session, "Look")
        fork = await house.sessions.fork(session)
        calls = [
            part
            for id in (session, fork.id)
            for message in await house.history(id)
            if isinstance(message, AssistantMessage)
            for part in message.content
            if isinstance(part, ToolPart)
        ]
        ours, theirs = calls
        assert ours.id != theirs.id
        assert ours.provider_call_id == theirs.provider_call_id
        assert isinstance(theirs.state, ToolCompleted)
        assert theirs.state == ours.state


async def test_a_fork_of_a_fork_stands_alone(tmp_path: Path) -> None:
    async with scripted_house(tmp_path, answer(text("One"))) as house:
        session = await house.session()
        await house.ask(session, "First")
        first = await house.sessions.fork(session)
        second = await house.sessions.fork(first.id)
        await house.sessions.remove(session)
        await house.sessions.remove(first.id)
        assert shown(await house.history(second.id)) == ["user First", "assistant One"]
        assert await house.ask(second.id, "Go on") == CompletedOutcome()


async def test_an_unknown_session_or_message_is_not_found(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        session, other = await house.session(), await house.session()
        await house.ask(other, "Hello")
        foreign = (await house.history(other))[0].id
        pending = await house.admit(session, "Later")
        with pytest.raises(SessionNotFoundError):
            await house.sessions.fork(SessionId("ses_unknown"))
        for before in (MessageId("msg_unknown"), foreign, pending.id):
            with pytest.raises(MessageNotFoundError):
                await house.sessions.fork(session, before=before)
        assert len((await house.sessions.list()).items) == 2


async def test_who_watches_is_told_of_the_fork_and_not_of_what_was_copied(tmp_path: Path) -> None:
    async with scripted_house(tmp_path, answer(text("One"))) as house:
        session = await house.session()
        await house.ask(session, "First")
        watch = await house.watch()
        fork = await house.sessions.fork(session)
        await watch.until(SessionForked)
        assert [event.type for event in watch.events if event.session_id == fork.id] == ["session.created", "session.forked"]


# --- long histories -----------------------------------------------------------------------------------------------

LONG = SessionId("ses_long")


def lengthen(database: Database, session: SessionId) -> None:
    """Five pages of history."""
    for first in range(0, 2_500, 500):
        notes = [SyntheticAdded(message_id=MessageId(f"msg_{first + n}"), text="Note.") for n in range(500)]
        append(database, session, *notes)


async def test_others_are_served_during_a_long_fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = Ticks()
    async with open_provider() as provider:
        async with open_house(provider, tmp_path, ticks=ticks) as house:
            session, other = await house.session(), await house.session()
        database = open_store(tmp_path / "sessions.db")
        lengthen(database, session)
        database.close()
        async with open_house(provider, tmp_path, ticks=ticks) as house:
            updates: list[Task[Session]] = []
            original = Fork.rename

            def rename(copy: Fork) -> None:
                if not updates:
                    updates.append(house.task(lambda: house.sessions.update(other, title="Served")))
                original(copy)

            monkeypatch.setattr(Fork, "rename", rename)
            child = await house.sessions.fork(session)
            await updates[0].result()
            log = raw(house.path, "SELECT s.id FROM event e JOIN session s ON s.key = e.session ORDER BY e.id DESC LIMIT 2502")
            written = [row[0] for row in log]
            update = written.index(other)
            assert child.id in written[:update], "it did not wait for the end of the fork"
            assert child.id in written[update:], "nor did the fork wait for it"


async def test_a_fork_that_begins_leaves_the_half_copy_of_another_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sweeps what nobody copies any more; here somebody does. A removal leaves it alone as well."""
    database = open_store(tmp_path / "sessions.db")
    append(database, LONG, session_created())
    lengthen(database, LONG)
    database.close()
    async with scripted_house(tmp_path) as house:
        other = await house.session()
        second: list[Task[Session]] = []
        removing: list[Task[None]] = []
        original = Fork.rename

        def rename(copy: Fork) -> None:
            if not second and raw(house.path, "SELECT count(*) FROM session WHERE hidden = 1") == [(1,)]:
                second.append(house.task(lambda: house.sessions.fork(LONG)))
                removing.append(house.task(lambda: house.sessions.remove(other)))
            original(copy)

        monkeypatch.setattr(Fork, "rename", rename)
        first = await house.sessions.fork(LONG)
        await removing[0].result()
        whole = await second[0].result()
        assert first.head == whole.head == (await house.sessions.get(LONG)).head + 1


async def test_a_fork_that_is_given_up_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = open_store(tmp_path / "sessions.db")
    append(database, LONG, session_created())
    lengthen(database, LONG)
    before = raw(database.path, "SELECT count(*) FROM event")
    async with trio.open_nursery() as nursery:
        storage = StorageActor(database, Feed(lambda: 1), Inline())
        await nursery.start(storage.run)
        original = Fork.rename
        hidden: list[int] = []

        def rename(copy: Fork) -> None:
            hidden.extend(row[0] for row in raw(database.path, "SELECT count(*) FROM session WHERE hidden = 1"))
            if len(hidden) == 3:
                scope.cancel()
            original(copy)

        monkeypatch.setattr(Fork, "rename", rename)
        with trio.CancelScope() as scope:
            copy = Fork(LONG, SessionId("ses_child"), ids=IdSource(lambda: 1, bytes), created=1)
            await forking.fork(storage, Sweeper(storage), copy)
        assert scope.cancelled_caught
        assert hidden == [0, 1, 1]
        storage.close()
    database.close()
    assert raw(database.path, "SELECT id FROM session") == [(LONG,)]
    assert raw(database.path, "SELECT count(*) FROM event") == before
    assert_healthy(database.path)


async def test_a_cancelled_request_gives_its_fork_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        given_up: list[Task[Session]] = []
        original = Fork.survey

        def survey(copy: Fork, reader: Reader) -> bool:
            given_up[0].scope.cancel()
            original(copy, reader)
            return True  # for as long as anybody wants it

        monkeypatch.setattr(Fork, "survey", survey)
        given_up.append(house.task(lambda: house.sessions.fork(session)))
        with trio.fail_after(5):
            while not given_up[0].done:
                await trio.lowlevel.checkpoint()
            await wait_all_tasks_blocked()  # never, while the fork goes on
        assert [one.id for one in (await house.sessions.list()).items] == [session]
