"""The client's calls: what is sent, how answers and failures come back, and how a connection opens and ends.

Long, because all calls share one scripted server.
"""

import base64
import contextlib
import hashlib
import inspect
import os
import ssl
import stat
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio_websocket
import trustme
from trio.testing import MockClock, wait_all_tasks_blocked

from steerway.actors.client import Background, Client, connect
from steerway.actors.client.local import ensure_token, read_local, remove_local, write_local
from steerway.protocol.codec import CODECS, JSON, MAX_DEPTH, MSGPACK, Codec
from steerway.protocol.operations import CONTRACT, EVENTS_SUBSCRIBE, SERVER_HEALTH, SERVER_INFO, NoParams
from steerway.protocol.values import Health
from steerway.protocol.values.errors import (
    ClientError,
    ConflictError,
    DeclaredError,
    InvalidRequestError,
    RuntimeFailedError,
    SessionNotFoundError,
)
from support.far_end import SESSION, Asked, FarEnd, MemoryServer, client_in_memory, far_end_of_websocket

HEALTHY = {"healthy": True}


async def _healthy(client: Client, far: FarEnd) -> None:
    """Assert that a call still works."""
    async with trio.open_nursery() as nursery:
        asked = Asked(nursery, client.server.health)
        await far.answer(await far.request("server.health"), HEALTHY)
        assert await asked.result() == Health(healthy=True)


# --- the surface --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", sorted(CONTRACT.operations))
async def test_every_operation_has_its_method_with_the_contracts_arguments(method: str) -> None:
    operation = CONTRACT.operations[method]
    async with client_in_memory() as (client, _):
        signature = inspect.signature(getattr(getattr(client, operation.namespace), operation.name))
    parameters = dict(signature.parameters)
    assert operation.stream == (parameters.pop("timeout", None) is None)
    kind = operation.params
    assert list(parameters) == list(kind.__struct_fields__)
    required = kind.__struct_fields__[: len(kind.__struct_fields__) - len(kind.__struct_defaults__)]
    defaults = dict(zip(kind.__struct_fields__[len(required) :], kind.__struct_defaults__, strict=True))
    for name, parameter in parameters.items():
        if name in required:
            assert (parameter.kind, parameter.default) == (parameter.POSITIONAL_OR_KEYWORD, parameter.empty)
        else:
            assert (parameter.kind, parameter.default) == (parameter.KEYWORD_ONLY, defaults[name])


async def test_a_client_has_no_methods_beyond_the_contract_and_follow() -> None:
    async with client_in_memory() as (client, _):
        for namespace in ("sessions", "events", "server"):
            there = {name for name in dir(getattr(client, namespace)) if not name.startswith("_")}
            declared = {operation.name for operation in CONTRACT.operations.values() if operation.namespace == namespace}
            assert there - {"follow"} == declared


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@pytest.mark.parametrize("method", [name for name, operation in sorted(CONTRACT.operations.items()) if not operation.stream])
async def test_each_argument_arrives_under_its_name(method: str, codec: Codec) -> None:
    operation = CONTRACT.operations[method]
    arguments: dict[str, Any] = {name: f"<{name}>" for name in operation.params.__struct_fields__}
    if "files" in arguments:
        arguments["files"] = ["<file>"]
    async with client_in_memory(codec) as (client, far), trio.open_nursery() as nursery:
        asked = Asked(nursery, partial(getattr(getattr(client, operation.namespace), operation.name), **arguments))
        request = await far.request(method)
        assert request.params == arguments
        await far.fail(request, ConflictError("taken"))
        with pytest.raises(ConflictError):
            await asked.result()


async def test_what_is_not_given_is_not_sent() -> None:
    async with client_in_memory() as (client, far), trio.open_nursery() as nursery:
        asked = Asked(nursery, partial(client.sessions.prompt, SESSION, "hello"))
        request = await far.request("sessions.prompt")
        assert request.params == {"session_id": "ses_1", "text": "hello"}
        asked.scope.cancel()


