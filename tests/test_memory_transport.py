"""The transport inside one process: two byte backlogs, and a server half that serves gateway and feed."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from steerway.actors.client import memory_pair
from steerway.actors.client.backlog import Backlog
from steerway.actors.client.memory import LOW_WATER
from steerway.actors.client.transport import HIGH_WATER
from steerway.protocol.codec import JSON
from steerway.protocol.values.errors import ClientError


class _Gone(Exception):
    pass


async def test_frames_arrive_whole_and_in_order_both_ways() -> None:
    near, peer = memory_pair(JSON)
    near.send(b"one")
    near.send(b"two")
    assert [await peer.receive(), await peer.receive()] == [b"one", b"two"]
    assert peer.try_send(peer.frame(b"three")) == 5
    assert peer.try_send(b"four") == 9
    assert [await near.receive(), await near.receive()] == [b"three", b"four"]
    assert peer.backlog == 0
    assert (near.codec, peer.codec, peer.framing, peer.joinable) == (JSON, JSON, "memory", False)


async def test_both_ends_can_send_megabytes_before_either_reads() -> None:
    near, peer = memory_pair()
    for _ in range(10):
        near.send(bytes(1_000_000))
        assert peer.try_send(bytes(1_000_000)) > 0
    for _ in range(10):
        assert len(await peer.receive()) == len(await near.receive()) == 1_000_000


async def test_a_receiver_waits_for_a_frame_and_a_cancelled_one_loses_none() -> None:
    near, peer = memory_pair()
    with trio.move_on_after(0):
        await peer.receive()
    got: list[bytes] = []

    async def receive() -> None:
        got.append(await peer.receive())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await wait_all_tasks_blocked()
        near.send(b"late")
    assert got == [b"late"]


async def test_the_client_gets_what_was_queued_before_the_server_closed_and_then_why() -> None:
    near, peer = memory_pair()
    peer.try_send(b"last")
    await peer.aclose(1001, "shutting down")
    assert peer.try_send(b"too late") == -1
    assert await near.receive() == b"last"
    with pytest.raises(ClientError, match="shutting down") as caught:
        await near.receive()
    assert caught.value.reason == "closed"
    with pytest.raises(ClientError, match="shutting down"):
        near.send(b"too late")


async def test_the_server_gets_what_was_sent_before_the_client_closed_and_then_its_own_error() -> None:
    near, peer = memory_pair(ended=_Gone)
    peer.try_send(b"never read")
    near.send(b"last")
    await near.aclose()
    assert peer.try_send(b"too late") == -1
    assert await peer.receive() == b"last"
    with pytest.raises(_Gone):
        await peer.receive()


async def test_closing_wakes_everybody_who_waits() -> None:
    near, peer = memory_pair(ended=_Gone)
    near.send(bytes(HIGH_WATER))
    peer.try_send(bytes(LOW_WATER))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(near.wait_writable)
        nursery.start_soon(peer.wait_drained)
        await wait_all_tasks_blocked()
        assert len(nursery.child_tasks) == 2
        await peer.aclose()


async def test_writers_wait_for_room_and_the_server_for_the_low_water_mark() -> None:
    near, peer = memory_pair()
    near.send(bytes(HIGH_WATER))
    peer.try_send(bytes(LOW_WATER))
    peer.try_send(b"x")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(near.wait_writable)
        nursery.start_soon(peer.wait_drained)
        await wait_all_tasks_blocked()
        assert len(nursery.child_tasks) == 2
        await peer.receive()
        await wait_all_tasks_blocked()
        assert len(nursery.child_tasks) == 1
        await near.receive()


@pytest.mark.parametrize("mebibytes", [1, None])
async def test_the_server_can_leave_so_much_unsent(mebibytes: int | None) -> None:
    near, peer = memory_pair() if mebibytes is None else memory_pair(max_unsent=mebibytes << 20)
    frame = bytes(1 << 20)
    taken = 0
    while peer.try_send(frame) >= 0:
        taken += 1
    assert taken == (mebibytes or 32)
    assert peer.backlog == taken << 20
    assert len(await near.receive()) == 1 << 20
    assert peer.try_send(frame) >= 0


def test_a_backlog_refuses_what_goes_beyond_its_capacity_but_takes_any_single_frame() -> None:
    backlog = Backlog(10)
    assert backlog.append(bytes(20))
    assert not backlog.append(b"x")
    assert backlog.size == 20
    backlog.close(discard=True)
    assert backlog.size == 0


async def test_several_frames_in_one_piece_are_a_mistake_of_the_caller() -> None:
    _, peer = memory_pair()
    with pytest.raises(ValueError, match="one frame"):
        peer.try_send(b"ab", 2)
