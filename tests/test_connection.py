"""One peer's requests, answers and subscriptions, over real sockets and in memory.

Long, because every case runs over sockets and in memory with the same fixtures.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import trio
import trio.lowlevel
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from steerway.actors.client.memory import memory_pair
from steerway.actors.feed import Feed
from steerway.actors.gateway.connection import TransportClosed, serve_connection
from steerway.actors.gateway.limits import Limits
from steerway.actors.gateway.router import Opened
from steerway.protocol.codec import MSGPACK
from steerway.protocol.operations import LiveStream
from steerway.protocol.values.event import Event, TextDelta
from steerway.protocol.values.ids import MessageId, PartId, SessionId
from support.gateway import TOKEN, MadeUpRouter, call, client_frame, listening, raw_websocket

MIB = 1024 * 1024


def tag(answer: dict[str, Any]) -> str:
    return answer["error"]["data"]["_tag"]


async def until(holds: Callable[[], object]) -> None:
    with trio.fail_after(5):
        while not holds():
            await trio.lowlevel.checkpoint()


# --- requests and answers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["raise", "fail", "unencodable"])
async def test_a_defect_is_answered_with_a_reference_that_stands_in_the_log(method: str) -> None:
    async with listening(reference=lambda: "ref-1") as server:
        peer = await raw_websocket(server)
        with capture_logs() as logs:
            answer = await peer.ask(1, method)
        assert tag(answer) == "InternalError"
        assert answer["error"]["data"]["reference"] == "ref-1"
        assert "ZeroDivision" not in str(answer)
        assert [(entry["event"], entry["reference"], entry["method"]) for entry in logs] == [
            ("request_failed", "ref-1", method)
        ]
        assert (await peer.ask(2, "echo", {"goes": "on"}))["result"] == {"goes": "on"}


async def test_a_declared_error_keeps_its_fields() -> None:
    async with listening() as server:
        peer = await raw_websocket(server)
        answer = await peer.ask("a", "decline")
        assert answer["id"] == "a"
        assert answer["error"]["data"] == {"_tag": "SessionNotFoundError", "session_id": "ses_none"}
        assert tag(await peer.ask(2, "no.such")) == "MethodNotFoundError"


async def test_a_crash_of_one_connection_reaches_no_other() -> None:
    async with listening(reference=lambda: "ref-2") as server:
        other, crashing = await raw_websocket(server), await raw_websocket(server)
        with capture_logs() as logs:
            await crashing.send(call(1, "crash"))
            assert await crashing.close_code() == 1011
        assert [(entry["event"], entry["reference"]) for entry in logs] == [("connection_failed", "ref-2")]
        assert (await other.ask(1, "echo"))["result"] == {}


async def test_requests_are_handed_over_in_frame_order_and_answered_when_ready() -> None:
    router = MadeUpRouter()
    async with listening(router) as server:
        peer = await raw_websocket(server)
        names = list(range(100))
        await peer.send(b"".join(call(name, "hold", {"name": name}) for name in names))
        await until(lambda: len(router.held) == 100)
        assert [params["name"] for _, params in router.asked] == names
        for name in reversed(names):
            router.held[name].resolve(name)
        assert [(await peer.message())["id"] for _ in names] == names[::-1]
        assert server.usage.requests == 0


async def test_an_id_in_flight_twice_is_refused_and_the_first_is_still_answered() -> None:
    router = MadeUpRouter()
    async with listening(router) as server:
        peer = await raw_websocket(server)
        await peer.send(call(7, "hold", {"name": "a"}))
        second = await peer.ask(7, "echo")
        assert second["id"] is None
        assert second["error"]["code"] == -32600
        router.held["a"].resolve("first")
        assert await peer.message() == {"jsonrpc": "2.0", "id": 7, "result": "first"}
        assert (await peer.ask(7, "echo"))["result"] == {}


async def test_a_cancelled_request_is_answered_so_and_its_later_answer_is_dropped() -> None:
    router = MadeUpRouter()
    async with listening(router) as server:
        peer = await raw_websocket(server)
        await peer.send(call(1, "hold", {"name": "a"}) + call(None, "rpc.cancel", {"id": 1}))
        assert tag(await peer.message()) == "RequestCancelledError"
        assert router.held["a"].abandoned, "a letter that was not taken yet is withdrawn"
        router.held["a"].resolve("late")
        assert (await peer.ask(1, "echo"))["result"] == {}, "the id is free again, and nothing else was sent"
        assert server.usage.requests == 0


async def test_a_cancelled_task_withdraws_its_letter_while_nobody_has_taken_it() -> None:
    router = MadeUpRouter()
    async with listening(router) as server:
        peer = await raw_websocket(server)
        await peer.send(call(1, "letter"))
        taken = await router.mailbox.take()
        await peer.send(call(2, "letter"))
        await until(lambda: len(router.mailbox) == 1)
        await peer.send(call(None, "rpc.cancel", {"id": 1}) + call(None, "rpc.cancel", {"id": 2}))
        assert [tag(await peer.message()), tag(await peer.message())] == ["RequestCancelledError"] * 2
        await until(lambda: all(letter.answer.abandoned for letter in router.letters))
        assert router.mailbox.take_nowait() is None
        taken.answer.resolve("late")
        assert (await peer.ask(1, "echo"))["result"] == {}
        assert server.usage.requests == 0


async def test_a_peer_that_leaves_withdraws_the_letters_of_its_tasks() -> None:
    router = MadeUpRouter()
    async with listening(router) as server:
        peer = await raw_websocket(server)
        await peer.send(call(1, "letter"))
        await until(lambda: len(router.mailbox) == 1)
        await peer.aclose()
        await until(lambda: server.usage.connections == 0)
        assert router.mailbox.take_nowait() is None


async def test_cancelling_what_is_not_in_flight_means_nothing() -> None:
    async with listening() as server:
        peer = await raw_websocket(server)
        for params in ({"id": 5}, {"id": None}, {}, {"subscription": 5}):
            await peer.send(call(None, "rpc.cancel", params) + call(None, "rpc.unsubscribe", params))
        assert (await peer.ask(1, "echo"))["result"] == {}


async def test_a_peer_that_leaves_wants_no_answers() -> None:
    router = MadeUpRouter()
    async with listening(router) as server:
        peer = await raw_websocket(server)
        await peer.send(call(1, "hold", {"name": "a"}))
        await until(lambda: router.held)
        await peer.aclose()
        await until(lambda: router.held["a"].abandoned)
        router.held["a"].resolve("too late")
        await until(lambda: server.usage.connections == 0)
        assert server.usage.requests == 0


async def test_faults_of_content_are_answered_and_the_connection_goes_on() -> None:
    async with listening() as server:
        peer = await raw_websocket(server)
        for content, code in ((b"{", -32700), (b"[]", -32600), (b'"x"', -32600), (b'{"jsonrpc":"2.0","id":1}', -32600)):
            await peer.send(client_frame(content))
            assert (await peer.message())["error"]["code"] == code
        await peer.send(call(None, "echo", {"nobody": "answers"}))
        assert (await peer.ask(2, "echo"))["id"] == 2


async def test_an_answer_larger_than_a_message_is_refused_instead() -> None:
    async with listening() as server:
        peer = await raw_websocket(server)
        assert tag(await peer.ask(1, "big", {"size": 17 * MIB})) == "InvalidRequestError"
        assert len((await peer.ask(2, "big", {"size": 15 * MIB}))["result"]["data"]) == 15 * MIB


# --- limits -----------------------------------------------------------------------------------------------------------


async def test_requests_beyond_the_limits_are_answered_overloaded() -> None:
    router = MadeUpRouter()
    async with listening(router, limits=Limits(requests=2, requests_in_all=3)) as server:
        first, second = await raw_websocket(server), await raw_websocket(server)
        await first.send(call(1, "hold", {"name": 1}) + call(2, "hold", {"name": 2}))
        answer = await first.ask(3, "echo")
        assert tag(answer) == "OverloadedError"
        assert answer["error"]["data"]["retryable"] is True
        await second.send(call(1, "hold", {"name": 3}))
        assert tag(await second.ask(2, "echo")) == "OverloadedError", "in all"
        router.held[1].resolve(None)
        assert (await first.message())["id"] == 1
        assert (await second.ask(3, "echo"))["result"] == {}


async def test_a_peer_that_reads_nothing_is_closed_1013_and_costs_bounded_memory() -> None:
    router = MadeUpRouter()
    async with listening(router) as server:
        peer = await raw_websocket(server)
        await peer.send(b"".join(call(number, "big", {"size": 12 * MIB}) for number in range(8)))
        await until(lambda: server.usage.connections == 0 or len(router.asked) > 2)
        received = 0
        while True:
            opcode, payload = await peer.frame()
            if opcode == 8:
                break
            received += len(payload)
        assert int.from_bytes(payload[:2], "big") == 1013
        assert received <= 32 * MIB
        assert len(router.asked) < 8, "once it is given up, nothing more of it is handed over"
        other = await raw_websocket(server)
        assert (await other.ask(1, "echo"))["result"] == {}


# --- who may speak ----------------------------------------------------------------------------------------------------


async def test_the_first_message_may_authenticate() -> None:
    router = MadeUpRouter()
    async with listening(router) as server:
        peer = await raw_websocket(server, Authorization=None)
        assert (await peer.ask(1, "rpc.authenticate", {"token": TOKEN}))["result"] is None
        assert (await peer.ask(2, "echo"))["result"] == {}
        assert (await peer.ask(3, "rpc.authenticate", {"token": "again"}))["result"] is None


@pytest.mark.parametrize(
    "first",
    [
        call(1, "echo"),
        call(1, "server.health"),
        call(1, "rpc.authenticate", {"token": "wrong"}),
        call(1, "rpc.authenticate", {"token": 5}),
        call(1, "rpc.authenticate"),
        call(1, "rpc.cancel", {"id": 1}),
    ],
)
async def test_who_says_anything_else_first_is_refused_and_closed(first: bytes) -> None:
    router = MadeUpRouter()
    async with listening(router) as server:
        peer = await raw_websocket(server, Authorization=None)
        await peer.send(first + call(2, "echo"))
        assert tag(await peer.message()) == "UnauthorizedError"
        assert await peer.close_code() == 1008
    assert router.asked == []


@pytest.mark.parametrize("first", [call(None, "echo"), call(None, "rpc.cancel", {"id": 1})])
async def test_a_notification_is_no_way_around_the_token(first: bytes) -> None:
    router = MadeUpRouter()
    async with listening(router) as server:
        peer = await raw_websocket(server, Authorization=None)
        await peer.send(first)
        assert await peer.close_code() == 1008


async def test_a_peer_that_does_not_authenticate_in_time_is_closed(autojump_clock: MockClock) -> None:
    async with listening() as server:
        peer = await raw_websocket(server, Authorization=None)
        started = trio.current_time()
        assert await peer.close_code() == 1008
        assert trio.current_time() - started == pytest.approx(10, abs=1)


async def test_a_peer_that_did_authenticate_may_stay_silent(autojump_clock: MockClock) -> None:
    async with listening() as server:
        peer = await raw_websocket(server, Authorization=None)
        await peer.ask(1, "rpc.authenticate", {"token": TOKEN})
        await trio.sleep(15)
        assert (await peer.ask(2, "echo"))["result"] == {}


async def test_a_stranger_may_not_send_much() -> None:
    async with listening() as server:
        peer, stranger = await raw_websocket(server, Authorization=None), await raw_websocket(server, Authorization=None)
        assert (await peer.ask(1, "rpc.authenticate", {"token": TOKEN}))["result"] is None
        assert len((await peer.ask(2, "echo", {"text": "x" * MIB}))["result"]["text"]) == MIB
        await stranger.send(client_frame(b"x" * 100_000))
        assert await stranger.close_code() == 1009


# --- streams ----------------------------------------------------------------------------------------------------------


async def no_pages(query: Callable[[Any], list[tuple[int, bytes]]]) -> list[tuple[int, bytes]]:
    raise AssertionError("live streams read no pages")


@asynccontextmanager
async def running_feed() -> AsyncGenerator[Feed]:
    feed = Feed(now_ms=lambda: 1_000)
    async with trio.open_nursery() as nursery:
        await nursery.start(feed.run, no_pages)
        yield feed
        feed.close()


def delta(text: str) -> Event:
    data = TextDelta(assistant_message_id=MessageId("msg_1"), part_id=PartId("prt_1"), offset=0, delta=text)
    return Event(type=data.type, created=1_000, session_id=SessionId("ses_1"), data=data)


async def test_the_answer_of_a_stream_precedes_its_items_and_unsubscribing_ends_it() -> None:
    async with running_feed() as feed, listening(MadeUpRouter(feed)) as server:
        peer = await raw_websocket(server)
        assert (await peer.ask(1, "watch"))["result"] == {"subscription": 1}
        connected = await peer.message()
        assert (connected["method"], connected["params"]["event"]["type"]) == ("next", "server.connected")
        feed.publish_live(delta("hello"))
        item = await peer.message()
        assert item["params"]["subscription"] == 1
        assert item["params"]["event"]["data"]["delta"] == "hello"
        await peer.send(call(None, "rpc.unsubscribe", {"subscription": 1}))
        assert await peer.message() == {"jsonrpc": "2.0", "method": "end", "params": {"subscription": 1}}
        feed.publish_live(delta("unheard"))
        assert (await peer.ask(2, "echo"))["result"] == {}
        assert (feed.statistics().live, server.usage.subscriptions) == (0, 0)


async def test_subscriptions_end_with_their_connection() -> None:
    async with running_feed() as feed, listening(MadeUpRouter(feed)) as server:
        peer = await raw_websocket(server)
        await peer.ask(1, "watch")
        await until(lambda: feed.statistics().live == 1)
        await peer.aclose()
        await until(lambda: feed.statistics().live == 0)
        assert server.usage.subscriptions == 0


async def test_streams_beyond_the_limit_are_refused_and_not_left_open() -> None:
    async with running_feed() as feed, listening(MadeUpRouter(feed), limits=Limits(subscriptions=1)) as server:
        peer = await raw_websocket(server)
        await peer.ask(1, "watch")
        await peer.message()
        assert tag(await peer.ask(2, "watch")) == "OverloadedError"
        assert feed.statistics().live == 1


class Opening:
    """A subscription that remembers what was done to it."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def start(self) -> None:
        self.done.append("start")

    def close(self) -> None:
        self.done.append("close")


