"""Instructions: the user's and the project's `AGENTS.md` files as one aggregate Context Source.

Rules (seed, "instruction service"; reference 7.1):
- The order is: the global file of the user's configuration folder, then upward from the location to the project root, nearest
  first. A file that two paths lead to counts once; nothing above the project root counts, nor does what leads out of it.
- Any change tells the complete current set, which supersedes what was told before; no file at all is an absence, and the
  model is told that earlier instructions no longer apply. An empty file is a file.
- A missing file is absent. One that cannot be looked at, or is gone between finding and reading, makes the whole set
  unavailable for this boundary.
- Nearby instructions lie between a path that was read and the location, whose own file and those above are told already.
- Sizes are bounded: of a file its first `MAX_BYTES`, of a location its nearest `MAX_FILES`, of all together the first
  `MAX_TOTAL_BYTES`. What is cut says so.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from itertools import islice
from typing import Any, Final

import msgspec

from ...protocol.llm.unicode import well_formed
from ...protocol.values.location import Location
from ...protocol.values.value import Value
from ..blocking import Blocking
from ..tools.confinement import Confinement, Place
from ..tools.tool import ToolFailure
from .algebra import SystemContext
from .files import FileTrouble, find_file, read_file
from .observing import Unavailable
from .project import Project, find_project
from .source import Codec, ContextSource

INSTRUCTIONS_KEY: Final = "core/instructions"
FILE_NAME: Final = "AGENTS.md"
MAX_BYTES: Final = 64 * 1024
"""Of one file."""
MAX_FILES: Final = 16
"""Of one location, the global one not counted; of one path that was read."""
MAX_TOTAL_BYTES: Final = 384 * 1024
"""Of one location with the global one; of one path that was read. However it is encoded, a source may hold that much."""


class Instruction(Value):
    """One file: its canonical path and what stands in it. `cut`: it is longer than what is told."""

    path: str
    content: str
    cut: bool = False


class Instructions:
    """Finds and reads the instructions of locations. `config_folder` holds the global file; `projects` whether others count."""

    def __init__(self, blocking: Blocking, *, config_folder: str, projects: bool = True) -> None:
        self._blocking = blocking
        self._config_folder = config_folder
        self._projects = projects

    async def produce(self, location: Location) -> SystemContext:
        """The `core/instructions` source of a location as its files are now, or none. A producer of the registry."""

        def look() -> tuple[Instruction, ...]:
            return read_instructions(self.discover(location.directory))

        try:
            found: tuple[Instruction, ...] | Unavailable = await self._blocking.run(look, abandon_on_cancel=True)
        except FileTrouble as trouble:
            found = Unavailable(str(trouble))
        return SystemContext.make(_source(found)) if found else SystemContext.empty

    def discover(self, directory: str) -> tuple[Place, ...]:
        """The files that count for a location, in order. Blocks. Raises `FileTrouble`."""
        found = _present([find_file(os.path.join(self._config_folder, FILE_NAME), None)])
        if self._projects:
            project = _project(directory)
            found += _present(find_file(os.path.join(folder, FILE_NAME), project.root) for folder in project.upward())
        return tuple({place.path: place for place in found}.values())

    async def nearby(self, path: str, location: Location, known: Collection[str] = ()) -> tuple[Instruction, ...]:
        """The instructions between a file or folder that was read and the location, nearest first; never those of the location.

        `path` is absolute or relative to the location. Canonical paths in `known` (told already) are left out. When one of them
        cannot be read nothing is told, and the next read near it looks again. Never raises for files.
        """

        def look() -> tuple[Instruction, ...]:
            return read_instructions(self._discover_nearby(path, location.directory, known))

        if not self._projects:
            return ()
        try:
            return await self._blocking.run(look, abandon_on_cancel=True)
        except FileTrouble:
            return ()

    def _discover_nearby(self, path: str, directory: str, known: Collection[str]) -> tuple[Place, ...]:
        try:
            read = Confinement(directory).resolve(path)
        except ToolFailure:
            return ()
        told = {place.path for place in self.discover(directory)} | set(known)
        depth = len(read.parts) if os.path.isdir(read.path) else len(read.parts) - 1
        folders = (os.path.join(read.root, *read.parts[:length]) for length in range(depth, 0, -1))
        found = _present(find_file(os.path.join(folder, FILE_NAME), read.root) for folder in folders)
        return tuple({place.path: place for place in found if well_formed(place.path) not in told}.values())


def read_instructions(places: Iterable[Place]) -> tuple[Instruction, ...]:
    """What stands in files that were found. Blocks. Raises `FileTrouble` when one of them is gone or cannot be read."""
    found: list[Instruction] = []
    left = MAX_TOTAL_BYTES
    for place in places:
        file = read_file(place, min(MAX_BYTES, left))
        left = max(left - len(file.text.encode()), 0)  # a byte that is no text may become a longer character
        found.append(Instruction(path=well_formed(place.path), content=file.text, cut=file.cut))
    return tuple(found)


def render_nearby(found: Iterable[Instruction]) -> str:
    """How nearby instructions are told, as a message of their own. Durable from then on: it does not follow the files."""
    return f"These instructions apply to the files near what was just read:\n\n{_render(found)}"


def _source(found: tuple[Instruction, ...] | Unavailable) -> ContextSource[tuple[Instruction, ...]]:
    async def load() -> tuple[Instruction, ...] | Unavailable:
        return found

    return ContextSource(
        key=INSTRUCTIONS_KEY,
        codec=Codec(lambda files: files, _decode),
        load=load,
        baseline=lambda current: f"Follow these instructions of the user and the project:\n\n{_render(current)}",
        update=lambda _, current: (
            "The instructions have changed. What follows is all of them, and takes the place of every instruction file given "
            f"before:\n\n{_render(current)}"
        ),
        removed=lambda _: "There are no instruction files any more. What earlier ones said no longer applies.",
    )


def _render(found: Iterable[Instruction]) -> str:
    return "\n\n".join(map(_render_one, found))


def _render_one(one: Instruction) -> str:
    body = one.content.strip("\n")
    if one.cut:
        shown = round(len(one.content.encode()) / 1024)
        body += f"\n(Only the first {shown} KiB of this file are shown.)" if shown else "(There is no room left for this file.)"
    elif not one.content.strip():
        body = "(The file is empty.)"
    return f"## Instructions in {one.path}\n\n{body}"


def _project(directory: str) -> Project:
    try:
        return find_project(directory)
    except OSError as error:
        raise FileTrouble(f"the project of {directory} cannot be looked at: {error.strerror}") from error


def _present(places: Iterable[Place | None]) -> list[Place]:
    return list(islice((place for place in places if place is not None), MAX_FILES))


def _decode(stored: Any) -> tuple[Instruction, ...]:
    return msgspec.convert(stored, tuple[Instruction, ...])
