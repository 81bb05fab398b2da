"""The demo model: answers without key and network, for the first run, for examples and for load.

Rules:
- The same request gets the same answer. Nothing is kept between requests; only the pace depends on the clock.
- Options: `delay`, seconds between deltas (default 0.01; 0 still lets other tasks run between two), and `reasoning`, true to
  think aloud first. Asking to think does that too.
- It calls a tool that is offered when the latest input asks for it: "use the NAME tool", the date, "read FILE". Arguments are
  a JSON object in the input, or the file named there. It never calls one when tool choice is none.
- It answers with the results of its calls, and says what was added or told since its last answer: so a steer, and a change of
  the context, can be seen to arrive.
- Tokens are words.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Any, Final, cast

import trio
from msgspec import Struct

from ...protocol.llm.events import (
    Finished,
    LLMEvent,
    ProviderFailed,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCall,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
)
from ...protocol.llm.request import (
    AssistantMessage,
    Call,
    LLMRequest,
    Reasoning,
    RequestMessage,
    SystemUpdate,
    Text,
    ToolMessage,
    UserMessage,
)
from ...protocol.values.failure import PROVIDER_INVALID_REQUEST, Failure
from ...protocol.values.message import Finish
from ...protocol.values.model import CacheTokens, Tokens
from ...protocol.values.tool import ToolDefinition

DEFAULT_DELAY: Final = 0.01
"""Seconds between deltas."""
MAX_COUNT: Final = 100_000
_MAX_QUOTE: Final = 600

_INTRODUCTION: Final = (
    "I am the demo model: I live inside Steerway, need no key and no network, and give the same answer to the same question. "
    "Each word reaches you as its own event, and the whole answer is stored once it is complete. "
    "Ask me to use the date tool, to read a file, to think first, to tell a story, or to count to 100."
)
_STORY: Final = (
    "Once there was a small program that never forgot a promise.",
    "Every evening people left notes on its desk, and it wrote each note into a thick book before it said thank you.",
    "One night the lights went out in the middle of a sentence.",
    "When they came back, the program opened the book, found the last finished line, and marked the one that was not.",
    "It did not pretend that the night had never happened, and it did not start the day again from the first page.",
    "The notes that nobody had answered yet still lay in their order, and so it took up the first of them.",
    "Somebody leaned in and whispered a correction while it was speaking; it nodded, and its next words were different.",
    "Somebody else said stop, and it stopped, and what was waiting kept waiting.",
    "Two visitors who came at different hours read the same book, line by line, and told each other the same story.",
    "And because the book was always written before the answer was given, nobody ever had to ask whether it had understood.",
)
_THINK: Final = re.compile(r"\b(?:think|reason|reflect)", re.IGNORECASE)
_COUNT: Final = re.compile(r"\bcount(?:ing)?\s+(?:up\s+)?to\s+(\d{1,9})\b", re.IGNORECASE)
_TELL: Final = re.compile(r"\b(?:story|tale|long answer)\b", re.IGNORECASE)
_DATE: Final = re.compile(r"\b(?:date|today|time is it)\b", re.IGNORECASE)
_READ: Final = re.compile(r"\bread\b", re.IGNORECASE)
_FILE: Final = re.compile(r"[\w~-]*[./][\w./~-]*\w|\b[A-Z]{4,}\b")
_AFTER_READ: Final = re.compile(r"\bread\s+(?:the\s+)?(?:file\s+|folder\s+)?[`'\"“]?([\w~-]+)", re.IGNORECASE)
_WORD: Final = re.compile(r"\S+\s*")


class _Answer(Struct, frozen=True):
    reasoning: str
    text: str
    calls: tuple[tuple[str, dict[str, Any]], ...]


async def play(request: LLMRequest) -> AsyncGenerator[list[LLMEvent], None]:
    """The answer in batches of one event, at the pace that the options ask for. Close it when leaving it early."""
    delay = request.options.get("delay", DEFAULT_DELAY)
    if isinstance(delay, bool) or not isinstance(delay, int | float) or not 0 <= delay <= 3600:
        message = "The option delay of a demo model is a number of seconds from 0 to 3600."
        yield [ProviderFailed(failure=Failure(type=PROVIDER_INVALID_REQUEST, message=message))]
        return
    for event in _events(request, _answer(request)):
        await trio.sleep(delay if isinstance(event, TextDelta | ReasoningDelta) else 0)
        yield [event]


def _events(request: LLMRequest, answer: _Answer) -> Iterator[LLMEvent]:
    thoughts, words = _WORD.findall(answer.reasoning), _WORD.findall(answer.text)
    limit = request.generation.max_tokens
    cut = limit is not None and len(thoughts) + len(words) > limit
    if limit is not None:
        thoughts = thoughts[:limit]
        words = words[: limit - len(thoughts)]
    if thoughts:
        yield ReasoningStart(id="reasoning")
        for word in thoughts:
            yield ReasoningDelta(id="reasoning", text=word)
        yield ReasoningEnd(id="reasoning")
    if words:
        yield TextStart(id="text")
        for word in words:
            yield TextDelta(id="text", text=word)
        yield TextEnd(id="text")
    calls = () if cut else answer.calls
    for place, (name, input) in enumerate(calls, 1):
        id, raw = f"call-{place}", json.dumps(input)
        yield ToolInputStart(id=id, name=name)
        yield ToolInputDelta(id=id, text=raw)
        yield ToolInputEnd(id=id)
        yield ToolCall(id=id, provider_call_id=f"demo-{len(request.messages)}-{place}", name=name, raw=raw, input=input)
    finish: Finish = "length" if cut else "tool-calls" if calls else "stop"
    said = [*request.system, *(text for message in request.messages for text in _texts(message))]
    yield Finished(
        finish=finish,
        tokens=Tokens(
            input=sum(len(text.split()) for text in said),
            output=len(words),
            reasoning=len(thoughts),
            cache=CacheTokens(read=0, write=0),
        ),
        raw_finish=finish,
    )


def _answer(request: LLMRequest) -> _Answer:
    """What is said to this request: it depends on what came since the model last spoke."""
    news = list(takewhile(lambda message: not isinstance(message, AssistantMessage), reversed(request.messages)))[::-1]
    spoke_before = len(news) < len(request.messages)
    results = [message for message in news if isinstance(message, ToolMessage)]
    inputs = [" ".join(_texts(message)) for message in news if isinstance(message, UserMessage)]
    asked = " ".join(inputs)
    calls = tuple(_calls(asked, request.tools))
    off = bool(calls) and request.tool_choice == "none"
    if off:
        calls = ()
    said = [_result(message) for message in results]
    said += [_quoted("You added" if place or spoke_before else "You asked", text) for place, text in enumerate(inputs)]
    said += [_quoted("I was told meanwhile", message.text) for message in news if isinstance(message, SystemUpdate)]
    if off:
        said.append("Tools are off for this answer, so words have to do.")
    if calls:
        said.append(f"Let me use {_listed(name for name, _ in calls)} for that.")
    elif asked:
        said.append(_reply(asked, spoke_before))
    reasoning = ""
    if request.options.get("reasoning") is True or _THINK.search(asked):
        intent = f"It takes {_listed(name for name, _ in calls)}." if calls else "It takes no tool, only words."
        reasoning = f"There are {len(request.messages)} messages before me and {len(request.tools)} tools beside me. {intent}"
    return _Answer(reasoning, " ".join(said) or _INTRODUCTION, calls)


def _reply(asked: str, spoke_before: bool) -> str:
    if count := _COUNT.search(asked):
        return " ".join(str(number) for number in range(1, min(int(count[1]), MAX_COUNT) + 1)) + "."
    if _TELL.search(asked):
        return " ".join(_STORY)
    return "I take it from here, with that in mind." if spoke_before else _INTRODUCTION


def _result(message: ToolMessage) -> str:
    text = " ".join(_texts(message)).strip() or "nothing"
    if len(text) > _MAX_QUOTE:
        text = f"{text[:_MAX_QUOTE].rstrip()} …"
    return f"The {message.name} tool failed: {text}" if message.is_error else f"The {message.name} tool says: {text}"


def _quoted(lead: str, text: str) -> str:
    line = " ".join(text.split())
    return f"{lead}: “{line if len(line) <= _MAX_QUOTE else line[:_MAX_QUOTE].rstrip() + ' …'}”."


def _listed(names: Iterable[str]) -> str:
    return " and ".join(f"the {name} tool" for name in names)


def _calls(asked: str, tools: Sequence[ToolDefinition]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The calls that the input asks for, in the order of the tools offered."""
    for tool in tools:
        if _wants(asked, tool.name) and (input := _arguments(asked, tool)) is not None:
            yield tool.name, input


def _wants(asked: str, name: str) -> bool:
    if (name == "date" and _DATE.search(asked)) or (name == "read" and _READ.search(asked)):
        return True
    return re.search(rf"\b(?:use|call|run|try)\b[^.?!]*\b{re.escape(name)}\b", asked, re.IGNORECASE) is not None


def _arguments(asked: str, tool: ToolDefinition) -> dict[str, Any] | None:
    """A JSON object in the input, else the named file for the one required argument; None when neither fits."""
    if (brace := asked.find("{")) >= 0:
        try:
            found: object = json.JSONDecoder().raw_decode(asked, brace)[0]
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict):
            return cast("dict[str, Any]", found)
    required = cast("list[str]", tool.input_schema.get("required", []))
    if not required:
        return {}
    file = _FILE.search(asked) or _AFTER_READ.search(asked)
    if len(required) > 1 or file is None:
        return None
    return {required[0]: file[file.lastindex or 0]}


def _texts(message: RequestMessage) -> Iterator[str]:
    if isinstance(message, SystemUpdate):
        yield message.text
        return
    for part in message.content:
        match part:
            case Text(text=text) | Reasoning(text=text):
                yield text
            case Call(input=input):
                yield json.dumps(input)
            case _:
                pass
