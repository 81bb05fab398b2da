"""What every question shares: rounds that interleave the variants, medians, and findings that judge themselves.

Rules:
- A finding is a ratio of two things measured in one run on one machine, or a time beside its target. Absolute rates of a
  shared machine say little; ratios of interleaved variants hold.
- A variant is a function that does its work once and returns one number. `interleave` runs all variants in turn, round after
  round, so that a slow minute of the machine slows all of them. The first round warms up and is not counted.
- CPU time is that of the measured process (`time.process_time`: all of its threads, none of its children); the load comes from
  another process wherever it is reported.
- A verdict is "reached" or says by how much the target is missed. Nothing here fails: a benchmark reports.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median

import apsw
import trio

ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the results: what was compared, and what came of it. `target` and `verdict` are "" for a figure beside."""

    what: str
    ours: str
    raw: str
    ratio: str
    target: str
    verdict: str


def at_least(what: str, *, ours: float, raw: float, unit: str, target: float, ratio: float) -> Finding:
    """A rate that should reach a share of the raw one. `ratio` is ours / raw, as the median of the rounds."""
    verdict = "reached" if ratio >= target else f"short by {target - ratio:.2f}"
    return Finding(what, f"{ours:,.0f} {unit}", f"{raw:,.0f} {unit}", f"{ratio:.2f}", f"at least {target:.2f}", verdict)


def at_most(what: str, *, ours: float, unit: str, target: float, raw: float | None = None) -> Finding:
    """A cost that should stay below a number. `raw` is what the raw limit costs, for comparison."""
    verdict = "reached" if ours <= target else f"over by {ours - target:.2f} {unit}"
    beside_raw = ("", "") if raw is None else (f"{raw:.2f} {unit}", f"{ours / raw:.1f}")
    return Finding(what, f"{ours:.2f} {unit}", *beside_raw, f"at most {target:g} {unit}", verdict)


def beside(what: str, *, ours: str, raw: str = "", ratio: float | None = None) -> Finding:
    """A figure without a target."""
    return Finding(what, ours, raw, "" if ratio is None else f"{ratio:.2f}", "", "")


class Medians:
    """The numbers of all rounds, by variant."""

    def __init__(self, rounds: Sequence[Mapping[str, float]]) -> None:
        self._rounds = rounds

    def __getitem__(self, name: str) -> float:
        return median(numbers[name] for numbers in self._rounds)

    def ratio(self, name: str, other: str) -> float:
        """The median over the rounds of one variant's number divided by the other's in the same round."""
        return median(numbers[name] / numbers[other] for numbers in self._rounds)


async def interleave(variants: Mapping[str, Callable[[], Awaitable[float]]], rounds: int = ROUNDS) -> Medians:
    """Run every variant once in each round, backwards in every second one; a first round is thrown away."""
    results: list[dict[str, float]] = []
    for number in range(rounds + 1):
        order = list(variants.items())
        if number % 2:
            order.reverse()
        results.append({name: await variant() for name, variant in order})
    return Medians(results[1:])


class Stopwatch:
    """Wall and CPU seconds of this process since it was made, or since `stop`."""

    def __init__(self) -> None:
        self._begun = (time.perf_counter(), time.process_time())

    def stop(self) -> tuple[float, float]:
        """Seconds passed and CPU seconds spent."""
        return time.perf_counter() - self._begun[0], time.process_time() - self._begun[1]


@contextmanager
def scratch_folder() -> Generator[Path]:
    """A folder for stores on the disk that `BENCH_DIR` names, else on that of the system's temporary files."""
    with tempfile.TemporaryDirectory(prefix="steerway-bench-", dir=os.environ.get("BENCH_DIR")) as folder:
        yield Path(folder)


def machine() -> str:
    """What the numbers were measured on, in one line."""
    libraries = " · ".join(f"{name} {version(name)}" for name in ("trio", "trio-websocket", "msgspec", "httpx2"))
    return (
        f"{os.cpu_count()} cores · {platform.system()} {platform.release()} · Python {platform.python_version()} · "
        f"SQLite {apsw.sqlite_lib_version()} · {libraries}"
    )


def report(measure: Callable[[], Awaitable[list[Finding]]]) -> None:
    """The main program of a question: measure, then print for people, or as one JSON line with `--json`."""
    findings = trio.run(measure)
    if "--json" in sys.argv[1:]:
        print(json.dumps([asdict(finding) for finding in findings]))
        return
    for finding in findings:
        compared = f" against {finding.raw}" if finding.raw else ""
        ratio = f", ratio {finding.ratio}" if finding.ratio else ""
        verdict = f"  [{finding.target}: {finding.verdict}]" if finding.target else ""
        print(f"{finding.what}: {finding.ours}{compared}{ratio}{verdict}")