async def test_a_stream_that_opens_after_its_request_was_cancelled_is_closed_unstarted() -> None:
    router = MadeUpRouter()
    async with listening(router) as server:
        peer = await raw_websocket(server)
        await peer.send(call(1, "hold", {"name": "a"}) + call(None, "rpc.cancel", {"id": 1}))
        assert tag(await peer.message()) == "RequestCancelledError"
        opening = Opening()
        router.held["a"].resolve(Opened(LiveStream(subscription=1), 1, opening))
        assert opening.done == ["close"]


# --- the same over memory ---------------------------------------------------------------------------------------------


async def over_memory(router: MadeUpRouter, **options: Any) -> tuple[Any, Callable[[], Awaitable[None]]]:
    ours, theirs = memory_pair(ended=TransportClosed)

    async def live() -> None:
        await serve_connection(theirs, router, codec=MSGPACK, authenticated=True, authenticate=lambda _: False, **options)

    return ours, live


async def test_the_memory_transport_is_served_alike() -> None:
    ours, live = await over_memory(MadeUpRouter())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(live)
        ours.send(MSGPACK.encode({"jsonrpc": "2.0", "id": 1, "method": "echo", "params": {"data": b"\xff"}}))
        assert msgspec.msgpack.decode(await ours.receive()) == {"jsonrpc": "2.0", "id": 1, "result": {"data": b"\xff"}}
        await ours.aclose()


async def test_a_memory_peer_with_too_much_unsent_is_closed() -> None:
    router = MadeUpRouter()
    ours, live = await over_memory(router, limits=Limits(unsent_bytes=MIB))
    with trio.fail_after(5):
        for number in range(8):
            ours.send(MSGPACK.encode({"jsonrpc": "2.0", "id": number, "method": "big", "params": {"size": 600_000}}))
        await live()
    assert len(router.asked) == 2


async def test_cancelling_a_connection_closes_its_transport() -> None:
    ours, live = await over_memory(MadeUpRouter())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(live)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    with pytest.raises(Exception, match="stopping"):
        await ours.receive()
