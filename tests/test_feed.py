"""The feed: order for everybody, patience with the slow, and a cursor that misses nothing.

Long, because all subscribers share one feed and its ways of lagging.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

import msgspec
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from steerway.actors import subscriber as subscriber_module
from steerway.actors.feed import HEARTBEAT_SECONDS, Feed
from steerway.actors.published import Published
from steerway.actors.subscriber import HIGH_WATER, LIVE_BUDGET_BYTES, LIVE_BUDGET_FRAMES
from steerway.protocol.codec import JSON, MSGPACK, Codec
from steerway.protocol.values import (
    Event,
    EventId,
    MessageId,
    PartId,
    ServerConnected,
    ServerDisposed,
    ServerHeartbeat,
    SessionId,
    Synced,
    SyntheticAdded,
    TextDelta,
    decode_event,
    decode_event_json,
    encode_event,
)
from steerway.protocol.values.errors import DeclaredError, SessionNotFoundError, SubscriberOverflowError
from steerway.storage.journal import StoredEvent

ONE, TWO = SessionId("ses_one"), SessionId("ses_two")


class Pipe:
    """A connection's way out whose other side reads when a test says so. Each frame has its length in front."""

    def __init__(self, *, joinable: bool = True, codec: Codec = MSGPACK) -> None:
        self.framing = f"pipe-{codec.subprotocol}"
        self.codec = codec
        self.joinable = joinable
        self.gone = False
        self.frames = 0
        self._queue: deque[bytes] = deque()
        self._size = 0
        self._drained = trio.lowlevel.ParkingLot()

    def frame(self, payload: bytes) -> bytes:
        return len(payload).to_bytes(4, "big") + payload

    def try_send(self, framed: bytes, frames: int = 1) -> int:
        assert self.joinable or frames == 1
        if self.gone:
            return -1
        self.frames += frames
        self._queue.append(framed)
        self._size += len(framed)
        return self._size

    @property
    def backlog(self) -> int:
        return 0 if self.gone else self._size

    async def wait_drained(self) -> None:
        while self._size > 64 * 1024 and not self.gone:
            await self._drained.park()

    def lose(self) -> None:
        self.gone = True
        self._drained.unpark_all()

    def read(self) -> list[Event]:
        """Everything that was sent since the last look."""
        data, self._size = b"".join(self._queue), 0
        self._queue.clear()
        self._drained.unpark_all()
        found: list[Event] = []
        while data:
            size = int.from_bytes(data[:4], "big")
            message: Any
            if self.codec.binary:
                message = msgspec.msgpack.decode(data[4 : 4 + size], type=dict[str, msgspec.Raw])
                params = msgspec.msgpack.decode(message["params"], type=dict[str, msgspec.Raw])
                found.append(decode_event(bytes(params["event"])))
            else:
                message = msgspec.json.decode(data[4 : 4 + size], type=dict[str, msgspec.Raw])
                params = msgspec.json.decode(message["params"], type=dict[str, msgspec.Raw])
                found.append(decode_event_json(bytes(params["event"])))
            data = data[4 + size :]
        return found


class Log:
    """A session's committed events, beside the feed that hears of them; `publish` may lag behind `commit`."""

    def __init__(self, feed: Feed, session_id: SessionId = ONE, size: int = 10) -> None:
        self.feed = feed
        self.session_id = session_id
        self.stored: list[StoredEvent] = []
        self.published = 0
        self.size = size

    def commit(self, count: int = 1) -> None:
        for _ in range(count):
            seq = len(self.stored) + 1
            data = SyntheticAdded(message_id=MessageId(f"msg_{seq}"), text="x" * self.size)
            event = Event(
                type=data.type, created=1, data=data, id=EventId(f"evt_{seq}"), session_id=self.session_id, seq=seq, version=1
            )
            self.stored.append(StoredEvent(self.session_id, seq, data.type, 1, encode_event(event)))

    def publish(self) -> None:
        fresh, self.published = self.stored[self.published :], len(self.stored)
        self.feed.publish(fresh)

    def append(self, count: int = 1) -> None:
        self.commit(count)
        self.publish()

    def events_page(self, session_id: SessionId, after: int, limit: int) -> list[tuple[int, bytes]]:
        return [(event.seq, event.body) for event in self.stored[after : after + limit] if session_id == self.session_id]