async def test_an_operation_can_be_called_as_data() -> None:
    async with client_in_memory() as (client, far), trio.open_nursery() as nursery:
        asked = Asked(nursery, partial(client.call, SERVER_HEALTH, NoParams()))
        await far.answer(await far.request("server.health"), HEALTHY)
        assert await asked.result() == Health(healthy=True)
        with pytest.raises(ValueError, match="is a stream"):
            await client.call(EVENTS_SUBSCRIBE, NoParams())
        with pytest.raises(ValueError, match="not a stream"):
            client.stream(SERVER_INFO, NoParams())


# --- answers and failures -----------------------------------------------------------------------------------------


async def test_answers_find_their_callers_in_any_order() -> None:
    async with client_in_memory() as (client, far), trio.open_nursery() as nursery:
        first = Asked(nursery, partial(client.sessions.interrupt, SESSION))
        await wait_all_tasks_blocked()
        second = Asked(nursery, client.sessions.active)
        one, two = await far.request("sessions.interrupt"), await far.request("sessions.active")
        await far.answer(two, {"ses_9": {"type": "running"}})
        assert list(await second.result()) == ["ses_9"]
        await far.answer(one, {"interrupted": True})
        assert (await first.result()).interrupted


async def test_a_declared_failure_raises_its_class_with_its_fields() -> None:
    async with client_in_memory() as (client, far), trio.open_nursery() as nursery:
        asked = Asked(nursery, partial(client.sessions.get, SESSION))
        await far.fail(await far.request(), SessionNotFoundError("No such session.", session_id="ses_1"))
        with pytest.raises(SessionNotFoundError, match="No such session") as caught:
            await asked.result()
        assert caught.value.fields == {"session_id": "ses_1"}


async def test_a_failure_with_an_unknown_tag_keeps_tag_and_fields() -> None:
    async with client_in_memory() as (client, far), trio.open_nursery() as nursery:
        asked = Asked(nursery, partial(client.sessions.get, SESSION))
        await far.fail(await far.request(), DeclaredError("Too hot.", tag="TooHotError", degrees=99))
        with pytest.raises(DeclaredError, match="Too hot") as caught:
            await asked.result()
        assert (type(caught.value), caught.value.tag, caught.value.fields) == (DeclaredError, "TooHotError", {"degrees": 99})


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
async def test_an_answer_of_another_shape_fails_its_call_alone(codec: Codec) -> None:
    async with client_in_memory(codec) as (client, far), trio.open_nursery() as nursery:
        asked = Asked(nursery, client.server.health)
        await far.answer(await far.request(), {"healthy": "very"})
        with pytest.raises(ClientError, match=r"server\.health.*healthy") as caught:
            await asked.result()
        assert caught.value.reason == "malformed"
        await _healthy(client, far)


@pytest.mark.parametrize("frame", [b"\xc1", b"", b'{"jsonrpc":"2.0","id":1}', b"[1]"])
async def test_a_message_that_is_no_envelope_ends_the_connection(frame: bytes) -> None:
    async with client_in_memory(JSON) as (client, far), trio.open_nursery() as nursery:
        asked = Asked(nursery, client.server.health)
        await far.request()
        await far.send(frame)
        with pytest.raises(ClientError) as caught:
            await asked.result()
        assert caught.value.reason == "malformed"
        with pytest.raises(ClientError) as caught:
            await client.server.health()
        assert caught.value.reason == "malformed"


