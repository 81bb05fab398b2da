"""One observation of something that may fail or never answer: a value, or Unavailable.

Rules (seed, "Unavailable Context"; semantics, "System Context"):
- A loader that intends it returns `Unavailable` itself; that is expected and not reported.
- A loader that raises, or gives no answer in time, is a defect. It counts as Unavailable for this boundary, the log learns
  why, and so does whoever takes the diagnostics.
- Time runs only against loaders that can be cancelled: they wait, or work through the blocking seam with
  `abandon_on_cancel`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec
import trio

from ..logs import Logger

T = TypeVar("T")

PATIENCE: Final = 5.0
"""How long a loader may take, in seconds."""

_log = Logger("steerway.context")


class Unavailable(msgspec.Struct, frozen=True):
    """A value cannot be observed now: what was last told stays in force. `reason` is for people."""

    reason: str = "it cannot be observed now"


class SourceDefect(msgspec.Struct, frozen=True, kw_only=True):
    """`key` (of a source or of a contribution) could not be observed, and should have been. `problem` is for people."""

    key: str
    problem: str


def _nobody(_: SourceDefect) -> None:
    """Takes diagnostics where nobody asks for them; the log has them anyway."""


class Observing:
    """How one boundary observes: for how long it waits, and who hears of defects."""

    def __init__(self, *, seconds: float = PATIENCE, diagnose: Callable[[SourceDefect], None] = _nobody) -> None:
        self._seconds = seconds
        self._diagnose = diagnose

    async def attempt(self, key: str, load: Callable[[], Awaitable[T | Unavailable]]) -> T | Unavailable:
        """What `load` gives, or Unavailable. Cancelling the caller cancels the loader."""
        answer: T | Unavailable | None = None
        problem = f"there was no answer within {self._seconds:g} s"
        failure: Exception | None = None
        scope = trio.CancelScope(deadline=trio.current_time() + self._seconds)
        try:
            with scope:
                answer = await load()
        except Exception as error:
            failure = error
            problem = f"{type(error).__name__}: {error}".removesuffix(": ")
        else:
            if not scope.cancelled_caught:
                return answer  # pyright: ignore[reportReturnType]  # None only where the loader's own type has it
        _log.error("context cannot be observed", key=key, problem=problem, exc_info=failure)
        self._diagnose(SourceDefect(key=key, problem=problem))
        return Unavailable(problem)
