"""A gateway over a router of a few made-up operations, and peers that speak to it byte by byte."""

from __future__ import annotations

import os
import struct
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
import trio

from steerway.actors.feed import Feed
from steerway.actors.gateway.connection import Connection
from steerway.actors.gateway.handling import in_task, reply_to
from steerway.actors.gateway.limits import Limits
from steerway.actors.gateway.listener import Listening, serve
from steerway.actors.gateway.router import Opened
from steerway.actors.mailbox import Answer, Letter, Mailbox, refused, settled
from steerway.protocol.codec import Codec
from steerway.protocol.operations import LiveStream
from steerway.protocol.values.errors import MethodNotFoundError, SessionNotFoundError

TOKEN = "the-token-of-these-tests"
BEARER = {"Authorization": f"Bearer {TOKEN}"}

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


class MadeUpRouter:
    """Operations that show what a connection does with them. `asked` is what arrived, in order."""

    def __init__(self, feed: Feed | None = None) -> None:
        self.feed = feed
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.held: dict[Any, Answer[Any]] = {}
        self.arrived = trio.Event()
        self.mailbox: Mailbox[Letter[Any]] = Mailbox(8, "made up")
        """Where letters of tasks go; nobody takes them but the test."""
        self.letters: list[Letter[Any]] = []

    def dispatch(self, method: str, params: dict[str, Any], codec: Codec, peer: Connection) -> Answer[Any]:
        self.asked.append((method, params))
        self.arrived.set()
        self.arrived = trio.Event()
        match method:
            case "echo":
                return settled(params)
            case "hold":
                self.held[params["name"]] = Answer[Any]()
                return self.held[params["name"]]
            case "letter":
                letter = Letter[Any]()
                self.letters.append(letter)
                self.mailbox.post(letter)
                return in_task(peer, partial(reply_to, letter.answer))
            case "raise":
                raise ZeroDivisionError("in dispatch")
            case "fail":
                return refused(ZeroDivisionError("in the actor"))
            case "decline":
                return refused(SessionNotFoundError("No such session.", session_id="ses_none"))
            case "unencodable":
                return settled(object())
            case "big":
                return settled({"data": "x" * params["size"]})
            case "crash":
                peer.nursery.start_soon(self._crash)
                return Answer[Any]()
            case "watch" if self.feed is not None:
                number = peer.next_subscription()
                subscription = self.feed.subscribe_live(peer.outbound, number, peer.subscription_ended)
                return settled(Opened(LiveStream(subscription=number), number, subscription))
            case _:
                return refused(MethodNotFoundError("No such operation.", method=method))

    async def _crash(self) -> None:
        raise ZeroDivisionError("in a request's task")


class Served:
    """A gateway that runs, and the peers that were connected to it, which are closed with it."""

    def __init__(self, gateway: Listening, stop: Callable[[], None]) -> None:
        self.gateway = gateway
        self.port = gateway.port
        self.url = gateway.url
        self.usage = gateway.usage
        self.peers: list[RawPeer] = []
        self.stop = stop
        """Cancel it and leave the peers open."""


@asynccontextmanager
async def listening(
    router: MadeUpRouter | None = None, *, limits: Limits | None = None, host: str = "127.0.0.1", **options: Any
) -> AsyncGenerator[Served]:
    """A gateway on a free port of the loopback address."""
    scope = trio.CancelScope()

    async def run(*, task_status: trio.TaskStatus[Listening]) -> None:
        with scope:
            await serve(
                router or MadeUpRouter(), host=host, port=0, token=TOKEN, limits=limits, task_status=task_status, **options
            )

    async with trio.open_nursery() as nursery:
        served = Served(await nursery.start(run), scope.cancel)
        try:
            yield served
        finally:
            for peer in served.peers:
                await trio.aclose_forcefully(peer.stream)
            scope.cancel()


def request_head(path: str = "/", method: str = "GET", /, **headers: str | None) -> bytes:
    """An HTTP head to `localhost`; a header given as None is left out. Underscores stand for dashes."""
    fields: dict[str, str | None] = {"Host": "localhost", **{name.replace("_", "-"): value for name, value in headers.items()}}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items() if value is not None)]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def upgrade_request(**headers: str | None) -> bytes:
    """The head of a WebSocket handshake with the token; headers may be changed or left out."""
    fields: dict[str, str | None] = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec_WebSocket_Version": "13",
        **BEARER,
    }
    return request_head("/", "GET", **{**fields, **headers})


