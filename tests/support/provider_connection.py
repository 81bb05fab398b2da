"""One HTTP/1.1 connection of the scripted provider: reads requests, plays answers, notices a client that leaves.

Rules:
- h11 does the protocol; this module moves bytes and time. It knows neither scripts nor wire shapes.
- While an answer is played the socket is read too, so that a client's disconnect ends the playing at once.
- All that was scripted before a wait or a cut has been handed to the kernel when the wait or the cut begins.
"""

import socket
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

import h11
import trio

from support.answers import Answer, Cut, CutHow, Delay, Hold, Step

_READ_SIZE = 65_536


class Playing(NamedTuple):
    """An answer ready to be played: its body's bytes with the steps in time, and its length unless it is chunked."""

    answer: Answer
    steps: Iterator[bytes | Step]
    length: int | None = None


class _ConnectionCut(Exception):
    """The script has closed the connection."""


class Connection:
    """Serves one accepted socket; `handle` finds the answer to a request and must not block."""

    def __init__(
        self,
        stream: trio.SocketStream,
        handle: Callable[[h11.Request, bytes], Playing],
        malformed: Callable[[str], None],
    ) -> None:
        self._stream = stream
        self._handle = handle
        self._malformed = malformed
        self._http = h11.Connection(h11.SERVER)
        self._unsent = bytearray()

    async def run(self) -> None:
        """Answer request after request until the client leaves, a cut, or an answer that says close."""
        try:
            while (incoming := await self._read_request()) is not None:
                await self._play(self._handle(*incoming))
                if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                    return
                self._http.start_next_cycle()
        except h11.RemoteProtocolError as error:
            self._malformed(str(error))
            await self._refuse(error.error_status_hint)
        except (trio.BrokenResourceError, _ConnectionCut):
            pass  # who closed it knows

    async def _read_request(self) -> tuple[h11.Request, bytes] | None:
        head: h11.Request | None = None
        body = bytearray()
        while True:
            match self._http.next_event():
                case h11.Request() as head:
                    pass
                case h11.Data(data=data):
                    body += data
                case h11.EndOfMessage() if head is not None:
                    return head, bytes(body)
                case h11.NEED_DATA:
                    received = await self._stream.receive_some(_READ_SIZE)
                    if not received:
                        return None
                    self._http.receive_data(received)
                case other:
                    raise RuntimeError(f"h11 gave {other!r} to a server that reads a request")

    async def _refuse(self, status: int) -> None:
        if self._http.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            headers = [("Content-Length", "0"), ("Connection", "close")]
            self._buffer(h11.Response(status_code=status, headers=headers))
            self._buffer(h11.EndOfMessage())
            try:
                await self._flush()
            except trio.BrokenResourceError:
                pass  # it does not want to hear it

    async def _play(self, playing: Playing) -> None:
        answer = playing.answer
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, answer, nursery.cancel_scope)
            try:
                await self._send(playing)
                answer.finished.set()
            except _ConnectionCut:
                answer.finished.set()
            except trio.BrokenResourceError:
                answer.disconnected.set()
            nursery.cancel_scope.cancel()

    async def _watch(self, answer: Answer, playing: trio.CancelScope) -> None:
        """Read on while an answer is played; the end of the client's bytes ends the playing."""
        try:
            while received := await self._stream.receive_some(_READ_SIZE):
                self._http.receive_data(received)
        except trio.BrokenResourceError:
            pass  # reset by the client
        except trio.ClosedResourceError:
            return  # cut by the script
        # A client in another process may have read the last byte and left before the writer's task runs again.
        written = self._http.our_state in {h11.DONE, h11.MUST_CLOSE}
        (answer.finished if written else answer.disconnected).set()
        playing.cancel()

    async def _send(self, playing: Playing) -> None:
        options = playing.answer.options
        for step in options.get("before", ()):
            await self._step(step)
        await self._head(playing)
        in_one_piece = options.get("one_piece", False)
        left = options.get("cut_at")
        for step in playing.steps:
            if not isinstance(step, bytes):
                await self._step(step)
                continue
            data = step[:left]
            size = options.get("piece_bytes") or max(len(data), 1)
            for start in range(0, len(data), size):
                self._buffer(h11.Data(data=data[start : start + size]))
                if not in_one_piece:
                    await self._flush()
            if left is not None:
                left -= len(data)
                if left == 0:
                    await self._step(Cut(options.get("cut_how", "reset")))
        self._buffer(h11.EndOfMessage())
        await self._flush()

    async def _head(self, playing: Playing) -> None:
        answer, options = playing.answer, playing.answer.options
        headers = {"content-type": answer.content_type}
        if playing.length is None:
            headers["transfer-encoding"] = "chunked"
        else:
            headers["content-length"] = str(playing.length)
        if options.get("close"):
            headers["connection"] = "close"
        headers |= options.get("headers", {})
        self._buffer(h11.Response(status_code=answer.status, headers=list(headers.items())))
        if pace := options.get("head_pace"):
            lines = bytes(self._unsent).splitlines(keepends=True)
            self._unsent.clear()
            for line in lines:
                self._unsent += line
                await self._flush()
                await trio.sleep(pace)
        elif not options.get("one_piece"):
            await self._flush()

    async def _step(self, step: Step) -> None:
        await self._flush()
        match step:
            case Hold(event=event, reached=reached):
                reached.set()
                await event.wait()
            case Delay(seconds):
                await trio.sleep(seconds)
            case Cut(how):
                await self._cut(how)

    async def _cut(self, how: CutHow) -> None:
        if how == "reset":
            self._stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await self._stream.aclose()
        raise _ConnectionCut

    def _buffer(self, event: h11.Response | h11.Data | h11.EndOfMessage) -> None:
        self._unsent += self._http.send(event) or b""

    async def _flush(self) -> None:
        if self._unsent:
            data = bytes(self._unsent)
            self._unsent.clear()
            await self._stream.send_all(data)
