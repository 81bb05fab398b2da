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

from steerway.actors.models.network import KEEPALIVE_SECONDS, open_client

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


async def pieces(client: Any, url: str) -> list[bytes]:
    async with client.stream("GET", url) as response:
        return [piece async for piece in response.aiter_raw()]


async def test_a_connection_that_the_peer_left_while_it_rested_is_not_used_again():
    server = Server(each=1)
    async with listening(server) as url, open_client(trust_env=False) as client:
        assert await pieces(client, url) == [b"onetwo"]
        await server.left.wait()
        assert await pieces(client, url) == [b"onetwo"]
        assert server.connections == 2


async def test_a_connection_serves_request_after_request_and_two_serve_at_once():
    server = Server()
    async with listening(server) as url, open_client(trust_env=False) as client:
        for _ in range(3):
            await pieces(client, url)
        assert server.connections == 1
        async with client.stream("GET", url) as first, client.stream("GET", url) as second:
            assert b"".join([piece async for piece in first.aiter_raw()]) == b"onetwo"
            assert b"".join([piece async for piece in second.aiter_raw()]) == b"onetwo"
        assert server.connections == 2


async def test_a_connection_that_rested_too_long_is_closed_when_another_comes_to_rest(monkeypatch: pytest.MonkeyPatch):
    ended = trio.Event()
    server = Server()

    async def serve(stream: trio.abc.Stream) -> None:
        number = server.connections
        await server(stream)
        if number == 0:
            ended.set()

    async with listening(serve) as url, open_client(trust_env=False) as client:
        async with client.stream("GET", url) as first, client.stream("GET", url) as second:
            await first.aread()
            await second.aread()
        later = time.monotonic() + KEEPALIVE_SECONDS + 1
        monkeypatch.setattr("time.monotonic", lambda: later)
        await pieces(client, url)
        await ended.wait()
        assert server.connections == 3


async def test_a_request_that_is_given_up_before_it_is_begun_closes_the_connection_it_took():
    ended = trio.Event()

    async def serve(stream: trio.abc.Stream) -> None:
        await stream.receive_some()
        await stream.send_all(ANSWER)
        if not await stream.receive_some():
            ended.set()

    async with listening(serve) as url, open_client(trust_env=False) as client:
        await pieces(client, url)
        with trio.CancelScope() as scope:
            scope.cancel()
            await pieces(client, url)
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
    async with listening(server, tls) as url, open_client(trust_env=True) as client:
        assert await pieces(client, url) == [b"onetwo"]
        assert await pieces(client, url) == [b"onetwo"]
        assert server.connections == 1


async def test_closing_the_client_closes_what_rests():
    server = Server()
    async with listening(server) as url:
        async with open_client(trust_env=False) as client:
            await pieces(client, url)
        with trio.fail_after(5):
            async with open_client(trust_env=False) as other:
                await pieces(other, url)
    assert server.connections == 2
