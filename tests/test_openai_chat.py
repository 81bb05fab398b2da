"""The Chat Completions protocol: streams as servers really send them, and the bytes we send.

Long because it is a table: every stream stands beside the events it has to give.
"""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from steerway.protocol.llm.adapter import Adapter
from steerway.protocol.llm.events import (
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
    UsageReported,
)
from steerway.protocol.llm.openai_chat import OpenAIChatAdapter
from steerway.protocol.llm.openai_chat_decoder import REASONING_METADATA, OpenAIChatDecoder
from steerway.protocol.llm.request import (
    AssistantMessage,
    Call,
    Generation,
    LLMRequest,
    Media,
    Reasoning,
    RequestMessage,
    Text,
    ToolChoice,
    ToolMessage,
    UserMessage,
)
from steerway.protocol.values.message import Finish
from steerway.protocol.values.model import NO_TOKENS, CacheTokens, Tokens
from steerway.protocol.values.tool import ToolDefinition
from support import openai_chat_rules
from support.decoding import check_order, used

ADAPTER: Adapter = OpenAIChatAdapter()

DONE = b"data: [DONE]\n\n"


def line(value: Any) -> bytes:
    """One event of a stream; surrogates are escaped, as servers do it."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def chunk(finish: str | None = None, usage: dict[str, Any] | None = None, **delta: Any) -> bytes:
    """A chunk as OpenAI sends it."""
    return line(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1700000000,
            "model": "m",
            "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}],
            "usage": usage,
        }
    )


def call(index: int | None = None, id: str | None = None, name: str | None = None, arguments: Any = None) -> bytes:
    """A chunk with one piece of a tool call, without the fields that are None."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    piece: dict[str, Any] = {key: value for key, value in (("index", index), ("id", id)) if value is not None}
    return chunk(tool_calls=[piece | {"function": function}])


def decode(*pieces: bytes) -> list[LLMEvent]:
    decoder = ADAPTER.decoder()
    return [event for piece in pieces for event in decoder.feed(piece)] + decoder.close()


def text(number: int, *deltas: str) -> list[LLMEvent]:
    id = f"text-{number}"
    return [TextStart(id=id), *(TextDelta(id=id, text=delta) for delta in deltas), TextEnd(id=id)]


def reasoning(number: int, *deltas: str, native: bool = True) -> list[LLMEvent]:
    id = f"reasoning-{number}"
    end = ReasoningEnd(id=id, metadata=REASONING_METADATA if native else None)
    return [ReasoningStart(id=id), *(ReasoningDelta(id=id, text=delta) for delta in deltas), end]


def tool(number: int, name: str, *deltas: str) -> list[LLMEvent]:
    id = f"call-{number}"
    return [ToolInputStart(id=id, name=name), *(ToolInputDelta(id=id, text=delta) for delta in deltas)]


def called(number: int, provider_id: str, name: str, raw: str, input: dict[str, Any] | None) -> list[LLMEvent]:
    id = f"call-{number}"
    return [ToolInputEnd(id=id), ToolCall(id=id, provider_call_id=provider_id, name=name, raw=raw, input=input)]


def finished(finish: Finish, raw: str | None, tokens: Tokens = NO_TOKENS) -> Finished:
    return Finished(finish=finish, tokens=tokens, raw_finish=raw)


USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 50,
    "total_tokens": 150,
    "prompt_tokens_details": {"cached_tokens": 60},
    "completion_tokens_details": {"reasoning_tokens": 20},
}
TOKENS = Tokens(input=40, output=30, reasoning=20, cache=CacheTokens(read=60, write=0))
USAGE_CHUNK = line({"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [], "usage": USAGE})
ROLE = chunk(role="assistant", content="", refusal=None)
STOP = chunk("stop")
TOOLS = chunk("tool_calls")

SURPRISES = r"""
null
7
"text"
[]
{}
{"choices": null}
{"choices": {}}
{"choices": [null, 3, {}]}
{"choices": [{"delta": null}]}
{"choices": [{"delta": {"content": 5, "tool_calls": "x", "reasoning": 3, "refusal": []}}]}
{"choices": [{"delta": {"tool_calls": [null, {}, {"index": "x"}, {"function": null, "id": null}]}}]}
{"choices": [{"delta": {"reasoning_details": [1, {"text": 3}], "function_call": "f"}}]}
{"choices": [{"finish_reason": 3}], "usage": [1]}
{"choices": [{"index": 1, "delta": {"content": "another answer"}, "finish_reason": "length"}]}
{"error": null, "usage": {"prompt_tokens": "many"}}
"""
"""Valid JSON that is no chunk, or hardly one."""

# name, stream, events
STREAMS: list[tuple[str, bytes, list[LLMEvent]]] = [
    (
        "usage in every chunk, of which the first is told",
        chunk(usage={"prompt_tokens": 9, "completion_tokens": 0}, role="assistant", content="")
        + chunk(usage={"prompt_tokens": 9, "completion_tokens": 1}, content="Hel")
        + chunk(usage={"prompt_tokens": 9, "completion_tokens": 2}, content="lo")
        + chunk("stop", usage={"prompt_tokens": 9, "completion_tokens": 2})
        + DONE,
        [UsageReported(tokens=used(9, 0)), *text(1, "Hel", "lo"), finished("stop", "stop", used(9, 2))],
    ),
    (
        "usage with the finish is that of the end",
        chunk(content="Hi") + chunk("stop", usage={"prompt_tokens": 9, "completion_tokens": 2}) + DONE,
        [*text(1, "Hi"), finished("stop", "stop", used(9, 2))],
    ),
    (
        "plain text with usage after the finish",
        ROLE + chunk(content="Hel") + chunk(content="lo") + STOP + USAGE_CHUNK + DONE,
        [*text(1, "Hel", "lo"), finished("stop", "stop", TOKENS)],
    ),
    (
        "no DONE, only a finish reason",
        chunk(content="Hi") + STOP,
        [*text(1, "Hi"), finished("stop", "stop")],
    ),
    (
        "no finish reason, only DONE",
        chunk(content="Hi") + DONE,
        [*text(1, "Hi"), finished("unknown", None)],
    ),
    (
        "finish reason in the chunk of the last delta, usage in the same, more after it",
        chunk("length", USAGE, content="Hi") + chunk(content="!") + DONE + chunk(content="ignored"),
        [*text(1, "Hi", "!"), finished("length", "length", TOKENS)],
    ),
    (
        "empty finish reasons are none",
        chunk("", content="Hi") + chunk("stop", content="") + DONE,
        [*text(1, "Hi"), finished("stop", "stop")],
    ),
    (
        "content filter",
        chunk(content="Hi") + chunk("content_filter") + DONE,
        [*text(1, "Hi"), finished("content-filter", "content_filter")],
    ),
    (
        "refusal",
        ROLE + chunk(refusal="I ") + chunk(refusal="won't.") + STOP + DONE,
        [*text(1, "I ", "won't."), finished("content-filter", "stop")],
    ),
    (
        "an unknown finish reason",
        chunk(content="Hi") + chunk("because") + DONE,
        [*text(1, "Hi"), finished("unknown", "because")],
    ),
    (
        "reasoning_content, then text",
        chunk(role="assistant", content=None, reasoning_content="Hm")
        + chunk(content=None, reasoning_content="m.")
        + chunk(content="Yes", reasoning_content=None)
        + STOP
        + DONE,
        [*reasoning(1, "Hm", "m."), *text(2, "Yes"), finished("stop", "stop")],
    ),
    (
        "reasoning and its details say the same once",
        chunk(content="", reasoning="Hm", reasoning_details=[{"type": "reasoning.text", "text": "Hm", "index": 0}])
        + chunk(
            content="",
            reasoning_details=[{"type": "reasoning.summary", "summary": "."}, {"type": "reasoning.encrypted", "data": "x"}],
        )
        + chunk(content="Yes", reasoning=None)
        + STOP
        + DONE,
        [*reasoning(1, "Hm", ".", native=False), *text(2, "Yes"), finished("stop", "stop")],
    ),
    (
        "text, reasoning and text again are three fragments",
        chunk(content="a") + chunk(reasoning_content="b") + chunk(content="c") + STOP,
        [*text(1, "a"), *reasoning(2, "b"), *text(3, "c"), finished("stop", "stop")],
    ),
    (
        "content as a list of parts",
        chunk(content=[{"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]}])
        + chunk(content=[{"type": "text", "text": "Yes"}, 7])
        + STOP,
        [*reasoning(1, "Hm", native=False), *text(2, "Yes"), finished("stop", "stop")],
    ),
    (
        "one tool call",
        ROLE
        + call(0, "call_a", "read", "")
        + call(0, arguments='{"pa')
        + call(0, arguments='th":1}')
        + TOOLS
        + USAGE_CHUNK
        + DONE,
        [
            *tool(1, "read", '{"pa', 'th":1}'),
            *called(1, "call_a", "read", '{"path":1}', {"path": 1}),
            finished("tool-calls", "tool_calls", TOKENS),
        ],
    ),
    (
        "finish stop although there was a call, and no arguments at all",
        chunk(content="Look:") + call(0, "call_a", "list") + STOP + DONE,
        [*text(1, "Look:"), *tool(2, "list"), *called(2, "call_a", "list", "", {}), finished("tool-calls", "stop")],
    ),
    (
        "calls that interleave, with text between them",
        call(0, "a", "one", '{"x":')
        + call(1, "b", "two", "{")
        + chunk(content="hm")
        + call(0, arguments="1}")
        + call(1, arguments="}")
        + TOOLS,
        [
            *tool(1, "one", '{"x":'),
            *tool(2, "two", "{"),
            *text(3, "hm")[:2],
            ToolInputDelta(id="call-1", text="1}"),
            ToolInputDelta(id="call-2", text="}"),
            *called(1, "a", "one", '{"x":1}', {"x": 1}),
            *called(2, "b", "two", "{}", {}),
            TextEnd(id="text-3"),
            finished("tool-calls", "tool_calls"),
        ],
    ),
    (
        "id and name repeated in every piece",
        call(0, "a", "one", "{") + call(0, "a", "one", "}") + call(0, "a", "one", "") + TOOLS,
        [*tool(1, "one", "{", "}"), *called(1, "a", "one", "{}", {}), finished("tool-calls", "tool_calls")],
    ),
    (
        "another id at the same index is another call",
        call(0, "a", "one", "{}") + call(0, "b", "one", "{}") + TOOLS,
        [
            *tool(1, "one", "{}"),
            *tool(2, "one", "{}"),
            *called(1, "a", "one", "{}", {}),
            *called(2, "b", "one", "{}", {}),
            finished("tool-calls", "tool_calls"),
        ],
    ),
    (
        "another id at the same index is another call, also before the first has any input",
        call(0, "a", "one", "") + call(0, "b", "one", '{"x":1}') + call(0, "b", "one", "{") + TOOLS,
        [
            *tool(1, "one"),
            *tool(2, "one", '{"x":1}', "{"),
            *called(1, "a", "one", "", {}),
            *called(2, "b", "one", '{"x":1}{', None),
            finished("tool-calls", "tool_calls"),
        ],
    ),
    (
        "an id made anew for every piece does not make calls",
        call(0, "a", "one", "{") + call(0, "b", None, "}") + TOOLS,
        [*tool(1, "one", "{", "}"), *called(1, "a", "one", "{}", {}), finished("tool-calls", "tool_calls")],
    ),
    (
        "the same id twice is two calls of their own identity",
        call(0, "a", "one", "{}") + call(1, "a", "two", "{}") + TOOLS,
        [
            *tool(1, "one", "{}"),
            *tool(2, "two", "{}"),
            *called(1, "a", "one", "{}", {}),
            *called(2, "a", "two", "{}", {}),
            finished("tool-calls", "tool_calls"),
        ],
    ),
    (
        "no index: ids tell the calls apart, then the name, then the last call goes on",
        call(None, "a", "one", "{")
        + call(None, None, None, "}")
        + call(None, "b", "two", "{}")
        + call(None, "a", None, " ")
        + TOOLS,
        [
            *tool(1, "one", "{", "}"),
            *tool(2, "two", "{}"),
            ToolInputDelta(id="call-1", text=" "),
            *called(1, "a", "one", "{} ", {}),
            *called(2, "b", "two", "{}", {}),
            finished("tool-calls", "tool_calls"),
        ],
    ),
    (
        "no index and no id: whole calls in one chunk",
        chunk(tool_calls=[{"function": {"name": "one", "arguments": "{}"}}, {"function": {"name": "one", "arguments": "{}"}}])
        + STOP,
        [
            *tool(1, "one", "{}"),
            *tool(2, "one", "{}"),
            *called(1, "", "one", "{}", {}),
            *called(2, "", "one", "{}", {}),
            finished("tool-calls", "stop"),
        ],
    ),
    (
        "parallel calls that all say index 0 and nothing else",
        call(0, None, "one") + call(0, None, "two") + STOP,
        [
            *tool(1, "one"),
            *tool(2, "two"),
            *called(1, "", "one", "", {}),
            *called(2, "", "two", "", {}),
            finished("tool-calls", "stop"),
        ],
    ),
    (
        "the name comes later than id and input",
        chunk(content="x")
        + call(0, "a")
        + call(0, None, None, '{"q"')
        + chunk(content="y")
        + call(0, None, "one", ":2}")
        + TOOLS,
        [
            *text(1, "x", "y"),
            *tool(2, "one", '{"q"', ":2}"),
            *called(2, "a", "one", '{"q":2}', {"q": 2}),
            finished("tool-calls", "tool_calls"),
        ],
    ),
    (
        "arguments as an object",
        call(0, "a", "one", {"x": ["ü", {}]}) + STOP,
        [
            *tool(1, "one", '{"x":["ü",{}]}'),
            *called(1, "a", "one", '{"x":["ü",{}]}', {"x": ["ü", {}]}),
            finished("tool-calls", "stop"),
        ],
    ),
    (
        "arguments that are no object keep their raw text",
        call(0, "a", "one", "[1]")
        + call(1, "b", "one", '{"x": 1, "x": 2}')
        + call(2, "c", "one", '{"x": "\n"}')
        + call(3, "d", "one", '{"x": ')
        + TOOLS,
        [
            *tool(1, "one", "[1]"),
            *tool(2, "one", '{"x": 1, "x": 2}'),
            *tool(3, "one", '{"x": "\n"}'),
            *tool(4, "one", '{"x": '),
            *called(1, "a", "one", "[1]", None),
            *called(2, "b", "one", '{"x": 1, "x": 2}', None),
            *called(3, "c", "one", '{"x": "\n"}', None),
            *called(4, "d", "one", '{"x": ', None),
            finished("tool-calls", "tool_calls"),
        ],
    ),
    (
        "the deprecated function call",
        chunk(function_call={"name": "one", "arguments": ""})
        + chunk(function_call={"arguments": "{}"})
        + chunk("function_call"),
        [*tool(1, "one", "{}"), *called(1, "", "one", "{}", {}), finished("tool-calls", "function_call")],
    ),
    (
        "reasoning, then a call",
        chunk(reasoning_content="Hm") + call(0, "a", "one", "{}") + TOOLS,
        [*reasoning(1, "Hm"), *tool(2, "one", "{}"), *called(2, "a", "one", "{}", {}), finished("tool-calls", "tool_calls")],
    ),
    (
        "tool_calls as the finish reason of an answer without calls",
        chunk(content="Hi") + TOOLS + DONE,
        [*text(1, "Hi"), finished("stop", "tool_calls")],
    ),
    (
        "an emoji in two deltas, half of one at the end, and half of one in a call",
        chunk(content="a\ud83d")
        + chunk(content="\ude00b")
        + chunk(content="\ud83d")
        + call(0, "\ude00", "o\ud83d", '{"a":"\ud83d')
        + call(0, None, None, '\ude00"}')
        + TOOLS,
        [
            *text(1, "a", "😀b", "\ufffd"),
            *tool(2, "o\ufffd", '{"a":"', '😀"}'),
            *called(2, "\ufffd", "o\ufffd", '{"a":"😀"}', {"a": "😀"}),
            finished("tool-calls", "tool_calls"),
        ],
    ),
    (
        "comments, other events, blank data and other line ends",
        b": OPENROUTER PROCESSING\r\n\r\nevent: ping\r\ndata: pong\r\n\r\ndata:\r\n\r\n"
        + chunk(content="Hi").replace(b"\n", b"\r")
        + STOP
        + b"data:[DONE]\r\r",
        [*text(1, "Hi"), finished("stop", "stop")],
    ),
    (
        "surprising shapes are passed over",
        b"".join([b"data: %b\n\n" % row.encode() for row in SURPRISES.split("\n")]) + chunk("stop", content="Hi"),
        [*text(1, "Hi"), finished("stop", "stop")],
    ),
    (
        "ids and names that are numbers",
        line({"choices": [{"delta": {"tool_calls": [{"index": 0, "id": 17, "function": {"name": 5, "arguments": None}}]}}]})
        + STOP,
        [*tool(1, "5"), *called(1, "17", "5", "", {}), finished("tool-calls", "stop")],
    ),
    (
        "the whole completion in one event of the stream",
        line(
            {
                "object": "chat.completion",
                "choices": [{"message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
            }
        )
        + DONE,
        [*text(1, "Hi"), finished("stop", "stop")],
    ),
    (
        "a plain completion instead of a stream",
        b" \n"
        + json.dumps(
            {
                "object": "chat.completion",
                "choices": [
                    {
                        "index": 0,
                        "message": {
                            "role": "assistant",
                            "content": "Hi",
                            "reasoning_content": "Hm",
                            "tool_calls": [
                                {"id": "a", "type": "function", "function": {"name": "one", "arguments": "{}"}},
                                {"id": "b", "type": "function", "function": {"name": "one", "arguments": '{"x":1}'}},
                            ],
                        },
                        "finish_reason": "tool_calls",
                    }
                ],
                "usage": USAGE,
            },
            indent=1,
        ).encode(),
        [
            *reasoning(1, "Hm"),
            *text(2, "Hi"),
            *tool(3, "one", "{}"),
            *tool(4, "one", '{"x":1}'),
            *called(3, "a", "one", "{}", {}),
            *called(4, "b", "one", '{"x":1}', {"x": 1}),
            finished("tool-calls", "tool_calls", TOKENS),
        ],
    ),
]

# name, stream, events before the failure, type, retryable
FAILURES: list[tuple[str, bytes, list[LLMEvent], str, bool]] = [
    ("nothing at all", b"", [], "provider.incomplete", True),
    ("cut inside text", ROLE + chunk(content="Hi") + b'data: {"choi', text(1, "Hi"), "provider.incomplete", True),
    (
        "cut inside reasoning and half an emoji",
        chunk(reasoning_content="\ud83d"),
        reasoning(1, "\ufffd"),
        "provider.incomplete",
        True,
    ),
    (
        "cut inside a call: its input ends, and nothing is called",
        chunk(content="Hi") + call(0, "a", "one", "{}"),
        [*text(1, "Hi"), *tool(2, "one", "{}"), ToolInputEnd(id="call-2")],
        "provider.incomplete",
        True,
    ),
    (
        "usage alone is no end",
        chunk(content="Hi") + USAGE_CHUNK,
        [*text(1, "Hi")[:-1], UsageReported(tokens=TOKENS), text(1)[-1]],
        "provider.incomplete",
        True,
    ),
    (
        "an error object in the stream, after a finish reason and a call",
        call(0, "a", "one", "{}")
        + TOOLS
        + line({"error": {"message": "The server had an error", "type": "server_error"}})
        + DONE,
        [*tool(1, "one", "{}"), ToolInputEnd(id="call-1")],
        "provider.internal",
        True,
    ),
    (
        "an error with a status as its code, beside a choice",
        line(
            {
                "error": {"code": 429, "message": "Provider returned error"},
                "choices": [{"delta": {"content": "x"}, "finish_reason": "error"}],
            }
        ),
        [],
        "provider.rate-limit",
        True,
    ),
    ("an error event with text", b"event: error\ndata: overloaded, come back\n\n", [], "provider.overloaded", True),
    (
        "an error event with JSON",
        b'event: error\ndata: {"message": "Incorrect API key provided"}\n\n',
        [],
        "provider.auth",
        False,
    ),
    ("an error that is a string", line({"error": "context length exceeded"}), [], "provider.context-overflow", False),
    (
        "an error without an envelope",
        line({"object": "error", "message": "bad", "code": 400}),
        [],
        "provider.invalid-request",
        False,
    ),
    ("finish reason error", chunk(content="Hi") + chunk("error") + DONE, text(1, "Hi"), "provider.internal", True),
    ("finish reason abort, as vLLM says it", chunk(content="Hi") + chunk("abort"), text(1, "Hi"), "provider.internal", True),
    (
        "no resources in the middle, as DeepSeek says it",
        chunk(content="Hi") + chunk("insufficient_system_resource") + DONE,
        text(1, "Hi"),
        "provider.internal",
        True,
    ),
    (
        "a line that is no JSON",
        chunk(content="Hi") + b"data: <html>\n\n" + STOP,
        text(1, "Hi"),
        "provider.invalid-output",
        False,
    ),
    ("a call without a name", call(0, "a", None, "{}") + TOOLS, [], "provider.invalid-output", False),
    ("a page of a proxy", b"<!doctype html><p>Welcome</p>", [], "provider.invalid-output", False),
    ("plain JSON that is no completion", b'{"hello": "world"}', [], "provider.invalid-output", False),
    ("plain JSON that is cut", b'{"choices": [{"message": {"content": "H', [], "provider.invalid-output", False),
    (
        "a plain error object",
        b'\xef\xbb\xbf{"error": {"message": "quota", "code": "insufficient_quota"}}',
        [],
        "provider.quota",
        False,
    ),
    (
        "a plain error in a list",
        b'[{"error": {"code": 503, "message": "The model is overloaded."}}]',
        [],
        "provider.overloaded",
        True,
    ),
]


@pytest.mark.parametrize(("stream", "expected"), [row[1:] for row in STREAMS], ids=[row[0] for row in STREAMS])
def test_a_stream_is_decoded_the_same_whole_and_byte_by_byte(stream: bytes, expected: list[LLMEvent]) -> None:
    assert decode(stream) == expected
    assert decode(*(stream[at : at + 1] for at in range(len(stream)))) == expected


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
    assert decode(*(stream[at : at + 1] for at in range(len(stream)))) == [*events, failed]


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([row[1] for row in STREAMS] + [row[1] for row in FAILURES]),
    st.lists(st.floats(0, 1), max_size=6),
)
def test_random_cuts_never_change_what_is_decoded(stream: bytes, cuts: list[float]) -> None:
    places = [0, *sorted(int(cut * len(stream)) for cut in cuts), len(stream)]
    pieces = [stream[start:end] for start, end in pairwise(places)]
    assert decode(*pieces) == decode(stream)


ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(width=16)
    | st.sampled_from(["", "x", "stop", "{", "}", "\ud83d"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "delta",
                    "message",
                    "content",
                    "tool_calls",
                    "function",
                    "index",
                    "id",
                    "name",
                    "arguments",
                    "usage",
                    "finish_reason",
                    "error",
                    "code",
                    "reasoning",
                    "reasoning_content",
                    "reasoning_details",
                    "text",
                    "type",
                    "prompt_tokens",
                    "completion_tokens",
                    "prompt_tokens_details",
                    "cached_tokens",
                    "refusal",
                    "function_call",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(ODD.map(line), st.sampled_from([row[1] for row in STREAMS]), st.binary(max_size=20)), max_size=5))
def test_whatever_a_provider_sends_the_events_are_in_a_legal_order(pieces: list[bytes]) -> None:
    check_order(decode(*pieces))


def test_after_the_end_nothing_more_is_said() -> None:
    decoder = ADAPTER.decoder()
    assert len(decoder.feed(chunk("stop", content="Hi") + DONE)) == 4
    assert decoder.feed(chunk(content="more") + b"data: {\n\n") == []
    assert decoder.close() == []


def test_a_failure_keeps_the_usage_that_was_reported() -> None:
    failed = decode(chunk(content="Hi", usage=USAGE) + line({"error": {"message": "boom"}}))[-1]
    assert isinstance(failed, ProviderFailed)
    assert failed.tokens == TOKENS


@pytest.mark.parametrize("body", [b"data: " + b"x" * 200, b'{"a": "' + b"x" * 200, b"data: x\n" * 60])
def test_an_event_or_body_over_the_limit_is_invalid_output(body: bytes) -> None:
    for pieces in ([body], [body[at : at + 1] for at in range(len(body))]):
        decoder = OpenAIChatDecoder(limit=100)
        events = [event for piece in pieces for event in decoder.feed(piece)]
        assert [event.failure.type for event in events if isinstance(event, ProviderFailed)] == ["provider.invalid-output"]
        assert decoder.close() == []


def test_the_input_of_one_call_is_bounded() -> None:
    decoder = OpenAIChatDecoder(limit=1000)
    events = [event for _ in range(30) for event in decoder.feed(call(0, "a", "one", "x" * 50))]
    assert isinstance(events[-1], ProviderFailed)
    assert isinstance(events[-2], ToolInputEnd)


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        (USAGE, (40, 30, 20, 60, 0)),
        ({"prompt_tokens": 5, "completion_tokens": 7}, (5, 7, 0, 0, 0)),
        ({"prompt_tokens": 5, "completion_tokens": 7, "prompt_tokens_details": None}, (5, 7, 0, 0, 0)),
        ({"prompt_tokens": 5, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 9}}, (0, 7, 0, 5, 0)),
        ({"prompt_tokens": 5, "completion_tokens": 7, "completion_tokens_details": {"reasoning_tokens": 9}}, (5, 0, 7, 0, 0)),
        (
            # As xAI counts: besides what was completed, and within the total.
            {
                "prompt_tokens": 13,
                "completion_tokens": 1,
                "total_tokens": 400,
                "completion_tokens_details": {"reasoning_tokens": 386},
            },
            (13, 1, 386, 0, 0),
        ),
        (
            {
                "prompt_tokens": 13,
                "completion_tokens": 9,
                "total_tokens": 22,
                "completion_tokens_details": {"reasoning_tokens": 8},
            },
            (13, 1, 8, 0, 0),
        ),
        ({"prompt_tokens": 9, "prompt_cache_hit_tokens": 4}, (5, 0, 0, 4, 0)),
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 3}}, (2, 0, 0, 4, 3)),
        ({"prompt_tokens": -4, "completion_tokens": 3.0}, (0, 3, 0, 0, 0)),
        ({"prompt_tokens": 10**30, "completion_tokens": "7"}, (0, 0, 0, 0, 0)),
    ],
)
def test_usage_becomes_parts_that_do_not_overlap(usage: dict[str, Any], tokens: tuple[int, ...]) -> None:
    event = decode(chunk("stop", usage, content="Hi"))[-1]
    assert isinstance(event, Finished)
    found = event.tokens
    assert (found.input, found.output, found.reasoning, found.cache.read, found.cache.write) == tokens


