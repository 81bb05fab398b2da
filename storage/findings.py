"""What the doctor says: findings, sizes, and the report they stand in."""

from __future__ import annotations

from typing import Literal

import msgspec

Check = Literal[
    "settings",
    "integrity",
    "references",
    "sequences",
    "events",
    "log",
    "unfinished",
    "text",
    "checkpoints",
    "tombstones",
    "log size",
    "projections",
]
"""What was looked at."""

Severity = Literal["error", "warning"]
"""A warning is mended by the runtime's own care, or does no harm; an error is damage or a defect."""


def counted(number: int, noun: str) -> str:
    """A number of things in words: `1 event`, `7 events`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


class Finding(msgspec.Struct, frozen=True):
    """Something that is not as it has to be: where, what, and what to do about it."""

    severity: Severity
    check: Check
    where: str
    message: str
    advice: str


class TableSize(msgspec.Struct, frozen=True):
    """Pages of a table or index, in bytes."""

    name: str
    bytes: int


class Report(msgspec.Struct, frozen=True):
    """What the doctor saw. `owned`: a process is at work. `compared`: the projections were compared with the log.

    `wal_bytes` is the write-ahead log on disk; `tables` is the largest first.
    """

    path: str
    schema: int
    generation: str
    sqlite: str
    owned: bool
    compared: bool
    sessions: int
    events: int
    file_bytes: int
    wal_bytes: int
    tables: tuple[TableSize, ...]
    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        """Whether nothing was found."""
        return not self.findings
