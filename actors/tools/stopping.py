"""Long work in a thread that notices when nobody waits for it any more.

An abandoned thread cannot be cancelled. Work that may take long (a search, a huge file) looks at its `Stop` between small
steps, so that an interrupt costs a moment of a thread and not the rest of the search.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from .tool import ToolContext

T = TypeVar("T")


class Abandoned(Exception):
    """Raised inside the work; nobody is there to see it."""


class Stop:
    """Whether to go on."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def check(self) -> None:
        """Raises Abandoned when the call has ended."""
        if self._event.is_set():
            raise Abandoned


async def run_stoppable(context: ToolContext, work: Callable[[Stop], T]) -> T:
    """The value of `work(stop)`, run through the blocking seam. Cancelled: leaves at once, and the work is told to stop."""
    stop = Stop()
    try:
        return await context.blocking.run(lambda: work(stop), abandon_on_cancel=True)
    finally:
        stop.set()
