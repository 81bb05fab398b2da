"""The bytes under a WebSocket: frames stay whole whatever is cancelled, the queue is bounded, the goodbye arrives."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.lowlevel
import trustme
from trio.testing import MockClock, wait_all_tasks_blocked
from trio_websocket import wrap_client_stream, wrap_server_stream

from steerway.actors.gateway.frames import close_frame, server_frame
from steerway.actors.gateway.portions import MAX_FRAMES
from steerway.actors.gateway.stream import LOW_WATER, STALL_SECONDS, Stream
from steerway.actors.published import Outbound
from steerway.protocol.codec import JSON, MSGPACK
from support.gateway import CLOSE, RawPeer, client_frame

MIB = 1024 * 1024


class Pair:
    """Our stream with its flusher running, and a plain socket at the other end."""

    def __init__(self, stream: Stream, peer: RawPeer, flusher: trio.CancelScope) -> None:
        self.stream = stream
        self.peer = peer
        self.flusher = flusher


@asynccontextmanager
async def pair(*, speaking: bool = True, max_backlog: int = 32 * MIB) -> AsyncGenerator[Pair]:
    ours, theirs = socket.socketpair()
    for sock in (ours, theirs):
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
    stream = Stream(ours, max_backlog=max_backlog)
    if speaking:
        stream.speak(MSGPACK, lambda: None)
    plain = trio.SocketStream(trio.socket.from_stdlib_socket(theirs))
    flusher = trio.CancelScope()

    async def flush() -> None:
        with flusher:
            await stream.flush()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(flush)
        try:
            yield Pair(stream, RawPeer(plain), flusher)
        finally:
            await trio.aclose_forcefully(plain)
            await stream.aclose()
            nursery.cancel_scope.cancel()


async def test_it_is_what_the_feed_sends_through() -> None:
    async with pair() as ends:
        outbound: Outbound = ends.stream
        assert (outbound.framing, outbound.joinable, outbound.codec) == ("websocket-binary", True, MSGPACK)
        run = outbound.frame(b"one") + outbound.frame(b"two")
        assert outbound.try_send(run, 2) == 0
        assert [await ends.peer.frame() for _ in range(2)] == [(2, b"one"), (2, b"two")]


async def test_each_framing_has_its_own_opcode() -> None:
    async with pair() as ends:
        ends.stream.speak(JSON, lambda: None)
        assert ends.stream.framing == "websocket-text"
        assert ends.stream.frame(b"{}")[0] == 0x81


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
async def test_frames_of_every_header_length_are_read_back(size: int) -> None:
    async with pair() as ends:
        payload = bytes(size)
        ends.stream.try_send(server_frame(payload, 2))
        assert await ends.peer.frame() == (2, payload)


async def test_a_cancelled_send_leaves_the_stream_whole() -> None:
    async with pair() as ends, trio.open_nursery() as nursery:
        large = bytes(range(256)) * 32 * 1024
        with trio.CancelScope() as cut:
            nursery.start_soon(cancel_once_queued, cut, ends.stream)
            await ends.stream.send_all(ends.stream.frame(large))
        assert cut.cancelled_caught
        assert ends.stream.backlog > 0
        ends.stream.try_send(ends.stream.frame(b"the next"))
        assert await ends.peer.frame() == (2, large)
        assert await ends.peer.frame() == (2, b"the next")


async def test_a_send_that_was_cancelled_before_it_began_sends_nothing() -> None:
    async with pair() as ends:
        with trio.CancelScope() as scope:
            scope.cancel()
            await ends.stream.send_all(ends.stream.frame(b"never"))
        ends.stream.try_send(ends.stream.frame(b"only"))
        assert await ends.peer.frame() == (2, b"only")


async def test_a_cancelled_flusher_loses_nothing() -> None:
    async with pair() as ends:
        large = bytes(2 * MIB)
        ends.stream.try_send(ends.stream.frame(large))
        async with trio.open_nursery() as nursery:
            ends.flusher.cancel()
            nursery.start_soon(ends.stream.aclose)
            assert await ends.peer.frame() == (2, large)
            opcode, _ = await ends.peer.frame()
            assert opcode == CLOSE
            await ends.peer.aclose()


async def test_thousands_of_small_frames_behind_a_full_socket_arrive_in_order() -> None:
    async with pair() as ends:
        sent = [str(number).encode() * 20 for number in range(5_000)]
        for payload in sent:
            ends.stream.try_send(ends.stream.frame(payload))
        assert ends.stream.backlog > LOW_WATER
        assert [(await ends.peer.frame())[1] for _ in sent] == sent
        await ends.stream.wait_drained()
        await wait_all_tasks_blocked()
        assert ends.stream.backlog == 0


async def test_waiting_for_room_ends_when_there_is_some_and_when_the_peer_is_gone() -> None:
    async with pair() as ends:
        payload = bytes(MIB)
        ends.stream.try_send(ends.stream.frame(payload))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ends.stream.wait_drained)
            await wait_all_tasks_blocked()
            await ends.peer.frame()
        ends.stream.try_send(ends.stream.frame(payload))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ends.stream.wait_drained)
            await wait_all_tasks_blocked()
            await ends.peer.aclose()
        assert ends.stream.try_send(b"x") == -1


async def test_a_peer_that_reads_nothing_is_given_up_at_the_limit() -> None:
    async with pair(max_backlog=MIB) as ends:
        ends.flusher.cancel()
        await wait_all_tasks_blocked()
        frame = ends.stream.frame(bytes(100_000))
        while ends.stream.try_send(frame) >= 0:
            pass
        assert ends.stream.backlog < 200_000, "what had not begun to leave is dropped"
        assert ends.stream.close_reason is not None
        assert ends.stream.close_reason[0] == 1013
        with pytest.raises(trio.BrokenResourceError):
            await ends.stream.flush()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ends.stream.aclose)
            assert await ends.peer.frame() == (2, bytes(100_000)), "what had begun to leave is finished"
            assert await ends.peer.close_code() == 1013
            await ends.peer.aclose()


async def test_a_peer_that_accepts_nothing_for_a_minute_is_given_up(autojump_clock: MockClock) -> None:
    async with pair() as ends:
        ends.flusher.cancel()
        await wait_all_tasks_blocked()
        ends.stream.try_send(ends.stream.frame(bytes(MIB)))
        started = trio.current_time()
        with pytest.raises(trio.BrokenResourceError):
            await ends.stream.flush()
        assert trio.current_time() - started == pytest.approx(STALL_SECONDS, abs=1)
        assert ends.stream.close_reason is not None
        assert ends.stream.close_reason[0] == 1013


async def test_no_data_follows_a_close_frame() -> None:
    async with pair() as ends:
        await ends.stream.send_all(close_frame(1000, ""))
        assert ends.stream.try_send(ends.stream.frame(b"late")) == -1
        await ends.stream.send_all(ends.stream.frame(b"late too"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ends.stream.aclose)
            assert await ends.peer.close_code() == 1000
            await ends.peer.aclose()


async def test_closing_says_what_was_decided_first() -> None:
    async with pair() as ends:
        ends.stream.close_with(1008, "first")
        ends.stream.close_with(1001, "second")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ends.stream.aclose)
            assert await ends.peer.close_code() == 1008
            await ends.peer.aclose()


async def test_closing_what_never_spoke_sends_no_frame() -> None:
    async with pair(speaking=False) as ends, trio.open_nursery() as nursery:
        nursery.start_soon(ends.stream.aclose)
        with pytest.raises(EOFError):
            await ends.peer.frame()
        await ends.peer.aclose()


async def test_a_cancelled_close_still_says_goodbye_and_closes(autojump_clock: MockClock) -> None:
    async with pair() as ends:
        with trio.CancelScope() as scope:
            scope.cancel()
            await ends.stream.aclose()
        assert trio.current_time() < 4, "a peer that never leaves is not waited for"
        assert await ends.peer.close_code() == 1001


async def test_closing_wakes_whoever_reads() -> None:
    async with pair() as ends:

        async def read() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await ends.stream.receive_some()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await wait_all_tasks_blocked()
            nursery.start_soon(ends.stream.aclose)
            assert await ends.peer.close_code() == 1001
            await ends.peer.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await ends.stream.receive_some()


def tls_contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    authority = trustme.CA()
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(server)  # pyright: ignore[reportUnknownMemberType]
    client = ssl.create_default_context()
    authority.configure_trust(client)  # pyright: ignore[reportUnknownMemberType]
    return server, client


async def cancel_once_queued(scope: trio.CancelScope, stream: Stream) -> None:
    while not stream.backlog:
        await trio.lowlevel.checkpoint()
    scope.cancel()


@asynccontextmanager
async def accepted(server_context: ssl.SSLContext | None) -> AsyncGenerator[tuple[trio.SocketStream, Stream]]:
    """A client's socket and the stream at the server's end of it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        plain = await trio.open_tcp_stream("127.0.0.1", listener.getsockname()[1])
        sock, _ = listener.accept()
    sock.setblocking(False)
    stream = Stream(sock, ssl_context=server_context)
    try:
        yield plain, stream
    finally:
        await trio.aclose_forcefully(plain)
        await stream.aclose()


