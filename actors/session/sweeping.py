"""Sweeping what is hidden, removed sessions and copies that did not come to their end, between the commits of everybody else.

Rules:
- Whoever hides rows owns them until they are revealed or swept. What nobody owns any more, because the disk was too full
  to sweep it, is swept when the next fork begins or the next session is removed, or when the store is opened next.
- A sweep that fails is no failure of what it is part of: nobody sees what is left.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Generator, Iterable
from typing import Final

import trio

from ...protocol.values.errors import DeclaredError
from ...protocol.values.ids import SessionId
from ..storage import StorageActor

SWEEP_SECONDS: Final = 5.0
"""How long a sweep goes on for a caller who has given up."""


class Sweeper:
    """Deletes hidden sessions of one store. One for a runtime, so that it knows what is owned."""

    def __init__(self, storage: StorageActor) -> None:
        self._storage = storage
        self._owned: set[SessionId] = set()
        """Names of hidden rows that somebody reveals or sweeps."""

    @contextlib.contextmanager
    def owning(self, names: Iterable[SessionId]) -> Generator[None]:
        """While it lasts nobody else sweeps the rows with these names."""
        mine = set(names)
        self._owned |= mine
        try:
            yield
        finally:
            self._owned -= mine

    async def sweep(self, names: Iterable[SessionId]) -> bool:
        """Delete all of these hidden sessions, part by part; says whether nothing is left of them.

        A caller who is cancelled waits for at most `SWEEP_SECONDS`.
        """
        until = math.inf
        with contextlib.suppress(DeclaredError):
            for name in names:
                while await self._storage.commit(lambda transaction: transaction.sweep(name)):  # noqa: B023 - run before the next
                    if until == math.inf and trio.current_effective_deadline() == -math.inf:
                        until = trio.current_time() + SWEEP_SECONDS
                    if trio.current_time() >= until:
                        return False
            return True
        return False

    async def sweep_unowned(self) -> None:
        """Delete what others had to leave."""
        with contextlib.suppress(DeclaredError):
            names = await self._storage.read(lambda reader: reader.hidden())
            left = [name for name in names if name not in self._owned]
            if left:
                with self.owning(left):
                    await self.sweep(left)
