"""An event on its way out: encoded once, framed once for each kind of connection."""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

from ..protocol.codec import Codec
from ..protocol.values.event import (
    Event,
    EventData,
    ReasoningDelta,
    TextDelta,
    ToolInputDelta,
    encode_event,
    event_as_json,
)


class Outbound(Protocol):
    """One connection's way out, as the feed sees it."""

    @property
    def framing(self) -> str:
        """Frames made for one framing serve every connection that has it."""
        ...

    @property
    def codec(self) -> Codec: ...

    @property
    def joinable(self) -> bool:
        """Whether several frames may be handed over as one run of bytes."""
        ...

    @property
    def backlog(self) -> int:
        """Bytes queued, of whatever is sent over this connection; none once it is gone."""
        ...

    def frame(self, payload: bytes) -> bytes:
        """The payload as the transport wants it; the same for every connection of the framing."""
        ...

    def try_send(self, framed: bytes, frames: int = 1) -> int:
        """Send or queue whole frames without waiting: the bytes now queued, or -1 when the connection is gone."""
        ...

    async def wait_drained(self) -> None:
        """Until few bytes are queued, or the connection is gone."""
        ...


@lru_cache(maxsize=1_024)
def _prefix(codec: Codec, subscription: int) -> bytes:
    return codec.item_prefix(subscription)


def item_frame(outbound: Outbound, subscription: int, body: bytes) -> bytes:
    """The `next` frame of an encoded event for a codec that carries these bytes as they are."""
    codec = outbound.codec
    return outbound.frame(_prefix(codec, subscription) + body + codec.item_suffix)


class Published:
    """An event with everything that was ever made of it. `seq` is None for a live one; `event` is kept for live ones only."""

    __slots__ = ("_frames", "_json", "_payload", "event", "seq", "size")

    def __init__(self, payload: bytes, seq: int | None = None, event: Event | None = None) -> None:
        self._payload = payload
        self._json: bytes | None = None
        self._frames: dict[tuple[str, int], bytes] = {}
        self.seq = seq
        self.event = event
        self.size = len(payload)

    @classmethod
    def live(cls, event: Event) -> Published:
        """A live event, encoded now."""
        return cls(encode_event(event), event=event)

    def frame(self, outbound: Outbound, subscription: int) -> bytes:
        """The `next` frame of this event; made once for a framing and a subscription id, then shared (ruling B16)."""
        key = (outbound.framing, subscription)
        framed = self._frames.get(key)
        if framed is None:
            body = self._payload
            if not outbound.codec.binary:
                if self._json is None:
                    self._json = event_as_json(self._payload)
                body = self._json
            framed = item_frame(outbound, subscription, body)
            self._frames[key] = framed
        return framed


def join_deltas(last: Published, late: Published) -> Published | None:
    """One delta for two adjacent ones of the same fragment; None when they are not that."""
    if last.event is None or late.event is None:
        return None
    match last.event.data, late.event.data:
        case (TextDelta() | ReasoningDelta() as a, TextDelta() | ReasoningDelta() as b) if (
            type(a) is type(b) and a.part_id == b.part_id
        ):
            data: EventData = type(a)(
                assistant_message_id=a.assistant_message_id, part_id=a.part_id, offset=a.offset, delta=a.delta + b.delta
            )
        case (ToolInputDelta() as a, ToolInputDelta() as b) if a.call_id == b.call_id:
            data = ToolInputDelta(
                assistant_message_id=a.assistant_message_id, call_id=a.call_id, offset=a.offset, delta=a.delta + b.delta
            )
        case _:
            return None
    return Published.live(Event(type=data.type, created=last.event.created, data=data, session_id=last.event.session_id))
