"""The demo model: the same answer to the same request, at a pace, with tools when they are asked for."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from steerway.actors.configuration import Configuration
from steerway.actors.models import DEMO_MODEL, Models
from steerway.protocol.llm.events import (
    Finished,
    LLMEvent,
    ProviderFailed,
    ReasoningDelta,
    TextDelta,
    ToolCall,
    ToolInputDelta,
)
from steerway.protocol.llm.request import (
    AssistantMessage,
    Call,
    Generation,
    LLMRequest,
    RequestMessage,
    Text,
    ToolMessage,
    UserMessage,
)
from steerway.protocol.values.tool import ToolDefinition

DATE = ToolDefinition(name="date", description="The date.", input_schema={"type": "object", "properties": {}})
READ = ToolDefinition(
    name="read",
    description="A file.",
    input_schema={"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
)
ADD = ToolDefinition(name="add", description="A sum.", input_schema={"type": "object", "required": ["a", "b"]})


def user(text: str) -> UserMessage:
    return UserMessage(content=(Text(text=text),))


def assistant(text: str) -> AssistantMessage:
    return AssistantMessage(content=(Text(text=text),))


def called(name: str, result: str, *, is_error: bool = False) -> tuple[RequestMessage, ...]:
    """A call that the model made, and its result."""
    return (
        AssistantMessage(content=(Call(id="c1", name=name, input={}),)),
        ToolMessage(call_id="c1", name=name, content=(Text(text=result),), is_error=is_error),
    )


async def ask(
    *messages: RequestMessage, tools: tuple[ToolDefinition, ...] = (DATE, READ, ADD), **fields: Any
) -> list[LLMEvent]:
    request: dict[str, Any] = {
        "model": "demo",
        "system": ("Be kind to newcomers.",),
        "messages": messages,
        "tools": tools,
        "tool_choice": "auto",
        "generation": Generation(),
        "options": {"delay": 0},
        "body": {},
    }
    models = Models(Configuration(), {})
    async with models.stream(models.resolve(DEMO_MODEL), LLMRequest(**(request | fields))) as batches:
        return [event async for batch in batches for event in batch]


def said(events: list[LLMEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def calls(events: list[LLMEvent]) -> list[tuple[str, dict[str, Any] | None]]:
    return [(event.name, event.input) for event in events if isinstance(event, ToolCall)]


def end(events: list[LLMEvent]) -> Finished:
    last = events[-1]
    assert isinstance(last, Finished)
    return last


async def test_a_first_prompt_is_repeated_and_the_model_introduces_itself():
    events = await ask(user("Hello there"))
    assert said(events).startswith("You asked: “Hello there”. I am the demo model")
    assert calls(events) == []
    assert end(events).finish == "stop"
    assert await ask(user("Hello there")) == events


async def test_tokens_are_words():
    events = await ask(user("Hello there"))
    tokens = end(events).tokens
    assert tokens.input == 4 + 2
    assert tokens.output == len(said(events).split())
    assert tokens.reasoning == 0


async def test_words_come_one_by_one_at_the_pace_asked_for(autojump_clock: MockClock):
    started = trio.current_time()
    events = await ask(user("Count to 4"), options={"delay": 0.5})
    deltas = [event.text for event in events if isinstance(event, TextDelta)]
    assert deltas[-4:] == ["1 ", "2 ", "3 ", "4."]
    assert trio.current_time() - started == pytest.approx(0.5 * len(deltas))


@pytest.mark.parametrize("delay", [-1, "fast", True, float("nan")])
async def test_a_pace_that_makes_no_sense_is_an_invalid_request(delay: object):
    (failed,) = await ask(user("Hello"), options={"delay": delay})
    assert isinstance(failed, ProviderFailed)
    assert failed.failure.type == "provider.invalid-request"


WISHES: list[tuple[str, list[Any]]] = [
    ("What is the date today?", [("date", {})]),
    ("Please use the date tool", [("date", {})]),
    ("Read notes.txt, please.", [("read", {"path": "notes.txt"})]),
    ("read the file `docs/a b/../c.md`", [("read", {"path": "docs/a"})]),
    ("Could you read the README for me?", [("read", {"path": "README"})]),
    ("read notes", [("read", {"path": "notes"})]),
    ("What is the date, and read /etc/hosts", [("date", {}), ("read", {"path": "/etc/hosts"})]),
    ('Call add with {"a": 1, "b": [2]} now', [("add", {"a": 1, "b": [2]})]),
    ("Use add", []),
    ("I already updated my spreadsheet", []),
    ("Hello", []),
]


@pytest.mark.parametrize(("prompt", "expected"), WISHES)
async def test_a_tool_is_called_when_the_prompt_asks_for_it(prompt: str, expected: list[Any]):
    events = await ask(user(prompt))
    assert calls(events) == expected
    assert end(events).finish == ("tool-calls" if expected else "stop")
    for event in events:
        if isinstance(event, ToolInputDelta):
            assert event.text in [call.raw for call in events if isinstance(call, ToolCall)]


async def test_a_tool_that_is_not_offered_or_switched_off_is_not_called():
    assert calls(await ask(user("What is the date?"), tools=())) == []
    events = await ask(user("What is the date?"), tool_choice="none")
    assert calls(events) == []
    assert "Tools are off" in said(events)
    assert end(events).finish == "stop"


async def test_the_result_of_a_call_is_the_answer_and_nothing_is_called_again():
    events = await ask(user("What is the date?"), *called("date", "2026-01-02"))
    assert said(events) == "The date tool says: 2026-01-02"
    assert calls(events) == []
    assert "failed: no such file" in said(await ask(user("read x.txt"), *called("read", "no such file", is_error=True)))
    assert len(said(await ask(user("read x.txt"), *called("read", "long " * 1000)))) < 700


async def test_a_steer_is_acknowledged_wherever_it_arrives():
    added = "You added: “make it short”."
    assert said(await ask(user("Tell a story"), user("make it short"))).startswith("You asked: “Tell a story”. " + added)
    assert said(await ask(user("Tell a story"), assistant("Once"), user("make it short"))).startswith(added)
    after_tool = said(await ask(user("the date?"), *called("date", "Monday"), user("make it short")))
    assert after_tool.startswith("The date tool says: Monday " + added)


async def test_it_thinks_aloud_when_asked_in_words_or_by_option():
    for events in (
        await ask(user("Think about it")),
        await ask(user("Hello"), options={"delay": 0, "reasoning": True}),
    ):
        thoughts = [event for event in events if isinstance(event, ReasoningDelta)]
        assert end(events).tokens.reasoning == len(thoughts) > 0
    assert end(await ask(user("Hello"))).tokens.reasoning == 0


async def test_an_output_limit_cuts_the_answer():
    events = await ask(user("Think, then tell the date"), generation=Generation(max_tokens=20))
    tokens = end(events).tokens
    assert tokens.output + tokens.reasoning == 20
    assert end(events).finish == "length"
    assert calls(events) == []


async def test_a_story_is_long_enough_to_interrupt_and_leaving_it_early_is_fine():
    assert len(said(await ask(user("Tell me a story")))) > 500
    models = Models(Configuration(), {})
    request = LLMRequest(
        model="demo",
        system=(),
        messages=(user("Tell me a story"),),
        tools=(),
        tool_choice="auto",
        generation=Generation(),
        options={"delay": 3600},
        body={},
    )
    with trio.CancelScope() as scope:
        async with models.stream(models.resolve(DEMO_MODEL), request) as batches:
            async for _ in batches:
                scope.cancel()
    assert scope.cancelled_caught
