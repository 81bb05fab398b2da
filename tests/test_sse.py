"""Server-sent events: the rules of the format, at every cut."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steerway.protocol.llm.sse import EventTooLarge, ServerSentEvent, SseDecoder


def decode(*pieces: bytes, limit: int = 1000) -> list[ServerSentEvent | EventTooLarge]:
    decoder = SseDecoder(limit)
    return [event for piece in pieces for event in decoder.feed(piece)]


def event(data: bytes, name: str = "message", id: str = "") -> ServerSentEvent:
    return ServerSentEvent(data=data, event=name, id=id)


STREAMS: list[tuple[str, bytes, list[ServerSentEvent | EventTooLarge]]] = [
    ("plain", b'data: {"a":1}\n\ndata: [DONE]\n\n', [event(b'{"a":1}'), event(b"[DONE]")]),
    ("crlf", b"data: a\r\n\r\ndata: b\r\n\r\n", [event(b"a"), event(b"b")]),
    ("cr", b"data: a\r\rdata: b\r\r", [event(b"a"), event(b"b")]),
    ("mixed line ends", b"data: a\r\ndata: b\n\r\ndata: c\n\r", [event(b"a\nb"), event(b"c")]),
    ("byte order mark", b"\xef\xbb\xbfdata: a\n\n", [event(b"a")]),
    ("only the first byte order mark", b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n", []),
    ("comments", b": ping\n\n:\n\ndata: a\n: between\ndata: b\n\n", [event(b"a\nb")]),
    ("one space is removed", b"data:a\n\ndata:  b\n\ndata\n\n", [event(b"a"), event(b" b"), event(b"")]),
    ("several data lines", b"data: a\ndata:\ndata: c\n\n", [event(b"a\n\nc")]),
    ("colons in data", b"data: a: b:c\n\n", [event(b"a: b:c")]),
    ("event names last one event", b"event: error\ndata: a\n\ndata: b\n\n", [event(b"a", "error"), event(b"b")]),
    ("an event without data is none", b"event: ping\n\ndata: b\n\n", [event(b"b")]),
    ("ids stay", b"id: 1\ndata: a\n\ndata: b\n\nid\ndata: c\n\n", [event(b"a", id="1"), event(b"b", id="1"), event(b"c")]),
    ("an id with NUL is ignored", b"id: 1\nid: 2\x003\ndata: a\n\n", [event(b"a", id="1")]),
    ("unknown fields", b"retry: 10\nfoo: bar\nDATA: x\n data: y\ndata: a\n\n", [event(b"a")]),
    ("an event that is not ended is dropped", b"data: a\n\ndata: b\n", [event(b"a")]),
    ("a line that is not ended is dropped", b"data: a\n\ndata: b", [event(b"a")]),
    ("bytes that are no UTF-8 stay", b"data: \xff\xc3\nevent: \xff\n\n", [event(b"\xff\xc3", "\ufffd")]),
    ("other separators are data", "data: a\u2028\x0b\x0c\x85b\n\n".encode(), [event("a\u2028\x0b\x0c\x85b".encode())]),
    ("blank lines", b"\n\n\r\n\r\rdata: a\n\n\n\n", [event(b"a")]),
    ("nothing", b"", []),
]


@pytest.mark.parametrize(("stream", "expected"), [row[1:] for row in STREAMS], ids=[row[0] for row in STREAMS])
def test_a_stream_gives_the_same_events_whole_and_byte_by_byte(
    stream: bytes, expected: list[ServerSentEvent | EventTooLarge]
) -> None:
    assert decode(stream) == expected
    assert decode(*(stream[at : at + 1] for at in range(len(stream)))) == expected
    for at in range(len(stream)):
        assert decode(stream[:at], b"", stream[at:]) == expected


FRAGMENT = st.sampled_from(
    [
        b"data: ",
        b"data",
        b"event: ",
        b"id: ",
        b":",
        b" ",
        b"\n",
        b"\r",
        b"\r\n",
        b"\n\n",
        b"x",
        b"\xc3\xa9",
        b"\xef\xbb\xbf",
        b"\0",
    ]
)


@settings(max_examples=200, deadline=None)
@given(st.lists(FRAGMENT, max_size=40).map(b"".join), st.lists(st.integers(0, 100), max_size=8), st.integers(3, 60))
def test_cuts_never_change_the_events(stream: bytes, cuts: list[int], limit: int) -> None:
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    pieces = [stream[start:end] for start, end in pairwise(places)]
    assert decode(*pieces, limit=limit) == decode(stream, limit=limit)


def test_a_line_over_the_limit_ends_the_stream_in_its_place() -> None:
    stream = b"data: a\n\ndata: " + b"x" * 30 + b"\n\ndata: b\n\n"
    for pieces in ([stream], [stream[at : at + 1] for at in range(len(stream))]):
        assert decode(*pieces, limit=20) == [event(b"a"), EventTooLarge(limit=20)]


def test_a_line_of_exactly_the_limit_passes() -> None:
    assert decode(b"data: 5678\n\n", limit=10) == [event(b"5678")]
    assert decode(b"data: 56789\n\n", limit=10) == [EventTooLarge(limit=10)]


def test_the_data_of_one_event_is_bounded_over_its_lines() -> None:
    assert decode(b"data: 1234\n" * 3 + b"\n", limit=14) == [event(b"1234\n1234\n1234")]
    assert decode(b"data: 1234\n" * 4 + b"\n", limit=14) == [EventTooLarge(limit=14)]
    assert decode(b"data: 1234\n\n" * 9, limit=14) == [event(b"1234")] * 9


def test_a_line_that_never_ends_is_refused_before_it_ends() -> None:
    decoder = SseDecoder(100)
    assert decoder.feed(b"data: " + b"x" * 94) == []
    assert decoder.feed(b"x") == [EventTooLarge(limit=100)]
    assert decoder.feed(b"\n\ndata: a\n\n") == []
