"""Anthropic Messages: recorded-shape streams decoded at any cut, and requests that the protocol accepts, byte for byte.

Long, because the recorded shapes are one table, and decoding and encoding share it.
"""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steerway.protocol.llm.adapter import Adapter
from steerway.protocol.llm.anthropic_messages import AnthropicMessagesAdapter
from steerway.protocol.llm.anthropic_messages_decoder import AnthropicMessagesDecoder
from steerway.protocol.llm.events import Finished, LLMEvent, ProviderFailed, ReasoningEnd, ToolInputEnd, UsageReported
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
from support.anthropic_messages_rules import violations
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

ADAPTER: Adapter = AnthropicMessagesAdapter()


def decode(*pieces: bytes) -> list[LLMEvent]:
    return decode_with(ADAPTER, pieces)


def event(type: str, **fields: Any) -> bytes:
    return line({"type": type, **fields})


def start(**usage: Any) -> bytes:
    message: dict[str, Any] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
    }
    return event("message_start", message={**message, "usage": {"input_tokens": 25, "output_tokens": 1, **usage}})


def block(index: int, type: str, *deltas: dict[str, Any], **fields: Any) -> bytes:
    """A whole content block."""
    pieces = [event("content_block_start", index=index, content_block={"type": type, **fields})]
    pieces += [event("content_block_delta", index=index, delta=delta) for delta in deltas]
    return b"".join(pieces) + event("content_block_stop", index=index)


def piece(index: int, **delta: Any) -> bytes:
    return event("content_block_delta", index=index, delta=delta)


def words(index: int, *deltas: str) -> bytes:
    return block(index, "text", *({"type": "text_delta", "text": delta} for delta in deltas), text="")


def thinking(index: int, *deltas: str, signature: str = "sig") -> bytes:
    pieces = [{"type": "thinking_delta", "thinking": delta} for delta in deltas]
    signed = {"type": "signature_delta", "signature": signature}
    return block(index, "thinking", *pieces, signed, thinking="", signature="")


def use(index: int, id: str, name: str, *deltas: str, type: str = "tool_use", **fields: Any) -> bytes:
    pieces = ({"type": "input_json_delta", "partial_json": delta} for delta in deltas)
    return block(index, type, *pieces, id=id, name=name, input={}, **fields)


def stop(reason: str | None = "end_turn", **usage: Any) -> bytes:
    delta = {"stop_reason": reason, "stop_sequence": None}
    return event("message_delta", delta=delta, usage={"output_tokens": 15, **usage}) + event("message_stop")


def own(**fields: Any) -> dict[str, Any]:
    """Continuation metadata of this protocol."""
    return {"anthropic-messages": fields}


PING = event("ping")
USED = used(25, 15)
BEGUN = UsageReported(tokens=used(25, 1))
"""What the start of a message says."""
SEARCH_RESULTS = [{"type": "web_search_result", "url": "https://e.org", "title": "E", "encrypted_content": "xyz"}]
CITATION = {"type": "web_search_result_location", "url": "https://e.org", "encrypted_index": "i", "cited_text": "E"}
SERVER_CALL = own(type="server_tool_use")
SEARCHED = own(type="web_search_tool_result")

SURPRISES: list[Any] = [
    None,
    7,
    "text",
    [],
    {},
    {"type": "content_block_delta"},
    {"type": "content_block_delta", "index": "x", "delta": 3},
    {"type": "content_block_delta", "index": 4, "delta": {"type": "input_json_delta", "partial_json": "{"}},
    {"type": "content_block_delta", "index": 5, "delta": {"type": "new_delta", "x": 1}},
    {"type": "content_block_start", "index": 6, "content_block": {"type": "new_block"}},
    {"type": "content_block_start", "index": 7, "content_block": None},
    {"type": "content_block_start", "index": 8, "content_block": {"type": "web_search_tool_result", "tool_use_id": "?"}},
    {"type": "content_block_stop", "index": 99},
    {"type": "message_start", "message": None},
    {"type": "message_delta", "delta": {"stop_reason": 3}, "usage": {"output_tokens": "many"}},
    {"type": "a_new_event", "x": [1]},
]
"""Valid JSON that is no event, or hardly one, or one of a later version."""

