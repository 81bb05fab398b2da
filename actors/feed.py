"""The feed: every event is encoded once and handed to everybody who watches.

Rules:
- Publishing is a synchronous append that never waits and never refuses; the feed's own task sends (ruling A2).
- A *live* subscriber gets everything from its start on, in publish order. One that falls behind has a budget; beyond it only
  its own subscription ends, with `SubscriberOverflowError`.
- A *durable* subscriber is registered before its first page is read, so there is no seam to fall into. It is served from the
  ring while it keeps up and from storage pages while it does not, is never dropped for being slow, and costs a bounded
  amount of memory (ruling A13).
- Without subscribers nothing is encoded or kept. The task runs shielded and ends when it is closed (ruling A8).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import trio

from ..protocol.values.errors import DeclaredError, SubscriberOverflowError
from ..protocol.values.event import Event, EventData, ServerConnected, ServerDisposed, ServerHeartbeat, Synced
from ..protocol.values.ids import SessionId
from ..storage.journal import StoredEvent
from ..storage.reader import PAGE_BYTES, PAGE_ROWS, Reader
from .published import Outbound, Published
from .subscriber import HIGH_WATER, DurableSubscriber, LiveSubscriber, OnEnd, Ring, Subscription, Way, way

HEARTBEAT_SECONDS = 15

_Page = list[tuple[int, bytes]]
ReadPage = Callable[[Callable[[Reader], _Page]], Awaitable[_Page]]
"""Runs a query on a read connection."""


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
        self._live: list[LiveSubscriber] = []
        self._rings: dict[SessionId, Ring] = {}
        self._fresh: list[Published] = []
        self._fresh_rings: dict[SessionId, Ring] = {}
        self._wake = trio.Event()
        self._closed = False
        self._tasks: tuple[trio.Nursery, ReadPage] | None = None
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
            published = Published(stored.body, stored.seq)
            if ring is not None:
                ring.append(published)
                self._fresh_rings[stored.session_id] = ring
            if self._live:
                self._fresh.append(published)
            self._wake.set()

    def publish_live(self, event: Event) -> None:
        """Append a live event."""
        self._statistics.published += 1
        if self._live:
            self._fresh.append(Published.live(event))
            self._wake.set()

    def dispose(self) -> None:
        """Say `server.disposed` to every live subscriber, behind everything published before, and send it now."""
        self.publish_live(self._server_event(ServerDisposed()))
        self._flush()

    def end_session(self, session_id: SessionId, error: DeclaredError) -> None:
        """End every durable subscription of a session, with `error`."""
        ring = self._rings.get(session_id)
        for subscriber in tuple(ring.subscribers) if ring is not None else ():
            self._drop(subscriber)
            subscriber.on_end(subscriber.number, error)

    # --- subscribing -------------------------------------------------------------------------------------------------

    def subscribe_live(self, outbound: Outbound, number: int, on_end: OnEnd) -> Subscription:
        """A live subscription, not yet started. `on_end` is called once if it ends by itself."""
        subscriber = LiveSubscriber(outbound, number, on_end)
        return _Handle(partial(self._start_live, subscriber), partial(self._drop, subscriber))

    def subscribe_session(
        self, outbound: Outbound, number: int, on_end: OnEnd, *, session_id: SessionId, after: int, head: int
    ) -> Subscription:
        """A durable subscription, not yet started, that has everything up to `after` and is told when it has `head`."""
        subscriber = DurableSubscriber(outbound, number, on_end, session_id=session_id, after=after, head=head)
        return _Handle(partial(self._start_durable, subscriber), partial(self._drop, subscriber))

    def _start_live(self, subscriber: LiveSubscriber) -> None:
        self._flush()  # what was published before is not for this one
        self._live.append(subscriber)
        self._serve_live(subscriber, [Published.live(self._server_event(ServerConnected()))])

    def _start_durable(self, subscriber: DurableSubscriber) -> None:
        self._rings.setdefault(subscriber.session_id, Ring()).subscribers.append(subscriber)
        self._catch_up_soon(subscriber)

    def _drop(self, subscriber: LiveSubscriber | DurableSubscriber) -> None:
        subscriber.closed = True
        match subscriber:
            case LiveSubscriber():
                subscriber.lag = None
                if subscriber in self._live:
                    self._live.remove(subscriber)
            case DurableSubscriber():
                ring = self._rings.get(subscriber.session_id)
                if ring is not None and subscriber in ring.subscribers:
                    ring.subscribers.remove(subscriber)
                    if not ring.subscribers:
                        del self._rings[subscriber.session_id]
                        self._fresh_rings.pop(subscriber.session_id, None)

    # --- the task ----------------------------------------------------------------------------------------------------

    async def run(self, read: ReadPage, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """The actor's life: sends what is published, until `close`. `read` serves the pages of slow subscribers."""
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                self._tasks = (nursery, read)
                nursery.start_soon(self._heartbeat)
                task_status.started()
                try:
                    while not self._closed:
                        await self._wake.wait()
                        self._wake = trio.Event()
                        self._flush()
                finally:
                    self._tasks = None
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
            self._send_to_live(fresh)
        rings, self._fresh_rings = self._fresh_rings, {}
        for ring in rings.values():
            for subscriber in tuple(ring.subscribers):
                if subscriber.direct and not self._serve_from_ring(subscriber, ring):
                    self._catch_up_soon(subscriber)

    def _send_to_live(self, fresh: Sequence[Published]) -> None:
        # Measured (bench/fan_out.py): what stands in this loop beside `try_send` is paid for every delivered frame.
        runs: dict[tuple[str, int], bytes] = {}
        framing, number, run = "", 0, b""
        large = sum([published.size for published in fresh]) > HIGH_WATER
        for subscriber in tuple(self._live):
            outbound = subscriber.outbound
            if subscriber.lag is not None or large or outbound.backlog > HIGH_WATER or not outbound.joinable:
                self._serve_live(subscriber, fresh)
                continue
            if number != subscriber.number or framing != outbound.framing:  # most share one run: look it up when it changes
                framing, number = key = (outbound.framing, subscriber.number)
                found = runs.get(key)
                if found is None:
                    found = runs[key] = b"".join([published.frame(outbound, number) for published in fresh])
                run = found
            queued = outbound.try_send(run, len(fresh))
            if not 0 <= queued <= HIGH_WATER:
                self._sent_live(subscriber, way(queued))

    def _serve_live(self, subscriber: LiveSubscriber, fresh: Sequence[Published]) -> None:
        for published in fresh:
            if subscriber.closed:
                return
            if subscriber.lag is None and subscriber.outbound.backlog > HIGH_WATER:
                self._sent_live(subscriber, Way.FULL)
            if subscriber.lag is None:
                self._sent_live(subscriber, subscriber.send(published))
            elif not subscriber.queue(published):
                self._statistics.overflowed += 1
                self._drop(subscriber)
                message = "This subscriber fell too far behind; read the state anew and subscribe again."
                subscriber.on_end(subscriber.number, SubscriberOverflowError(message))

    def _sent_live(self, subscriber: LiveSubscriber, state: Way) -> None:
        match state:
            case Way.GONE:
                self._drop(subscriber)
            case Way.FULL if self._tasks is not None:
                subscriber.fall_behind()
                self._tasks[0].start_soon(self._send_lag, subscriber)
            case _:
                pass

    async def _send_lag(self, subscriber: LiveSubscriber) -> None:
        while not subscriber.closed:
            await subscriber.outbound.wait_drained()
            if subscriber.send_queued() is Way.GONE:
                self._drop(subscriber)
            elif not subscriber.lag:
                subscriber.lag = None  # back on the direct path; if that is full, the next event leads here again
                return

    def _serve_from_ring(self, subscriber: DurableSubscriber, ring: Ring) -> bool:
        """False when the ring does not reach back to the cursor, or the way is not free."""
        events = ring.since(subscriber.cursor)
        return events is not None and self._served(
            subscriber, subscriber.send(events, partial(self._synced, subscriber.session_id))
        )

    def _served(self, subscriber: DurableSubscriber, state: Way) -> bool:
        if state is Way.GONE:
            self._drop(subscriber)
        return state is Way.FREE

    def _catch_up_soon(self, subscriber: DurableSubscriber) -> None:
        subscriber.direct = False
        if self._tasks is not None and not subscriber.closed:
            nursery, read = self._tasks
            nursery.start_soon(self._catch_up, subscriber, read)

    async def _catch_up(self, subscriber: DurableSubscriber, read: ReadPage) -> None:
        """Serve one durable subscriber from pages, at its own pace, until the ring holds its cursor."""
        while not subscriber.closed:
            await subscriber.outbound.wait_drained()
            try:
                page = await read(partial(_page, session_id=subscriber.session_id, after=subscriber.cursor - 1))
            except DeclaredError as error:
                if not subscriber.closed:
                    self._drop(subscriber)
                    subscriber.on_end(subscriber.number, error)
                return
            if subscriber.closed:
                return
            free = self._served(subscriber, subscriber.send_page(page, partial(self._synced, subscriber.session_id)))
            ring = self._rings.get(subscriber.session_id)
            if free and _is_last(page) and ring is not None and self._serve_from_ring(subscriber, ring):
                subscriber.direct = True  # no await lies between the last look into the ring and this
                return

    def _synced(self, session_id: SessionId, head: int) -> Published:
        data = Synced(seq=head)
        return Published.live(Event(type=data.type, created=self._now_ms(), data=data, session_id=session_id))

    def _server_event(self, data: EventData) -> Event:
        return Event(type=data.type, created=self._now_ms(), data=data)


class _Handle:
    """What the connection holds of a subscription."""

    __slots__ = ("_close", "_start")

    def __init__(self, start: Callable[[], None], close: Callable[[], None]) -> None:
        self._start = start
        self._close = close

    def start(self) -> None:
        self._start()

    def close(self) -> None:
        self._close()


def _page(reader: Reader, session_id: SessionId, after: int) -> _Page:
    return reader.events_page(session_id, after, PAGE_ROWS)


def _is_last(page: _Page) -> bool:
    """Whether nothing was behind the page when it was read."""
    return len(page) < PAGE_ROWS and sum(len(body) for _, body in page) < PAGE_BYTES
