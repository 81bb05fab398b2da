"""Where a session works."""

from __future__ import annotations

from .value import Value


class Location(Value):
    """An existing absolute directory on the machine that runs the session."""

    directory: str
