"""The command line, a module per command: it parses, prints and exits; all else goes through the public interface.

Rules:
- A module here imports click and the standard library at its top. All else is imported inside the commands, so that
  `steerway --help` answers at once.
- What a program asked for goes to standard output; remarks, errors and logs go to standard error.
- Exit codes: 0 it worked, 1 the work failed, 2 wrong use, 130 interrupted.
"""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the program with this process's arguments; ends the process. Ctrl-C is a sentence from the first import on."""
    try:
        from .program import main as program
    except KeyboardInterrupt:
        print("steerway: Interrupted.", file=sys.stderr)
        sys.exit(130)
    program()
