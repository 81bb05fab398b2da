"""The System Context: sources composed in order, and what a boundary has to do about them.

Rules (seed, "System Context"; reference 4.2):
- A System Context is an opaque, immutable carrier. `make` closes a source into one, `combine` keeps the order of its
  arguments and refuses a key twice, `empty` changes nothing.
- `initialize`, `reconcile` and `replace` observe each source exactly once, all at the same time. What they say depends on
  the values alone, never on who answered first.
- Only initialising and replacing make a baseline. Reconciling says exactly one of: unchanged, updated, replacement ready,
  replacement blocked. Update texts are not rendered when the outcome is a replacement.
- What is Unavailable keeps its last admitted state. A stored value that its source cannot decode any more, and a source
  gone without a removal text, need a fresh baseline; that waits while admitted context is unavailable. What can be told
  within the old epoch meanwhile comes with the blocked outcome, so that one source never silences the others.
- A baseline, an update and a snapshot are bounded as wholes, so that the event that stores them fits a frame.
- No clock, file or store is known here: loaders bring all that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final, TypeAlias, TypeVar

import msgspec
import trio

from ...protocol.values.context import ContextContribution, SourceState
from .observing import Observing, Unavailable
from .snapshot import Snapshot, SnapshotEntry, advance
from .source import MAX_SOURCE_BYTES, ContextKeyError, ContextSource, OversizedRenderingError, canonical

T = TypeVar("T")

MAX_TOTAL_BYTES: Final = 4 * 1024 * 1024
"""Of all sources together, as JSON: of a baseline, of an update, and of a snapshot."""

_BLANK_LINE: Final = "\n\n"


class Initialized(msgspec.Struct, frozen=True, kw_only=True):
    """A complete Baseline System Context and its snapshot. `baseline` is empty only when there is no source at all."""

    baseline: str
    snapshot: dict[str, SnapshotEntry]


class Blocked(msgspec.Struct, frozen=True, kw_only=True):
    """The first baseline would be incomplete. `reasons` has why, by key, in composition order."""

    reasons: dict[str, str]

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.reasons)


class Unchanged(msgspec.Struct, frozen=True):
    """Nothing to tell; baseline and snapshot stay."""


class Updated(msgspec.Struct, frozen=True, kw_only=True):
    """One combined Mid-Conversation System Message: exact `text`, and the whole `snapshot` that advances with it.

    `entries` and `dropped` are what changed in the snapshot.
    """

    text: str
    snapshot: dict[str, SnapshotEntry]
    entries: dict[str, SnapshotEntry]
    dropped: tuple[str, ...]


class ReplacementReady(msgspec.Struct, frozen=True, kw_only=True):
    """A fresh baseline and snapshot for a new Context Epoch."""

    baseline: str
    snapshot: dict[str, SnapshotEntry]


class ReplacementBlocked(msgspec.Struct, frozen=True, kw_only=True):
    """A fresh baseline is needed, but would lose admitted context that is unavailable. `reasons` as in `Blocked`.

    `meanwhile` is the update of all that was observed and can be told within the old epoch, if there is any. What needs the
    fresh baseline stays in the snapshot as it was, so that the replacement is still due.
    """

    reasons: dict[str, str]
    meanwhile: Updated | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.reasons)


Initialization: TypeAlias = Initialized | Blocked
Replacement: TypeAlias = ReplacementReady | ReplacementBlocked
Reconciliation: TypeAlias = Unchanged | Updated | Replacement


class SystemContext:
    """Sources in order, or nothing. Made by `make`, `combine`, `empty` and `unavailable`."""

    empty: ClassVar[SystemContext]

    def __init__(self, sources: tuple[ContextSource[Any], ...], unavailable: Mapping[str, str]) -> None:
        self._sources = sources
        self._unavailable = unavailable

    @classmethod
    def make(cls, source: ContextSource[T]) -> SystemContext:
        """The context of one source; its value type is hidden from here on."""
        return cls((source,), {})

    @classmethod
    def unavailable(cls, key: str, reason: str) -> SystemContext:
        """What stands for a producer that could not even say which sources it has.

        It blocks the first baseline, and while it is there no absence counts: a source that is missing may be one of its own.
        """
        return cls((), {key: reason})

    @classmethod
    def combine(cls, *contexts: SystemContext) -> SystemContext:
        """All sources, in the order given. Raises `ContextKeyError` when a key occurs twice."""
        sources = tuple(source for context in contexts for source in context._sources)
        seen: set[str] = set()
        for source in sources:
            if source.key in seen:
                raise ContextKeyError(f"Two context sources have the key {source.key!r}; each needs one of its own.")
            seen.add(source.key)
        return cls(sources, {key: reason for context in contexts for key, reason in context._unavailable.items()})

    @property
    def keys(self) -> tuple[str, ...]:
        """The sources' keys, in order."""
        return tuple(source.key for source in self._sources)

    async def initialize(self, observing: Observing) -> Initialization:
        """Observe once; a fresh baseline and its snapshot, unless anything is unavailable."""
        seen = await self._observe(observing)
        if seen.unavailable:
            return Blocked(reasons=seen.unavailable)
        return Initialized(baseline=seen.baseline(), snapshot=seen.snapshot())

    async def replace(self, snapshot: Snapshot, observing: Observing) -> Replacement:
        """Observe once; a fresh baseline after a completed compaction or another transition that needs one."""
        return (await self._observe(observing)).replacement(snapshot)

    async def reconcile(self, snapshot: Snapshot, observing: Observing) -> Reconciliation:
        """Observe once, and compare with what was last admitted."""
        seen = await self._observe(observing)
        difference = seen.difference(snapshot)
        if difference.needs_baseline:
            return seen.replacement(snapshot)
        return difference.update(snapshot) or Unchanged()

    async def survey(self, snapshot: Snapshot, observing: Observing) -> tuple[ContextContribution, ...]:
        """Observe once, and say of every source how it stands to the snapshot. For people; nothing is rendered."""
        seen = await self._observe(observing)
        found: list[ContextContribution] = []
        for key in (*self.keys, *(key for key in self._unavailable if key not in self.keys)):
            stored = snapshot.get(key)
            value = None if stored is None else stored.value
            reason = seen.unavailable.get(key)
            now = next((one for one in seen.observed if one.key == key), None)
            state: SourceState
            if now is None:
                state = "unavailable"
            elif stored is None:
                state = "new"
            elif canonical(value) == now.canonical:
                state = "unchanged"
            else:
                state = now.compared(value)
            found.append(ContextContribution(key=key, state=state, value=value, reason=reason))
        gone = [ContextContribution(key=key, state="gone", value=snapshot[key].value) for key in seen.gone(snapshot)]
        return (*found, *gone)

    async def _observe(self, observing: Observing) -> _Seen:
        answers: dict[str, _Observed | Unavailable] = {}

        async def observe(source: ContextSource[Any]) -> None:
            answers[source.key] = await observing.attempt(source.key, partial(_observed, source))

        async with trio.open_nursery() as nursery:
            for source in self._sources:
                nursery.start_soon(observe, source)
        observed: list[_Observed] = []
        unavailable: dict[str, str] = {}
        for source in self._sources:
            match answers[source.key]:
                case Unavailable(reason=reason):
                    unavailable[source.key] = reason
                case _Observed() as one:
                    observed.append(one)
        return _Seen(observed, {**unavailable, **self._unavailable}, frozenset(self.keys), bool(self._unavailable))


