"""The client's streams: opening, leaving, falling behind, ending, and following over several connections.

Long, because all streams share one scripted server.
"""

import gc
import warnings
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from steerway.actors.client import Client, EventStream, connect
from steerway.actors.client.intake import MAX_BYTES, MAX_ITEMS
from steerway.protocol.codec import CODECS, JSON, Codec
from steerway.protocol.values import (
    Event,
    Health,
    ServerConnected,
    Synced,
    TextDelta,
    TextEnded,
    UnknownData,
)
from steerway.protocol.values.errors import (
    ClientError,
    CursorExpiredError,
    DeclaredError,
    OverloadedError,
    ServiceUnavailableError,
    SessionNotFoundError,
    SubscriberOverflowError,
)
from steerway.protocol.values.ids import Generation, MessageId, PartId
from support.far_end import OPENED, SESSION, Asked, FarEnd, MemoryServer, client_in_memory, delta, durable

CONNECTED = Event(type="server.connected", created=0, data=ServerConnected())


def text(seq: int, content: str = "") -> Event:
    return durable(seq, TextEnded(assistant_message_id=MessageId("msg_1"), part_id=PartId("prt_1"), text=content))


def synced(seq: int) -> Event:
    return Event(type="synced", created=0, session_id=SESSION, data=Synced(seq=seq))


async def take(stream: AsyncIterator[Event], count: int) -> list[Event]:
    return [await anext(stream) for _ in range(count)]


def places(events: list[Event]) -> list[int | None]:
    """What tells these events from each other: the sequence, or the offset of a delta."""
    return [event.data.offset if isinstance(event.data, TextDelta) else event.seq for event in events]


async def _healthy(client: Client, far: FarEnd) -> None:
    async with trio.open_nursery() as nursery:
        asked = Asked(nursery, client.server.health)
        await far.answer(await far.request("server.health"), {"healthy": True})
        assert await asked.result() == Health(healthy=True)


async def _opened(nursery: trio.Nursery, far: FarEnd, stream: EventStream[Any], **fields: Any) -> None:
    """Open a stream whose first item is `server.connected`, and take that."""
    asked = Asked(nursery, stream.__anext__)
    await far.open(**fields)
    await far.item(CONNECTED, fields.get("subscription", 1))
    assert await asked.result() == CONNECTED


async def _unsubscribed(far: FarEnd, subscription: int = 1) -> None:
    notification = await far.notification()
    assert (notification.method, notification.params) == ("rpc.unsubscribe", {"subscription": subscription})


async def _play(far: FarEnd, event: Event, asked: Asked[None]) -> None:
    await far.item(event)
    await asked.result()


# --- opening ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
async def test_a_stream_opens_at_its_first_item_and_gives_typed_events(codec: Codec) -> None:
    async with client_in_memory(codec) as (client, far), trio.open_nursery() as nursery:
        stream = client.sessions.events(SESSION, after=3)
        await _healthy(client, far)  # nothing was asked before the first item
        asked = Asked(nursery, stream.__anext__)
        request = await far.open(head=4)
        assert (request.method, request.params) == ("sessions.events", {"session_id": "ses_1", "after": 3})
        await far.item(text(4, "hello"))
        assert await asked.result() == text(4, "hello")
        assert stream.opening is not None
        assert (stream.opening.head, stream.opening.generation) == (4, "gen_1")
        await stream.aclose()
        await _unsubscribed(far)


async def test_items_that_come_right_behind_the_opening_answer_are_not_lost() -> None:
    async with client_in_memory() as (client, far), trio.open_nursery() as nursery, client.events.subscribe() as stream:
        asked = Asked(nursery, lambda: take(stream, 3))
        request = await far.request("events.subscribe")
        await far.answer(request, OPENED)
        for offset in range(3):
            await far.item(delta(offset))
        assert places(await asked.result()) == [0, 1, 2]


async def test_an_error_of_opening_is_raised_at_the_first_item() -> None:
    async with client_in_memory() as (client, far), trio.open_nursery() as nursery, client.sessions.events(SESSION) as stream:
        asked = Asked(nursery, stream.__anext__)
        await far.fail(await far.request(), SessionNotFoundError("No such session."))
        with pytest.raises(SessionNotFoundError):
            await asked.result()
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


