"""Who watches: a live subscriber with a budget, a durable one with a cursor. Their state, and how one of them is served.

Rules:
- A live subscriber that falls behind keeps a queue of what it has not been sent, within a budget in bytes and in frames; only
  adjacent deltas of one fragment are joined for it. Beyond the budget it is lost, and only it; an event that waits alone is
  never too large.
- A durable subscriber is the next sequence it needs. It does not matter where an event comes from: what lies behind the
  cursor is skipped, so ring and pages may overlap (ruling A13). It is given no more than its connection takes: what is left of
  a page or a ring is read again once there is room.
- Nothing is handed to a connection that is behind, whatever it is behind with: many subscriptions of one connection, or a few
  large events, must not add up to what is held against a peer that reads (ruling D4).
- Nothing here waits or starts tasks; the feed does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Protocol

from ..protocol.values.errors import DeclaredError
from ..protocol.values.event import event_as_json
from ..protocol.values.ids import SessionId
from .published import Outbound, Published, item_frame, join_deltas

HIGH_WATER = 256 * 1024
"""Bytes queued on a connection beyond which a subscriber leaves the direct path."""
LIVE_BUDGET_BYTES = 4 * 1024 * 1024
LIVE_BUDGET_FRAMES = 4_096
RING_EVENTS = 1_024
RING_BYTES = 1024 * 1024

OnEnd = Callable[[int, DeclaredError | None], None]


class Way(Enum):
    """What became of an attempt to send."""

    FREE = "sent, and there is room for more"
    FULL = "sent, and the connection is behind"
    GONE = "the connection is gone"


def way(queued: int) -> Way:
    """What `try_send`'s answer means."""
    if queued < 0:
        return Way.GONE
    return Way.FULL if queued > HIGH_WATER else Way.FREE


class Subscription(Protocol):
    """What a connection holds. Nothing is sent before `start`; `close` is for the subscriber, and says nothing to it."""

    def start(self) -> None:
        """Begin to send. The answer that opened the stream must have been queued before (ruling A13)."""
        ...

    def close(self) -> None:
        """Stop at once and let go of everything. Idempotent."""
        ...


class LiveSubscriber:
    """A live subscriber. `lag` is what waits for a connection that is behind; None on the direct path."""

    __slots__ = ("closed", "lag", "lag_bytes", "number", "on_end", "outbound")

    def __init__(self, outbound: Outbound, number: int, on_end: OnEnd) -> None:
        self.outbound = outbound
        self.number = number
        self.on_end = on_end
        self.closed = False
        self.lag: deque[Published] | None = None
        self.lag_bytes = 0

    def fall_behind(self) -> None:
        """Leave the direct path."""
        self.lag = deque()
        self.lag_bytes = 0

    def queue(self, published: Published) -> bool:
        """Keep an event for later; False when the budget is exceeded."""
        lag = self.lag
        if lag is None:
            raise AssertionError("only a subscriber that lags has a queue")
        joined = join_deltas(lag[-1], published) if lag else None
        if joined is not None:
            self.lag_bytes -= lag.pop().size
            published = joined
        lag.append(published)
        self.lag_bytes += published.size
        return len(lag) == 1 or (self.lag_bytes <= LIVE_BUDGET_BYTES and len(lag) <= LIVE_BUDGET_FRAMES)

    def send(self, published: Published) -> Way:
        """Send one event now."""
        return way(self.outbound.try_send(published.frame(self.outbound, self.number)))

    def send_queued(self) -> Way:
        """Send from the queue as far as the connection takes it."""
        state = way(self.outbound.backlog)
        while self.lag and state is Way.FREE:
            published = self.lag.popleft()
            self.lag_bytes -= published.size
            state = self.send(published)
        return state


class DurableSubscriber:
    """A durable subscriber. `direct` while the ring serves it; `synced_at` is the head to announce, until it was."""

    __slots__ = ("closed", "cursor", "direct", "number", "on_end", "outbound", "session_id", "synced_at")

    def __init__(self, outbound: Outbound, number: int, on_end: OnEnd, *, session_id: SessionId, after: int, head: int) -> None:
        self.outbound = outbound
        self.number = number
        self.on_end = on_end
        self.session_id = session_id
        self.cursor = after + 1
        self.synced_at: int | None = head
        self.closed = False
        self.direct = False

    def send(self, events: Sequence[Published], synced: Callable[[int], Published]) -> Way:
        """Send the events from the cursor on, and the `synced` item in its place, as far as the connection takes them."""
        outbound, number, cursor = self.outbound, self.number, self.cursor
        framed = (
            (event.seq, event.frame(outbound, number)) for event in events if event.seq is not None and event.seq >= cursor
        )
        return self._send(framed, synced)

    def send_page(self, page: Sequence[tuple[int, bytes]], synced: Callable[[int], Published]) -> Way:
        """The same for rows of storage. What is framed here serves nobody else, so nothing of it is kept."""
        outbound, number, cursor = self.outbound, self.number, self.cursor
        bodies = ((seq, body) for seq, body in page if seq >= cursor)
        if not outbound.codec.binary:
            bodies = ((seq, event_as_json(body)) for seq, body in bodies)
        return self._send(((seq, item_frame(outbound, number, body)) for seq, body in bodies), synced)

    def _send(self, framed: Iterable[tuple[int, bytes]], synced: Callable[[int], Published]) -> Way:
        if self.outbound.backlog > HIGH_WATER:
            return Way.FULL
        run: list[bytes] = []
        size = 0
        self._announce(run, synced)
        for seq, frame in framed:
            run.append(frame)
            size += len(frame)
            self.cursor = seq + 1
            if self.synced_at is not None:
                self._announce(run, synced)
            if size > HIGH_WATER:
                state = self._hand_over(run)
                if state is not Way.FREE:
                    return state
                run, size = [], 0
        return self._hand_over(run)

    def _hand_over(self, run: Sequence[bytes]) -> Way:
        outbound = self.outbound
        if not run:
            return Way.FREE
        if outbound.joinable:
            return way(outbound.try_send(b"".join(run), len(run)))
        state = Way.FREE
        for frame in run:
            state = way(outbound.try_send(frame))
            if state is Way.GONE:
                break
        return state

    def _announce(self, run: list[bytes], synced: Callable[[int], Published]) -> None:
        if self.synced_at is not None and self.cursor > self.synced_at:
            run.append(synced(self.synced_at).frame(self.outbound, self.number))
            self.synced_at = None


class Ring:
    """The recent events of one session that somebody watches: contiguous, bounded by count and bytes."""

    __slots__ = ("_events", "_size", "subscribers")

    def __init__(self) -> None:
        self._events: deque[Published] = deque()
        self._size = 0
        self.subscribers: list[DurableSubscriber] = []

    def append(self, published: Published) -> None:
        """Add the newest event; the oldest ones make room."""
        self._events.append(published)
        self._size += published.size
        while len(self._events) > RING_EVENTS or (self._size > RING_BYTES and len(self._events) > 1):
            self._size -= self._events.popleft().size

    def since(self, cursor: int) -> list[Published] | None:
        """The events from `cursor` on; None when the ring does not reach back that far."""
        if not self._events:
            return []
        first = self._events[0].seq
        if first is None or first > cursor:
            return None
        return [self._events[index] for index in range(cursor - first, len(self._events))]
