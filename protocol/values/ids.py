"""Identifiers: a prefix and 26 characters, or whatever a caller supplies within the same alphabet.

Order never rests on an id (the reference's clock part wraps): everything inside a session is ordered by its durable
sequence. Ids given by callers need only their prefix and at most 200 characters of `A-Za-z0-9_-` (ruling C1).
Clock and randomness are passed in, so that tests own them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NewType

SessionId = NewType("SessionId", str)
"""`ses_...`: one Session."""
MessageId = NewType("MessageId", str)
"""`msg_...`: one message, which is also the id of the Admitted Prompt that becomes it."""
EventId = NewType("EventId", str)
"""`evt_...`: one durable or live event."""
CallId = NewType("CallId", str)
"""`call_...`: one tool call. Ours; the provider's own call id is data."""
PartId = NewType("PartId", str)
"""`prt_...`: one text or reasoning part of an assistant message."""
RequestId = NewType("RequestId", str)
"""`per_...` or `que_...`: a permission or question that waits for an answer."""
PageCursor = NewType("PageCursor", str)
"""Opaque link to another page of the same query. Handed back unchanged, never looked into by clients."""
Generation = NewType("Generation", str)
"""Identity of a store's history; a new one is made when a store is restored from a copy."""

MAX_ID_LENGTH = 200

_WELL_FORMED = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_ID_LENGTH}}}")
_BASE62 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_DIGIT_OF_BYTE = bytes(_BASE62[byte % 62] for byte in range(256))
_TAIL = 14
_TAILS_AT_ONCE = 64
"""Randomness is fetched for so many ids at a time: asking the system for it costs more than all the rest of an id."""
_CLOCK_MASK = (1 << 48) - 1


def is_well_formed(text: str, prefix: str) -> bool:
    """Whether a caller's id may be used: `prefix` first, then only `A-Za-z0-9_-`, 200 characters at most."""
    return text.startswith(prefix) and len(text) > len(prefix) and _WELL_FORMED.fullmatch(text) is not None


class IdSource:
    """Makes ids that rise strictly within one process.

    `now_ms` gives epoch milliseconds, `random_bytes(n)` gives n random bytes. When the clock stands still or jumps
    backwards the counter goes on from the last value, so ids never repeat and never fall. `guard` is held while one is made:
    a lock where several threads ask, as in a runtime, whose transactions make ids while its loop makes others.
    """

    def __init__(
        self,
        now_ms: Callable[[], int],
        random_bytes: Callable[[int], bytes],
        guard: AbstractContextManager[object] | None = None,
    ) -> None:
        self._now_ms = now_ms
        self._random_bytes = random_bytes
        self._last = 0
        self._tails = ""
        self._used = 0
        self._guard = nullcontext() if guard is None else guard

    def _next(self, prefix: str) -> str:
        with self._guard:
            self._last = max(self._last + 1, self._now_ms() << 12)
            begin = self._used
            if begin == len(self._tails):
                begin = 0
                self._tails = self._random_bytes(_TAIL * _TAILS_AT_ONCE).translate(_DIGIT_OF_BYTE).decode("ascii")
            self._used = end = begin + _TAIL
            return f"{prefix}{self._last & _CLOCK_MASK:012x}{self._tails[begin:end]}"

    def session(self) -> SessionId:
        return SessionId(self._next("ses_"))

    def message(self) -> MessageId:
        return MessageId(self._next("msg_"))

    def event(self) -> EventId:
        return EventId(self._next("evt_"))

    def call(self) -> CallId:
        return CallId(self._next("call_"))

    def permission(self) -> RequestId:
        return RequestId(self._next("per_"))

    def question(self) -> RequestId:
        return RequestId(self._next("que_"))

    def part(self) -> PartId:
        return PartId(self._next("prt_"))
