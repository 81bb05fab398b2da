"""The Tool contract, the registry, and what calls come to.

Long, because contract, registry and calls share the same tools.
"""

from __future__ import annotations

import enum
import os
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import msgspec
import pytest
import trio
from msgspec import Meta
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from steerway.actors.blocking import Threads
from steerway.actors.tools.registry import ToolRegistry, ToolSet
from steerway.actors.tools.settlement import Failed, Settlement, Succeeded
from steerway.actors.tools.tool import Tool, ToolContext, ToolFailure, ToolOutput, tool
from steerway.protocol.values import FileContent, Location, TextContent
from support.tools import (
    HeldTool,
    ScriptedTool,
    StubbornTool,
    failing_tool,
    make_context,
    make_registry,
    raising_tool,
    structured_tool,
)

HERE = Location(directory="/here")


def offered(registry: ToolRegistry, location: Location = HERE) -> ToolSet:
    return registry.materialise(location, "build")


async def settle(tools: ToolSet, name: str, arguments: dict[str, Any] | None, raw: str = "") -> Settlement:
    context = make_context("/here")
    return await tools.bound(await tools.run(name, arguments, raw, context), context)


async def settle_one(made: Tool, tmp_path: Path, arguments: dict[str, Any] | None = None, raw: str = "") -> Settlement:
    return await settle(offered(make_registry(tmp_path, made)), made.name, {} if arguments is None else arguments, raw)


def failure(settlement: Settlement) -> tuple[str, str]:
    assert isinstance(settlement, Failed)
    return settlement.error.type, settlement.error.message


def text(settlement: Settlement) -> str:
    assert isinstance(settlement, Succeeded)
    (item,) = settlement.content
    assert isinstance(item, TextContent)
    return item.text


# --- from a function to a tool ------------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(msgspec.Struct):
    x: int
    y: int = 0


class Node(msgspec.Struct):
    name: str
    children: list[Node] = []


class Cat(msgspec.Struct, tag="cat"):
    lives: int


class Dog(msgspec.Struct, tag="dog"):
    bones: int


@tool
def paint(
    context: ToolContext,
    at: Point,
    colour: Colour = Colour.RED,
    width: Annotated[int, Meta(ge=1, description="In pixels.")] = 1,
    mode: Literal["fill", "line"] = "fill",
) -> str:
    """Paint something.

    More about it.
    """
    return f"{context.agent} {at.x},{at.y} {colour.value} {width} {mode}"


@tool
def grow(tree: Node, pets: list[Cat | Dog], properties: dict[str, Point]) -> str:
    """Grow a tree."""
    return f"{tree.name} {len(tree.children)} {len(pets)} {len(properties)}"


def test_a_function_is_described_by_its_signature_and_docstring() -> None:
    assert paint.name == "paint"
    assert paint.definition.description == "Paint something.\n\nMore about it."
    assert paint.definition.input_schema == {
        "type": "object",
        "properties": {
            "at": {
                "title": "Point",
                "type": "object",
                "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}},
                "required": ["x"],
            },
            "colour": {"title": "Colour", "enum": ["blue", "red"], "default": "red"},
            "width": {"type": "integer", "minimum": 1, "description": "In pixels.", "default": 1},
            "mode": {"enum": ["fill", "line"], "default": "fill"},
        },
        "required": ["at"],
        "additionalProperties": False,
    }