class Ends:
    def __init__(self) -> None:
        self.seen: list[tuple[int, DeclaredError | None]] = []

    def __call__(self, number: int, error: DeclaredError | None) -> None:
        self.seen.append((number, error))


ReadPage = Callable[[Callable[[Any], list[tuple[int, bytes]]]], Awaitable[list[tuple[int, bytes]]]]


@asynccontextmanager
async def running(read: ReadPage | None = None) -> AsyncGenerator[tuple[Feed, Log]]:
    feed = Feed(lambda: 1)
    log = Log(feed)

    async def page(query: Callable[[Any], list[tuple[int, bytes]]]) -> list[tuple[int, bytes]]:
        await trio.lowlevel.checkpoint()
        return query(log)

    async with trio.open_nursery() as nursery:
        await nursery.start(feed.run, read or page)
        try:
            yield feed, log
        finally:
            feed.close()


def delta(offset: int, text: str, part: str = "prt_1") -> Event:
    data = TextDelta(assistant_message_id=MessageId("msg_1"), part_id=PartId(part), offset=offset, delta=text)
    return Event(type=data.type, created=1, data=data, session_id=ONE)


def watch_live(feed: Feed, pipe: Pipe, number: int = 1, ends: Ends | None = None) -> Any:
    subscription = feed.subscribe_live(pipe, number, ends or Ends())
    subscription.start()
    return subscription


def watch(feed: Feed, pipe: Pipe, log: Log, after: int = 0, number: int = 1, ends: Ends | None = None) -> Any:
    subscription = feed.subscribe_session(
        pipe, number, ends or Ends(), session_id=log.session_id, after=after, head=len(log.stored)
    )
    subscription.start()
    return subscription


def seqs(events: list[Event]) -> list[int | None]:
    """Sequences in order; a `synced` item is shown as minus its sequence."""
    return [-event.data.seq if isinstance(event.data, Synced) else event.seq for event in events]


# --- live subscribers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [MSGPACK, JSON], ids=["msgpack", "json"])
@pytest.mark.parametrize("joinable", [True, False])
async def test_a_live_subscriber_gets_everything_from_its_start_in_order(codec: Codec, joinable: bool) -> None:
    async with running() as (feed, log):
        pipe = Pipe(joinable=joinable, codec=codec)
        log.append()
        watch_live(feed, pipe)
        log.append(2)
        feed.publish_live(delta(0, "a"))
        log.append()
        await wait_all_tasks_blocked()
        first, *rest = pipe.read()
        assert isinstance(first.data, ServerConnected)
        assert [event.seq for event in rest] == [2, 3, None, 4]


