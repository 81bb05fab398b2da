"""Patterns for paths: `*`, `?`, `[...]` within a name, `**` for any number of directories, `{a,b}` for alternatives.

Matching is done name by name, without backtracking over the whole path, so that no pattern can take long.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Sequence
from typing import Final

from .tool import ToolFailure

MAX_PATTERN: Final = 1_000
MAX_ALTERNATIVES: Final = 64

_Name = Callable[[str], object] | None
"""Matches one name; None stands for `**`."""


class PathPattern:
    """A compiled pattern. Raises ToolFailure for one that is absolute, leads upwards, or is too large."""

    def __init__(self, pattern: str) -> None:
        if len(pattern) > MAX_PATTERN:
            raise ToolFailure(f"The pattern is longer than {MAX_PATTERN} characters.")
        if pattern.startswith("/") or ".." in pattern.split("/"):
            raise ToolFailure("The pattern is relative to `path` and cannot lead upwards; give the directory as `path`.")
        self._alternatives = [_compiled(alternative) for alternative in _expanded(pattern)]

    def matches(self, parts: Sequence[str]) -> bool:
        """Whether the path made of these names matches, as a whole."""
        return any(_matches(names, parts) for names in self._alternatives)


def _compiled(pattern: str) -> list[_Name]:
    names: list[_Name] = []
    for name in pattern.split("/"):
        if name == "**":
            if not names or names[-1] is not None:
                names.append(None)
        elif name not in ("", "."):
            names.append(re.compile(fnmatch.translate(name)).match)
    return names


def _matches(names: Sequence[_Name], parts: Sequence[str]) -> bool:
    """`reached` holds how many of `names` may be used up by the parts so far."""
    reached = _beyond_stars(names, {0})
    for part in parts:
        following: set[int] = set()
        for index in reached:
            if index < len(names):
                name = names[index]
                if name is None:
                    following.add(index)
                elif name(part):
                    following.add(index + 1)
        reached = _beyond_stars(names, following)
        if not reached:
            return False
    return len(names) in reached


def _beyond_stars(names: Sequence[_Name], reached: set[int]) -> set[int]:
    return reached | {index + 1 for index in reached if index < len(names) and names[index] is None}


def _expanded(pattern: str) -> list[str]:
    """The pattern's alternatives, with all braces resolved. Braces that do not pair stand for themselves."""
    done: list[str] = []
    waiting = [pattern]
    while waiting:
        current = waiting.pop()
        found = re.search(r"\{([^{}]*,[^{}]*)\}", current)
        if found is None:
            done.append(current)
        else:
            before, after = current[: found.start()], current[found.end() :]
            waiting.extend(f"{before}{choice}{after}" for choice in found.group(1).split(","))
        if len(done) + len(waiting) > MAX_ALTERNATIVES:
            raise ToolFailure(f"The pattern has more than {MAX_ALTERNATIVES} alternatives.")
    return done