def test_only_recursive_definitions_stay_references_and_the_schema_holds_them() -> None:
    schema = grow.definition.input_schema
    assert set(schema["$defs"]) == {"Node"}
    assert schema["properties"]["tree"] == {"$ref": "#/$defs/Node"}
    assert schema["$defs"]["Node"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Node"}
    assert "discriminator" not in str(schema)
    assert schema["properties"]["properties"]["additionalProperties"]["properties"]["x"] == {"type": "integer"}
    assert msgspec.json.decode(msgspec.json.encode(schema)) == schema


async def test_a_nested_input_arrives_decoded(tmp_path: Path) -> None:
    tree = {"name": "oak", "children": [{"name": "leaf"}]}
    pets = [{"type": "cat", "lives": 9}, {"type": "dog", "bones": 2}]
    assert text(await settle_one(grow, tmp_path, {"tree": tree, "pets": pets, "properties": {}})) == "oak 1 2 0"
    assert text(await settle_one(paint, tmp_path, {"at": {"x": 1}, "colour": "blue"})) == "build 1,0 blue 1 fill"


def test_what_cannot_be_a_tool_is_refused_when_it_is_defined() -> None:
    def without_annotation(a) -> str:  # pyright: ignore[reportUnknownParameterType, reportMissingParameterType]
        "Doc."
        return ""

    def with_rest(*a: int) -> str:
        "Doc."
        return ""

    def positional(a: int, /) -> str:
        "Doc."
        return ""

    def unspeakable(a: complex) -> str:
        "Doc."
        return ""

    def gives_unspeakable() -> complex:
        "Doc."
        return 1j

    def without_docstring() -> str:
        return ""

    def generator() -> Any:
        "Doc."
        yield 1

    wrong: list[Any] = [
        without_annotation,
        with_rest,
        positional,
        unspeakable,
        gives_unspeakable,
        without_docstring,
        generator,
        lambda: "x",
    ]
    for function in wrong:
        with pytest.raises(TypeError):
            Tool.from_function(function)


@pytest.mark.parametrize("name", ["", "1a", "a b", "a.b", "x" * 65, "ä"])
def test_a_name_is_a_letter_and_up_to_63_plain_characters(name: str) -> None:
    with pytest.raises(TypeError, match="tool name"):
        ScriptedTool(name)


# --- the registry -------------------------------------------------------------------------------------------------


async def test_the_latest_registration_wins_and_closing_it_reveals_the_former(tmp_path: Path) -> None:
    registry = make_registry(tmp_path, ScriptedTool("t", lambda _: "first").tool)
    second = registry.register(ScriptedTool("t", lambda _: "second").tool)
    with registry.register(ScriptedTool("t", lambda _: "third").tool):
        assert text(await settle(offered(registry), "t", {})) == "third"
        second.close()
        second.close()
        assert text(await settle(offered(registry), "t", {})) == "third"
    assert text(await settle(offered(registry), "t", {})) == "first"


async def test_a_tool_of_the_location_shadows_a_process_wide_one_registered_later(tmp_path: Path) -> None:
    registry = make_registry(tmp_path)
    local = registry.register(ScriptedTool("t", lambda _: "local").tool, location="/here/")
    registry.register(ScriptedTool("t", lambda _: "wide").tool)
    assert text(await settle(offered(registry), "t", {})) == "local"
    assert text(await settle(offered(registry, Location(directory="/there")), "t", {})) == "wide"
    local.close()
    assert text(await settle(offered(registry), "t", {})) == "wide"


def test_the_offered_definitions_are_sorted_by_name(tmp_path: Path) -> None:
    registry = make_registry(tmp_path, *(ScriptedTool(name).tool for name in ("b", "c", "a")))
    assert [definition.name for definition in offered(registry).definitions] == ["a", "b", "c"]


async def test_a_call_runs_the_generation_that_was_offered(tmp_path: Path) -> None:
    registry = make_registry(tmp_path)
    registration = registry.register(ScriptedTool("t", lambda _: "offered").tool)
    tools = offered(registry)
    registration.close()
    registry.register(ScriptedTool("t", lambda _: "newer").tool)
    assert text(await settle(tools, "t", {})) == "offered"
    assert text(await settle(offered(registry), "t", {})) == "newer"


# --- what a call comes to -----------------------------------------------------------------------------------------


async def test_an_unknown_tool_is_a_failed_call_that_names_only_what_is_offered(tmp_path: Path) -> None:
    registry = make_registry(tmp_path, ScriptedTool("known").tool)
    registry.register(ScriptedTool("secret").tool, location="/elsewhere")
    kind, message = failure(await settle(offered(registry), "sec\x00ret" + "x" * 100_000, {}))
    assert kind == "tool.unknown"
    assert "known" in message
    assert "secret`" not in message
    assert len(message) < 300
    assert failure(await settle(offered(make_registry(tmp_path)), "t", {}))[1].endswith("No tools are offered.")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({}, "`at`"),
        ({"at": {"x": "1"}}, "$.at.x"),
        ({"at": {"x": 1}, "width": 0}, "$.width"),
        ({"at": {"x": 1}, "size": 3}, "`size`"),
        ({"at": None}, "$.at"),
    ],
)
async def test_input_that_does_not_fit_never_executes_and_the_field_is_named(
    tmp_path: Path, arguments: dict[str, Any], named: str
) -> None:
    executed: list[int] = []

    @tool(name="paint")
    def counted(at: Point, width: Annotated[int, Meta(ge=1)] = 1) -> None:
        """Paint."""
        executed.append(width)

    kind, message = failure(await settle_one(counted, tmp_path, arguments))
    assert kind == "tool.invalid-input"
    assert named in message
    assert executed == []


