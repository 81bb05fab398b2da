"""The transport inside one process: the same frames as on a socket, in two byte backlogs (ruling A15).

Rules:
- The client's half is a `Transport`; the server's half is at once the connection's transport and its way out, as the gateway
  and the feed describe them, without knowing either.
- Neither half ever waits to send. What was queued before the other half closed is still delivered.
- What waits for the client is bounded as on a socket (ruling D4).
"""

from __future__ import annotations

import trio

from ...protocol.codec import MSGPACK, Codec
from ...protocol.values.errors import ClientError
from .backlog import Backlog
from .transport import HIGH_WATER

LOW_WATER = 64 * 1024
"""Queued bytes below which the server's half counts as drained."""
MAX_UNSENT = 32 * 1024 * 1024
"""Bytes that may wait for a client."""


class MemoryTransport:
    """The client's half."""

    def __init__(self, codec: Codec, outgoing: Backlog, incoming: Backlog, peer: MemoryPeer) -> None:
        self.codec = codec
        self._outgoing = outgoing
        self._incoming = incoming
        self._peer = peer

    def send(self, frame: bytes) -> None:
        """Queue a frame for the server."""
        if not self._outgoing.append(frame):
            if self._outgoing.closed:
                raise self._peer.ending()
            raise ClientError("transport", "The runtime does not take up what this client sends; the backlog is full.")

    async def wait_writable(self) -> None:
        """Return when the server has taken up enough of what was sent before."""
        await self._outgoing.wait_below(HIGH_WATER)

    async def receive(self) -> bytes:
        """The server's next frame."""
        try:
            return await self._incoming.take()
        except trio.EndOfChannel:
            raise self._peer.ending() from None

    async def aclose(self) -> None:
        """End both directions; the server still receives what was sent. Never waits."""
        self._outgoing.close(discard=False)
        self._incoming.close(discard=True)


class MemoryPeer:
    """The server's half: whole frames in, framed bytes out."""

    def __init__(self, codec: Codec, outgoing: Backlog, incoming: Backlog, ended: type[Exception]) -> None:
        self.codec = codec
        self.framing = "memory"
        self.joinable = False
        """Several frames given to `try_send` as one piece would be one frame."""
        self._outgoing = outgoing
        self._incoming = incoming
        self._ended = ended
        self._reason = ""

    @property
    def outbound(self) -> MemoryPeer:
        """This half is its own way out."""
        return self

    @property
    def backlog(self) -> int:
        """Bytes queued for the client and not taken up; none when no more can be."""
        return 0 if self._outgoing.closed else self._outgoing.size

    def frame(self, payload: bytes) -> bytes:
        """A message needs no frame here."""
        return payload

    def try_send(self, framed: bytes, frames: int = 1) -> int:
        """Queue one frame; how many bytes are queued now, or -1 when the client is gone or has no room. Never waits."""
        if frames != 1:
            raise ValueError("The memory transport takes one frame at a time.")
        return self._outgoing.size if self._outgoing.append(framed) else -1

    async def wait_drained(self) -> None:
        """Return when little is queued, or when the client is gone."""
        await self._outgoing.wait_below(LOW_WATER)

    async def receive(self) -> bytes:
        """The client's next frame; raises the `ended` error of `memory_pair` when it has closed."""
        try:
            return await self._incoming.take()
        except trio.EndOfChannel:
            raise self._ended("The client closed the connection.") from None

    async def aclose(self, code: int = 1000, reason: str = "") -> None:
        """End both directions; the client still receives what was queued. Never waits. `code` means nothing here."""
        self._reason = self._reason or reason
        self._outgoing.close(discard=False)
        self._incoming.close(discard=True)

    def ending(self) -> ClientError:
        """Why the client's half has come to its end, for that half."""
        return ClientError("closed", f"The runtime closed the connection{f': {self._reason}' if self._reason else ''}.")


def memory_pair(
    codec: Codec = MSGPACK, *, ended: type[Exception] = trio.EndOfChannel, max_unsent: int = MAX_UNSENT
) -> tuple[MemoryTransport, MemoryPeer]:
    """Both halves of one connection. `ended` is what the server's half raises from `receive` at the end.

    `max_unsent` is how many bytes may wait for the client.
    """
    to_server, to_client = Backlog(), Backlog(max_unsent)
    peer = MemoryPeer(codec, to_client, to_server, ended)
    return MemoryTransport(codec, to_server, to_client, peer), peer