# name, stream, events
STREAMS: list[tuple[str, bytes, list[LLMEvent]]] = [
    (
        "plain text",
        start() + words(0, "Hel", "lo") + stop(),
        [*text(1, "Hel", "lo"), finished("stop", "end_turn", USED)],
    ),
    (
        "pings anywhere",
        PING + start() + PING + words(0, "Hi") + PING + stop(),
        [*text(1, "Hi"), finished("stop", "end_turn", USED)],
    ),
    (
        "text that comes whole with the start of its block",
        start() + block(0, "text", text="Hi") + stop(),
        [*text(1, "Hi"), finished("stop", "end_turn", USED)],
    ),
    (
        "two text blocks are two fragments",
        start() + words(0, "a") + words(1, "b") + stop(),
        [*text(1, "a"), *text(2, "b"), finished("stop", "end_turn", USED)],
    ),
    (
        "an empty text block is nothing",
        start() + words(0) + words(1, "b") + stop(),
        [*text(1, "b"), finished("stop", "end_turn", USED)],
    ),
    ("no content at all", start() + stop(), [finished("stop", "end_turn", USED)]),
    (
        "the output limit",
        start() + words(0, "Hi") + stop("max_tokens"),
        [*text(1, "Hi"), finished("length", "max_tokens", USED)],
    ),
    (
        "the context's end",
        start() + words(0, "Hi") + stop("model_context_window_exceeded"),
        [*text(1, "Hi"), finished("length", "model_context_window_exceeded", USED)],
    ),
    (
        "a stop sequence",
        start() + words(0, "Hi") + stop("stop_sequence"),
        [*text(1, "Hi"), finished("stop", "stop_sequence", USED)],
    ),
    (
        "a refusal in the middle",
        start() + words(0, "Well, ") + stop("refusal"),
        [*text(1, "Well, "), finished("content-filter", "refusal", USED)],
    ),
    (
        "a reason that is not known",
        start() + words(0, "Hi") + stop("because"),
        [*text(1, "Hi"), finished("unknown", "because", USED)],
    ),
    (
        "thinking with its signature, then text",
        start() + thinking(0, "Let me", " think.") + words(1, "Yes") + stop(),
        [
            *reasoning(1, "Let me", " think.", metadata=own(signature="sig")),
            *text(2, "Yes"),
            finished("stop", "end_turn", USED),
        ],
    ),
    (
        "a signature in pieces",
        start()
        + block(
            0,
            "thinking",
            {"type": "thinking_delta", "thinking": "Hm"},
            {"type": "signature_delta", "signature": "ab"},
            {"type": "signature_delta", "signature": "cd"},
            thinking="",
        )
        + stop(),
        [*reasoning(1, "Hm", metadata=own(signature="abcd")), finished("stop", "end_turn", USED)],
    ),
    (
        "thinking whose text is kept back",
        start() + thinking(0, signature="only") + words(1, "Yes") + stop(),
        [*reasoning(1, metadata=own(signature="only")), *text(2, "Yes"), finished("stop", "end_turn", USED)],
    ),
    (
        "redacted thinking",
        start() + block(0, "redacted_thinking", data="opaque") + words(1, "Yes") + stop(),
        [*reasoning(1, metadata=own(redacted="opaque")), *text(2, "Yes"), finished("stop", "end_turn", USED)],
    ),
    (
        "two thinking blocks keep their own signatures",
        start() + thinking(0, "a", signature="1") + thinking(1, "b", signature="2") + words(2, "c") + stop(),
        [
            *reasoning(1, "a", metadata=own(signature="1")),
            *reasoning(2, "b", metadata=own(signature="2")),
            *text(3, "c"),
            finished("stop", "end_turn", USED),
        ],
    ),
    (
        "thinking without a signature, from a compatible server",
        start() + block(0, "thinking", {"type": "thinking_delta", "thinking": "Hm"}, thinking="") + stop(),
        [*reasoning(1, "Hm"), finished("stop", "end_turn", USED)],
    ),
    (
        "one tool call behind text",
        start() + words(0, "Look:") + use(1, "toolu_1", "read", "", '{"pa', 'th":1}') + stop("tool_use"),
        [
            *text(1, "Look:"),
            *tool(2, "read", '{"pa', 'th":1}'),
            *called(2, "toolu_1", "read", '{"path":1}', {"path": 1}),
            finished("tool-calls", "tool_use", USED),
        ],
    ),
    (
        "parallel calls",
        start() + use(0, "toolu_1", "read", '{"a":1}') + use(1, "toolu_2", "read", '{"a":2}') + stop("tool_use"),
        [
            *tool(1, "read", '{"a":1}'),
            *tool(2, "read", '{"a":2}'),
            *called(1, "toolu_1", "read", '{"a":1}', {"a": 1}),
            *called(2, "toolu_2", "read", '{"a":2}', {"a": 2}),
            finished("tool-calls", "tool_use", USED),
        ],
    ),
    (
        "calls whose pieces interleave",
        start()
        + event("content_block_start", index=0, content_block={"type": "tool_use", "id": "a", "name": "one", "input": {}})
        + event("content_block_start", index=1, content_block={"type": "tool_use", "id": "b", "name": "two", "input": {}})
        + piece(0, type="input_json_delta", partial_json='{"x":')
        + piece(1, type="input_json_delta", partial_json="{}")
        + piece(0, type="input_json_delta", partial_json="1}")
        + stop("tool_use"),
        [
            *tool(1, "one"),
            *tool(2, "two"),
            *tool(1, "one", '{"x":')[1:],
            *tool(2, "two", "{}")[1:],
            *tool(1, "one", "1}")[1:],
            *called(1, "a", "one", '{"x":1}', {"x": 1}),
            *called(2, "b", "two", "{}", {}),
            finished("tool-calls", "tool_use", USED),
        ],
    ),
    (
        "a call without any input",
        start() + use(0, "toolu_1", "list") + stop("tool_use"),
        [*tool(1, "list"), *called(1, "toolu_1", "list", "", {}), finished("tool-calls", "tool_use", USED)],
    ),
    (
        "input that comes whole with the start of its block, and the wrong stop reason",
        start() + block(0, "tool_use", id="toolu_1", name="read", input={"a": ["ü"]}) + stop("end_turn"),
        [
            *tool(1, "read", '{"a":["ü"]}'),
            *called(1, "toolu_1", "read", '{"a":["ü"]}', {"a": ["ü"]}),
            finished("tool-calls", "end_turn", USED),
        ],
    ),
    (
        "input that is cut by the output limit, and input that is no object",
        start() + use(0, "a", "read", '{"x": ') + use(1, "b", "read", "[1]") + stop("max_tokens"),
        [
            *tool(1, "read", '{"x": '),
            *tool(2, "read", "[1]"),
            *called(1, "a", "read", '{"x": ', None),
            *called(2, "b", "read", "[1]", None),
            finished("length", "max_tokens", USED),
        ],
    ),
    (
        "thinking between calls",
        start() + thinking(0, "a") + use(1, "c1", "one", "{}") + thinking(2, "b", signature="2") + stop("tool_use"),
        [
            *reasoning(1, "a", metadata=own(signature="sig")),
            *tool(2, "one", "{}"),
            *reasoning(3, "b", metadata=own(signature="2")),
            *called(2, "c1", "one", "{}", {}),
            finished("tool-calls", "tool_use", USED),
        ],
    ),
    (
        "a call that a server tool made says so",
        start()
        + use(0, "c1", "one", "{}", caller={"type": "code_execution_20250825", "tool_id": "srvtoolu_1"})
        + use(1, "c2", "one", "{}", caller={"type": "direct"})
        + stop("tool_use"),
        [
            *tool(1, "one", "{}"),
            *tool(2, "one", "{}"),
            *called(
                1,
                "c1",
                "one",
                "{}",
                {},
                metadata=own(caller={"type": "code_execution_20250825", "tool_id": "srvtoolu_1"}),
            ),
            *called(2, "c2", "one", "{}", {}),
            finished("tool-calls", "tool_use", USED),
        ],
    ),
    (
        "a web search with its results and a cited answer",
        start()
        + words(0, "I search.")
        + use(1, "srvtoolu_1", "web_search", '{"query":', '"e"}', type="server_tool_use")
        + block(2, "web_search_tool_result", tool_use_id="srvtoolu_1", content=SEARCH_RESULTS)
        + block(
            3,
            "text",
            {"type": "citations_delta", "citation": CITATION},
            {"type": "text_delta", "text": "It is E."},
            text="",
            citations=[],
        )
        + stop(server_tool_use={"web_search_requests": 1}),
        [
            *text(1, "I search."),
            *tool(2, "web_search", '{"query":', '"e"}'),
            *called(2, "srvtoolu_1", "web_search", '{"query":"e"}', {"query": "e"}, executed=True, metadata=SERVER_CALL),
            settled(2, SEARCH_RESULTS, metadata=SEARCHED),
            *text(3, "It is E.", metadata=own(citations=[CITATION])),
            finished("stop", "end_turn", USED),
        ],
    ),
    (
        "a server tool that fails",
        start()
        + use(0, "srvtoolu_1", "web_search", '{"query":"e"}', type="server_tool_use")
        + block(
            1,
            "web_search_tool_result",
            tool_use_id="srvtoolu_1",
            content={"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"},
        )
        + words(2, "No.")
        + stop(),
        [
            *tool(1, "web_search", '{"query":"e"}'),
            *called(1, "srvtoolu_1", "web_search", '{"query":"e"}', {"query": "e"}, executed=True, metadata=SERVER_CALL),
            settled(
                1,
                {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"},
                is_error=True,
                metadata=SEARCHED,
            ),
            *text(2, "No."),
            finished("stop", "end_turn", USED),
        ],
    ),
    (
        "a tool of a remote server",
        start()
        + use(0, "mcptoolu_1", "echo", "{}", type="mcp_tool_use", server_name="s")
        + block(1, "mcp_tool_result", tool_use_id="mcptoolu_1", is_error=True, content=[{"type": "text", "text": "no"}])
        + stop(),
        [
            *tool(1, "echo", "{}"),
            *called(1, "mcptoolu_1", "echo", "{}", {}, executed=True, metadata=own(type="mcp_tool_use", server_name="s")),
            settled(
                1,
                [{"type": "text", "text": "no"}],
                is_error=True,
                metadata=own(type="mcp_tool_result", is_error=True),
            ),
            finished("stop", "end_turn", USED),
        ],
    ),
    (
        "a pause before the result of a server tool, beside a local call",
        start()
        + use(0, "srvtoolu_1", "web_search", "{}", type="server_tool_use")
        + use(1, "c1", "one", "{}")
        + stop("pause_turn"),
        [
            *tool(1, "web_search", "{}"),
            *called(1, "srvtoolu_1", "web_search", "{}", {}, executed=True, metadata=SERVER_CALL),
            *tool(2, "one", "{}"),
            *called(2, "c1", "one", "{}", {}),
            finished("tool-calls", "pause_turn", USED),
        ],
    ),
    (
        "a result twice, and before the stop of its call",
        start()
        + event(
            "content_block_start",
            index=0,
            content_block={"type": "server_tool_use", "id": "s", "name": "fetch", "input": {}},
        )
        + block(1, "web_fetch_tool_result", tool_use_id="s", content={})
        + block(2, "web_fetch_tool_result", tool_use_id="s", content={"again": 1})
        + piece(0, type="input_json_delta", partial_json='{"late": 1}')
        + stop(),
        [
            *tool(1, "fetch"),
            *called(1, "s", "fetch", "", {}, executed=True, metadata=SERVER_CALL),
            settled(1, {}, metadata=own(type="web_fetch_tool_result")),
            finished("stop", "end_turn", USED),
        ],
    ),
    (
        "cache counts, and thinking among the output",
        start(cache_read_input_tokens=100, cache_creation_input_tokens=30)
        + words(0, "Hi")
        + stop(output_tokens_details={"thinking_tokens": 9}),
        [
            UsageReported(tokens=used(25, 1, read=100, write=30)),
            *text(1, "Hi"),
            finished("stop", "end_turn", used(25, 6, 9, 100, 30)),
        ],
    ),
    (
        "usage only at the end, and numbers that shrink",
        start(input_tokens=0, output_tokens=20)
        + words(0, "Hi")
        + stop(input_tokens=44, cache_read_input_tokens=None, output_tokens=3),
        [UsageReported(tokens=used(0, 20)), *text(1, "Hi"), finished("stop", "end_turn", used(44, 20))],
    ),
    (
        "an emoji in two deltas, half of one at the end, and half of one in a call",
        start()
        + words(0, "a\ud83d", "\ude00b", "\ud83d")
        + use(1, "c\ude00", "o\ud83d", '{"a":"\ud83d', '\ude00"}')
        + stop("tool_use"),
        [
            *text(1, "a", "😀b", "\ufffd"),
            *tool(2, "o\ufffd", '{"a":"', '😀"}'),
            *called(2, "c\ufffd", "o\ufffd", '{"a":"😀"}', {"a": "😀"}),
            finished("tool-calls", "tool_use", USED),
        ],
    ),
    (
        "halves of surrogates in metadata and results",
        start()
        + block(0, "redacted_thinking", data="\ud83d")
        + use(1, "s", "fetch", type="server_tool_use", note="\ud83d")
        + block(2, "web_fetch_tool_result", tool_use_id="s", content={"\ud83d": ["\ude00"]})
        + stop(),
        [
            *reasoning(1, metadata=own(redacted="\ufffd")),
            *tool(2, "fetch"),
            *called(2, "s", "fetch", "", {}, executed=True, metadata=own(type="server_tool_use", note="\ufffd")),
            settled(2, {"\ufffd": ["\ufffd"]}, metadata=own(type="web_fetch_tool_result")),
            finished("stop", "end_turn", USED),
        ],
    ),
    (
        "blocks that never stop, and deltas without a start",
        start()
        + piece(0, type="thinking_delta", thinking="Hm")
        + piece(0, type="signature_delta", signature="s")
        + piece(1, type="text_delta", text="Yes")
        + event("content_block_start", index=2, content_block={"type": "tool_use", "id": "a", "name": "one"})
        + stop("tool_use"),
        [
            *reasoning(1, "Hm", metadata=own(signature="s")),
            *text(2, "Yes"),
            *tool(3, "one"),
            *called(3, "a", "one", "", {}),
            finished("tool-calls", "tool_use", USED),
        ],
    ),
    (
        "surprising shapes are passed over",
        b"".join(line(value) for value in SURPRISES) + start() + words(0, "Hi") + stop(),
        [*text(1, "Hi"), finished("stop", "end_turn", USED)],
    ),
    (
        "comments, other line ends, no event names, a mark of another protocol's end",
        b": hello\r\n\r\n"
        + start().replace(b"\n", b"\r\n")
        + b"\n".join(row for row in words(0, "Hi").split(b"\n") if not row.startswith(b"event:"))
        + b"data: [DONE]\n\n"
        + stop(),
        [BEGUN, *text(1, "Hi"), finished("stop", "end_turn", USED)],
    ),
    (
        "a whole message instead of a stream",
        b" \n"
        + json.dumps(
            {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm", "signature": "s"},
                    {"type": "text", "text": "Hi", "citations": [CITATION]},
                    {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "e"}},
                    {"type": "web_search_tool_result", "tool_use_id": "s1", "content": SEARCH_RESULTS},
                    {"type": "tool_use", "id": "a", "name": "one", "input": {"x": 1}},
                ],
                "stop_reason": "tool_use",
                "usage": {"input_tokens": 25, "output_tokens": 15},
            },
            indent=1,
        ).encode(),
        [
            *reasoning(1, "Hm", metadata=own(signature="s")),
            *text(2, "Hi", metadata=own(citations=[CITATION])),
            *tool(3, "web_search", '{"query":"e"}'),
            *called(3, "s1", "web_search", '{"query":"e"}', {"query": "e"}, executed=True, metadata=SERVER_CALL),
            settled(3, SEARCH_RESULTS, metadata=SEARCHED),
            *tool(4, "one", '{"x":1}'),
            *called(4, "a", "one", '{"x":1}', {"x": 1}),
            finished("tool-calls", "tool_use", USED),
        ],
    ),
]

