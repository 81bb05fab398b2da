"""Where the log goes: standard error, as lines for people or as JSON, one object a line.

A line that cannot be written (a full disk, a reader that has gone) is lost, and stops nothing: what the program does never
hangs on its log. The next one begins a line of its own, wherever the disk became full.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Literal, TextIO, cast

LogFormat = Literal["console", "json"]


class Unfailing:
    """A text stream whose writing never fails."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._torn = False

    def write(self, text: str) -> int:
        """Write a line, or lose it."""
        try:
            self._stream.write(f"\n{text}" if self._torn else text)
            self._stream.flush()
            self._torn = False
        except (OSError, ValueError):
            self._torn = True
        return len(text)

    def flush(self) -> None:
        """Nothing: every line was flushed."""


def configure_logs(log_format: LogFormat = "console", *, level: int = logging.WARNING) -> None:
    """Send our log, and warnings of the libraries below, to standard error. `level` is the lowest that is shown."""
    import structlog

    unfailing = cast(TextIO, Unfailing(sys.stderr))
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=log_format == "json"),
    ]
    if log_format == "json":
        ending: list[Any] = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    else:
        # Without this, tracebacks would show local variables, which hold what users said.
        plain = structlog.dev.plain_traceback
        ending = [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]
    structlog.configure(
        processors=[*shared, *ending],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(unfailing),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(unfailing)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *ending]
        )
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
