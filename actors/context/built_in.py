"""The sources that every session has: the date and the environment, and the registration of all that belongs to the core.

Rules (reference 7.4; semantics, "System Context"):
- The date is the calendar date of the machine that runs the session. It says nothing within a day; a new day is told as the
  newly effective date, without the old one.
- The environment is what a model needs to name paths and commands: working directory, project root, git, platform.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Final

from ...protocol.values.location import Location
from ...protocol.values.value import Value
from ..blocking import Blocking
from .algebra import SystemContext
from .instructions import INSTRUCTIONS_KEY, Instructions
from .observing import Unavailable
from .project import find_project
from .registry import Contribution, SystemContextRegistry
from .source import ContextSource, codec_of

DATE_KEY: Final = "core/date"
ENVIRONMENT_KEY: Final = "core/environment"

_WEEKDAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


class Environment(Value):
    """Where a session works. `platform` as Python names it (`linux`, `darwin`)."""

    directory: str
    project_root: str
    git: bool
    platform: str


def date_source(now_ms: Callable[[], int]) -> ContextSource[date]:
    """The `core/date` source. `now_ms` is wall time in epoch milliseconds; the time zone is the machine's."""

    async def load() -> date:
        return datetime.fromtimestamp(now_ms() / 1000, UTC).astimezone().date()

    return ContextSource(
        key=DATE_KEY,
        codec=codec_of(date),
        load=load,
        baseline=lambda today: f"Today's date is {_shown(today)}.",
        update=lambda _, today: f"The date has changed: today is {_shown(today)}.",
    )


def environment_source(location: Location, blocking: Blocking, *, platform: str = sys.platform) -> ContextSource[Environment]:
    """The `core/environment` source of a location."""

    def look() -> Environment | Unavailable:
        try:
            project = find_project(location.directory)
        except OSError as error:
            return Unavailable(f"the project of {location.directory} cannot be looked at: {error.strerror}")
        return Environment(directory=location.directory, project_root=project.root, git=project.git, platform=platform)

    async def load() -> Environment | Unavailable:
        return await blocking.run(look, abandon_on_cancel=True)

    return ContextSource(
        key=ENVIRONMENT_KEY,
        codec=codec_of(Environment),
        load=load,
        baseline=lambda current: f"You work in this environment:\n{_described(current)}",
        update=lambda _, current: f"The environment has changed. It is now:\n{_described(current)}",
    )


def register_built_in(
    registry: SystemContextRegistry, *, blocking: Blocking, now_ms: Callable[[], int], instructions: Instructions
) -> tuple[Contribution, ...]:
    """Register date, environment and instructions for all locations. Closing what is returned takes them away again."""

    async def environment(location: Location) -> SystemContext:
        return SystemContext.make(environment_source(location, blocking))

    today = SystemContext.make(date_source(now_ms))

    async def this_day(_: Location) -> SystemContext:
        return today

    return (
        registry.reserve(DATE_KEY, this_day),
        registry.reserve(ENVIRONMENT_KEY, environment),
        registry.reserve(INSTRUCTIONS_KEY, instructions.produce),
    )


def _shown(day: date) -> str:
    return f"{_WEEKDAYS[day.weekday()]}, {day.isoformat()}"


def _described(current: Environment) -> str:
    return "\n".join(
        (
            f"- working directory: {current.directory}",
            f"- project root: {current.project_root}",
            f"- git repository: {'yes' if current.git else 'no'}",
            f"- platform: {current.platform}",
        )
    )