@pytest.mark.parametrize("raw", ['{"value": "cut of', "[1]", "\x01\ud83d" + "x" * 5_000])
async def test_arguments_that_are_no_object_never_execute_and_show_how_they_began(tmp_path: Path, raw: str) -> None:
    scripted = ScriptedTool("t")
    settlement = await settle(offered(make_registry(tmp_path, scripted.tool)), "t", None, raw)
    kind, message = failure(settlement)
    assert kind == "tool.invalid-input"
    assert str(len(raw)) in message
    assert len(message) < 500
    message.encode()
    assert scripted.executions == 0


async def test_a_tool_failure_is_shown_in_its_own_words(tmp_path: Path) -> None:
    assert failure(await settle_one(failing_tool("t", "no such file").tool, tmp_path)) == ("tool.execution", "no such file")


async def test_a_long_failure_is_bounded_and_kept(tmp_path: Path) -> None:
    settlement = await settle_one(failing_tool("t", "bad \ud800" * 100_000).tool, tmp_path)
    assert isinstance(settlement, Failed)
    assert len(settlement.error.message) <= 2_001
    assert settlement.content is not None
    (item,) = settlement.content
    assert isinstance(item, TextContent)
    assert len(item.text.encode()) <= 51_200
    (kept,) = os.listdir(tmp_path)
    assert str(kept) in item.text


async def test_a_defect_is_a_failed_call_that_tells_nothing_and_a_log_line_that_tells_all(tmp_path: Path) -> None:
    with capture_logs() as logs:
        kind, message = failure(await settle_one(raising_tool("t", KeyError("password")).tool, tmp_path))
    assert kind == "tool.execution"
    assert "password" not in message
    (line,) = logs
    assert line["tool"] == "t"
    assert line["call_id"] == "call_1"
    assert isinstance(line["exc_info"], KeyError)


async def test_a_tool_that_exits_does_not_end_the_runtime(tmp_path: Path) -> None:
    with capture_logs():
        assert failure(await settle_one(raising_tool("t", SystemExit(2)).tool, tmp_path))[0] == "tool.execution"
    with pytest.raises(KeyboardInterrupt):
        await settle_one(raising_tool("t", KeyboardInterrupt()).tool, tmp_path)


async def test_a_tool_failure_inside_the_tools_own_nursery_is_still_a_tool_failure(tmp_path: Path) -> None:
    @tool
    async def nested() -> None:
        """Fail in a child task."""

        async def child() -> None:
            raise ToolFailure("the child says no")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(child)

    assert failure(await settle_one(nested, tmp_path)) == ("tool.execution", "the child says no")


async def test_a_cancelled_tool_that_also_breaks_raises_only_the_cancellation(tmp_path: Path) -> None:
    @tool
    async def breaks() -> None:
        """Break while being cancelled."""

        async def child() -> None:
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("while cleaning up")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(child)
            await trio.sleep_forever()

    tools = offered(make_registry(tmp_path, breaks))
    results: list[Any] = []
    with capture_logs() as logs, trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            async def call() -> None:
                results.append(await tools.run("breaks", {}, "{}", make_context()))

            nursery.start_soon(call)
            await wait_all_tasks_blocked()
            scope.cancel()
    assert scope.cancelled_caught
    assert results == []
    assert [line["tool"] for line in logs] == ["breaks"]


async def test_cancellation_passes_through_and_the_tool_has_seen_it(tmp_path: Path) -> None:
    held = HeldTool("t")
    tools = offered(make_registry(tmp_path, held.tool))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tools.run, "t", {"value": "v"}, "", make_context())
        await held.wait_started()
        nursery.cancel_scope.cancel()
    assert (held.executions, held.settled, held.cancellations) == (1, 0, 1)
    assert held.values == ["v"]


async def test_a_success_is_not_lost_to_a_cancellation_that_comes_while_it_returns(tmp_path: Path) -> None:
    scope = trio.CancelScope()

    def answer(_: str) -> str:
        scope.cancel()
        return "done"

    tools = offered(make_registry(tmp_path, ScriptedTool("t", answer).tool))
    settlement = None
    with scope:
        context = make_context()
        raw = await tools.run("t", {}, "", context)
        with trio.CancelScope(shield=True):
            settlement = await tools.bound(raw, context)
    assert settlement == Succeeded((TextContent(text="done"),))