async def test_a_server_that_could_not_tell_which_message_was_wrong_leaves_no_call_waiting() -> None:
    async with client_in_memory(JSON) as (client, far), trio.open_nursery() as nursery:
        asked = Asked(nursery, client.server.health)
        await far.request()
        await far.send(b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Not for my eyes."}}')
        with pytest.raises(ClientError, match="Not for my eyes") as caught:
            await asked.result()
        assert caught.value.reason == "malformed"


async def test_unknown_notifications_and_answers_nobody_waits_for_are_passed_over() -> None:
    async with client_in_memory(JSON) as (client, far):
        await far.send(b'{"jsonrpc":"2.0","method":"news","params":{"subscription":1}}')
        await far.send(b'{"jsonrpc":"2.0","id":77,"result":{}}')
        await far.send(b'{"jsonrpc":"2.0","method":"end","params":{"subscription":9}}')
        await _healthy(client, far)


async def test_a_server_that_goes_ends_every_call_and_every_later_one() -> None:
    async with client_in_memory() as (client, far), trio.open_nursery() as nursery:
        asked = [Asked(nursery, client.server.health) for _ in range(3)]
        for _ in asked:
            await far.request()
        await far.aclose()
        seen: set[int] = set()
        for one in asked:
            with pytest.raises(ClientError) as caught:
                await one.result()
            assert caught.value.reason == "closed"
            seen.add(id(caught.value))
        assert len(seen) == 3  # each caller has an exception, and a traceback, of its own
        with pytest.raises(ClientError):
            await client.server.health()


# --- what cannot be sent ------------------------------------------------------------------------------------------


def _deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"in": value}
    return value


@pytest.mark.parametrize(
    "metadata", [{"n": 1 << 64}, {"n": float("nan")}, {1: "one"}, {"o": object()}, _deep(MAX_DEPTH), _deep(5000)]
)
@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
async def test_what_both_codecs_cannot_carry_is_refused_before_it_is_sent(codec: Codec, metadata: Any) -> None:
    async with client_in_memory(codec) as (client, far):
        with pytest.raises(InvalidRequestError, match="metadata"):
            await client.sessions.prompt(SESSION, "hello", metadata=metadata)
        await _healthy(client, far)


@pytest.mark.parametrize("value", [float("nan"), [float("-inf")], 1 << 64, -(1 << 63) - 1, [{"a": {2: 1}}], (object(),)])
@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
async def test_so_is_a_value_that_is_no_map_and_a_typed_number(codec: Codec, value: Any) -> None:
    async with client_in_memory(codec) as (client, far):
        with pytest.raises(InvalidRequestError, match="value") as caught:
            await client.context.put(SESSION, "api/key", value)
        assert caught.value.fields["field"] == "value"
        with pytest.raises(InvalidRequestError, match="budget"):
            await client.sessions.update(SESSION, budget=value)
        with pytest.raises(InvalidRequestError, match="limit"):
            await client.sessions.messages(SESSION, limit=value)
        await _healthy(client, far)


async def test_the_deepest_metadata_that_is_sent_is_accepted_by_the_other_end() -> None:
    deepest = max(levels for levels in range(MAX_DEPTH) if _fits(levels))
    async with client_in_memory() as (client, far), trio.open_nursery() as nursery:
        asked = Asked(nursery, partial(client.sessions.prompt, SESSION, "hello", metadata=_deep(deepest)))
        assert (await far.request()).params["metadata"] == _deep(deepest)
        asked.scope.cancel()
    assert deepest >= MAX_DEPTH - 3


def _fits(levels: int) -> bool:
    from steerway.actors.client.wellformed import unfit
    from steerway.protocol.operations import SendPrompt

    return unfit(SendPrompt(session_id=SESSION, text="", metadata=_deep(levels))) is None


async def test_a_request_beyond_the_message_limit_is_refused_before_it_is_sent() -> None:
    async with client_in_memory() as (client, far):
        with pytest.raises(InvalidRequestError, match="at most"):
            await client.sessions.prompt(SESSION, "x" * (16 * 1024 * 1024))
        await _healthy(client, far)


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
async def test_lone_surrogates_are_made_well_formed_where_they_enter(codec: Codec) -> None:
    async with client_in_memory(codec) as (client, far), trio.open_nursery() as nursery:
        text, metadata = "\ud83d\ude00 and \ud83d", {"k\udc00": ["\ud83d\ude00"]}
        asked = Asked(nursery, partial(client.sessions.prompt, SESSION, text, metadata=metadata))
        params = (await far.request()).params
        assert params == {
            "session_id": SESSION,
            "text": "\N{GRINNING FACE} and \N{REPLACEMENT CHARACTER}",
            "metadata": {"k\N{REPLACEMENT CHARACTER}": ["\N{GRINNING FACE}"]},
        }
        asked.scope.cancel()


