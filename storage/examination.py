"""The doctor's checks, one method each, on one state of the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import apsw
import msgspec

from ..protocol.values import Event, decode_event
from ..protocol.values.errors import SteerwayError
from .connections import JOURNAL_SIZE_LIMIT
from .findings import Check, Finding, Report, Severity, TableSize, counted
from .orderliness import SessionLog
from .rebuild import compare
from .removal import hidden
from .schema import version
from .statements import Connection

T = TypeVar("T")

MAX_FINDINGS: Final = 20
"""Of each check; a store that is broken all over need not say so more often."""

_BACKUP: Final = "Keep a copy of the file and restore the last backup."
_REBUILD: Final = "`steerway doctor --fix` builds the projections anew from the log."
_DEFECT: Final = "A defect of the runtime; report it with the events of the session (`steerway events`)."
_SETTLE: Final = "The runtime settles it when it starts, and so does `steerway doctor --fix`."
_SWEEP: Final = "Nobody sees it. The runtime deletes it when it starts, and so does `steerway doctor --fix`."
_STALE: Final = "Harmless; `steerway doctor --fix` drops it."
_RESTART: Final = "Restart the runtime; a reader that never ends, or no idle moment, keeps the log from being truncated."
_PRIVATE: Final = "`chmod 600` it."


class Examination:
    """Looks through a connection that is in a read transaction."""

    def __init__(self, connection: Connection, path: Path, *, owned: bool) -> None:
        self._connection = connection
        self._path = path
        self._owned = owned
        self._findings: list[Finding] = []

    def report(self, *, compare: bool) -> Report:
        """Everything. `compare`: with the projections against the log, if the log is in order."""
        checks: list[tuple[Check, Callable[[], None]]] = [
            ("settings", self._settings),
            ("integrity", self._integrity),
            ("references", self._references),
            ("sequences", self._sequences),
            ("events", self._logs),
            ("unfinished", self._hidden),
            ("text", self._text),
            ("checkpoints", self._checkpoints),
            ("tombstones", self._tombstones),
            ("log size", self._log_size),
        ]
        for name, check in checks:
            self._guarded(name, check)
        compared = compare and not any(finding.check in ("integrity", "events", "log") for finding in self._findings)
        if compared:
            self._guarded("projections", self._projections)
        return Report(
            path=str(self._path),
            schema=version(self._connection),
            generation=self._one("SELECT generation FROM store", ""),
            sqlite=apsw.sqlite_lib_version(),
            owned=self._owned,
            compared=compared,
            sessions=self._one("SELECT count(*) FROM session WHERE hidden = 0", 0),
            events=self._one("SELECT count(*) FROM event", 0),
            file_bytes=self._path.stat().st_size,
            wal_bytes=self._wal_bytes(),
            tables=self._sizes(),
            findings=tuple(self._findings),
        )

    # --- the file -------------------------------------------------------------------------------------------------

    def _settings(self) -> None:
        mode = self._connection.pragma("journal_mode")
        if mode != "wal":
            self._find("error", "settings", "journal_mode", f"is {mode}, not wal", "The runtime sets it when it starts.")
        permissions = self._path.stat().st_mode & 0o777
        if permissions & 0o077:
            self._find("warning", "settings", self._path.name, f"is open to others (mode {permissions:o})", _PRIVATE)

    def _integrity(self) -> None:
        for (line,) in self._rows(f"PRAGMA integrity_check({MAX_FINDINGS})"):
            if line != "ok":
                self._find("error", "integrity", "the file", line, _BACKUP)

    def _references(self) -> None:
        for table, row, parent, _ in self._rows("PRAGMA foreign_key_check"):
            where = table if row is None else f"{table} {row}"
            self._find("error", "references", where, f"refers to no row of {parent}", _REBUILD)
        for table, row in self._rows(_LOST):
            self._find("error", "references", f"{table} {row}", "belongs to another session than its owner, or none", _REBUILD)

    def _log_size(self) -> None:
        size = self._wal_bytes()
        if size > 2 * JOURNAL_SIZE_LIMIT:
            self._find("warning", "log size", "the write-ahead log", f"has grown to {counted(size, 'byte')}", _RESTART)

    def _wal_bytes(self) -> int:
        try:
            return self._path.with_name(f"{self._path.name}-wal").stat().st_size
        except FileNotFoundError:
            return 0

    # --- the log --------------------------------------------------------------------------------------------------

    def _sequences(self) -> None:
        for session_id, head, count, first, last in self._rows(_SEQUENCES):
            held = f"{counted(count, 'event')}, from {first} to {last}" if count else "no event"
            message = f"has {held}, and its head is {head}"
            self._find("error", "sequences", session_id, message, _BACKUP)

    def _logs(self) -> None:
        current: object = None
        name = ""
        log = SessionLog()
        for key, session_id, seq, kind, created, body in self._rows(_EVENTS):
            if key != current:
                self._end(name, log)
                current, name, log = key, session_id or f"session {key}, which is missing", SessionLog()
            try:
                event = decode_event(body)
            except (msgspec.MsgspecError, UnicodeError) as error:
                self._find("error", "events", name, f"event {seq} cannot be read ({error})", _BACKUP)
                continue
            if not _same(event, session_id, seq, kind, created):
                self._find("error", "events", name, f"event {seq} is not what its row says", _BACKUP)
            log.take(event)
        self._end(name, log)

    def _end(self, session_id: str, log: SessionLog) -> None:
        for fault in log.faults:
            self._find("error", "log", session_id, fault, _DEFECT)
        left = log.left_open()
        if left and not self._owned:
            self._find("warning", "unfinished", session_id, "; ".join(left), _SETTLE)

    def _hidden(self) -> None:
        if not self._owned:
            for left in hidden(self._connection.cursor()):
                what = "is not wholly deleted" if left.removed else "is a fork whose history was not copied to its end"
                self._find("warning", "unfinished", left.name, what, _SWEEP)

    # --- what is made of it ---------------------------------------------------------------------------------------

    def _text(self) -> None:
        for table in [row[0] for row in self._rows(_TABLES)]:
            for column in [row[0] for row in self._rows("SELECT name FROM pragma_table_info(?) WHERE type = 'TEXT'", table)]:
                try:
                    for _ in self._rows(f'SELECT "{column}" FROM "{table}"'):  # noqa: S608 - names from the schema
                        pass
                except UnicodeError:
                    self._find("error", "text", f"{table}.{column}", "holds text that is not Unicode", _REBUILD)

    def _checkpoints(self) -> None:
        for message_id, part in self._rows(_STALE_CHECKPOINTS):
            self._find("warning", "checkpoints", f"{message_id} {part}", "is the checkpoint of nothing open", _STALE)

    def _tombstones(self) -> None:
        for (session_id,) in self._rows("SELECT id FROM session WHERE id IN (SELECT id FROM tombstone)"):
            self._find("error", "tombstones", session_id, "was removed, and is there", _DEFECT)

    def _projections(self) -> None:
        try:
            differences = compare(self._connection, limit=MAX_FINDINGS)
        except SteerwayError as error:
            self._find("error", "log", "the log", f"cannot be replayed: {error}", _DEFECT)
            return
        for table, stored, rebuilt in differences:
            row = stored or rebuilt or ("",)
            what = "is missing" if stored is None else "is not in the log" if rebuilt is None else "is not what the log says"
            self._find("error", "projections", f"{table} {row[0]}", what, _REBUILD)

    # --- shared steps ---------------------------------------------------------------------------------------------

    def _guarded(self, name: Check, check: Callable[[], None]) -> None:
        try:
            check()
        except (apsw.Error, msgspec.MsgspecError, UnicodeError) as error:
            self._find("error", name, "the store", f"cannot be looked at ({error})", _BACKUP)

    def _find(self, severity: Severity, check: Check, where: str, message: str, advice: str) -> None:
        if sum(finding.check == check for finding in self._findings) < MAX_FINDINGS:
            self._findings.append(Finding(severity, check, where, message, advice))

    def _rows(self, statement: str, *bindings: object) -> Iterator[tuple[Any, ...]]:
        return iter(self._connection.execute(statement, bindings))

    def _one(self, statement: str, otherwise: T) -> T:
        """The one value of a statement, or `otherwise` where the file is too damaged to tell."""
        try:
            return self._connection.execute(statement).fetchall()[0][0]
        except (apsw.Error, IndexError):
            return otherwise

    def _sizes(self) -> tuple[TableSize, ...]:
        try:
            return tuple([TableSize(*row) for row in self._rows(_SIZES)])
        except apsw.Error:
            return ()


def _same(event: Event, session_id: str | None, seq: int, kind: str, created: int) -> bool:
    return (event.session_id, event.seq, event.type, event.created) == (session_id, seq, kind, created)


_SIZES = "SELECT name, sum(pgsize) AS size FROM dbstat GROUP BY name ORDER BY size DESC, name"
_TABLES = "SELECT name FROM sqlite_schema WHERE type = 'table' AND sql LIKE '%STRICT%' ORDER BY name"
_EVENTS = (
    "SELECT e.session, s.id, e.seq, e.type, e.created, e.body FROM event e LEFT JOIN session s ON s.key = e.session"
    " WHERE s.hidden IS NOT 1 ORDER BY e.session, e.seq"
)
_SEQUENCES = (
    "SELECT s.id, s.head, count(e.seq), min(e.seq), max(e.seq) FROM session s LEFT JOIN event e ON e.session = s.key"
    " WHERE s.hidden = 0 GROUP BY s.key HAVING count(e.seq) <> s.head OR min(e.seq) IS NOT 1"
    " OR max(e.seq) IS NOT s.head ORDER BY s.id"
)
_LOST = (
    "SELECT 'inbox', id FROM inbox WHERE session NOT IN (SELECT key FROM session) UNION ALL"
    " SELECT 'message_part', p.id FROM message_part p JOIN message m ON m.key = p.message WHERE m.session <> p.session"
    " UNION ALL SELECT 'attempt', m.id FROM attempt a JOIN message m ON m.key = a.message WHERE m.session <> a.session"
)
_STALE_CHECKPOINTS = (
    "SELECT m.id, f.part FROM open_fragment f LEFT JOIN message m ON m.key = f.message WHERE NOT EXISTS"
    " (SELECT 1 FROM message_part p WHERE p.message = f.message AND p.id = f.part AND p.open = 1)"
)
