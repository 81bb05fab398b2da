"""What happens in one session, seen from a client: whole values once each and in order, deltas as they come.

Rules:
- Live events carry the deltas; what a live stream lost, because its reader was too slow, is caught up from the durable one.
- A delta says where it belongs, so a consumer that drops what it has already seen shows every text once (ruling A12).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...protocol.values import Event, SessionId
    from ..client.client import Client


async def watch(client: Client, session_id: SessionId, after: int) -> AsyncGenerator[Event | None]:
    """Events of the session behind the sequence `after`. A None says: from here on nothing is missed.

    Ends with the server's stream; raises `ClientError` when the connection is lost. Close it when leaving it early.
    """
    from ...protocol.values import Synced
    from ...protocol.values.errors import SubscriberOverflowError

    seen = after
    while True:
        async with client.events.subscribe() as live:
            await anext(live)  # `server.connected`: what is published from now on arrives
            async with client.sessions.events(session_id, after=seen) as durable:
                async for event in durable:
                    if isinstance(event.data, Synced):
                        break
                    seen = event.seq or seen
                    yield event
            yield None
            try:
                async for event in live:
                    if event.session_id == session_id and (event.seq is None or event.seq > seen):
                        seen = event.seq or seen
                        yield event
            except SubscriberOverflowError:
                continue
            return
