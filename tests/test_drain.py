"""The Session Drain at its boundaries: what it samples, what stops it there, and what it leaves."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from trio.testing import wait_all_tasks_blocked

from steerway.actors.configuration import Agent
from steerway.protocol.values import (
    LOCATION_UNAVAILABLE,
    MODEL_NOT_SELECTED,
    MODEL_UNAVAILABLE,
    STORAGE_UNAVAILABLE,
    Activity,
    CompletedOutcome,
    FailedOutcome,
    Location,
    MessageId,
    ModelRef,
    ModelSwitched,
    PromptPromoted,
    TextDelta,
    TurnCompleted,
    TurnFailed,
    TurnInterrupted,
    TurnStarted,
    WithdrawnOutcome,
)
from steerway.protocol.values.errors import ModelUnavailableError, StorageUnavailableError
from steerway.protocol.values.failure import AGENT_UNKNOWN
from steerway.storage.database import Database
from support.answers import answer, hold, status, text, tool_call
from support.house import OTHER, OpenHouse, Ticks, baseline, configuration, open_house, said, scripted_house
from support.provider import open_provider
from support.tools import HeldTool


@pytest.fixture
def databases(monkeypatch: pytest.MonkeyPatch) -> list[Database]:
    """The stores as they are opened, for making them full."""
    opened: list[Database] = []
    original = Database.open

    def spy(*args: Any, **options: Any) -> Database:
        opened.append(original(*args, **options))
        return opened[-1]

    monkeypatch.setattr(Database, "open", spy)
    return opened


def fill(database: Database) -> None:
    """From now on nothing can be committed that needs another page."""
    database.limit_pages(1)  # SQLite takes the size the file has


# --- boundaries that cannot be passed -----------------------------------------------------------------------------


async def failed_at_the_boundary(house: OpenHouse, session: Any, kind: str) -> None:
    """No turn, the input pending, the outcome said; and no endless loop of successors (ruling A9)."""
    watch = await house.watch()
    receipt = await house.sessions.prompt(session, "Hello")
    await house.sessions.wait(session)
    await wait_all_tasks_blocked()
    assert await house.pending(session) == [receipt.id]
    outcome = (await house.sessions.get(session)).last_outcome
    assert isinstance(outcome, FailedOutcome)
    assert outcome.error.type == kind
    assert [(activity.state, activity.outcome) for activity in watch.of(Activity)] == [("running", None), ("idle", outcome)]
    assert house.provider.requests == []
    assert await house.sessions.resume(session) == outcome


async def test_an_agent_that_left_the_configuration_fails_the_drain_and_keeps_the_input(tmp_path: Path) -> None:
    ticks = Ticks()
    async with open_provider() as provider:
        async with open_house(provider, tmp_path, ticks=ticks) as house:
            session = await house.session(agent="plain")
        without = msgspec.structs.replace(configuration(provider), agents={})
        async with open_house(provider, tmp_path, ticks=ticks, settings=without) as house:
            await failed_at_the_boundary(house, session, AGENT_UNKNOWN)


async def test_no_model_fails_the_drain_and_keeps_the_input(tmp_path: Path) -> None:
    async with scripted_house(tmp_path, settings=configuration(None)) as house:
        await failed_at_the_boundary(house, await house.session(), MODEL_NOT_SELECTED)


async def test_a_location_that_is_gone_fails_the_drain_and_keeps_the_input(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    async with scripted_house(tmp_path) as house:
        session = await house.session(location=Location(directory=str(place)))
        place.rmdir()
        await failed_at_the_boundary(house, session, LOCATION_UNAVAILABLE)
        place.mkdir()
        assert await house.sessions.resume(session) == CompletedOutcome()
        assert said(house.provider.requests[0]) == [("user", "Hello")]


async def test_a_model_that_left_the_configuration_fails_the_drain_until_another_is_chosen(tmp_path: Path) -> None:
    ticks = Ticks()
    async with open_provider() as provider:
        async with open_house(provider, tmp_path, ticks=ticks) as house:
            session = await house.session(model=OTHER)
        async with open_house(provider, tmp_path, ticks=ticks, settings=configuration(None)) as house:
            await failed_at_the_boundary(house, session, MODEL_UNAVAILABLE)
            demo = ModelRef(provider="demo", id="demo")
            await house.sessions.switch_model(session, demo)
            assert await house.sessions.resume(session) == CompletedOutcome()
            assert [started.model for started in await house.data(session, TurnStarted)] == [demo]


# --- sampling -----------------------------------------------------------------------------------------------------


async def test_a_model_switch_during_a_turn_counts_from_the_next_one(tmp_path: Path) -> None:
    held = hold()
    async with scripted_house(tmp_path, answer(held, text("Hi"))) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Hello")
        await held.reached.wait()
        assert (await house.sessions.switch_model(session, OTHER)).model == OTHER
        await house.sessions.prompt(session, "And now?")
        held.release()
        await house.sessions.wait(session)
        assert [request.model for request in house.provider.requests] == ["scripted", "other"]
        assert [started.model.id for started in await house.data(session, TurnStarted)] == ["scripted", "other"]


async def test_a_model_switch_in_a_tool_loop_counts_from_the_continuation(tmp_path: Path) -> None:
    tool = HeldTool("look")
    async with scripted_house(tmp_path, answer(tool_call("look")), tools=[tool.tool]) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Look")
        await tool.wait_started()
        await house.sessions.switch_model(session, OTHER)
        tool.release()
        await house.sessions.wait(session)
        assert [request.model for request in house.provider.requests] == ["scripted", "other"]


async def test_selecting_the_selected_model_changes_nothing(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        session = await house.session(model=OTHER)
        assert (await house.sessions.switch_model(session, OTHER)).head == 1
        assert not await house.data(session, ModelSwitched)
        with pytest.raises(ModelUnavailableError):
            await house.sessions.switch_model(session, ModelRef(provider="nobody", id="x"))
        assert (await house.sessions.get(session)).model == OTHER


async def test_a_switch_answered_before_the_prompt_is_in_its_first_request(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        await house.sessions.switch_model(session, OTHER)
        await house.ask(session, "Hello")
        assert [request.model for request in house.provider.requests] == ["other"]


async def test_agents_are_sampled_with_their_text_behind_the_baseline(tmp_path: Path) -> None:
    async with open_provider() as provider:
        settings = configuration(provider)
        settings.agents["pirate"] = Agent(system="Talk like a pirate.")
        async with open_house(provider, tmp_path, settings=settings) as house:
            session = await house.session(agent="pirate")
            await house.ask(session, "Hello")
            assert baseline(provider.requests[0]).endswith("\n\nTalk like a pirate.")
            assert said(provider.requests[0]) == [("user", "Hello")]


# --- wakes at the edges -------------------------------------------------------------------------------------------


async def test_a_prompt_admitted_while_the_turn_fails_starts_a_successor(tmp_path: Path) -> None:
    """Ruling A9: the doorbell was rung after the failed drain last read the inbox."""
    before = hold()
    async with scripted_house(tmp_path, status(400, before=[before])) as house:
        session = await house.session()
        first = house.task(lambda: house.sessions.resume(session))
        await before.reached.wait()
        await house.sessions.prompt(session, "Hello")
        before.release()
        assert isinstance(await first.result(), FailedOutcome)
        await house.sessions.wait(session)
        assert [type(end) for end in await house.data(session, TurnFailed, TurnCompleted)] == [TurnFailed, TurnCompleted]
        assert await house.pending(session) == []


async def test_input_that_waited_without_a_wake_stays_when_the_turn_fails(tmp_path: Path) -> None:
    """Ruling A9, the other half: what merely stays pending starts nothing."""
    before = hold()
    async with scripted_house(tmp_path, status(400, before=[before])) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Hello")
        await before.reached.wait()
        waiting = await house.admit(session, "Quiet")
        before.release()
        await house.sessions.wait(session)
        await wait_all_tasks_blocked()
        assert await house.pending(session) == [waiting.id]
        assert len(house.provider.requests) == 1


async def test_a_withdrawn_prompt_leaves_no_turn_behind(tmp_path: Path) -> None:
    """Ruling A14: nothing to promote, nothing forced: no turn."""
    held = hold()
    async with scripted_house(tmp_path, answer(held, text("Hi"))) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Hello")
        await held.reached.wait()
        queued = await house.sessions.prompt(session, "Never mind", delivery="queue")
        assert await house.sessions.withdraw(session, queued.id) == WithdrawnOutcome()
        held.release()
        await house.sessions.wait(session)
        assert len(house.provider.requests) == 1
        assert len(await house.data(session, PromptPromoted)) == 1


async def test_a_prompt_admitted_without_a_wake_is_steered_into_the_running_work(tmp_path: Path) -> None:
    """All pending steers promote at the next boundary, whoever else rang."""
    held = hold()
    async with scripted_house(tmp_path, answer(held, text("Hi"))) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Hello")
        await held.reached.wait()
        await house.admit(session, "Quiet")
        held.release()
        await house.sessions.wait(session)
        assert [said(request)[-1] for request in house.provider.requests] == [("user", "Hello"), ("user", "Quiet")]


# --- a store that cannot commit -----------------------------------------------------------------------------------


async def test_a_store_that_fills_up_in_a_turn_fails_the_drain_and_is_settled_before_the_next(
    tmp_path: Path, databases: list[Database]
) -> None:
    """Ruling A7: the living process settles what it could not commit, and history goes on."""
    held = hold()
    async with scripted_house(tmp_path, answer(text("Half"), held, text("x" * 500_000))) as house:
        session = await house.session()
        watch = await house.watch()
        await house.sessions.prompt(session, "Hello")
        joined = house.task(lambda: house.sessions.resume(session))
        await held.reached.wait()
        await watch.until(TextDelta)
        fill(databases[0])
        held.release()
        outcome = await joined.result()
        assert isinstance(outcome, FailedOutcome)
        assert outcome.error.type == STORAGE_UNAVAILABLE
        assert await house.sessions.active() == {}
        with pytest.raises(StorageUnavailableError):
            await house.admit(session, "y" * 500_000)
        databases[0].limit_pages(None)
        assert await house.ask(session, "Again") == CompletedOutcome()
        (interrupted,) = await house.data(session, TurnInterrupted)
        assert interrupted.reason == "recovery"
        assert said(house.provider.requests[1])[-1] == ("user", "Again")


async def test_a_store_that_is_full_at_the_boundary_keeps_the_input(tmp_path: Path, databases: list[Database]) -> None:
    before = hold()
    async with scripted_house(tmp_path, answer(text("Hi"), before=[before])) as house:
        session = await house.session()
        await house.admit(session, "z" * 500_000, id=MessageId("msg_big"))
        fill(databases[0])
        outcome = await house.sessions.resume(session)
        assert isinstance(outcome, FailedOutcome)
        assert outcome.error.type == STORAGE_UNAVAILABLE
        assert await house.pending(session) == ["msg_big"]
        assert house.provider.requests == []
        databases[0].limit_pages(None)
        before.release()
        assert await house.sessions.resume(session) == CompletedOutcome()
