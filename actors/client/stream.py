"""A stream of events as its consumer holds it: lazy, iterated once, left at any time.

Rules:
- Nothing is sent before the first item is asked for; errors of opening are raised there (wire contract, "Client").
- Leaving (`aclose`, the end of `async with`) unsubscribes without waiting. A stream that is merely dropped warns and does the
  same from its finalizer (ruling D2).
- A consumer that falls behind: a live stream ends with `SubscriberOverflowError` after what is held; a durable one
  unsubscribes and, when all that is held has been handed out, subscribes again after it, unseen by the consumer (ruling A15).
- An end is raised once, after the last item; from then on the stream is exhausted.
"""

from __future__ import annotations

import warnings
from types import TracebackType
from typing import Any, Generic, TypeVar

import msgspec
import trio

from ...protocol.contract import Operation
from ...protocol.values.errors import ClientError, SubscriberOverflowError
from ...protocol.values.event import Event, Synced, decode_event, decode_event_json
from .connection import Connection, IntakeFull
from .intake import Intake

OpeningT = TypeVar("OpeningT")


class EventStream(Generic[OpeningT]):
    """An asynchronous iterator of `Event`; events of an unknown type come with `UnknownData`.

    Use it as `async with stream: async for event in stream`. One task iterates at a time (`trio.BusyResourceError`).
    Cancelling a wait for an item loses none. `opening` is the answer that opened it, None before the first item.
    """

    def __init__(self, connection: Connection, operation: Operation[Any, OpeningT], params: msgspec.Struct) -> None:
        self.opening: OpeningT | None = None
        self._connection = connection
        self._operation = operation
        self._params: Any = params
        self._durable = "after" in params.__struct_fields__
        self._intake: Intake | None = None
        self._synced = False
        self._over = False
        self._busy = False

    def __aiter__(self) -> EventStream[OpeningT]:
        return self

    async def __anext__(self) -> Event:
        if self._busy:
            raise trio.BusyResourceError("another task is waiting for this stream's next item")
        self._busy = True
        try:
            return await self._next()
        finally:
            self._busy = False

    async def _next(self) -> Event:
        while not self._over:
            intake = self._intake
            if intake is None:
                await self._open()
                continue
            item = await intake.take()
            if item is None:
                self._ended(intake.error)
                continue
            event = self._decoded(item)
            if not (isinstance(event.data, Synced) and self._synced):
                self._handed_out(event)
                return event
        raise StopAsyncIteration

    async def _open(self) -> None:
        intake = Intake()
        try:
            opening = await self._connection.open(self._operation.method, self._params, self._operation.result, intake)
        except Exception:
            self._over = True
            raise
        if self._over:
            self._connection.leave(intake)  # closed by another task in the meantime
            return
        self._intake = intake
        if self.opening is None:
            self.opening = opening
        if self._durable:
            self._params = msgspec.structs.replace(self._params, generation=opening.generation)

    def _ended(self, error: Exception | None) -> None:
        match error:
            case IntakeFull() if self._durable:
                self._intake = None  # subscribes again, after the last item handed out
            case IntakeFull():
                self._over = True
                raise SubscriberOverflowError("This consumer fell too far behind; read the state anew and subscribe again.")
            case None:
                self._over = True
            case _:
                self._over = True
                raise error

    def _decoded(self, item: msgspec.Raw) -> Event:
        try:
            return (decode_event if self._connection.codec.binary else decode_event_json)(bytes(item))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._leave()
            raise ClientError("malformed", f"An event of {self._operation.method} cannot be read: {error}.") from error

    def _handed_out(self, event: Event) -> None:
        if isinstance(event.data, Synced):
            self._synced = True
        elif self._durable and event.seq is not None:
            self._params = msgspec.structs.replace(self._params, after=event.seq)

    def _leave(self) -> None:
        self._over = True
        intake, self._intake = self._intake, None
        if intake is not None:
            _abandon(self._connection, intake)

    async def aclose(self) -> None:
        """Leave the stream: what is held is dropped, and a task that waits for an item finds the end. Never waits."""
        self._leave()

    async def __aenter__(self) -> EventStream[OpeningT]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def __del__(self) -> None:
        intake = getattr(self, "_intake", None)
        if intake is None or intake.ended:
            return
        try:
            # Finalizers may run in any thread and at any point of any task, so that only the loop itself may act.
            self._connection.token.run_sync_soon(_abandon, self._connection, intake)
        except trio.RunFinishedError:
            return
        warnings.warn(f"{self._operation.method} was dropped without being closed", ResourceWarning, stacklevel=2, source=self)


def _abandon(connection: Connection, intake: Intake) -> None:
    connection.leave(intake)
    intake.discard()
