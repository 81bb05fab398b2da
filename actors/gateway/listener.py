"""The listener: sockets, the HTTP side of the port, and one task for each connection.

Rules (wire contract, "Who may speak" and "HTTP side"; rulings B6, B7, F1):
- The request head is read once, within the handshake limit that also covers TLS. Upgrades only on `/`; everything else is a
  plain answer from the table of routes, one to a connection.
- Nothing that happens on one connection reaches another or the listener: it is logged, and that connection ends.
- Running out of file descriptors pauses accepting; it never ends it.
- `Listening.stop_accepting` closes the door and leaves the connections; cancelling `serve` closes those with 1001.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import trio

from ...protocol.codec import Codec
from ..logs import Logger
from .authentication import Doorkeeper, unauthorized
from .connection import Dispatcher, new_reference, serve_connection
from .head import Head, HttpAnswer, HttpRoute, RefusedHeadError, read_head, sentence
from .limits import Limits, Usage
from .stream import Stream
from .websocket import WebSocketTransport, serve_websocket

log = Logger("steerway.gateway")

_EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
_PAUSE_SECONDS = 0.1
_ACCEPTS_PER_WAKE = 64
_BACKLOG = 1_024

HEALTH = HttpRoute(
    answer=lambda: HttpAnswer(status=200, body=b'{"healthy":true}', content_type="application/json"), token=False
)


class Listening:
    """A gateway that accepts connections."""

    def __init__(self, url: str, port: int, usage: Usage, door: trio.CancelScope) -> None:
        self.url = url
        """What a client connects to, `ws://` or `wss://`."""
        self.port = port
        self.usage = usage
        """Connections, requests in flight and subscriptions, at any moment."""
        self._door = door

    def stop_accepting(self) -> None:
        """Close the listening sockets; connections live on until `serve` is cancelled. Synchronous and idempotent."""
        self._door.cancel()


async def serve(
    router: Dispatcher,
    *,
    host: str,
    port: int,
    token: str,
    hosts: Sequence[str] = (),
    origins: Sequence[str] = (),
    ssl_context: ssl.SSLContext | None = None,
    routes: Mapping[str, HttpRoute] | None = None,
    limits: Limits | None = None,
    reference: Callable[[], str] = new_reference,
    task_status: trio.TaskStatus[Listening] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the contract on a TCP port until cancelled; started with `Listening` once the port is bound.

    `port` 0 takes a free one. `routes` adds readable paths beside `/health`. Raises `ValueError` for an empty token and
    `OSError` when the address cannot be bound. Cancelling it closes every connection with 1001, within the bounded time of a
    goodbye; nothing of a connection ever raises out of it.
    """
    limits = limits or Limits()
    # Checked before anything is bound.
    doorkeeper = Doorkeeper(token, bound=[host], hosts=hosts, origins=origins, secure=ssl_context is not None)
    sockets = await _bind(host, port)
    gateway = _Gateway(router, doorkeeper, ssl_context, {"/health": HEALTH, **(routes or {})}, limits, reference)
    bound_port: int = sockets[0].getsockname()[1]
    door = trio.CancelScope()
    url = f"{'ws' if ssl_context is None else 'wss'}://{_for_url(host, sockets[0])}:{bound_port}/"
    try:
        async with trio.open_nursery() as connections:
            task_status.started(Listening(url, bound_port, gateway.usage, door))
            try:
                with door:
                    async with trio.open_nursery() as acceptors:
                        for sock in sockets:
                            acceptors.start_soon(gateway.accept, sock, connections)
            finally:
                _close(sockets)
            await trio.sleep_forever()
    finally:
        _close(sockets)