SystemContext.empty = SystemContext((), {})


@dataclass(frozen=True, slots=True)
class _Observed:
    """A source with its value of this boundary."""

    source: ContextSource[Any]
    value: Any
    stored: Any
    canonical: bytes

    @property
    def key(self) -> str:
        return self.source.key

    def baseline(self) -> str:
        return self.source.rendered("baseline", lambda: self.source.baseline(self.value))

    def update(self, previous: Any) -> str:
        return self.source.rendered("update", lambda: self.source.update(previous, self.value))

    def compared(self, stored: Any) -> SourceState:
        """How the value stands to another stored one."""
        try:
            equal = canonical(self.source.codec.stored(self.source.codec.decode(stored))) == self.canonical
        except Exception:  # whatever the codec of today makes of a value of yesterday
            return "broken"
        return "unchanged" if equal else "changed"

    def entry(self) -> SnapshotEntry:
        removed = self.source.removed
        text = None if removed is None else self.source.rendered("removal", lambda: removed(self.value))
        return SnapshotEntry(value=self.stored, removed=text)


async def _observed(source: ContextSource[Any]) -> _Observed | Unavailable:
    """The value, encoded and read back. Raises whatever loader and codec raise: a defect of the source."""
    value = await source.load()
    if isinstance(value, Unavailable):
        return value
    stored = source.codec.stored(value)
    comparable = canonical(stored)
    if len(comparable) > MAX_SOURCE_BYTES:
        raise ValueError(f"the value has {len(comparable)} bytes as JSON; at most {MAX_SOURCE_BYTES} are kept")
    if canonical(source.codec.stored(source.codec.decode(stored))) != comparable:
        raise ValueError("the codec reads back another value than it wrote")
    return _Observed(source, value, stored, comparable)