# name, stream, events before the failure, type, retryable
FAILURES: list[tuple[str, bytes, list[LLMEvent], str, bool]] = [
    ("nothing at all", b"", [], "provider.incomplete", True),
    ("cut inside text", start() + words(0, "Hi") + b"event: content_bl", text(1, "Hi"), "provider.incomplete", True),
    (
        "a stop reason is no end",
        start() + words(0, "Hi") + stop().partition(b"event: message_stop")[0],
        text(1, "Hi"),
        "provider.incomplete",
        True,
    ),
    (
        "cut inside a call: its input ends, and nothing is called",
        start() + use(0, "a", "one", "{}"),
        [*tool(1, "one", "{}"), ToolInputEnd(id="call-1")],
        "provider.incomplete",
        True,
    ),
    (
        "overloaded in the middle",
        start() + words(0, "Hi") + event("error", error={"type": "overloaded_error", "message": "Overloaded"}),
        text(1, "Hi"),
        "provider.overloaded",
        True,
    ),
    (
        "an internal error in the middle of thinking",
        start()
        + event("content_block_start", index=0, content_block={"type": "thinking", "thinking": "Hm"})
        + event("error", error={"type": "api_error", "message": "Internal server error"}),
        reasoning(1, "Hm"),
        "provider.internal",
        True,
    ),
    (
        "no credit left",
        event("error", error={"type": "billing_error", "message": "Pay."}),
        [],
        "provider.quota",
        False,
    ),
    (
        "a rate limit",
        event("error", error={"type": "rate_limit_error", "message": "Slow down"}),
        [],
        "provider.rate-limit",
        True,
    ),
    (
        "too long a prompt",
        event("error", error={"type": "invalid_request_error", "message": "prompt is too long: 210000 tokens > 200000"}),
        [],
        "provider.context-overflow",
        False,
    ),
    (
        "a request that is refused",
        event("error", error={"type": "invalid_request_error", "message": "messages.3: a bad block"}),
        [],
        "provider.invalid-request",
        False,
    ),
    ("an error event with text", b"event: error\ndata: overloaded, come back\n\n", [], "provider.overloaded", True),
    ("an error event with a string", b'event: error\ndata: "Incorrect API key"\n\n', [], "provider.auth", False),
    ("an error without a type", line({"error": {"message": "boom"}}), [], "provider.internal", True),
    (
        "a line that is no JSON",
        start() + words(0, "Hi") + b"data: <html>\n\n",
        text(1, "Hi"),
        "provider.invalid-output",
        False,
    ),
    ("a call without a name", start() + block(0, "tool_use", id="a") + stop(), [], "provider.invalid-output", False),
    ("a page of a proxy", b"<!doctype html><p>Welcome</p>", [], "provider.invalid-output", False),
    ("plain JSON that is no message", b'{"hello": "world"}', [], "provider.invalid-output", False),
    ("plain JSON that is cut", b'{"type": "message", "content": [{"ty', [], "provider.invalid-output", False),
    (
        "a plain error object",
        b'\xef\xbb\xbf{"type": "error", "error": {"type": "permission_error", "message": "no"}}',
        [],
        "provider.auth",
        False,
    ),
]


