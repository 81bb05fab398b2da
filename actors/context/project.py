"""The project around a location: its root, and whether its configuration counts.

Rules (ruling C8; semantics, "System Context"):
- The project root is the nearest ancestor with `.git` (a folder, or the file of a worktree), else the location itself.
- `STEERWAY_DISABLE_PROJECT_CONFIG`, or its alias `OPENCODE_DISABLE_PROJECT_CONFIG`, turns off what a project says about
  itself: its instructions and its skills. What the user keeps in the configuration folder stays.
- What blocks belongs into a thread.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

import msgspec

_OPT_OUT: Final = ("STEERWAY_DISABLE_PROJECT_CONFIG", "OPENCODE_DISABLE_PROJECT_CONFIG")
_OFF: Final = frozenset(("", "0", "false", "no", "off"))


class Project(msgspec.Struct, frozen=True, kw_only=True):
    """Canonical paths: `directory` is the location, `root` the project root, an ancestor of it or itself."""

    directory: str
    root: str
    git: bool

    def upward(self) -> tuple[str, ...]:
        """The folders from the location up to the project root, both included."""
        folders = [self.directory]
        while folders[-1] != self.root:
            folders.append(os.path.dirname(folders[-1]))
        return tuple(folders)


def find_project(directory: str) -> Project:
    """The project of a location. Blocks. Raises `OSError` when a folder on the way cannot be looked into."""
    here = os.path.realpath(directory)
    folder = here
    while True:
        if _exists(os.path.join(folder, ".git")):
            return Project(directory=here, root=folder, git=True)
        parent = os.path.dirname(folder)
        if parent == folder:
            return Project(directory=here, root=here, git=False)
        folder = parent


def project_config_enabled(environ: Mapping[str, str]) -> bool:
    """Whether projects may configure: true unless a variable says otherwise (`0`, `false`, `no`, `off` and empty do not)."""
    return all(environ.get(name, "").strip().lower() in _OFF for name in _OPT_OUT)


def _exists(path: str) -> bool:
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