# --- cancelling and time-outs -------------------------------------------------------------------------------------


async def test_cancelling_a_call_tells_the_server_and_its_late_answer_is_dropped() -> None:
    async with client_in_memory() as (client, far), trio.open_nursery() as nursery:
        asked = Asked(nursery, partial(client.sessions.prompt, SESSION, "hello"))
        request = await far.request()
        asked.scope.cancel()
        notification = await far.notification()
        assert (notification.method, notification.params) == ("rpc.cancel", {"id": request.id})
        await far.answer(request, {"nobody": "reads this"})
        await _healthy(client, far)


async def test_a_call_that_is_too_slow_is_a_time_out_and_is_cancelled(autojump_clock: MockClock) -> None:
    async with client_in_memory() as (client, far):
        with pytest.raises(ClientError, match=r"server\.health within 5") as caught:
            await client.server.health(timeout=5)
        assert (caught.value.reason, trio.current_time()) == ("timeout", 5)
        request = await far.request("server.health")
        assert (await far.notification()).params == {"id": request.id}


async def test_a_caller_cancelled_while_waiting_for_room_has_sent_nothing() -> None:
    async with client_in_memory() as (client, far), trio.open_nursery() as nursery:
        text = "x" * 5_000_000
        first = Asked(nursery, partial(client.sessions.prompt, SESSION, text))
        await wait_all_tasks_blocked()
        second = Asked(nursery, client.sessions.active)
        await wait_all_tasks_blocked()
        second.scope.cancel()
        await second.done.wait()
        assert (await far.request()).params["text"] == text
        await _healthy(client, far)
        first.scope.cancel()


# --- plain exceptions (ruling D1) ---------------------------------------------------------------------------------


async def test_the_exception_of_a_block_passes_through_nested_connects_as_itself() -> None:
    error = KeyError("mine")
    with pytest.raises(KeyError) as caught:
        async with connect(transport=MemoryServer()), connect(transport=MemoryServer()), connect(transport=MemoryServer()):
            raise error
    assert caught.value is error


async def test_a_declared_error_can_be_caught_outside_of_the_block() -> None:
    server = MemoryServer()

    async def work() -> None:
        async with connect(transport=server) as client:
            await client.sessions.get(SESSION)

    async with trio.open_nursery() as nursery:
        asked = Asked(nursery, work)
        far = await server.accept()
        await far.fail(await far.request(), SessionNotFoundError("No such session."))
        with pytest.raises(SessionNotFoundError):
            await asked.result()


async def test_a_group_that_the_block_raises_is_not_opened_up() -> None:
    group = ExceptionGroup("mine", [ValueError("a"), KeyError("b")])
    with pytest.raises(ExceptionGroup) as caught:
        async with connect(transport=MemoryServer()):
            raise group
    assert caught.value is group


async def test_cancelling_around_a_block_ends_it_quietly() -> None:
    async with trio.open_nursery() as nursery:
        reached = trio.Event()

        async def work() -> None:
            async with connect(transport=MemoryServer()), connect(transport=MemoryServer()):
                reached.set()
                await trio.sleep_forever()

        with trio.CancelScope() as scope:
            nursery.start_soon(work)
            await reached.wait()
            nursery.cancel_scope.cancel()
        assert not scope.cancelled_caught


async def test_an_exception_while_cancelled_is_still_the_blocks_own() -> None:
    async def work() -> None:
        with trio.CancelScope() as scope:
            async with connect(transport=MemoryServer()):
                scope.cancel()
                try:
                    await trio.sleep_forever()
                finally:
                    raise ValueError("cleanup")

    with pytest.raises(ValueError, match="cleanup"):
        await work()


async def test_a_background_failure_arrives_as_one_error_with_its_cause() -> None:
    async def fail() -> None:
        raise OSError("disk on fire")

    async def work() -> None:
        async with Background() as nursery:
            nursery.start_soon(fail)
            await trio.sleep_forever()

    with pytest.raises(RuntimeFailedError, match="disk on fire") as caught:
        await work()
    assert isinstance(caught.value.__cause__, OSError)


