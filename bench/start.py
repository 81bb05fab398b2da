"""How long does a runtime take to its first answer, and how large is it, over an empty store and over 100,000 sessions?

Rules:
- Each start is a process of its own, timed from its beginning: interpreter, imports, opening, one page of the sessions' list,
  then one session's messages. CPU time is the child's; the file is in the system's cache.
- The raw limit is a process that imports the libraries (trio, msgspec, apsw) and asks the same file with one statement.
- Modules are compiled before, as those of an installed program are: the children keep their bytecode beside the stores.
- Resident memory is the child's own word after its first answer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from statistics import median

import trio
from measure import Finding, at_most, beside, interleave, report, scratch_folder
from stored import fill

SESSIONS = 100_000
TURNS = 1
ROUNDS = 7

_OURS = """
import json, resource, sys, trio
from steerway import Configuration, open_runtime

async def main():
    async with open_runtime(sys.argv[1], configuration=Configuration(), environ={}) as runtime:
        page = await runtime.sessions.list(limit=20)
        for session in page.items[:1]:
            await runtime.sessions.messages(session.id)
        status = open("/proc/self/status").read()
        print(json.dumps({"rss": int(status.split("VmRSS:")[1].split()[0]) / 1024}), flush=True)
        used = resource.getrusage(resource.RUSAGE_SELF)
        print(json.dumps({"cpu": used.ru_utime + used.ru_stime}), flush=True)
        sys.stdin.readline()

trio.run(main)
"""
_RAW = """
import json, resource, sys
import apsw, msgspec, trio

async def main():
    connection = apsw.Connection(sys.argv[1])
    connection.execute("SELECT * FROM session ORDER BY key DESC LIMIT 20").fetchall()
    status = open("/proc/self/status").read()
    print(json.dumps({"rss": int(status.split("VmRSS:")[1].split()[0]) / 1024}), flush=True)
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"cpu": used.ru_utime + used.ru_stime}), flush=True)
    sys.stdin.readline()

trio.run(main)
"""


class Child:
    """Starts one program over one store again and again."""

    def __init__(self, program: str, store: Path) -> None:
        self._command = [sys.executable, "-c", program, str(store)]
        self._environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        self._environment["PYTHONPYCACHEPREFIX"] = str(store.parent / "bytecode")
        self.rss: list[float] = []
        self.cpu: list[float] = []

    async def start(self) -> float:
        """Milliseconds from the start of the process to its first answer."""
        return await trio.to_thread.run_sync(self._start)

    def _start(self) -> float:
        begun = time.perf_counter()
        with subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=self._environment
        ) as process:
            if process.stdout is None or process.stdin is None:
                raise AssertionError("both are pipes")
            line = process.stdout.readline()
            passed = time.perf_counter() - begun
            self.rss.append(json.loads(line)["rss"])
            self.cpu.append(json.loads(process.stdout.readline())["cpu"])
            process.stdin.write("\n")
        if process.returncode:
            raise AssertionError(f"the program ended with {process.returncode}")
        return 1e3 * passed


async def measure() -> list[Finding]:
    """Empty and full, beside the raw start."""
    with scratch_folder() as folder:
        empty, full = folder / "empty.db", folder / "full.db"
        fill(empty, [])
        fill(full, [TURNS] * SESSIONS)
        children = {"empty": Child(_OURS, empty), "full": Child(_OURS, full), "raw": Child(_RAW, full)}
        variants: dict[str, Callable[[], Awaitable[float]]] = {name: partial(child.start) for name, child in children.items()}
        found = await interleave(variants, rounds=ROUNDS)
    stored = f"{SESSIONS:,} stored sessions"
    cpu = {name: 1e3 * median(child.cpu[1:]) for name, child in children.items()}
    rss = {name: max(child.rss[1:]) for name, child in children.items()}
    return [
        at_most(f"process start to first answer, {stored}", ours=found["full"], raw=found["raw"], unit="ms", target=500),
        beside(
            "process start to first answer, empty store", ours=f"{found['empty']:.0f} ms", ratio=found.ratio("full", "empty")
        ),
        beside(
            f"CPU of that, {stored}", ours=f"{cpu['full']:.0f} ms", raw=f"{cpu['raw']:.0f} ms", ratio=cpu["full"] / cpu["raw"]
        ),
        beside("CPU of that, empty store", ours=f"{cpu['empty']:.0f} ms"),
        at_most(f"resident memory, {stored}", ours=rss["full"], raw=rss["raw"], unit="MB", target=70),
        beside("resident memory, empty store", ours=f"{rss['empty']:.1f} MB"),
    ]


if __name__ == "__main__":
    report(measure)
