"""Where the log goes: standard error, as lines for people or as JSON, one object a line."""

from __future__ import annotations

import logging
import sys
from typing import Any, Literal

LogFormat = Literal["console", "json"]


def configure_logs(log_format: LogFormat = "console", *, level: int = logging.WARNING) -> None:
    """Send our log, and warnings of the libraries below, to standard error. `level` is the lowest that is shown."""
    import structlog

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
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *ending]
        )
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
