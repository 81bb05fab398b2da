"""Instruction files: which count, in what order, and what becomes of them when they change, vanish or cannot be read.

Long, because all cases share one tree of folders.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest
import trio
from trio.testing import MockClock

from steerway.actors.blocking import Inline, Threads
from steerway.actors.context.algebra import Blocked, Initialized, SystemContext, Unchanged, Updated
from steerway.actors.context.files import FileTrouble
from steerway.actors.context.instructions import (
    MAX_BYTES,
    MAX_FILES,
    Instruction,
    Instructions,
    read_instructions,
    render_nearby,
)
from steerway.actors.context.observing import Observing
from steerway.actors.context.registry import SystemContextRegistry
from steerway.actors.context.snapshot import Snapshot
from steerway.actors.context.source import MAX_SOURCE_BYTES
from steerway.protocol.values import Location

T = TypeVar("T")
OBSERVING = Observing()


class Machine:
    """A user's configuration folder, and a git project with a package in it where a session works."""

    def __init__(self, root: Path, *, projects: bool = True) -> None:
        self.config = root / "config"
        self.project = root / "work" / "project"
        self.package = self.project / "packages" / "one"
        self.config.mkdir()
        self.package.mkdir(parents=True)
        (self.project / ".git").mkdir()
        self.location = Location(directory=str(self.package))
        self.instructions = Instructions(Threads(), config_folder=str(self.config), projects=projects)

    async def context(self) -> SystemContext:
        return await self.instructions.produce(self.location)

    async def begin(self) -> Initialized:
        outcome = await (await self.context()).initialize(OBSERVING)
        assert isinstance(outcome, Initialized)
        return outcome

    async def update(self, snapshot: Snapshot) -> Updated:
        outcome = await (await self.context()).reconcile(snapshot, OBSERVING)
        assert isinstance(outcome, Updated)
        return outcome

    def found(self) -> list[str]:
        return [place.path for place in self.instructions.discover(str(self.package))]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def write(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "AGENTS.md"
    path.write_text(text)
    return path


# --- which files, and in what order --------------------------------------------------------------------------------


async def test_the_order_is_global_then_package_then_root_and_nothing_above_the_root(machine: Machine) -> None:
    write(machine.project.parent, "above")
    root = write(machine.project, "Root rules.\n")
    package = write(machine.package, "Package rules.\n")
    everywhere = write(machine.config, "Global rules.\n")
    begun = await machine.begin()
    assert begun.baseline == (
        "Follow these instructions of the user and the project:\n\n"
        f"## Instructions in {everywhere}\n\nGlobal rules.\n\n"
        f"## Instructions in {package}\n\nPackage rules.\n\n"
        f"## Instructions in {root}\n\nRoot rules."
    )
    assert [one["path"] for one in begun.snapshot["core/instructions"].value] == [str(everywhere), str(package), str(root)]


async def test_without_git_only_the_location_itself_counts(tmp_path: Path) -> None:
    here = write(tmp_path / "a" / "b", "here")
    write(tmp_path / "a", "above")
    instructions = Instructions(Threads(), config_folder=str(tmp_path / "none"))
    assert [place.path for place in instructions.discover(str(here.parent))] == [str(here)]


async def test_a_file_that_two_paths_lead_to_counts_once_where_it_is_met_first(machine: Machine) -> None:
    root = write(machine.project, "shared")
    (machine.package / "AGENTS.md").symlink_to(root)
    middle = write(machine.package.parent, "middle")
    (machine.config / "AGENTS.md").symlink_to(middle)
    assert machine.found() == [str(middle), str(root)]


async def test_a_location_behind_a_link_has_the_instructions_of_where_it_really_lies(machine: Machine, tmp_path: Path) -> None:
    package = write(machine.package, "package")
    (tmp_path / "link").symlink_to(machine.package)
    found = machine.instructions.discover(str(tmp_path / "link"))
    assert [place.path for place in found] == [str(package)]


async def test_a_file_of_the_project_may_not_lead_out_of_it_but_the_users_own_may_lie_anywhere(
    machine: Machine, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("token")
    (machine.package / "AGENTS.md").symlink_to(secret)
    assert machine.found() == []
    (machine.config / "AGENTS.md").symlink_to(secret)
    assert machine.found() == [str(secret)]


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(os.path.relpath(path))


@pytest.mark.parametrize(
    "make",
    [
        partial(os.mkdir),
        partial(os.mkfifo),
        partial(os.symlink, "nowhere"),
        partial(os.symlink, "AGENTS.md"),
        partial(os.symlink, "/dev/zero"),
        make_socket,
    ],
    ids=["folder", "pipe", "link-to-nothing", "link-to-itself", "device", "socket"],
)
async def test_what_is_no_regular_file_is_no_instruction_and_is_never_waited_for(
    machine: Machine, make: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(machine.project)  # the name of a socket has to be short
    for folder in (machine.package, machine.config):
        make(folder / "AGENTS.md")
    with trio.fail_after(5):
        assert (await machine.context()).keys == ()
        assert await machine.instructions.nearby(".", Location(directory=str(machine.project))) == ()


async def test_a_file_that_may_not_be_read_is_unavailable_and_says_what_would_help() -> None:
    with tempfile.TemporaryDirectory() as root, other_user(root):
        machine = Machine(Path(root))
        path = write(machine.package, "secret")
        path.chmod(0)
        outcome = await (await machine.context()).initialize(OBSERVING)
        assert outcome == Blocked(
            reasons={
                "core/instructions": f"{path} cannot be read: `packages/one/AGENTS.md` may not be read by this program. "
                "Make it readable or take it away."
            }
        )
        machine.package.chmod(0)
        blocked = await (await machine.context()).initialize(OBSERVING)
        machine.package.chmod(0o700)
        assert isinstance(blocked, Blocked)
        assert blocked.keys == ("core/instructions",)
        path.chmod(0o600)
        assert isinstance(await (await machine.context()).initialize(OBSERVING), Initialized)


@contextmanager
def other_user(folder: str) -> Generator[None]:
    """Be somebody for whom permissions count."""
    if os.geteuid() != 0:
        yield
        return
    os.chown(folder, 65534, 65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


async def test_the_opt_out_turns_project_files_off_and_keeps_the_global_one(tmp_path: Path) -> None:
    machine = Machine(tmp_path, projects=False)
    write(machine.package, "package")
    everywhere = write(machine.config, "global")
    assert machine.found() == [str(everywhere)]
    write(machine.package / "src", "nested")
    assert await machine.instructions.nearby("src", machine.location) == ()


async def test_the_nearest_files_count_when_there_are_too_many(machine: Machine) -> None:
    deep = machine.package.joinpath(*(f"d{number}" for number in range(MAX_FILES + 3)))
    paths = [write(folder, "x") for folder in (deep, *deep.parents) if folder.is_relative_to(machine.project)]
    found = machine.instructions.discover(str(deep))
    assert [place.path for place in found] == [str(path) for path in paths[:MAX_FILES]]


# --- what is told ---------------------------------------------------------------------------------------------------


async def test_no_files_are_an_absence(machine: Machine) -> None:
    assert (await machine.context()).keys == ()
    assert await (await machine.context()).reconcile({}, OBSERVING) == Unchanged()


async def test_any_change_tells_the_complete_current_set(machine: Machine) -> None:
    root = write(machine.project, "Root.")
    package = write(machine.package, "Package.")
    begun = await machine.begin()
    assert await (await machine.context()).reconcile(begun.snapshot, OBSERVING) == Unchanged()
    package.write_text("Package, changed.")
    updated = await machine.update(begun.snapshot)
    assert updated.text == (
        "The instructions have changed. What follows is all of them, and takes the place of every instruction file given "
        f"before:\n\n## Instructions in {package}\n\nPackage, changed.\n\n## Instructions in {root}\n\nRoot."
    )
    package.unlink()
    assert (await machine.update(updated.snapshot)).text.endswith(f"before:\n\n## Instructions in {root}\n\nRoot.")


async def test_when_no_file_is_left_the_model_is_told_once(machine: Machine) -> None:
    path = write(machine.package, "Package.")
    begun = await machine.begin()
    path.unlink()
    updated = await machine.update(begun.snapshot)
    assert updated.text == "There are no instruction files any more. What earlier ones said no longer applies."
    assert await (await machine.context()).reconcile(updated.snapshot, OBSERVING) == Unchanged()


async def test_files_that_appear_in_mid_session_are_introduced(machine: Machine) -> None:
    path = write(machine.package, "New.")
    updated = await machine.update({})
    assert updated.text == (f"Follow these instructions of the user and the project:\n\n## Instructions in {path}\n\nNew.")


async def test_an_empty_file_is_a_file(machine: Machine) -> None:
    path = write(machine.package, "")
    begun = await machine.begin()
    assert begun.baseline.endswith(f"## Instructions in {path}\n\n(The file is empty.)")
    path.unlink()
    assert (await machine.update(begun.snapshot)).dropped == ("core/instructions",)


async def test_a_huge_file_is_cut_and_says_so(machine: Machine) -> None:
    write(machine.package, "é" * MAX_BYTES)
    begun = await machine.begin()
    (one,) = begun.snapshot["core/instructions"].value
    assert (len(one["content"]), one["cut"]) == (MAX_BYTES // 2, True)
    assert begun.baseline.endswith("é\n(Only the first 64 KiB of this file are shown.)")


async def test_many_huge_files_are_cut_together_and_say_so(machine: Machine) -> None:
    deep = machine.package.joinpath(*(f"d{number}" for number in range(MAX_FILES)))
    for folder in (deep, *deep.parents):
        if folder.is_relative_to(machine.package):
            (write(folder, "").write_bytes(b'"' * MAX_BYTES))
    (machine.package / "d0" / "AGENTS.md").write_bytes(b"\xff" * MAX_BYTES)
    machine.location = Location(directory=str(deep))
    begun = await machine.begin()
    files = begun.snapshot["core/instructions"].value
    assert [len(one["content"]) for one in files] == [MAX_BYTES] * 6 + [0] * (MAX_FILES - 6)
    assert len(msgspec.json.encode(begun.snapshot)) < MAX_SOURCE_BYTES
    assert begun.baseline.count("(There is no room left for this file.)") == MAX_FILES - 6


async def test_a_file_just_within_the_limit_is_whole(machine: Machine) -> None:
    write(machine.package, "x" * MAX_BYTES)
    (one,) = (await machine.begin()).snapshot["core/instructions"].value
    assert "cut" not in one


async def test_bytes_that_are_no_text_are_made_readable(machine: Machine) -> None:
    (machine.package / "AGENTS.md").write_bytes(b"\xef\xbb\xbfa\xff\x00\x1bb\n")
    (one,) = (await machine.begin()).snapshot["core/instructions"].value
    assert one["content"] == "a\ufffdb\n"


# --- unavailable ----------------------------------------------------------------------------------------------------


def make_unreadable(path: Path) -> None:
    """A link to a name that no file can have: looking at it fails, whoever looks."""
    path.unlink(missing_ok=True)
    path.symlink_to("x" * 300)


async def test_a_file_that_cannot_be_looked_at_blocks_the_first_baseline(machine: Machine) -> None:
    write(machine.project, "root")
    make_unreadable(machine.package / "AGENTS.md")
    outcome = await (await machine.context()).initialize(OBSERVING)
    assert isinstance(outcome, Blocked)
    assert outcome.keys == ("core/instructions",)
    assert str(machine.package / "AGENTS.md") in outcome.reasons["core/instructions"]


async def test_a_file_that_cannot_be_looked_at_leaves_what_was_told_standing(machine: Machine) -> None:
    path = write(machine.package, "Package.")
    begun = await machine.begin()
    make_unreadable(path)
    assert await (await machine.context()).reconcile(begun.snapshot, OBSERVING) == Unchanged()
    make_unreadable(machine.config / "AGENTS.md")
    path.unlink()
    assert await (await machine.context()).reconcile(begun.snapshot, OBSERVING) == Unchanged()


async def test_a_file_that_vanishes_between_finding_and_reading_is_trouble_and_no_absence(machine: Machine) -> None:
    write(machine.project, "root")
    package = write(machine.package, "package")
    found = machine.instructions.discover(str(machine.package))
    package.unlink()
    with pytest.raises(FileTrouble, match="does not exist"):
        read_instructions(found)


async def test_a_file_replaced_by_a_link_after_it_was_found_is_not_followed(machine: Machine, tmp_path: Path) -> None:
    package = write(machine.package, "package")
    found = machine.instructions.discover(str(machine.package))
    (tmp_path / "secret").write_text("token")
    package.unlink()
    package.symlink_to(tmp_path / "secret")
    with pytest.raises(FileTrouble):
        read_instructions(found)


class Hanging(Inline):
    """Work on a file system that does not answer, and that may be left behind."""

    async def run(self, work: Callable[[], T], *, abandon_on_cancel: bool = False) -> T:
        assert abandon_on_cancel
        await trio.sleep_forever()
        raise AssertionError("nobody comes back from forever")


async def test_a_file_system_that_does_not_answer_leaves_what_was_told_standing(
    machine: Machine, autojump_clock: MockClock
) -> None:
    write(machine.package, "Package.")
    begun = await machine.begin()
    registry = SystemContextRegistry()
    registry.reserve("core/instructions", Instructions(Hanging(), config_folder="/none").produce)
    context = await registry.load(machine.location, OBSERVING)
    assert trio.current_time() == pytest.approx(5.0)
    assert await context.reconcile(begun.snapshot, OBSERVING) == Unchanged()


# --- nearby ---------------------------------------------------------------------------------------------------------


async def test_nearby_are_the_files_between_what_was_read_and_the_location_nearest_first(machine: Machine) -> None:
    write(machine.project, "root")
    write(machine.package, "package")
    source = write(machine.package / "src", "Source rules.")
    deep = write(machine.package / "src" / "a" / "b", "Deep rules.")
    (deep.parent / "code.py").write_text("x = 1")
    expected = (
        Instruction(path=str(deep), content="Deep rules."),
        Instruction(path=str(source), content="Source rules."),
    )
    for read in ("src/a/b/code.py", str(deep.parent / "code.py"), "src/a/b", "./src/x/../a/b/code.py"):
        assert await machine.instructions.nearby(read, machine.location) == expected
    assert render_nearby(expected) == (
        f"These instructions apply to the files near what was just read:\n\n## Instructions in {deep}\n\nDeep rules.\n\n"
        f"## Instructions in {source}\n\nSource rules."
    )


async def test_what_was_told_already_is_not_nearby(machine: Machine) -> None:
    source = write(machine.package / "src", "source")
    deep = write(machine.package / "src" / "deep", "deep")
    found = await machine.instructions.nearby("src/deep", machine.location, known={str(source)})
    assert [one.path for one in found] == [str(deep)]
    assert await machine.instructions.nearby("src/deep", machine.location, known={str(source), str(deep)}) == ()


async def test_the_locations_own_file_is_never_nearby_even_behind_a_link(machine: Machine) -> None:
    own = write(machine.package, "package")
    (machine.package / "src").mkdir()
    (machine.package / "src" / "AGENTS.md").symlink_to(own)
    (machine.package / "file").write_text("x")
    for read in ("src", "file", ".", str(machine.package)):
        assert await machine.instructions.nearby(read, machine.location) == ()


async def test_nothing_outside_the_location_is_nearby(machine: Machine, tmp_path: Path) -> None:
    write(machine.project / "other", "other")
    secret = write(tmp_path / "elsewhere", "secret")
    (machine.package / "out").symlink_to(secret.parent)
    (machine.package / "src").mkdir()
    (machine.package / "src" / "AGENTS.md").symlink_to(secret)
    for read in ("../../other/x", str(machine.project / "other"), "out/x", "src/x", "src\0x"):
        assert await machine.instructions.nearby(read, machine.location) == ()


async def test_nearby_files_that_cannot_be_read_are_looked_for_again_next_time(machine: Machine) -> None:
    path = machine.package / "src" / "AGENTS.md"
    path.parent.mkdir()
    make_unreadable(path)
    assert await machine.instructions.nearby("src", machine.location) == ()
    path.unlink()
    write(path.parent, "now")
    assert [one.content for one in await machine.instructions.nearby("src", machine.location)] == ["now"]