async def test_a_background_failure_does_not_hide_the_blocks_own_exception() -> None:
    async def fail() -> None:
        raise OSError("disk on fire")

    async def work() -> None:
        async with Background() as nursery:
            nursery.start_soon(fail)
            try:
                await trio.sleep_forever()
            finally:
                raise KeyError("mine")

    with pytest.raises(KeyError):
        await work()


async def test_a_cancellation_of_the_background_does_not_leave_it_in_a_group() -> None:
    async def fail() -> None:
        raise OSError("disk on fire")

    async def refuse_to_go() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise KeyError("mine")

    async def work() -> None:
        async with Background() as background:
            background.start_soon(fail)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(refuse_to_go)
                await trio.sleep_forever()

    with pytest.raises(BaseExceptionGroup) as caught:
        await work()
    assert caught.value.split(trio.Cancelled)[0] is None
    assert caught.group_contains(KeyError)


# --- the end ------------------------------------------------------------------------------------------------------


async def test_closing_a_client_ends_its_calls_and_can_be_repeated() -> None:
    server = MemoryServer()
    async with connect(transport=server) as client, trio.open_nursery() as nursery:
        asked = Asked(nursery, client.server.health)
        far = await server.accept()
        await far.request()
        await client.aclose()
        with pytest.raises(ClientError) as caught:
            await asked.result()
        assert caught.value.reason == "closed"
        await client.aclose()
        with pytest.raises(trio.EndOfChannel):
            await far.request()


async def test_a_transport_of_the_callers_that_breaks_is_a_transport_failure() -> None:
    class Broken:
        codec = MSGPACK

        def send(self, frame: bytes) -> None: ...

        async def wait_writable(self) -> None: ...

        async def receive(self) -> bytes:
            raise OSError("cable cut")

        async def aclose(self) -> None: ...

    async def open_broken(nursery: trio.Nursery) -> Broken:
        return Broken()

    async with connect(transport=open_broken) as client:
        with pytest.raises(ClientError, match="cable cut") as caught:
            await client.server.health()
        assert caught.value.reason == "transport"


# --- over a socket ------------------------------------------------------------------------------------------------

Handler = Callable[[trio_websocket.WebSocketRequest], Awaitable[None]]


@asynccontextmanager
async def _serving(handler: Handler, context: ssl.SSLContext | None = None) -> AsyncGenerator[str]:
    """The url of a WebSocket server whose kernel takes in little."""
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    listener.socket.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, 4096)
    port = listener.socket.getsockname()[1]
    listeners: Any = [listener if context is None else trio.SSLListener(listener, context, https_compatible=True)]
    server = trio_websocket.WebSocketServer(handler, listeners, max_message_size=1 << 24)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        yield f"{'ws' if context is None else 'wss'}://127.0.0.1:{port}"
        nursery.cancel_scope.cancel()


class _Accepting:
    """Accepts every connection and hands its far end to the test."""

    def __init__(self, codec: Codec = MSGPACK) -> None:
        self.codec = codec
        self.asked: list[trio_websocket.WebSocketRequest] = []
        self._give, self._take = trio.open_memory_channel[FarEnd](10)

    async def __call__(self, request: trio_websocket.WebSocketRequest) -> None:
        self.asked.append(request)
        websocket = await request.accept(subprotocol=self.codec.subprotocol)
        self._give.send_nowait(far_end_of_websocket(websocket, self.codec))
        await trio.sleep_forever()

    async def far_end(self) -> FarEnd:
        return await self._take.receive()


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
async def test_a_socket_carries_calls_with_the_token_in_the_header(codec: Codec) -> None:
    accepting = _Accepting(codec)
    async with (
        _serving(accepting) as url,
        connect(url, token="geheim", subprotocol=codec.subprotocol) as client,
    ):
        await _healthy(client, await accepting.far_end())
    [request] = accepting.asked
    assert (b"authorization", b"Bearer geheim") in request.headers
    assert "geheim" not in url + request.path
    assert list(request.proposed_subprotocols) == [codec.subprotocol]


