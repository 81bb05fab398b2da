"""The connections to providers: trio sockets, plain or under TLS, that rest between requests.

Rules:
- No limit of connections (ruling E3); one that is whole after its answer rests for the next. HTTP/1.1 only.
- One client for every request (`open_network`). It speaks h11 itself (`exchange`); where the environment names a proxy,
  httpx2's client does it all (`proxied`), because it knows the rules of such variables. Both fail with httpx2's errors.
- Time-outs are the caller's, except the one for connecting. A request that is cancelled closes its connection at once.
- Log lines tell with whom was spoken and the status, and nothing that a peer said: it may repeat a credential.
"""

from __future__ import annotations

import logging
import ssl
from base64 import b64encode
from collections import deque
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, Protocol
from urllib.request import getproxies

import h11
import httpx2
import trio
from msgspec import Struct

from .exchange import Connection

KEEPALIVE_CONNECTIONS: Final = 100
"""How many connections to one place rest."""
KEEPALIVE_SECONDS: Final = 30.0

DEFAULT_HEADERS: Final[Mapping[str, str]] = {"accept": "*/*", "connection": "keep-alive", "user-agent": "steerway"}

_log: Final = logging.getLogger("steerway.http")
_PORTS: Final = {"http": 80, "https": 443}


class Place(Struct, frozen=True):
    """Where a request goes. `origin` and `shown` are for messages and repeat no credential."""

    url: httpx2.URL
    origin: str
    shown: str
    target: bytes
    secure: bool
    host: str
    port: int
    netloc: str
    authorization: str | None
    """What credentials that stand in the address make of that header."""

    @property
    def key(self) -> tuple[bool, str, int]:
        """What connections have to have in common to serve it."""
        return self.secure, self.host, self.port


@lru_cache(maxsize=256)
def locate(url: str) -> Place:
    """Understand an address. Raises httpx2.InvalidURL, httpx2.UnsupportedProtocol, or UnicodeError."""
    parsed = httpx2.URL(url)
    if parsed.scheme not in _PORTS or not parsed.host:
        raise httpx2.UnsupportedProtocol(f"There is no way to speak {parsed.scheme!r}.")
    netloc = parsed.netloc.decode("ascii")
    credentials = f"{parsed.username}:{parsed.password}".encode()
    return Place(
        url=parsed,
        origin=f"{parsed.scheme}://{netloc}",
        shown=f"{parsed.scheme}://{netloc}{parsed.path}",
        target=parsed.raw_path,
        secure=parsed.scheme == "https",
        host=parsed.raw_host.decode("ascii"),
        port=parsed.port or _PORTS[parsed.scheme],
        netloc=netloc,
        authorization=f"Basic {b64encode(credentials).decode()}" if parsed.userinfo else None,
    )


