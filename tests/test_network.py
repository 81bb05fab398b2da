"""Connections to providers: which are used again, and what comes through them under TLS."""

import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trustme

from steerway.actors.models.network import KEEPALIVE_SECONDS, Answer, Network, locate, open_network

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
ANSWER = HEAD + b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"

Serve = Callable[[trio.abc.Stream], Awaitable[None]]


@asynccontextmanager
async def listening(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncGenerator[str]:
    (plain,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    listener: Any = plain if tls is None else trio.SSLListener(plain, tls, https_compatible=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        yield f"http{'s' if tls else ''}://127.0.0.1:{plain.socket.getsockname()[1]}/"
        nursery.cancel_scope.cancel()


class Server:
    """Answers every request, and counts connections. `each`: how many requests until it leaves without a word."""

    def __init__(self, each: int = 1_000) -> None:
        self.connections = 0
        self.left = trio.Event()
        self._each = each

    async def __call__(self, stream: trio.abc.Stream) -> None:
        self.connections += 1
        for _ in range(self._each):
            if not await stream.receive_some():
                return
            await stream.send_all(ANSWER)
        await stream.aclose()
        self.left.set()


@asynccontextmanager
async def opened(*, trust_env: bool = False) -> AsyncGenerator[Network]:
    network = open_network(trust_env=trust_env)
    try:
        yield network
    finally:
        await network.aclose()


async def asked(network: Network, url: str) -> Answer:
    return await network.post(locate(url), {}, b"", connect=10)


async def rest_of(answer: Answer) -> list[bytes]:
    said: list[bytes] = []
    while piece := await answer.read():
        said.append(piece)
    await answer.aclose()
    return said


async def pieces(network: Network, url: str) -> list[bytes]:
    return await rest_of(await asked(network, url))


async def test_a_connection_that_the_peer_left_while_it_rested_is_not_used_again():
    server = Server(each=1)
    async with listening(server) as url, opened() as network:
        assert await pieces(network, url) == [b"onetwo"]
        await server.left.wait()
        assert await pieces(network, url) == [b"onetwo"]
        assert server.connections == 2


async def test_a_connection_serves_request_after_request_and_two_serve_at_once():
    server = Server()
    async with listening(server) as url, opened() as network:
        for _ in range(3):
            await pieces(network, url)
        assert server.connections == 1
        first, second = await asked(network, url), await asked(network, url)
        assert await rest_of(first) == await rest_of(second) == [b"onetwo"]
        assert server.connections == 2


async def test_a_connection_that_rested_too_long_is_closed_when_another_comes_to_rest(monkeypatch: pytest.MonkeyPatch):
    ended = trio.Event()
    server = Server()

    async def serve(stream: trio.abc.Stream) -> None:
        number = server.connections
        await server(stream)
        if number == 0:
            ended.set()

    async with listening(serve) as url, opened() as network:
        for answer in (await asked(network, url), await asked(network, url)):
            await rest_of(answer)
        later = time.monotonic() + KEEPALIVE_SECONDS + 1
        monkeypatch.setattr("time.monotonic", lambda: later)
        await pieces(network, url)
        await ended.wait()
        assert server.connections == 3


async def test_a_request_that_is_given_up_before_it_is_begun_closes_the_connection_it_took():
    ended = trio.Event()

    async def serve(stream: trio.abc.Stream) -> None:
        await stream.receive_some()
        await stream.send_all(ANSWER)
        if not await stream.receive_some():
            ended.set()

    async with listening(serve) as url, opened() as network:
        await pieces(network, url)
        with trio.CancelScope() as scope:
            scope.cancel()
            await pieces(network, url)
        assert scope.cancelled_caught
        with trio.fail_after(5):
            await ended.wait()


async def test_chunks_are_joined_under_tls_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    authority = trustme.CA()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    leaf: Any = authority.issue_cert("127.0.0.1")
    leaf.configure_cert(tls)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    server = Server()
    async with listening(server, tls) as url, opened(trust_env=True) as network:
        assert await pieces(network, url) == [b"onetwo"]
        assert await pieces(network, url) == [b"onetwo"]
        assert server.connections == 1


async def test_closing_the_network_closes_what_rests():
    server = Server()
    async with listening(server) as url:
        async with opened() as network:
            await pieces(network, url)
        with trio.fail_after(5):
            async with opened() as other:
                await pieces(other, url)
    assert server.connections == 2


@pytest.mark.parametrize("proxied", [False, True])
async def test_a_closed_network_keeps_nothing_that_was_still_in_use(monkeypatch: pytest.MonkeyPatch, proxied: bool):
    server = Server()
    ended = trio.Event()

    async def serve(stream: trio.abc.Stream) -> None:
        await server(stream)
        ended.set()

    async with listening(serve) as url:
        if proxied:
            monkeypatch.setenv("HTTP_PROXY", url)
        async with opened(trust_env=proxied) as network:
            answer = await asked(network, "http://elsewhere.example/" if proxied else url)
        await answer.aclose()
        with trio.fail_after(5):
            await ended.wait()


async def test_through_a_proxy_an_answer_is_the_same_and_leaving_it_closes_the_connection(monkeypatch: pytest.MonkeyPatch):
    asked_for: list[bytes] = []
    left = trio.Event()

    async def serve(stream: trio.abc.Stream) -> None:
        for answer in (ANSWER, HEAD + b"3\r\none\r\n"):
            asked_for.append(bytes(await stream.receive_some()))
            await stream.send_all(answer)
        if not await stream.receive_some():
            left.set()

    async with listening(serve) as url:
        monkeypatch.setenv("HTTP_PROXY", url)
        async with opened(trust_env=True) as network:
            assert b"".join(await pieces(network, "http://elsewhere.example/v1")) == b"onetwo"
            answer = await asked(network, "http://elsewhere.example/v1")
            assert answer.headers == {"transfer-encoding": "chunked"}
            assert (answer.status, await answer.read()) == (200, b"one")
            await answer.aclose()
            with trio.fail_after(5):
                await left.wait()
    for request in asked_for:
        assert request.startswith(b"POST http://elsewhere.example/v1 HTTP/1.1\r\n")
        assert b"steerway" in request