def told(stream: bytes, events: list[LLMEvent]) -> list[LLMEvent]:
    """With what every start says, which comes before all else that there is to say."""
    return [BEGUN, *events] if start() in stream else events


@pytest.mark.parametrize(("stream", "expected"), [row[1:] for row in STREAMS], ids=[row[0] for row in STREAMS])
def test_a_stream_is_decoded_the_same_whole_and_byte_by_byte(stream: bytes, expected: list[LLMEvent]) -> None:
    expected = told(stream, expected)
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
    assert events == told(stream, before)
    assert isinstance(failed, ProviderFailed)
    assert (failed.failure.type, failed.retryable) == (type, retryable)
    assert failed.failure.message
    assert decode(*byte_by_byte(stream)) == [*events, failed]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([row[1] for row in (*STREAMS, *FAILURES)]), st.lists(st.floats(0, 1), max_size=6))
def test_random_cuts_never_change_what_is_decoded(stream: bytes, cuts: list[float]) -> None:
    assert decode(*cut_at(stream, cuts)) == decode(stream)


NAMES = (
    *("type", "index", "delta", "content_block", "message", "usage", "stop_reason", "text", "thinking", "signature"),
    *("id", "name", "input", "partial_json", "tool_use_id", "content", "error", "citation", "data", "output_tokens"),
)
VALUES = (
    *("content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_start", "text"),
    *("text_delta", "thinking", "thinking_delta", "tool_use", "input_json_delta", "server_tool_use", "x_tool_result"),
    *("signature_delta", "redacted_thinking", "x", "", "{", "\ud83d"),
)
ODD = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(width=16) | st.sampled_from(VALUES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5),
    max_leaves=20,
)


