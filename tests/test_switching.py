"""Agents and models: selected per session, sampled per turn, named in events, and refused where they are unknown."""

from __future__ import annotations

from pathlib import Path

import pytest
from trio.testing import wait_all_tasks_blocked

from steerway.actors.configuration import Agent
from steerway.protocol.values import (
    AssistantMessage,
    CompletedOutcome,
    FailedOutcome,
    ModelRef,
    SessionId,
    TurnStarted,
)
from steerway.protocol.values.errors import AgentNotFoundError, ModelUnavailableError, SessionNotFoundError
from steerway.protocol.values.event import AgentSwitched, ModelSwitched
from steerway.protocol.values.failure import AGENT_UNKNOWN
from steerway.protocol.values.message import AgentSwitchedMessage, ModelSwitchedMessage
from support.answers import answer, hold, reasoning, text, tool_call
from support.house import OTHER, SCRIPTED, Ticks, baseline, configuration, open_house, said, scripted_house
from support.provider import open_provider
from support.tools import HeldTool


async def test_a_switch_during_a_turn_leaves_that_turn_its_agent(tmp_path: Path) -> None:
    """Scenario 58: what is sampled stays; the next turn has the new one, its text first."""
    tool = HeldTool("look")
    async with open_provider(answer(tool_call("look"))) as provider:
        settings = configuration(provider)
        settings.agents["poet"] = Agent(system="Rhyme.", model=str(OTHER))
        async with open_house(provider, tmp_path, settings=settings, tools=[tool.tool]) as house:
            session = await house.session()
            await house.sessions.prompt(session, "Look")
            await tool.wait_started()
            switched = await house.sessions.switch_agent(session, "poet")
            assert switched.agent == "poet"
            tool.release()
            await house.sessions.wait(session)
            first, second = await house.data(session, TurnStarted)
            assert (first.agent, first.model) == ("build", SCRIPTED)
            assert (second.agent, second.model) == ("poet", OTHER)
            assert "Rhyme." not in baseline(provider.requests[0])
            assert baseline(provider.requests[1]) == f"{baseline(provider.requests[0])}\n\nRhyme."
            agents = [message.agent for message in await house.history(session) if isinstance(message, AssistantMessage)]
            assert agents == ["build", "poet"]


async def test_a_selected_model_goes_before_the_agents_own(tmp_path: Path) -> None:
    async with open_provider() as provider:
        settings = configuration(provider)
        settings.agents["poet"] = Agent(model=str(OTHER))
        async with open_house(provider, tmp_path, settings=settings) as house:
            session = await house.session(agent="poet")
            await house.ask(session, "One")
            await house.sessions.switch_model(session, SCRIPTED)
            await house.ask(session, "Two")
            assert [request.model for request in provider.requests] == ["other", "scripted"]


