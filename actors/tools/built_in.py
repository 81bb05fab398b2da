"""The built-in tools, and what they are allowed to know: the clock, the limits, and the folder of managed outputs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from .capture import OutputLimits
from .confinement import Confinement
from .reading import read_tool
from .searching import glob_tool, grep_tool
from .tool import Tool, tool

_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def built_in_tools(
    *, now: Callable[[], datetime], outputs_directory: str, limits: OutputLimits | None = None
) -> tuple[Tool, ...]:
    """`date`, `glob`, `grep` and `read`, to be registered process-wide.

    `now()` gives the present local time as an aware datetime. `outputs_directory` is the folder of Managed Tool Output Files,
    which every session may read; beside it, only what is inside the session's own location.
    """

    def confine(directory: str) -> Confinement:
        return Confinement(directory, (outputs_directory,))

    return (date_tool(now), glob_tool(confine), grep_tool(confine), read_tool(confine, limits or OutputLimits()))


def date_tool(now: Callable[[], datetime]) -> Tool:
    """`date`, reading the given clock."""

    @tool(name="date")
    async def date() -> str:
        """Tell the present local date and time, with the day of the week and the offset from UTC."""
        present = now()
        return f"{_DAYS[present.weekday()]}, {present.isoformat(timespec='seconds')} ({present.tzname()})"

    return date
