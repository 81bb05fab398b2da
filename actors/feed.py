"""The feed: every event is encoded once and handed to everybody who watches.

Rules:
- Publishing is a synchronous append that never waits and never refuses; the feed's own task sends (ruling A2).
- A *live* subscriber gets everything from its start on, in publish order. One that falls behind has a budget in bytes and in
  frames; while it lags, adjacent deltas of one fragment may be joined for it, nothing else is altered. Beyond the budget only
  its own subscription ends, with `SubscriberOverflowError`, after what was queued.
- A *durable* subscriber is a cursor: the next sequence it needs. Ring and storage pages are only two places to read that
  sequence from; it is registered before its first page, so there is no seam to fall into. A page may run ahead of publication:
  what lies behind the cursor is skipped (ruling A13). It is never dropped for being slow and costs a bounded amount of memory.
- Frames made for one framing and one subscription id are shared by all connections of that kind (ruling B16).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

import trio

from ..protocol.codec import Codec
from ..protocol.values.errors import DeclaredError, SubscriberOverflowError
from ..protocol.values.event import (
    Event,
    EventData,
    ReasoningDelta,
    ServerConnected,
    ServerDisposed,
    ServerHeartbeat,
    Synced,
    TextDelta,
    ToolInputDelta,
    encode_event,
    event_as_json,
)
from ..protocol.values.ids import SessionId
from ..storage.journal import StoredEvent
from ..storage.reader import Reader

HIGH_WATER = 256 * 1024
"""Bytes queued on a connection beyond which a subscriber leaves the direct path."""
LIVE_BUDGET_BYTES = 4 * 1024 * 1024
LIVE_BUDGET_FRAMES = 4_096
RING_EVENTS = 1_024
RING_BYTES = 1024 * 1024
PAGE = 512
HEARTBEAT_SECONDS = 15

_Page = list[tuple[int, bytes]]
ReadPage = Callable[[Callable[[Reader], _Page]], Awaitable[_Page]]
OnEnd = Callable[[int, DeclaredError | None], None]


class Outbound(Protocol):
    """One connection's way out, as the feed sees it."""

    @property
    def framing(self) -> str:
        """Frames made for one framing serve every connection that has it."""
        ...

    @property
    def codec(self) -> Codec: ...

    @property
    def joinable(self) -> bool:
        """Whether several frames may be handed over as one run of bytes."""
        ...

    def frame(self, payload: bytes) -> bytes:
        """The payload as the transport wants it; the same for every connection of the framing."""
        ...

    def try_send(self, framed: bytes, frames: int = 1) -> int:
        """Send or queue whole frames without waiting: the bytes now queued, or -1 when the connection is gone."""
        ...

    async def wait_drained(self) -> None:
        """Until few bytes are queued, or the connection is gone."""
        ...


class _Published:
    """An event with everything that was ever made of it."""

    __slots__ = ("_frames", "_json", "_payload", "event", "seq", "size")

    def __init__(self, payload: bytes, seq: int | None = None, event: Event | None = None) -> None:
        self._payload = payload
        self._json: bytes | None = None
        self._frames: dict[tuple[str, int], bytes] = {}
        self.seq = seq
        self.event = event
        self.size = len(payload)

    def frame(self, outbound: Outbound, subscription: int) -> bytes:
        key = (outbound.framing, subscription)
        framed = self._frames.get(key)
        if framed is None:
            codec = outbound.codec
            if codec.binary:
                body = self._payload
            else:
                if self._json is None:
                    self._json = event_as_json(self._payload)
                body = self._json
            framed = outbound.frame(codec.item_prefix(subscription) + body + codec.item_suffix)
            self._frames[key] = framed
        return framed


class Subscription:
    """One subscriber. Nothing is sent before `start`; `close` is for the subscriber, and says nothing to it."""

    __slots__ = ("_feed", "closed", "on_end", "outbound", "subscription")

    def __init__(self, feed: Feed, outbound: Outbound, subscription: int, on_end: OnEnd) -> None:
        self._feed = feed
        self.outbound = outbound
        self.subscription = subscription
        self.on_end = on_end
        self.closed = False

    def start(self) -> None:
        """Begin to send. The answer that opened the stream must have been queued before (ruling A13)."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop at once and let go of everything."""
        raise NotImplementedError


class _Live(Subscription):
    __slots__ = ("lag", "lag_bytes", "since")

    def __init__(self, feed: Feed, outbound: Outbound, subscription: int, on_end: OnEnd) -> None:
        super().__init__(feed, outbound, subscription, on_end)
        self.lag: deque[_Published] | None = None
        """What waits for a connection that is behind; None on the direct path."""
        self.lag_bytes = 0
        self.since = 0
        """Publications before this number are not for this subscriber."""

    def start(self) -> None:
        self._feed.start_live(self)

    def close(self) -> None:
        self.closed = True
        self.lag = None
        self._feed.drop_live(self)


