"""What has arrived for one stream and was not taken yet: the reader's side of a stream.

Rules:
- The reader puts items in and never waits. At most `MAX_ITEMS` items or `MAX_BYTES` bytes are held (ruling A15); a single
  item larger than that is held alone.
- What was put in before the end is still taken; then the end's error is raised once.
"""

from __future__ import annotations

from collections import deque

import msgspec
import trio

MAX_ITEMS = 1024
MAX_BYTES = 4 * 1024 * 1024


class Intake:
    """The items of one subscription. `ended` says that no more will come, `error` why."""

    def __init__(self) -> None:
        self.subscription: int | None = None
        self.ended = False
        self.error: Exception | None = None
        self._items: deque[msgspec.Raw] = deque()
        self._bytes = 0
        self._taker = trio.lowlevel.ParkingLot()

    def put(self, item: msgspec.Raw) -> bool:
        """Hold an item; False when the bounds do not allow it, and then nothing has changed."""
        if self._items and (len(self._items) >= MAX_ITEMS or self._bytes + len(item) > MAX_BYTES):
            return False
        self._items.append(item)
        self._bytes += len(item)
        self._taker.unpark()
        return True

    def end(self, error: Exception | None) -> None:
        """No more will come. The first end stands."""
        if not self.ended:
            self.ended = True
            self.error = error
            self._taker.unpark_all()

    def discard(self) -> None:
        """Forget what is held, and end."""
        self._items.clear()
        self._bytes = 0
        self.end(None)

    async def take(self) -> msgspec.Raw | None:
        """The oldest item, waiting for one; None at the end. Cancelling loses no item."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self._items:
            if self.ended:
                return None
            await self._taker.park()
        item = self._items.popleft()
        self._bytes -= len(item)
        return item