@pytest.mark.parametrize("secure", [False, True])
async def test_a_cancelled_send_under_a_websocket_leaves_it_whole(secure: bool) -> None:
    server_context, client_context = tls_contexts() if secure else (None, None)
    large = bytes(range(256)) * 48 * 1024
    async with accepted(server_context) as (plain, stream), trio.open_nursery() as nursery:

        async def serve() -> None:
            await stream.handshake()
            websocket = await (await wrap_server_stream(nursery, stream, max_message_size=64 * MIB)).accept()
            stream.speak(MSGPACK, lambda: None)
            nursery.start_soon(stream.flush)
            with trio.CancelScope() as cut:
                nursery.start_soon(cancel_once_queued, cut, stream)
                await websocket.send_message(large)
            assert cut.cancelled_caught
            await websocket.send_message(b"behind it")

        nursery.start_soon(serve)
        client = await wrap_client_stream(
            nursery,
            trio.SSLStream(plain, client_context, server_hostname="127.0.0.1") if client_context else plain,
            "127.0.0.1",
            "/",
            max_message_size=64 * MIB,
        )
        assert [await client.get_message() for _ in range(2)] == [large, b"behind it"]
        nursery.cancel_scope.cancel()


async def test_a_peer_that_does_not_trust_the_certificate_ends_the_handshake() -> None:
    server_context, _ = tls_contexts()
    async with accepted(server_context) as (plain, stream), trio.open_nursery() as nursery:

        async def distrust() -> None:
            with pytest.raises(trio.BrokenResourceError):
                await trio.SSLStream(plain, ssl.create_default_context(), server_hostname="127.0.0.1").do_handshake()
            await plain.aclose()

        nursery.start_soon(distrust)
        with pytest.raises(trio.BrokenResourceError):
            await stream.handshake()


async def test_a_flood_of_tiny_frames_is_handed_over_in_portions_and_others_have_their_turn_between() -> None:
    async with pair() as ends:
        flood = client_frame(b"", first=0x00) * 1_000
        await ends.peer.send(flood)
        turns = 0

        async def take_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await trio.lowlevel.checkpoint()

        portions: list[bytes] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(take_turns)
            while sum(map(len, portions)) < len(flood):
                portions.append(await ends.stream.receive_some())
            nursery.cancel_scope.cancel()
        assert b"".join(portions) == flood
        assert ends.stream.received == len(flood)
        assert max(map(len, portions)) == MAX_FRAMES * 6
        assert turns >= len(portions) - 1