async def test_an_opening_answer_of_another_shape_fails_the_stream_alone() -> None:
    async with client_in_memory() as (client, far), trio.open_nursery() as nursery, client.sessions.events(SESSION) as stream:
        asked = Asked(nursery, stream.__anext__)
        await far.answer(await far.request(), {"subscription": "one"})
        with pytest.raises(ClientError, match="opens the stream") as caught:
            await asked.result()
        assert caught.value.reason == "malformed"
        await _healthy(client, far)


async def test_a_stream_whose_opening_was_cancelled_is_closed_when_its_answer_comes_and_can_be_opened_again() -> None:
    async with client_in_memory() as (client, far), trio.open_nursery() as nursery, client.events.subscribe() as stream:
        asked = Asked(nursery, stream.__anext__)
        request = await far.request()
        asked.scope.cancel()
        assert (await far.notification()).params == {"id": request.id}
        await far.answer(request, {"subscription": 7})
        await far.item(delta(0), 7)
        await _unsubscribed(far, 7)
        await _opened(nursery, far, stream, subscription=8)


async def test_a_stream_closed_while_it_opens_is_left_when_its_answer_comes() -> None:
    async with client_in_memory() as (client, far), trio.open_nursery() as nursery:
        stream = client.events.subscribe()
        asked = Asked(nursery, stream.__anext__)
        request = await far.request()
        await stream.aclose()
        await far.answer(request, OPENED)
        with pytest.raises(StopAsyncIteration):
            await asked.result()
        await _unsubscribed(far)


# --- items --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
async def test_an_event_of_an_unknown_type_is_handed_out_as_it_came(codec: Codec) -> None:
    async with client_in_memory(codec) as (client, far), trio.open_nursery() as nursery, client.events.subscribe() as stream:
        await _opened(nursery, far, stream)
        await far.item(durable(5, UnknownData(fields={"petals": 7}), "session.flower.opened"))
        event = await anext(stream)
        assert (event.type, event.seq, event.data) == ("session.flower.opened", 5, UnknownData(fields={"petals": 7}))


async def test_an_event_that_cannot_be_read_ends_its_stream_alone() -> None:
    async with client_in_memory(JSON) as (client, far), trio.open_nursery() as nursery, client.events.subscribe() as stream:
        await _opened(nursery, far, stream)
        await far.send(
            JSON.item_prefix(1) + b'{"type":"session.text.delta","created":0,"data":{"offset":"far"}}' + JSON.item_suffix
        )
        with pytest.raises(ClientError, match=r"events\.subscribe") as caught:
            await anext(stream)
        assert caught.value.reason == "malformed"
        await _unsubscribed(far)
        await _healthy(client, far)


async def test_a_cancelled_wait_for_an_item_loses_none() -> None:
    async with client_in_memory() as (client, far), trio.open_nursery() as nursery, client.events.subscribe() as stream:
        await _opened(nursery, far, stream)
        with trio.move_on_after(0):
            await anext(stream)
        await far.item(delta(1))
        with trio.move_on_after(0):
            await anext(stream)
        await far.item(delta(2))
        assert places(await take(stream, 2)) == [1, 2]


async def test_two_tasks_cannot_wait_for_one_streams_next_item() -> None:
    async with client_in_memory() as (client, far), trio.open_nursery() as nursery, client.events.subscribe() as stream:
        await _opened(nursery, far, stream)
        asked = Asked(nursery, stream.__anext__)
        await wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await anext(stream)
        await far.item(delta(1))
        assert places([await asked.result()]) == [1]


# --- leaving ------------------------------------------------------------------------------------------------------


async def test_leaving_the_block_unsubscribes_once_and_drops_what_is_held() -> None:
    async with client_in_memory() as (client, far), trio.open_nursery() as nursery:
        async with client.events.subscribe() as stream:
            await _opened(nursery, far, stream)
            await far.item(delta(1))
        await _unsubscribed(far)
        await stream.aclose()
        await far.item(delta(2))
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        await _healthy(client, far)


async def test_a_stream_that_never_opened_is_left_without_a_word() -> None:
    async with client_in_memory() as (client, far):
        async with client.events.subscribe():
            pass
        client.events.subscribe()
        gc.collect()
        await _healthy(client, far)


