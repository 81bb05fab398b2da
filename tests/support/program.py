"""The command line as its users meet it, in a home of their own, with nothing of this shell's settings.

`call`, `start` and `serving` are real processes. `inside` runs a command in this process, for what no process is needed to see.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from click.testing import CliRunner

from steerway.actors.commands.program import program

SECONDS = 30
"""How long any process may take; one that needs them hangs."""


class Home:
    """A user's home with its platform folders, and the working directory of what is run."""

    def __init__(self, folder: Path, environ: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.work = folder / "work"
        self.work.mkdir(parents=True, exist_ok=True)
        self.state = folder / "state" / "steerway"
        self.store = folder / "data" / "steerway" / "sessions.db"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("STEERWAY_", "OPENAI_", "XDG_"))}
        places = {f"XDG_{kind.upper()}_HOME": str(folder / kind) for kind in ("config", "data", "state", "cache")}
        self.environ = {**kept, **places, "HOME": str(folder), "COLUMNS": "80", **(environ or {})}

    def start(self, *arguments: str, pass_fds: tuple[int, ...] = ()) -> subprocess.Popen[str]:
        """Start `steerway ARGUMENTS`; its three streams are pipes."""
        return subprocess.Popen(
            [sys.executable, "-m", "steerway", *arguments],
            cwd=self.work,
            env=self.environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=pass_fds,
        )

    def call(self, *arguments: str, input: str = "") -> Done:
        """Run `steerway ARGUMENTS` to its end."""
        with self.start(*arguments) as process:
            try:
                output, errors = process.communicate(input, timeout=SECONDS)
            finally:
                process.kill()
        return Done(process.returncode, output, errors)

    def inside(self, *arguments: str) -> Done:
        """Run `steerway ARGUMENTS` in this process; an exception that the program lets out is raised."""
        environ: dict[str, str | None] = {name: None for name in os.environ if name not in self.environ}
        with chdir(self.work):
            result = CliRunner(env={**environ, **self.environ}).invoke(program, arguments, prog_name="steerway")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Done(result.exit_code, result.stdout, result.stderr)

    @contextmanager
    def serving(self, *arguments: str) -> Generator[Serving]:
        """`steerway serve` on a free port, ready; killed at the end if it has not ended by then."""
        reading, writing = os.pipe()
        with self.start("serve", "--port", "0", "--ready-fd", str(writing), *arguments, pass_fds=(writing,)) as process:
            os.close(writing)
            try:
                with os.fdopen(reading) as ready:
                    line = ready.readline()
                if not line:
                    raise AssertionError(f"serve ended before it was ready: {process.communicate(timeout=SECONDS)}")
                yield Serving(process, **json.loads(line))
            finally:
                process.kill()


class Done(NamedTuple):
    """A process that has ended."""

    code: int
    output: str
    errors: str

    def lines(self) -> list[Any]:
        """Its output as JSON, an object a line."""
        return [json.loads(line) for line in self.output.splitlines()]


class Serving(NamedTuple):
    """A server that accepts connections."""

    process: subprocess.Popen[str]
    url: str
    token_file: str

    @property
    def token(self) -> str:
        return Path(self.token_file).read_text().strip()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> Done:
        """Send a signal and wait for the end."""
        self.process.send_signal(number)
        output, errors = self.process.communicate(timeout=SECONDS)
        return Done(self.process.returncode, output, errors)
