"""Every decoder against answers that are too large, too deep or too many, and numbers that are none."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from steerway.protocol.llm.adapter import Decoder
from steerway.protocol.llm.answer import MAX_PIECES
from steerway.protocol.llm.anthropic_messages_decoder import AnthropicMessagesDecoder
from steerway.protocol.llm.classify import classify_response
from steerway.protocol.llm.events import Finished, LLMEvent, ProviderFailed, TextEnd, ToolCall, ToolResult
from steerway.protocol.llm.gemini_decoder import GeminiDecoder
from steerway.protocol.llm.openai_chat_decoder import OpenAIChatDecoder
from steerway.protocol.llm.openai_responses_decoder import OpenAIResponsesDecoder
from steerway.protocol.llm.sse import MAX_EVENT_BYTES
from support.decoding import check_order, line

DECODERS: list[Callable[[], Decoder]] = [OpenAIChatDecoder, OpenAIResponsesDecoder, AnthropicMessagesDecoder, GeminiDecoder]
every_decoder = pytest.mark.parametrize("decoder", DECODERS)


def decoded(decoder: Decoder, *pieces: bytes) -> list[LLMEvent]:
    events = [event for piece in pieces for event in decoder.feed(piece)] + decoder.close()
    check_order(events)
    return events


def failure(events: list[LLMEvent]) -> ProviderFailed:
    last = events[-1]
    assert isinstance(last, ProviderFailed), events
    return last


# --- sizes ------------------------------------------------------------------------------------------------------------


@every_decoder
@pytest.mark.parametrize("head", [b"data: ", b'data: {"type": "', b"event: ", b": ", b"{"])
def test_a_line_without_an_end_is_given_up_at_the_limit(decoder: Callable[[], Decoder], head: bytes) -> None:
    read = decoder()
    events = read.feed(head)
    fed = 0
    while not events:
        events = read.feed(b"a" * 65536)
        fed += 65536
        assert fed <= MAX_EVENT_BYTES + 65536
    assert failure(events).failure.type == "provider.invalid-output"


@every_decoder
@pytest.mark.parametrize(
    "body",
    [
        b"data: [" + b"{}," * 2_000_000 + b"1]\n\n",
        b"[" + b"[]," * 2_000_000 + b"1]",
        b"data: x\n" * 100_000 + b"\n",
    ],
    ids=["an event of many values", "a document of many values", "an event of many lines"],
)
def test_what_would_take_many_times_its_room_in_memory_is_not_read(decoder: Callable[[], Decoder], body: bytes) -> None:
    failed = failure(decoded(decoder(), body))
    assert failed.failure.type == "provider.invalid-output"
    assert "more than" in failed.failure.message


def test_a_large_answer_of_few_values_is_read() -> None:
    message = {"role": "assistant", "content": "word, " * 400_000}
    document = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode()
    assert isinstance(decoded(OpenAIChatDecoder(), document)[-1], Finished)


def error_of(text: str) -> bytes:
    error = {"error": {"type": "api_error", "code": text, "message": text}, "type": "error"}
    return b"event: error\n" + b"data: " + json.dumps(error).encode() + b"\n\n"


@every_decoder
@pytest.mark.parametrize("text", ["eyJ-", "a", "api_key ", " ", "exceed"])
def test_an_error_of_any_length_is_understood_in_no_time(decoder: Callable[[], Decoder], text: str) -> None:
    body = error_of(text * (3_000_000 // len(text)))
    began = time.process_time()
    failed = failure(decoded(decoder(), body))
    assert time.process_time() - began < 1.5  # nearly all of it for the JSON; it took a minute
    assert len(str(failed)) < 10_000


@pytest.mark.parametrize("text", ["eyJ-", "exceed", "://a:", '"key" : ', "Bearer  ", "\\"])
def test_a_body_of_any_kind_is_classified_in_no_time(text: str) -> None:
    began = time.process_time()
    classify_response(500, {}, (text * 70_000)[: 64 * 1024].encode())
    assert time.process_time() - began < 0.5


def test_a_secret_at_the_edge_of_what_is_read_of_an_error_leaves_no_half() -> None:
    key = "sk-0123456789abcdef"
    for filling in ("a" * 490, " " * 1990, " " * 7990, "b" * 7990):
        for length in range(-20, 20, 3):
            padded = filling[: len(filling) + length] if length < 0 else filling + filling[:1] * length
            message = failure(decoded(OpenAIChatDecoder(), error_of(f"{padded} {key} and more"))).failure.message
            assert "0123456" not in message


@every_decoder
def test_an_error_says_nothing_that_a_terminal_would_obey(decoder: Callable[[], Decoder]) -> None:
    failed = failure(decoded(decoder(), error_of("Red: \x1b[31m\x9b1m\x07 and\u202e back")))
    assert failed.failure.message.endswith("Red: [31m1m and back")
    assert str(failed.failure.fields).isprintable()


def test_an_id_longer_than_any_is_none() -> None:
    call = {"index": 0, "id": "x" * 70_000, "function": {"name": "look", "arguments": "{}"}}
    chunk = line({"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]})
    (called,) = (event for event in decoded(OpenAIChatDecoder(), chunk) if isinstance(event, ToolCall))
    assert called.provider_call_id == ""


# --- numbers of pieces ------------------------------------------------------------------------------------------------


def unnamed_calls() -> Iterator[bytes]:
    for index in range(MAX_PIECES + 1):
        call = {"index": index, "id": f"c{index}", "function": {"arguments": ""}}
        yield line({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]})


def silent_items() -> Iterator[bytes]:
    for index in range(MAX_PIECES + 1):
        yield line({"type": "response.output_item.added", "output_index": index, "item": {"type": "x"}})


def silent_blocks() -> Iterator[bytes]:
    for index in range(MAX_PIECES + 1):
        yield line({"type": "content_block_start", "index": index, "content_block": {"type": "x"}})


@pytest.mark.parametrize(
    ("decoder", "pieces"),
    [
        (OpenAIChatDecoder, unnamed_calls),
        (OpenAIResponsesDecoder, silent_items),
        (AnthropicMessagesDecoder, silent_blocks),
    ],
)
def test_pieces_that_never_show_themselves_are_bounded_in_number(
    decoder: Callable[[], Decoder], pieces: Callable[[], Iterator[bytes]]
) -> None:
    failed = failure(decoded(decoder(), *pieces()))
    assert failed.failure.type == "provider.invalid-output"
    assert str(MAX_PIECES) in failed.failure.message


# --- what is kept beside the text -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "delta",
    [{"type": "signature_delta", "signature": "s" * 100}, {"type": "citations_delta", "citation": {"cited_text": "c" * 100}}],
)
def test_signatures_and_citations_are_bounded(delta: dict[str, Any]) -> None:
    kind = "thinking" if delta["type"] == "signature_delta" else "text"
    start = line({"type": "content_block_start", "index": 0, "content_block": {"type": kind}})
    more = [line({"type": "content_block_delta", "index": 0, "delta": delta})] * 100
    assert failure(decoded(AnthropicMessagesDecoder(limit=5000), start, *more)).failure.type == "provider.invalid-output"


def test_annotations_are_bounded() -> None:
    text = {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "a"}
    note = {"type": "response.output_text.annotation.added", "output_index": 0, "annotation": {"title": "t" * 100}}
    events = decoded(OpenAIResponsesDecoder(limit=5000), line(text), *[line(note)] * 100)
    assert failure(events).failure.type == "provider.invalid-output"


def nested(depth: int, inner: str = "1") -> str:
    return "[" * depth + inner + "]" * depth


def depth_of(value: object) -> int:
    depth = 0
    while isinstance(value, list | dict):
        inner: list[object] = list(value.values() if isinstance(value, dict) else value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        value, depth = (inner[0] if inner else None), depth + 1
    return depth


@pytest.mark.parametrize("depth", [20, 60, 500])
def test_results_and_metadata_are_kept_as_deep_as_the_wire_carries_them(depth: int) -> None:
    item = {"type": "web_search_call", "id": "w", "status": "completed", "results": "?"}
    part = {"type": "output_text", "text": "a", "annotations": [{"x": "?"}]}
    body = b"".join(
        line({"type": "response.output_item.done", "output_index": index, "item": done})
        for index, done in enumerate([item, {"type": "message", "content": [part]}])
    ).replace(b'"?"', nested(depth).encode())
    body += line({"type": "response.completed", "response": {"status": "completed"}})
    events = decoded(OpenAIResponsesDecoder(), body)
    assert isinstance(events[-1], Finished)
    (result,) = (event.result for event in events if isinstance(event, ToolResult))
    (metadata,) = (event.metadata for event in events if isinstance(event, TextEnd))
    assert depth_of(result["results"]) == min(depth, 39)
    assert metadata is not None
    assert depth_of(metadata["openai-responses"]["annotations"][0]["x"]) == min(depth, 36)


# --- numbers ----------------------------------------------------------------------------------------------------------

NUMBERS = ("NaN", "Infinity", "-Infinity", "1e999", "-1", "1" + "0" * 400, "1.5e300", "-0.0", "18446744073709551616", "true")


def odd_streams(number: str) -> Iterator[tuple[Callable[[], Decoder], str]]:
    usage = (
        f'{{"prompt_tokens":{number},"completion_tokens":{number},"completion_tokens_details":{{"reasoning_tokens":{number}}}}}'
    )
    call = f'{{"index":{number},"id":{number},"function":{{"name":"n","arguments":{{"a":{number}}}}}}}'
    yield (
        OpenAIChatDecoder,
        f'{{"choices":[{{"index":0,"delta":{{"tool_calls":[{call}]}},"finish_reason":"stop"}}],"usage":{usage}}}',
    )
    item = f'{{"type":"function_call","id":{number},"call_id":{number},"name":"n","arguments":"{{}}","x":{number}}}'
    tokens = (
        f'"usage":{{"input_tokens":{number},"output_tokens":{number},"output_tokens_details":{{"reasoning_tokens":{number}}}}}'
    )
    yield (
        OpenAIResponsesDecoder,
        f'{{"type":"response.output_item.done","output_index":{number},"item":{item}}}\n\n'
        f'data: {{"type":"response.completed","response":{{"status":"completed",{tokens}}}}}',
    )
    block = f'{{"type":"tool_use","id":{number},"name":"n","input":{{"a":{number}}},"x":{number}}}'
    yield (
        AnthropicMessagesDecoder,
        f'{{"type":"message_start","message":{{{tokens}}}}}\n\n'
        f'data: {{"type":"content_block_start","index":{number},"content_block":{block}}}\n\n'
        f'data: {{"type":"message_delta","delta":{{"stop_reason":"tool_use"}},{tokens}}}\n\ndata: {{"type":"message_stop"}}',
    )
    counts = f'"usageMetadata":{{"promptTokenCount":{number},"candidatesTokenCount":{number},"thoughtsTokenCount":{number}}}'
    part = f'{{"functionCall":{{"name":"n","id":{number},"args":{{"a":{number}}}}}}}'
    yield (
        GeminiDecoder,
        f'{{"candidates":[{{"index":0,"content":{{"parts":[{part}]}},"finishReason":"STOP"}}],{counts}}}',
    )


@pytest.mark.parametrize("number", NUMBERS, ids=[number[:8] for number in NUMBERS])
def test_a_number_that_is_none_harms_no_answer_and_no_count(number: str) -> None:
    for decoder, data in odd_streams(number):
        events = decoded(decoder(), f"data: {data}\n\n".encode())
        end = events[-1]
        assert isinstance(end, Finished), (decoder, end)
        counts = (end.tokens.input, end.tokens.output, end.tokens.reasoning, end.tokens.cache.read, end.tokens.cache.write)
        assert all(0 <= count <= 2**53 for count in counts)
        assert any(isinstance(event, ToolCall) for event in events)


@every_decoder
def test_a_number_of_thousands_of_digits_is_a_failure_and_no_defect(decoder: Callable[[], Decoder]) -> None:
    assert failure(decoded(decoder(), b'data: {"type": "x", "choices": ' + b"9" * 10_000 + b"}\n\n")).failure.type


# --- bodies of other kinds --------------------------------------------------------------------------------------------


@every_decoder
@pytest.mark.parametrize(
    ("body", "type"),
    [
        (b"<!DOCTYPE html><html><body>Sign in to the network</body></html>", "provider.invalid-output"),
        (b'{"error": {"message": "Rate limit reached", "type": "rate_limit_error"}}', "provider.rate-limit"),
        (b'{"hello": 1}', "provider.invalid-output"),
        (b'{"a": 1}\n{"a": 2}\n', "provider.invalid-output"),
        (b"\xff\xfe\x00\x01" * 100, "provider.incomplete"),
        (b"\xef\xbb\xbf" + b" " * 100_000, "provider.incomplete"),
        (b"upstream connect error", "provider.incomplete"),
        (b"data: \xff\xfe\n\n", "provider.invalid-output"),
        (b"data: " + nested(100_000).encode() + b"\n\n", "provider.invalid-output"),
    ],
    ids=["html", "an error", "another document", "lines of JSON", "binary", "white space", "text", "no UTF-8", "depth"],
)
def test_a_body_of_another_kind_is_told_as_what_it_is(decoder: Callable[[], Decoder], body: bytes, type: str) -> None:
    failed = failure(decoded(decoder(), body))
    assert failed.failure.type == type
    assert len(failed.failure.message) < 700
    assert decoded(decoder(), *(body[at : at + 1] for at in range(min(len(body), 5000))), body[5000:])[-1] == failed
