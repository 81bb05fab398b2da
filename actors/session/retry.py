"""When a failed attempt is made again, by which model, and how long that waits (semantics, "Decisions", retry).

At most `MAX_RETRIES` follow the first request, until a turn succeeds; a retry-after of the provider raises the delay, up to
`MAX_RETRY_AFTER_SECONDS`. Empty answers have a smaller limit of their own within it. Retries consume no steps.

An overloaded model is replaced by a configured fallback at once. The fallback stays until the run ends or another model is
selected, so that a tool loop does not go to and fro between two models.
"""

from __future__ import annotations

from collections.abc import Callable

from ...protocol.values.model import ModelRef

MAX_RETRIES = 4
MAX_EMPTY_ANSWERS = 2
FIRST_DELAY_SECONDS = 2.0
JITTER = 0.25
"""A delay is lengthened by up to this part of itself."""
MAX_RETRY_AFTER_SECONDS = 15 * 60.0


class RetryBudget:
    """What is left of one run's retries. `random` gives numbers from 0 up to 1."""

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        self._used = 0
        self._empty = 0
        self._selected: ModelRef | None = None
        self._instead: ModelRef | None = None
        self.overloaded: list[ModelRef] = []
        """The models that were found overloaded since the selected one was."""

    def effective(self, selected: ModelRef | None) -> ModelRef | None:
        """The model to ask where this one is selected; None is the default."""
        if selected != self._selected:
            self._selected, self._instead, self.overloaded = selected, None, []
        return self._instead or selected

    def ask_instead(self, fallback: ModelRef) -> None:
        """From now on this model is asked."""
        self._instead = fallback

    @property
    def attempts(self) -> int:
        """How many requests were made since the last success, the next one included."""
        return self._used + 1

    def succeeded(self) -> None:
        """A turn completed; the budget is whole again."""
        self._used = 0
        self._empty = 0

    def take(self, retry_after_ms: int | None, *, empty: bool = False) -> float | None:
        """Use one retry: the seconds to wait before it, or None when there is none left."""
        if self._used >= MAX_RETRIES or (empty and self._empty >= MAX_EMPTY_ANSWERS):
            return None
        delay = FIRST_DELAY_SECONDS * 2**self._used * (1 + JITTER * self._random())
        self._used += 1
        self._empty += empty
        if retry_after_ms is not None:
            delay = max(delay, min(retry_after_ms / 1000, MAX_RETRY_AFTER_SECONDS))
        return delay
