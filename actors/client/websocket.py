"""The transport over a WebSocket: one task owns what is written, so no cancelled caller can tear a frame.

Rules:
- Callers append to a backlog; only the writer task sends messages, and it is stopped only together with the socket. Pings are
  sent by tasks of the same life. A send that is cut short therefore never has a successor (ruling B7; decision 0002).
- A handshake is bounded in time, and every way it can fail is a `ClientError`: `refused` with the server's sentence,
  `unsupported_subprotocol`, `timeout`, `transport`.
- Silence is trouble: a ping after 20 s in which nothing arrived, the end after 40 s. A long message on its way counts as life.
- The token goes into the `Authorization` header; a URL that holds one is refused.
"""

from __future__ import annotations

import ssl
from typing import Any
from urllib.parse import SplitResult, urlsplit

import trio
import trio_websocket

from ...protocol.codec import CODECS, Codec
from ...protocol.values.errors import ClientError
from .backlog import Backlog
from .refusal import ending, refusal, unfinished, unsupported
from .transport import HIGH_WATER, Opener
from .watched import CHUNK, WatchedStream

HANDSHAKE_SECONDS = 10.0
PING_SECONDS = 20.0
MAX_INBOUND_BYTES = 64 * 1024 * 1024
"""Larger than what a server sends in one message, by far; a message beyond it ends the connection."""


class WebSocketTransport:
    """An open WebSocket. Made by an opener of `websocket_opener`."""

    def __init__(self, codec: Codec, stream: WatchedStream, address: str) -> None:
        self.codec = codec
        self._stream = stream
        self._address = address
        self._backlog = Backlog()
        self._writing = False
        self._pinging = False
        self._closing = False
        self._failure: ClientError | None = None
        self._websocket: trio_websocket.WebSocketConnection | None = None
        self._opened = trio.Event()
        self._done = trio.Event()
        self._scope = trio.CancelScope()

    # --- opening --------------------------------------------------------------------------------------------------

    async def open(self, nursery: trio.Nursery, host: str, resource: str, token: str | None) -> None:
        """Shake hands; from then on the transport's tasks run in `nursery`. Raises `ClientError`."""
        nursery.start_soon(self._run, host, resource, token)
        try:
            await self._opened.wait()
        except trio.Cancelled:
            self._scope.cancel()
            raise
        if self._failure is not None:
            raise self._failure

    async def _run(self, host: str, resource: str, token: str | None) -> None:
        try:
            with self._scope:
                try:
                    async with trio.open_nursery() as nursery:
                        await self._handshake(nursery, host, resource, token)
                        nursery.start_soon(self._write)
                        nursery.start_soon(self._keep_alive, nursery)
                except* trio_websocket.ConnectionRejected as group:
                    rejected: trio_websocket.ConnectionRejected = _first(group)
                    self._fail(refusal(self._address, rejected.status_code, rejected.body or b""))
                except* ClientError as group:
                    self._fail(_first(group))
                except* Exception as group:
                    if self._opened.is_set():
                        self._fail(ClientError("transport", f"The connection to {self._address} failed: {_first(group)!r}."))
        finally:
            if not self._opened.is_set():
                self._fail(unfinished(self._address, self.codec, bytes(self._stream.head or b"")))
            self._fail(ClientError("closed", "The connection is closed."))
            self._backlog.close(discard=True)
            try:
                await trio.aclose_forcefully(self._stream)
            finally:  # also when everything around is cancelled: whoever closes waits for this word
                self._opened.set()
                self._done.set()

    async def _handshake(self, nursery: trio.Nursery, host: str, resource: str, token: str | None) -> None:
        headers = [] if token is None else [(b"Authorization", f"Bearer {token}".encode())]
        with trio.CancelScope() as waiting:
            nursery.start_soon(self._notice_end, waiting)
            stream: Any = self._stream  # any stream will do, although the library asks for one of two
            self._websocket = await trio_websocket.wrap_client_stream(
                nursery,
                stream,
                host,
                resource,
                subprotocols=[self.codec.subprotocol],
                extra_headers=headers,
                max_message_size=MAX_INBOUND_BYTES,
                receive_buffer_size=CHUNK,
            )
        if self._websocket is None:
            raise unfinished(self._address, self.codec, bytes(self._stream.head or b""))
        if self._websocket.subprotocol != self.codec.subprotocol:
            raise unsupported(self._address, self.codec)
        self._stream.head = None
        self._opened.set()

    async def _notice_end(self, waiting: trio.CancelScope) -> None:
        await self._stream.ended.wait()
        waiting.cancel()

    # --- the tasks ------------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        websocket = self._websocket
        assert websocket is not None
        while True:
            try:
                frame = await self._backlog.take()
            except trio.EndOfChannel:
                return
            self._writing = True
            try:
                await websocket.send_message(frame if self.codec.binary else frame.decode())
            except trio_websocket.ConnectionClosed:
                self._backlog.close(discard=True)  # the receiver learns it with its reason, after what came before
                return
            self._writing = False

    async def _keep_alive(self, nursery: trio.Nursery) -> None:
        while True:
            moved = self._stream.moved
            now = trio.current_time()
            if now >= moved + 2 * PING_SECONDS:
                self._fail(ClientError("transport", f"{self._address} has been silent for {2 * PING_SECONDS:.0f} s."))
                await trio.aclose_forcefully(self._stream)
                return
            if now < moved + PING_SECONDS:
                await trio.sleep_until(moved + PING_SECONDS)
                continue
            if not self._pinging:
                self._pinging = True
                nursery.start_soon(self._ping)
            await trio.sleep_until(moved + 2 * PING_SECONDS)

    async def _ping(self) -> None:
        assert self._websocket is not None
        try:
            await self._websocket.ping()
        except trio_websocket.ConnectionClosed:
            return  # the receiver learns it with its reason
        self._pinging = False

    def _fail(self, failure: ClientError) -> None:
        if self._failure is None:
            self._failure = failure

    # --- the transport --------------------------------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        """Queue a message."""
        if not self._backlog.append(frame):
            if self._backlog.closed:
                raise self._failure or ClientError("closed", "The connection is closed.")
            raise ClientError("transport", f"{self._address} does not take up what this client sends; the backlog is full.")

    async def wait_writable(self) -> None:
        """Return when enough of what was sent before is on its way."""
        await self._backlog.wait_below(HIGH_WATER)

    async def receive(self) -> bytes:
        """The next message."""
        assert self._websocket is not None
        try:
            message = await self._websocket.get_message()
        except trio_websocket.ConnectionClosed as closed:
            raise self._failure or ending(self._address, closed.reason) from None
        return message if isinstance(message, bytes) else message.encode()

    async def aclose(self) -> None:
        """Say goodbye, unless a message is only half sent, and close. At once when cancelled."""
        closing, self._closing = self._closing, True
        try:
            if closing:
                await self._done.wait()
            elif self._websocket is not None and not self._writing and not self._done.is_set():
                await self._websocket.aclose()
        finally:
            self._scope.cancel()
            with trio.CancelScope(shield=True):
                await self._done.wait()


