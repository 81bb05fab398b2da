"""Whole frames on their way in one direction, counted in bytes.

Rules:
- Putting a frame in never waits: it is taken or refused. So no send can be cancelled in the middle, and two ends in one
  process can never block each other (ruling A15).
- Whoever wants to be polite waits for room first; between that wait and the append nothing else runs.
- One task takes; any number may append or wait for room.
"""

from __future__ import annotations

from collections import deque

import trio

CAPACITY = 64 * 1024 * 1024
"""Bytes that may wait in one direction. A frame that finds an empty backlog is always taken."""


class Backlog:
    """A queue of frames, bounded by `capacity` bytes."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._frames: deque[bytes] = deque()
        self._size = 0
        self._closed = False
        self._taker = trio.lowlevel.ParkingLot()
        self._waiting = trio.lowlevel.ParkingLot()

    @property
    def size(self) -> int:
        """Bytes that have not been taken."""
        return self._size

    @property
    def closed(self) -> bool:
        """Whether appending has ended."""
        return self._closed

    def append(self, frame: bytes) -> bool:
        """Put a frame in; False when the backlog is closed or has no room. Never waits."""
        if self._closed or (self._frames and self._size + len(frame) > self._capacity):
            return False
        self._frames.append(frame)
        self._size += len(frame)
        self._taker.unpark()
        return True

    async def take(self) -> bytes:
        """The oldest frame, waiting for one. Raises `trio.EndOfChannel` when it is closed and empty.

        Cancelling loses no frame. Does not give way to other tasks while there is something to take.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self._frames:
            if self._closed:
                raise trio.EndOfChannel
            await self._taker.park()
        frame = self._frames.popleft()
        self._size -= len(frame)
        if self._waiting:
            self._waiting.unpark_all()
        return frame

    async def wait_below(self, size: int) -> None:
        """Return when fewer than `size` bytes wait, or when the backlog is closed."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while self._size >= size and not self._closed:
            await self._waiting.park()

    def close(self, *, discard: bool) -> None:
        """Take no more frames; what waits is still handed out, unless it is to be discarded. Idempotent."""
        self._closed = True
        if discard:
            self._frames.clear()
            self._size = 0
        self._taker.unpark_all()
        self._waiting.unpark_all()
