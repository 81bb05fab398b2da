"""System Context as values: snapshots, epochs, API-managed entries, and what a look at the provider context shows."""

from __future__ import annotations

from typing import Any, Literal

from .ids import SessionId
from .value import Value

EpochReason = Literal["initial", "compaction", "transition"]
"""Why a Context Epoch began: there was none (a new session, or one that moved); completed compaction or pruning; a
transition that no update can tell.
"""

SourceState = Literal["unchanged", "new", "changed", "gone", "unavailable", "broken"]
"""What a look finds of a source, compared with the snapshot. `broken`: the stored value cannot be decoded any more."""


class SnapshotEntry(Value):
    """What one Context Source was last admitted with. `value` is encoded by the source's codec.

    `removed` says what the model is told when the source is gone; absent when it is never told.
    """

    value: Any
    removed: str | None = None


class ContextEntry(Value):
    """A fact that a client keeps for one session: the source `api/<key>` of its System Context. Times are epoch ms."""

    session_id: SessionId
    key: str
    value: Any
    created: int
    updated: int


class ContextEpoch(Value):
    """The active Context Epoch: its immutable baseline, and the last sequence that the baseline covers.

    `revision` counts the updates admitted since. `stale`: the next boundary begins a new epoch.
    """

    baseline: str
    baseline_seq: int
    revision: int
    reason: EpochReason
    stale: bool = False


class ContextContribution(Value):
    """One source as a look at it finds it now. `value` is what the snapshot last admitted, where it was admitted."""

    key: str
    state: SourceState
    value: Any = None
    reason: str | None = None
