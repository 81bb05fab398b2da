"""The connections under the HTTP client: trio sockets whose chunked answers arrive joined.

Rules:
- No limit of connections (ruling E3); one that is whole after its answer rests for the next. TLS and HTTP are the library's.
- Time-outs are the caller's, except the one for connecting. Cancelling a read or write leaves the connection to be closed.
- The libraries' loggers tell the steps of an exchange, and nothing that a peer said or that a proxy is told: either may be
  a credential, or repeat one.
- Where the environment names a proxy, httpx2's own pools are used, which know the rules of such variables: then nothing is
  joined, and everything else is the same.
"""

from __future__ import annotations

import logging
import re
import ssl
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Generator, Iterable
from contextlib import contextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Final, cast
from urllib.request import getproxies

import httpcore2
import httpx2
import trio

from .chunks import ChunkJoiner

_LOGGERS: Final = (
    "httpcore2.connection",
    "httpcore2.http11",
    "httpcore2.http2",
    "httpcore2.proxy",
    "httpcore2.socks",
    "httpx2",
)
_TOLD: Final = re.compile(r"(?:host|port)=\S+")

KEEPALIVE_CONNECTIONS: Final = 100
KEEPALIVE_SECONDS: Final = 30.0

_FAILURES: Final = (
    httpcore2.TimeoutException,
    httpcore2.NetworkError,
    httpcore2.ProtocolError,
    httpcore2.ProxyError,
    httpcore2.UnsupportedProtocol,
)


def open_client(*, trust_env: bool) -> httpx2.AsyncClient:
    """The client for all providers. `trust_env`: take proxies and authorities from the environment."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_discreet)  # the same one again changes nothing
    authorities = httpx2.create_ssl_context(trust_env=trust_env)
    proxied = trust_env and any(getproxies().get(scheme) for scheme in ("http", "https", "all"))
    return httpx2.AsyncClient(
        transport=None if proxied else DirectTransport(authorities),
        verify=authorities,
        headers={"user-agent": "steerway"},
        limits=httpx2.Limits(
            max_connections=None,
            max_keepalive_connections=KEEPALIVE_CONNECTIONS,
            keepalive_expiry=KEEPALIVE_SECONDS,
        ),
        timeout=httpx2.Timeout(None),
        follow_redirects=False,
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        trust_env=trust_env,
    )


def _discreet(record: logging.LogRecord) -> bool:
    """Cut a line of the libraries to what they did themselves, and with whom."""
    if record.name == "httpx2":
        if isinstance(record.args, tuple) and len(record.args) == 5:  # method, URL, version, status, and the peer's words
            record.args = (*record.args[:4], "")
    else:
        step, _, details = record.getMessage().partition(" ")
        record.msg, record.args = " ".join([step, *_TOLD.findall(details.partition(" return_value=")[0])]), None
        record.exc_info = None
    return True


class DirectTransport(httpx2.AsyncBaseTransport):
    """Sends each request over a connection that rests, else over a new one.

    The library's own pool looks at all of its connections for every request and once more for every answer; without a limit
    to keep there is nothing to look for.
    """

    def __init__(self, authorities: ssl.SSLContext) -> None:
        self._authorities = authorities
        self._network = _Network()
        self._resting: dict[tuple[bytes, bytes, int], deque[httpcore2.AsyncHTTPConnection]] = {}
        self._closed = False

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        url = request.url
        outgoing = httpcore2.Request(
            method=request.method,
            url=httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
            headers=request.headers.raw,
            content=cast("AsyncIterable[bytes]", request.stream),
            extensions=request.extensions,
        )
        if outgoing.url.scheme not in (b"http", b"https"):
            raise httpx2.UnsupportedProtocol(f"There is no way to speak {url.scheme!r}.")
        origin = outgoing.url.origin
        with _named_for_the_client():
            connection = await self._rested(origin) or self._new(origin)
            try:
                response = await connection.handle_async_request(outgoing)
            except BaseException:
                # Where a request is given up before the library has taken the connection, nobody else would close it.
                with trio.CancelScope(shield=True):  # it never waits for the peer
                    await connection.aclose()
                raise
        return httpx2.Response(
            status_code=response.status,
            headers=response.headers,
            stream=_Body(response, lambda: self._rest(origin, connection)),
            extensions={"http_version": b"HTTP/1.1"},
        )

    async def aclose(self) -> None:
        """Close what rests. A connection in use is closed when its answer is over."""
        self._closed = True
        for waiting in self._resting.values():
            while waiting:
                await waiting.pop().aclose()

    def _new(self, origin: httpcore2.Origin) -> httpcore2.AsyncHTTPConnection:
        return httpcore2.AsyncHTTPConnection(
            origin,
            ssl_context=self._authorities,
            keepalive_expiry=KEEPALIVE_SECONDS,
            network_backend=self._network,
        )

    async def _rested(self, origin: httpcore2.Origin) -> httpcore2.AsyncHTTPConnection | None:
        """The connection that rested last, unless its peer has left it."""
        waiting = self._resting.get(_key(origin))
        while waiting:
            connection = waiting.pop()
            if not connection.has_expired():
                return connection
            await connection.aclose()
        return None

    async def _rest(self, origin: httpcore2.Origin, connection: httpcore2.AsyncHTTPConnection) -> None:
        """An answer is over: keep its connection if it can be used again, and close those that rested too long."""
        if not connection.is_idle():
            return  # the library has closed it
        if self._closed:
            await connection.aclose()
            return
        waiting = self._resting.setdefault(_key(origin), deque())
        waiting.append(connection)
        while len(waiting) > KEEPALIVE_CONNECTIONS or waiting[0].has_expired():
            await waiting.popleft().aclose()
            if not waiting:
                return


class _Body(httpx2.AsyncByteStream):
    """The body of one answer. `over` is called once, when it was read or closed."""

    def __init__(self, response: httpcore2.Response, over: Callable[[], Awaitable[None]]) -> None:
        self._response = response
        self._over: Callable[[], Awaitable[None]] | None = over

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _named_for_the_client():
            async for piece in cast("AsyncIterable[bytes]", self._response.stream):
                yield piece

    async def aclose(self) -> None:
        over, self._over = self._over, None
        if over is not None:
            with trio.CancelScope(shield=True):  # it never waits for the peer
                await self._response.aclose()
                await over()


def _key(origin: httpcore2.Origin) -> tuple[bytes, bytes, int]:
    return origin.scheme, origin.host, origin.port


@contextmanager
def _named_for_the_client() -> Generator[None]:
    """The two libraries have the same failures under the same names."""
    try:
        yield
    except _FAILURES as error:
        raise getattr(httpx2, type(error).__name__, httpx2.TransportError)(str(error)) from error


class _Network(httpcore2.AsyncNetworkBackend):
    """Opens connections."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        try:
            with _deadline(timeout):
                return _Connection(await trio.open_tcp_stream(host, port, local_address=local_address))
        except trio.TooSlowError as error:
            raise httpcore2.ConnectTimeout(str(error)) from error
        except (OSError, UnicodeError, trio.BrokenResourceError) as error:  # a name with a label that is too long is no text
            raise httpcore2.ConnectError(str(error)) from error

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)


