"""What a namespace needs of its client; it breaks the circle between the two."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import msgspec

from ...protocol.contract import Operation
from .stream import EventStream

ParamsT = TypeVar("ParamsT", bound=msgspec.Struct)
ResultT = TypeVar("ResultT")


class Calls(Protocol):
    """The part of `Client` that namespaces stand on."""

    async def call(self, operation: Operation[ParamsT, ResultT], params: ParamsT, *, timeout: float | None = None) -> ResultT:
        """Ask, and return the answer."""
        ...

    def stream(self, operation: Operation[ParamsT, ResultT], params: ParamsT) -> EventStream[ResultT]:
        """A stream that opens at its first item."""
        ...

    def another(self) -> Callable[[], Awaitable[ClosableCalls]] | None:
        """Opens a further client of the same server; None when that is not possible, or not wanted any more."""
        ...


class ClosableCalls(Calls, Protocol):
    """A client of one's own."""

    async def aclose(self) -> None:
        """Close it."""
        ...

    def drop(self) -> None:
        """Close it without waiting."""
        ...
