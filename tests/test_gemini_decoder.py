"""Gemini: recorded-shape streams decoded at any cut, and whatever else a server may send.

Long, because the recorded shapes are one table.
"""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steerway.protocol.llm.adapter import Adapter
from steerway.protocol.llm.events import (
    Finished,
    LLMEvent,
    ProviderFailed,
    ReasoningEnd,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCall,
    ToolInputEnd,
    UsageReported,
)
from steerway.protocol.llm.gemini import GeminiAdapter
from steerway.protocol.llm.gemini_decoder import GeminiDecoder
from support.decoding import (
    byte_by_byte,
    called,
    check_order,
    cut_at,
    finished,
    reasoning,
    settled,
    text,
    tool,
    used,
)
from support.decoding import decode as decode_with
from support.gemini import chunk

ADAPTER: Adapter = GeminiAdapter()
SIGNATURE = "RXRZSENBRQ=="
OTHER = "b3RoZXI="
PROMPT = {"promptTokenCount": 11, "totalTokenCount": 11, "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 11}]}
USAGE = {**PROMPT, "candidatesTokenCount": 5, "totalTokenCount": 16}
USED = used(11, 5)
REPORTED = UsageReported(tokens=used(11, 0))


def decode(*pieces: bytes) -> list[LLMEvent]:
    return decode_with(ADAPTER, pieces)


def said(*parts: Any, finish: str | None = None, usage: Any = None, **fields: Any) -> bytes:
    """One chunk, as the vendor writes it."""
    candidate: dict[str, Any] = {"content": {"parts": list(parts), "role": "model"}} if parts else {}
    if finish is not None:
        candidate["finishReason"] = finish
    body: dict[str, Any] = {"candidates": [{**candidate, "index": 0, **fields}]}
    if usage is not None:
        body["usageMetadata"] = usage
    return chunk({**body, "modelVersion": "gemini-x", "responseId": "r1"})


def words(*deltas: str) -> bytes:
    return b"".join(said({"text": delta}) for delta in deltas)


def end(finish: str = "STOP", **fields: Any) -> bytes:
    """The last chunk, which says how the answer ended and what it took."""
    return said(finish=finish, usage=USAGE, **fields)


def call(name: str, args: Any, *, id: str | None = None, signature: str | None = None) -> dict[str, Any]:
    function: dict[str, Any] = {"name": name, "args": args, **({"id": id} if id is not None else {})}
    return {"functionCall": function, **({"thoughtSignature": signature} if signature is not None else {})}


def own(**fields: Any) -> dict[str, Any]:
    """Continuation metadata of this protocol."""
    return {"gemini": fields}


def signed(start: int, end: int, signature: str = SIGNATURE) -> dict[str, Any]:
    return {"start": start, "end": end, "signature": signature}


CODE = {"language": "PYTHON", "code": "print(6 * 7)"}
RAW_CODE = '{"language":"PYTHON","code":"print(6 * 7)"}'
DONE = {"outcome": "OUTCOME_OK", "output": "42\n"}
RAN = own(part="executableCode", fields={})
RESULT = own(part="codeExecutionResult")
GROUNDING = {"webSearchQueries": ["e"], "groundingChunks": [{"web": {"uri": "https://e.org", "title": "E"}}]}
OVERLOADED = {"error": {"code": 503, "message": "The model is overloaded. Please try again later.", "status": "UNAVAILABLE"}}
SURPRISES: list[Any] = [
    None,
    7,
    "text",
    [],
    {},
    {"candidates": None},
    {"candidates": [None, 3, {"content": None}, {"content": {"parts": 3}}, {"content": {"parts": [None, [], "x"]}}]},
    {"candidates": [{"content": {"parts": [{"text": None}, {"text": 3}, {"text": ""}, {"thought": True}]}}]},
    {"candidates": [{"content": {"parts": [{"newPart": {"a": 1}}, {"codeExecutionResult": {"outcome": "OUTCOME_OK"}}]}}]},
    {"candidates": [{"content": {"parts": [{"toolResponse": None}, {"text": "", "thoughtSignature": SIGNATURE}]}}]},
    {"candidates": [{"finishReason": 3}, {"finishReason": "FINISH_REASON_UNSPECIFIED"}]},
    {"candidates": [{"index": 1, "content": {"parts": [{"text": "another answer"}]}, "finishReason": "SAFETY"}]},
    {"usageMetadata": {"promptTokenCount": "many", "candidatesTokenCount": -3, "trafficType": "ON_DEMAND"}},
    {"promptFeedback": {"safetyRatings": []}},
]
"""Valid JSON that is no chunk, or hardly one, or one of a later version."""

# name, stream, events
STREAMS: list[tuple[str, bytes, list[LLMEvent]]] = [
    ("plain text", words("Hel", "lo") + end(), [*text(1, "Hel", "lo"), finished("stop", "STOP", USED)]),
    ("text and its end in one chunk", said({"text": "Hi"}, finish="STOP"), [*text(1, "Hi"), finished("stop", "STOP")]),
    (
        "usage with every chunk is told once before the end",
        said({"text": "Hel"}, usage=PROMPT) + said({"text": "lo"}, usage={**PROMPT, "candidatesTokenCount": 2}) + end(),
        [
            TextStart(id="text-1"),
            TextDelta(id="text-1", text="Hel"),
            REPORTED,
            TextDelta(id="text-1", text="lo"),
            TextEnd(id="text-1"),
            finished("stop", "STOP", USED),
        ],
    ),
    (
        "usage in a chunk of its own behind the finish reason",
        words("Hi") + said(finish="STOP") + chunk({"usageMetadata": USAGE}),
        [*text(1, "Hi"), finished("stop", "STOP", USED)],
    ),
    (
        "a finish reason with every chunk",
        said({"text": "Hel"}, finish="STOP", usage=PROMPT) + said({"text": "lo"}, finish="STOP", usage=USAGE),
        [*text(1, "Hel", "lo"), finished("stop", "STOP", USED)],
    ),
    ("a reason and no content", end(), [finished("stop", "STOP", USED)]),
    ("no usage at all", words("Hi") + said(finish="STOP"), [*text(1, "Hi"), finished("stop", "STOP")]),
    ("the output limit", words("Hi") + end("MAX_TOKENS"), [*text(1, "Hi"), finished("length", "MAX_TOKENS", USED)]),
    ("a reason that is not known", words("Hi") + end("BECAUSE"), [*text(1, "Hi"), finished("unknown", "BECAUSE", USED)]),
    ("another reason", words("Hi") + end("OTHER"), [*text(1, "Hi"), finished("unknown", "OTHER", USED)]),
    *(
        (f"stopped for {reason}", words("Hi") + end(reason), [*text(1, "Hi"), finished("content-filter", reason, USED)])
        for reason in ("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY")
    ),
    (
        "thoughts, then text",
        said({"text": "Let me", "thought": True}) + said({"text": " think.", "thought": True}) + words("Yes") + end(),
        [*reasoning(1, "Let me", " think."), *text(2, "Yes"), finished("stop", "STOP", USED)],
    ),
    (
        "thoughts and text in one chunk, and thoughts again",
        said({"text": "a", "thought": True}, {"text": "b"}, {"text": "c", "thought": True}, finish="STOP"),
        [*reasoning(1, "a"), *text(2, "b"), *reasoning(3, "c"), finished("stop", "STOP")],
    ),
    (
        "a part that says it is no thought",
        said({"text": "Hi", "thought": False}) + end(),
        [*text(1, "Hi"), finished("stop", "STOP", USED)],
    ),
    (
        "a signature on an empty part in the last chunk",
        words("Hel", "lo") + said({"text": "", "thoughtSignature": SIGNATURE}, finish="STOP", usage=USAGE),
        [*text(1, "Hel", "lo", metadata=own(signed=[signed(5, 5)])), finished("stop", "STOP", USED)],
    ),
    (
        "signatures on the first part and in the middle",
        said({"text": "Hel", "thoughtSignature": SIGNATURE})
        + words("lo ")
        + said({"text": "you", "thoughtSignature": OTHER})
        + end(),
        [
            *text(1, "Hel", "lo ", "you", metadata=own(signed=[signed(0, 3), signed(6, 9, OTHER)])),
            finished("stop", "STOP", USED),
        ],
    ),
    (
        "a signed thought, and signed text behind it",
        said({"text": "Hm", "thought": True, "thoughtSignature": SIGNATURE})
        + said({"text": "Yes", "thoughtSignature": OTHER})
        + end(),
        [
            *reasoning(1, "Hm", metadata=own(signed=[signed(0, 2)])),
            *text(2, "Yes", metadata=own(signed=[signed(0, 3, OTHER)])),
            finished("stop", "STOP", USED),
        ],
    ),
    (
        "a call with its id and signature",
        words("Look:") + said(call("read", {"path": 1}, id="c1", signature=SIGNATURE)) + end(),
        [
            *text(1, "Look:"),
            *tool(2, "read", '{"path":1}'),
            *called(2, "c1", "read", '{"path":1}', {"path": 1}, metadata=own(id="c1", signature=SIGNATURE)),
            finished("tool-calls", "STOP", USED),
        ],
    ),
    (
        "a call without an id, and its end in the same chunk",
        said(call("read", {"path": "ü"}), finish="STOP", usage=USAGE),
        [
            *tool(1, "read", '{"path":"ü"}'),
            *called(1, "", "read", '{"path":"ü"}', {"path": "ü"}),
            finished("tool-calls", "STOP", USED),
        ],
    ),
    (
        "parallel calls in one chunk, of which only the first is signed",
        said(call("read", {"a": 1}, id="c1", signature=SIGNATURE), call("read", {"a": 1}, id="c2"), call("list", {})) + end(),
        [
            *tool(1, "read", '{"a":1}'),
            *tool(2, "read", '{"a":1}'),
            *tool(3, "list", "{}"),
            *called(1, "c1", "read", '{"a":1}', {"a": 1}, metadata=own(id="c1", signature=SIGNATURE)),
            *called(2, "c2", "read", '{"a":1}', {"a": 1}, metadata=own(id="c2")),
            *called(3, "", "list", "{}", {}),
            finished("tool-calls", "STOP", USED),
        ],
    ),
    (
        "calls in several chunks, thoughts between them",
        said(call("one", {})) + said({"text": "Hm", "thought": True}) + said(call("two", {})) + end(),
        [
            *tool(1, "one", "{}"),
            *reasoning(2, "Hm"),
            *tool(3, "two", "{}"),
            *called(1, "", "one", "{}", {}),
            *called(3, "", "two", "{}", {}),
            finished("tool-calls", "STOP", USED),
        ],
    ),
    (
        "a call without arguments",
        said({"functionCall": {"name": "list"}}) + end(),
        [*tool(1, "list"), *called(1, "", "list", "", {}), finished("tool-calls", "STOP", USED)],
    ),
    (
        "arguments that are no object",
        said(call("one", [1])) + said(call("two", '{"a": ')) + said(call("three", '{"a": 1}')) + end(),
        [
            *tool(1, "one", "[1]"),
            *tool(2, "two", '{"a": '),
            *tool(3, "three", '{"a": 1}'),
            *called(1, "", "one", "[1]", None),
            *called(2, "", "two", '{"a": ', None),
            *called(3, "", "three", '{"a": 1}', {"a": 1}),
            finished("tool-calls", "STOP", USED),
        ],
    ),
    (
        "a call at the output limit",
        said(call("one", {})) + end("MAX_TOKENS"),
        [*tool(1, "one", "{}"), *called(1, "", "one", "{}", {}), finished("length", "MAX_TOKENS", USED)],
    ),
    (
        "code that the provider ran",
        words("I compute.")
        + said({"executableCode": CODE, "thoughtSignature": SIGNATURE})
        + said({"codeExecutionResult": DONE})
        + words("42.")
        + end(),
        [
            *text(1, "I compute."),
            *tool(2, "code_execution", RAW_CODE),
            *called(
                2,
                "",
                "code_execution",
                RAW_CODE,
                CODE,
                executed=True,
                metadata=own(part="executableCode", fields={}, signature=SIGNATURE),
            ),
            settled(2, DONE, metadata=RESULT),
            *text(3, "42."),
            finished("stop", "STOP", USED),
        ],
    ),
    (
        "code that failed, code with ids out of order, and code without a result",
        said({"executableCode": {**CODE, "id": "a"}}, {"executableCode": {**CODE, "id": "b"}})
        + said({"codeExecutionResult": {"id": "b", "outcome": "OUTCOME_FAILED", "output": "no"}})
        + said({"codeExecutionResult": {"id": "a", "outcome": "OUTCOME_OK"}})
        + said({"codeExecutionResult": {"id": "a", "outcome": "OUTCOME_OK", "output": "again"}})
        + said({"executableCode": CODE})
        + end(),
        [
            *tool(1, "code_execution", RAW_CODE),
            *called(
                1, "a", "code_execution", RAW_CODE, CODE, executed=True, metadata=own(part="executableCode", fields={"id": "a"})
            ),
            *tool(2, "code_execution", RAW_CODE),
            *called(
                2, "b", "code_execution", RAW_CODE, CODE, executed=True, metadata=own(part="executableCode", fields={"id": "b"})
            ),
            settled(2, {"id": "b", "outcome": "OUTCOME_FAILED", "output": "no"}, is_error=True, metadata=RESULT),
            settled(1, {"id": "a", "outcome": "OUTCOME_OK"}, metadata=RESULT),
            *tool(3, "code_execution", RAW_CODE),
            *called(3, "", "code_execution", RAW_CODE, CODE, executed=True, metadata=RAN),
            finished("stop", "STOP", USED),
        ],
    ),
    (
        "a search that the provider ran and shows, beside a call",
        said({"toolCall": {"id": "s1", "toolType": "GOOGLE_SEARCH_WEB", "args": {"queries": ["e"]}}, "thoughtSignature": OTHER})
        + said(
            {
                "toolResponse": {"id": "s1", "toolType": "GOOGLE_SEARCH_WEB", "response": {"search": "<b>"}},
                "thoughtSignature": SIGNATURE,
            }
        )
        + said(call("read", {}))
        + end(),
        [
            *tool(1, "google_search_web", '{"queries":["e"]}'),
            *called(
                1,
                "s1",
                "google_search_web",
                '{"queries":["e"]}',
                {"queries": ["e"]},
                executed=True,
                metadata=own(part="toolCall", fields={"id": "s1", "toolType": "GOOGLE_SEARCH_WEB"}, signature=OTHER),
            ),
            settled(
                1,
                {"id": "s1", "toolType": "GOOGLE_SEARCH_WEB", "response": {"search": "<b>"}},
                metadata=own(part="toolResponse", signature=SIGNATURE),
            ),
            *tool(2, "read", "{}"),
            *called(2, "", "read", "{}", {}),
            finished("tool-calls", "STOP", USED),
        ],
    ),
    (
        "text that is grounded on a search",
        words("It is", " E.") + end(groundingMetadata=GROUNDING, citationMetadata={"citationSources": [{"uri": "u"}]}),
        [
            *text(
                1,
                "It is",
                " E.",
                metadata=own(groundingMetadata=GROUNDING, citationMetadata={"citationSources": [{"uri": "u"}]}),
            ),
            finished("stop", "STOP", USED),
        ],
    ),
    (
        "an image among the answer is told",
        said({"inlineData": {"mimeType": "image/png", "data": "iVBORw=="}}) + end(),
        [
            *text(1, "\n[The model gave a file of image/png, which is not kept here.]\n"),
            finished("stop", "STOP", USED),
        ],
    ),
    (
        "cached, thought and tool tokens",
        words("Hi")
        + said(
            finish="STOP",
            usage={
                "promptTokenCount": 100,
                "cachedContentTokenCount": 60,
                "candidatesTokenCount": 7,
                "thoughtsTokenCount": 9,
                "toolUsePromptTokenCount": 30,
                "totalTokenCount": 146,
            },
        ),
        [*text(1, "Hi"), finished("stop", "STOP", used(70, 7, 9, 60))],
    ),
    (
        "numbers that shrink or are missing later, and more cached tokens than there are",
        said({"text": "Hi"}, finish="STOP", usage={"promptTokenCount": 10, "thoughtsTokenCount": 4, "candidatesTokenCount": 9})
        + said(usage={"promptTokenCount": 10, "candidatesTokenCount": 3, "cachedContentTokenCount": 99}),
        [*text(1, "Hi"), finished("stop", "STOP", used(0, 9, 4, 10))],
    ),
    (
        "halves of surrogates",
        words("a\ud83d", "\ude00b")
        + said(call("o\ud83d", {"a\ude00": "\ud83d\ude00"}, id="c\ud83d"))
        + said({"text": "\ud83d", "thought": True})
        + end(),
        [
            *text(1, "a", "😀b"),
            *tool(2, "o\ufffd", '{"a\ufffd":"😀"}'),
            *reasoning(3)[:1],
            *called(2, "c\ufffd", "o\ufffd", '{"a\ufffd":"😀"}', {"a\ufffd": "😀"}, metadata=own(id="c\ufffd")),
            *reasoning(3, "\ufffd")[1:],
            finished("tool-calls", "STOP", USED),
        ],
    ),
    (
        "surprising shapes are passed over",
        b"".join(chunk(value) for value in SURPRISES) + words("Hi") + end(),
        [*text(1, "Hi"), finished("stop", "STOP", USED)],
    ),
    (
        "comments, other line ends, an event name and a proxy's mark",
        b": hello\n\nevent: message\n"
        + words("Hi").replace(b"\r\n", b"\n")
        + end().replace(b"\r\n", b"\r")
        + b"data: [DONE]\n\n",
        [*text(1, "Hi"), finished("stop", "STOP", USED)],
    ),
    (
        "a mark in the middle is no end",
        words("Hi") + b"data: [DONE]\n\n" + words(" you") + end(),
        [*text(1, "Hi", " you"), finished("stop", "STOP", USED)],
    ),
    (
        "one array of all chunks instead of a stream",
        json.dumps(
            [
                {"candidates": [{"content": {"parts": [{"text": "Hel"}]}}], "usageMetadata": PROMPT},
                {"candidates": [{"content": {"parts": [{"text": "lo"}]}}]},
                {"candidates": [{"finishReason": "STOP"}], "usageMetadata": USAGE},
            ],
            indent=1,
        ).encode(),
        [
            TextStart(id="text-1"),
            TextDelta(id="text-1", text="Hel"),
            REPORTED,
            TextDelta(id="text-1", text="lo"),
            TextEnd(id="text-1"),
            finished("stop", "STOP", USED),
        ],
    ),
    (
        "a whole answer instead of a stream",
        b" \n"
        + json.dumps(
            {
                "candidates": [
                    {
                        "content": {"parts": [{"text": "Hm", "thought": True}, {"text": "Hi"}, call("one", {"x": 1})]},
                        "finishReason": "STOP",
                    }
                ],
                "usageMetadata": USAGE,
            },
            indent=1,
        ).encode(),
        [
            *reasoning(1, "Hm"),
            *text(2, "Hi"),
            *tool(3, "one", '{"x":1}'),
            *called(3, "", "one", '{"x":1}', {"x": 1}),
            finished("tool-calls", "STOP", USED),
        ],
    ),
]

# name, stream, events before the failure, type, retryable
FAILURES: list[tuple[str, bytes, list[LLMEvent], str, bool]] = [
    ("nothing at all", b"", [], "provider.incomplete", True),
    ("cut inside text", words("Hi") + b'data: {"candidates": [{"con', text(1, "Hi"), "provider.incomplete", True),
    ("no finish reason", words("Hi"), text(1, "Hi"), "provider.incomplete", True),
    ("a proxy's mark without a reason", words("Hi") + b"data: [DONE]\n\n", text(1, "Hi"), "provider.incomplete", True),
    (
        "cut behind a call: its input ends, and nothing is called",
        said(call("one", {})),
        [*tool(1, "one", "{}"), ToolInputEnd(id="call-1")],
        "provider.incomplete",
        True,
    ),
    (
        "a call that could not be written",
        said(finish="MALFORMED_FUNCTION_CALL", finishMessage="Malformed function call: print(default_api.read(", usage=USAGE),
        [],
        "provider.invalid-output",
        True,
    ),
    (
        "a call that was not expected, behind what leaked of it",
        words("})]}") + end("UNEXPECTED_TOOL_CALL"),
        text(1, "})]}"),
        "provider.invalid-output",
        True,
    ),
    ("too many calls", end("TOO_MANY_TOOL_CALLS"), [], "provider.invalid-output", False),
    ("a signature that was not sent", end("MISSING_THOUGHT_SIGNATURE"), [], "provider.invalid-output", False),
    (
        "a prompt that is refused",
        chunk({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": PROMPT}),
        [],
        "provider.content-filter",
        False,
    ),
    ("overloaded in the middle", words("Hi") + chunk(OVERLOADED), text(1, "Hi"), "provider.overloaded", True),
    (
        "an error that is no event",
        words("Hi") + json.dumps(OVERLOADED, indent=2).encode() + b"\r\n\r\n",
        text(1, "Hi"),
        "provider.overloaded",
        True,
    ),
    ("an error that is no event, behind an end", end() + json.dumps(OVERLOADED).encode(), [], "provider.overloaded", True),
    (
        "half an error that is no event",
        words("Hi") + json.dumps(OVERLOADED, indent=2).encode()[:-3],
        text(1, "Hi"),
        "provider.incomplete",
        True,
    ),
    (
        "an internal error in the middle",
        chunk({"error": {"code": 500, "message": "An internal error has occurred.", "status": "INTERNAL"}}),
        [],
        "provider.internal",
        True,
    ),
    (
        "given up by the server",
        chunk({"error": {"code": 499, "message": "The operation was cancelled.", "status": "CANCELLED"}}),
        [],
        "provider.internal",
        True,
    ),
    (
        "too long a prompt",
        chunk(
            {
                "error": {
                    "code": 400,
                    "message": "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
                    "status": "INVALID_ARGUMENT",
                }
            }
        ),
        [],
        "provider.context-overflow",
        False,
    ),
    ("an error as an array", json.dumps([OVERLOADED]).encode(), [], "provider.overloaded", True),
    ("a plain error object", json.dumps(OVERLOADED, indent=1).encode(), [], "provider.overloaded", True),
    ("a line that is no JSON", words("Hi") + b"data: <html>\n\n", text(1, "Hi"), "provider.invalid-output", False),
    ("a call without a name", said({"functionCall": {"args": {}}}) + end(), [], "provider.invalid-output", False),
    (
        "arguments in pieces, which were not asked for",
        said({"functionCall": {"name": "one", "willContinue": True}}) + end(),
        [],
        "provider.invalid-output",
        False,
    ),
    ("a page of a proxy", b"<!doctype html><p>Welcome</p>", [], "provider.invalid-output", False),
    ("plain JSON that is no answer", b'{"hello": "world"}', [], "provider.invalid-output", False),
    ("plain JSON that is cut", b'[{"candidates": [{"con', [], "provider.invalid-output", False),
    ("an array of nothing", b"[]", [], "provider.incomplete", True),
]


@pytest.mark.parametrize(("stream", "expected"), [row[1:] for row in STREAMS], ids=[row[0] for row in STREAMS])
def test_a_stream_is_decoded_the_same_whole_and_byte_by_byte(stream: bytes, expected: list[LLMEvent]) -> None:
    assert decode(stream) == expected
    assert decode(*byte_by_byte(stream)) == expected
    check_order([event for event in expected if not isinstance(event, UsageReported)])


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


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([row[1] for row in (*STREAMS, *FAILURES)]), st.lists(st.floats(0, 1), max_size=6))
def test_random_cuts_never_change_what_is_decoded(stream: bytes, cuts: list[float]) -> None:
    assert decode(*cut_at(stream, cuts)) == decode(stream)


NAMES = (
    *("candidates", "content", "parts", "text", "thought", "thoughtSignature", "functionCall", "executableCode", "id", "name"),
    *("codeExecutionResult", "toolCall", "toolResponse", "finishReason", "usageMetadata", "promptTokenCount", "error", "args"),
    *("groundingMetadata", "promptFeedback", "blockReason", "outcome", "toolType", "inlineData", "mimeType", "index"),
)
VALUES = ("STOP", "SAFETY", "x", "", "{", "\ud83d", "OUTCOME_OK", "MALFORMED_FUNCTION_CALL")
ODD = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(width=16) | st.sampled_from(VALUES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5),
    max_leaves=20,
)
PARTS = st.fixed_dictionaries(
    {},
    optional={
        "text": st.sampled_from(["", "t", None]),
        "thought": st.booleans(),
        "thoughtSignature": st.sampled_from(["c2ln", "s", "", None]),
        "functionCall": st.fixed_dictionaries({}, optional={"name": st.just("n"), "args": ODD, "id": st.just("i")}),
        "executableCode": st.fixed_dictionaries({}, optional={"code": ODD, "id": st.sampled_from("ab")}),
        "codeExecutionResult": st.fixed_dictionaries({}, optional={"outcome": ODD, "id": st.sampled_from("ab")}),
        "toolCall": ODD,
        "toolResponse": ODD,
        "inlineData": ODD,
    },
)
CHUNKS = st.lists(PARTS, max_size=3).map(lambda parts: said(*parts))


@settings(max_examples=250, deadline=None)
@given(
    st.lists(
        st.one_of(ODD.map(lambda value: chunk([value]) if not isinstance(value, dict) else chunk(value)), CHUNKS)
        | st.sampled_from([row[1] for row in STREAMS])
        | st.binary(max_size=20),
        max_size=9,
    )
)
def test_whatever_a_provider_sends_the_events_are_in_a_legal_order(pieces: list[bytes]) -> None:
    events = decode(*pieces)
    check_order([event for event in events if not isinstance(event, UsageReported)])
    assert sum(isinstance(event, UsageReported) for event in events) <= 1
    assert decode(b"".join(pieces)) == events


def test_after_the_end_nothing_more_is_said() -> None:
    decoder = ADAPTER.decoder()
    assert len(decoder.feed(words("Hi") + end())) == 2
    assert isinstance(decoder.close()[-1], Finished)
    assert decoder.feed(words("more") + b"data: {\n\n") == []
    assert decoder.close() == []


def test_a_failure_keeps_the_usage_that_was_reported() -> None:
    failed = decode(said({"text": "Hi"}, usage=PROMPT) + chunk(OVERLOADED))[-1]
    assert isinstance(failed, ProviderFailed)
    assert failed.tokens == used(11, 0)


def test_what_a_gives_up_says_is_told_in_one_line() -> None:
    failed = decode(end("MALFORMED_FUNCTION_CALL", finishMessage="print(\n" + "x" * 1000))[-1]
    assert isinstance(failed, ProviderFailed)
    assert "MALFORMED_FUNCTION_CALL: print( xxx" in failed.failure.message
    assert len(failed.failure.message) < 300


def test_tokens_that_are_thought_in_silence_are_steps() -> None:
    decoder = GeminiDecoder()
    decoder.feed(words("Hi"))
    before = decoder.steps
    decoder.feed(said(usage={"promptTokenCount": 9, "thoughtsTokenCount": 100}))
    decoder.feed(said(usage={"promptTokenCount": 9, "thoughtsTokenCount": 200}))
    assert decoder.steps == before + 2
    decoder.feed(said(usage={"promptTokenCount": 9, "thoughtsTokenCount": 200}) + b": still here\n\n")
    assert decoder.steps == before + 2


@pytest.mark.parametrize("body", [b"data: " + b"x" * 200, b'{"a": "' + b"x" * 200, b"data: x\n" * 60])
def test_an_event_or_body_over_the_limit_is_invalid_output(body: bytes) -> None:
    for pieces in ([body], byte_by_byte(body)):
        decoder = GeminiDecoder(limit=100)
        events = [found for piece in pieces for found in decoder.feed(piece)]
        assert [found.failure.type for found in events if isinstance(found, ProviderFailed)] == ["provider.invalid-output"]
        assert decoder.close() == []


def test_what_is_kept_beside_the_text_is_bounded() -> None:
    decoder = GeminiDecoder(limit=4000)
    events: list[LLMEvent] = []
    for _ in range(100):
        events += decoder.feed(said({"text": "x", "thoughtSignature": "s" * 100}))
    assert isinstance(failed := events[-1], ProviderFailed)
    assert failed.failure.type == "provider.invalid-output"


def test_the_pieces_of_one_answer_are_bounded() -> None:
    lanes = [{"text": "x"}, {"text": "y", "thought": True}]
    for part in (lanes, [call("n", {})]):
        (failed,) = decode(said(*(part * 20_000), finish="STOP"))[-1:]
        assert isinstance(failed, ProviderFailed)
        assert failed.failure.type == "provider.invalid-output"


@pytest.mark.parametrize(
    ("status", "word", "message", "details", "expected", "retryable", "after"),
    [
        (
            400,
            "INVALID_ARGUMENT",
            "API key not valid. Please pass a valid API key.",
            [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID", "domain": "googleapis.com"}],
            "provider.auth",
            False,
            None,
        ),
        (400, "INVALID_ARGUMENT", "API key expired. Please renew the API key.", [], "provider.auth", False, None),
        (403, "PERMISSION_DENIED", "Your API key was reported as leaked.", [], "provider.auth", False, None),
        (400, "FAILED_PRECONDITION", "User location is not supported.", [], "provider.invalid-request", False, None),
        (400, "INVALID_ARGUMENT", "Invalid JSON payload received.", [], "provider.invalid-request", False, None),
        (
            400,
            "INVALID_ARGUMENT",
            "The input token count exceeds the maximum number of tokens allowed 1048576.",
            [],
            "provider.context-overflow",
            False,
            None,
        ),
        (404, "NOT_FOUND", "models/x is not found for API version v1beta", [], "provider.invalid-request", False, None),
        (
            429,
            "RESOURCE_EXHAUSTED",
            "You exceeded your current quota, please check your plan and billing details.",
            [
                {
                    "@type": "type.googleapis.com/google.rpc.QuotaFailure",
                    "violations": [{"quotaId": "GenerateContentPaidTierInputTokensPerModelPerMinute"}],
                },
                {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "38.5s"},
            ],
            "provider.rate-limit",
            True,
            38_500,
        ),
        (
            429,
            "RESOURCE_EXHAUSTED",
            "You exceeded your current quota, please check your plan and billing details.",
            [
                {
                    "@type": "type.googleapis.com/google.rpc.QuotaFailure",
                    "violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}],
                },
                {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "12s"},
            ],
            "provider.quota",
            False,
            12_000,
        ),
        (429, "RESOURCE_EXHAUSTED", "Resource has been exhausted (e.g. check quota).", [], "provider.rate-limit", True, None),
        (
            429,
            "RESOURCE_EXHAUSTED",
            "Slow down.",
            ["x", {"retryDelay": 3}, {"retryDelay": "soon"}, {"retryDelay": "1h"}, {"retryDelay": "-1s"}],
            "provider.rate-limit",
            True,
            None,
        ),
        (500, "INTERNAL", "An internal error has occurred.", [], "provider.internal", True, None),
        (503, "UNAVAILABLE", "The model is overloaded. Please try again later.", [], "provider.overloaded", True, None),
        (504, "DEADLINE_EXCEEDED", "The request timed out.", [], "provider.internal", True, None),
    ],
)
def test_answers_that_are_errors_are_classified(
    status: int, word: str, message: str, details: list[Any], expected: str, retryable: bool, after: int | None
) -> None:
    error = {"error": {"code": status, "message": message, "status": word, "details": details}}
    for body in (error, [error]):
        failed = ADAPTER.classify(status, {}, json.dumps(body, indent=2).encode())
        assert (failed.failure.type, failed.retryable, failed.retry_after_ms) == (expected, retryable, after)
        assert failed.failure.fields is not None
        assert failed.failure.fields["code"] == word
    told = ADAPTER.classify(status, {"retry-after": "7"}, json.dumps(error).encode())
    assert told.retry_after_ms == 7000


@pytest.mark.parametrize("signature", ["no base64!", "abcde", "c2ln=x", "=", "\ud83d", "ü", " c2ln"])
def test_what_is_no_signature_never_comes_to_be_sent_back(signature: str) -> None:
    parts: tuple[dict[str, Any], ...] = (
        {"text": "Hm", "thought": True, "thoughtSignature": signature},
        {"text": "Yes", "thoughtSignature": signature},
        {"executableCode": CODE, "thoughtSignature": signature},
        {"functionCall": {"name": "one", "args": {}}, "thoughtSignature": signature},
    )
    events = decode(said(*parts, finish="STOP"))
    assert [event.metadata for event in events if isinstance(event, ReasoningEnd | TextEnd)] == [None, None]
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["Yes"]
    assert all("signature" not in repr(event) for event in events)


@pytest.mark.parametrize("signature", ["c2ln", "c2k=", "c2k", "-_-_", "+/=="])
def test_a_signature_may_be_of_either_alphabet_and_padded_or_not(signature: str) -> None:
    events = decode(said({"functionCall": {"name": "one", "args": {}}, "thoughtSignature": signature}, finish="STOP"))
    (call,) = [event for event in events if isinstance(event, ToolCall)]
    assert call.metadata == {"gemini": {"signature": signature}}
