"""The client: every operation of the contract, over whatever transport it was given.

Rules:
- The networked and the embedded client are this same class; only what carries the frames differs (wire contract, "Client").
- A declared failure raises its `DeclaredError`, anything else a `ClientError` with its reason. Answers are the frozen values.
- Cancel scopes own cancellation; `timeout` (seconds) of a single call is a convenience that raises `ClientError` `timeout`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
import trio

from ...protocol.codec import Codec
from ...protocol.contract import Operation
from .agents import AgentCatalog
from .connection import Connection
from .context import ContextEntries
from .events import Events
from .models import ModelCatalog
from .requests import Permissions, Questions
from .server import Server
from .sessions import Sessions
from .stream import EventStream
from .transport import Opener, Transport

ParamsT = TypeVar("ParamsT", bound=msgspec.Struct)
ResultT = TypeVar("ResultT")


class Client:
    """Operations by namespace: `sessions`, `events`, `context`, `permissions`, `questions`, `agents`, `models`, `server`.

    Takes over `transport`; its reading task runs in `nursery`, whose end is the client's end. `opener` opens another
    transport to the same server, which only `sessions.follow` does.
    """

    def __init__(self, transport: Transport, codec: Codec, nursery: trio.Nursery, *, opener: Opener | None = None) -> None:
        self._connection = Connection(transport, codec, nursery)
        self._nursery = nursery
        self._opener = opener
        self.sessions = Sessions(self)
        self.events = Events(self)
        self.context = ContextEntries(self)
        self.permissions = Permissions(self)
        self.questions = Questions(self)
        self.agents = AgentCatalog(self)
        self.models = ModelCatalog(self)
        self.server = Server(self)

    async def call(self, operation: Operation[ParamsT, ResultT], params: ParamsT, *, timeout: float | None = None) -> ResultT:
        """The answer of any operation that is not a stream. Whether a cancelled or lost call took effect is unknown: ask
        again with the same ids (ruling A5)."""
        if operation.stream:
            raise ValueError(f"{operation.method} is a stream; open it with `stream`.")
        return await self._connection.call(operation.method, params, operation.result, timeout=timeout)

    def stream(self, operation: Operation[ParamsT, ResultT], params: ParamsT) -> EventStream[ResultT]:
        """A stream of any operation that is one. Sends nothing until its first item is asked for."""
        if not operation.stream:
            raise ValueError(f"{operation.method} is not a stream; use `call`.")
        return EventStream(self._connection, operation, params)

    def another(self) -> Callable[[], Awaitable[Client]] | None:
        """Opens a further client of the same server; None when nobody said how, or when this one was closed."""
        opener, nursery = self._opener, self._nursery
        if opener is None or self._connection.closed:
            return None

        async def reopen() -> Client:
            transport = await opener(nursery)
            return Client(transport, transport.codec, nursery)

        return reopen

    def drop(self) -> None:
        """Like `aclose`, without waiting and without saying goodbye to the server."""
        self._connection.drop()

    async def aclose(self) -> None:
        """End the client: calls and streams end with `ClientError` `closed`. Takes a second at most; idempotent."""
        await self._connection.aclose()