class _Durable(Subscription):
    __slots__ = ("cursor", "direct", "head", "session_id")

    def __init__(
        self, feed: Feed, outbound: Outbound, subscription: int, on_end: OnEnd, session_id: SessionId, after: int, head: int
    ) -> None:
        super().__init__(feed, outbound, subscription, on_end)
        self.session_id = session_id
        self.cursor = after + 1
        self.head: int | None = head
        """The head when the stream opened, until `synced` was said."""
        self.direct = False

    def start(self) -> None:
        self._feed.start_durable(self)

    def close(self) -> None:
        self.closed = True
        self._feed.drop_durable(self)


class _Ring:
    """The recent events of one session that somebody watches: contiguous, bounded by count and bytes."""

    __slots__ = ("events", "size", "subscribers")

    def __init__(self) -> None:
        self.events: deque[_Published] = deque()
        self.size = 0
        self.subscribers: list[_Durable] = []

    def append(self, published: _Published) -> None:
        self.events.append(published)
        self.size += published.size
        while len(self.events) > RING_EVENTS or (self.size > RING_BYTES and len(self.events) > 1):
            self.size -= self.events.popleft().size

    def first(self) -> int | None:
        """The lowest sequence it holds."""
        return self.events[0].seq if self.events else None

    def since(self, cursor: int) -> list[_Published]:
        """The events from `cursor` on. Only when the ring holds it, or holds nothing as far as that."""
        first = self.first()
        skip = 0 if first is None else max(0, cursor - first)
        return [self.events[index] for index in range(skip, len(self.events))]


class FeedStatistics:
    """What the feed holds and has done."""

    __slots__ = ("durable", "lagging", "live", "overflowed", "published", "rings")

    def __init__(self) -> None:
        self.published = 0
        self.overflowed = 0
        self.live = 0
        self.lagging = 0
        self.durable = 0
        self.rings = 0