class Answer(Protocol):
    """One answer whose head has come. Names of headers are in lower case; lines of one name are joined with commas."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    async def read(self) -> bytes:
        """The next piece of the body, as it was sent; empty at the end. Raises httpx2.HTTPError or httpx2.StreamError."""
        ...

    async def aclose(self) -> None:
        """Give the connection back if the body was read to its end, else close it. Never waits for the peer."""
        ...


class Network(Protocol):
    """Sends requests."""

    async def post(self, place: Place, headers: Mapping[str, str], body: bytes, *, connect: float) -> Answer:
        """Send a request and wait for the head of its answer. `connect`: seconds for a new connection to be made.

        `headers` (names in lower case) go before those that are always sent. Raises httpx2.HTTPError; UnicodeError and
        httpx2.LocalProtocolError say that this is no valid request, and that nothing was sent of it.
        """
        ...

    async def aclose(self) -> None:
        """Close what rests. A connection in use is closed when its answer is over."""
        ...


def open_network(*, trust_env: bool) -> Network:
    """The client for all providers. `trust_env`: take proxies and authorities from the environment."""
    authorities = httpx2.create_ssl_context(trust_env=trust_env)
    if trust_env and any(getproxies().get(scheme) for scheme in ("http", "https", "all")):
        from .proxied import ProxiedNetwork

        return ProxiedNetwork(authorities)
    return DirectNetwork(authorities)


class DirectNetwork:
    """Sends each request over the connection that rested last, else over a new one."""

    def __init__(self, authorities: ssl.SSLContext) -> None:
        authorities.set_alpn_protocols(["http/1.1"])
        self._authorities = authorities
        self._resting: dict[tuple[bool, str, int], deque[Connection]] = {}
        self._closed = False

    async def post(self, place: Place, headers: Mapping[str, str], body: bytes, *, connect: float) -> Answer:
        """See `Network.post`."""
        said = {"host": place.netloc, **DEFAULT_HEADERS, **headers}
        if place.authorization is not None:
            said["authorization"] = place.authorization
        if "transfer-encoding" not in said:
            said.setdefault("content-length", str(len(body)))
        lines = [(name.encode("ascii"), value.encode("ascii")) for name, value in said.items()]
        connection = self._rested(place)
        if connection is None:
            connection = await self._connected(place, connect)
        try:
            head = await connection.ask(b"POST", place.target, lines, body)
        except BaseException:
            connection.close()
            raise
        _log.info('POST %s "HTTP/%s %d"', place.shown, head.http_version.decode("ascii"), head.status_code)
        return _DirectAnswer(self, place, connection, head)

    async def aclose(self) -> None:
        """See `Network.aclose`."""
        self._closed = True
        for waiting in self._resting.values():
            while waiting:
                waiting.pop().close()

    def rest(self, place: Place, connection: Connection) -> None:
        """An answer is over: keep its connection if it can be used again, and close those that rested too long."""
        if self._closed or not connection.rest():
            connection.close()
            return
        waiting = self._resting.setdefault(place.key, deque())
        waiting.append(connection)
        while len(waiting) > KEEPALIVE_CONNECTIONS or waiting[0].rested(KEEPALIVE_SECONDS):
            waiting.popleft().close()

    def _rested(self, place: Place) -> Connection | None:
        """The connection that rested last, unless its peer has left it."""
        waiting = self._resting.get(place.key)
        while waiting:
            connection = waiting.pop()
            if not connection.rested(KEEPALIVE_SECONDS) and not connection.left():
                return connection
            connection.close()
        return None

    async def _connected(self, place: Place, seconds: float) -> Connection:
        """A new connection. Raises httpx2.ConnectTimeout or httpx2.ConnectError."""
        _log.debug("connecting to %s", place.origin)
        try:
            with trio.fail_after(seconds):
                plain = await trio.open_tcp_stream(place.host, place.port)
                if not place.secure:
                    return Connection(plain)
                try:
                    secured = trio.SSLStream(plain, self._authorities, server_hostname=place.host, https_compatible=True)
                    await secured.do_handshake()
                    return Connection(secured)
                except BaseException:
                    plain.socket.close()
                    raise
        except trio.TooSlowError as error:
            raise httpx2.ConnectTimeout(str(error)) from error
        except (OSError, ValueError, trio.BrokenResourceError) as error:  # a name may be none to sockets or to TLS
            raise httpx2.ConnectError(str(error)) from error


class _DirectAnswer:
    """One answer, and the connection that it came over until it is closed."""

    def __init__(self, network: DirectNetwork, place: Place, connection: Connection, head: h11.Response) -> None:
        self._network = network
        self._place = place
        self._connection: Connection | None = connection
        self.status = head.status_code
        self.headers: dict[str, str] = {}
        for raw_name, raw_value in head.headers:
            name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
            self.headers[name] = f"{self.headers[name]}, {value}" if name in self.headers else value

    async def read(self) -> bytes:
        """See `Answer.read`."""
        if self._connection is None:
            raise httpx2.StreamClosed
        return await self._connection.read()

    async def aclose(self) -> None:
        """See `Answer.aclose`."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._network.rest(self._place, connection)