async def test_a_client_without_a_token_sends_no_header_for_one() -> None:
    accepting = _Accepting()
    async with _serving(accepting) as url, connect(url) as client:
        await _healthy(client, await accepting.far_end())
    assert not [name for name, _ in accepting.asked[0].headers if name == b"authorization"]


async def test_a_caller_cancelled_in_the_middle_of_a_large_send_leaves_the_socket_whole() -> None:
    accepting = _Accepting()
    async with _serving(accepting) as url, connect(url) as client, trio.open_nursery() as nursery:
        far = await accepting.far_end()
        for _ in range(3):  # the other side reads no more once a few messages wait there
            Asked(nursery, client.server.info)
        await wait_all_tasks_blocked(0.02)
        text = "x" * 7_000_000
        asked = Asked(nursery, partial(client.sessions.prompt, SESSION, text))
        await wait_all_tasks_blocked(0.05)
        transport: Any = client._connection._transport  # pyright: ignore[reportPrivateUsage]
        assert transport._writing  # the frame is partly sent
        asked.scope.cancel()
        await asked.done.wait()
        last = Asked(nursery, client.server.health)
        for _ in range(3):
            await far.request("server.info")
        large = await far.request("sessions.prompt")
        assert large.params["text"] == text
        assert (await far.notification()).params == {"id": large.id}
        await far.answer(await far.request("server.health"), HEALTHY)
        assert await last.result() == Health(healthy=True)
        nursery.cancel_scope.cancel()


async def test_a_client_that_ends_in_the_middle_of_a_large_send_does_not_wait_for_it() -> None:
    accepting = _Accepting()
    async with _serving(accepting) as url, trio.open_nursery() as nursery:
        async with connect(url) as client:
            for _ in range(3):
                Asked(nursery, client.server.info)
            await wait_all_tasks_blocked(0.02)
            asked = Asked(nursery, partial(client.sessions.prompt, SESSION, "x" * 7_000_000))
            await wait_all_tasks_blocked(0.05)
            begun = trio.current_time()
        assert trio.current_time() - begun < 0.5
        with pytest.raises(ClientError) as caught:
            await asked.result()
        assert caught.value.reason == "closed"


async def test_a_server_that_cuts_the_socket_is_a_transport_failure() -> None:
    accepting = _Accepting()
    async with trio.open_nursery() as nursery, _serving(accepting) as url, connect(url) as client:
        far = await accepting.far_end()
        asked = Asked(nursery, client.server.health)
        await far.request()
        await trio.aclose_forcefully(accepting.asked[0]._connection._stream)  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(ClientError) as caught:
            await asked.result()
        assert caught.value.reason == "transport"


async def test_a_server_that_says_goodbye_ends_the_client_with_its_reason() -> None:
    async def handler(request: trio_websocket.WebSocketRequest) -> None:
        websocket = await request.accept(subprotocol=MSGPACK.subprotocol)
        await websocket.aclose(1001, "shutting down")

    async with _serving(handler) as url, connect(url) as client:
        with pytest.raises(ClientError, match=r"1001.*shutting down") as caught:
            await client.server.health()
        assert caught.value.reason == "closed"


async def test_a_client_says_goodbye_when_its_block_ends() -> None:
    codes: list[int] = []
    gone = trio.Event()

    async def handler(request: trio_websocket.WebSocketRequest) -> None:
        websocket = await request.accept(subprotocol=MSGPACK.subprotocol)
        with pytest.raises(trio_websocket.ConnectionClosed) as closed:
            await websocket.get_message()
        assert closed.value.reason is not None
        codes.append(closed.value.reason.code)
        gone.set()

    async with _serving(handler) as url:
        async with connect(url):
            pass
        await gone.wait()
    assert codes == [1000]


