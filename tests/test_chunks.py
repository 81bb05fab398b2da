"""Joining the chunks of a body: the HTTP library sees the same answer, whatever is sent and however it is cut."""

import itertools

import h11
from hypothesis import given
from hypothesis import strategies as st

from steerway.actors.models.chunks import ChunkJoiner

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def pieces_of(fed: list[bytes]) -> tuple[list[object], list[bytes]]:
    """What h11 says of an answer that arrives so, without its body, and the pieces of the body."""
    http = h11.Connection(h11.CLIENT)
    http.send(h11.Request(method="POST", target="/", headers=[("host", "x"), ("content-length", "0")]))
    http.send(h11.EndOfMessage())
    said: list[object] = []
    pieces: list[bytes] = []
    try:
        for data in [*fed, b""]:
            http.receive_data(data)
            while True:
                event = http.next_event()
                if event in (h11.NEED_DATA, h11.PAUSED) or isinstance(event, h11.ConnectionClosed):
                    break
                if isinstance(event, h11.Data):
                    pieces.append(bytes(event.data))
                else:
                    said.append(event)
                    if isinstance(event, h11.EndOfMessage):
                        said.append(http.trailing_data)
                        return said, pieces
    except h11.RemoteProtocolError as error:
        said.append(str(error))
    return said, pieces


def joined(fed: list[bytes]) -> list[bytes]:
    """The same bytes as they leave the joiner, without what is empty."""
    joiner = ChunkJoiner()
    joiner.begin()
    return [out for out in map(joiner.feed, [*fed, b""]) if out]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges) if start < end]


def test_chunks_that_come_together_are_one_piece():
    body = [b"data: %d\n\n" % number for number in range(50)]
    answer = HEAD + b"".join(map(chunk, body)) + b"0\r\n\r\n"
    said, pieces = pieces_of(joined([answer]))
    assert pieces == [b"".join(body)]
    assert isinstance(said[-2], h11.EndOfMessage)


def test_a_chunk_passes_when_it_comes_and_waits_for_nothing():
    joiner = ChunkJoiner()
    joiner.begin()
    assert joiner.feed(HEAD) == HEAD
    assert joiner.feed(chunk(b"one")) == chunk(b"one")
    assert joiner.feed(b"5\r\nfi") == b"5\r\nfi"
    assert joiner.feed(b"ve!") == b"ve!"
    assert joiner.feed(b"\r\n3\r\ntwo\r\n3") == b"\r\n3\r\ntwo\r\n"
    assert joiner.feed(b"") == b"3"


def test_the_next_answer_of_the_connection_begins_with_a_head():
    joiner = ChunkJoiner()
    for _ in range(2):
        joiner.begin()
        out = joiner.feed(HEAD + chunk(b"a") + chunk(b"b") + b"0\r\n\r\n")
        assert pieces_of([out])[1] == [b"ab"]


def test_what_is_no_chunked_200_passes_as_it_comes():
    two = chunk(b"a") + chunk(b"b") + b"0\r\n\r\n"
    for head in (
        b"HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\n",
        b"HTTP/1.1 500 Oh\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\nX: y\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"\x05\x00",
    ):
        assert b"".join(joined([head + two])) == head + two


def test_countless_interim_answers_pass_as_they_come():
    answer = b"HTTP/1.1 100 Continue\r\n\r\n" * 5000 + HEAD + chunk(b"a") + chunk(b"b") + b"0\r\n\r\n"
    assert ChunkJoiner().feed(answer) == answer


def test_an_interim_answer_stands_before_the_one_that_counts():
    answer = b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + chunk(b"a") + chunk(b"b") + b"0\r\n\r\n"
    assert pieces_of(joined([answer]))[1] == [b"ab"]


@given(
    body=st.lists(st.binary(min_size=1, max_size=40), max_size=20),
    ending=st.sampled_from(
        [b"0\r\n\r\n", b"0\r\nX-Trailer: y\r\n\r\n", b"", b"zz\r\n", b"3;ext=1\r\nabc\r\n0\r\n\r\n", b"\r\n", b"ffffffffff"]
    ),
    places=st.lists(st.integers(0, 2_000), max_size=30),
)
def test_the_library_sees_the_same_answer_however_it_is_cut(body: list[bytes], ending: bytes, places: list[int]):
    answer = HEAD + b"".join(map(chunk, body)) + ending
    fed = cut(answer, places)
    plain, through = pieces_of(fed), pieces_of(joined(fed))
    assert repr(through[0]) == repr(plain[0])
    assert b"".join(through[1]) == b"".join(plain[1])
    assert len(through[1]) <= len(plain[1])


@given(fed=st.lists(st.binary(max_size=60), max_size=10))
def test_nonsense_behind_a_head_loses_no_byte_before_the_library_refuses_it(fed: list[bytes]):
    fed = [HEAD, *filter(None, fed)]
    plain, through = pieces_of(fed), pieces_of(joined(fed))
    assert b"".join(through[1]) == b"".join(plain[1])
    assert repr(through[0]) == repr(plain[0])
