"""The port: who is let in, what plain HTTP gets, how faults of framing are answered, how it stops."""

from __future__ import annotations

import errno
import json
import random
import socket
import ssl
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import trio
import trustme
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.trio.client import connect
from websockets.typing import Subprotocol

from steerway.actors.gateway.head import HttpAnswer, HttpRoute
from steerway.actors.gateway.limits import Limits
from steerway.actors.gateway.listener import serve
from support.gateway import (
    BEARER,
    BINARY,
    PING,
    PONG,
    TEXT,
    TOKEN,
    MadeUpRouter,
    RawPeer,
    Served,
    call,
    client_frame,
    listening,
    raw_connection,
    raw_websocket,
    request_head,
    upgrade_request,
)


async def ask_http(server: Served, head: bytes) -> tuple[int, str, str]:
    peer = await raw_connection(server)
    await peer.send(head)
    answer = await peer.http()
    await peer.aclose()
    return answer


# --- plain HTTP -------------------------------------------------------------------------------------------------------


async def test_health_needs_no_token() -> None:
    async with listening() as server:
        status, head, body = await ask_http(server, request_head("/health"))
        assert (status, json.loads(body)) == (200, {"healthy": True})
        assert "application/json" in head
        status, head, body = await ask_http(server, request_head("/health", "HEAD"))
        assert (status, body) == (200, "")
        assert "Content-Length: 16" in head


async def test_plain_http_is_told_what_the_port_is_for() -> None:
    async with listening() as server:
        assert (await ask_http(server, request_head("/nothing")))[0] == 404
        assert (await ask_http(server, request_head("/health", "POST")))[0] == 405
        assert (await ask_http(server, request_head("/", "DELETE")))[0] == 405
        status, head, body = await ask_http(server, request_head("/"))
        assert status == 426
        assert "Upgrade: websocket" in head
        assert "WebSocket" in body


async def test_routes_that_need_the_token_are_not_read_without_it() -> None:
    routes = {"/openrpc.json": HttpRoute(answer=lambda: HttpAnswer(status=200, body=b"{}", content_type="application/json"))}
    async with listening(routes=routes) as server:
        status, _, body = await ask_http(server, request_head("/openrpc.json"))
        assert status == 401
        assert "token" in body
        assert (await ask_http(server, request_head("/openrpc.json", **BEARER)))[0] == 200


async def test_what_is_no_http_head_is_answered_400() -> None:
    async with listening() as server:
        assert (await ask_http(server, b"\x16\x03\x01 this is no head\r\n\r\n"))[0] == 400
        assert (await ask_http(server, request_head(Host=None)))[0] == 400
        status, _, _ = await ask_http(server, request_head(X_Long="x" * 20_000))
        assert status == 431


async def test_a_head_that_never_ends_is_given_up(autojump_clock: MockClock) -> None:
    async with listening() as server:
        peer = await raw_connection(server)
        started = trio.current_time()
        with pytest.raises((EOFError, trio.BrokenResourceError)):  # noqa: PT012 - it is the loop that is cut short
            for byte in request_head("/", X_Slow="x" * 1_000):
                await peer.send(bytes((byte,)))
                await trio.sleep(0.5)
        assert 10 <= trio.current_time() - started < 13
        assert server.usage.connections == 0


async def test_no_connection_beyond_the_limit_is_served() -> None:
    async with listening(limits=Limits(connections=1)) as server:
        first = await raw_websocket(server)
        second = await raw_connection(server)
        assert (await second.http())[0] == 503
        assert (await first.ask(1, "echo", {"still": "here"}))["result"] == {"still": "here"}


# --- who may speak ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status", "told"),
    [
        ({"Authorization": "Bearer wrong"}, 401, "token"),
        ({"Authorization": f"Basic {TOKEN}"}, 401, "token"),
        ({"Authorization": "Bearer "}, 401, "token"),
        ({"Origin": "https://elsewhere.example"}, 403, "origins"),
        ({"Origin": "null"}, 403, "origins"),
        ({"Host": "elsewhere.example"}, 421, "hosts"),
        ({"Sec_WebSocket_Protocol": "mqtt"}, 400, "steerway.v1.json"),
        ({"Sec_WebSocket_Version": "8"}, 426, "13"),
        ({"Sec_WebSocket_Key": None}, 400, "Sec-WebSocket-Key"),
    ],
)
async def test_who_may_not_speak_is_told_what_to_configure(headers: dict[str, str | None], status: int, told: str) -> None:
    router = MadeUpRouter()
    async with listening(router) as server:
        found, _, body = await ask_http(server, upgrade_request(**headers))
        assert found == status
        assert told in body
        assert TOKEN not in body
    assert router.asked == []