@dataclass(frozen=True, slots=True)
class _Seen:
    """Everything observed at one boundary, in composition order. `known` are the keys of all sources that there are."""

    observed: list[_Observed]
    unavailable: dict[str, str]
    known: frozenset[str]
    incomplete: bool

    def absent(self, snapshot: Snapshot) -> tuple[str, ...]:
        return tuple(sorted(key for key in snapshot if key not in self.known))

    def gone(self, snapshot: Snapshot) -> tuple[str, ...]:
        """The admitted sources that are certainly not there any more, by key."""
        return () if self.incomplete else self.absent(snapshot)

    def difference(self, snapshot: Snapshot) -> _Difference:
        """What is not as it was admitted."""
        changed: list[tuple[_Observed, tuple[Any] | None]] = []
        needs_baseline = False
        for observed in self.observed:
            stored = snapshot.get(observed.key)
            if stored is None:
                changed.append((observed, None))
                continue
            if canonical(stored.value) == observed.canonical:
                continue
            try:
                previous = observed.source.codec.decode(stored.value)
                equal = canonical(observed.source.codec.stored(previous)) == observed.canonical
            except Exception:  # whatever the codec of today makes of a value of yesterday
                needs_baseline = True
                continue
            if not equal:
                changed.append((observed, (previous,)))
        gone = self.gone(snapshot)
        farewells = {key: text for key in gone if (text := snapshot[key].removed) is not None}
        return _Difference(changed, farewells, needs_baseline or len(farewells) < len(gone))

    def replacement(self, snapshot: Snapshot) -> Replacement:
        missed = self.incomplete and bool(self.absent(snapshot))
        reasons = {
            key: reason for key, reason in self.unavailable.items() if key in snapshot or (missed and key not in self.known)
        }
        if reasons:
            return ReplacementBlocked(reasons=reasons, meanwhile=self.difference(snapshot).update(snapshot))
        return ReplacementReady(baseline=self.baseline(), snapshot=self.snapshot())

    def baseline(self) -> str:
        return _joined([observed.baseline() for observed in self.observed])

    def snapshot(self) -> dict[str, SnapshotEntry]:
        return _advanced({}, {observed.key: observed.entry() for observed in self.observed}, ())


@dataclass(frozen=True, slots=True)
class _Difference:
    """What to tell: `changed` sources in order with what each was before, `farewells` of those that are gone, by key.

    `needs_baseline`: there is also something that only a fresh baseline can tell.
    """

    changed: list[tuple[_Observed, tuple[Any] | None]]
    farewells: dict[str, str]
    needs_baseline: bool

    def update(self, snapshot: Snapshot) -> Updated | None:
        """The update that tells it, or None when there is nothing to tell."""
        if not self.changed and not self.farewells:
            return None
        texts = [observed.baseline() if before is None else observed.update(before[0]) for observed, before in self.changed]
        entries = {observed.key: observed.entry() for observed, _ in self.changed}
        gone = tuple(self.farewells)
        return Updated(
            text=_joined([*texts, *self.farewells.values()]),
            snapshot=_advanced(snapshot, entries, gone),
            entries=entries,
            dropped=gone,
        )


def _joined(texts: list[str]) -> str:
    text = _BLANK_LINE.join(texts)
    _check_size("text", len(msgspec.json.encode(text)))
    return text


def _advanced(snapshot: Snapshot, entries: Snapshot, gone: tuple[str, ...]) -> dict[str, SnapshotEntry]:
    advanced = advance(snapshot, entries, gone)
    _check_size("snapshot", len(msgspec.json.encode(advanced)))
    return advanced


def _check_size(what: str, size: int) -> None:
    if size > MAX_TOTAL_BYTES:
        raise OversizedRenderingError(
            f"The System Context is too large: its {what} has {size} bytes as JSON, and at most {MAX_TOTAL_BYTES} are kept. "
            "Its sources have to say less."
        )
