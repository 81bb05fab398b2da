"""OpenAI Responses: recorded-shape streams decoded at any cut, and requests that the protocol accepts, byte for byte.

Long, because the recorded shapes are one table, and decoding and encoding share it.
"""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steerway.protocol.llm.adapter import Adapter
from steerway.protocol.llm.events import LLMEvent, ProviderFailed, ReasoningEnd, TextEnd, ToolInputEnd
from steerway.protocol.llm.openai_responses import OpenAIResponsesAdapter
from steerway.protocol.llm.openai_responses_decoder import OpenAIResponsesDecoder
from steerway.protocol.llm.request import (
    AssistantMessage,
    Call,
    Generation,
    LLMRequest,
    Media,
    Reasoning,
    RequestMessage,
    SystemUpdate,
    Text,
    ToolChoice,
    ToolMessage,
    UserMessage,
)
from steerway.protocol.values.tool import ToolDefinition
from support.decoding import (
    byte_by_byte,
    called,
    check_order,
    cut_at,
    finished,
    line,
    reasoning,
    settled,
    text,
    tool,
    used,
)
from support.decoding import decode as decode_with
from support.openai_responses_rules import violations

ADAPTER: Adapter = OpenAIResponsesAdapter()

Item = dict[str, Any]


def decode(*pieces: bytes) -> list[LLMEvent]:
    return decode_with(ADAPTER, pieces)


def event(kind: str, **fields: Any) -> bytes:
    return line({"type": kind, "sequence_number": 0, **fields})


def response(status: str = "in_progress", **fields: Any) -> Item:
    settled: Item = {"id": "resp_1", "object": "response", "created_at": 1700000000, "model": "m", "output": []}
    asked: Item = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    return settled | asked | {"status": status, "error": None, "incomplete_details": None, **fields}


def output_text(value: str) -> Item:
    return {"type": "output_text", "text": value, "annotations": []}


def message_item(*parts: Item, id: str = "msg_1", **fields: Any) -> Item:
    return {"id": id, "type": "message", "role": "assistant", "status": "completed", "content": list(parts), **fields}


def reasoning_item(*summary: str, id: str = "rs_1", **fields: Any) -> Item:
    parts = [{"type": "summary_text", "text": part} for part in summary]
    return {"id": id, "type": "reasoning", "summary": parts, **fields}


def call_item(id: str, name: str, arguments: str = "", **fields: Any) -> Item:
    return {"id": f"fc_{id}", "type": "function_call", "call_id": id, "name": name, "arguments": arguments, **fields}


def added(index: int, item: Item) -> bytes:
    return event("response.output_item.added", output_index=index, item=item)


def done(index: int, item: Item) -> bytes:
    return event("response.output_item.done", output_index=index, item=item)


def words(index: int, *deltas: str, **fields: Any) -> bytes:
    """A whole message item."""
    id = f"msg_{index}"
    where = {"item_id": id, "output_index": index, "content_index": 0}
    whole = "".join(deltas)
    return (
        added(index, message_item(id=id, **fields))
        + event("response.content_part.added", **where, part=output_text(""))
        + b"".join(event("response.output_text.delta", **where, delta=delta, logprobs=[]) for delta in deltas)
        + event("response.output_text.done", **where, text=whole, logprobs=[])
        + event("response.content_part.done", **where, part=output_text(whole))
        + done(index, message_item(output_text(whole), id=id, **fields))
    )


def thought(index: int, *deltas: tuple[int, str]) -> bytes:
    """The deltas of a reasoning item's summary, each with the part it belongs to."""
    return b"".join(
        event("response.reasoning_summary_text.delta", item_id="rs_1", output_index=index, summary_index=part, delta=delta)
        for part, delta in deltas
    )


def use(index: int, id: str, name: str, *deltas: str) -> bytes:
    where = {"item_id": f"fc_{id}", "output_index": index}
    whole = "".join(deltas)
    return (
        added(index, call_item(id, name))
        + b"".join(event("response.function_call_arguments.delta", **where, delta=delta) for delta in deltas)
        + event("response.function_call_arguments.done", **where, arguments=whole)
        + done(index, call_item(id, name, whole))
    )


def hosted(index: int, item: Item) -> bytes:
    """A hosted tool's item with one event of its progress."""
    progress = f"response.{item['type']}.in_progress"
    started = {"id": item["id"], "type": item["type"], "status": "in_progress", "name": item.get("name")}
    return added(index, started) + event(progress, output_index=index, item_id=item["id"]) + done(index, item)


def annotated(output: int, annotation: Item, index: int = 0) -> bytes:
    where = {"output_index": output, "content_index": index, "annotation_index": 0}
    return event("response.output_text.annotation.added", **where, annotation=annotation)


def own(**fields: Any) -> dict[str, Any]:
    """Continuation metadata of this protocol."""
    return {"openai-responses": fields}


USAGE = {
    "input_tokens": 100,
    "input_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 0},
    "output_tokens": 50,
    "output_tokens_details": {"reasoning_tokens": 20},
    "total_tokens": 150,
}
USED = used(40, 30, 20, 60)
BEGIN = event("response.created", response=response()) + event("response.in_progress", response=response())
END = event("response.completed", response=response("completed", usage=USAGE, output=[]))
STOP = finished("stop", "completed", USED)
CALLS = finished("tool-calls", "completed", USED)


def incomplete(reason: str | None) -> bytes:
    details = {"reason": reason} if reason else None
    return event("response.incomplete", response=response("incomplete", incomplete_details=details, usage=USAGE))


def failed(code: str, message: str) -> bytes:
    return event("response.failed", response=response("failed", error={"code": code, "message": message}, usage=USAGE))


SEARCH = {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "e"}}
FILES = {"id": "fs_1", "type": "file_search_call", "status": "completed", "queries": ["q"], "results": [{"text": "t"}]}
CODE = {
    "id": "ci_1",
    "type": "code_interpreter_call",
    "status": "completed",
    "code": "1+1",
    "container_id": "c",
    "outputs": [{"type": "logs", "logs": "2"}],
}
PICTURE = {"id": "ig_1", "type": "image_generation_call", "status": "completed", "result": "iVBORw=="}
REMOTE: dict[str, Any] = {
    "id": "mcp_1",
    "type": "mcp_call",
    "status": "failed",
    "name": "echo",
    "server_label": "s",
    "arguments": '{"a":1}',
    "output": None,
    "error": {"type": "mcp_tool_execution_error", "content": []},
}

