"""The byte stream under a WebSocket, which owns everything that leaves the socket.

Rules (known traps of the house; ruling B7):
- What is sent is sent or queued whole, without awaiting, so a cancelled send can no longer cut a frame in half. One task,
  `flush`, empties the queue; it is idle unless the socket was full.
- Nobody's `await` for room is needed to keep the queue bounded: beyond `max_backlog`, or when the peer accepts nothing for
  `STALL_SECONDS`, the stream is given up with 1013 (ruling D4), and what had not begun to leave is dropped.
- After a close frame no data frame leaves. `aclose` says goodbye: it sends the close frame that has not passed yet,
  shuts down writing, and reads and drops for a moment, so that the frame arrives instead of a reset.
- TLS is an `SSLObject` with memory buffers in front of the queue, so that the same holds for it.
- What comes in is handed over in portions of so many frames, so that no peer can hold the loop up with tiny ones.
- The stream knows trio and the frame header, and nothing else of the gateway.

It is longer than most modules because one object must decide about every byte: queue, encryption and goodbye share its state.
"""

from __future__ import annotations

import socket
import ssl
from collections import deque
from collections.abc import Callable

import trio

from ...protocol.codec import JSON, Codec
from .frames import (
    CLOSE_GOING_AWAY,
    CLOSE_TOO_BIG,
    CLOSE_TRY_LATER,
    OPCODE_BINARY,
    OPCODE_CLOSE,
    OPCODE_TEXT,
    close_frame,
    server_frame,
)
from .portions import Portions

HIGH_WATER = 256 * 1024
"""Bytes queued from which `send_all` waits for room with a data frame."""
LOW_WATER = 64 * 1024
"""Bytes queued below which `wait_drained` returns."""
MAX_BACKLOG = 32 * 1024 * 1024
STALL_SECONDS = 60.0
GOODBYE_SECONDS = 2.0
"""For what is queued and the close frame to leave."""
LINGER_SECONDS = 1.0
"""For the peer to read it and close its side."""

_RECEIVE_BYTES = 64 * 1024
_BUFFERS_PER_CALL = 64
_UNSENDABLE_CODES = frozenset((1004, 1005, 1006, 1015))
_NO_BUFFER = ssl.MemoryBIO()


