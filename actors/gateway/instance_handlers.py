"""Streams, and what the instance says of itself: `sessions.events`, `events.*`, `server.*`, `agents.*`, `models.*`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...protocol import operations as op
from ...protocol.codec import MAX_DEPTH, MAX_MESSAGE_BYTES
from ...protocol.values.agent import AgentInfo
from ...protocol.values.errors import CursorExpiredError, InvalidRequestError
from ...protocol.values.ids import MAX_ID_LENGTH, Generation
from ...protocol.values.prompt import MAX_PROMPT_BYTES
from ...protocol.values.server import Health, ServerInfo, ServerLimits
from ..feed import Feed
from ..mailbox import Answer, settled
from ..session.services import Services
from .handling import Handler, Opened, Peer, in_task
from .limits import Limits


class InstanceHandlers:
    """Everything that is not a letter to a session."""

    def __init__(self, services: Services, feed: Feed, *, version: str, limits: Limits) -> None:
        self._services = services
        self._feed = feed
        self._version = version
        self._limits = limits

    def handlers(self) -> Mapping[str, Handler]:
        """By wire method."""
        return {
            "sessions.events": self._events,
            "events.subscribe": self._subscribe,
            "server.info": self._info,
            "server.health": lambda _params, _peer: settled(Health(healthy=True)),
            "agents.list": self._agents,
            "models.list": lambda _params, _peer: settled(self._services.models.describe()),
        }

    def _events(self, params: op.WatchSession, peer: Peer) -> Answer[Any]:
        if params.after is not None and params.after < 0:
            raise InvalidRequestError("after must be 0 or more.", field="after")

        async def open_stream() -> Opened:
            head = await self._services.storage.read(lambda reader: reader.head(params.session_id))
            after, generation = params.after or 0, Generation(self._services.storage.generation)
            if after > head or params.generation not in (None, generation):
                raise CursorExpiredError(
                    "This position is not in the store's history; read the session anew and watch from its head.",
                    generation=generation,
                    head=head,
                )
            number = peer.next_subscription()
            subscription = self._feed.subscribe_session(
                peer.outbound,
                number,
                peer.subscription_ended,
                session_id=params.session_id,
                after=after,
                head=head,
            )
            return Opened(op.SessionStream(subscription=number, generation=generation, head=head), number, subscription)

        return in_task(peer, open_stream)

    def _subscribe(self, params: op.NoParams, peer: Peer) -> Answer[Any]:
        number = peer.next_subscription()
        subscription = self._feed.subscribe_live(peer.outbound, number, peer.subscription_ended)
        return settled(Opened(op.LiveStream(subscription=number), number, subscription))

    def _info(self, params: op.NoParams, peer: Peer) -> Answer[Any]:
        limits = ServerLimits(
            max_message_bytes=MAX_MESSAGE_BYTES,
            max_depth=MAX_DEPTH,
            max_id_length=MAX_ID_LENGTH,
            max_prompt_bytes=MAX_PROMPT_BYTES,
            max_requests_in_flight=self._limits.requests,
            max_subscriptions=self._limits.subscriptions,
        )
        generation = Generation(self._services.storage.generation)
        return settled(ServerInfo(name="steerway", version=self._version, generation=generation, limits=limits))

    def _agents(self, params: op.NoParams, peer: Peer) -> Answer[Any]:
        return settled(
            tuple(
                AgentInfo(name=agent.name, rules=agent.rules, system=agent.system or None, model=agent.model, steps=agent.steps)
                for agent in self._services.agents.list()
            )
        )
