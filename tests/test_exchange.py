"""One exchange over HTTP/1.1 against peers that script every byte: odd answers, early answers, ends, cancellation.

Long, because all peers are scripted with the same few words, plain and under TLS.
"""

import hashlib
import ssl
import tracemalloc
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
import trustme
from trio.testing import MockClock, wait_all_tasks_blocked

from steerway.actors.models.exchange import MAX_EARLY, PORTION, SMALL_BODY
from steerway.actors.models.network import Answer, Network, locate, open_network

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
LARGE = bytes(range(256)) * 4 * 10 * 1024  # 10 MiB
REFUSAL = b"HTTP/1.1 413 Too Large\r\ncontent-length: 9\r\n\r\ntoo large"

Serve = Callable[["Peer"], Awaitable[None]]


class Peer:
    """The other end of one connection."""

    def __init__(self, stream: trio.abc.Stream, number: int) -> None:
        self.stream = stream
        self.number = number
        self._rest = b""

    async def request(self) -> tuple[bytes, bytes]:
        """The next request, head and body. Empty when the client has left."""
        data = self._rest
        while b"\r\n\r\n" not in data:
            if not (more := await self.stream.receive_some()):
                return b"", b""
            data += more
        head, _, rest = data.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or b"0")
        body = bytearray(rest)
        while len(body) < length:
            body += await self.stream.receive_some()
        self._rest = bytes(body[length:])
        return head, bytes(body[:length])

    async def say(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def is_left(self) -> None:
        """Wait until the client has closed the connection."""
        try:
            while await self.stream.receive_some():
                pass
        except trio.BrokenResourceError:
            pass


class Site:
    """A peer, the way to it, and what became of its connections."""

    def __init__(self, network: Network, url: str) -> None:
        self.network = network
        self.url = url
        self.connections = 0
        self.over = 0

    async def post(self, body: bytes = b"{}", headers: dict[str, str] | None = None) -> Answer:
        return await self.network.post(locate(self.url), headers or {}, body, connect=10)

    async def exchange(self, body: bytes = b"{}") -> tuple[int, bytes]:
        """Status and body of one answer that is read to its end."""
        answer = await self.post(body)
        try:
            return answer.status, await whole(answer)
        finally:
            await answer.aclose()


async def whole(answer: Answer) -> bytes:
    said = b""
    while piece := await answer.read():
        said += piece
    return said


@asynccontextmanager
async def site(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncGenerator[Site]:
    """`tls`: the context of the server; the client's authorities then come from the environment."""
    (plain,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    listener: Any = plain if tls is None else trio.SSLListener(plain, tls, https_compatible=True)
    network = open_network(trust_env=tls is not None)
    there = Site(network, f"http{'s' if tls else ''}://127.0.0.1:{plain.socket.getsockname()[1]}/v1/x?alt=sse")

    async def connected(stream: trio.abc.Stream) -> None:
        there.connections += 1
        try:
            await serve(Peer(stream, there.connections))
        finally:
            there.over += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, connected, [listener])
        try:
            yield there
        finally:
            await network.aclose()
            nursery.cancel_scope.cancel()


@pytest.fixture(params=["plain", "tls"])
def tls(request: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ssl.SSLContext | None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    if request.param == "plain":
        return None
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    leaf: Any = authority.issue_cert("127.0.0.1")
    leaf.configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    return context


def saying(*answers: bytes, close: bool = True) -> Serve:
    """Each connection answers its requests with these bytes, one behind the other, and then leaves."""

    async def serve(peer: Peer) -> None:
        for answer in answers:
            if not (await peer.request())[0]:
                return
            await peer.say(answer)
        if not close:
            await peer.is_left()

    return serve


# --- requests ---------------------------------------------------------------------------------------------------------


async def test_a_small_request_is_one_write_and_says_what_it_has_to() -> None:
    received: list[bytes] = []

    async def serve(peer: Peer) -> None:
        received.append(bytes(await peer.stream.receive_some()))
        await peer.say(OK)
        await peer.is_left()

    body = b"x" * 8_000
    async with site(serve) as there:
        answer = await there.post(body, {"x-mine": "1", "user-agent": "other"})
        assert (answer.status, await whole(answer)) == (200, b"ok")
        await answer.aclose()
    (request,) = received
    head, _, sent = request.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    assert (first, sent) == (b"POST /v1/x?alt=sse HTTP/1.1", body)
    assert dict(line.split(b": ") for line in lines) == {
        b"host": there.url.split("/")[2].encode(),
        b"accept": b"*/*",
        b"connection": b"keep-alive",
        b"user-agent": b"other",
        b"x-mine": b"1",
        b"content-length": b"8000",
    }


@pytest.mark.parametrize("size", [0, 1, SMALL_BODY, SMALL_BODY + 1, PORTION, len(LARGE)])
async def test_a_body_of_any_size_arrives_whole_and_leaves_the_connection_sound(tls: ssl.SSLContext | None, size: int) -> None:
    digests: list[str] = []

    async def serve(peer: Peer) -> None:
        for _ in range(2):
            digests.append(hashlib.sha256((await peer.request())[1]).hexdigest())
            await peer.say(OK)
        await peer.is_left()

    async with site(serve, tls) as there:
        for _ in range(2):
            assert await there.exchange(LARGE[:size]) == (200, b"ok")
        assert there.connections == 1
    assert digests == [hashlib.sha256(LARGE[:size]).hexdigest()] * 2


async def test_a_large_body_is_not_copied() -> None:
    async def serve(peer: Peer) -> None:
        missing = len(LARGE)
        while missing > 0:
            missing -= len(await peer.stream.receive_some(65_536))
        await peer.say(OK)

    async with site(serve) as there:
        tracemalloc.start()
        try:
            assert await there.exchange(LARGE) == (200, b"ok")
            assert tracemalloc.get_traced_memory()[1] < len(LARGE) / 4
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize(
    "headers", [{"x": "two\nlines"}, {"two words": "x"}, {"content-length": "1"}, {"content-length": "3"}, {"x": "\u20ac"}]
)
async def test_of_a_request_that_is_none_nothing_is_sent(headers: dict[str, str]) -> None:
    received: list[bytes] = []

    async def serve(peer: Peer) -> None:
        received.append(bytes(await peer.stream.receive_some()))

    async with site(serve) as there:
        with pytest.raises((httpx2.LocalProtocolError, UnicodeError)):
            await there.post(b"{}", headers)
        await wait_all_tasks_blocked()
    assert b"".join(received) == b""


async def test_a_body_whose_headers_ask_for_chunks_is_sent_in_chunks() -> None:
    received = bytearray()

    async def serve(peer: Peer) -> None:
        while not received.endswith(b"0\r\n\r\n"):
            received.extend(await peer.stream.receive_some())
        await peer.say(OK)

    async with site(serve) as there:
        answer = await there.post(b"abc", {"transfer-encoding": "chunked"})
        await answer.aclose()
    assert received.endswith(b"\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
    assert b"content-length" not in received


def test_an_address_may_hold_credentials_which_no_message_repeats() -> None:
    place = locate("https://me:se%3Acret@api.example:8443/v1?key=hidden")
    assert place.authorization == "Basic bWU6c2U6Y3JldA=="
    assert (place.origin, place.shown) == ("https://api.example:8443", "https://api.example:8443/v1")
    assert (place.host, place.port, place.netloc, place.target) == ("api.example", 8443, "api.example:8443", b"/v1?key=hidden")
    assert locate("http://[::1]/").key == (False, "::1", 80)


@pytest.mark.parametrize("url", ["ftp://example/", "http:///v1", "/v1", ""])
def test_an_address_that_is_not_of_the_web_is_refused(url: str) -> None:
    with pytest.raises(httpx2.UnsupportedProtocol):
        locate(url)


# --- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "status", "body", "again"),
    [
        (OK, 200, b"ok", True),
        (b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + OK, 200, b"ok", True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", True),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nx-trailer: y\r\n\r\n", 200, b"ok", True),
        (b"HTTP/1.1 500 Oh\r\nTransfer-Encoding: CHUNKED\r\n\r\n2;a=b\r\nok\r\n0\r\n\r\n", 500, b"ok", True),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 90_000 + b"\r\ncontent-length: 2\r\n\r\nok", 200, b"ok", True),
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok", 200, b"ok", False),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok", 200, b"ok", False),
        (b"HTTP/1.0 200 OK\r\n\r\nok", 200, b"ok", False),
        (b"HTTP/1.1 200 OK\r\n\r\nok", 200, b"ok", False),
        (OK + b"HTTP/1.1 200 OK\r\n\r\n", 200, b"ok", False),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\nmore", 200, b"ok", False),
    ],
    ids=[
        "length",
        "interim answers",
        "no content",
        "trailers",
        "chunk extensions",
        "long head",
        "connection: close",
        "HTTP/1.0 with a length",
        "HTTP/1.0",
        "ended by closing",
        "a second answer that nobody asked for",
        "bytes behind the chunks",
    ],
)
async def test_an_answer_is_read_whole_and_its_connection_rests_if_it_is_sound(
    tls: ssl.SSLContext | None, answer: bytes, status: int, body: bytes, again: bool
) -> None:
    ends_by_closing = b"length" not in answer and b"chunked" not in answer
    serve = saying(*[answer] * (2 if again else 1), close=ends_by_closing)  # else the client is the one who leaves
    async with site(serve, tls) as there:
        for _ in range(2):
            assert await there.exchange() == (status, body)
        assert there.connections == (1 if again else 2)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 O",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"\x15\x03\x01\x00\x02\x02\x16",
        b"HTTP/1.1 103 Early Hints\r\n\r\n",
    ],
)
async def test_an_answer_that_is_none_is_a_failure_of_the_peer(answer: bytes) -> None:
    async with site(saying(answer)) as there:
        with pytest.raises(httpx2.RemoteProtocolError) as caught:
            await there.exchange()
        assert "20" not in str(caught.value)  # nothing of the peer's
        await wait_all_tasks_blocked()
        assert there.over == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n9",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nokay\r\n0\r\n\r\n",
    ],
)
async def test_a_body_that_breaks_off_gives_what_came_and_then_fails(answer: bytes) -> None:
    async with site(saying(answer)) as there:
        got = await there.post()
        assert await got.read() == b"ok"
        with pytest.raises(httpx2.RemoteProtocolError):
            await got.read()
        await got.aclose()
        await wait_all_tasks_blocked()
        assert there.over == 1