async def test_all_live_subscribers_see_one_order(autojump_clock: MockClock) -> None:
    async with running() as (feed, log):
        other = Log(feed, TWO)
        pipes = [Pipe(joinable=bool(number % 2), codec=(MSGPACK, JSON)[number // 2]) for number in range(4)]
        for number, pipe in enumerate(pipes):
            watch_live(feed, pipe, number)
        for _ in range(20):
            log.append()
            other.append(2)
            feed.publish_live(delta(0, "a"))
        await wait_all_tasks_blocked()
        views = [[(event.session_id, event.seq, event.type) for event in pipe.read()] for pipe in pipes]
        assert len(views[0]) == 81
        assert all(view == views[0] for view in views)


async def test_nothing_is_sent_before_the_start_or_after_the_close() -> None:
    async with running() as (feed, log):
        pipe = Pipe()
        subscription = feed.subscribe_live(pipe, 1, Ends())
        log.append()
        await wait_all_tasks_blocked()
        assert pipe.read() == []
        subscription.start()
        subscription.close()
        subscription.close()
        log.append()
        await wait_all_tasks_blocked()
        assert [type(event.data) for event in pipe.read()] == [ServerConnected]
        assert feed.statistics().live == 0


async def test_a_subscriber_beyond_its_budget_is_lost_alone() -> None:
    async with running() as (feed, log):
        slow, quick = Pipe(), Pipe()
        ends = Ends()
        watch_live(feed, slow, 1, ends)
        watch_live(feed, quick, 2)
        got: list[Event] = []
        log.size = HIGH_WATER
        log.append(2)
        await wait_all_tasks_blocked()
        log.size = 1
        for _ in range(LIVE_BUDGET_FRAMES // 256 + 1):
            got += quick.read()
            await wait_all_tasks_blocked()
            log.append(256)
            await wait_all_tasks_blocked()
        assert [number for number, _ in ends.seen] == [1]
        assert isinstance(ends.seen[0][1], SubscriberOverflowError)
        assert seqs(got + quick.read()) == [None, *range(1, len(log.stored) + 1)]
        found = feed.statistics()
        assert (found.live, found.overflowed) == (1, 1)
        sent = seqs(slow.read())
        assert sent == [None, *range(1, len(sent))]  # what it was sent has no gap


@pytest.mark.parametrize("joinable", [True, False])
async def test_a_burst_of_large_events_hands_over_no_more_than_one_of_them(joinable: bool) -> None:
    """One transaction promotes many large prompts; the connection must not be closed for what was never asked to be read."""
    async with running() as (feed, log):
        pipe, ends = Pipe(joinable=joinable), Ends()
        watch_live(feed, pipe, 1, ends)
        watch_live(feed, pipe, 2, ends)
        log.size = LIVE_BUDGET_BYTES + 1
        log.append(3)
        await wait_all_tasks_blocked()
        assert pipe.backlog < LIVE_BUDGET_BYTES + HIGH_WATER
        assert sorted(number for number, _ in ends.seen) == [1, 2]


async def test_a_large_event_alone_costs_no_subscription_however_many_share_the_connection() -> None:
    async with running() as (feed, log):
        pipe, ends = Pipe(), Ends()
        for number in (1, 2, 3):
            watch_live(feed, pipe, number, ends)
        await wait_all_tasks_blocked()
        pipe.read()
        log.size = LIVE_BUDGET_BYTES + 1
        log.append()
        got: list[int | None] = []
        for _ in range(3):
            await wait_all_tasks_blocked()
            assert pipe.backlog < LIVE_BUDGET_BYTES + HIGH_WATER
            got += seqs(pipe.read())
        assert got == [1, 1, 1]
        assert ends.seen == []


async def test_a_subscriber_that_lags_and_catches_up_missed_nothing() -> None:
    async with running() as (feed, log):
        pipe = Pipe()
        watch_live(feed, pipe)
        log.size = HIGH_WATER
        log.append(2)
        await wait_all_tasks_blocked()
        log.size = 1
        log.append(100)
        await wait_all_tasks_blocked()
        assert feed.statistics().lagging == 1
        got = pipe.read()  # the first of the large ones; the second had to wait for it
        await wait_all_tasks_blocked()
        got += pipe.read()
        await wait_all_tasks_blocked()
        assert feed.statistics().lagging == 0
        log.append()
        await wait_all_tasks_blocked()
        assert seqs(got + pipe.read())[1:] == list(range(1, 104))


async def test_adjacent_deltas_are_joined_for_who_lags_and_nobody_else() -> None:
    async with running() as (feed, log):
        slow, quick = Pipe(), Pipe()
        watch_live(feed, slow, 1)
        watch_live(feed, quick, 2)
        log.size = 2 * HIGH_WATER
        log.append()
        await wait_all_tasks_blocked()
        quick.read()
        await wait_all_tasks_blocked()
        log.size = 1
        feed.publish_live(delta(0, "He"))
        feed.publish_live(delta(2, "ll"))
        feed.publish_live(delta(4, "o"))
        feed.publish_live(delta(0, "x", "prt_2"))
        log.append()
        feed.publish_live(delta(5, "!"))
        await wait_all_tasks_blocked()
        slow.read()
        await wait_all_tasks_blocked()

        def deltas(pipe: Pipe) -> list[tuple[str, int, str] | None]:
            events = [event.data for event in pipe.read()]
            return [(data.part_id, data.offset, data.delta) if isinstance(data, TextDelta) else None for data in events]

        assert deltas(slow) == [("prt_1", 0, "Hello"), ("prt_2", 0, "x"), None, ("prt_1", 5, "!")]
        assert len(deltas(quick)) == 6


async def test_a_connection_that_is_gone_is_dropped_without_a_word() -> None:
    async with running() as (feed, log):
        live, durable = Pipe(), Pipe()
        ends = Ends()
        watch_live(feed, live, 1, ends)
        watch(feed, durable, log, 0, 2, ends)
        await wait_all_tasks_blocked()
        live.lose()
        durable.lose()
        log.append()
        await wait_all_tasks_blocked()
        found = feed.statistics()
        assert (found.live, found.durable, found.rings) == (0, 0, 0)
        assert ends.seen == []


async def test_silence_is_broken_by_heartbeats(autojump_clock: MockClock) -> None:
    async with running() as (feed, _):
        pipe = Pipe()
        watch_live(feed, pipe)
        await trio.sleep(HEARTBEAT_SECONDS * 3.5)
        assert [type(event.data) for event in pipe.read()] == [ServerConnected, *[ServerHeartbeat] * 3]


async def test_the_end_is_said_behind_everything_and_sent_at_once() -> None:
    async with running() as (feed, log):
        pipe = Pipe()
        watch_live(feed, pipe)
        log.append()
        feed.dispose()
        kinds = [type(event.data) for event in pipe.read()]
        assert kinds == [ServerConnected, SyntheticAdded, ServerDisposed]


async def test_without_subscribers_nothing_is_kept() -> None:
    async with running() as (feed, log):
        log.append(10)
        feed.publish_live(delta(0, "a"))
        await wait_all_tasks_blocked()
        pipe = Pipe()
        watch_live(feed, pipe)
        await wait_all_tasks_blocked()
        assert [type(event.data) for event in pipe.read()] == [ServerConnected]
        assert feed.statistics().published == 11


# --- durable subscribers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [MSGPACK, JSON], ids=["msgpack", "json"])
@pytest.mark.parametrize("joinable", [True, False])
async def test_a_durable_subscriber_replays_is_synced_and_follows(codec: Codec, joinable: bool) -> None:
    async with running() as (feed, log):
        log.append(5)
        pipe = Pipe(joinable=joinable, codec=codec)
        watch(feed, pipe, log, after=2)
        await wait_all_tasks_blocked()
        log.append(2)
        await wait_all_tasks_blocked()
        assert seqs(pipe.read()) == [3, 4, 5, -5, 6, 7]


async def test_a_replay_longer_than_a_page_needs_no_new_event_to_go_on() -> None:
    async with running() as (feed, log):
        log.append(1_300)
        pipe = Pipe()
        watch(feed, pipe, log)
        got: list[Event] = []
        for _ in range(3):
            await wait_all_tasks_blocked()
            got += pipe.read()
        assert seqs(got) == [*range(1, 1_301), -1_300]


async def test_at_the_head_synced_comes_first(autojump_clock: MockClock) -> None:
    async with running() as (feed, log):
        log.append(2)
        pipe, empty = Pipe(), Pipe()
        watch(feed, pipe, log, after=2)
        watch(feed, empty, Log(feed, TWO))
        await wait_all_tasks_blocked()
        assert seqs(pipe.read()) == [-2]
        assert seqs(empty.read()) == [0]


async def test_a_page_that_runs_ahead_of_publication_duplicates_nothing() -> None:
    """Ruling A13: what is behind the cursor is skipped, wherever it comes from."""
    async with running() as (feed, log):
        log.append(2)
        log.commit(3)
        pipe = Pipe()
        watch(feed, pipe, log)
        await wait_all_tasks_blocked()
        log.publish()
        log.append()
        await wait_all_tasks_blocked()
        got = seqs(pipe.read())
        assert got == [1, 2, 3, 4, 5, -5, 6]


async def test_a_slow_durable_subscriber_is_served_from_pages_and_never_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriber_module, "RING_EVENTS", 10)
    async with running() as (feed, log):
        pipe, ends = Pipe(), Ends()
        watch(feed, pipe, log, ends=ends)
        log.size = HIGH_WATER
        got: list[Event] = []
        for _ in range(5):
            log.append(3)
            await wait_all_tasks_blocked()
        log.size = 1
        log.append(1_500)
        await wait_all_tasks_blocked()
        while fresh := pipe.read():
            got += fresh
            await wait_all_tasks_blocked()
        assert seqs(got) == [0, *range(1, 1_516)]
        assert ends.seen == []


@pytest.mark.parametrize("joinable", [True, False])
async def test_a_replay_of_large_events_queues_no_more_than_a_few_of_them(joinable: bool) -> None:
    """Ruling D4 closes a connection with too much unsent: a long replay must never be the reason."""
    async with running() as (feed, log):
        log.size = HIGH_WATER // 2
        log.append(100)
        pipe = Pipe(joinable=joinable)
        watch(feed, pipe, log)
        got: list[Event] = []
        await wait_all_tasks_blocked()
        while fresh := pipe.read():
            assert len(fresh) <= 5
            got += fresh
            await wait_all_tasks_blocked()
        assert seqs(got) == [*range(1, 101), -100]


async def test_a_session_that_ends_ends_its_durable_subscribers_only() -> None:
    async with running() as (feed, log):
        other = Log(feed, TWO)
        one, two, live, ends = Pipe(), Pipe(), Pipe(), Ends()
        watch(feed, one, log, 0, 1, ends)
        watch(feed, two, other, 0, 2, ends)
        watch_live(feed, live, 3, ends)
        await wait_all_tasks_blocked()
        gone = SessionNotFoundError("removed")
        feed.end_session(ONE, gone)
        assert ends.seen == [(1, gone)]
        other.append()
        await wait_all_tasks_blocked()
        assert seqs(two.read()) == [0, 1]


async def test_a_page_that_cannot_be_read_ends_its_subscriber_with_the_error() -> None:
    error = SessionNotFoundError("gone")

    async def read(_: Any) -> list[tuple[int, bytes]]:
        await trio.lowlevel.checkpoint()
        raise error

    async with running(read) as (feed, log):
        pipe, ends = Pipe(), Ends()
        watch(feed, pipe, log, ends=ends)
        await wait_all_tasks_blocked()
        assert ends.seen == [(1, error)]
        assert feed.statistics().durable == 0


Act = Literal["commit", "publish", "read", "yield", "rest", "join", "big", "leave"]
ACTS: tuple[Act, ...] = ("commit", "publish", "publish", "read", "yield", "rest", "join", "big", "big", "leave")


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    acts=st.lists(
        st.sampled_from(("commit", "publish", "publish", "read", "yield", "rest", "join", "big", "big", "leave")), max_size=60
    ),
    ring=st.sampled_from((1, 3, 1_024)),
    joinable=st.booleans(),
)
async def test_no_schedule_of_publishing_and_reading_makes_a_gap_or_a_duplicate(
    acts: list[Act], ring: int, joinable: bool
) -> None:
    """Subscribers join anywhere, read now and then, some leave; each is sent its range once, in order, and synced once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subscriber_module, "RING_EVENTS", ring)
        patch.setattr("steerway.actors.feed.PAGE_ROWS", 4)
        async with running() as (feed, log):
            watchers: list[tuple[Pipe, int, int, list[Event]]] = []
            subscriptions: list[Any] = []
            numbers = itertools.count(1)
            for act in ("join", "rest", *acts):
                match act:
                    case "commit":
                        log.commit(2)
                    case "big":
                        log.size = HIGH_WATER
                        log.commit()
                        log.size = 10
                    case "publish":
                        log.publish()
                    case "read":
                        for pipe, _, _, got in watchers:
                            got += pipe.read()
                    case "yield":
                        await trio.lowlevel.checkpoint()
                    case "rest":
                        await wait_all_tasks_blocked()
                    case "join":
                        pipe, number = Pipe(joinable=joinable), next(numbers)
                        after = len(log.stored) * (number % 3) // 3
                        watchers.append((pipe, after, len(log.stored), []))
                        subscriptions.append(watch(feed, pipe, log, after, number))
                    case "leave" if len(subscriptions) > 1:
                        subscriptions.pop(0).close()
                        watchers.pop(0)
                    case _:
                        pass
            log.publish()
            fresh = True
            while fresh:
                await wait_all_tasks_blocked()
                fresh = False
                for pipe, _, _, got in watchers:
                    read = pipe.read()
                    got += read
                    fresh = fresh or bool(read)
            for _, after, head, got in watchers:
                expected: list[int | None] = list(range(after + 1, len(log.stored) + 1))
                expected.insert(head - after, -head)
                assert seqs(got) == expected
            found = feed.statistics()
            assert (found.durable, found.rings) == (len(watchers), bool(watchers))


def test_the_same_bytes_serve_every_connection_of_a_framing() -> None:
    """Ruling B16, seen from outside: frames of one event for one number are one object."""
    published = Published.live(delta(0, "a"))
    one, two, json = Pipe(), Pipe(), Pipe(codec=JSON)
    assert published.frame(one, 1) is published.frame(two, 1)
    assert published.frame(one, 1) is not published.frame(one, 2)
    assert published.frame(json, 1) != published.frame(one, 1)
