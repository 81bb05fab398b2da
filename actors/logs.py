"""Loggers that cost nothing until something is logged.

structlog loads rich, pygments and asyncio for its console: 70 ms and 6 MB for a program that embeds the runtime and may never
log a line. What it is configured to do is asked at the first line, as with its own loggers.
"""

from __future__ import annotations

from typing import Any


class Logger:
    """A structlog logger of this name, made when it is first used."""

    __slots__ = ("_found", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._found: Any = None

    def __getattr__(self, method: str) -> Any:
        if self._found is None:
            import structlog

            self._found = structlog.get_logger(self._name)
        return getattr(self._found, method)