class _Connection(httpcore2.AsyncNetworkStream):
    """One connection, plain or under TLS."""

    def __init__(self, stream: trio.SocketStream | trio.SSLStream[trio.SocketStream]) -> None:
        self._stream = stream
        self._joiner = ChunkJoiner()

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """What came, joined; empty at the peer's end."""
        try:
            with _deadline(timeout):
                while True:
                    data = await self._stream.receive_some(max_bytes)
                    joined = self._joiner.feed(bytes(data))
                    if joined or not data:
                        return joined
        except trio.TooSlowError as error:
            raise httpcore2.ReadTimeout(str(error)) from error
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise httpcore2.ReadError(str(error)) from error

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if not buffer:
            return
        self._joiner.begin()
        try:
            with _deadline(timeout):
                await self._stream.send_all(buffer)
        except trio.TooSlowError as error:
            raise httpcore2.WriteTimeout(str(error)) from error
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise httpcore2.WriteError(str(error)) from error

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        if not isinstance(self._stream, trio.SocketStream):
            raise httpcore2.ConnectError("TLS inside TLS is for proxies, which have connections of their own.")
        secured = trio.SSLStream(self._stream, ssl_context, server_hostname=server_hostname, https_compatible=True)
        try:
            with _deadline(timeout):
                await secured.do_handshake()
        except trio.TooSlowError as error:
            await secured.aclose()
            raise httpcore2.ConnectTimeout(str(error)) from error
        except trio.BrokenResourceError as error:
            await secured.aclose()
            raise httpcore2.ConnectError(str(error)) from error
        except BaseException:
            await trio.aclose_forcefully(secured)
            raise
        return _Connection(secured)

    def get_extra_info(self, info: str) -> Any:
        """`is_readable` tells the pool that the peer closed a resting connection; nothing else is asked."""
        if info != "is_readable":
            return None
        stream = self._stream if isinstance(self._stream, trio.SocketStream) else self._stream.transport_stream
        return stream.socket.is_readable()


@contextmanager
def _deadline(seconds: float | None) -> Generator[None]:
    """`fail_after`, without its price where there is no time-out."""
    if seconds is None:
        yield
        return
    with trio.fail_after(seconds):
        yield