def odd_block(type: str, index: int, start: dict[str, Any], delta: dict[str, Any]) -> bytes:
    return line({"type": type, "index": index, "content_block": start, "delta": delta})


BLOCKS = st.builds(
    odd_block,
    st.sampled_from(["content_block_start", "content_block_delta", "content_block_stop"]),
    st.integers(0, 2),
    st.fixed_dictionaries(
        {"type": st.sampled_from(VALUES), "id": st.sampled_from("ab"), "tool_use_id": st.sampled_from("ab")},
        optional={"name": st.just("n"), "text": st.just("t"), "input": st.just({"a": 1}), "data": st.just("d")},
    ),
    st.fixed_dictionaries(
        {"type": st.sampled_from(VALUES)},
        optional={"text": st.just("t"), "partial_json": st.just("{"), "thinking": st.just("h"), "signature": st.just("s")},
    ),
)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.one_of(ODD.map(line), BLOCKS, st.sampled_from([row[1] for row in STREAMS]), st.binary(max_size=20)), max_size=9)
)
def test_whatever_a_provider_sends_the_events_are_in_a_legal_order(pieces: list[bytes]) -> None:
    check_order(decode(*pieces))


def test_after_the_end_nothing_more_is_said() -> None:
    decoder = ADAPTER.decoder()
    assert len(decoder.feed(start() + words(0, "Hi") + stop())) == 5
    assert decoder.feed(words(1, "more") + b"data: {\n\n") == []
    assert decoder.close() == []


def test_a_failure_keeps_the_usage_that_was_reported() -> None:
    failed = decode(start() + event("error", error={"type": "api_error", "message": "boom"}))[-1]
    assert isinstance(failed, ProviderFailed)
    assert failed.tokens == used(25, 1)


@pytest.mark.parametrize("body", [b"data: " + b"x" * 200, b'{"a": "' + b"x" * 200, b"data: x\n" * 60])
def test_an_event_or_body_over_the_limit_is_invalid_output(body: bytes) -> None:
    for pieces in ([body], byte_by_byte(body)):
        decoder = AnthropicMessagesDecoder(limit=100)
        events = [found for piece in pieces for found in decoder.feed(piece)]
        assert [found.failure.type for found in events if isinstance(found, ProviderFailed)] == ["provider.invalid-output"]
        assert decoder.close() == []


def test_the_input_of_one_call_is_bounded() -> None:
    decoder = AnthropicMessagesDecoder(limit=1000)
    events = decoder.feed(event("content_block_start", index=0, content_block={"type": "tool_use", "id": "a", "name": "n"}))
    for _ in range(30):
        events += decoder.feed(piece(0, type="input_json_delta", partial_json="x" * 50))
    assert isinstance(events[-1], ProviderFailed)
    assert isinstance(events[-2], ToolInputEnd)


@pytest.mark.parametrize(
    ("status", "type", "message", "expected", "retryable"),
    [
        (401, "authentication_error", "invalid x-api-key", "provider.auth", False),
        (403, "permission_error", "no", "provider.auth", False),
        (402, "billing_error", "no", "provider.quota", False),
        (400, "invalid_request_error", "Your credit balance is too low", "provider.quota", False),
        (400, "invalid_request_error", "prompt is too long: 3 tokens > 2 maximum", "provider.context-overflow", False),
        (
            400,
            "invalid_request_error",
            "input length and `max_tokens` exceed context limit",
            "provider.context-overflow",
            False,
        ),
        (413, "request_too_large", "Request exceeds the maximum size", "provider.context-overflow", False),
        (400, "invalid_request_error", "messages: bad", "provider.invalid-request", False),
        (404, "not_found_error", "model: claude-x", "provider.invalid-request", False),
        (429, "rate_limit_error", "slow down", "provider.rate-limit", True),
        (500, "api_error", "Internal server error", "provider.internal", True),
        (529, "overloaded_error", "Overloaded", "provider.overloaded", True),
    ],
)
def test_answers_that_are_errors_are_classified(status: int, type: str, message: str, expected: str, retryable: bool) -> None:
    body = json.dumps({"type": "error", "error": {"type": type, "message": message}, "request_id": "req_9"}).encode()
    failed = ADAPTER.classify(status, {"request-id": "req_9"}, body)
    assert (failed.failure.type, failed.retryable) == (expected, retryable)
    assert failed.failure.fields is not None
    assert failed.failure.fields["request_id"] == "req_9"


# --- what is sent -----------------------------------------------------------------------------------------------------


def request(
    *messages: RequestMessage,
    model: str = "claude-1",
    system: tuple[str, ...] = (),
    tools: tuple[ToolDefinition, ...] = (),
    tool_choice: ToolChoice = "auto",
    generation: Generation | None = None,
    options: dict[str, Any] | None = None,
    body: dict[str, Any] | None = None,
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
    )


def sent(request: LLMRequest) -> dict[str, Any]:
    payload = json.loads(ADAPTER.encode(request).body)
    assert violations(payload) == []
    return payload


def plain(payload: dict[str, Any]) -> list[Any]:
    """The messages without their cache markers."""
    return [
        {"role": message["role"], "content": [unmarked(block) for block in message["content"]]}
        for message in payload["messages"]
    ]


def unmarked(block: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in block.items() if key != "cache_control"}


def user(text: str) -> UserMessage:
    return UserMessage(content=(Text(text=text),))


def assistant(*content: Text | Reasoning | Call) -> AssistantMessage:
    return AssistantMessage(content=content)


def result(id: str, *content: Text | Media, is_error: bool = False) -> ToolMessage:
    return ToolMessage(call_id=id, name="read", content=content, is_error=is_error)


