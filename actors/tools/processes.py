"""A child process with everything it starts, and a sure end of them all.

Rules (semantics, "Tools"):
- A child leads a session and a process group of its own, reads nothing, inherits no descriptor but its output, and writes
  both of its outputs into one pipe, in order.
- The end: TERM to all of them, KILL after `TERM_SECONDS` to those that are left. All of them are the group and, where /proc
  tells, every process of the session: job control and programs like timeout make groups of their own.
- A process that left the session on purpose (a daemon) cannot be found. It is not ended, and nothing waits for it.
- Ending is shielded and bounded, a few seconds at most. Signals go out within moments of a look at who is there, so that a
  number that was given to somebody else meanwhile is next to impossible.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping
from typing import Final

import trio

TERM_SECONDS: Final = 2.0
"""From TERM to KILL."""
KILL_SECONDS: Final = 1.0
"""How long what was killed may take to be gone; longer only in a disk wait that nobody can end."""

_FIRST_LOOK: Final = 0.005
_LONGEST_PAUSE: Final = 0.05


class Child:
    """A running command. `output` is its stdout and stderr."""

    def __init__(self, process: trio.Process, output: trio.lowlevel.FdStream) -> None:
        self._process = process
        self.output = output

    @classmethod
    async def start(cls, arguments: list[str], *, directory: str, environment: Mapping[str, str]) -> Child:
        """Start a program. Raises OSError, and ValueError for arguments that no program can be given."""
        reading, writing = os.pipe()
        output = trio.lowlevel.FdStream(reading)
        try:
            process = await trio.lowlevel.open_process(  # cancelled, it raises before the start or not at all
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=subprocess.STDOUT,
                cwd=directory,
                env=environment,
                start_new_session=True,
            )
        except BaseException:
            output.close()
            raise
        finally:
            os.close(writing)
        return cls(process, output)

    @property
    def pid(self) -> int:
        """The process, its group and its session."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """As `subprocess` has it: negative for a signal, None while it runs."""
        return self._process.returncode

    async def wait(self) -> None:
        """Until the command itself has ended; what it left behind may go on."""
        await self._process.wait()

    async def end(self) -> None:
        """End everything that is left, and reap the command. Idempotent; cannot be cancelled; takes 3 s at most."""
        with trio.CancelScope(shield=True):
            if not await self._gone(signal.SIGTERM, TERM_SECONDS):
                await self._gone(signal.SIGKILL, KILL_SECONDS)
            with trio.move_on_after(KILL_SECONDS):
                await self._process.wait()

    async def _gone(self, number: signal.Signals, seconds: float) -> bool:
        """Signal everything that is there and wait for it to go; newcomers get the signal as well."""
        signalled: set[int] = set()
        pause = _FIRST_LOOK
        with trio.move_on_after(seconds):
            while living := self._living() or self._living():  # one look can miss a child whose parent just ended
                if new := living - signalled:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.killpg(self.pid, number)
                    for pid in new:
                        with contextlib.suppress(ProcessLookupError, PermissionError):
                            if os.getpgid(pid) != self.pid:
                                os.kill(pid, number)
                signalled |= living
                await trio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            return True
        return False

    def _living(self) -> set[int]:
        """Who is left. The command's own number stands for its group where there is no /proc."""
        self._process.poll()
        try:
            names = os.listdir("/proc")
        except OSError:
            names = []
        if str(os.getpid()) in names:
            return {int(name) for name in names if name.isdigit() and _is_living_member(int(name), self.pid)}
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return set()
        except PermissionError:
            pass  # some systems say so of a group of nothing but the dead; the time limit takes care
        return {self.pid}


def _is_living_member(pid: int, session: int) -> bool:
    try:
        if os.getsid(pid) != session:
            return False
        with open(f"/proc/{pid}/stat", "rb") as file:
            state = file.read().rpartition(b")")[2].split()[0]
    except OSError:
        return False
    return state not in (b"Z", b"X")