async def test_listed_hosts_and_origins_and_our_own_may_speak() -> None:
    async with listening(hosts=["steer.example"], origins=["https://app.example"]) as server:
        allowed: tuple[dict[str, Any], ...] = (
            {"Origin": "https://app.example"},
            {"Origin": "http://localhost"},
            {"Host": f"127.0.0.1:{server.port}", "Origin": f"http://127.0.0.1:{server.port}"},
            {"Host": "Steer.Example:443"},
        )
        for headers in allowed:
            peer = await raw_websocket(server, **headers)
            await peer.aclose()


async def test_upgrades_go_to_the_root_only() -> None:
    async with listening() as server:
        peer = await raw_connection(server)
        await peer.send(upgrade_request().replace(b"GET / ", b"GET /health "))
        assert (await peer.http())[0] == 404


async def test_a_gateway_without_a_token_is_not_started() -> None:
    with pytest.raises(ValueError, match="token"):
        await serve(MadeUpRouter(), host="0.0.0.0", port=0, token="")


async def test_the_subprotocol_chooses_the_codec() -> None:
    async with listening() as server:
        for offered, binary in (((), False), (("steerway.v1.json",), False), (("mqtt", "steerway.v1.msgpack"), True)):
            subprotocols = [Subprotocol(name) for name in offered] or None
            async with connect(
                f"ws://127.0.0.1:{server.port}/",
                additional_headers=BEARER,
                subprotocols=subprotocols,
                compression=None,
                proxy=None,
            ) as peer:
                assert peer.subprotocol == (offered[-1] if offered else None)
                await peer.send(call_body(1, "echo", binary=binary))
                assert isinstance(await peer.recv(), bytes if binary else str)


def call_body(request_id: int, method: str, *, binary: bool) -> bytes | str:
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": {}}
    return msgspec.msgpack.encode(message) if binary else msgspec.json.encode(message).decode()


async def test_the_independent_client_sees_a_refusal_as_its_status() -> None:
    async with listening() as server:
        with pytest.raises(InvalidStatus) as refused:
            async with connect(f"ws://127.0.0.1:{server.port}/", additional_headers={"Authorization": "Bearer no"}, proxy=None):
                pass
        assert refused.value.response.status_code == 401


# --- faults of framing ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sent", "code"),
    [
        ("reserved bit", client_frame(b"x", first=0xC1), 1002),
        ("reserved opcode", client_frame(b"x", first=0x83), 1002),
        ("unmasked", client_frame(b"x", masked=False), 1002),
        ("fragmented ping", client_frame(b"x", first=0x09), 1002),
        ("continuation of nothing", client_frame(b"x", first=0x80), 1002),
        ("bad UTF-8", client_frame(b"\xff\xfe"), 1007),
        ("binary where text is spoken", client_frame(b"x", BINARY), 1003),
    ],
)
async def test_faults_of_framing_are_answered_with_their_close_code(name: str, sent: bytes, code: int) -> None:
    async with listening() as server:
        peer = await raw_websocket(server)
        await peer.send(sent)
        assert await peer.close_code() == code, name


async def test_text_where_messagepack_is_spoken_is_answered_1003() -> None:
    async with listening() as server:
        peer = await raw_websocket(server, subprotocols=["steerway.v1.msgpack"])
        await peer.send(client_frame(b"{}", TEXT))
        assert await peer.close_code() == 1003


async def test_a_message_of_20_mib_is_answered_1009() -> None:
    async with listening() as server:
        async with connect(f"ws://127.0.0.1:{server.port}/", additional_headers=BEARER, compression=None, proxy=None) as peer:
            with pytest.raises(ConnectionClosedError) as closed:  # noqa: PT012 - either call may notice
                await peer.send("x" * (20 * 1024 * 1024))
                await peer.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1009
        assert (await ask_http(server, request_head("/health")))[0] == 200


async def test_the_limit_counts_bytes_not_characters() -> None:
    async with listening() as server:
        peer = await raw_websocket(server)
        await peer.send(client_frame("é".encode() * (9 * 1024 * 1024)))
        assert await peer.close_code() == 1009


async def test_a_large_message_passes() -> None:
    async with (
        listening() as server,
        connect(
            f"ws://127.0.0.1:{server.port}/", additional_headers=BEARER, compression=None, proxy=None, max_size=None
        ) as peer,
    ):
        text = "y" * (12 * 1024 * 1024)
        await peer.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "echo", "params": {"text": text}}))
        assert json.loads(await peer.recv())["result"] == {"text": text}


async def test_pings_are_answered_while_an_answer_is_outstanding() -> None:
    async with listening() as server:
        peer = await raw_websocket(server)
        await peer.send(call(1, "hold", {"name": "a"}) + client_frame(b"are you there", PING))
        assert await peer.frame() == (PONG, b"are you there")


async def test_messages_sent_together_with_the_handshake_are_answered() -> None:
    async with listening() as server:
        peer = await raw_websocket(server, early=call(1, "echo", {"early": True}))
        assert (await peer.message())["result"] == {"early": True}


