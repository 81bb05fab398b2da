"""The WebSocket transport: trio-websocket for handshake, control frames and what comes in, our stream for what goes out.

Rules (known traps of the house; ruling B7):
- A task is always reading, so pongs and closes are seen. Messages of the wrong kind close with 1003, bad UTF-8 with 1007,
  too long ones with 1009, other faults of framing with 1002.
- A peer that shows no sign of life between pings is closed; any byte is a sign of life.
- Three tasks a connection besides the connection actor's: the library's reader, the flusher, the keepalive.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_server_stream
from wsproto.utilities import LocalProtocolError

from ...protocol.codec import MAX_MESSAGE_BYTES, Codec
from .connection import TransportClosed
from .frames import CLOSE_POLICY, CLOSE_TOO_BIG, CLOSE_UNSUPPORTED, PING_FRAME
from .head import Head, choose_codec, upgrade_head
from .limits import Limits
from .stream import Stream

RECEIVE_BUFFER_BYTES = 64 * 1024


class WebSocketTransport:
    """One peer's messages over an accepted WebSocket."""

    def __init__(self, websocket: WebSocketConnection, stream: Stream) -> None:
        self.outbound = stream
        self._websocket = websocket
        self._over = False

    async def receive(self) -> bytes:
        """The next message. Raises `TransportClosed` once the peer, the library or the kind of the message ends it."""
        try:
            message = await self._websocket.get_message()
        except ConnectionClosed:
            self._over = True
            raise TransportClosed from None
        stream = self.outbound
        match message:
            case bytes() if stream.codec.binary:
                return message
            case str() if not stream.codec.binary:
                encoded = message.encode()
                if len(encoded) <= MAX_MESSAGE_BYTES:
                    return encoded
                stream.close_with(CLOSE_TOO_BIG, f"A message is at most {MAX_MESSAGE_BYTES} bytes.")
            case bytes():
                stream.close_with(CLOSE_UNSUPPORTED, "Send text frames, or offer the MessagePack subprotocol.")
            case str():
                stream.close_with(CLOSE_UNSUPPORTED, "Send binary frames, or offer the JSON subprotocol.")
        self._over = True
        raise TransportClosed

    async def aclose(self, code: int, reason: str) -> None:
        """Close with this code, unless something else ended it before. Bounded by the stream's goodbye."""
        if not self._over:
            self.outbound.close_with(code, reason)
        await self.outbound.aclose()


async def serve_websocket(
    stream: Stream, head: Head, connect: Callable[[WebSocketTransport, Codec], Awaitable[None]], limits: Limits
) -> None:
    """Accept the upgrade that `head` asks for, run `connect` over it, and close the stream, also when cancelled.

    Raises `RefusedHeadError` before anything was accepted.
    """
    codec, subprotocol = choose_codec(head)
    stream.replay(upgrade_head(head, subprotocol), head.rest)
    try:
        async with trio.open_nursery() as connection_tasks:
            with trio.fail_after(limits.handshake_seconds):
                request = await wrap_server_stream(
                    connection_tasks, stream, max_message_size=MAX_MESSAGE_BYTES, receive_buffer_size=RECEIVE_BUFFER_BYTES
                )
                websocket = await request.accept(subprotocol=subprotocol)
            stream.speak(codec, lambda: None if websocket.closed is None else websocket.closed.code)
            connection_tasks.start_soon(stream.flush)
            connection_tasks.start_soon(_keep_alive, stream, limits, connection_tasks.cancel_scope)
            await connect(WebSocketTransport(websocket, stream), codec)
            connection_tasks.cancel_scope.cancel()
    except* (LocalProtocolError, trio.BrokenResourceError, ConnectionClosed):
        # The library answers frames that come in after its own close frame, and cannot. Or the flusher gave the peer up.
        pass


async def _keep_alive(stream: Stream, limits: Limits, connection: trio.CancelScope) -> None:
    """Ping, and cancel the connection of a peer that lets too many pings pass in silence."""
    missed = 0
    seen: int | None = None
    while missed < limits.missed_pings:
        await trio.sleep(limits.ping_seconds)
        missed = missed + 1 if stream.received == seen else 0
        seen = stream.received
        stream.try_send(PING_FRAME)
    stream.close_with(CLOSE_POLICY, "No sign of life.")
    connection.cancel()