READ = ToolDefinition(name="read", description="Reads.", input_schema={"type": "object", "properties": {"path": {}}})
LIST = ToolDefinition(name="list", description="Lists.", input_schema={})
IMAGE = Media(data=b"\x89PNG", mime="image/png", name="a.png")
SIGNED = Reasoning(text="Hm", metadata=own(signature="s"))
SEARCHED_CALL = Call(
    id="srvtoolu_1",
    name="web_search",
    input={"query": "e"},
    executed=True,
    result=SEARCH_RESULTS,
    metadata=SERVER_CALL,
    result_metadata=SEARCHED,
)
FOREIGN_CALL = Call(id="f1", name="search", input={}, executed=True, result={"hits": [1]})
CONVERSATION: tuple[RequestMessage, ...] = (
    user("Hi"),
    user("there"),
    assistant(
        SIGNED,
        Reasoning(text="", metadata=own(redacted="r")),
        Reasoning(text="elsewhere"),
        Text(text="One"),
        SEARCHED_CALL,
        Text(text="Two", metadata=own(citations=[CITATION])),
        Call(id="c1", name="read", input={"path": "ü", "a": 1}),
        Call(id="c2", name="read", input={}),
    ),
    result("c1", Text(text="gone"), IMAGE, is_error=True),
    result("c2", Text(text="here"), IMAGE),
    SystemUpdate(text="Now <b> & </b>"),
    UserMessage(content=(Text(text="Look"), Text(text=" "), IMAGE)),
)


def test_the_bytes_of_a_full_request_are_fixed() -> None:
    whole = request(
        *CONVERSATION,
        system=("Be brief.", "", "Today."),
        tools=(LIST, READ),
        tool_choice="none",
        generation=Generation(max_tokens=9000, temperature=0.5, top_p=1.0, top_k=3, seed=3, stop=("END",)),
        options={"thinking": {"type": "enabled", "budgetTokens": 2000}, "effort": "low"},
    )
    assert violations(json.loads(ADAPTER.encode(whole).body)) == []
    encoded = ADAPTER.encode(whole)
    assert encoded.path == "/messages"
    assert encoded.headers["anthropic-version"] == "2023-06-01"
    mark = ',"cache_control":{"type":"ephemeral"}'
    image = '{"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBORw=="}'
    expected = (
        '{"model":"claude-1","system":[{"type":"text","text":"Be brief."},{"type":"text","text":"Today."' + mark + "}],"
        '"messages":['
        '{"role":"user","content":[{"type":"text","text":"Hi"}]},'
        '{"role":"user","content":[{"type":"text","text":"there"' + mark + "}]},"
        '{"role":"assistant","content":['
        '{"type":"thinking","thinking":"Hm","signature":"s"},{"type":"redacted_thinking","data":"r"},'
        '{"type":"text","text":"One"},'
        '{"type":"server_tool_use","id":"srvtoolu_1","name":"web_search","input":{"query":"e"}},'
        '{"type":"web_search_tool_result","tool_use_id":"srvtoolu_1","content":[{"type":"web_search_result",'
        '"url":"https://e.org","title":"E","encrypted_content":"xyz"}]},'
        '{"type":"text","text":"Two","citations":[{"type":"web_search_result_location","url":"https://e.org",'
        '"encrypted_index":"i","cited_text":"E"}]},'
        '{"type":"tool_use","id":"c1","name":"read","input":{"path":"ü","a":1}},'
        '{"type":"tool_use","id":"c2","name":"read","input":{}}]},'
        '{"role":"user","content":['
        '{"type":"tool_result","tool_use_id":"c1","content":[{"type":"text","text":"gone"}],"is_error":true},'
        '{"type":"tool_result","tool_use_id":"c2","content":[{"type":"text","text":"here"},' + image + "}]},"
        '{"type":"text","text":"Media from the result of read (c1):"},' + image + "}]},"
        '{"role":"user","content":[{"type":"text","text":"<system-update>\\nNow &lt;b&gt; &amp; &lt;/b&gt;\\n'
        '</system-update>"}]},'
        '{"role":"user","content":[{"type":"text","text":"Look"},' + image + mark + "}]}],"
        '"tools":[{"name":"list","description":"Lists.","input_schema":{"type":"object"}},'
        '{"name":"read","description":"Reads.","input_schema":{"type":"object","properties":{"path":{}}}' + mark + "}],"
        '"tool_choice":{"type":"none"},"stream":true,"max_tokens":9000,'
        '"thinking":{"type":"enabled","budget_tokens":2000},"output_config":{"effort":"low"},"top_p":1.0,'
        '"stop_sequences":["END"]}'
    )
    assert encoded.body.decode() == expected


def test_a_pdf_is_a_document_in_messages_and_in_results_and_stands_behind_those_that_are_errors() -> None:
    paper = Media(data=b"%PDF-1.7", mime="application/pdf", name="n" * 501)
    asked = request(
        UserMessage(content=(Text(text="Read"), Media(data=b"%PDF-1.4", mime="application/pdf"))),
        assistant(Call(id="c1", name="read", input={}), Call(id="c2", name="read", input={})),
        result("c1", paper),
        result("c2", Text(text="half"), paper, is_error=True),
    )
    body = json.loads(ADAPTER.encode(asked).body)
    source = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0xLjc="}
    document = {"type": "document", "source": source, "title": "n" * 500}
    untitled = {"type": "document", "source": {**source, "data": "JVBERi0xLjQ="}}
    first, _, results = body["messages"]
    assert [unmarked(block) for block in first["content"]] == [{"type": "text", "text": "Read"}, untitled]
    assert [unmarked(block) for block in results["content"]] == [
        {"type": "tool_result", "tool_use_id": "c1", "content": [document]},
        {"type": "tool_result", "tool_use_id": "c2", "content": [{"type": "text", "text": "half"}], "is_error": True},
        {"type": "text", "text": "Media from the result of read (c2):"},
        document,
    ]
    assert violations(body) == []


def test_where_the_model_spoke_last_one_marker_stands_in_the_user_message_before() -> None:
    body = ADAPTER.encode(request(user("Hi"), user("there"), assistant(Text(text="One")), assistant(Text(text="Two")))).body
    assert body.count(b"cache_control") == 1
    assert b'{"type":"text","text":"there","cache_control":{"type":"ephemeral"}}' in body