def client_frame(payload: bytes, opcode: int = TEXT, *, first: int | None = None, masked: bool = True) -> bytes:
    """One frame as a client sends it; `first` replaces the first byte."""
    size = len(payload)
    flag = 0x80 if masked else 0
    head = 0x80 | opcode if first is None else first
    if size < 126:
        header = struct.pack("!BB", head, flag | size)
    elif size < 65_536:
        header = struct.pack("!BBH", head, flag | 126, size)
    else:
        header = struct.pack("!BBQ", head, flag | 127, size)
    if not masked:
        return header + payload
    key = os.urandom(4)
    long_key = (key * (size // 4 + 1))[:size]
    body = (int.from_bytes(payload, "big") ^ int.from_bytes(long_key, "big")).to_bytes(size, "big")
    return header + key + body


def call(request_id: Any, method: str, params: dict[str, Any] | None = None) -> bytes:
    """A JSON request in a text frame; without an id it is a notification."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params or {}}
    if request_id is not None:
        message["id"] = request_id
    return client_frame(msgspec.json.encode(message))


class RawPeer:
    """A TCP connection that reads HTTP answers and WebSocket frames by itself."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._buffer = b""

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def ask(self, request_id: Any, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call and read the next message, which is taken for the answer."""
        await self.send(call(request_id, method, params))
        return await self.message()

    async def head(self) -> tuple[int, str]:
        """Status and header lines of an HTTP answer."""
        text = (await self._until(b"\r\n\r\n")).decode()
        return int(text.split()[1]), text

    async def http(self) -> tuple[int, str, str]:
        """Status, header lines and body of an answer that ends with the connection."""
        status, head = await self.head()
        while await self._more():
            pass
        body, self._buffer = self._buffer, b""
        return status, head, body.decode()

    async def frame(self) -> tuple[int, bytes]:
        """Opcode and payload of the next frame, which must be whole. Raises `EOFError` at the end."""
        first, second = await self._exactly(2)
        size = second & 0x7F
        if size == 126:
            size = int.from_bytes(await self._exactly(2), "big")
        elif size == 127:
            size = int.from_bytes(await self._exactly(8), "big")
        assert first & 0x80, "the server never fragments"
        assert not second & 0x80, "the server never masks"
        return first & 0x0F, await self._exactly(size)

    async def message(self) -> dict[str, Any]:
        """The next message, decoded as JSON or MessagePack."""
        opcode, payload = await self.frame()
        match opcode:
            case 1:
                return msgspec.json.decode(payload)
            case 2:
                return msgspec.msgpack.decode(payload)
            case _:
                raise AssertionError(f"a frame of kind {opcode} with {payload!r}")

    async def close_code(self) -> int:
        """Read to the end; the code of the close frame on the way. Raises `EOFError` when there was none."""
        while True:
            opcode, payload = await self.frame()
            if opcode == CLOSE:
                break
        assert not await self._more(), "something came behind the close frame"
        return int.from_bytes(payload[:2], "big")

    async def drain(self) -> None:
        """Say that no more comes, and read to the end."""
        assert isinstance(self.stream, trio.SocketStream)
        await self.stream.send_eof()
        while await self._more():
            pass

    async def aclose(self) -> None:
        await self.stream.aclose()

    async def _more(self) -> bool:
        try:
            data = await self.stream.receive_some(65_536)
        except trio.BrokenResourceError:
            return False
        self._buffer += data
        return bool(data)

    async def _until(self, mark: bytes) -> bytes:
        while mark not in self._buffer:
            if not await self._more():
                raise EOFError
        found, _, self._buffer = self._buffer.partition(mark)
        return found

    async def _exactly(self, size: int) -> bytes:
        parts = [self._buffer]
        have = len(self._buffer)
        while have < size:
            try:
                data = bytes(await self.stream.receive_some(65_536))
            except trio.BrokenResourceError:
                raise EOFError from None
            if not data:
                raise EOFError
            parts.append(data)
            have += len(data)
        whole = b"".join(parts)
        self._buffer = whole[size:]
        return whole[:size]


async def raw_connection(served: Served) -> RawPeer:
    """A connection that has said nothing yet."""
    peer = RawPeer(await trio.open_tcp_stream("127.0.0.1", served.port))
    served.peers.append(peer)
    return peer


async def raw_websocket(served: Served, *, early: bytes = b"", subprotocols: Sequence[str] = (), **headers: Any) -> RawPeer:
    """A connection after its WebSocket handshake; `early` is sent together with it."""
    peer = await raw_connection(served)
    offered = {"Sec_WebSocket_Protocol": ", ".join(subprotocols)} if subprotocols else {}
    await peer.send(upgrade_request(**{**offered, **headers}) + early)
    status, _ = await peer.head()
    assert status == 101
    return peer