CITED = {"type": "url_citation", "url": "https://e.org", "title": "E", "start_index": 0, "end_index": 1}
COMPUTER: Item = {
    "type": "computer_call",
    "id": "cu_1",
    "call_id": "c",
    "status": "completed",
    "action": {"type": "click", "button": "left", "x": 1, "y": 2},
    "pending_safety_checks": [],
}
COMPUTER_INPUT = '{"action":{"type":"click","button":"left","x":1,"y":2},"pending_safety_checks":[]}'
LOCAL_SHELL: Item = {
    "type": "local_shell_call",
    "id": "lsh_1",
    "call_id": "l",
    "status": "completed",
    "action": {"type": "exec", "command": ["ls"], "env": {}},
}
LOCAL_SHELL_INPUT = '{"action":{"type":"exec","command":["ls"],"env":{}}}'
PATCH = {"type": "apply_patch_call", "id": "apc_1", "call_id": "p", "operation": {"type": "delete_file", "path": "a"}}
SHELL = {"type": "shell_call", "id": "sh_1", "call_id": "s", "status": "completed", "action": {"commands": ["ls"]}}
SHELL_OUTPUT = {"type": "shell_call_output", "id": "sho_1", "call_id": "s", "output": [{"stdout": "a", "stderr": ""}]}
APPROVAL = {
    "type": "mcp_approval_request",
    "id": "mcpr_1",
    "arguments": '{"a":1}',
    "name": "roll",
    "server_label": "dice",
}
APPROVAL_INPUT = '{"arguments":"{\\"a\\":1}","name":"roll","server_label":"dice"}'

SURPRISES: list[Any] = [
    None,
    7,
    "text",
    [],
    {},
    {"type": "response.output_text.delta"},
    {"type": "response.output_text.delta", "output_index": "x", "delta": 3},
    {"type": "response.function_call_arguments.delta", "output_index": 40, "delta": "{"},
    {"type": "response.output_item.added", "output_index": 41, "item": None},
    {"type": "response.output_item.added", "output_index": 42, "item": {"type": "a_new_item", "id": "x"}},
    {"type": "response.output_item.done", "output_index": 42, "item": {"type": "a_new_item", "id": "x"}},
    {"type": "response.output_item.done", "output_index": 43, "item": {"type": "message", "content": "x"}},
    {"type": "response.output_item.done", "output_index": 44, "item": {"type": "reasoning", "summary": [3]}},
    {"type": "response.mcp_list_tools.completed", "output_index": 45},
    {"type": "response.output_text.annotation.added", "output_index": 46, "annotation": 7},
    {"type": "response.a_new_call.searching", "output_index": 47},
    {"type": "response.output_item.done", "output_index": 48, "item": {"type": "x_call_output", "call_id": "x"}},
    {"type": "response.output_item.done", "output_index": 49, "item": {"type": "mcp_list_tools", "tools": []}},
    {"type": "response.audio.delta", "delta": "x"},
    {"type": "a_new_event", "x": [1]},
]
"""Valid JSON that is no event, or hardly one, or one that is not ours, or of a later version."""

