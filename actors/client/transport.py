"""What a client needs of the way to its server: whole frames, there and back.

Rules:
- `send` never waits and is never cancelled in the middle: it appends to a backlog that one task of the transport empties.
- A transport says why it ended with a `ClientError`; what else it raises counts as reason `transport`.
- It neither looks into frames nor reconnects.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from ...protocol.codec import Codec

HIGH_WATER = 4 * 1024 * 1024
"""Unsent bytes above which a call waits before it hands its frame over."""


class Transport(Protocol):
    """One open connection. Recording, proxying and testing transports implement these five names."""

    @property
    def codec(self) -> Codec:
        """The encoding of the frames, fixed when the connection was opened."""
        ...

    def send(self, frame: bytes) -> None:
        """Queue a whole frame, at once. Raises `ClientError` when the transport is gone or its backlog is full."""
        ...

    async def wait_writable(self) -> None:
        """Return when there is room for another frame, or when the transport is gone. May be cancelled freely."""
        ...

    async def receive(self) -> bytes:
        """The next whole frame. Raises `ClientError` at the end. Cancelling loses no frame; one task calls it."""
        ...

    async def aclose(self) -> None:
        """Close in order; at once when cancelled. Idempotent."""
        ...


Opener = Callable[[trio.Nursery], Awaitable[Transport]]
"""Opens a transport whose tasks, if it has any, live in that nursery and let no exception into it."""