async def test_a_switch_is_a_marker_in_history_and_nothing_in_the_request(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        await house.sessions.switch_agent(session, "plain")
        await house.sessions.switch_model(session, OTHER)
        await house.ask(session, "Hello")
        agent, model = (await house.history(session))[:2]
        assert isinstance(agent, AgentSwitchedMessage)
        assert (agent.agent, agent.previous) == ("plain", None)
        assert isinstance(model, ModelSwitchedMessage)
        assert (model.model, model.previous) == (OTHER, None)
        assert said(house.provider.requests[0]) == [("user", "Hello")]


async def test_selecting_the_selected_agent_changes_nothing(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        session = await house.session(agent="plain")
        before = await house.sessions.get(session)
        assert await house.sessions.switch_agent(session, "plain") == before
        assert await house.data(session, AgentSwitched, ModelSwitched) == []


async def test_an_unknown_agent_or_model_is_refused_by_name_and_changes_nothing(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        before = await house.events(session)
        with pytest.raises(AgentNotFoundError) as caught:
            await house.sessions.switch_agent(session, "nobody")
        assert caught.value.fields["agent"] == "nobody"
        with pytest.raises(ModelUnavailableError):
            await house.sessions.switch_model(session, ModelRef(provider="nowhere", id="none"))
        with pytest.raises(AgentNotFoundError):
            await house.sessions.create(id=SessionId("ses_new"), agent="nobody")
        with pytest.raises(ModelUnavailableError):
            await house.sessions.create(id=SessionId("ses_new"), model=ModelRef(provider="nowhere", id="none"))
        with pytest.raises(SessionNotFoundError):
            await house.sessions.get(SessionId("ses_new"))
        assert await house.events(session) == before


async def test_a_switch_needs_a_session(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        for call in (
            lambda: house.sessions.switch_agent(SessionId("ses_unknown"), "plan"),
            lambda: house.sessions.switch_model(SessionId("ses_unknown"), OTHER),
        ):
            with pytest.raises(SessionNotFoundError):
                await call()


async def test_the_last_of_several_switches_counts(tmp_path: Path) -> None:
    held = hold()
    async with scripted_house(tmp_path, answer(text("Hi"), held)) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Hello")
        await held.reached.wait()
        for agent in ("plan", "plain", "build", "plan"):
            await house.sessions.switch_agent(session, agent)
        await house.sessions.prompt(session, "And")
        held.release()
        await house.sessions.wait(session)
        assert [data.agent for data in await house.data(session, TurnStarted)] == ["build", "plan"]
        assert [data.previous for data in await house.data(session, AgentSwitched)] == [None, "plan", "plain", "build"]


async def test_a_switch_wakes_nobody(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        await house.admit(session, "Hello")
        await house.sessions.switch_agent(session, "plan")
        await house.sessions.switch_model(session, OTHER)
        await wait_all_tasks_blocked()
        assert await house.sessions.active() == {}
        assert house.provider.requests == []


async def test_selections_survive_a_restart(tmp_path: Path) -> None:
    ticks = Ticks()
    async with open_provider() as provider:
        async with open_house(provider, tmp_path, ticks=ticks) as house:
            session = await house.session()
            await house.sessions.switch_agent(session, "plan")
            await house.sessions.switch_model(session, OTHER)
        async with open_house(provider, tmp_path, ticks=ticks) as house:
            assert await house.ask(session, "Hello") == CompletedOutcome()
            (started,) = await house.data(session, TurnStarted)
            assert (started.agent, started.model) == ("plan", OTHER)


async def test_an_agent_that_left_the_configuration_fails_the_drain_before_any_request(tmp_path: Path) -> None:
    """Scenario 61; another agent mends it, and the input is still there."""
    ticks = Ticks()
    async with open_provider() as provider:
        settings = configuration(provider)
        settings.agents["poet"] = Agent(system="Rhyme.")
        async with open_house(provider, tmp_path, ticks=ticks, settings=settings) as house:
            session = await house.session(agent="poet")
        async with open_house(provider, tmp_path, ticks=ticks) as house:
            outcome = await house.ask(session, "Hello")
            assert isinstance(outcome, FailedOutcome)
            assert outcome.error.type == AGENT_UNKNOWN
            assert provider.requests == []
            assert len(await house.pending(session)) == 1
            await house.sessions.switch_agent(session, "build")
            assert await house.sessions.resume(session) == CompletedOutcome()
            assert said(provider.requests[0]) == [("user", "Hello")]


async def test_reasoning_becomes_plain_text_for_another_model(tmp_path: Path) -> None:
    """Scenario 172."""
    async with scripted_house(tmp_path, answer(reasoning("Let me think."), text("Yes."))) as house:
        session = await house.session()
        await house.ask(session, "Is it?")
        await house.sessions.switch_model(session, OTHER)
        await house.ask(session, "Sure?")
        (content,) = [content for role, content in said(house.provider.requests[1]) if role == "assistant"]
        assert "Let me think." in content
        assert "Yes." in content
