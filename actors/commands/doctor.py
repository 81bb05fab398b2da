"""`steerway doctor`: is the store sound, and what of it can be mended."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .failures import FAILED, Refusal
from .options import json_option, read_settings, store_options
from .output import plain, remark, say, say_json, table

if TYPE_CHECKING:
    from ...storage.findings import Report


@click.command()
@click.option("--fix", is_flag=True, help="Mend what can be mended; no process may own the store.")
@click.option("--rebuild-check", is_flag=True, help="Also replay the whole log and compare; --fix always does.")
@store_options
@json_option
def doctor(fix: bool, rebuild_check: bool, db: Path | None, config: Path | None, as_json: bool) -> None:
    """Examine the store: the file, the log, and what is made of it.

    Changes nothing without --fix, and may look beside a running server. Ends with 1 when something is found that --fix did
    not mend.
    """
    from ...storage.doctor import examine

    path = Path(read_settings(config, db).configuration.store.path)
    if not path.is_file():
        raise Refusal(f"There is no store at {path}; --db names another.")
    done = _mended(path) if fix else ()
    report = examine(path, rebuild=rebuild_check or fix)
    if as_json:
        say_json({"report": report, "healthy": report.healthy, "fixed": done})
    else:
        for line in done:
            say(f"fixed: {line}")
        _tell(report)
    if not report.healthy:
        raise click.exceptions.Exit(FAILED)


def _mended(path: Path) -> tuple[str, ...]:
    import os
    import secrets
    import socket
    import time

    from ...protocol.values import IdSource
    from ...storage.doctor import repair
    from ...storage.ownership import Owner
    from ...storage.projectors import IllegalEventError

    def now_ms() -> int:
        return time.time_ns() // 1_000_000

    try:
        return repair(
            path,
            owner=Owner(id=secrets.token_hex(8), pid=os.getpid(), host=socket.gethostname()),
            now_ms=now_ms,
            new_generation=lambda: f"gen_{secrets.token_hex(12)}",
            new_event_id=IdSource(now_ms, secrets.token_bytes).event,
        )
    except IllegalEventError as error:
        raise Refusal(
            f"The log contradicts itself, so nothing could be built from it: {error} Keep a copy of the file and restore the"
            " last backup; `steerway doctor` shows more."
        ) from error


def _tell(report: Report) -> None:
    from ...storage.findings import counted

    owner = "a process owns it" if report.owned else "no process owns it"
    say(f"store     {plain(report.path)} (schema {report.schema}, SQLite {report.sqlite}, {owner})")
    say(f"content   {counted(report.sessions, 'session')}, {counted(report.events, 'event')}")
    say(f"size      {counted(report.file_bytes, 'byte')}, and {counted(report.wal_bytes, 'byte')} of write-ahead log")
    if report.tables:
        say("largest   tables and indexes, in bytes:")
    for size in report.tables[:8]:
        say(f"  {size.name:<28} {size.bytes:>14}")
    if report.healthy:
        compared = "the projections are what the log says" if report.compared else "--rebuild-check would compare with the log"
        say(f"sound     nothing was found; {compared}")
        return
    say(f"unsound   {counted(len(report.findings), 'finding')}")
    say()
    table(
        ["SEVERITY", "CHECK", "WHERE", "FOUND"],
        [[finding.severity, finding.check, finding.where, finding.message] for finding in report.findings],
    )
    for advice in dict.fromkeys(finding.advice for finding in report.findings):
        remark(f"- {advice}")
