"""Which layout of the event table suits this workload: a rowid and a unique index, or (session, seq) as the key itself?

Rules:
- Both tables hold the same log before anything is measured: many sessions, interleaved event by event as they are
  committed. The connections are those of the store, settings included; only the table differs.
- Writing comes in the two shapes a server sees: one event each of many sessions a commit (admissions), and runs of events of a
  few sessions a commit (turns). Replaying reads one session from its start in the reader's pages, without decoding.
- The raw side of each line is the layout that was not chosen (decision 0001); a ratio above 1 speaks for the chosen one.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

from measure import Finding, Medians, Stopwatch, beside, interleave, report, scratch_folder

from steerway.storage.connections import connect_writer
from steerway.storage.statements import Connection

SESSIONS = 1_000
EVENTS = 200
"""Events each session has before the measurement."""
COMMITS = 15
GROUP = 256
TURN_SESSIONS = 20
TURN_EVENTS = 12
REPLAYED = 100
PAGE = 512
BODY = bytes(range(256)) + bytes(144)
"""As long as an admission of a few sentences, encoded."""

COLUMNS = "session INTEGER NOT NULL, seq INTEGER NOT NULL, type TEXT NOT NULL, created INTEGER NOT NULL, body BLOB NOT NULL"
LAYOUTS = {
    "rowid": f"CREATE TABLE event (id INTEGER PRIMARY KEY, {COLUMNS}, UNIQUE (session, seq)) STRICT",
    "pair": f"CREATE TABLE event ({COLUMNS}, PRIMARY KEY (session, seq)) STRICT, WITHOUT ROWID",
}
INSERT = "INSERT INTO event (session, seq, type, created, body) VALUES (?, ?, 'session.prompt.admitted', 1700000000000, ?)"
SELECT = "SELECT seq, body FROM event WHERE session = ? AND seq > ? ORDER BY seq LIMIT ?"


class Log:
    """One layout with its log; sessions take turns in an order that looks random and is the same for both."""

    def __init__(self, path: Path, layout: str) -> None:
        path.touch()
        self._wal = Path(f"{path}-wal")
        self._connection: Connection = connect_writer(path, "full")
        self._cursor = self._connection.cursor()
        self._connection.execute(LAYOUTS[layout])
        self._heads = [0] * SESSIONS
        self._turns = itertools.cycle(number * 617 % SESSIONS for number in range(SESSIONS))
        self._replays = itertools.cycle(number * 389 % SESSIONS for number in range(SESSIONS))
        for _ in range(EVENTS):
            self._commit(itertools.islice(self._turns, SESSIONS))
        self._connection.wal_checkpoint(mode=3)

    def _commit(self, sessions: Iterator[int]) -> None:
        self._cursor.execute("BEGIN IMMEDIATE")
        for session in sessions:
            self._heads[session] += 1
            self._cursor.execute(INSERT, (session, self._heads[session], BODY))
        self._cursor.execute("COMMIT")

    async def admissions(self) -> float:
        """Events a second, one of each session."""
        watch = Stopwatch()
        for _ in range(COMMITS):
            self._commit(itertools.islice(self._turns, GROUP))
        return COMMITS * GROUP / watch.stop()[0]

    async def turns(self) -> float:
        """Events a second, a run of each session."""
        watch = Stopwatch()
        for _ in range(COMMITS):
            sessions = list(itertools.islice(self._turns, TURN_SESSIONS))
            self._commit(session for session in sessions for _ in range(TURN_EVENTS))
        return COMMITS * TURN_SESSIONS * TURN_EVENTS / watch.stop()[0]

    async def replay(self) -> float:
        """Events a second, one session after the other."""
        watch, events = Stopwatch(), 0
        for session in itertools.islice(self._replays, REPLAYED):
            seq = 0
            while rows := self._cursor.execute(SELECT, (session, seq, PAGE)).fetchall():
                events += len(rows)
                seq = rows[-1][0]
        return events / watch.stop()[0]

    async def pages(self) -> float:
        """Bytes an admission adds to the write-ahead log, by a commit of a group."""
        self._connection.wal_checkpoint(mode=3)
        self._commit(itertools.islice(self._turns, GROUP))
        return self._wal.stat().st_size / GROUP


async def measure() -> list[Finding]:
    """All comparisons, round by round on both layouts."""
    with scratch_folder() as folder:
        logs = {layout: Log(folder / f"{layout}.db", layout) for layout in LAYOUTS}
        variants: dict[str, Callable[[], Awaitable[float]]] = {}
        for question in ("admissions", "turns", "replay", "pages"):
            for layout, log in logs.items():
                variants[f"{question} {layout}"] = partial(getattr(log, question))
        medians = await interleave(variants)
    return [
        _compare(f"one event of each of {GROUP} sessions a commit", medians, "admissions"),
        _compare(f"runs of {TURN_EVENTS} events of {TURN_SESSIONS} sessions a commit", medians, "turns"),
        _compare("replay of one session", medians, "replay"),
        beside(
            "bytes of log written an admission (smaller is better)",
            ours=f"{medians['pages rowid']:,.0f} B",
            raw=f"{medians['pages pair']:,.0f} B",
            ratio=medians.ratio("pages rowid", "pages pair"),
        ),
    ]


def _compare(what: str, medians: Medians, question: str) -> Finding:
    ours, other = f"{question} rowid", f"{question} pair"
    return beside(
        f"{what}, rowid against (session, seq)",
        ours=f"{medians[ours]:,.0f} events/s",
        raw=f"{medians[other]:,.0f} events/s",
        ratio=medians.ratio(ours, other),
    )


if __name__ == "__main__":
    report(measure)
