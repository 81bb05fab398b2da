"""Reading JSON whose shape nobody promised: every function takes any value and gives one of its kind, empty if need be."""

from __future__ import annotations

from typing import Any, Final, cast

_MAX_COUNT: Final = 2**53
_MAX_WORD: Final = 64 * 1024


def mapping(value: Any) -> dict[str, Any]:
    """The object, or an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def sequence(value: Any) -> list[Any]:
    """The array, or an empty one."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def string(value: Any) -> str:
    """The string, or an empty one."""
    return value if isinstance(value, str) else ""


def word(value: Any) -> str:
    """An id or a name; some servers send numbers. One that is longer than anything of the kind is none."""
    found = str(value) if isinstance(value, int) and not isinstance(value, bool) else string(value)
    return found if len(found) <= _MAX_WORD else ""


def count(value: Any) -> int:
    """A number of tokens, or 0."""
    if isinstance(value, int | float) and 0 < value <= _MAX_COUNT:
        return int(value)
    return 0


def place(value: Any) -> int | None:
    """An index, or None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None
