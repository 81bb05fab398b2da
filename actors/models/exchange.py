"""HTTP/1.1 on one connection to a provider: a request leaves, its answer is read, and the connection rests for the next.

Rules:
- h11 is the protocol: it judges what is sent and what comes. Chunks that come together reach it joined.
- A small request is one write. While a large one is sent, the peer is listened to: what it answers before it has everything
  counts, also where it then closes. So does an answer that is there when writing fails.
- No request is sent a second time: whether a peer that says nothing has done its work, nobody can tell here.
- A connection is used again only if both sides ended their message, everything was sent and nothing stands behind the answer.
- Closing never waits, and may happen at any time, also when reading or writing was cancelled.
- Failures are httpx2's; their texts say what happened and repeat nothing that the peer said.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Final

import h11
import httpx2
import trio

from .chunks import ChunkJoiner

READ_SIZE: Final = 64 * 1024
SMALL_BODY: Final = 64 * 1024
"""Bytes of a body that is copied to leave in one write with its head: what a socket takes without waiting."""
PORTION: Final = 256 * 1024
"""Bytes of a larger body that are handed over at a time: what TLS makes copies of."""
MAX_INCOMPLETE: Final = 100 * 1024
"""Bytes of a head, a trailer or the size line of a chunk."""
MAX_EARLY: Final = 64 * 1024
"""Bytes that are kept of a refusal which comes while its request is still being sent."""
EARLY_SECONDS: Final = 1.0
"""How long the rest of such a refusal is waited for."""

_FAILURES: Final = (h11.ProtocolError, trio.BrokenResourceError, trio.ClosedResourceError)
_ENDED: Final = (h11.DONE, h11.MUST_CLOSE, h11.CLOSED)

Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]


class Connection:
    """One connection, plain or under TLS, for one exchange at a time.

    What waits here may be cancelled; the connection then has to be closed, which `rest` sees too.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._socket = (stream if isinstance(stream, trio.SocketStream) else stream.transport_stream).socket
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_INCOMPLETE)
        self._joiner = ChunkJoiner()
        self._sent = False
        self._early: h11.Response | None = None
        self._kept: deque[bytes] = deque()
        """Pieces of a body that came while its request was still being sent."""
        self._rests_since = 0.0

    async def ask(self, method: bytes, target: bytes, headers: list[tuple[bytes, bytes]], body: bytes) -> h11.Response:
        """Send a request and wait for the head of its answer.

        Raises httpx2.LocalProtocolError before anything is sent if this is no valid request, httpx2.RemoteProtocolError if
        the answer is none, or is missing, httpx2.ReadError if the connection breaks.
        """
        http = self._http
        self._sent, self._early = False, None
        self._joiner.begin()
        try:
            head = http.send(h11.Request(method=method, target=target, headers=headers))
            # With a length, h11 hands the body on as it is; only what asks for chunks is written anew.
            parts = [head, *((body and http.send_with_data_passthrough(h11.Data(data=body))) or ())]
            parts += http.send_with_data_passthrough(h11.EndOfMessage()) or ()
            if len(body) <= SMALL_BODY:
                await self._send([b"".join(parts)])
            else:
                await self._send_and_listen(parts)
            while self._early is None:
                self._early = self._head()
                if self._early is None:
                    await self._receive()
            return self._early
        except _FAILURES as error:
            raise _named(error) from error

    async def read(self) -> bytes:
        """The next piece of the answer's body; empty at its end, then again and again.

        Raises as `ask`.
        """
        if self._kept:
            return self._kept.popleft()
        try:
            while (piece := self._piece()) is None:
                await self._receive()
            return piece
        except _FAILURES as error:
            raise _named(error) from error

    def rest(self) -> bool:
        """Make ready for the next request: whether that can be. If not, the connection is of no more use."""
        http = self._http
        if not self._sent or self._kept:
            return False
        try:
            if http.their_state is h11.SEND_BODY and self._piece() != b"":
                return False
            if http.our_state is not h11.DONE or http.their_state is not h11.DONE or http.trailing_data != (b"", False):
                return False
            http.start_next_cycle()
        except h11.RemoteProtocolError:
            return False
        self._rests_since = time.monotonic()
        return True

    def rested(self, seconds: float) -> bool:
        """Whether it has rested for longer than this."""
        return time.monotonic() > self._rests_since + seconds

    def left(self) -> bool:
        """Whether the peer closed the connection, or said something, while it rested."""
        return self._socket.is_readable()

    def close(self) -> None:
        """Close it at once. Closing again does nothing."""
        self._socket.close()

    async def _send(self, parts: list[bytes]) -> None:
        """Send all of it, unless the peer does not take it any more: it may have answered before."""
        try:
            for part in parts:
                rest = memoryview(part)
                while rest:
                    await self._stream.send_all(rest[:PORTION])
                    rest = rest[PORTION:]
            self._sent = True
        except trio.BrokenResourceError:
            pass

    async def _send_and_listen(self, parts: list[bytes]) -> None:
        """The same with an open ear. Ends when everything is sent, when the answer is a refusal, or with the connection."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._listen, nursery.cancel_scope)
            await self._send(parts)
            if self._sent:
                nursery.cancel_scope.cancel()

    async def _listen(self, sending: trio.CancelScope) -> None:
        """Wait for an answer that comes early; a refusal is read here, because TLS cannot be read once a write is cut."""
        try:
            while (early := self._head()) is None:
                await self._receive()
            self._early = early
            if early.status_code < 300:
                return
            with trio.move_on_after(EARLY_SECONDS):
                size = 0
                while size < MAX_EARLY:
                    while (piece := self._piece()) is None:
                        await self._receive()
                    if not piece:
                        break
                    self._kept.append(piece)
                    size += len(piece)
        except (trio.BrokenResourceError, h11.RemoteProtocolError, httpx2.RemoteProtocolError):
            pass  # who reads next learns it
        sending.cancel()

    async def _receive(self) -> None:
        """Wait for bytes and hand them to h11."""
        data = await self._stream.receive_some(READ_SIZE)
        if joined := self._joiner.feed(bytes(data)):
            self._http.receive_data(joined)
        if not data:
            if self._http.their_state is h11.SEND_RESPONSE:
                raise httpx2.RemoteProtocolError("The connection was closed without an answer.")
            self._http.receive_data(b"")

    def _head(self) -> h11.Response | None:
        """The head of the answer that counts, if it is there."""
        while (event := self._http.next_event()) is not h11.NEED_DATA:
            if isinstance(event, h11.Response):
                return event
        return None

    def _piece(self) -> bytes | None:
        """The next piece of the body if it is there, empty at the end."""
        if self._http.their_state in _ENDED:
            return b""
        event = self._http.next_event()
        if isinstance(event, h11.Data):
            return bytes(event.data)
        return None if event is h11.NEED_DATA else b""


def _named(error: Exception) -> httpx2.TransportError:
    """A failure as the HTTP client has it."""
    match error:
        case h11.LocalProtocolError():
            return httpx2.LocalProtocolError("This is no valid request.")
        case h11.RemoteProtocolError():
            return httpx2.RemoteProtocolError("This is no valid answer.")
        case _:
            return httpx2.ReadError("The connection broke.")
