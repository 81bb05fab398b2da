"""The inbox as its session sees it between commits: what waits, in which order, and how much room is left.

It is advanced by the continuations of commits, and counts what is still on its way into the store, so that no burst of prompts
can pass the limits. The store decides; this view only says so early.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile
from typing import Any, Final, Literal

import msgspec

from ...protocol.values.errors import InboxFullError
from ...protocol.values.ids import MessageId
from ...protocol.values.prompt import Admission, Delivery, PendingItem, Prompt

MAX_INBOX_BYTES: Final = 14 * 1024 * 1024
"""All pending input of a session as JSON: as much as one answer of `sessions.pending` or `sessions.attach` can carry."""
ENVELOPE_BYTES: Final = 300
"""What stands around a prompt in such an answer, about."""

_encoder = msgspec.json.Encoder()


def weight(prompt: Prompt, metadata: dict[str, Any] | None) -> int:
    """The bytes a pending prompt takes in an answer, as JSON."""
    return len(_encoder.encode(prompt)) + (len(_encoder.encode(metadata)) if metadata else 0) + ENVELOPE_BYTES


class Inbox:
    """What waits in one session. `max_items` bounds the count."""

    def __init__(self, max_items: int) -> None:
        self._max_items = max_items
        self._places: dict[MessageId, Delivery | Literal["control"]] = {}
        self._weights: dict[MessageId, int] = {}
        self._bytes = 0
        self._coming = 0

    def __len__(self) -> int:
        return len(self._places)

    def load(self, pending: Iterable[PendingItem]) -> None:
        """Take over what the store holds."""
        for item in pending:
            self.add(item)

    def expect(self, bytes: int) -> InboxFullError | None:
        """Something is on its way in; the error to refuse it with, unless it is known already. `arrived` must follow."""
        full: InboxFullError | None = None
        if len(self._places) + self._coming >= self._max_items:
            limit = self._max_items
            full = InboxFullError(f"The session has {limit} pending inputs, as many as it may.", limit=limit)
        elif self._bytes + bytes > MAX_INBOX_BYTES and self._places:
            full = InboxFullError(
                f"The session's pending input would be more than {MAX_INBOX_BYTES} bytes; let some of it be answered first.",
                limit=MAX_INBOX_BYTES,
            )
        self._coming += 1
        self._bytes += bytes
        return full

    def arrived(self, bytes: int) -> None:
        """What was expected is decided; if it is pending now, `add` follows."""
        self._coming -= 1
        self._bytes -= bytes

    def add(self, item: PendingItem) -> None:
        """It waits."""
        if item.id not in self._places:
            self._weights[item.id] = weight(item.prompt, item.metadata) if isinstance(item, Admission) else ENVELOPE_BYTES
            self._bytes += self._weights[item.id]
        self._places[item.id] = item.delivery if isinstance(item, Admission) else "control"

    def remove(self, ids: Iterable[MessageId]) -> None:
        """They do not wait any more."""
        for message_id in ids:
            if self._places.pop(message_id, None) is not None:
                self._bytes -= self._weights.pop(message_id)

    @property
    def steer_first(self) -> bool:
        """Whether a steer waits, in front of all control items."""
        return "steer" in takewhile(lambda place: place != "control", self._places.values())

    @property
    def control_first(self) -> bool:
        """Whether a control item is the first to wait."""
        return next(iter(self._places.values()), None) == "control"
