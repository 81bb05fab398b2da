"""How this program was called, so that what it tells people to type works as it stands.

Rules:
- `steerway` where the shell finds the very program that runs; else its path, short where it is below the working directory.
- As a module it is called again as a module, with the same interpreter.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys


def as_typed() -> str:
    """The beginning of a command line of this program, quoted for a shell."""
    called = sys.argv[0]
    if os.path.basename(called) == "__main__.py":
        return f"{_program(sys.executable)} -m steerway"
    return _program(called)


def _program(path: str) -> str:
    name = os.path.basename(path)
    found = shutil.which(name)
    if found is not None and os.path.abspath(found) == os.path.abspath(path):
        return shlex.quote(name)
    if os.path.isabs(path) and path.startswith(os.path.join(os.getcwd(), "")):
        path = os.path.relpath(path)
    return shlex.quote(path)
