"""The built-in tools, and what they are allowed to know: clock, limits, environment, and the folder of managed outputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime

from .asking import question_tool
from .capture import OutputLimits, SpillFile
from .confinement import Confinement
from .environment import child_environment
from .reading import read_tool
from .searching import glob_tool, grep_tool
from .shell import shell_tool
from .tool import Tool, tool
from .writing import Turns, edit_tool, write_tool

_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def built_in_tools(
    *,
    now: Callable[[], datetime],
    outputs_directory: str,
    limits: OutputLimits | None = None,
    create_output: Callable[[], SpillFile] | None = None,
    environ: Mapping[str, str] | None = None,
    secret_names: Collection[str] = (),
) -> tuple[Tool, ...]:
    """`date`, `edit`, `glob`, `grep`, `question`, `read`, `shell` and `write`, to be registered process-wide.

    `now()` gives the present local time as an aware datetime. `outputs_directory` is the folder of Managed Tool Output Files,
    which every session may read; beside it, only what is inside the session's own location. `create_output` makes a new file
    there. `environ` is the runtime's environment, of which commands get what is no credential; `secret_names` are the variables
    that providers' keys are read from.
    """

    def reading(directory: str) -> Confinement:
        return Confinement(directory, (outputs_directory,))

    bounds = limits or OutputLimits()
    turns = Turns()
    return (
        date_tool(now),
        edit_tool(Confinement, turns),
        glob_tool(reading),
        grep_tool(reading),
        question_tool(),
        read_tool(reading, bounds),
        shell_tool(Confinement, child_environment(environ or {}, secret_names), bounds, create_output),
        write_tool(Confinement, turns),
    )


def date_tool(now: Callable[[], datetime]) -> Tool:
    """`date`, reading the given clock."""

    @tool(name="date")
    async def date() -> str:
        """Tell the present local date and time, with the day of the week and the offset from UTC."""
        present = now()
        return f"{_DAYS[present.weekday()]}, {present.isoformat(timespec='seconds')} ({present.tzname()})"

    return date