class _Gateway:
    """What all connections of one listener share."""

    def __init__(
        self,
        router: Dispatcher,
        doorkeeper: Doorkeeper,
        ssl_context: ssl.SSLContext | None,
        routes: Mapping[str, HttpRoute],
        limits: Limits,
        reference: Callable[[], str],
    ) -> None:
        self.usage = Usage()
        self._router = router
        self._doorkeeper = doorkeeper
        self._ssl_context = ssl_context
        self._routes = routes
        self._limits = limits
        self._reference = reference

    async def accept(self, listener: socket.socket, connections: trio.Nursery) -> None:
        """Take connections from one listening socket, each into a task of its own in `connections`."""
        while True:
            await trio.lowlevel.wait_readable(listener)
            for _ in range(_ACCEPTS_PER_WAKE):
                try:
                    sock, _address = listener.accept()
                except (BlockingIOError, InterruptedError):
                    break
                except OSError as error:
                    if error.errno in _EXHAUSTED:
                        log.warning("accept_paused", error=str(error))
                        await trio.sleep(_PAUSE_SECONDS)
                        break
                    continue  # that connection died before it was taken
                sock.setblocking(False)
                if self.usage.connections >= self._limits.connections:
                    self._turn_away(sock)
                    continue
                self.usage.connections += 1
                connections.start_soon(self._serve, sock)

    def _turn_away(self, sock: socket.socket) -> None:
        with sock:
            if self._ssl_context is None:
                answer = sentence(503, "The server has as many connections as it takes; come back later.", ("Retry-After", "5"))
                try:
                    sock.send(answer.encode())
                except OSError:
                    pass  # it would not have waited for the answer

    async def _serve(self, sock: socket.socket) -> None:
        """One connection, from its first byte to its goodbye. Raises nothing but cancellation."""
        try:
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                stream = Stream(sock, ssl_context=self._ssl_context, max_backlog=self._limits.unsent_bytes)
            except BaseException:
                sock.close()
                raise
            try:
                await self._converse(stream, sock.getsockname()[0])
            except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
                pass  # the peer left, or never came to the point
            finally:
                await stream.aclose()
        except* Exception:
            log.exception("connection_failed", reference=self._reference())
        finally:
            self.usage.connections -= 1

    async def _converse(self, stream: Stream, local: str) -> None:
        with_body = True
        try:
            with trio.fail_after(self._limits.handshake_seconds):
                await stream.handshake()
                head = await read_head(stream)
            if head is None:
                return
            with_body = head.method != "HEAD"
            answer = self._doorkeeper.refusal(head, local) or self._plain(head)
            if answer is None:
                await serve_websocket(stream, head, self._connect(head), self._limits)
                return
        except RefusedHeadError as refused:
            answer = refused.answer
        stream.try_send(answer.encode(with_body=with_body))

    def _plain(self, head: Head) -> HttpAnswer | None:
        """The plain answer to a head from the right place; None when the upgrade may go on."""
        proved = self._doorkeeper.credentials(head)
        if proved is False:
            return unauthorized()
        if head.path == "/":
            if head.method not in ("GET", "HEAD"):
                return sentence(405, "Only GET is answered here.", ("Allow", "GET, HEAD"))
            if head.wants_upgrade and head.method == "GET":
                return None
            return sentence(426, "This is the address of a WebSocket; connect to it with one.", ("Upgrade", "websocket"))
        route = self._routes.get(head.path)
        if route is None or head.wants_upgrade:
            return sentence(404, "Nothing is here; WebSockets connect to `/`.")
        if head.method not in ("GET", "HEAD"):
            return sentence(405, "Only GET is answered here.", ("Allow", "GET, HEAD"))
        if route.token and not proved:
            return unauthorized()
        return route.answer()

    def _connect(self, head: Head) -> Callable[[WebSocketTransport, Codec], Any]:
        authenticated = self._doorkeeper.credentials(head) is True

        async def connect(transport: WebSocketTransport, codec: Codec) -> None:
            stream = transport.outbound
            if not authenticated:
                stream.allow(self._limits.unauthenticated_bytes)

            def authenticate(token: str) -> bool:
                accepted = self._doorkeeper.accepts(token)
                if accepted:
                    stream.allow(None)
                return accepted

            await serve_connection(
                transport,
                self._router,
                codec=codec,
                authenticated=authenticated,
                authenticate=authenticate,
                limits=self._limits,
                usage=self.usage,
                reference=self._reference,
            )

        return connect


async def _bind(host: str, port: int) -> list[socket.socket]:
    """Listening sockets on every address of `host`, all with one port. Raises `OSError` when there is none."""
    found = await trio.socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    failure: OSError | None = None
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            sock: socket.socket | None = None
            try:
                sock = socket.socket(family, kind, protocol)
                sock.setblocking(False)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                taken: int = sockets[0].getsockname()[1] if sockets else port
                sock.bind((address[0], taken, *address[2:]))
                sock.listen(_BACKLOG)
            except OSError as error:
                if sock is not None:
                    sock.close()
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                failure = error  # this address is not one of the machine's, though the name has it
            else:
                sockets.append(sock)
    except BaseException:
        _close(sockets)
        raise
    if not sockets:
        raise failure or OSError(errno.EADDRNOTAVAIL, f"No address to bind for {host!r}.")
    return sockets


def _close(sockets: Sequence[socket.socket]) -> None:
    for sock in sockets:
        if sock.fileno() >= 0:
            trio.lowlevel.notify_closing(sock)
            sock.close()


def _for_url(host: str, sock: socket.socket) -> str:
    """The host as a URL says it; an address that means all becomes loopback."""
    address: str = sock.getsockname()[0]
    if ipaddress.ip_address(address.partition("%")[0]).is_unspecified:
        host = "127.0.0.1" if sock.family == socket.AF_INET else "::1"
    return f"[{host}]" if ":" in host else host
