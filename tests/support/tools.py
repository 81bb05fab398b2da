"""Scripted tools: a test decides what they do and sees what they got."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import trio

from steerway.actors.blocking import Blocking, Inline
from steerway.actors.tools.bounding import OnLost, OutputBounds
from steerway.actors.tools.capture import OutputLimits
from steerway.actors.tools.registry import ToolRegistry
from steerway.actors.tools.tool import UNATTENDED, CallOwner, DeclinedError, Tool, ToolContext, ToolFailure, ToolOutput
from steerway.protocol.values import CallId, Location, MessageId, SessionId, TextContent
from steerway.protocol.values.question import Question
from steerway.storage.outputs import OutputFiles


class ScriptedTool:
    """A tool with one optional input, `value`, that records every execution and then does what it was made for.

    `executions` counts the starts, `values` holds what each got, `contexts` the invocations. `settled` counts the normal ends,
    `cancellations` how often it was cancelled.
    """

    def __init__(self, name: str, answer: Callable[[str], Any] = lambda value: f"got {value}") -> None:
        self.name = name
        self.values: list[str] = []
        self.contexts: list[ToolContext] = []
        self.settled = 0
        self.cancellations = 0
        self.answer = answer
        self.tool = Tool.from_function(self._run, name=name, description=f"The scripted tool {name}.")

    @property
    def executions(self) -> int:
        return len(self.values)

    async def _run(self, context: ToolContext, value: str = "") -> Any:
        self.values.append(value)
        self.contexts.append(context)
        try:
            await self.act()
        except trio.Cancelled:
            self.cancellations += 1
            raise
        answer = self.answer(value)
        self.settled += 1
        return answer

    async def act(self) -> None:
        """What happens between start and answer; nothing, here."""


class HeldTool(ScriptedTool):
    """Blocks until `release()`. `wait_started(n)` returns once n executions have begun."""

    def __init__(self, name: str, answer: Callable[[str], Any] = lambda value: f"got {value}") -> None:
        super().__init__(name, answer)
        self._released = trio.Event()
        self._started = trio.Condition()

    async def act(self) -> None:
        async with self._started:
            self._started.notify_all()
        await self._released.wait()

    def release(self) -> None:
        """Let all executions go on, those to come included."""
        self._released.set()

    async def wait_started(self, count: int = 1) -> None:
        async with self._started:
            while self.executions < count:
                await self._started.wait()


class StubbornTool:
    """A plain function in a thread that knows nothing of cancellation and returns only when `release()` is called.

    `started` is set, from its thread, when it runs, `ended` when it has returned. Release it before the test ends.
    """

    def __init__(self, name: str, answer: str = "late") -> None:
        self.name = name
        self.executions = 0
        self.started = threading.Event()
        self.ended = threading.Event()
        self._released = threading.Event()
        self._answer = answer
        self.tool = Tool.from_function(self._run, name=name, description=f"The stubborn tool {name}.")

    def _run(self) -> str:
        self.executions += 1
        self.started.set()
        self._released.wait()
        self.ended.set()
        return self._answer

    def release(self) -> None:
        self._released.set()


def raising_tool(name: str, error: BaseException) -> ScriptedTool:
    """A tool that raises `error` each time."""

    def answer(_: str) -> Any:
        raise error

    return ScriptedTool(name, answer)


def failing_tool(name: str, message: str) -> ScriptedTool:
    """A tool that fails in its own words each time."""
    return raising_tool(name, ToolFailure(message))


def printing_tool(name: str, data: bytes | str) -> ScriptedTool:
    """A tool whose output is `data`."""
    return ScriptedTool(name, lambda _: data)


def byte_tool(name: str, count: int) -> ScriptedTool:
    """A tool that gives `count` bytes of text in lines of 80, the newline included."""
    line = "x" * 79 + "\n"
    return printing_tool(name, (line * (count // 80 + 1))[:count])


def structured_tool(name: str, structured: Any, text: str | None = None) -> ScriptedTool:
    """A tool that gives a structured value, with text beside it or alone."""
    content = () if text is None else (TextContent(text=text),)
    return ScriptedTool(name, lambda _: ToolOutput(content, structured))


class Asked(NamedTuple):
    """One permission that a call asked its session for."""

    action: str
    resources: tuple[str, ...]
    save: tuple[str, ...]
    metadata: dict[str, Any] | None


class ScriptedOwner:
    """A session that records what its calls ask for. It allows everything, unless `refusal` is set: that is raised.

    `meanwhile` is called while somebody would be asked. `answers` are what questions get; None dismisses them.
    """

    def __init__(self, refusal: Exception | None = None, answers: tuple[tuple[str, ...], ...] | None = None) -> None:
        self.refusal = refusal
        self.answers = answers
        self.meanwhile: Callable[[], object] = lambda: None
        self.asked: list[Asked] = []
        self.questions: list[tuple[Question, ...]] = []
        self.shown: list[str] = []
        self.progressed = trio.Event()

    async def authorize(
        self, action: str, resources: Sequence[str], *, save: Sequence[str] = (), metadata: dict[str, Any] | None = None
    ) -> None:
        self.asked.append(Asked(action, tuple(resources), tuple(save), metadata))
        await trio.lowlevel.checkpoint()
        self.meanwhile()
        if self.refusal is not None:
            raise self.refusal

    async def ask(self, questions: tuple[Question, ...]) -> tuple[tuple[str, ...], ...]:
        self.questions.append(questions)
        await trio.lowlevel.checkpoint()
        if self.answers is None:
            raise DeclinedError.of_question()
        return self.answers

    def progress(self, text: str) -> None:
        self.shown.append(text)
        self.progressed.set()


def make_context(
    directory: str | Path = "/", *, blocking: Blocking | None = None, call: str = "call_1", session: CallOwner = UNATTENDED
) -> ToolContext:
    """An invocation as a turn would make it. Blocking work runs in line, unless a test needs threads."""
    return ToolContext(
        session_id=SessionId("ses_test"),
        agent="build",
        assistant_message_id=MessageId("msg_test"),
        call_id=CallId(call),
        location=Location(directory=str(directory)),
        blocking=blocking or Inline(),
        session=session,
    )


def make_files(directory: str | Path, **options: Any) -> OutputFiles:
    """A folder of managed outputs whose names come from counters."""
    ticks = iter(range(1, 1_000_000))
    return OutputFiles(directory, now_ms=lambda: next(ticks), random_bytes=lambda n: next(ticks).to_bytes(n, "big"), **options)


def make_registry(
    directory: str | Path,
    *tools: Tool,
    limits: OutputLimits | None = None,
    blocking: Blocking | None = None,
    on_lost: OnLost | None = None,
    files: OutputFiles | None = None,
) -> ToolRegistry:
    """A registry whose managed outputs go to `directory`, with these tools process-wide."""
    bounds = OutputBounds(files or make_files(directory), blocking or Inline(), limits=limits, on_lost=on_lost)
    registry = ToolRegistry(bounds)
    for tool in tools:
        registry.register(tool)
    return registry
