"""Whole turns with answers of odd kinds: calls that somebody else has to run, annotations, ends that come with an interrupt."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from steerway.actors.configuration import Configuration, Model, ModelSelection, Provider, Store
from steerway.protocol.values import (
    AssistantMessage,
    CompletedOutcome,
    TextEnded,
    TextPart,
    ToolCompleted,
    ToolError,
    ToolPart,
    TurnCompleted,
    TurnInterrupted,
)
from support.answers import Answer, Part, answer, event, hold, stream, text
from support.house import OpenHouse, open_house
from support.provider import open_provider

RESPONSE: dict[str, Any] = {"id": "resp_1", "object": "response", "output": [], "error": None, "incomplete_details": None}


def items(*outputs: dict[str, Any]) -> Answer:
    """An answer of openai-responses with these output items."""
    parts: list[Part] = [
        event({"type": "response.output_item.done", "output_index": index, "item": item}) for index, item in enumerate(outputs)
    ]
    return stream(*parts, event({"type": "response.completed", "response": {**RESPONSE, "status": "completed"}}))


@asynccontextmanager
async def responding(folder: Path, *script: Answer) -> AsyncGenerator[tuple[OpenHouse, Any]]:
    async with open_provider(*script) as provider:
        scripted = Provider(protocol="openai-responses", base_url=provider.base_url, models={"m": Model()})
        given = Configuration(
            store=Store(synchronous="normal"), providers={"p": scripted}, models=ModelSelection(default="p/m")
        )
        async with open_house(provider, folder, settings=given) as house:
            yield house, provider


async def calls_of(house: OpenHouse, session: Any) -> list[ToolPart]:
    return [
        part
        for message in await house.history(session)
        if isinstance(message, AssistantMessage)
        for part in message.content
        if isinstance(part, ToolPart)
    ]


@pytest.mark.parametrize(
    "item",
    [
        {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c", "name": "sql", "input": "SELECT 1"},
        {"type": "computer_call", "id": "cu_1", "call_id": "c", "status": "completed", "action": {"type": "screenshot"}},
        {"type": "local_shell_call", "id": "l_1", "call_id": "c", "status": "completed", "action": {"command": ["ls"]}},
        {"type": "shell_call", "id": "s_1", "call_id": "c", "status": "completed", "action": {"commands": ["rm -r /"]}},
    ],
)
async def test_a_call_that_nobody_here_can_run_is_told_so_and_the_turn_goes_on(tmp_path: Path, item: dict[str, Any]) -> None:
    async with responding(tmp_path, items(item)) as (house, provider):
        session = await house.session()
        assert await house.ask(session, "Hello") == CompletedOutcome()
        (call,) = await calls_of(house, session)
        assert isinstance(call.state, ToolError)
        called, result = provider.requests[1].json["input"][-2:]
        assert (called["type"], called["call_id"], called["name"]) == ("function_call", "c", item.get("name", item["type"]))
        assert (result["type"], result["call_id"]) == ("function_call_output", "c")
        assert result["output"].startswith("Error: ")


async def test_a_request_for_an_approval_ends_the_turn_and_says_that_there_is_none(tmp_path: Path) -> None:
    item = {"type": "mcp_approval_request", "id": "mcpr_1", "arguments": "{}", "name": "roll", "server_label": "dice"}
    async with responding(tmp_path, items(item)) as (house, provider):
        session = await house.session()
        assert await house.ask(session, "Hello") == CompletedOutcome()
        assert len(provider.requests) == 1
        (call,) = await calls_of(house, session)
        assert isinstance(call.state, ToolError)
        assert "require_approval" in str(call.state.result)
        assert await house.ask(session, "Then?") == CompletedOutcome()
        assert "require_approval" in json.dumps(provider.requests[1].json["input"])


async def test_a_picture_that_the_provider_made_is_kept_and_sent_back(tmp_path: Path) -> None:
    item = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "aGVsbG8="}
    async with responding(tmp_path, items(item)) as (house, provider):
        session = await house.session()
        assert await house.ask(session, "Draw") == CompletedOutcome()
        (call,) = await calls_of(house, session)
        assert isinstance(call.state, ToolCompleted)
        assert await house.ask(session, "Again") == CompletedOutcome()
        assert item in provider.requests[1].json["input"]


async def test_annotations_are_part_of_the_message_and_not_of_the_next_request(tmp_path: Path) -> None:
    cited = {"type": "url_citation", "url": "https://e.org", "title": "E", "start_index": 0, "end_index": 1}
    said = {"type": "output_text", "text": "E.", "annotations": [cited]}
    item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [said]}
    async with responding(tmp_path, items(item)) as (house, provider):
        session = await house.session()
        assert await house.ask(session, "Hello") == CompletedOutcome()
        message = (await house.history(session))[-1]
        assert isinstance(message, AssistantMessage)
        (part,) = message.content
        assert isinstance(part, TextPart)
        assert part.metadata == {"openai-responses": {"annotations": [cited]}}
        assert await house.ask(session, "And?") == CompletedOutcome()
        assert {"role": "assistant", "content": "E."} in provider.requests[1].json["input"]


async def test_an_interrupt_after_the_end_of_an_answer_leaves_it_whole(tmp_path: Path, autojump_clock: MockClock) -> None:
    script = answer(text("All of it."))
    script.parts += (hold(),)
    async with open_provider(script) as provider, open_house(provider, tmp_path) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Hello")
        async with house.sessions.events(session) as events:
            async for one in events:
                if isinstance(one.data, TextEnded):
                    break
        await house.sessions.interrupt(session)
        await script.disconnected.wait()
        await house.sessions.wait(session)
        assert [data.finish for data in await house.data(session, TurnCompleted)] == ["stop"]
        assert await house.data(session, TurnInterrupted) == []