@pytest.mark.parametrize("body", [b"Give a token: the file is named in the server's first line.", b""])
async def test_a_refused_handshake_brings_status_and_sentence(body: bytes) -> None:
    async def refuse(request: trio_websocket.WebSocketRequest) -> None:
        await request.reject(401, body=body or None)

    async with _serving(refuse) as url:
        with pytest.raises(ClientError) as caught:
            async with connect(url):
                raise AssertionError("it was refused")
    assert (caught.value.reason, caught.value.status) == ("refused", 401)
    assert caught.value.message == body.decode() if body else "401" in caught.value.message


async def test_a_server_that_chooses_no_subprotocol_is_not_spoken_to() -> None:
    async def handler(request: trio_websocket.WebSocketRequest) -> None:
        await request.accept()
        await trio.sleep_forever()

    async with _serving(handler) as url:
        with pytest.raises(ClientError, match="msgpack") as caught:
            async with connect(url):
                raise AssertionError("it does not speak ours")
    assert caught.value.reason == "unsupported_subprotocol"


async def test_a_server_that_chooses_a_subprotocol_nobody_offered_is_not_spoken_to() -> None:
    reply = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    error = await _shake_hands_with(
        lambda key: reply + b"Sec-WebSocket-Accept: %s\r\nSec-WebSocket-Protocol: other\r\n\r\n" % key
    )
    assert error.reason == "unsupported_subprotocol"


@pytest.mark.parametrize(
    ("answer", "reason", "status"),
    [
        (b"SSH-2.0-OpenSSH_9.9\r\n", "transport", None),
        (b"", "transport", None),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "transport", None),
        (b"HTTP/1.0 503 Busy\r\n\r\nCome back later.", "refused", 503),
    ],
)
async def test_a_peer_that_is_no_websocket_server_is_told_apart(answer: bytes, reason: str, status: int | None) -> None:
    error = await _shake_hands_with(lambda key: answer)
    assert (error.reason, error.status) == (reason, status)


async def _shake_hands_with(answer: Callable[[bytes], bytes]) -> ClientError:
    """How `connect` fails when `answer` makes the server's side of the handshake out of the accepting key."""

    async def handler(stream: trio.SocketStream) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += await stream.receive_some()
        [key] = [line.split(b": ")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key")]
        digest = hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
        await stream.send_all(answer(base64.b64encode(digest)))
        await stream.send_eof()
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, handler, 0)
        port = listeners[0].socket.getsockname()[1]
        with pytest.raises(ClientError) as caught:
            async with connect(f"ws://127.0.0.1:{port}"):
                raise AssertionError("there is nobody to talk to")
        nursery.cancel_scope.cancel()
    return caught.value


async def test_a_handshake_that_takes_too_long_is_a_time_out(autojump_clock: MockClock) -> None:
    async def handler(stream: trio.SocketStream) -> None:
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, handler, 0)
        with pytest.raises(ClientError, match="within 10 s") as caught:
            async with connect(f"ws://127.0.0.1:{listeners[0].socket.getsockname()[1]}"):
                raise AssertionError("nobody answered")
        assert (caught.value.reason, trio.current_time()) == ("timeout", 10)
        nursery.cancel_scope.cancel()


async def test_nobody_at_the_address_is_a_transport_failure() -> None:
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    await listener.aclose()
    with pytest.raises(ClientError, match="cannot be reached") as caught:
        async with connect(f"ws://127.0.0.1:{port}"):
            raise AssertionError("nobody is there")
    assert caught.value.reason == "transport"


async def test_a_server_that_falls_silent_is_given_up_and_one_that_answers_pings_is_not(autojump_clock: MockClock) -> None:
    accepting = _Accepting()
    async with _serving(accepting) as url, connect(url) as client, trio.open_nursery() as nursery:
        far = await accepting.far_end()
        asked = Asked(nursery, client.server.health)
        request = await far.request()
        await trio.sleep(300)  # the library on the other side answers pings
        await far.answer(request, HEALTHY)
        assert await asked.result() == Health(healthy=True)

    async with trio.open_nursery() as outer:
        reading = trio.CancelScope()

        async def serve(stream: trio.SocketStream) -> None:
            with reading:
                async with trio.open_nursery() as inner:
                    request = await trio_websocket.wrap_server_stream(inner, stream)
                    await request.accept(subprotocol=MSGPACK.subprotocol)
            await trio.sleep_forever()

        listeners = await outer.start(trio.serve_tcp, serve, 0)
        async with connect(f"ws://127.0.0.1:{listeners[0].socket.getsockname()[1]}") as client:
            reading.cancel()
            begun = trio.current_time()
            with pytest.raises(ClientError, match="silent for 40 s") as caught:
                await client.server.health()
            assert caught.value.reason == "transport"
            assert 39 < trio.current_time() - begun <= 40
        outer.cancel_scope.cancel()


