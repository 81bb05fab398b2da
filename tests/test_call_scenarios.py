"""The acceptance scenarios about calls and their turns that no other module has, by number, through the public surface."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from trio.testing import wait_all_tasks_blocked

from steerway.actors.configuration import Agent, Configuration, PermissionRule, Provider, Store
from steerway.actors.tools.tool import ToolContext, tool
from steerway.protocol.values import (
    Activity,
    AssistantMessage,
    CompletedOutcome,
    FailedOutcome,
    Location,
    MessageId,
    ModelRef,
    SessionId,
    SyntheticMessage,
    TextDelta,
    ToolCalled,
    ToolCompleted,
    ToolError,
    ToolFailed,
    ToolPart,
    ToolSucceeded,
    TurnFailed,
)
from steerway.protocol.values.errors import ConflictError
from steerway.protocol.values.event import ToolProgress
from steerway.protocol.values.failure import (
    ABORTED,
    TOOL_EXECUTION,
    TOOL_RESULT_MISSING,
    TOOL_UNKNOWN,
)
from support.answers import Answer, Part, Raw, answer, event, hold, status, stream, text, tool_call
from support.house import OpenHouse, Ticks, configuration, crash_image, open_house, said, scripted_house
from support.provider import Provider as ScriptedProvider
from support.provider import open_provider
from support.tools import HeldTool, ScriptedTool, raising_tool

CLAUDE = ModelRef(provider="anthropic", id="claude-1")


# --- admission and the coordinator --------------------------------------------------------------------------------


async def test_a_synthetic_messages_id_is_no_prompts(tmp_path: Path) -> None:
    """Scenario 9."""
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        await house.ask(session, "Hello")
        await house.sessions.resume(session)
        (note,) = [message for message in await house.history(session) if isinstance(message, SyntheticMessage)]
        before = await house.events(session)
        with pytest.raises(ConflictError):
            await house.sessions.prompt(session, note.text, id=note.id)
        assert await house.events(session) == before


async def test_pending_prompts_are_listed_in_order_until_they_are_promoted(tmp_path: Path) -> None:
    """Scenario 20."""
    held = hold()
    async with scripted_house(tmp_path, answer(text("Hi"), held)) as house:
        session = await house.session()
        ids = [MessageId(f"msg_{number}") for number in range(4)]
        for id, delivery in zip(ids, ("queue", "steer", "queue", "steer"), strict=True):
            await house.admit(session, "Hello", id=id, delivery=delivery)
        assert await house.pending(session) == ids
        resumed = house.task(lambda: house.sessions.resume(session))
        await held.reached.wait()
        assert await house.pending(session) == [ids[0], ids[2]]
        held.release()
        assert await resumed.result() == CompletedOutcome()
        assert await house.pending(session) == []


async def test_a_failed_drain_leaves_the_active_ones_and_says_so_once(tmp_path: Path) -> None:
    """Scenarios 35 and 37: whoever is told of the end finds the session at rest."""
    async with scripted_house(tmp_path, status(400)) as house:
        session = await house.session()
        watch = await house.watch()
        outcome = await house.ask(session, "Hello")
        assert isinstance(outcome, FailedOutcome)
        assert await house.sessions.active() == {}
        await wait_all_tasks_blocked()
        assert [(activity.state, activity.outcome) for activity in watch.of(Activity)] == [("running", None), ("idle", outcome)]


async def test_each_session_has_a_cache_key_of_its_own_at_every_turn(tmp_path: Path) -> None:
    """Scenarios 52 and 53."""
    digits = "0123456789abcdef" * 4
    async with scripted_house(tmp_path) as house:
        sessions = [await house.session(), await house.session(id=SessionId(f"ses_{digits}"))]
        for session in sessions * 2:
            await house.ask(session, "Hello")
        keys = [request.json["prompt_cache_key"] for request in house.provider.requests]
        assert keys == [sessions[0], digits] * 2


# --- local calls --------------------------------------------------------------------------------------------------


async def test_a_tool_that_breaks_is_an_error_for_the_model_without_our_insides(tmp_path: Path) -> None:
    """Scenario 69."""
    broken = raising_tool("look", RuntimeError("secret inside"))
    async with scripted_house(tmp_path, answer(tool_call("look")), tools=[broken.tool]) as house:
        session = await house.session()
        assert await house.ask(session, "Look") == CompletedOutcome()
        (failed,) = await house.data(session, ToolFailed)
        assert failed.error.type == TOOL_EXECUTION
        role, content = said(house.provider.requests[1])[-1]
        assert role == "tool"
        assert "secret" not in content


async def test_an_interrupted_call_is_in_the_next_request_as_an_error(tmp_path: Path) -> None:
    """Scenarios 71 and 72."""
    blocked, quick = HeldTool("block"), ScriptedTool("quick")
    script = answer(text("On it"), tool_call("block"), tool_call("quick"))
    async with scripted_house(tmp_path, script, tools=[blocked.tool, quick.tool]) as house:
        session = await house.session()
        watch = await house.watch()
        await house.sessions.prompt(session, "Look")
        await blocked.wait_started()
        await watch.until(ToolSucceeded)
        await house.sessions.interrupt(session)
        assert blocked.cancellations == 1
        (failed,) = await house.data(session, ToolFailed)
        assert failed.error.type == ABORTED
        assert await house.ask(session, "Go on") == CompletedOutcome()
        roles = [role for role, _ in said(house.provider.requests[1])]
        assert roles == ["user", "assistant", "tool", "tool", "user"]
        assert said(house.provider.requests[1])[3] == ("tool", "got")


async def test_what_a_call_is_doing_is_shown_live_and_its_settlement_replaces_it(tmp_path: Path) -> None:
    """Scenario 75, by this project's events: progress is live only."""

    @tool(name="steps")
    async def steps(context: ToolContext) -> str:
        """Take steps."""
        for number in range(3):
            context.session.progress(f"step {number}")
        return "there"

    async with scripted_house(tmp_path, answer(tool_call("steps")), tools=[steps]) as house:
        session = await house.session()
        watch = await house.watch()
        assert await house.ask(session, "Walk") == CompletedOutcome()
        await watch.until(ToolSucceeded)
        kinds = [
            type(event.data) for event in watch.events if isinstance(event.data, ToolCalled | ToolProgress | ToolSucceeded)
        ]
        assert kinds == [ToolCalled, *[ToolProgress] * 3, ToolSucceeded]
        assert [data.text for data in watch.of(ToolProgress)] == ["step 0", "step 1", "step 2"]
        assert "tool.progress" not in await house.types(session)