async def test_closing_a_stream_wakes_the_task_that_waits_for_its_next_item() -> None:
    async with client_in_memory() as (client, far), trio.open_nursery() as nursery:
        stream = client.events.subscribe()
        await _opened(nursery, far, stream)
        asked = Asked(nursery, stream.__anext__)
        await wait_all_tasks_blocked()
        await stream.aclose()
        with pytest.raises(StopAsyncIteration):
            await asked.result()


async def test_breaking_out_of_a_stream_warns_and_unsubscribes() -> None:
    async with client_in_memory() as (client, far), trio.open_nursery() as nursery:

        async def read_one() -> None:
            async for _ in client.events.subscribe():
                break
            gc.collect()

        asked = Asked(nursery, read_one)
        await far.open()
        with pytest.warns(ResourceWarning, match=r"events\.subscribe was dropped"):
            await _play(far, delta(0), asked)
        await _unsubscribed(far)
        await _healthy(client, far)


async def test_a_stream_dropped_after_its_end_or_its_clients_end_does_not_warn() -> None:
    with warnings.catch_warnings(record=True) as caught:
        async with client_in_memory() as (client, far), trio.open_nursery() as nursery:
            ended, open_still = client.events.subscribe(), client.events.subscribe()
            await _opened(nursery, far, ended, subscription=1)
            await _opened(nursery, far, open_still, subscription=2)
            await far.end(None, 1)
            await _healthy(client, far)
            del ended
            await client.aclose()
            del open_still
            gc.collect()
    assert caught == []


# --- the end ------------------------------------------------------------------------------------------------------


async def test_an_orderly_end_comes_after_the_last_item() -> None:
    async with client_in_memory() as (client, far), trio.open_nursery() as nursery, client.events.subscribe() as stream:
        await _opened(nursery, far, stream)
        await far.item(delta(1))
        await far.end()
        assert places([event async for event in stream]) == [1]


async def test_an_end_with_an_error_raises_it_once_after_the_last_item() -> None:
    async with client_in_memory() as (client, far), trio.open_nursery() as nursery, client.events.subscribe() as stream:
        await _opened(nursery, far, stream)
        await far.item(delta(1))
        await far.end(DeclaredError("Gone.", tag="GoneError"))
        assert places([await anext(stream)]) == [1]
        with pytest.raises(DeclaredError, match="Gone") as caught:
            await anext(stream)
        assert caught.value.tag == "GoneError"
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


async def test_a_server_that_goes_ends_streams_after_what_it_had_sent() -> None:
    async with client_in_memory() as (client, far), trio.open_nursery() as nursery, client.events.subscribe() as stream:
        await _opened(nursery, far, stream)
        await far.item(delta(1))
        await far.aclose()
        await wait_all_tasks_blocked()
        assert places([await anext(stream)]) == [1]
        with pytest.raises(ClientError) as caught:
            await anext(stream)
        assert caught.value.reason == "closed"
        with pytest.raises(ClientError):
            await anext(client.events.subscribe())


# --- falling behind -----------------------------------------------------------------------------------------------


async def test_a_slow_consumer_blocks_neither_another_stream_nor_answers() -> None:
    async with client_in_memory() as (client, far), trio.open_nursery() as nursery:
        slow, quick = client.events.subscribe(), client.events.subscribe()
        async with slow, quick:
            await _opened(nursery, far, slow, subscription=1)
            await _opened(nursery, far, quick, subscription=2)
            for offset in range(MAX_ITEMS * 3):
                await far.item(delta(offset), 1)
                await far.item(delta(offset), 2)
                assert places([await anext(quick)]) == [offset]
                if offset == MAX_ITEMS:
                    await _unsubscribed(far, 1)
            await _healthy(client, far)
            assert places(await take(slow, MAX_ITEMS)) == list(range(MAX_ITEMS))
            with pytest.raises(SubscriberOverflowError):
                await anext(slow)