async def test_a_plain_function_that_ignores_cancellation_is_abandoned_at_once(tmp_path: Path) -> None:
    stubborn = StubbornTool("t")
    tools = offered(make_registry(tmp_path, stubborn.tool))
    context = make_context(blocking=Threads())
    results: list[Any] = []

    async def call() -> None:
        results.append(await tools.run("t", {}, "", context))

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await trio.to_thread.run_sync(stubborn.started.wait)
            nursery.cancel_scope.cancel()
        assert not stubborn.ended.is_set()
    finally:
        stubborn.release()
    await trio.to_thread.run_sync(stubborn.ended.wait)
    await wait_all_tasks_blocked()
    assert results == []
    assert stubborn.executions == 1


# --- what a tool may give -----------------------------------------------------------------------------------------


async def test_text_bytes_nothing_and_values_become_content(tmp_path: Path) -> None:
    async def given(answer: Any) -> Succeeded:
        settlement = await settle_one(ScriptedTool("t", lambda _: answer).tool, tmp_path)
        assert isinstance(settlement, Succeeded)
        return settlement

    assert await given("text") == Succeeded((TextContent(text="text"),))
    assert await given(b"caf\xc3\xa9 \xff") == Succeeded((TextContent(text="café \ufffd"),))
    assert await given(None) == Succeeded((TextContent(text="(no output)"),))
    assert await given("") == Succeeded((TextContent(text="(no output)"),))
    assert await given(Point(1, 2)) == Succeeded((TextContent(text='{\n  "x": 1,\n  "y": 2\n}'),), {"x": 1, "y": 2})
    assert await given(ToolOutput((TextContent(text="seen"),), [1])) == Succeeded((TextContent(text="seen"),), [1])
    media = FileContent(data=b"\x89PNG", mime="image/png", name="a.png")
    assert await given(ToolOutput((media,))) == Succeeded((media,))


@pytest.mark.parametrize(
    "answer",
    [
        float("nan"),
        2**64,
        {"deep": [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]},
        object(),
        ToolOutput(cast("Any", ("text",))),
        ToolOutput((TextContent(text=cast("Any", b"bytes")),)),
        ToolOutput(structured="x" * (8 * 1024 * 1024)),
    ],
)
async def test_output_that_cannot_be_stored_fails_the_call(tmp_path: Path, answer: Any) -> None:
    with capture_logs() as logs:
        kind, message = failure(await settle_one(ScriptedTool("t", lambda _: answer).tool, tmp_path))
    assert kind == "tool.execution"
    assert "not a valid output" in message
    assert len(logs) == 1


async def test_a_value_that_holds_itself_fails_the_call(tmp_path: Path) -> None:
    loop: list[Any] = []
    loop.append(loop)
    with capture_logs():
        assert failure(await settle_one(ScriptedTool("t", lambda _: loop).tool, tmp_path))[0] == "tool.execution"


async def test_output_of_another_type_than_declared_fails_the_call(tmp_path: Path) -> None:
    @tool
    def counts(right: bool) -> dict[str, int]:
        """Count."""
        return {"a": 1} if right else cast("Any", {"a": "one"})

    assert text(await settle_one(counts, tmp_path, {"right": True})) == '{\n  "a": 1\n}'
    with capture_logs():
        assert failure(await settle_one(counts, tmp_path, {"right": False}))[0] == "tool.execution"


async def test_a_declared_output_may_be_one_of_several(tmp_path: Path) -> None:
    @tool
    def either(what: int) -> ToolOutput | str:
        """Give either."""
        return cast("Any", ["text", ToolOutput((TextContent(text="output"),)), 3][what])

    assert text(await settle_one(either, tmp_path, {"what": 0})) == "text"
    assert text(await settle_one(either, tmp_path, {"what": 1})) == "output"
    with capture_logs():
        assert failure(await settle_one(either, tmp_path, {"what": 2}))[0] == "tool.execution"


async def test_surrogates_in_a_structured_value_are_repaired(tmp_path: Path) -> None:
    settlement = await settle_one(structured_tool("t", {"k\ud800": ["\ud83d\ude00"]}, "seen").tool, tmp_path)
    assert isinstance(settlement, Succeeded)
    assert settlement.structured == {"k\ufffd": ["😀"]}
