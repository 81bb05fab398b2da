"""The program `steerway`: its commands, and the one place where errors become sentences and exit codes."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from typing import Final

import click

from .config import config
from .demo import demo
from .doctor import doctor
from .events import events
from .failures import told
from .run import run
from .serve import serve
from .sessions import sessions

_TRACEBACK: Final = "--traceback"


class Program(click.Group):
    """A group whose commands may raise what they like: people get one sentence, and the exit code tells the kind."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """`--traceback` is understood behind the command, too: it is what one adds to a command that has just failed."""
        end = args.index("--") if "--" in args else len(args)
        others = [arg for arg in args[:end] if arg != _TRACEBACK]
        found = [_TRACEBACK] if len(others) < end else []
        return super().parse_args(ctx, [*found, *others, *args[end:]])

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.ClickException, click.Abort):
            raise
        except BaseException as error:
            refusal = None if ctx.params.get("traceback") else told(error)
            if refusal is None:
                raise
            raise refusal from error


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="steerway", message="%(prog)s %(version)s")
@click.option(_TRACEBACK, is_flag=True, help="Show where in the program an error came from; also behind a command.")
def program(traceback: bool) -> None:
    """A durable runtime for AI-agent sessions.

    Exit codes: 0 it worked, 1 the work failed, 2 wrong use, 130 interrupted.
    """


for _command in (demo, serve, run, sessions, events, config, doctor):
    program.add_command(_command)


def main() -> None:
    """Run the program with this process's arguments; ends the process."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character is no reason to fail
    program(prog_name="steerway")


def _open_closed_streams() -> None:
    """Whoever started this program may have closed any of the three; then nothing is read there, and what is said is lost.

    Their descriptors are taken, so that no file of ours becomes one of them.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
