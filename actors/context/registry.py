"""The System Context Registry: who contributes to the System Context, where, and the composition of one boundary.

Rules (seed, "System Context Registry"; reference 4.3):
- Contributions have stable keys and are scoped: to sessions of one location, or to all of them. A key that is taken in an
  overlapping scope is refused. Closing is immediate: its sources are gone at the next boundary.
- `core/` and `api/` belong to the runtime: it reserves its own contributions there, and others are refused, at registration or,
  for the sources that a producer names, when they are loaded.
- Producers run all at the same time and are combined in ascending key order, whatever the order of registration or of
  answers. What a session adds of its own (skills of its agent, its entries) follows in the order given.
- A producer that raises or gives no answer in time counts as unavailable; nothing of what it told before is taken for gone.
- Everything here belongs to one event loop. Registering never wakes a session.
"""

from __future__ import annotations

import os.path
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import TracebackType
from typing import TypeAlias, TypeVar, cast

import trio

from ...protocol.values.location import Location
from .algebra import SystemContext
from .observing import Observing, Unavailable
from .source import ContextKeyError, ContextSource, check_contributed, check_key, is_reserved

T = TypeVar("T")

Producer: TypeAlias = Callable[[Location], Awaitable[SystemContext]]
"""Says which sources a location has now. May look at the world; may be cancelled."""
OwnProducer: TypeAlias = tuple[str, Callable[[], Awaitable[SystemContext]]]
"""A key and a producer of one session, beside the registry's."""


class Contribution:
    """One place in the registry, until closed. Closing is immediate, idempotent, and possible in any order."""

    def __init__(self, contributions: list[Contribution], key: str, producer: Producer, location: str | None) -> None:
        self._contributions = contributions
        self.key = key
        self.producer = producer
        self.location = location
        contributions.append(self)

    def close(self) -> None:
        self._contributions[:] = [other for other in self._contributions if other is not self]

    def __enter__(self) -> Contribution:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class SystemContextRegistry:
    """The contributions of one runtime."""

    def __init__(self) -> None:
        self._contributions: list[Contribution] = []

    def register(self, source: ContextSource[T], *, location: str | None = None) -> Contribution:
        """Contribute one source under its own key, from the next boundary on.

        `location` (an absolute directory) confines it to sessions there. Raises `ContextKeyError` when the key is taken or
        reserved.
        """
        context = SystemContext.make(source)

        async def produce(_: Location) -> SystemContext:
            return context

        return self.produce(source.key, produce, location=location)

    def produce(self, key: str, producer: Producer, *, location: str | None = None) -> Contribution:
        """Contribute whatever sources `producer` names at each boundary. Raises `ContextKeyError` as `register` does."""
        check_contributed(key)
        return self._contribute(key, producer, location)

    def reserve(self, key: str, producer: Producer) -> Contribution:
        """Contribute for the runtime itself, in a namespace that is refused to others. Raises `ContextKeyError`."""
        check_key(key)
        return self._contribute(key, producer, None)

    def _contribute(self, key: str, producer: Producer, location: str | None) -> Contribution:
        scope = None if location is None else os.path.normpath(location)
        for other in self._contributions:
            if other.key == key and (scope is None or other.location is None or other.location == scope):
                raise ContextKeyError(f"The context contribution {key!r} is registered already.")
        return Contribution(self._contributions, key, producer, scope)

    async def load(self, location: Location, observing: Observing, *, own: Sequence[OwnProducer] = ()) -> SystemContext:
        """The System Context of one boundary: the contributions for `location`, then `own` in the order given.

        Raises `ContextKeyError` when two producers name the same source, or a contributed one a source of the runtime.
        Cancelling it cancels the producers.
        """
        chosen = self._contributions_for(location)
        producers: list[OwnProducer] = [(one.key, partial(_produced, one, location)) for one in chosen]
        producers.extend(own)
        contexts = [SystemContext.empty] * len(producers)

        async def produce(index: int, key: str, producer: Callable[[], Awaitable[SystemContext]]) -> None:
            match await observing.attempt(key, producer):
                case Unavailable(reason=reason):
                    contexts[index] = SystemContext.unavailable(key, reason)
                case context:
                    contexts[index] = context

        async with trio.open_nursery() as nursery:
            for index, (key, producer) in enumerate(producers):
                nursery.start_soon(produce, index, key, producer)
        for contribution, context in zip(chosen, contexts, strict=False):
            if not is_reserved(contribution.key):
                for key in context.keys:
                    check_contributed(key)
        return SystemContext.combine(*contexts)

    def _contributions_for(self, location: Location) -> list[Contribution]:
        here = os.path.normpath(location.directory)
        found = [one for one in self._contributions if one.location is None or one.location == here]
        return sorted(found, key=lambda one: one.key)

    def statistics(self) -> dict[str, int]:
        return {"context_contributions": len(self._contributions)}


async def _produced(contribution: Contribution, location: Location) -> SystemContext:
    produced = await contribution.producer(location)
    if not isinstance(cast("object", produced), SystemContext):
        raise TypeError(f"the producer gave {type(produced).__name__}, no SystemContext")
    return produced