def test_the_smallest_request_says_nothing_it_does_not_have_to() -> None:
    assert ADAPTER.encode(request(user("Hi"))).body == (
        b'{"model":"claude-1","messages":[{"role":"user","content":[{"type":"text","text":"Hi",'
        b'"cache_control":{"type":"ephemeral"}}]}],"stream":true,"max_tokens":4096}'
    )


def test_messages_of_a_longer_request_begin_with_those_of_the_shorter() -> None:
    whole = plain(sent(request(*CONVERSATION)))
    for count in (1, 2, 5, 6, 7):
        part = plain(sent(request(*CONVERSATION[:count])))
        assert whole[: len(part)] == part


def test_cache_markers_are_at_most_four_and_stand_where_the_next_request_finds_them() -> None:
    def marked(*messages: RequestMessage) -> list[int]:
        payload = sent(request(*messages, system=("s",), tools=(READ,)))
        assert json.dumps(payload).count("cache_control") <= 4
        assert "cache_control" in payload["tools"][-1]
        assert "cache_control" in payload["system"][-1]
        return [at for at, message in enumerate(payload["messages"]) if any("cache_control" in b for b in message["content"])]

    answer = assistant(SIGNED, Text(text="yes"))
    assert marked(user("a"), user("b")) == [1]
    assert marked(user("a"), user("b"), answer, user("c")) == [1, 3]
    assert marked(user("a"), answer, user("b"), answer, user("c"), user("d")) == [2, 5]
    assert marked(user("a"), assistant(Call(id="c", name="read", input={})), result("c")) == [0, 2]


def test_thinking_without_a_signature_of_its_own_and_thinking_at_the_end_are_left_out() -> None:
    foreign = Reasoning(text="Hm", metadata={"openai-responses": {"id": "rs", "encrypted_content": "e"}})
    history = (user("Hi"), assistant(foreign), assistant(foreign, Text(text="a"), SIGNED), assistant(SIGNED), user("b"))
    assert plain(sent(request(*history))) == [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "a"}]},
        {"role": "user", "content": [{"type": "text", "text": "b"}]},
    ]


def test_an_executed_call_of_another_protocol_is_a_call_with_its_result_before_the_model_goes_on() -> None:
    failed = Call(id="f2", name="search", input={}, executed=True, result={"error": "no"}, is_error=True)
    messages = plain(sent(request(user("Hi"), assistant(Text(text="a"), FOREIGN_CALL, failed, Text(text="b")), user("c"))))
    assert [message["role"] for message in messages] == ["user", "assistant", "user", "assistant", "user"]
    assert [block["type"] for block in messages[1]["content"]] == ["text", "tool_use", "tool_use"]
    assert messages[2]["content"] == [
        {"type": "tool_result", "tool_use_id": "f1", "content": [{"type": "text", "text": '{"hits":[1]}'}]},
        {
            "type": "tool_result",
            "tool_use_id": "f2",
            "content": [{"type": "text", "text": '{"error":"no"}'}],
            "is_error": True,
        },
    ]


def test_beside_a_local_call_the_results_of_executed_calls_wait_for_its_result() -> None:
    local = Call(id="c1", name="read", input={})
    history = (user("Hi"), assistant(local, FOREIGN_CALL, Text(text="b")), result("c1"), user("c"))
    messages = plain(sent(request(*history)))
    assert [message["role"] for message in messages] == ["user", "assistant", "user", "user"]
    assert [block["tool_use_id"] for block in messages[2]["content"]] == ["f1", "c1"]
    assert messages[2]["content"][1]["content"] == [{"type": "text", "text": "(no output)"}]


def test_a_server_tool_s_call_without_its_result_is_an_ordinary_call() -> None:
    paused = Call(
        id="srvtoolu_1",
        name="web_search",
        input={},
        executed=True,
        result={"error": "none"},
        is_error=True,
        metadata=SERVER_CALL,
    )
    messages = plain(sent(request(user("Hi"), assistant(paused), user("Go on."))))
    assert [message["content"][0]["type"] for message in messages] == ["text", "tool_use", "tool_result", "text"]


def test_a_failed_server_tool_goes_back_as_it_came() -> None:
    error = {"type": "web_search_tool_result_error", "error_code": "unavailable"}
    call = Call(
        id="srvtoolu_1",
        name="web_search",
        input={},
        executed=True,
        result=error,
        metadata=SERVER_CALL,
        result_metadata=SEARCHED,
    )
    messages = plain(sent(request(user("Hi"), assistant(call, Text(text="No.")), user("b"))))
    assert messages[1]["content"][1] == {
        "type": "web_search_tool_result",
        "tool_use_id": "srvtoolu_1",
        "content": error,
    }


def test_call_ids_are_made_valid_and_never_become_one() -> None:
    ids = ("functions.read:0", "functions_read_0", "functions:read.0", "ok-1")
    calls = [Call(id=id, name="read", input={}) for id in ids]
    messages = plain(sent(request(user("Hi"), assistant(*calls), *(result(id) for id in ids))))
    used_ids = [block["id"] for block in messages[1]["content"]]
    assert used_ids == ["functions_read_0", "functions_read_0_2", "functions_read_0_3", "ok-1"]
    assert [block["tool_use_id"] for block in messages[2]["content"]] == used_ids