async def test_a_live_stream_holds_four_mebibytes_and_a_larger_item_alone() -> None:
    async with client_in_memory() as (client, far), trio.open_nursery() as nursery, client.events.subscribe() as stream:
        await _opened(nursery, far, stream)
        await far.item(delta(0, "x" * (MAX_BYTES + 1)))
        await wait_all_tasks_blocked()
        assert places([await anext(stream)]) == [0]
        for offset in range(1, 6):
            await far.item(delta(offset, "x" * (MAX_BYTES // 4)))
        await _unsubscribed(far)
        assert places(await take(stream, 3)) == [1, 2, 3]
        with pytest.raises(SubscriberOverflowError):
            await anext(stream)


async def test_a_durable_stream_that_overflows_goes_on_where_it_stopped_without_its_consumer_noticing() -> None:
    async with client_in_memory() as (client, far), trio.open_nursery() as nursery, client.sessions.events(SESSION) as stream:
        asked = Asked(nursery, lambda: take(stream, 1))
        await far.open(subscription=1)
        await far.item(synced(0))
        assert await asked.result() == [synced(0)]
        for seq in range(1, MAX_ITEMS + 100):
            await far.item(text(seq), 1)
        await _unsubscribed(far, 1)
        asked = Asked(nursery, lambda: take(stream, MAX_ITEMS + 100))
        request = await far.open(subscription=2)
        assert request.params == {"session_id": "ses_1", "after": MAX_ITEMS, "generation": "gen_1"}
        for seq in range(MAX_ITEMS + 1, MAX_ITEMS + 100):
            await far.item(text(seq), 1)  # what was still on its way when the client left
        for seq in range(MAX_ITEMS + 1, MAX_ITEMS + 101):
            await far.item(text(seq), 2)
            await far.item(synced(seq), 2)
        assert places(await asked.result()) == list(range(1, MAX_ITEMS + 101))


async def test_a_durable_stream_that_cannot_be_taken_up_again_ends_with_the_servers_reason() -> None:
    async with client_in_memory() as (client, far), trio.open_nursery() as nursery, client.sessions.events(SESSION) as stream:
        await _opened(nursery, far, stream)
        for seq in range(1, MAX_ITEMS + 2):
            await far.item(text(seq))
        await _unsubscribed(far)
        assert places(await take(stream, MAX_ITEMS)) == list(range(1, MAX_ITEMS + 1))
        asked = Asked(nursery, stream.__anext__)
        await far.fail(await far.request(), CursorExpiredError("Another history."))
        with pytest.raises(CursorExpiredError):
            await asked.result()


# --- following ----------------------------------------------------------------------------------------------------


async def test_following_goes_on_over_a_new_connection_after_the_last_event(autojump_clock: MockClock) -> None:
    server = MemoryServer()
    async with (
        connect(transport=server) as client,
        trio.open_nursery() as nursery,
        client.sessions.follow(SESSION, jitter=lambda: 1.0) as following,
    ):
        asked = Asked(nursery, lambda: take(following, 3))
        far = await server.accept()
        await far.open()
        for event in (text(1), synced(1), text(2)):
            await far.item(event)
        assert places(await asked.result()) == [1, None, 2]
        await far.aclose()
        asked = Asked(nursery, lambda: take(following, 1))
        second = await server.accept()
        request = await second.open()
        assert request.params == {"session_id": "ses_1", "after": 2, "generation": "gen_1"}
        await second.item(synced(2))  # the marker was handed out already
        await second.item(text(3))
        assert places(await asked.result()) == [3]
        assert (following.after, following.generation) == (3, "gen_1")
        assert server.opened == [0, 0.5]
    await _unsubscribed(second)
    with pytest.raises(trio.EndOfChannel):  # its own connection ended with it
        await second.notification()


async def test_following_waits_longer_each_time_and_less_after_an_event(autojump_clock: MockClock) -> None:
    refused = ClientError("refused", "Busy.", status=503)
    unreachable = ClientError("transport", "Nobody there.")
    server = MemoryServer()
    async with connect(transport=server) as client, trio.open_nursery() as nursery:
        far = await server.accept()
        server._refusals += [unreachable, refused, *[unreachable] * 6]  # pyright: ignore[reportPrivateUsage]
        async with client.sessions.follow(SESSION, after=7, jitter=lambda: 0.0) as following:
            asked = Asked(nursery, lambda: take(following, 1))
            await far.request()
            await far.aclose()
            second = await server.accept()
            assert (await second.open()).params == {"session_id": "ses_1", "after": 7}
            pauses = [later - earlier for earlier, later in zip(server.opened[1:], server.opened[2:], strict=False)]
            assert pauses == [0.5, 1, 2, 4, 8, 15, 15, 15]
            await second.item(text(8))
            await asked.result()
            asked = Asked(nursery, lambda: take(following, 1))
            await second.aclose()
            third = await server.accept()
            assert server.opened[-1] - server.opened[-2] == 0.25
            await third.open()
            await third.item(text(9))
            assert places(await asked.result()) == [9]


@pytest.mark.parametrize(
    "error", [CursorExpiredError("Another history."), SessionNotFoundError("Removed."), DeclaredError("New.", tag="NewError")]
)
async def test_following_ends_with_what_another_attempt_cannot_mend(error: DeclaredError) -> None:
    server = MemoryServer()
    async with connect(transport=server) as client, trio.open_nursery() as nursery:
        following = client.sessions.follow(SESSION, after=9, generation=Generation("gen_0"))
        asked = Asked(nursery, following.__anext__)
        far = await server.accept()
        request = await far.request()
        assert request.params == {"session_id": "ses_1", "after": 9, "generation": "gen_0"}
        await far.fail(request, error)
        with pytest.raises(DeclaredError) as caught:
            await asked.result()
        assert caught.value.tag == error.tag
        with pytest.raises(StopAsyncIteration):
            await anext(following)


async def test_following_ends_when_the_server_refuses_its_token(autojump_clock: MockClock) -> None:
    server = MemoryServer()
    async with connect(transport=server) as client, trio.open_nursery() as nursery:
        far = await server.accept()
        server._refusals.append(ClientError("refused", "Wrong token.", status=401))  # pyright: ignore[reportPrivateUsage]
        asked = Asked(nursery, client.sessions.follow(SESSION).__anext__)
        await far.request()
        await far.aclose()
        with pytest.raises(ClientError, match="Wrong token"):
            await asked.result()


@pytest.mark.parametrize("error", [OverloadedError("Busy."), ServiceUnavailableError("Stopping.")])
async def test_following_asks_again_on_the_same_connection_what_may_be_retried(
    autojump_clock: MockClock, error: DeclaredError
) -> None:
    async with client_in_memory() as (client, far), trio.open_nursery() as nursery:
        following = client.sessions.follow(SESSION)
        async with following:
            asked = Asked(nursery, following.__anext__)
            await far.fail(await far.request(), error)
            await far.open(subscription=1)
            await far.end(error, 1)
            await far.open(subscription=2)
            await far.end(None, 2)
            await far.open(subscription=3)
            await far.item(text(1), 3)
            assert await asked.result() == text(1)


async def test_following_over_a_client_that_cannot_reconnect_ends_with_its_connection() -> None:
    async with client_in_memory() as (client, far), trio.open_nursery() as nursery:
        asked = Asked(nursery, client.sessions.follow(SESSION).__anext__)
        await far.request()
        await far.aclose()
        with pytest.raises(ClientError) as caught:
            await asked.result()
        assert caught.value.reason == "closed"


async def test_following_does_not_reconnect_for_a_client_that_was_closed() -> None:
    server = MemoryServer()
    async with connect(transport=server) as client, trio.open_nursery() as nursery:
        asked = Asked(nursery, client.sessions.follow(SESSION).__anext__)
        await (await server.accept()).request()
        await client.aclose()
        with pytest.raises(ClientError) as caught:
            await asked.result()
        assert caught.value.reason == "closed"
        assert len(server.opened) == 1


async def test_a_wait_of_following_can_be_cancelled_and_taken_up_again(autojump_clock: MockClock) -> None:
    server = MemoryServer()
    async with connect(transport=server) as client, trio.open_nursery() as nursery:
        far = await server.accept()
        await far.aclose()
        async with client.sessions.follow(SESSION) as following:
            with trio.move_on_after(0.1):
                await anext(following)
            assert len(server.opened) == 1
            asked = Asked(nursery, following.__anext__)
            second = await server.accept()
            await second.open()
            await second.item(text(1))
            assert await asked.result() == text(1)


async def test_following_that_was_only_dropped_closes_its_own_connection(autojump_clock: MockClock) -> None:
    server = MemoryServer()
    async with connect(transport=server) as client, trio.open_nursery() as nursery:
        await (await server.accept()).aclose()

        async def read_one() -> None:
            async for _ in client.sessions.follow(SESSION):
                break
            gc.collect()

        asked = Asked(nursery, read_one)
        second = await server.accept()
        await second.open()
        with pytest.warns(ResourceWarning, match=r"sessions\.events was dropped"):
            await _play(second, text(1), asked)
        with pytest.raises(trio.EndOfChannel):
            await second.notification()
