"""The other end of a client's connection, played by a test: what was asked, and what is answered, one by one.

Rules:
- It speaks through the real `ServerEnd`, over the memory transport's server half or a real server-side WebSocket.
- Nothing happens by itself: a test receives each message and sends each answer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

import outcome
import trio
import trio_websocket

from steerway.actors.client import Background, Client, MemoryPeer, MemoryTransport, memory_pair
from steerway.protocol.codec import MSGPACK, Codec
from steerway.protocol.rpc import Notification, Reply, Request, ServerEnd
from steerway.protocol.values import Event, EventId, SessionId, TextDelta, encode_event, encode_event_json
from steerway.protocol.values.errors import DeclaredError
from steerway.protocol.values.ids import MessageId, PartId

T = TypeVar("T")

SESSION = SessionId("ses_1")
OPENED = {"subscription": 1, "generation": "gen_1", "head": 0}


class FarEnd:
    """One connection. `request` and `notification` insist on what comes next."""

    def __init__(self, codec: Codec, receive: Callable[[], Awaitable[bytes]], send: Callable[[bytes], Awaitable[None]]) -> None:
        self.codec = codec
        self.send = send
        self.aclose: Callable[[], Awaitable[None]]
        self._receive = receive
        self._end = ServerEnd(codec, max_in_flight=1000)

    async def _next(self) -> Any:
        heard = self._end.receive(await self._receive())
        assert not isinstance(heard, Reply), heard.frame
        return heard

    async def request(self, method: str | None = None) -> Request:
        heard = await self._next()
        assert isinstance(heard, Request), heard
        assert method in (None, heard.method)
        return heard

    async def notification(self) -> Notification:
        heard = await self._next()
        assert isinstance(heard, Notification), heard
        return heard

    async def answer(self, request: Request, value: Any) -> None:
        await self.send(self._end.result(request.id, value))

    async def fail(self, request: Request, error: DeclaredError) -> None:
        await self.send(self._end.error(request.id, error))

    async def item(self, event: Event, subscription: int = 1) -> None:
        body = encode_event(event) if self.codec.binary else encode_event_json(event)
        await self.send(self.codec.item_prefix(subscription) + body + self.codec.item_suffix)

    async def end(self, error: DeclaredError | None = None, subscription: int = 1) -> None:
        await self.send(self._end.end(subscription, error))

    async def open(self, **fields: Any) -> Request:
        """Answer the next request as the opening of a stream; the request."""
        request = await self.request()
        await self.answer(request, {**OPENED, **fields})
        return request


def far_end_of(peer: MemoryPeer) -> FarEnd:
    """The far end on the server's half of a memory pair."""

    async def send(payload: bytes) -> None:
        assert peer.try_send(peer.frame(payload)) >= 0

    far = FarEnd(peer.codec, peer.receive, send)
    far.aclose = peer.aclose
    return far


def far_end_of_websocket(websocket: trio_websocket.WebSocketConnection, codec: Codec) -> FarEnd:
    """The far end on the server's side of a WebSocket."""

    async def receive() -> bytes:
        message = await websocket.get_message()
        assert isinstance(message, bytes) == codec.binary
        return message if isinstance(message, bytes) else message.encode()

    async def send(payload: bytes) -> None:
        await websocket.send_message(payload if codec.binary else payload.decode())

    far = FarEnd(codec, receive, send)
    far.aclose = websocket.aclose
    return far


@asynccontextmanager
async def client_in_memory(codec: Codec = MSGPACK) -> AsyncGenerator[tuple[Client, FarEnd]]:
    """A client and its far end in one process."""
    near, peer = memory_pair(codec)
    async with Background() as nursery:
        client = Client(near, codec, nursery)
        try:
            yield client, far_end_of(peer)
        finally:
            await client.aclose()


class MemoryServer:
    """An opener that makes a far end for each connection; `refusals` are raised first, one per attempt."""

    def __init__(self, *refusals: Exception) -> None:
        self.opened: list[float] = []
        """Times of all attempts."""
        self._refusals = list(refusals)
        self._give, self._take = trio.open_memory_channel[FarEnd](100)

    async def __call__(self, nursery: trio.Nursery) -> MemoryTransport:
        self.opened.append(trio.current_time())
        if self._refusals:
            raise self._refusals.pop(0)
        near, peer = memory_pair()
        self._give.send_nowait(far_end_of(peer))
        return near

    async def accept(self) -> FarEnd:
        return await self._take.receive()


class Asked(Generic[T]):
    """A call that runs in a task of its own."""

    def __init__(self, nursery: trio.Nursery, call: Callable[[], Awaitable[T]]) -> None:
        self.scope = trio.CancelScope()
        self.done = trio.Event()
        self._call = call
        nursery.start_soon(self._run)

    async def _run(self) -> None:
        try:
            with self.scope:
                self._outcome = await outcome.acapture(self._await)
        finally:
            self.done.set()

    async def _await(self) -> T:
        return await self._call()

    async def result(self) -> T:
        await self.done.wait()
        return self._outcome.unwrap()


def delta(offset: int, text: str = "x") -> Event:
    """A live event that can be told from others by its offset."""
    return Event(
        type=TextDelta.type,
        created=0,
        session_id=SESSION,
        data=TextDelta(assistant_message_id=MessageId("msg_1"), part_id=PartId("prt_1"), offset=offset, delta=text),
    )


def durable(seq: int, data: Any, kind: str | None = None) -> Event:
    """A durable event."""
    return Event(type=kind or data.type, created=0, id=EventId(f"evt_{seq}"), session_id=SESSION, seq=seq, version=1, data=data)
