"""The socket under a client's WebSocket, observed.

Rules:
- It changes nothing about what is sent and received. It remembers when bytes last moved, what the handshake began with, and
  whether the end was seen, which the WebSocket library keeps to itself.
"""

from __future__ import annotations

import trio

CHUNK = 64 * 1024
"""Bytes written or read at a time; each one of a longer message counts as a sign of life."""


class WatchedStream(trio.abc.Stream):
    """The socket, noticing when bytes last moved, what came first, and when the end was seen."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self.moved = trio.current_time()
        self.ended = trio.Event()
        self.head: bytearray | None = bytearray()
        """What has arrived, until the handshake is over; it explains one that failed."""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        while len(view) > CHUNK:
            await self._stream.send_all(view[:CHUNK])
            view = view[CHUNK:]
            self.moved = trio.current_time()
        await self._stream.send_all(view)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        try:
            data = await self._stream.receive_some(max_bytes)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.ended.set()
            raise
        if not data:
            self.ended.set()
        if self.head is not None and len(self.head) < CHUNK:
            self.head += data
        self.moved = trio.current_time()
        return data

    async def aclose(self) -> None:
        self.ended.set()
        await self._stream.aclose()