# --- what is sent -----------------------------------------------------------------------------------------------------


def request(
    *messages: RequestMessage,
    system: tuple[str, ...] = (),
    tools: tuple[ToolDefinition, ...] = (),
    tool_choice: ToolChoice = "auto",
    generation: Generation | None = None,
    options: dict[str, Any] | None = None,
    body: dict[str, Any] | None = None,
    cache_key: str | None = None,
) -> LLMRequest:
    return LLMRequest(
        model="m-1",
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
    return json.loads(ADAPTER.encode(request).body)


def user(text: str) -> UserMessage:
    return UserMessage(content=(Text(text=text),))


READ = ToolDefinition(name="read", description="Reads.", input_schema={"type": "object", "properties": {"path": {}}})
IMAGE = Media(data=b"\x89PNG", mime="image/png", name="a.png")
CONVERSATION: tuple[RequestMessage, ...] = (
    user("Hi"),
    AssistantMessage(
        content=(
            Reasoning(text="Hm", metadata=REASONING_METADATA),
            Reasoning(text="elsewhere"),
            Text(text="One"),
            Text(text="Two"),
            Call(id="c1", name="read", input={"path": "ü", "a": 1}),
            Call(id="c2", name="shot", input={}),
            Call(id="c3", name="search", input={}, executed=True, result={"hits": [1]}),
        )
    ),
    ToolMessage(call_id="c1", name="read", content=(Text(text="gone"),), is_error=True),
    ToolMessage(call_id="c2", name="shot", content=(IMAGE,), is_error=False),
    UserMessage(content=(Text(text="Look"), IMAGE)),
)


def test_the_bytes_of_a_full_request_are_fixed() -> None:
    encoded = ADAPTER.encode(
        request(
            *CONVERSATION,
            system=("Be brief.", "", "Today."),
            tools=(READ,),
            tool_choice="none",
            generation=Generation(max_tokens=9, temperature=0.5, top_p=1.0, seed=3, stop=("END",)),
            options={"reasoningEffort": "low", "store": False},
            cache_key="ses_1",
        )
    )
    assert encoded.path == "/chat/completions"
    assert encoded.headers == {"content-type": "application/json", "accept": "text/event-stream"}
    url = '{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw=="}}'
    expected = (
        '{"model":"m-1","messages":['
        '{"role":"system","content":"Be brief.\\n\\nToday."},'
        '{"role":"user","content":"Hi"},'
        '{"role":"assistant","content":"One\\n\\nTwo","reasoning_content":"Hm","tool_calls":['
        '{"id":"c1","type":"function","function":{"name":"read","arguments":"{\\"path\\":\\"ü\\",\\"a\\":1}"}},'
        '{"id":"c2","type":"function","function":{"name":"shot","arguments":"{}"}},'
        '{"id":"c3","type":"function","function":{"name":"search","arguments":"{}"}}]},'
        '{"role":"tool","tool_call_id":"c3","content":"{\\"hits\\":[1]}"},'
        '{"role":"tool","tool_call_id":"c1","content":"Error: gone"},'
        '{"role":"tool","tool_call_id":"c2","content":"(media follow)"},'
        '{"role":"user","content":[{"type":"text","text":"Media from the result of shot (c2):"},' + url + "]},"
        '{"role":"user","content":[{"type":"text","text":"Look"},' + url + "]}],"
        '"tools":[{"type":"function","function":{"name":"read","description":"Reads.",'
        '"parameters":{"type":"object","properties":{"path":{}}}}}],"tool_choice":"none",'
        '"stream":true,"stream_options":{"include_usage":true},'
        '"max_tokens":9,"temperature":0.5,"top_p":1.0,"seed":3,"stop":["END"],'
        '"reasoning_effort":"low","store":false,"prompt_cache_key":"ses_1"}'
    )
    assert encoded.body.decode() == expected


def test_a_pdf_is_a_file_of_the_user_also_when_a_tool_gave_it() -> None:
    paper = Media(data=b"%PDF-1.7", mime="application/pdf", name="a.pdf")
    asked = request(
        UserMessage(content=(Text(text="Read"), paper)),
        AssistantMessage(content=(Call(id="c1", name="read", input={}),)),
        ToolMessage(call_id="c1", name="read", content=(Media(data=b"%PDF-1.4", mime="application/pdf"),), is_error=False),
    )
    first, _, result, shown = sent(asked)["messages"]
    file = {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0xLjc="}
    assert first == {"role": "user", "content": [{"type": "text", "text": "Read"}, {"type": "file", "file": file}]}
    assert result == {"role": "tool", "tool_call_id": "c1", "content": "(media follow)"}
    nameless = {"filename": "unnamed.pdf", "file_data": "data:application/pdf;base64,JVBERi0xLjQ="}
    label = {"type": "text", "text": "Media from the result of read (c1):"}
    assert shown == {"role": "user", "content": [label, {"type": "file", "file": nameless}]}
    assert openai_chat_rules.violations(sent(asked)) == []


def test_the_smallest_request_says_nothing_it_does_not_have_to() -> None:
    assert ADAPTER.encode(request(user("Hi"))).body == (
        b'{"model":"m-1","messages":[{"role":"user","content":"Hi"}],"stream":true,"stream_options":{"include_usage":true}}'
    )


def test_messages_of_a_longer_request_begin_with_those_of_the_shorter() -> None:
    whole = sent(request(*CONVERSATION))["messages"]
    for count in (1, 4, 5):
        part = sent(request(*CONVERSATION[:count]))["messages"]
        assert whole[: len(part)] == part


def test_reasoning_goes_back_only_where_the_provider_gave_that_field() -> None:
    foreign = AssistantMessage(content=(Reasoning(text="Hm", metadata={"anthropic": {"signature": "s"}}), Text(text="a")))
    alone = AssistantMessage(content=(Reasoning(text="Hm"),))
    native = AssistantMessage(content=(Reasoning(text="Hm", metadata=REASONING_METADATA), Text(text="b")))
    assert sent(request(foreign, alone, native))["messages"] == [
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "Hm"},
    ]


@pytest.mark.parametrize(
    ("model", "wants"),
    [
        ("deepseek-v4-pro", True),
        ("deepseek-ai/DeepSeek-V3.2", True),
        ("moonshotai/kimi-k2.5", True),
        ("gpt-5", False),
        ("my-deepseek", False),
        ("kimiko", False),
    ],
)
def test_models_that_want_the_thoughts_of_every_answer_get_empty_ones_where_there_are_none(model: str, wants: bool) -> None:
    own = AssistantMessage(content=(Reasoning(text="Hm", metadata=REASONING_METADATA), Call(id="c1", name="read", input={})))
    foreign = AssistantMessage(content=(Text(text="I look."), Call(id="c2", name="read", input={})))
    results = [ToolMessage(call_id=id, name="read", content=(Text(text="x"),), is_error=False) for id in ("c1", "c2")]
    last = AssistantMessage(content=(Text(text="a"),))
    asked = structs.replace(request(user("Hi"), own, results[0], foreign, results[1], last), model=model)
    payload = sent(asked)
    said = [message for message in payload["messages"] if message["role"] == "assistant"]
    assert [message.get("reasoning_content") for message in said] == (["Hm", "", ""] if wants else ["Hm", None, None])
    assert openai_chat_rules.violations(payload) == []
    conversation = ADAPTER.conversation()
    conversation.write(structs.replace(asked, model="another"))
    assert conversation.write(asked) == ADAPTER.encode(asked), "a model of the other kind begins anew"


def test_an_answer_of_reasoning_alone_is_not_sent() -> None:
    """The protocol has no message with neither text nor calls."""
    thought = AssistantMessage(content=(Reasoning(text="Hm", metadata=REASONING_METADATA),))
    question = UserMessage(content=(Text(text="And?"),))
    assert sent(request(thought, question))["messages"] == [{"role": "user", "content": "And?"}]


def test_calls_without_text_have_null_content_and_results_without_text_say_so() -> None:
    messages = sent(
        request(
            AssistantMessage(content=(Call(id="c", name="read", input={}),)),
            ToolMessage(call_id="c", name="read", content=(), is_error=False),
        )
    )["messages"]
    assert messages[0]["content"] is None
    assert messages[1]["content"] == "(no output)"


def test_options_are_named_as_the_protocol_names_them_and_unknown_ones_stay_here() -> None:
    options = {
        "reasoning_effort": "high",
        "textVerbosity": "low",
        "serviceTier": "flex",
        "parallelToolCalls": False,
        "promptCacheKey": "mine",
        "maxTokensField": "max_completion_tokens",
        "thinking": {"type": "enabled"},
    }
    payload = sent(request(user("Hi"), options=options, cache_key="ses", generation=Generation(max_tokens=5, top_k=3)))
    for name in ("model", "messages", "stream", "stream_options"):
        payload.pop(name)
    assert payload == {
        "max_completion_tokens": 5,
        "top_k": 3,
        "reasoning_effort": "high",
        "verbosity": "low",
        "service_tier": "flex",
        "parallel_tool_calls": False,
        "prompt_cache_key": "mine",
    }


def test_a_cache_key_longer_than_the_protocol_takes_is_hashed() -> None:
    keys = [sent(request(user("Hi"), cache_key="ses_" + "x" * 100 + end))["prompt_cache_key"] for end in ("", "y", "")]
    assert len(keys[0]) == 64
    assert keys[0] == keys[2] != keys[1]


def test_body_fields_are_merged_deeply_and_last_and_null_removes() -> None:
    body = {"stream_options": {"extra": 1}, "temperature": 1, "seed": None, "chat_template_kwargs": {"a": {"b": 2}, "c": None}}
    payload = sent(request(user("Hi"), generation=Generation(temperature=0.1, seed=5), body=body))
    assert payload["stream_options"] == {"include_usage": True, "extra": 1}
    assert payload["temperature"] == 1
    assert "seed" not in payload
    assert payload["chat_template_kwargs"] == {"a": {"b": 2}}


def test_ill_formed_strings_anywhere_in_a_request_are_still_sent_as_unicode() -> None:
    tool = ToolDefinition(name="t", description="\ud83d", input_schema={"\ude00": "\ud83d\ude00"})
    payload = sent(request(user("a\ud83d"), system=("\ude00",), tools=(tool,), body={"x": "\ud83d"}))
    assert payload["messages"] == [{"role": "system", "content": "\ufffd"}, {"role": "user", "content": "a\ufffd"}]
    assert payload["tools"][0]["function"] == {"name": "t", "description": "\ufffd", "parameters": {"\ufffd": "😀"}}
    assert payload["x"] == "\ufffd"


def test_the_key_goes_into_one_header() -> None:
    assert ADAPTER.authorization("k") == {"authorization": "Bearer k"}
    assert ADAPTER.protocol == "openai-chat"