async def test_a_raw_input_becomes_the_parsed_object(tmp_path: Path) -> None:
    """Scenario 77."""
    look = ScriptedTool("look")
    call = tool_call("look", ['{"va', 'lue": ', '"\\u00e9', ' x"}'])
    async with scripted_house(tmp_path, answer(call), tools=[look.tool]) as house:
        session = await house.session()
        await house.ask(session, "Look")
        assert look.values == ["é x"]
        (called,) = await house.data(session, ToolCalled)
        assert called.input == {"value": "é x"}


async def test_a_call_runs_what_was_offered_to_its_turn(tmp_path: Path) -> None:
    """Scenario 79, as decided here: a registration that ends counts from the next turn; others are not affected."""
    look, other = HeldTool("look"), ScriptedTool("other")
    held = hold()
    first = answer(tool_call("other"), held, tool_call("look"))
    async with scripted_house(tmp_path, first, answer(tool_call("look")), tools=[other.tool]) as house:
        registration = house.runtime.tools.register(look.tool)
        session = await house.session()
        await house.sessions.prompt(session, "Look")
        await held.reached.wait()
        registration.close()
        held.release()
        await look.wait_started()
        look.release()
        await house.sessions.wait(session)
        offered = [{tool["function"]["name"] for tool in request.tools} for request in house.provider.requests]
        assert ["look" in names for names in offered] == [True, False, False]
        (failed,) = await house.data(session, ToolFailed)
        assert failed.error.type == TOOL_UNKNOWN
        assert (look.executions, other.executions) == (1, 1)


async def test_a_denied_tool_is_not_offered_and_a_narrower_allow_brings_it_back(tmp_path: Path) -> None:
    """Scenario 82."""
    look = ScriptedTool("look")
    deny = PermissionRule(action="look", resource="*", effect="deny")
    narrow = PermissionRule(action="look", resource="here", effect="allow")
    async with open_provider(answer(tool_call("look"))) as provider:
        settings = configuration(provider)
        settings.agents.update({"blind": Agent(permissions=(deny,)), "short": Agent(permissions=(deny, narrow))})
        async with open_house(provider, tmp_path, settings=settings, tools=[look.tool]) as house:
            blind, short = await house.session(agent="blind"), await house.session(agent="short")
            await house.ask(blind, "Look")
            await house.ask(short, "Look")
            offered = ["look" in {tool["function"]["name"] for tool in request.tools} for request in provider.requests]
            assert offered == [False, False, True]
            (failed,) = await house.data(blind, ToolFailed)
            assert failed.error.type == TOOL_UNKNOWN
            assert look.executions == 0