async def test_mutated_frames_never_take_the_server_down() -> None:
    chance = random.Random(20)
    sound = call(1, "echo", {"some": ["values", 1, None]}) + client_frame(b"x", PING) + client_frame(b"{", TEXT)
    with capture_logs() as logs:
        async with listening() as server:
            await send_mutants(server, sound, chance)
            peer = await raw_websocket(server)
            assert (await peer.ask(1, "echo", {"alive": 1}))["result"] == {"alive": 1}
    assert logs == []


async def send_mutants(server: Served, sound: bytes, chance: random.Random) -> None:
    for _ in range(300):
        mutant = bytearray(sound)
        for _ in range(chance.randint(1, 6)):
            at = chance.randrange(len(mutant))
            match chance.randrange(3):
                case 0:
                    mutant[at] = chance.randrange(256)
                case 1:
                    del mutant[at]
                case _:
                    mutant.insert(at, chance.randrange(256))
        peer = await raw_connection(server)
        await peer.send(upgrade_request() + bytes(mutant))
        await peer.drain()
        await peer.aclose()


# --- life and end -----------------------------------------------------------------------------------------------------


async def test_a_silent_peer_is_closed_after_two_missed_pings(autojump_clock: MockClock) -> None:
    async with listening() as server:
        peer = await raw_websocket(server)
        started = trio.current_time()
        assert [await peer.frame() for _ in range(2)] == [(PING, b"")] * 2
        assert trio.current_time() - started == pytest.approx(40, abs=1)
        assert await peer.close_code() == 1008
        assert trio.current_time() - started == pytest.approx(60, abs=4)


async def test_a_peer_that_answers_pings_lives_on(autojump_clock: MockClock) -> None:
    async with listening() as server:
        peer = await raw_websocket(server)
        for _ in range(10):
            assert await peer.frame() == (PING, b"")
            await peer.send(client_frame(b"", PONG))
        assert trio.current_time() > 190
        assert (await peer.ask(1, "echo"))["result"] == {}


async def test_stopping_closes_every_connection_with_1001() -> None:
    async with listening() as server:
        peers = [await raw_websocket(server) for _ in range(5)]
        server.stop()
        with trio.fail_after(5):
            assert [await peer.close_code() for peer in peers] == [1001] * 5


async def test_the_door_closes_before_the_connections() -> None:
    async with listening() as server:
        peer = await raw_websocket(server)
        server.gateway.stop_accepting()
        await wait_all_tasks_blocked()
        with pytest.raises(OSError, match="connect"):
            await raw_connection(server)
        assert (await peer.ask(1, "echo"))["result"] == {}


async def test_a_peer_that_closes_gets_its_code_back() -> None:
    async with listening() as server:
        peer = await raw_websocket(server)
        await peer.send(client_frame((4001).to_bytes(2, "big") + b"bye", 8))
        assert await peer.close_code() == 4001
        await peer.aclose()
        await wait_all_tasks_blocked()
        assert server.usage.connections == 0


async def test_running_out_of_descriptors_pauses_and_does_not_end_the_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    accept: Callable[[socket.socket], Any] = socket.socket.accept
    failures = [errno.EMFILE, errno.ECONNABORTED]

    def scarce(self: socket.socket) -> Any:
        if failures:
            raise OSError(failures.pop(0), "scarce")
        return accept(self)

    async with listening() as server:
        monkeypatch.setattr(socket.socket, "accept", scarce)
        with capture_logs() as logs:
            assert (await ask_http(server, request_head("/health")))[0] == 200
        assert not failures
        assert [entry["event"] for entry in logs] == ["accept_paused"]


# --- TLS --------------------------------------------------------------------------------------------------------------


async def test_everything_works_over_tls() -> None:
    authority = trustme.CA()
    server_context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(server_context)  # pyright: ignore[reportUnknownMemberType]
    client_context = ssl.create_default_context()
    authority.configure_trust(client_context)  # pyright: ignore[reportUnknownMemberType]
    async with listening(ssl_context=server_context) as server:
        assert server.url.startswith("wss://")
        async with connect(
            f"wss://localhost:{server.port}/",
            ssl=client_context,
            additional_headers=BEARER,
            compression=None,
            proxy=None,
            max_size=None,
        ) as peer:
            text = "z" * (3 * 1024 * 1024)
            await peer.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "echo", "params": {"text": text}}))
            assert json.loads(await peer.recv())["result"] == {"text": text}
        with pytest.raises((EOFError, trio.BrokenResourceError)):
            await ask_http(server, request_head("/health"))
        peer = RawPeer(
            trio.SSLStream(await trio.open_tcp_stream("127.0.0.1", server.port), client_context, server_hostname="localhost")
        )
        server.peers.append(peer)
        await peer.send(upgrade_request(Origin="https://localhost"))
        assert (await peer.head())[0] == 101
        await peer.send(client_frame(b"\xff"))
        opcode, payload = await peer.frame()
        assert (opcode, int.from_bytes(payload[:2], "big")) == (8, 1007)
