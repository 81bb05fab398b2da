"""A session's budget: where it pauses the work, what stays, and how it goes on."""

from pathlib import Path

import pytest
from msgspec import UNSET

from steerway.actors.configuration import Configuration, Model, ModelSelection, Provider, Store
from steerway.protocol.values import (
    BUDGET_EXCEEDED,
    Activity,
    CompletedOutcome,
    FailedOutcome,
    Outcome,
    PromptPromoted,
    SessionId,
    SessionUpdated,
    TurnStarted,
)
from steerway.protocol.values.errors import InvalidRequestError
from steerway.protocol.values.model import Prices
from support.answers import answer, text, tool_call, usage
from support.house import OpenHouse, Ticks, open_house, said
from support.provider import Provider as ScriptedProvider
from support.provider import open_provider
from support.tools import printing_tool

DOLLAR = usage(prompt=1_000_000, completion=0)
"""What costs a dollar."""


def settings(provider: ScriptedProvider) -> Configuration:
    model = Model(cost=Prices(input=1, output=1))
    scripted = Provider(protocol="openai-chat", base_url=provider.base_url, models={"scripted": model})
    return Configuration(
        store=Store(synchronous="normal"), providers={"scripted": scripted}, models=ModelSelection(default="scripted/scripted")
    )


def exceeded(outcome: Outcome) -> str:
    assert isinstance(outcome, FailedOutcome)
    assert outcome.error.type == BUDGET_EXCEEDED
    return outcome.error.message


async def budgeted(house: OpenHouse, budget: float) -> SessionId:
    session = await house.session()
    updated = await house.sessions.update(session, budget=budget)
    assert updated.budget == budget
    return session


async def test_a_spent_budget_stops_before_the_next_call_and_input_stays_pending(tmp_path: Path) -> None:
    async with open_provider() as provider, open_house(provider, tmp_path, settings=settings(provider)) as house:
        provider.script(answer(text("One."), DOLLAR), answer(text("Two."), DOLLAR))
        session = await budgeted(house, 1)
        watch = await house.watch()
        assert await house.ask(session, "First") == CompletedOutcome()
        assert "$1.0000 of its budget of $1.0000" in exceeded(await house.ask(session, "Second"))
        assert len(provider.requests) == 1
        assert len(await house.data(session, TurnStarted)) == len(await house.data(session, PromptPromoted)) == 1
        (pending,) = await house.pending(session)
        assert exceeded(watch.of(Activity)[-1].outcome or CompletedOutcome())
        assert (await house.sessions.get(session)).last_outcome == watch.of(Activity)[-1].outcome

        await house.sessions.update(session, budget=1.5)
        assert await house.sessions.resume(session) == CompletedOutcome()
        assert await house.sessions.wait_prompt(session, pending) == CompletedOutcome()
        assert (await house.sessions.get(session)).cost == 2
        assert exceeded(await house.sessions.resume(session))


async def test_a_budget_that_ends_between_two_steps_of_a_tool_loop_goes_on_with_the_results(tmp_path: Path) -> None:
    async with (
        open_provider() as provider,
        open_house(provider, tmp_path, settings=settings(provider), tools=[printing_tool("echo", "a").tool]) as house,
    ):
        provider.script(answer(tool_call("echo", {}), DOLLAR), answer(text("Echoed."), DOLLAR))
        session = await budgeted(house, 0.5)
        exceeded(await house.ask(session, "Echo"))
        assert len(provider.requests) == 1
        await house.sessions.update(session, budget=5)
        assert await house.sessions.resume(session) == CompletedOutcome()
        assert [role for role, _ in said(provider.requests[1])] == ["user", "assistant", "tool"]


async def test_a_prompt_after_the_budget_was_raised_wakes_the_session_and_takes_the_waiting_one_along(tmp_path: Path) -> None:
    async with open_provider() as provider, open_house(provider, tmp_path, settings=settings(provider)) as house:
        session = await budgeted(house, 0)
        exceeded(await house.ask(session, "First"))
        assert provider.requests == []
        await house.sessions.update(session, budget=1)
        second = await house.sessions.prompt(session, "Second")
        assert await house.sessions.wait_prompt(session, second.id) == CompletedOutcome()
        assert [line for _, line in said(provider.requests[0])] == ["First", "Second"]


async def test_a_budget_is_durable_and_only_a_change_of_it_is_an_event(tmp_path: Path) -> None:
    ticks = Ticks()
    async with open_provider() as provider:
        async with open_house(provider, tmp_path, ticks=ticks, settings=settings(provider)) as house:
            session = await budgeted(house, 2.5)
            await house.sessions.update(session, budget=2.5)
            await house.sessions.update(session, title="Named")
            assert [data.budget for data in await house.data(session, SessionUpdated)] == [2.5, UNSET]
        async with open_house(provider, tmp_path, ticks=ticks, settings=settings(provider)) as house:
            assert (await house.sessions.get(session)).budget == 2.5
            assert [found.budget for found in (await house.sessions.list()).items] == [2.5]
            fork = await house.sessions.fork(session)
            assert (fork.budget, fork.title) == (None, "Named")


async def test_a_budget_below_nothing_is_refused(tmp_path: Path) -> None:
    async with open_provider() as provider, open_house(provider, tmp_path, settings=settings(provider)) as house:
        session = await house.session()
        with pytest.raises(InvalidRequestError) as caught:
            await house.sessions.update(session, budget=-0.01)
        assert caught.value.fields == {"field": "budget"}
        assert (await house.sessions.get(session)).budget is None