class Stream(trio.abc.Stream):
    """A connected, non-blocking stdlib socket that this object now owns, as a trio stream.

    The feed sends through it too: `frame` makes bytes that serve every connection of the same `framing`, several of them
    may be joined (`joinable`), and `try_send` takes them. The owner must run `flush` for as long as the stream lives.
    """

    joinable = True

    def __init__(
        self,
        sock: socket.socket,
        *,
        ssl_context: ssl.SSLContext | None = None,
        max_backlog: int = MAX_BACKLOG,
    ) -> None:
        self.codec: Codec = JSON
        self.framing = "websocket-text"
        self.received = 0
        """Bytes that ever came in; it tells a living peer from a silent one."""
        self._allowance: int | None = None
        self._sock = sock
        self._max_backlog = max_backlog
        self._queue: deque[bytes | memoryview] = deque()
        self._backlog = 0
        self._broken = False  # nothing can leave any more
        self._close_passed = False  # a close frame was queued: no data frame may follow
        self._ending = False  # aclose has begun
        self._ended = trio.Event()
        self._wake = trio.Event()
        self._drained = trio.Event()
        self._head = b""  # replayed first
        self._early = b""  # what the peer sent behind its head, or beyond a portion, and nobody has taken yet
        self._portions: Portions | None = None
        self._gate: trio.Event | None = None
        self._close_code: Callable[[], int | None] | None = None
        self._close: tuple[int, str] | None = None
        self._given_up = False
        self._tls: ssl.SSLObject | None = None
        self._incoming = self._outgoing = _NO_BUFFER
        if ssl_context is not None:
            self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            self._tls = ssl_context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    # --- the way out -----------------------------------------------------------------------------------------------

    def frame(self, payload: bytes) -> bytes:
        """The payload as one whole data frame of this framing."""
        return server_frame(payload, OPCODE_BINARY if self.codec.binary else OPCODE_TEXT)

    def try_send(self, framed: bytes, frames: int = 1) -> int:
        """Send or queue whole frames. Never waits.

        Returns the bytes now queued (0: all have left), or -1 when the connection is gone or closing; then nothing was
        taken.
        """
        if self._broken or self._close_passed or self._ending:
            return -1
        if self._tls is None and not self._queue:
            # What nearly every frame needs, without a call between: the feed does this for each subscriber and event.
            try:
                sent = self._sock.send(framed)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError:
                self._break()
                return -1
            if sent == len(framed):
                return 0
            self._queue_rest(framed, sent)
        else:
            self._transmit(framed)
        if self._backlog > self._max_backlog:
            self._give_up(f"More than {self._max_backlog} bytes are unsent.")
        return -1 if self._broken or self._close_passed else self._backlog

    @property
    def backlog(self) -> int:
        """Bytes queued."""
        return self._backlog

    async def wait_drained(self) -> None:
        """Wait until little is queued or the connection is gone. Cancelling it loses nothing."""
        while self._backlog > LOW_WATER and not self._broken:
            await self._drained.wait()

    async def flush(self) -> None:
        """Send what is queued, for as long as the stream lives. Returns when nothing can leave any more.

        Raises `trio.BrokenResourceError` when the stream was given up for the peer's slowness; `close_reason` says so.
        Cancelling it loses nothing: `aclose` sends the rest.
        """
        while not self._ending:
            await self._wake.wait()
            if self._given_up:
                raise trio.BrokenResourceError("The peer is too slow.")
            if self._broken or self._ending:
                return
            with trio.move_on_after(STALL_SECONDS) as stall:
                try:
                    await trio.lowlevel.wait_writable(self._sock)
                except trio.ClosedResourceError:
                    return
            if stall.cancelled_caught:
                self._give_up(f"Nothing was accepted for {STALL_SECONDS:.0f} s.")
                continue
            self._push()
            if not self._queue and not self._broken:
                self._wake = trio.Event()

    def _transmit(self, data: bytes) -> None:
        """Bytes for the peer, through TLS where there is one, onto the socket or into the queue."""
        if self._tls is None:
            self._put(data)
            return
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[self._tls.write(rest) :]
        except ssl.SSLError:
            self._break()
        self._put(self._outgoing.read())

    def _put(self, data: bytes) -> None:
        if self._broken or not data:
            return
        sent = 0
        if not self._queue:
            try:
                sent = self._sock.send(data)
            except (BlockingIOError, InterruptedError):
                pass
            except OSError:
                self._break()
                return
            if sent == len(data):
                return
        self._queue_rest(data, sent)

    def _queue_rest(self, data: bytes, sent: int) -> None:
        buffer = memoryview(data)[sent:] if sent else data
        self._queue.append(buffer)
        self._backlog += len(buffer)
        self._wake.set()

    def _push(self) -> None:
        """Give the socket as much of the queue as it takes now."""
        queue = self._queue
        try:
            sent = self._sock.sendmsg([queue[index] for index in range(min(len(queue), _BUFFERS_PER_CALL))])
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._break()
            return
        self._backlog -= sent
        while sent:
            head = queue[0]
            if sent >= len(head):
                sent -= len(head)
                queue.popleft()
            else:
                queue[0] = memoryview(head)[sent:]
                sent = 0
        if self._backlog <= LOW_WATER:
            self._tell_drained()

    def _break(self) -> None:
        self._broken = True
        self._queue.clear()
        self._backlog = 0
        self._wake.set()
        self._tell_drained()

    def _give_up(self, reason: str) -> None:
        """The peer is too slow: drop what has not begun to leave, and let `flush` tell the owner."""
        self._given_up = True
        self.close_with(CLOSE_TRY_LATER, reason)
        if self._tls is None:
            # A partly sent buffer must be finished; encrypted bytes depend on all before them.
            kept = [self._queue[0]] if self._queue and isinstance(self._queue[0], memoryview) else []
            self._queue = deque(kept)
            self._backlog = sum(map(len, kept))
        self._say_close()
        self._wake.set()
        self._tell_drained()

    def _tell_drained(self) -> None:
        self._drained.set()
        self._drained = trio.Event()

    # --- what stands above it ----------------------------------------------------------------------------------------

    def replay(self, first: bytes, then: bytes) -> None:
        """Give `first` to the next reader, and `then` and all later bytes only after `speak` (ruling B7).

        A peer may send its first messages together with its handshake: they must not be seen before the handshake is answered.
        """
        self._head, self._early = first, then
        self._gate = trio.Event()

    def speak(self, codec: Codec, close_code: Callable[[], int | None]) -> None:
        """From now on this is a WebSocket. `close_code` is what the library above found wrong, if anything."""
        self.codec = codec
        self.framing = "websocket-binary" if codec.binary else "websocket-text"
        self._close_code = close_code
        self._portions = Portions()
        if self._gate is not None:
            self._gate.set()

    def allow(self, more: int | None) -> None:
        """Take at most `more` further bytes from the peer, or any number again. Beyond that reading fails and 1009 is said."""
        self._allowance = None if more is None else self.received + more

    def close_with(self, code: int, reason: str) -> None:
        """What `aclose` is to say, unless something was said before."""
        if self._close is None:
            self._close = (code, reason)

    @property
    def close_reason(self) -> tuple[int, str] | None:
        """What `close_with` was told first."""
        return self._close

    async def handshake(self) -> None:
        """The TLS handshake, where there is TLS. Raises `trio.BrokenResourceError` when it fails."""
        if self._tls is None:
            await trio.lowlevel.checkpoint()
            return
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._put(self._outgoing.read())
                raw = await self._receive_raw(_RECEIVE_BYTES)
                if not raw:
                    raise trio.BrokenResourceError("The peer left during the TLS handshake.") from None
                self._incoming.write(raw)
            except ssl.SSLError as error:
                self._put(self._outgoing.read())
                raise trio.BrokenResourceError(f"The TLS handshake failed: {error}") from error
            else:
                self._put(self._outgoing.read())
                return

    # --- trio.abc.Stream ---------------------------------------------------------------------------------------------

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Take whole frames (or a handshake) of the library above. Cancelling it never cuts them.

        Data frames wait while much is queued; control frames never do, so that pongs pass.
        """
        await trio.lowlevel.checkpoint()  # the only place where a cancel stops these bytes
        if self._broken or self._ending:
            raise trio.BrokenResourceError
        whole = bytes(data)
        if not whole or self._close_passed:
            return
        opcode = whole[0] & 0x0F
        if self._close_code is not None and opcode == OPCODE_CLOSE:
            self._close_passed = True
        self._transmit(whole)
        if self._broken:
            raise trio.BrokenResourceError
        if self._backlog > self._max_backlog:
            self._give_up(f"More than {self._max_backlog} bytes are unsent.")
        while opcode < OPCODE_CLOSE and self._backlog > HIGH_WATER and not self._broken:
            await self._drained.wait()

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()
        await self.wait_drained()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Bytes of the peer; empty at their end. Raises `BrokenResourceError`, or `ClosedResourceError` after `aclose`."""
        if self._head:
            await trio.lowlevel.checkpoint()
            data, self._head = self._head, b""
            return data
        if self._gate is not None:
            await self._gate.wait()
            self._gate = None
        if self._early:
            await trio.lowlevel.checkpoint()
            data, self._early = self._early, b""
            return self._portion(data)
        limit = max_bytes or _RECEIVE_BYTES
        data = await (self._receive_raw(limit) if self._tls is None else self._receive_tls(self._tls, limit))
        self.received += len(data)
        if self._allowance is not None and self.received > self._allowance:
            self.close_with(CLOSE_TOO_BIG, "Too much was sent without the token.")
            raise trio.BrokenResourceError
        return self._portion(data)

    def _portion(self, data: bytes) -> bytes:
        if self._portions is None:
            return data
        size = self._portions.first(data)
        if size == len(data):
            return data
        self._early = data[size:]
        return data[:size]

    async def aclose(self) -> None:
        """Say goodbye and close: at most `GOODBYE_SECONDS` and `LINGER_SECONDS`, also when cancelled. Idempotent."""
        if self._ending:
            await self._ended.wait()
            return
        self._ending = True
        self._wake.set()
        try:
            trio.lowlevel.notify_closing(self._sock)  # the reader and the flusher leave; what follows is ours alone
            with trio.move_on_after(GOODBYE_SECONDS, shield=True) as goodbye:
                await self._say_goodbye()
            if not goodbye.cancelled_caught and not self._broken:
                with trio.move_on_after(LINGER_SECONDS, shield=True):
                    await self._linger()
        finally:
            self._sock.close()
            self._break()
            self._ended.set()
        await trio.lowlevel.checkpoint_if_cancelled()

    async def _receive_raw(self, limit: int) -> bytes:
        await trio.lowlevel.checkpoint_if_cancelled()
        waited = False
        while True:
            if self._ending:
                raise trio.ClosedResourceError
            try:
                data = self._sock.recv(limit)
            except (BlockingIOError, InterruptedError):
                await trio.lowlevel.wait_readable(self._sock)
                waited = True
            except OSError as error:
                self._break()
                raise trio.BrokenResourceError from error
            else:
                if not waited:
                    await trio.lowlevel.cancel_shielded_checkpoint()
                return data

    async def _receive_tls(self, tls: ssl.SSLObject, limit: int) -> bytes:
        while True:
            try:
                data = tls.read(limit)
            except ssl.SSLWantReadError:
                self._put(self._outgoing.read())
                raw = await self._receive_raw(_RECEIVE_BYTES)
                if raw:
                    self._incoming.write(raw)
                else:
                    self._incoming.write_eof()
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                await trio.lowlevel.checkpoint()
                return b""
            except ssl.SSLError as error:
                self._break()
                raise trio.BrokenResourceError from error
            else:
                self._put(self._outgoing.read())
                await trio.lowlevel.cancel_shielded_checkpoint()
                return data

    def _say_close(self) -> None:
        """Queue the close frame, unless one has passed or this never was a WebSocket."""
        if self._close_code is None or self._close_passed or self._broken:
            return
        found = self._close_code()
        code, reason = self._close or (found or CLOSE_GOING_AWAY, "")
        if code in _UNSENDABLE_CODES:
            return
        self._close_passed = True
        self._transmit(close_frame(code, reason))

    async def _say_goodbye(self) -> None:
        self._say_close()
        if self._tls is not None and not self._broken:
            try:
                self._tls.unwrap()
            except ssl.SSLError:
                pass  # it wants the peer's answer, which nobody waits for
            self._put(self._outgoing.read())
        while self._queue:
            await trio.lowlevel.wait_writable(self._sock)
            self._push()

    async def _linger(self) -> None:
        """Tell the peer that no more comes, and drop what it still sends, so that it can read what it got."""
        try:
            self._sock.shutdown(socket.SHUT_WR)
            while True:
                try:
                    if not self._sock.recv(_RECEIVE_BYTES):
                        return
                except (BlockingIOError, InterruptedError):
                    await trio.lowlevel.wait_readable(self._sock)
                else:
                    await trio.lowlevel.checkpoint()
        except OSError:
            pass  # it has gone already