# name, stream, events
STREAMS: list[tuple[str, bytes, list[LLMEvent]]] = [
    ("plain text", BEGIN + words(0, "Hel", "lo") + END, [*text(1, "Hel", "lo"), STOP]),
    ("no content at all", BEGIN + END, [STOP]),
    (
        "the phases of two messages",
        BEGIN + words(0, "Let me", phase="commentary") + words(1, "Done.", phase="final_answer") + END,
        [
            *text(1, "Let me", metadata=own(phase="commentary")),
            *text(2, "Done.", metadata=own(phase="final_answer")),
            STOP,
        ],
    ),
    (
        "two parts of one message are one fragment",
        BEGIN
        + event("response.output_text.delta", output_index=0, content_index=0, delta="a")
        + event("response.output_text.delta", output_index=0, content_index=1, delta="b")
        + END,
        [*text(1, "a", "b"), STOP],
    ),
    (
        "annotations and other events about a text say nothing",
        BEGIN
        + words(0, "Hi")
        + event("response.output_text.annotation.added", output_index=0, annotation={"type": "url_citation"})
        + END,
        [*text(1, "Hi"), STOP],
    ),
    (
        "the output limit",
        BEGIN + words(0, "Hi") + incomplete("max_output_tokens"),
        [*text(1, "Hi"), finished("length", "max_output_tokens", USED)],
    ),
    (
        "a content filter",
        BEGIN + words(0, "Hi") + incomplete("content_filter"),
        [*text(1, "Hi"), finished("content-filter", "content_filter", USED)],
    ),
    (
        "incomplete without saying why",
        BEGIN + words(0, "Hi") + incomplete(None),
        [*text(1, "Hi"), finished("unknown", "incomplete", USED)],
    ),
    (
        "a refusal",
        BEGIN
        + added(0, message_item())
        + event("response.refusal.delta", output_index=0, content_index=0, delta="I ")
        + event("response.refusal.delta", output_index=0, content_index=0, delta="won't.")
        + event("response.refusal.done", output_index=0, content_index=0, refusal="I won't.")
        + done(0, message_item({"type": "refusal", "refusal": "I won't."}))
        + END,
        [*text(1, "I ", "won't."), finished("content-filter", "completed", USED)],
    ),
    (
        "a refusal that was not streamed",
        BEGIN + done(0, message_item({"type": "refusal", "refusal": "No."})) + END,
        [*text(1, "No."), finished("content-filter", "completed", USED)],
    ),
    (
        "a reasoning summary in two parts with encrypted content, then text",
        BEGIN
        + added(0, reasoning_item(encrypted_content="early"))
        + event("response.reasoning_summary_part.added", output_index=0, summary_index=0)
        + thought(0, (0, "First"), (0, "."))
        + event("response.reasoning_summary_part.done", output_index=0, summary_index=0)
        + thought(0, (1, "Second."))
        + done(0, reasoning_item("First.", "Second.", encrypted_content="enc"))
        + words(1, "Yes")
        + END,
        [
            *reasoning(1, "First", ".", "\n\nSecond.", metadata=own(id="rs_1", encrypted_content="enc")),
            *text(2, "Yes"),
            STOP,
        ],
    ),
    (
        "encrypted reasoning without a summary",
        BEGIN + added(0, reasoning_item()) + done(0, reasoning_item(encrypted_content="enc")) + words(1, "Yes") + END,
        [*reasoning(1, metadata=own(id="rs_1", encrypted_content="enc")), *text(2, "Yes"), STOP],
    ),
    (
        "reasoning that says nothing at all",
        BEGIN + added(0, reasoning_item()) + done(0, reasoning_item()) + words(1, "Yes") + END,
        [*text(1, "Yes"), STOP],
    ),
    (
        "a summary that was not streamed",
        BEGIN + done(0, reasoning_item("First.", "Second.", encrypted_content="enc")) + END,
        [*reasoning(1, "First.", "\n\nSecond.", metadata=own(id="rs_1", encrypted_content="enc")), STOP],
    ),
    (
        "a summary without encrypted content keeps its id",
        BEGIN + thought(0, (0, "Hm")) + done(0, reasoning_item("Hm")) + END,
        [*reasoning(1, "Hm", metadata=own(id="rs_1")), STOP],
    ),
    (
        "the reasoning text of an open model",
        BEGIN
        + event("response.reasoning_text.delta", output_index=0, content_index=0, delta="Hm")
        + event("response.reasoning_text.done", output_index=0, content_index=0, text="Hm")
        + done(0, reasoning_item(content=[{"type": "reasoning_text", "text": "Hm"}]))
        + words(1, "Yes")
        + END,
        [*reasoning(1, "Hm", metadata=own(id="rs_1", field="content")), *text(2, "Yes"), STOP],
    ),
    (
        "two reasoning items keep their own content",
        BEGIN
        + done(0, reasoning_item("a", id="rs_a", encrypted_content="1"))
        + done(1, reasoning_item("b", id="rs_b", encrypted_content="2"))
        + words(2, "c")
        + END,
        [
            *reasoning(1, "a", metadata=own(id="rs_a", encrypted_content="1")),
            *reasoning(2, "b", metadata=own(id="rs_b", encrypted_content="2")),
            *text(3, "c"),
            STOP,
        ],
    ),
    (
        "reasoning that ends after the next item began",
        BEGIN
        + thought(0, (0, "Hm"))
        + added(1, message_item())
        + event("response.output_text.delta", output_index=1, content_index=0, delta="Yes")
        + done(0, reasoning_item("Hm", encrypted_content="enc"))
        + END,
        [
            *reasoning(1, "Hm"),
            *text(2, "Yes"),
            *reasoning(3, metadata=own(id="rs_1", encrypted_content="enc")),
            STOP,
        ],
    ),
    (
        "one tool call behind text",
        BEGIN + words(0, "Look:") + use(1, "call_a", "read", '{"pa', 'th":1}') + END,
        [
            *text(1, "Look:"),
            *tool(2, "read", '{"pa', 'th":1}'),
            *called(2, "call_a", "read", '{"path":1}', {"path": 1}),
            CALLS,
        ],
    ),
    (
        "parallel calls",
        BEGIN + use(0, "a", "one", '{"x":1}') + use(1, "b", "one", '{"x":2}') + END,
        [
            *tool(1, "one", '{"x":1}'),
            *tool(2, "one", '{"x":2}'),
            *called(1, "a", "one", '{"x":1}', {"x": 1}),
            *called(2, "b", "one", '{"x":2}', {"x": 2}),
            CALLS,
        ],
    ),
    (
        "calls whose pieces interleave",
        BEGIN
        + added(0, call_item("a", "one"))
        + added(1, call_item("b", "two"))
        + event("response.function_call_arguments.delta", output_index=0, delta='{"x":')
        + event("response.function_call_arguments.delta", output_index=1, delta="{}")
        + event("response.function_call_arguments.delta", output_index=0, delta="1}")
        + END,
        [
            *tool(1, "one"),
            *tool(2, "two"),
            *tool(1, "one", '{"x":')[1:],
            *tool(2, "two", "{}")[1:],
            *tool(1, "one", "1}")[1:],
            *called(1, "a", "one", '{"x":1}', {"x": 1}),
            *called(2, "b", "two", "{}", {}),
            CALLS,
        ],
    ),
    (
        "arguments that were not streamed, and none at all",
        BEGIN
        + added(0, call_item("a", "one"))
        + done(0, call_item("a", "one", '{"x":1}'))
        + done(1, call_item("b", "two"))
        + END,
        [
            *tool(1, "one", '{"x":1}'),
            *tool(2, "two"),
            *called(1, "a", "one", '{"x":1}', {"x": 1}),
            *called(2, "b", "two", "", {}),
            CALLS,
        ],
    ),
    (
        "arguments cut by the output limit, and arguments that are no object",
        BEGIN
        + added(0, call_item("a", "one"))
        + event("response.function_call_arguments.delta", output_index=0, delta='{"x": ')
        + use(1, "b", "one", "[1]")
        + incomplete("max_output_tokens"),
        [
            *tool(1, "one", '{"x": '),
            *tool(2, "one", "[1]"),
            *called(1, "a", "one", '{"x": ', None),
            *called(2, "b", "one", "[1]", None),
            finished("length", "max_output_tokens", USED),
        ],
    ),
    (
        "reasoning, then a call",
        BEGIN + thought(0, (0, "Hm")) + done(0, reasoning_item("Hm", encrypted_content="enc")) + use(1, "a", "one", "{}") + END,
        [
            *reasoning(1, "Hm", metadata=own(id="rs_1", encrypted_content="enc")),
            *tool(2, "one", "{}"),
            *called(2, "a", "one", "{}", {}),
            CALLS,
        ],
    ),
    (
        "item ids that change from event to event",
        BEGIN
        + added(0, message_item(id="x1"))
        + event("response.output_text.delta", item_id="x2", output_index=0, content_index=0, delta="Hi")
        + done(0, message_item(output_text("Hi"), id="x3"))
        + event("response.completed", response=response("completed", output=[message_item(output_text("Hi"), id="x4")])),
        [*text(1, "Hi"), finished("stop", "completed")],
    ),
    (
        "no output index, only item ids",
        BEGIN
        + event("response.output_item.added", item=message_item(id="m"))
        + event("response.output_text.delta", item_id="m", delta="Hi")
        + event("response.output_item.added", item={**call_item("a", "one"), "id": "f"})
        + event("response.function_call_arguments.delta", item_id="f", delta="{}")
        + event(
            "response.completed",
            response=response(
                "completed",
                output=[message_item(output_text("Hi"), id="m"), {**call_item("a", "one", "{}"), "id": "f"}],
            ),
        ),
        [*text(1, "Hi"), *tool(2, "one", "{}"), *called(2, "a", "one", "{}", {}), finished("tool-calls", "completed")],
    ),
    (
        "only the last event",
        event(
            "response.completed",
            response=response(
                "completed",
                usage=USAGE,
                output=[
                    reasoning_item("Hm", encrypted_content="enc"),
                    message_item(output_text("Hi"), phase="commentary"),
                    call_item("a", "one", "{}"),
                ],
            ),
        ),
        [
            *reasoning(1, "Hm", metadata=own(id="rs_1", encrypted_content="enc")),
            *text(2, "Hi", metadata=own(phase="commentary")),
            *tool(3, "one", "{}"),
            *called(3, "a", "one", "{}", {}),
            CALLS,
        ],
    ),
    (
        "a web search, then a cited answer",
        BEGIN + hosted(0, SEARCH) + words(1, "It is E.") + END,
        [
            *tool(1, "web_search", '{"type":"search","query":"e"}'),
            *called(
                1,
                "ws_1",
                "web_search",
                '{"type":"search","query":"e"}',
                {"type": "search", "query": "e"},
                executed=True,
                metadata=own(type="web_search_call"),
            ),
            settled(1, SEARCH, metadata=own(type="web_search_call")),
            *text(2, "It is E."),
            STOP,
        ],
    ),
    (
        "a file search, a run of code and a picture",
        BEGIN + hosted(0, FILES) + hosted(1, CODE) + hosted(2, PICTURE) + END,
        [
            *tool(1, "file_search", '{"queries":["q"]}'),
            *called(
                1,
                "fs_1",
                "file_search",
                '{"queries":["q"]}',
                {"queries": ["q"]},
                executed=True,
                metadata=own(type="file_search_call"),
            ),
            settled(1, FILES, metadata=own(type="file_search_call")),
            *tool(2, "code_interpreter", '{"code":"1+1","container_id":"c"}'),
            *called(
                2,
                "ci_1",
                "code_interpreter",
                '{"code":"1+1","container_id":"c"}',
                {"code": "1+1", "container_id": "c"},
                executed=True,
                metadata=own(type="code_interpreter_call"),
            ),
            settled(2, CODE, metadata=own(type="code_interpreter_call")),
            *tool(3, "image_generation"),
            *called(3, "ig_1", "image_generation", "", {}, executed=True, metadata=own(type="image_generation_call")),
            settled(3, PICTURE, metadata=own(type="image_generation_call")),
            STOP,
        ],
    ),
    (
        "a tool of a remote server that fails, beside a local call",
        BEGIN + hosted(0, REMOTE) + use(1, "a", "one", "{}") + END,
        [
            *tool(1, "echo", '{"a":1}'),
            *called(1, "mcp_1", "echo", '{"a":1}', {"a": 1}, executed=True, metadata=own(type="mcp_call")),
            settled(1, REMOTE, is_error=True, metadata=own(type="mcp_call")),
            *tool(2, "one", "{}"),
            *called(2, "a", "one", "{}", {}),
            CALLS,
        ],
    ),
    (
        "an emoji in two deltas, half of one at the end, and half of one in a call",
        BEGIN + words(0, "a\ud83d", "\ude00b", "\ud83d") + use(1, "c\ude00", "o\ud83d", '{"a":"\ud83d', '\ude00"}') + END,
        [
            *text(1, "a", "😀b", "\ufffd"),
            *tool(2, "o\ufffd", '{"a":"', '😀"}'),
            *called(2, "c\ufffd", "o\ufffd", '{"a":"😀"}', {"a": "😀"}),
            CALLS,
        ],
    ),
    (
        "halves of surrogates in metadata and items",
        BEGIN
        + done(0, reasoning_item(encrypted_content="\ud83d"))
        + done(1, {"id": "ws", "type": "web_search_call", "\ud83d": ["\ude00"]})
        + END,
        [
            *reasoning(1, metadata=own(id="rs_1", encrypted_content="\ufffd")),
            *tool(2, "web_search"),
            *called(2, "ws", "web_search", "", {}, executed=True, metadata=own(type="web_search_call")),
            settled(
                2,
                {"id": "ws", "type": "web_search_call", "\ufffd": ["\ufffd"]},
                metadata=own(type="web_search_call"),
            ),
            STOP,
        ],
    ),
    (
        "deltas after their item is done are passed over, and a second end of it too",
        BEGIN
        + words(0, "Hi")
        + event("response.output_text.delta", output_index=0, content_index=0, delta="late")
        + done(0, message_item(output_text("Hi again")))
        + END,
        [*text(1, "Hi"), STOP],
    ),
    (
        "surprising shapes are passed over",
        b"".join(line(value) for value in SURPRISES) + words(0, "Hi") + END,
        [*text(1, "Hi"), STOP],
    ),
    (
        "annotations as they come, and those of the finished item in their place",
        BEGIN
        + added(0, message_item())
        + annotated(0, CITED)
        + event("response.output_text.delta", output_index=0, content_index=0, delta="a")
        + annotated(0, CITED, index=1)
        + done(0, message_item(output_text("a") | {"annotations": [CITED]}, output_text("b") | {"annotations": [CITED, 3]}))
        + event("response.output_text.delta", output_index=1, content_index=0, delta="c")
        + annotated(1, CITED)
        + annotated(1, CITED, index=1)
        + done(1, message_item(output_text("c"), id="msg_2", phase="final_answer"))
        + event("response.output_text.delta", output_index=2, content_index=0, delta="d")
        + annotated(2, CITED)
        + END,
        [
            *text(1, "a", metadata=own(annotations=[CITED, CITED | {"content_index": 1}])),
            *text(2, "c", metadata=own(phase="final_answer", annotations=[CITED, CITED | {"content_index": 1}])),
            *text(3, "d", metadata=own(annotations=[CITED])),
            STOP,
        ],
    ),
    (
        "a call of a custom tool, whose input is text",
        BEGIN
        + added(0, {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c", "name": "sql", "input": ""})
        + event("response.custom_tool_call_input.delta", output_index=0, item_id="ctc_1", delta="SELECT")
        + event("response.custom_tool_call_input.delta", output_index=0, item_id="ctc_1", delta=" 1")
        + event("response.custom_tool_call_input.done", output_index=0, item_id="ctc_1", input="SELECT 1")
        + done(0, {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c", "name": "sql", "input": "SELECT 1"})
        + done(1, {"type": "custom_tool_call", "id": "ctc_2", "call_id": "d", "name": "sql", "input": "SELECT 2"})
        + END,
        [
            *tool(1, "sql", "SELECT", " 1"),
            *tool(2, "sql", "SELECT 2"),
            *called(1, "c", "sql", "SELECT 1", None),
            *called(2, "d", "sql", "SELECT 2", None),
            CALLS,
        ],
    ),
    (
        "calls that somebody else has to run",
        BEGIN
        + added(0, COMPUTER | {"status": "in_progress"})
        + done(0, COMPUTER)
        + done(1, LOCAL_SHELL)
        + done(2, PATCH | {"status": None})
        + END,
        [
            *tool(1, "computer_call", COMPUTER_INPUT),
            *tool(2, "local_shell_call", LOCAL_SHELL_INPUT),
            *tool(3, "apply_patch_call", '{"operation":{"type":"delete_file","path":"a"}}'),
            *called(1, "c", "computer_call", COMPUTER_INPUT, json.loads(COMPUTER_INPUT)),
            *called(2, "l", "local_shell_call", LOCAL_SHELL_INPUT, json.loads(LOCAL_SHELL_INPUT)),
            *called(
                3,
                "p",
                "apply_patch_call",
                '{"operation":{"type":"delete_file","path":"a"}}',
                {"operation": {"type": "delete_file", "path": "a"}},
            ),
            CALLS,
        ],
    ),
    (
        "a call that the provider has run after all, and an output without its call",
        BEGIN + done(0, SHELL) + done(1, SHELL_OUTPUT) + done(2, SHELL_OUTPUT) + words(3, "Done.") + END,
        [
            *tool(1, "shell_call", '{"action":{"commands":["ls"]}}'),
            *called(1, "s", "shell_call", '{"action":{"commands":["ls"]}}', {"action": {"commands": ["ls"]}}, executed=True),
            settled(1, SHELL_OUTPUT, metadata=own(type="shell_call_output")),
            *text(2, "Done."),
            STOP,
        ],
    ),
    (
        "a request for an approval that nobody gives",
        BEGIN + done(0, APPROVAL) + words(1, "Wait.") + END,
        [
            *tool(1, "mcp_approval_request", APPROVAL_INPUT),
            *called(1, "mcpr_1", "mcp_approval_request", APPROVAL_INPUT, json.loads(APPROVAL_INPUT), executed=True),
            settled(
                1,
                "Nobody can approve this call here; let the server's tools run without approval (require_approval).",
                is_error=True,
                metadata=own(type="mcp_approval_request"),
            ),
            *text(2, "Wait."),
            STOP,
        ],
    ),
    (
        "a hosted tool of a later version",
        BEGIN + done(0, {"type": "a_new_call", "id": "x", "status": "completed", "query": "q"}) + END,
        [
            *tool(1, "a_new_call", '{"query":"q"}'),
            *called(1, "x", "a_new_call", '{"query":"q"}', {"query": "q"}, executed=True),
            settled(
                1,
                {"type": "a_new_call", "id": "x", "status": "completed", "query": "q"},
                metadata=own(type="a_new_call"),
            ),
            STOP,
        ],
    ),
    (
        "comments, other line ends, no event names, the end mark of another protocol",
        b": hello\r\n\r\n"
        + BEGIN.replace(b"\n", b"\r\n")
        + b"\n".join(row for row in words(0, "Hi").split(b"\n") if not row.startswith(b"event:"))
        + b"data: [DONE]\n\n"
        + END,
        [*text(1, "Hi"), STOP],
    ),
    (
        "usage that counts cache writes, and too much of everything",
        event(
            "response.completed",
            response=response(
                "completed",
                usage={
                    "input_tokens": 10,
                    "input_tokens_details": {"cached_tokens": 7, "cache_write_tokens": 9},
                    "output_tokens": 5,
                    "output_tokens_details": {"reasoning_tokens": 9},
                },
            ),
        ),
        [finished("stop", "completed", used(0, 0, 5, 7, 3))],
    ),
    (
        "a whole response instead of a stream",
        b" \n"
        + json.dumps(
            response(
                "completed",
                usage=USAGE,
                output=[
                    reasoning_item("Hm", encrypted_content="enc"),
                    SEARCH,
                    message_item(output_text("Hi")),
                    call_item("a", "one", '{"x":1}'),
                ],
            ),
            indent=1,
        ).encode(),
        [
            *reasoning(1, "Hm", metadata=own(id="rs_1", encrypted_content="enc")),
            *tool(2, "web_search", '{"type":"search","query":"e"}'),
            *called(
                2,
                "ws_1",
                "web_search",
                '{"type":"search","query":"e"}',
                {"type": "search", "query": "e"},
                executed=True,
                metadata=own(type="web_search_call"),
            ),
            settled(2, SEARCH, metadata=own(type="web_search_call")),
            *text(3, "Hi"),
            *tool(4, "one", '{"x":1}'),
            *called(4, "a", "one", '{"x":1}', {"x": 1}),
            CALLS,
        ],
    ),
    (
        "a whole response that is incomplete",
        json.dumps(response("incomplete", incomplete_details={"reason": "max_output_tokens"}, output=[])).encode(),
        [finished("length", "max_output_tokens")],
    ),
]

# name, stream, events before the failure, type, retryable
FAILURES: list[tuple[str, bytes, list[LLMEvent], str, bool]] = [
    ("nothing at all", b"", [], "provider.incomplete", True),
    ("cut inside text", BEGIN + words(0, "Hi") + b"event: respo", text(1, "Hi"), "provider.incomplete", True),
    (
        "cut inside a call: its input ends, and nothing is called",
        BEGIN + use(0, "a", "one", "{}"),
        [*tool(1, "one", "{}"), ToolInputEnd(id="call-1")],
        "provider.incomplete",
        True,
    ),
    (
        "cut inside a hosted call",
        BEGIN + added(0, SEARCH),
        [*tool(1, "web_search"), ToolInputEnd(id="call-1")],
        "provider.incomplete",
        True,
    ),
    ("an end mark is no end", BEGIN + words(0, "Hi") + b"data: [DONE]\n\n", text(1, "Hi"), "provider.incomplete", True),
    (
        "failed: the server's error",
        BEGIN + words(0, "Hi") + failed("server_error", "The model failed"),
        text(1, "Hi"),
        "provider.internal",
        True,
    ),
    ("failed: a rate limit", BEGIN + failed("rate_limit_exceeded", "Slow"), [], "provider.rate-limit", True),
    ("failed: no quota", failed("insufficient_quota", "Pay"), [], "provider.quota", False),
    ("failed: too long", failed("context_length_exceeded", "Too long"), [], "provider.context-overflow", False),
    ("failed: a bad image", failed("invalid_image_format", "Bad image"), [], "provider.invalid-request", False),
    (
        "failed: the prompt was flagged",
        failed("invalid_prompt", "Your prompt was flagged as violating our usage policy"),
        [],
        "provider.content-filter",
        False,
    ),
    (
        "failed, and says why beside the response",
        event("response.failed", error={"code": "rate_limit_exceeded", "message": "Slow down"}),
        [],
        "provider.rate-limit",
        True,
    ),
    ("failed without a word", event("response.failed", response=response("failed")), [], "provider.internal", True),
    (
        "completed with an error",
        event("response.completed", response=response("completed", error={"code": "server_error", "message": "x"})),
        [],
        "provider.internal",
        True,
    ),
    ("cancelled", event("response.cancelled", response=response("cancelled")), [], "provider.internal", True),
    (
        "an error event",
        BEGIN + words(0, "Hi") + event("error", code="server_error", message="boom", param=None),
        text(1, "Hi"),
        "provider.internal",
        True,
    ),
    (
        "an error event with an inner object",
        event("error", error={"type": "invalid_request_error", "code": "context_length_exceeded", "message": "x"}),
        [],
        "provider.context-overflow",
        False,
    ),
    ("an error event with text", b"event: error\ndata: overloaded, come back\n\n", [], "provider.overloaded", True),
    ("an error without a type", line({"error": {"message": "boom", "code": 401}}), [], "provider.auth", False),
    (
        "a line that is no JSON",
        BEGIN + words(0, "Hi") + b"data: <html>\n\n",
        text(1, "Hi"),
        "provider.invalid-output",
        False,
    ),
    ("a call without a name", added(0, {"type": "function_call", "call_id": "a"}) + END, [], "provider.invalid-output", False),
    ("a page of a proxy", b"<!doctype html><p>Welcome</p>", [], "provider.invalid-output", False),
    ("plain JSON that is no response", b'{"hello": "world"}', [], "provider.invalid-output", False),
    ("plain JSON that is cut", b'{"object": "response", "output": [{"ty', [], "provider.invalid-output", False),
    (
        "a plain error object",
        b'\xef\xbb\xbf{"error": {"message": "quota", "code": "insufficient_quota"}}',
        [],
        "provider.quota",
        False,
    ),
    ("a whole response that failed", json.dumps(response("failed", output=[])).encode(), [], "provider.internal", True),
]


@pytest.mark.parametrize(("stream", "expected"), [row[1:] for row in STREAMS], ids=[row[0] for row in STREAMS])
def test_a_stream_is_decoded_the_same_whole_and_byte_by_byte(stream: bytes, expected: list[LLMEvent]) -> None:
    assert decode(stream) == expected
    assert decode(*byte_by_byte(stream)) == expected
    check_order(expected)


@pytest.mark.parametrize(
    ("stream", "before", "type", "retryable"), [row[1:] for row in FAILURES], ids=[row[0] for row in FAILURES]
)
def test_a_failure_ends_what_is_open_and_says_what_it_is(
    stream: bytes, before: list[LLMEvent], type: str, retryable: bool
) -> None:
    *events, failed = decode(stream)
    assert events == before
    assert isinstance(failed, ProviderFailed)
    assert (failed.failure.type, failed.retryable) == (type, retryable)
    assert failed.failure.message
    assert decode(*byte_by_byte(stream)) == [*events, failed]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([row[1] for row in (*STREAMS, *FAILURES)]), st.lists(st.floats(0, 1), max_size=6))
def test_random_cuts_never_change_what_is_decoded(stream: bytes, cuts: list[float]) -> None:
    assert decode(*cut_at(stream, cuts)) == decode(stream)


KINDS = (
    *("response.output_item.added", "response.output_item.done", "response.output_text.delta", "response.refusal.delta"),
    *("response.reasoning_summary_text.delta", "response.function_call_arguments.delta", "response.reasoning_text.delta"),
)
TYPES = ("message", "reasoning", "function_call", "web_search_call", "mcp_call", "x", "")
ODD = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(width=16) | st.sampled_from((*KINDS, *TYPES, "\ud83d")),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(("type", "item", "response", "output", "delta", "content", "usage", "error", "output_index")),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


def odd_item(kind: str, index: int | None, item: Item, delta: str) -> bytes:
    return line({"type": kind, "output_index": index, "item_id": "i", "item": item, "delta": delta})


ITEMS = st.builds(
    odd_item,
    st.sampled_from(KINDS),
    st.integers(0, 2) | st.none(),
    st.fixed_dictionaries(
        {"type": st.sampled_from(TYPES)},
        optional={
            "id": st.sampled_from("ab"),
            "call_id": st.sampled_from("ab"),
            "name": st.just("n"),
            "arguments": st.just("{}"),
            "encrypted_content": st.just("e"),
            "summary": st.just([{"text": "s"}]),
            "content": st.just([{"text": "t"}]),
            "phase": st.just("commentary"),
        },
    ),
    st.sampled_from(["d", "", "\ud83d"]),
)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.one_of(ODD.map(line), ITEMS, st.sampled_from([row[1] for row in STREAMS]), st.binary(max_size=20)), max_size=9)
)
def test_whatever_a_provider_sends_the_events_are_in_a_legal_order(pieces: list[bytes]) -> None:
    check_order(decode(*pieces))


def test_after_the_end_nothing_more_is_said() -> None:
    decoder = ADAPTER.decoder()
    assert len(decoder.feed(BEGIN + words(0, "Hi") + END)) == 4
    assert decoder.feed(words(1, "more") + b"data: {\n\n") == []
    assert decoder.close() == []


def test_a_failure_keeps_the_usage_that_was_reported() -> None:
    end = decode(BEGIN + failed("server_error", "boom"))[-1]
    assert isinstance(end, ProviderFailed)
    assert end.tokens == USED


@pytest.mark.parametrize("body", [b"data: " + b"x" * 200, b'{"a": "' + b"x" * 200, b"data: x\n" * 60])
def test_an_event_or_body_over_the_limit_is_invalid_output(body: bytes) -> None:
    for pieces in ([body], byte_by_byte(body)):
        decoder = OpenAIResponsesDecoder(limit=100)
        events = [found for piece in pieces for found in decoder.feed(piece)]
        assert [found.failure.type for found in events if isinstance(found, ProviderFailed)] == ["provider.invalid-output"]
        assert decoder.close() == []


def test_the_input_of_one_call_is_bounded() -> None:
    decoder = OpenAIResponsesDecoder(limit=1000)
    events = decoder.feed(added(0, call_item("a", "one")))
    for _ in range(30):
        events += decoder.feed(event("response.function_call_arguments.delta", output_index=0, delta="x" * 50))
    assert isinstance(events[-1], ProviderFailed)
    assert isinstance(events[-2], ToolInputEnd)


@pytest.mark.parametrize(
    ("status", "code", "message", "expected", "retryable"),
    [
        (401, "invalid_api_key", "Incorrect API key provided: sk-abcdefgh", "provider.auth", False),
        (429, "insufficient_quota", "You exceeded your current quota", "provider.quota", False),
        (429, "rate_limit_exceeded", "Rate limit reached", "provider.rate-limit", True),
        (400, "context_length_exceeded", "Your input exceeds the context window", "provider.context-overflow", False),
        (400, "invalid_value", "Invalid value: input[3]", "provider.invalid-request", False),
        (404, "model_not_found", "The model does not exist", "provider.invalid-request", False),
        (500, "server_error", "The server had an error", "provider.internal", True),
        (503, "server_error", "Overloaded", "provider.overloaded", True),
    ],
)
def test_answers_that_are_errors_are_classified(status: int, code: str, message: str, expected: str, retryable: bool) -> None:
    body = json.dumps({"error": {"message": message, "type": "x", "param": None, "code": code}}).encode()
    failed = ADAPTER.classify(status, {}, body)
    assert (failed.failure.type, failed.retryable) == (expected, retryable)
    assert "sk-abc" not in repr(failed)


# --- what is sent -----------------------------------------------------------------------------------------------------


def request(
    *messages: RequestMessage,
    model: str = "m-1",
    system: tuple[str, ...] = (),
    tools: tuple[ToolDefinition, ...] = (),
    tool_choice: ToolChoice = "auto",
    generation: Generation | None = None,
    options: dict[str, Any] | None = None,
    body: dict[str, Any] | None = None,
    cache_key: str | None = None,
) -> LLMRequest:
    return LLMRequest(
        model=model,
        system=system,
        messages=messages,
        tools=tools,
        tool_choice=tool_choice,
        generation=generation or Generation(),
        options=options or {},
        body=body or {},
        cache_key=cache_key,
    )


def sent(request: LLMRequest) -> dict[str, Any]:
    payload = json.loads(ADAPTER.encode(request).body)
    assert violations(payload) == []
    return payload


def user(text: str) -> UserMessage:
    return UserMessage(content=(Text(text=text),))


def assistant(*content: Text | Reasoning | Call) -> AssistantMessage:
    return AssistantMessage(content=content)


def result(id: str, *content: Text | Media, is_error: bool = False) -> ToolMessage:
    return ToolMessage(call_id=id, name="read", content=content, is_error=is_error)


READ = ToolDefinition(name="read", description="Reads.", input_schema={"type": "object", "properties": {"path": {}}})
IMAGE = Media(data=b"\x89PNG", mime="image/png", name="a.png")
THOUGHT = Reasoning(text="Hm", metadata=own(id="rs_1", encrypted_content="enc"))
SEARCHED = Call(
    id="ws_1",
    name="web_search",
    input={"query": "e"},
    executed=True,
    result=SEARCH,
    metadata=own(type="web_search_call"),
    result_metadata=own(type="web_search_call"),
)
FOREIGN = Call(id="f1", name="search", input={}, executed=True, result={"hits": [1]})
CONVERSATION: tuple[RequestMessage, ...] = (
    user("Hi"),
    assistant(
        THOUGHT,
        Reasoning(text="", metadata=own(id="rs_2", encrypted_content="enc2")),
        Reasoning(text="elsewhere"),
        Text(text="One", metadata=own(phase="commentary")),
        SEARCHED,
        Text(text="Two"),
        Call(id="c1", name="read", input={"path": "ü", "a": 1}),
        FOREIGN,
        Call(id="c2", name="read", input={}),
    ),
    result("c1", Text(text="gone"), Text(text="away"), is_error=True),
    result("c2", IMAGE, is_error=True),
    SystemUpdate(text="Now <b> & </b>"),
    UserMessage(content=(Text(text="Look"), IMAGE)),
)


def test_the_bytes_of_a_full_request_are_fixed() -> None:
    whole = request(
        *CONVERSATION,
        system=("Be brief.", "", "Today."),
        tools=(READ,),
        tool_choice="none",
        generation=Generation(max_tokens=9, temperature=0.5, top_p=1.0, top_k=3, seed=3, stop=("END",)),
        options={
            "reasoningEffort": "low",
            "reasoningSummary": "auto",
            "textVerbosity": "low",
            "serviceTier": "flex",
            "parallelToolCalls": False,
        },
        cache_key="ses_1",
    )
    assert violations(json.loads(ADAPTER.encode(whole).body)) == []
    encoded = ADAPTER.encode(whole)
    assert encoded.path == "/responses"
    assert encoded.headers == {"content-type": "application/json", "accept": "text/event-stream"}
    image = '{"type":"input_image","detail":"auto","image_url":"data:image/png;base64,iVBORw=="}'
    expected = (
        '{"model":"m-1","instructions":"Be brief.\\n\\nToday.","input":['
        '{"role":"user","content":[{"type":"input_text","text":"Hi"}]},'
        '{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"Hm"}],"encrypted_content":"enc"},'
        '{"type":"reasoning","id":"rs_2","summary":[],"encrypted_content":"enc2"},'
        '{"role":"assistant","content":"One","phase":"commentary"},'
        '{"id":"ws_1","type":"web_search_call","status":"completed","action":{"type":"search","query":"e"}},'
        '{"role":"assistant","content":"Two"},'
        '{"type":"function_call","call_id":"c1","name":"read","arguments":"{\\"path\\":\\"ü\\",\\"a\\":1}"},'
        '{"type":"function_call","call_id":"f1","name":"search","arguments":"{}"},'
        '{"type":"function_call_output","call_id":"f1","output":"{\\"hits\\":[1]}"},'
        '{"type":"function_call","call_id":"c2","name":"read","arguments":"{}"},'
        '{"type":"function_call_output","call_id":"c1","output":"Error: gone\\n\\naway"},'
        '{"type":"function_call_output","call_id":"c2","output":[{"type":"input_text","text":"Error:"},' + image + "]},"
        '{"role":"user","content":[{"type":"input_text","text":"<system-update>\\nNow &lt;b&gt; &amp; &lt;/b&gt;\\n'
        '</system-update>"}]},'
        '{"role":"user","content":[{"type":"input_text","text":"Look"},' + image + "]}],"
        '"tools":[{"type":"function","name":"read","description":"Reads.",'
        '"parameters":{"type":"object","properties":{"path":{}}},"strict":false}],"tool_choice":"none","stream":true,'
        '"store":false,"include":["reasoning.encrypted_content"],"reasoning":{"effort":"low","summary":"auto"},'
        '"text":{"verbosity":"low"},"max_output_tokens":9,"temperature":0.5,"top_p":1.0,"parallel_tool_calls":false,'
        '"service_tier":"flex","prompt_cache_key":"ses_1"}'
    )
    assert encoded.body.decode() == expected


def test_a_pdf_is_an_input_file_in_messages_and_in_results() -> None:
    paper = Media(data=b"%PDF-1.7", mime="application/pdf", name="A paper")
    asked = request(
        UserMessage(content=(Text(text="Read"), paper)),
        AssistantMessage(content=(Call(id="c1", name="read", input={}),)),
        ToolMessage(call_id="c1", name="read", content=(paper,), is_error=False),
    )
    file = {"type": "input_file", "filename": "A paper.pdf", "file_data": "data:application/pdf;base64,JVBERi0xLjc="}
    body = json.loads(ADAPTER.encode(asked).body)
    first, _, result = body["input"]
    assert first == {"role": "user", "content": [{"type": "input_text", "text": "Read"}, file]}
    assert result == {"type": "function_call_output", "call_id": "c1", "output": [file]}
    assert violations(body) == []


def test_the_smallest_request_says_nothing_it_does_not_have_to() -> None:
    assert ADAPTER.encode(request(user("Hi"))).body == (
        b'{"model":"m-1","input":[{"role":"user","content":[{"type":"input_text","text":"Hi"}]}],"stream":true,"store":false}'
    )


def test_items_of_a_longer_request_begin_with_those_of_the_shorter() -> None:
    whole = sent(request(*CONVERSATION))["input"]
    for count in (1, 4, 5, 6):
        part = sent(request(*CONVERSATION[:count]))["input"]
        assert whole[: len(part)] == part


def test_only_reasoning_that_can_stand_alone_goes_back() -> None:
    history = (
        user("Hi"),
        assistant(
            Reasoning(text="a", metadata=own(id="rs_1")),
            Reasoning(text="b", metadata={"anthropic-messages": {"signature": "s"}}),
            Reasoning(text="c", metadata=own(id="rs_3", field="content")),
            Text(text="Yes"),
            THOUGHT,
        ),
        assistant(THOUGHT),
        user("b"),
    )
    assert sent(request(*history))["input"][1:-1] == [
        {"type": "reasoning", "id": "rs_3", "summary": [], "content": [{"type": "reasoning_text", "text": "c"}]},
        {"role": "assistant", "content": "Yes"},
    ]


def test_encrypted_reasoning_is_asked_for_where_a_model_reasons_and_nothing_is_stored() -> None:
    def settings(model: str, **options: Any) -> tuple[Any, Any]:
        payload = sent(request(user("Hi"), model=model, options=options))
        return payload["store"], payload.get("include")

    encrypted = "reasoning.encrypted_content"
    assert settings("gpt-4.1") == (False, None)
    assert settings("gpt-5-chat-latest") == (False, None)
    assert settings("gpt-5.1-codex") == (False, [encrypted])
    assert settings("o3", reasoningEffort="low") == (False, [encrypted])
    assert settings("o3", reasoning_summary="auto", include=["file_search_call.results"]) == (
        False,
        ["file_search_call.results", encrypted],
    )
    assert settings("gpt-5", store=True, include=[encrypted]) == (True, [encrypted])


def test_executed_calls_of_another_protocol_and_failed_ones_are_function_calls_with_their_output() -> None:
    failed = Call(
        id="ws_9",
        name="web_search",
        input={},
        executed=True,
        result={"error": "no"},
        is_error=True,
        metadata=own(type="web_search_call"),
    )
    plain = Call(id="f3", name="search", input={}, executed=True, result="words")
    items = sent(request(user("Hi"), assistant(failed, plain), user("b")))["input"][1:-1]
    assert [(item["type"], item.get("output")) for item in items] == [
        ("function_call", None),
        ("function_call_output", 'Error: {"error":"no"}'),
        ("function_call", None),
        ("function_call_output", "words"),
    ]


def test_a_result_without_content_says_so() -> None:
    history = (user("Hi"), assistant(Call(id="c", name="read", input={})), result("c"))
    assert sent(request(*history))["input"][-1]["output"] == "(no output)"


def test_a_cache_key_longer_than_the_protocol_takes_is_hashed() -> None:
    keys = [sent(request(user("Hi"), cache_key="ses_" + "x" * 100 + end))["prompt_cache_key"] for end in ("", "y", "")]
    assert keys[0] == keys[2] != keys[1]
    assert sent(request(user("Hi"), options={"promptCacheKey": "mine"}, cache_key="ses"))["prompt_cache_key"] == "mine"


def test_body_fields_are_merged_deeply_and_last_and_null_removes() -> None:
    body = {"text": {"format": {"type": "text"}}, "store": None, "truncation": "auto"}
    payload = sent(request(user("Hi"), options={"textVerbosity": "low"}, body=body))
    assert payload["text"] == {"verbosity": "low", "format": {"type": "text"}}
    assert payload["truncation"] == "auto"
    assert "store" not in payload


def test_ill_formed_strings_anywhere_in_a_request_are_still_sent_as_unicode() -> None:
    broken = ToolDefinition(name="t", description="\ud83d", input_schema={"type": "object", "\ude00": "\ud83d\ude00"})
    payload = sent(request(user("a\ud83d"), system=("\ude00",), tools=(broken,)))
    assert payload["instructions"] == "\ufffd"
    assert payload["tools"][0]["parameters"] == {"type": "object", "\ufffd": "😀"}


def test_the_key_goes_into_one_header() -> None:
    assert ADAPTER.authorization("k") == {"authorization": "Bearer k"}
    assert ADAPTER.protocol == "openai-responses"


def test_what_was_decoded_goes_back_as_it_came() -> None:
    events = decode(
        BEGIN
        + done(0, reasoning_item("Hm", encrypted_content="enc"))
        + words(1, "Look", phase="commentary")
        + hosted(2, SEARCH)
        + END
    )
    (thought_end,) = [found for found in events if isinstance(found, ReasoningEnd)]
    (text_end,) = [found for found in events if isinstance(found, TextEnd)]
    answer = assistant(
        Reasoning(text="Hm", metadata=thought_end.metadata), Text(text="Look", metadata=text_end.metadata), SEARCHED
    )
    assert sent(request(user("Hi"), answer, user("b")))["input"][1:-1] == [
        reasoning_item("Hm", encrypted_content="enc") | {"type": "reasoning"},
        {"role": "assistant", "content": "Look", "phase": "commentary"},
        SEARCH,
    ]