async def test_an_end_is_told_again_and_a_closed_answer_says_that_it_is_closed() -> None:
    async with site(saying(OK, close=False)) as there:
        answer = await there.post()
        assert [await answer.read() for _ in range(3)] == [b"ok", b"", b""]
        await answer.aclose()
        await answer.aclose()
        with pytest.raises(httpx2.StreamClosed):
            await answer.read()


async def test_lines_of_one_name_are_one_header() -> None:
    head = b"HTTP/1.1 200 OK\r\nX-A: one\r\nx-a: two\r\nx-b: \xff\r\ncontent-length: 0\r\n\r\n"
    async with site(saying(head)) as there:
        answer = await there.post()
        assert answer.headers == {"x-a": "one, two", "x-b": "\u00ff", "content-length": "0"}
        await answer.aclose()


# --- early answers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["leaves", "reads no more", "reads on"])
async def test_a_refusal_that_comes_while_the_body_is_sent_is_the_answer(tls: ssl.SSLContext | None, how: str) -> None:
    async def serve(peer: Peer) -> None:
        await peer.stream.receive_some()
        await peer.say(REFUSAL)
        match how:
            case "leaves":
                return
            case "reads on":
                await peer.is_left()
            case _:
                await trio.sleep_forever()

    async with site(serve, tls) as there:
        with trio.fail_after(5):
            answer = await there.post(LARGE)
            assert answer.status == 413
            if how != "leaves":  # else the system may drop what had arrived
                assert await whole(answer) == b"too large"
            await answer.aclose()


