"""Context Snapshots: what each Context Source was last admitted with. Hidden from the model, compared at each boundary.

Rules:
- A snapshot maps keys to entries; it is plain JSON in both codecs, and never changed in place.
- A stored snapshot that is not one is a typed failure: no request is made from it, and nothing guesses what it meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import msgspec

from ...protocol.values.context import SnapshotEntry

Snapshot: TypeAlias = Mapping[str, SnapshotEntry]


class InvalidSnapshotError(ValueError):
    """What is stored as a snapshot is none."""


def decode_snapshot(stored: Any) -> dict[str, SnapshotEntry]:
    """The snapshot in a plain value (as JSON or MessagePack unpack it). Raises `InvalidSnapshotError`."""
    try:
        return msgspec.convert(stored, dict[str, SnapshotEntry])
    except msgspec.ValidationError as error:
        raise InvalidSnapshotError(f"The stored context snapshot cannot be read: {error}") from error


def advance(snapshot: Snapshot, entries: Snapshot, dropped: Iterable[str]) -> dict[str, SnapshotEntry]:
    """The snapshot after an admitted update: `entries` new or replaced, `dropped` gone. Ordered by key."""
    gone = frozenset(dropped)
    merged = {**snapshot, **entries}
    return {key: merged[key] for key in sorted(merged) if key not in gone}