def websocket_opener(url: str, *, token: str | None, subprotocol: str, ssl_context: ssl.SSLContext | None = None) -> Opener:
    """Opens WebSockets to `url`. Raises `ValueError` for a URL that cannot be one, or that holds a secret."""
    parts = urlsplit(url)
    if parts.scheme not in ("ws", "wss") or not parts.hostname:
        raise ValueError("A server's url starts with ws:// or wss:// and names a host.")
    try:
        known_port = parts.port != 0
    except ValueError:
        known_port = False
    if not known_port:
        raise ValueError("The port in a server's url is a number from 1 to 65535.")
    if parts.username is not None or parts.password is not None:
        raise ValueError("A url may not hold a secret; give the token as `token=`.")
    if subprotocol not in CODECS:
        raise ValueError(f"`subprotocol` is one of {', '.join(CODECS)}.")
    if token is not None and not (token.isascii() and token.isprintable()):
        raise ValueError("A token is printable ASCII in one line.")
    codec = CODECS[subprotocol]
    address = f"{parts.scheme}://{parts.netloc}"
    resource = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")

    async def open_websocket(nursery: trio.Nursery) -> WebSocketTransport:
        with trio.move_on_after(HANDSHAKE_SECONDS):
            stream = await _dial(parts, ssl_context, address)
            transport = WebSocketTransport(codec, WatchedStream(stream), address)
            await transport.open(nursery, parts.netloc, resource, token)
            return transport
        raise ClientError("timeout", f"{address} did not finish the handshake within {HANDSHAKE_SECONDS:.0f} s.")

    return open_websocket


async def _dial(parts: SplitResult, ssl_context: ssl.SSLContext | None, address: str) -> trio.abc.Stream:
    secure = parts.scheme == "wss"
    port = parts.port or (443 if secure else 80)
    try:
        stream = await trio.open_tcp_stream(parts.hostname or "", port)
    except OSError as error:
        raise ClientError("transport", f"{address} cannot be reached: {error.strerror or error}.") from error
    if not secure:
        return stream
    tls = trio.SSLStream(
        stream,
        ssl_context or ssl.create_default_context(),
        server_hostname=parts.hostname,
        https_compatible=True,
    )
    try:
        await tls.do_handshake()
    except (trio.BrokenResourceError, OSError) as error:
        await trio.aclose_forcefully(tls)
        raise ClientError(
            "transport", f"{address} cannot be trusted or does not speak TLS: {error.__cause__ or error}."
        ) from error
    except BaseException:
        await trio.aclose_forcefully(tls)
        raise
    return tls


def _first(group: BaseExceptionGroup[Any]) -> Any:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error  # pyright: ignore[reportUnknownArgumentType]