async def test_an_early_refusal_without_end_is_waited_for_a_moment_only(
    tls: ssl.SSLContext | None, autojump_clock: MockClock
) -> None:
    async def serve(peer: Peer) -> None:
        await peer.stream.receive_some()
        await peer.say(b"HTTP/1.1 400 No\r\ntransfer-encoding: chunked\r\n\r\n3\r\nno!\r\n")
        await trio.sleep_forever()

    async with site(serve, tls) as there:
        answer = await there.post(LARGE)
        assert (answer.status, await answer.read()) == (400, b"no!")
        assert trio.current_time() < 100
        await answer.aclose()


async def test_an_early_refusal_without_measure_is_not_kept_whole() -> None:
    async def serve(peer: Peer) -> None:
        await peer.stream.receive_some()
        await peer.say(b"HTTP/1.1 400 No\r\n\r\n")
        try:
            while True:
                await peer.say(b"no!" * 1000)
        except trio.BrokenResourceError:
            pass

    async with site(serve) as there:
        answer = await there.post(LARGE)
        got = 0
        while got < 10 * MAX_EARLY:  # the rest comes as it is read
            got += len(await answer.read())
        await answer.aclose()


async def test_an_answer_that_begins_early_does_not_stop_the_body(tls: ssl.SSLContext | None) -> None:
    received = bytearray()

    async def serve(peer: Peer) -> None:
        while len(received) < PORTION:
            received.extend(await peer.stream.receive_some())
        await peer.say(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nearly\r\n")
        while not received.endswith(LARGE[-1024:]) or len(received) < len(LARGE):
            received.extend(await peer.stream.receive_some())
        await peer.say(b"4\r\nlate\r\n0\r\n\r\n")
        await peer.is_left()

    async with site(serve, tls) as there:
        with trio.fail_after(20):
            assert await there.exchange(LARGE) == (200, b"earlylate")
    assert received.endswith(LARGE)


async def test_a_peer_that_leaves_in_the_middle_of_a_body_without_a_word_is_a_failure(tls: ssl.SSLContext | None) -> None:
    async def serve(peer: Peer) -> None:
        await peer.stream.receive_some()

    async with site(serve, tls) as there:
        with trio.fail_after(5), pytest.raises((httpx2.ReadError, httpx2.RemoteProtocolError)):
            await there.post(LARGE)


# --- resting ----------------------------------------------------------------------------------------------------------


async def test_a_request_is_never_sent_twice_whoever_leaves(tls: ssl.SSLContext | None) -> None:
    """The second request meets a peer that had not yet left when it was sent, and leaves without a word."""
    requests: list[int] = []

    async def serve(peer: Peer) -> None:
        for answer in (OK, b""):
            if (await peer.request())[0]:
                requests.append(peer.number)
                await peer.say(answer)

    async with site(serve, tls) as there:
        assert await there.exchange() == (200, b"ok")
        with pytest.raises((httpx2.RemoteProtocolError, httpx2.ReadError)):
            await there.exchange()
        await wait_all_tasks_blocked()
        assert requests == [1, 1]
        assert await there.exchange() == (200, b"ok")
        assert requests == [1, 1, 2]


async def test_what_a_peer_says_unasked_while_a_connection_rests_is_no_answer() -> None:
    spoken = trio.Event()

    async def serve(peer: Peer) -> None:
        await peer.request()
        await peer.say(OK)
        if peer.number == 1:
            await peer.say(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nwrong")
            spoken.set()
        await peer.is_left()

    async with site(serve) as there:
        answer = await there.post()
        assert await whole(answer) == b"ok"
        await answer.aclose()
        await spoken.wait()
        assert await there.exchange() == (200, b"ok")
        assert there.connections == 2


async def test_an_answer_whose_end_has_come_unread_leaves_the_connection_for_the_next() -> None:
    async with site(saying(OK, OK)) as there:
        for _ in range(2):
            answer = await there.post()
            assert await answer.read() == b"ok"
            await answer.aclose()
        assert there.connections == 1


async def test_an_answer_that_is_left_in_the_middle_closes_its_connection(tls: ssl.SSLContext | None) -> None:
    left = trio.Event()

    async def serve(peer: Peer) -> None:
        await peer.request()
        await peer.say(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok")
        await peer.is_left()
        left.set()

    async with site(serve, tls) as there:
        answer = await there.post()
        assert await answer.read() == b"ok"
        await answer.aclose()
        with trio.fail_after(5):
            await left.wait()


# --- cancellation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["sending", "waiting", "reading"])
async def test_cancelling_closes_the_connection_at_once(tls: ssl.SSLContext | None, moment: str) -> None:
    begun, given_up, left = trio.Event(), trio.Event(), trio.Event()

    async def serve(peer: Peer) -> None:
        if moment == "sending":
            await peer.stream.receive_some()
            begun.set()
            await given_up.wait()
        else:
            await peer.request()
            if moment == "reading":
                await peer.say(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok")
            begun.set()
        await peer.is_left()
        left.set()

    async with site(serve, tls) as there:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(there.exchange, LARGE if moment == "sending" else b"{}")
            await begun.wait()
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        given_up.set()
        with trio.fail_after(5):
            await left.wait()


async def test_a_tls_handshake_that_nobody_answers_ends_with_the_time_for_connecting(
    autojump_clock: MockClock, tls: ssl.SSLContext | None
) -> None:
    left = trio.Event()

    async def serve(peer: Peer) -> None:
        await peer.is_left()
        left.set()

    async with site(serve) as there:
        place = locate(there.url.replace("http:", "https:"))
        with pytest.raises(httpx2.ConnectTimeout):
            await there.network.post(place, {}, b"{}", connect=3)
        assert trio.current_time() == pytest.approx(3)
        await left.wait()
        with trio.move_on_after(1) as scope:
            await there.network.post(place, {}, b"{}", connect=3)
        assert scope.cancelled_caught
        await wait_all_tasks_blocked()
        assert there.over == there.connections == 2


async def test_a_peer_that_speaks_no_tls_is_no_connection() -> None:
    async def serve(peer: Peer) -> None:
        await peer.stream.receive_some()
        await peer.say(OK)
        await peer.is_left()

    async with site(serve) as there:
        with pytest.raises(httpx2.ConnectError):
            await there.network.post(locate(there.url.replace("http:", "https:")), {}, b"{}", connect=3)
        await wait_all_tasks_blocked()
        assert there.over == 1