async def test_a_socket_can_be_encrypted_and_a_stranger_is_not_trusted() -> None:
    authority: Any = trustme.CA()
    theirs, ours = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(theirs)
    authority.configure_trust(ours)
    accepting = _Accepting()
    async with _serving(accepting, theirs) as url, connect(url, ssl_context=ours) as client:
        await _healthy(client, await accepting.far_end())
    async with _serving_tls_once(theirs) as url:
        with pytest.raises(ClientError, match="cannot be trusted") as caught:
            async with connect(url):
                raise AssertionError("it is a stranger")
        assert caught.value.reason == "transport"


@asynccontextmanager
async def _serving_tls_once(context: ssl.SSLContext) -> AsyncGenerator[str]:
    async def handler(stream: trio.SocketStream) -> None:
        tls = trio.SSLStream(stream, context, server_side=True)
        with contextlib.suppress(trio.BrokenResourceError):
            await tls.do_handshake()
            await tls.receive_some()
        await trio.aclose_forcefully(tls)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, handler, 0)
        yield f"wss://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("url", "token"),
    [
        ("http://127.0.0.1", None),
        ("127.0.0.1:4747", None),
        ("ws://", None),
        ("ws://user:geheim@127.0.0.1", None),
        ("ws://127.0.0.1", "two\r\nlines"),
    ],
)
async def test_an_address_or_token_that_cannot_be_one_is_the_callers_mistake(url: str, token: str | None) -> None:
    with pytest.raises(ValueError):
        async with connect(url, token=token):
            raise AssertionError("it cannot be opened")


# --- the local server ---------------------------------------------------------------------------------------------


async def test_connect_without_a_url_finds_the_local_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(ClientError, match="steerway serve"):
        async with connect():
            raise AssertionError("no server is known")
    token, token_file = ensure_token()
    accepting = _Accepting()
    async with _serving(accepting) as url:
        assert write_local(url, token_file) == tmp_path / "steerway" / "server.json"
        async with connect() as client:
            await _healthy(client, await accepting.far_end())
    assert (b"authorization", f"Bearer {token}".encode()) in accepting.asked[0].headers


def test_the_files_of_the_local_server_are_private_and_kept_apart(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    token, token_file = ensure_token(folder / "token")
    assert ensure_token(token_file) == (token, token_file)
    path = write_local("ws://127.0.0.1:1", token_file, folder)
    assert {stat.S_IMODE(os.stat(file).st_mode) for file in (path, token_file)} == {0o600}
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert token not in path.read_text()
    assert read_local(folder) == ("ws://127.0.0.1:1", token)
    assert sorted(file.name for file in folder.iterdir()) == ["server.json", "token"]


def test_a_server_takes_back_only_its_own_address(tmp_path: Path) -> None:
    write_local("ws://127.0.0.1:2", tmp_path / "token", tmp_path)
    remove_local("ws://127.0.0.1:1", tmp_path)
    assert read_local(tmp_path) == ("ws://127.0.0.1:2", None)
    remove_local("ws://127.0.0.1:2", tmp_path)
    remove_local("ws://127.0.0.1:2", tmp_path)
    with pytest.raises(ClientError):
        read_local(tmp_path)


def test_a_damaged_address_file_is_said_to_be_so(tmp_path: Path) -> None:
    (tmp_path / "server.json").write_text("{")
    with pytest.raises(ClientError, match=r"server\.json cannot be read") as caught:
        read_local(tmp_path)
    assert caught.value.reason == "transport"
