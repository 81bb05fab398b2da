"""Skills: folders with a `SKILL.md`, told by name and description, and read only when one is asked for.

Rules (seed, "available-skill guidance"; reference 7.2):
- Skills lie in `skills/` of the user's configuration folder and in `.steerway/skills/` of the location; of one name the
  location's wins. Those of a location may not lead out of it, and do not count where projects may not configure.
- The guidance lists name and description of the described skills that the agent is permitted, by name. Bodies and places are
  told by `load` alone, behind the permission check of the `skill` tool. It is absent when the agent may use no skill at all.
- A skill that is gone, or that this program may not read, is not there. A folder that cannot be listed makes the guidance
  unavailable for this boundary.
- Number and sizes are bounded, one by one and together.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final

import msgspec

from ...protocol.llm.unicode import well_formed
from ...protocol.values.location import Location
from ...protocol.values.value import Value
from ..blocking import Blocking
from ..logs import Logger
from ..tools.confinement import Place
from .algebra import SystemContext
from .files import FileTrouble, find_file, list_folder, read_file
from .front_matter import parse_front_matter
from .observing import Unavailable
from .source import Codec, ContextSource

SKILLS_KEY: Final = "core/skill-guidance"
FILE_NAME: Final = "SKILL.md"
FOLDER: Final = os.path.join(".steerway", "skills")
MAX_BYTES: Final = 128 * 1024
"""Of one `SKILL.md`."""
MAX_HEAD_BYTES: Final = 16 * 1024
"""Of one `SKILL.md`, for its name and description."""
MAX_DESCRIPTION: Final = 1_024
"""Characters of a description that are told."""
MAX_SKILLS: Final = 200
"""Of one folder of skills."""
MAX_LISTED_BYTES: Final = 512 * 1024
"""Of all names and descriptions that are told, as JSON; by name, the last ones are left out."""
MAX_FILES: Final = 10
"""Supporting files that are named with a skill."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MAX_LOOKED_AT: Final = 1_000

_log = Logger("steerway.context")

Permitted = Callable[[str], bool]
"""Whether the agent may use the skill of a name, asking first or not: true unless action `skill` is denied for it.

`*` asks about skills in general.
"""


class SkillSummary(Value):
    """What the model is told of a skill it may ask for."""

    name: str
    description: str


class Skill(Value):
    """A loaded skill: its text, its folder, and some of the files beside it, relative to the folder."""

    name: str
    description: str
    body: str
    folder: str
    files: tuple[str, ...]
    cut: bool = False


class UnknownSkillError(Exception):
    """No skill has that name. Says nothing about others: they may not be permitted."""


class Skills:
    """Finds and reads the skills of locations. `config_folder` holds the user's; `projects` whether a location's count."""

    def __init__(self, blocking: Blocking, *, config_folder: str, projects: bool = True) -> None:
        self._blocking = blocking
        self._user_folder = os.path.join(config_folder, "skills")
        self._projects = projects

    async def guidance(self, location: Location, permitted: Permitted) -> SystemContext:
        """The `core/skill-guidance` source for an agent, or none. Composed behind the registry's sources."""
        try:
            skills = await self.listed(location)
        except FileTrouble as trouble:
            return SystemContext.make(_source(Unavailable(str(trouble))))
        listed = tuple(_fitting(skill for skill in skills if skill.description and permitted(skill.name)))
        if not listed and not permitted("*"):
            return SystemContext.empty
        return SystemContext.make(_source(listed))

    async def listed(self, location: Location) -> tuple[SkillSummary, ...]:
        """All skills of a location by name, permitted or not, described or not. Raises `FileTrouble`."""
        found = await self._blocking.run(lambda: self._found(location.directory), abandon_on_cancel=True)
        return tuple(SkillSummary(name=name, description=found[name].description) for name in sorted(found))

    async def load(self, name: str, location: Location) -> Skill:
        """The skill of that name, as it is now. The caller has checked the permission.

        Raises `UnknownSkillError`, and `FileTrouble` when folder or file cannot be read.
        """

        def look() -> Skill | None:
            found = self._found(location.directory).get(name)
            return None if found is None else found.loaded()

        skill = await self._blocking.run(look, abandon_on_cancel=True)
        if skill is None:
            raise UnknownSkillError(f"There is no skill {well_formed(name)!r}.")
        return skill

    def _found(self, directory: str) -> dict[str, _Found]:
        """By name; later folders win. Blocks."""
        found = _scan(self._user_folder, None)
        if self._projects:
            found |= _scan(os.path.join(directory, FOLDER), directory)
        return found


