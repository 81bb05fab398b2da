"""The step allowance of an agent: what its last step sends, what becomes of calls there, and what begins the count anew."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from trio.testing import MockClock

from steerway.actors.configuration import Agent
from steerway.actors.session.promotion import LAST_STEP_INSTRUCTION
from steerway.protocol.values import (
    CompletedOutcome,
    RetryScheduled,
    SyntheticMessage,
    ToolCalled,
    ToolFailed,
    ToolSucceeded,
    TurnCompleted,
)
from steerway.protocol.values.failure import TOOL_DISABLED
from support.answers import Answer, answer, cut, hold, status, stream, text, tool_call
from support.house import OTHER, OpenHouse, configuration, open_house, said
from support.provider import Request, open_provider
from support.tools import HeldTool, ScriptedTool


@asynccontextmanager
async def stepping_house(folder: Path, *answers: Answer, steps: int | None, tool: ScriptedTool) -> AsyncGenerator[OpenHouse]:
    """A house whose agent `build` has so many steps; without another answer the model calls the tool."""
    async with open_provider(*answers, respond=lambda _: answer(tool_call(tool.name))) as provider:
        settings = configuration(provider)
        settings.agents["build"] = Agent(steps=steps)
        async with open_house(provider, folder, settings=settings, tools=[tool.tool]) as house:
            yield house


def is_last(request: Request) -> bool:
    """Whether a request is a last step: no tool may be chosen, and the last word says so."""
    refused = request.json.get("tool_choice") == "none"
    assert refused == (said(request)[-1] == ("user", LAST_STEP_INSTRUCTION))
    return refused


@pytest.mark.parametrize("steps", [1, 2, 5])
async def test_the_last_step_keeps_its_tools_and_may_not_use_them(tmp_path: Path, steps: int) -> None:
    """Scenario 55, as decided here: the definitions stay, for the sake of the cached prefix."""
    tool = ScriptedTool("look")
    async with stepping_house(tmp_path, steps=steps, tool=tool) as house:
        session = await house.session()
        assert await house.ask(session, "Look") == CompletedOutcome()
        requests = house.provider.requests
        assert [is_last(request) for request in requests] == [False] * (steps - 1) + [True]
        assert len({str(request.tools) for request in requests}) == 1
        assert requests[-1].tools
        assert tool.executions == steps - 1


async def test_a_call_in_the_last_step_is_failed_and_not_run(tmp_path: Path) -> None:
    tool = ScriptedTool("look")
    async with stepping_house(tmp_path, answer(text("One more:"), tool_call("look")), steps=1, tool=tool) as house:
        session = await house.session()
        assert await house.ask(session, "Look") == CompletedOutcome()
        assert tool.executions == 0
        (failed,) = await house.data(session, ToolFailed)
        assert failed.error.type == TOOL_DISABLED
        (completed,) = await house.data(session, TurnCompleted)
        assert not completed.continues
        await house.sessions.wait(session)
        assert len(house.provider.requests) == 1


async def test_without_an_allowance_there_is_no_last_step(tmp_path: Path) -> None:
    tool = ScriptedTool("look")
    script = [answer(tool_call("look")) for _ in range(12)]
    async with stepping_house(tmp_path, *script, answer(text("Done.")), steps=None, tool=tool) as house:
        session = await house.session()
        assert await house.ask(session, "Look") == CompletedOutcome()
        assert len(house.provider.requests) == 13
        assert not any(is_last(request) for request in house.provider.requests)
        assert len(await house.data(session, ToolSucceeded)) == 12


async def test_a_queued_prompt_begins_the_count_anew(tmp_path: Path) -> None:
    """Scenario 57."""
    tool = ScriptedTool("look")
    async with stepping_house(tmp_path, steps=2, tool=tool) as house:
        session = await house.session()
        await house.admit(session, "First", delivery="queue")
        await house.admit(session, "Second", delivery="queue")
        assert await house.sessions.resume(session) == CompletedOutcome()
        assert [is_last(request) for request in house.provider.requests] == [False, True, False, True]
        notes = [message for message in await house.history(session) if isinstance(message, SyntheticMessage)]
        assert [note.text for note in notes] == [LAST_STEP_INSTRUCTION] * 2


async def test_steers_that_are_promoted_together_begin_the_count_anew_once(tmp_path: Path) -> None:
    """In the middle of a run of two steps: the turn that carries them is the first of two."""
    tool = HeldTool("look")
    async with stepping_house(tmp_path, steps=2, tool=tool) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Look")
        await tool.wait_started()
        await house.sessions.prompt(session, "And left")
        await house.sessions.prompt(session, "And right")
        tool.release()
        await house.sessions.wait(session)
        assert [is_last(request) for request in house.provider.requests] == [False, False, True]
        assert said(house.provider.requests[1])[-2:] == [("user", "And left"), ("user", "And right")]
        assert len(await house.data(session, ToolCalled)) == 3
        assert tool.executions == 2


async def test_a_steer_in_the_last_step_is_answered_with_the_whole_allowance(tmp_path: Path) -> None:
    tool = ScriptedTool("look")
    held = hold()
    async with stepping_house(tmp_path, answer(held, text("Summary.")), steps=1, tool=tool) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Look")
        await held.reached.wait()
        await house.sessions.prompt(session, "And left")
        held.release()
        await house.sessions.wait(session)
        assert [is_last(request) for request in house.provider.requests] == [True, True]
        assert said(house.provider.requests[1])[-2:] == [("user", "And left"), ("user", LAST_STEP_INSTRUCTION)]


async def test_a_resume_without_input_has_an_allowance_of_its_own(tmp_path: Path) -> None:
    tool = ScriptedTool("look")
    async with stepping_house(tmp_path, steps=2, tool=tool) as house:
        session = await house.session()
        await house.ask(session, "Look")
        assert await house.sessions.resume(session) == CompletedOutcome()
        assert [is_last(request) for request in house.provider.requests] == [False, True, False, True]


async def test_neither_a_superseded_request_nor_a_cut_answer_uses_up_a_step(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Retries consume no steps, also where they are turns of their own."""
    tool = ScriptedTool("look")
    script = [status(429, headers={"Retry-After": "60"}), stream(text("Let me"), cut())]
    async with stepping_house(tmp_path, *script, steps=2, tool=tool) as house:
        session = await house.session()
        watch = await house.watch()
        await house.sessions.prompt(session, "Look")
        await watch.until(RetryScheduled)
        await house.sessions.switch_model(session, OTHER)
        await house.sessions.wait(session)
        assert [is_last(request) for request in house.provider.requests] == [False, False, False, True]
        assert tool.executions == 1