async def test_a_tool_of_the_location_is_the_one_that_runs_there(tmp_path: Path) -> None:
    """Scenario 83."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    everywhere, here = ScriptedTool("look", lambda _: "everywhere"), ScriptedTool("look", lambda _: "here")
    script = [answer(tool_call("look")), answer(text("Done.")), answer(tool_call("look"))]
    async with scripted_house(tmp_path, *script, tools=[everywhere.tool]) as house:
        house.runtime.tools.register(here.tool, location=str(tmp_path))
        for session in (await house.session(), await house.session(location=Location(directory=str(elsewhere)))):
            await house.ask(session, "Look")
        assert (here.executions, everywhere.executions) == (1, 1)


# --- calls that the provider runs ---------------------------------------------------------------------------------

CALL = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "e"}}
RESULT = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": [{"type": "web_search_result", "url": "https://example.org", "encrypted_content": "hidden"}],
}
STOP = event({"type": "message_stop"})


def block(index: int, content: dict[str, Any]) -> Raw:
    return event({"type": "content_block_start", "index": index, "content_block": content})


def words(index: int, said: str) -> Raw:
    return event({"type": "content_block_delta", "index": index, "delta": {"type": "text_delta", "text": said}})


@asynccontextmanager
async def searching_house(provider: ScriptedProvider, folder: Path, **fields: Any) -> AsyncGenerator[OpenHouse]:
    """A house whose model searches the web by itself."""
    settings = Configuration(
        store=Store(synchronous="normal"),
        providers={"anthropic": Provider(protocol="anthropic-messages", base_url=provider.base_url)},
    )
    async with open_house(provider, folder, settings=settings, **fields) as house:
        yield house


async def test_a_hosted_result_goes_back_as_it_came_and_causes_no_continuation(tmp_path: Path) -> None:
    """Scenario 74."""
    script = stream(block(0, CALL), block(1, RESULT), words(2, "E."), STOP)
    async with open_provider(script) as provider, searching_house(provider, tmp_path) as house:
        session = await house.session(model=CLAUDE)
        assert await house.ask(session, "Search") == CompletedOutcome()
        assert len(provider.requests) == 1
        await house.ask(session, "Thanks")
        sent = provider.requests[1].json["messages"][1]["content"]
        assert [part["type"] for part in sent] == ["server_tool_use", "web_search_tool_result", "text"]
        assert sent[1]["content"] == RESULT["content"]
        (part,) = await tool_parts(house, session)
        assert isinstance(part.state, ToolCompleted)


@pytest.mark.parametrize(
    ("end", "fails"),
    [
        ((words(1, "Hm."), STOP), False),
        ((event({"type": "error", "error": {"type": "invalid_request_error", "message": "No."}}, "error"),), True),
    ],
    ids=["normal end", "provider error"],
)
async def test_a_hosted_call_without_a_result_is_failed_and_poisons_nothing(
    tmp_path: Path, end: tuple[Part, ...], fails: bool
) -> None:
    """Scenario 73."""
    async with open_provider(stream(block(0, CALL), *end)) as provider, searching_house(provider, tmp_path) as house:
        session = await house.session(model=CLAUDE)
        assert isinstance(await house.ask(session, "Search"), FailedOutcome if fails else CompletedOutcome)
        (failed,) = await house.data(session, ToolFailed)
        assert failed.error.type in (TOOL_RESULT_MISSING, ABORTED)
        assert len(await house.data(session, TurnFailed)) == fails
        assert await house.ask(session, "Go on") == CompletedOutcome()
        assert "srvtoolu_1" not in json.dumps(provider.requests[1].json) or balanced(provider.requests[1].json)


async def test_a_hosted_call_that_a_dead_process_left_is_failed(tmp_path: Path) -> None:
    """Scenario 66."""
    held = hold()
    ticks = Ticks()
    script: Answer = stream(block(0, CALL), words(1, "Hm."), held)
    async with open_provider(script) as provider:
        async with searching_house(provider, tmp_path, ticks=ticks) as house:
            session = await house.session(model=CLAUDE)
            watch = await house.watch()
            await house.sessions.prompt(session, "Search")
            await held.reached.wait()
            await watch.until(TextDelta)
            image = crash_image(house, tmp_path / "next")
        async with searching_house(provider, image, ticks=ticks) as house:
            (part,) = await tool_parts(house, session)
            assert isinstance(part.state, ToolError)
            assert await house.ask(session, "Go on") == CompletedOutcome()
            assert "srvtoolu_1" not in json.dumps(provider.requests[1].json) or balanced(provider.requests[1].json)


async def tool_parts(house: OpenHouse, session: SessionId) -> list[ToolPart]:
    messages = [message for message in await house.history(session) if isinstance(message, AssistantMessage)]
    return [part for message in messages for part in message.content if isinstance(part, ToolPart)]


def balanced(request: Mapping[str, Any]) -> bool:
    """Every search that is sent has its result, or is sent as text."""
    parts = [part for message in request["messages"] if isinstance(message["content"], list) for part in message["content"]]
    called = {part["id"] for part in parts if part["type"] == "server_tool_use"}
    ended = {part["tool_use_id"] for part in parts if part["type"].endswith("_tool_result")}
    return called == ended