class _Found(msgspec.Struct, frozen=True):
    """A skill by the head of its file."""

    name: str
    description: str
    place: Place

    def loaded(self) -> Skill:
        text = read_file(self.place, MAX_BYTES)
        folder = os.path.dirname(self.place.path)
        return Skill(
            name=self.name,
            description=self.description,
            body=parse_front_matter(text.text).body,
            folder=well_formed(folder),
            files=tuple(well_formed(path) for path in islice(_supporting(folder), MAX_FILES)),
            cut=text.cut,
        )


def render_skill(skill: Skill) -> str:
    """What the `skill` tool gives to the model."""
    parts = [f"# Skill: {skill.name}", skill.body or "(The skill has no text.)"]
    if skill.cut:
        parts.append(f"(Only the first {MAX_BYTES // 1024} KiB of this skill are shown.)")
    parts.append(f"Paths in this skill are relative to its folder, {skill.folder}.")
    if skill.files:
        names = "\n".join(f"- {name}" for name in skill.files)
        parts.append(f"Files in that folder (there may be more):\n{names}")
    return "\n\n".join(parts)


def _fitting(skills: Iterable[SkillSummary]) -> Iterable[SkillSummary]:
    left = MAX_LISTED_BYTES
    for skill in skills:
        left -= len(msgspec.json.encode(skill)) + 1
        if left < 0:
            _log.warning("there are too many skills to tell them all", first_left_out=skill.name)
            return
        yield skill


def _scan(folder: str, root: str | None) -> dict[str, _Found]:
    found: dict[str, _Found] = {}
    for entry in list_folder(folder, MAX_SKILLS):
        path = os.path.join(folder, entry, FILE_NAME)
        try:
            place = find_file(path, root)
            if place is None:
                continue
            head = parse_front_matter(read_file(place, MAX_HEAD_BYTES).text).pairs
        except FileTrouble as trouble:
            _log.info("a skill is passed over", path=path, problem=str(trouble))
            continue
        name = head.get("name") or entry
        if _NAME.fullmatch(name) is None:
            _log.info("a skill is passed over", path=path, problem="its name is not usable")
            continue
        found[name] = _Found(name, " ".join(head.get("description", "").split())[:MAX_DESCRIPTION], place)
    return found


def _supporting(folder: str) -> Iterable[str]:
    """Files below a skill's folder but its `SKILL.md`, in order, links passed over."""
    left = _MAX_LOOKED_AT
    for here, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        left -= len(folders) + len(names)
        for name in sorted(names):
            path = os.path.join(here, name)
            if not name.startswith(".") and not os.path.islink(path) and path != os.path.join(folder, FILE_NAME):
                yield os.path.relpath(path, folder)
        if left <= 0:
            return


def _source(skills: tuple[SkillSummary, ...] | Unavailable) -> ContextSource[tuple[SkillSummary, ...]]:
    async def load() -> tuple[SkillSummary, ...] | Unavailable:
        return skills

    return ContextSource(
        key=SKILLS_KEY,
        codec=Codec(lambda listed: listed, _decode),
        load=load,
        baseline=_render,
        update=lambda _, listed: (
            f"The available skills have changed. What follows takes the place of every earlier list.\n\n{_render(listed)}"
        ),
        removed=lambda _: "Skills are not available any more. Do not use any that were listed before.",
    )


def _render(skills: tuple[SkillSummary, ...]) -> str:
    if not skills:
        return "No skills are available."
    lines = "\n".join(f"- {skill.name}: {skill.description}" for skill in skills)
    return f"These skills are available. Load one with the `skill` tool when a task fits its description.\n\n{lines}"


def _decode(stored: Any) -> tuple[SkillSummary, ...]:
    return msgspec.convert(stored, tuple[SkillSummary, ...])