class Feed:
    """Subscriptions, rings and encoded bytes. One task, `run`, does all the sending."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._live: list[_Live] = []
        self._rings: dict[SessionId, _Ring] = {}
        self._fresh: list[_Published] = []
        self._fresh_rings: dict[SessionId, _Ring] = {}
        self._wake = trio.Event()
        self._closed = False
        self._nursery: trio.Nursery | None = None
        self._read: ReadPage | None = None
        self._statistics = FeedStatistics()

    def statistics(self) -> FeedStatistics:
        """Subscribers, rings, events published, subscriptions lost to their budget."""
        found = self._statistics
        found.live = len(self._live)
        found.lagging = sum(1 for subscriber in self._live if subscriber.lag is not None)
        found.durable = sum(len(ring.subscribers) for ring in self._rings.values())
        found.rings = len(self._rings)
        return found

    # --- publishing: synchronous, from the storage actor's task or any writer's --------------------------------------

    def publish(self, events: Sequence[StoredEvent]) -> None:
        """Append committed events, in commit order."""
        self._statistics.published += len(events)
        for stored in events:
            ring = self._rings.get(stored.session_id)
            if ring is None and not self._live:
                continue
            published = _Published(stored.body, stored.seq)
            if ring is not None:
                ring.append(published)
                self._fresh_rings[stored.session_id] = ring
            if self._live:
                self._fresh.append(published)
        if self._fresh or self._fresh_rings:
            self._wake.set()

    def publish_live(self, event: Event) -> None:
        """Append a live event. Without live subscribers it is not even encoded."""
        self._statistics.published += 1
        if self._live:
            self._fresh.append(_Published(encode_event(event), event=event))
            self._wake.set()

    def dispose(self) -> None:
        """Say `server.disposed` to every live subscriber, behind everything published before."""
        self.publish_live(self._server_event(ServerDisposed()))
        self._flush()

    # --- subscribing -------------------------------------------------------------------------------------------------

    def subscribe_live(self, outbound: Outbound, subscription: int, on_end: OnEnd) -> Subscription:
        """A live subscriber, not yet started."""
        return _Live(self, outbound, subscription, on_end)

    def subscribe_session(
        self, outbound: Outbound, subscription: int, on_end: OnEnd, session_id: SessionId, after: int, head: int
    ) -> Subscription:
        """A durable subscriber that has everything up to `after` and is told `synced` once it has `head`."""
        return _Durable(self, outbound, subscription, on_end, session_id, after, head)

    def start_live(self, subscriber: _Live) -> None:
        """Called by `Subscription.start`."""
        self._flush()
        connected = _Published(encode_event(self._server_event(ServerConnected())))
        self._live.append(subscriber)
        self._send_live(subscriber, [connected])

    def drop_live(self, subscriber: _Live) -> None:
        """Called by `Subscription.close`."""
        if subscriber in self._live:
            self._live.remove(subscriber)

    def start_durable(self, subscriber: _Durable) -> None:
        """Called by `Subscription.start`."""
        ring = self._rings.setdefault(subscriber.session_id, _Ring())
        ring.subscribers.append(subscriber)
        self._catch_up_soon(subscriber)

    def drop_durable(self, subscriber: _Durable) -> None:
        """Called by `Subscription.close`."""
        ring = self._rings.get(subscriber.session_id)
        if ring is not None and subscriber in ring.subscribers:
            ring.subscribers.remove(subscriber)
            self._forget_if_unwatched(subscriber.session_id)

    def end_session(self, session_id: SessionId, error: DeclaredError) -> None:
        """End every durable subscription of a session, with `error`."""
        ring = self._rings.pop(session_id, None)
        for subscriber in ring.subscribers if ring is not None else ():
            self._end(subscriber, error)

    # --- the task ----------------------------------------------------------------------------------------------------

    async def run(
        self,
        read: ReadPage,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """The actor's life: sends what is published until `close`. Runs shielded (ruling A8). `read` serves pages."""
        self._read = read
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._heartbeat)
                task_status.started()
                try:
                    while not self._closed:
                        self._flush()
                        if not self._closed:
                            await self._wake.wait()
                            self._wake = trio.Event()
                    self._flush()
                finally:
                    self._nursery = None
                    nursery.cancel_scope.cancel()

    def close(self) -> None:
        """Send what was published, then end. Synchronous."""
        self._closed = True
        self._wake.set()

    async def _heartbeat(self) -> None:
        while True:
            await trio.sleep(HEARTBEAT_SECONDS)
            self.publish_live(self._server_event(ServerHeartbeat()))

    # --- sending -----------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        fresh, self._fresh = self._fresh, []
        if fresh:
            joined: dict[tuple[str, int], bytes] = {}
            for subscriber in tuple(self._live):
                outbound = subscriber.outbound
                if subscriber.lag is None and outbound.joinable:
                    key = (outbound.framing, subscriber.subscription)
                    run = joined.get(key)
                    if run is None:
                        run = b"".join([published.frame(outbound, subscriber.subscription) for published in fresh])
                        joined[key] = run
                    self._sent(subscriber, outbound.try_send(run, len(fresh)))
                else:
                    self._send_live(subscriber, fresh)
        rings, self._fresh_rings = self._fresh_rings, {}
        for ring in rings.values():
            for subscriber in tuple(ring.subscribers):
                if subscriber.direct and not self._send_from_ring(subscriber, ring):
                    self._catch_up_soon(subscriber)

    def _send_live(self, subscriber: _Live, fresh: Sequence[_Published]) -> None:
        outbound = subscriber.outbound
        for index, published in enumerate(fresh):
            if subscriber.lag is not None:
                for late in fresh[index:]:
                    self._lag(subscriber, late)
                return
            if subscriber.closed:
                return
            self._sent(subscriber, outbound.try_send(published.frame(outbound, subscriber.subscription)))

    def _sent(self, subscriber: _Live, queued: int) -> None:
        if queued < 0:
            subscriber.close()
        elif queued > HIGH_WATER and subscriber.lag is None and self._nursery is not None:
            subscriber.lag = deque()
            subscriber.lag_bytes = 0
            self._nursery.start_soon(self._drain_lag, subscriber)

    def _lag(self, subscriber: _Live, published: _Published) -> None:
        lag = subscriber.lag
        if lag is None:
            return
        if lag:
            merged = _merged(lag[-1], published)
            if merged is not None:
                subscriber.lag_bytes += merged.size - lag[-1].size
                lag[-1] = merged
                published = merged
            else:
                lag.append(published)
                subscriber.lag_bytes += published.size
        else:
            lag.append(published)
            subscriber.lag_bytes += published.size
        if subscriber.lag_bytes > LIVE_BUDGET_BYTES or len(lag) > LIVE_BUDGET_FRAMES:
            self._statistics.overflowed += 1
            self.drop_live(subscriber)
            subscriber.lag = None
            self._end(
                subscriber,
                SubscriberOverflowError("This subscriber fell too far behind; read the state anew and subscribe again."),
            )

    async def _drain_lag(self, subscriber: _Live) -> None:
        outbound = subscriber.outbound
        while not subscriber.closed:
            await outbound.wait_drained()
            lag = subscriber.lag
            queued = 0
            while lag and 0 <= queued <= HIGH_WATER:
                published = lag.popleft()
                subscriber.lag_bytes -= published.size
                queued = outbound.try_send(published.frame(outbound, subscriber.subscription))
            if queued < 0:
                subscriber.close()
            if not lag:
                # Back on the direct path; if the way is full, the next event leads here again.
                subscriber.lag = None
                return

    def _send_from_ring(self, subscriber: _Durable, ring: _Ring) -> bool:
        """Send from the ring what the subscriber lacks; False when the ring no longer holds it or the way is full."""
        first = ring.first()
        if first is not None and first > subscriber.cursor:
            return False
        return self._send_durable(subscriber, ring.since(subscriber.cursor))

    def _send_durable(self, subscriber: _Durable, events: Sequence[_Published]) -> bool:
        """Send events from the cursor on, and `synced` in its place. False when the way is full or gone."""
        outbound, subscription = subscriber.outbound, subscriber.subscription
        run: list[bytes] = []
        if subscriber.head is not None and subscriber.cursor > subscriber.head:
            run.append(self._synced_frame(subscriber))
        for published in events:
            if published.seq is None or published.seq < subscriber.cursor:
                continue
            run.append(published.frame(outbound, subscription))
            subscriber.cursor = published.seq + 1
            if subscriber.head is not None and subscriber.cursor > subscriber.head:
                run.append(self._synced_frame(subscriber))
        queued = 0
        if outbound.joinable:
            queued = outbound.try_send(b"".join(run), len(run)) if run else 0
        else:
            for framed in run:
                queued = outbound.try_send(framed)
                if queued < 0:
                    break
        if queued < 0:
            subscriber.close()
            return False
        return queued <= HIGH_WATER

    def _synced_frame(self, subscriber: _Durable) -> bytes:
        head = subscriber.head
        subscriber.head = None
        synced = Synced(seq=head or 0)
        event = Event(type=synced.type, created=self._now_ms(), data=synced, session_id=subscriber.session_id)
        return _Published(encode_event(event)).frame(subscriber.outbound, subscriber.subscription)

    def _catch_up_soon(self, subscriber: _Durable) -> None:
        subscriber.direct = False
        if self._nursery is not None and not subscriber.closed:
            self._nursery.start_soon(self._catch_up, subscriber)

    async def _catch_up(self, subscriber: _Durable) -> None:
        """Serve one durable subscriber from pages until the ring holds its cursor, at its own pace."""
        read = self._read
        if read is None:
            return
        while not subscriber.closed:
            await subscriber.outbound.wait_drained()
            page = await read(partial(_page, session_id=subscriber.session_id, after=subscriber.cursor - 1))
            if subscriber.closed:
                return
            free = self._send_durable(subscriber, [_Published(body, seq) for seq, body in page])
            if len(page) == PAGE or not free:
                continue
            ring = self._rings.get(subscriber.session_id)
            if ring is not None and self._send_from_ring(subscriber, ring):
                # From here on the ring has every event that this cursor needs, and no await lies in between.
                subscriber.direct = True
                return

    def _end(self, subscriber: Subscription, error: DeclaredError) -> None:
        if not subscriber.closed:
            subscriber.closed = True
            subscriber.on_end(subscriber.subscription, error)

    def _forget_if_unwatched(self, session_id: SessionId) -> None:
        ring = self._rings.get(session_id)
        if ring is not None and not ring.subscribers:
            del self._rings[session_id]
            self._fresh_rings.pop(session_id, None)

    def _server_event(self, data: EventData) -> Event:
        return Event(type=data.type, created=self._now_ms(), data=data)


def _page(reader: Reader, session_id: SessionId, after: int) -> _Page:
    return reader.events_page(session_id, after, PAGE)


def _merged(last: _Published, late: _Published) -> _Published | None:
    """One delta for two adjacent ones of the same fragment, or None."""
    if last.event is None or late.event is None:
        return None
    match last.event.data, late.event.data:
        case (TextDelta() as a, TextDelta() as b) | (ReasoningDelta() as a, ReasoningDelta() as b) if (
            a.part_id == b.part_id and type(a) is type(b)
        ):
            data: EventData = type(a)(
                assistant_message_id=a.assistant_message_id, part_id=a.part_id, offset=a.offset, delta=a.delta + b.delta
            )
        case (ToolInputDelta() as a, ToolInputDelta() as b) if a.call_id == b.call_id:
            data = ToolInputDelta(
                assistant_message_id=a.assistant_message_id, call_id=a.call_id, offset=a.offset, delta=a.delta + b.delta
            )
        case _:
            return None
    event = Event(type=data.type, created=last.event.created, data=data, session_id=last.event.session_id)
    return _Published(encode_event(event), event=event)
