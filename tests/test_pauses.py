"""A provider that pauses in the midst of its own work is given back what it said, and goes on."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from steerway.actors.configuration import Agent, Configuration, Model, ModelSelection, Provider
from steerway.protocol.values import CompletedOutcome, TurnCompleted
from support.answers import Answer, answer, event, stream, text
from support.house import OpenHouse, open_house
from support.provider import open_provider

RESULTS = [{"type": "web_search_result", "url": "https://e.org", "title": "E", "encrypted_content": "xyz"}]


@asynccontextmanager
async def searching(folder: Path, *answers: Answer, steps: int | None = None) -> AsyncGenerator[OpenHouse]:
    """A house that asks this protocol."""
    async with open_provider(*answers) as provider:
        asked = Provider(protocol="anthropic-messages", base_url=provider.base_url, models={"claude": Model()})
        settings = Configuration(
            providers={"anthropic": asked},
            models=ModelSelection(default="anthropic/claude"),
            agents={"build": Agent(steps=steps)},
        )
        async with open_house(provider, folder, settings=settings) as house:
            yield house


def _paused(*, settled: bool = True) -> Answer:
    """A search and its result, if it is `settled`, and then a pause."""
    call = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "e"}}
    result: dict[str, Any] = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": RESULTS}
    blocks = [call, result] if settled else [call]
    message: dict[str, Any] = {"id": "m", "role": "assistant", "content": [], "usage": {"input_tokens": 3}}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": message}]
    for index, block in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events.append({"type": "content_block_stop", "index": index})
    events.append({"type": "message_delta", "delta": {"stop_reason": "pause_turn"}, "usage": {"output_tokens": 2}})
    events.append({"type": "message_stop"})
    return stream(*[event(each, str(each["type"])) for each in events])


async def test_a_paused_answer_goes_on_with_what_was_said(tmp_path: Path) -> None:
    async with searching(tmp_path, _paused(), answer(text("Found it."))) as house:
        session = await house.session()
        assert await house.ask(session, "Search") == CompletedOutcome()
        ends = await house.data(session, TurnCompleted)
        assert [(end.finish, end.continues) for end in ends] == [("stop", True), ("stop", False)]
        last = house.provider.requests[1].messages[-1]
        assert last["role"] == "assistant"
        assert [block["type"] for block in last["content"]] == ["server_tool_use", "web_search_tool_result"]


async def test_a_call_that_a_pause_left_open_is_told_to_have_no_result(tmp_path: Path) -> None:
    async with searching(tmp_path, _paused(settled=False), answer(text("Never mind."))) as house:
        session = await house.session()
        assert await house.ask(session, "Search") == CompletedOutcome()
        call, result = house.provider.requests[1].messages[-2:]
        assert [block["type"] for block in call["content"]] == ["tool_use"]
        assert result["content"][0]["is_error"] is True


async def test_a_pause_on_the_last_step_ends_the_run(tmp_path: Path) -> None:
    async with searching(tmp_path, _paused(), steps=1) as house:
        session = await house.session()
        assert await house.ask(session, "Search") == CompletedOutcome()
        (end,) = await house.data(session, TurnCompleted)
        assert end.continues is False