def test_a_call_that_a_server_tool_made_keeps_saying_so() -> None:
    caller = {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"}
    call = Call(id="c1", name="read", input={}, metadata=own(caller=caller, id="another"))
    block = plain(sent(request(user("Hi"), assistant(call), result("c1"))))[1]["content"][0]
    assert (block["caller"], block["id"]) == (caller, "c1")


@pytest.mark.parametrize(
    ("max_tokens", "thinking", "expected"),
    [
        (None, {"type": "enabled", "budgetTokens": 10_000}, (14_096, 10_000)),
        (8_000, {"type": "enabled", "budget_tokens": 10_000}, (8_000, 7_999)),
        (8_000, {"type": "enabled"}, (8_000, 1024)),
        (1_000, {"type": "enabled", "budgetTokens": 10_000}, (1_000, None)),
        (1_000, {"type": "disabled"}, (1_000, None)),
        (None, {}, (4096, None)),
    ],
)
def test_a_thinking_budget_stays_below_the_output_limit(
    max_tokens: int | None, thinking: dict[str, Any], expected: tuple[int, int | None]
) -> None:
    generation = Generation(max_tokens=max_tokens)
    payload = sent(request(user("Hi"), generation=generation, options={"thinking": thinking}))
    assert (payload["max_tokens"], payload.get("thinking", {}).get("budget_tokens")) == expected


CALLED = assistant(Call(id="c1", name="read", input={}))


@pytest.mark.parametrize(
    ("messages", "thinks"),
    [
        ((CALLED, result("c1")), False),
        ((CALLED, result("c1"), assistant(Call(id="c2", name="read", input={})), result("c2")), False),
        ((CALLED, result("c1"), user("And?")), True),
        ((CALLED, result("c1"), SystemUpdate(text="New")), True),
        ((CALLED, result("c1"), assistant(Text(text="So.")), user("And?")), True),
        ((assistant(SIGNED, Call(id="c1", name="read", input={})), result("c1")), True),
        # Within one run a model that thinks need not think before every call.
        ((assistant(SIGNED, Call(id="c0", name="read", input={})), result("c0"), CALLED, result("c1")), True),
        ((assistant(SIGNED, Text(text="So.")), user("And?"), CALLED, result("c1")), False),
    ],
)
def test_a_thinking_budget_waits_until_calls_that_were_not_thought_about_are_over(
    messages: tuple[RequestMessage, ...], thinks: bool
) -> None:
    options = {"thinking": {"type": "enabled", "budgetTokens": 2000}}
    generation = Generation(temperature=0.3)
    payload = sent(request(user("Hi"), *messages, generation=generation, options=options))
    assert violations(payload) == []
    assert ("thinking" in payload, "temperature" in payload) == (thinks, not thinks)
    adaptive = sent(request(user("Hi"), *messages, options={"thinking": {"type": "adaptive"}}))
    assert adaptive["thinking"] == {"type": "adaptive"}
    conversation = ADAPTER.conversation()
    for end in range(len(messages)):
        conversation.extend((user("Hi"), *messages[:end]))
    assert conversation.write(request(user("Hi"), *messages, options=options)) == ADAPTER.encode(
        request(user("Hi"), *messages, options=options)
    )


def test_adaptive_thinking_is_passed_on_and_silences_sampling() -> None:
    generation = Generation(temperature=0.3, top_k=5, frequency_penalty=1.0, presence_penalty=1.0, seed=1)
    options = {"thinking": {"type": "adaptive", "display": "summarized"}, "effort": "max", "reasoningEffort": "low"}
    payload = sent(request(user("Hi"), generation=generation, options=options))
    assert payload["thinking"] == {"type": "adaptive", "display": "summarized"}
    assert payload["output_config"] == {"effort": "max"}
    assert set(payload) == {"model", "messages", "stream", "max_tokens", "thinking", "output_config"}
    assert sent(request(user("Hi"), generation=generation))["temperature"] == 0.3


@pytest.mark.parametrize("model", ["claude-opus-4-8", "claude-opus-4-8-20260528"])
def test_a_system_update_takes_the_native_role_where_model_and_place_allow_it(model: str) -> None:
    update, answer = SystemUpdate(text="New <date>"), assistant(Text(text="ok"))
    call = assistant(Call(id="c", name="read", input={}))

    def roles(*messages: RequestMessage) -> str:
        return "".join(message["role"][0] for message in sent(request(*messages, model=model))["messages"])

    assert roles(user("a"), update) == "us"
    assert roles(user("a"), update, answer, user("b")) == "usau"
    assert roles(user("a"), call, result("c"), update, answer) == "uausa"
    assert roles(user("a"), assistant(SEARCHED_CALL), update, answer) == "uasa"
    # The next message is the user's; two in a row; nothing or only the model before it.
    assert roles(user("a"), update, user("b")) == "uuu"
    assert roles(user("a"), update, update) == "uuu"
    assert roles(update, answer, user("b")) == "uau"
    assert roles(user("a"), answer, update) == "uau"
    native = sent(request(user("a"), update, model=model))["messages"][1]["content"]
    assert native == [{"type": "text", "text": "New <date>"}]


def test_other_models_get_a_system_update_as_wrapped_user_text() -> None:
    for model in ("claude-opus-4-7", "claude-opus-4-80", "x"):
        messages = plain(sent(request(user("a"), SystemUpdate(text="b"), model=model)))
        assert messages[1] == {
            "role": "user",
            "content": [{"type": "text", "text": "<system-update>\nb\n</system-update>"}],
        }


def test_body_fields_are_merged_deeply_and_last_and_null_removes() -> None:
    payload = sent(request(user("Hi"), options={"effort": "low"}, body={"metadata": {"user_id": "u"}, "output_config": None}))
    assert payload["metadata"] == {"user_id": "u"}
    assert "output_config" not in payload


def test_ill_formed_strings_anywhere_in_a_request_are_still_sent_as_unicode() -> None:
    broken = ToolDefinition(name="t", description="\ud83d", input_schema={"\ude00": "\ud83d\ude00"})
    payload = sent(request(user("a\ud83d"), system=("\ude00",), tools=(broken,)))
    assert plain(payload)[0]["content"][0]["text"] == "a\ufffd"
    assert payload["tools"][0]["input_schema"] == {"\ufffd": "😀", "type": "object"}


def test_the_key_goes_into_one_header() -> None:
    assert ADAPTER.authorization("k") == {"x-api-key": "k", "anthropic-version": "2023-06-01"}
    assert ADAPTER.protocol == "anthropic-messages"


def test_what_was_decoded_goes_back_as_it_came() -> None:
    events = decode(STREAMS[[row[0] for row in STREAMS].index("thinking with its signature, then text")][1])
    assert isinstance(events[-1], Finished)
    (end,) = [event for event in events if isinstance(event, ReasoningEnd)]
    back = Reasoning(text="Let me think.", metadata=end.metadata)
    content = plain(sent(request(user("Hi"), assistant(back, Text(text="Yes")), user("b"))))[1]["content"]
    assert content[0] == {"type": "thinking", "thinking": "Let me think.", "signature": "sig"}
