"""Skills: which there are, what the model is told of them, and what it gets when it asks for one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from steerway.actors.blocking import Threads
from steerway.actors.context.algebra import Blocked, Initialized, SystemContext, Unchanged, Updated
from steerway.actors.context.files import FileTrouble
from steerway.actors.context.front_matter import FrontMatter, parse_front_matter
from steerway.actors.context.observing import Observing
from steerway.actors.context.skills import (
    MAX_BYTES,
    MAX_DESCRIPTION,
    MAX_LISTED_BYTES,
    MAX_SKILLS,
    Skill,
    Skills,
    SkillSummary,
    UnknownSkillError,
    render_skill,
)
from steerway.actors.context.source import MAX_SOURCE_BYTES
from steerway.protocol.values import Location

OBSERVING = Observing()


def everything(_: str) -> bool:
    return True


def nothing(_: str) -> bool:
    return False


def only(*names: str) -> Callable[[str], bool]:
    return lambda name: name in names


class Machine:
    """A user's configuration folder and a location, with skills in both."""

    def __init__(self, root: Path, *, projects: bool = True) -> None:
        self.user = root / "config" / "skills"
        self.here = root / "project"
        self.local = self.here / ".steerway" / "skills"
        self.user.mkdir(parents=True)
        self.local.mkdir(parents=True)
        self.location = Location(directory=str(self.here))
        self.skills = Skills(Threads(), config_folder=str(root / "config"), projects=projects)

    async def context(self, permitted: Callable[[str], bool] = everything) -> SystemContext:
        return await self.skills.guidance(self.location, permitted)

    async def begin(self, permitted: Callable[[str], bool] = everything) -> Initialized:
        outcome = await (await self.context(permitted)).initialize(OBSERVING)
        assert isinstance(outcome, Initialized)
        return outcome

    async def names(self) -> list[str]:
        return [skill.name for skill in await self.skills.listed(self.location)]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def write(folder: Path, name: str, description: str | None, body: str = "Do it.") -> Path:
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    told = "" if description is None else f"description: {description}\n"
    (place / "SKILL.md").write_text(f"---\nname: {name}\n{told}---\n\n{body}\n")
    return place


# --- guidance -------------------------------------------------------------------------------------------------------


async def test_the_guidance_lists_name_and_description_by_name_and_nothing_else(machine: Machine) -> None:
    write(machine.local, "zip", "Packs files.", body="SECRET BODY")
    write(machine.user, "audit", "Reads logs.")
    write(machine.local, "silent", None)
    begun = await machine.begin()
    assert begun.baseline == (
        "These skills are available. Load one with the `skill` tool when a task fits its description.\n\n"
        "- audit: Reads logs.\n- zip: Packs files."
    )
    assert begun.snapshot["core/skill-guidance"].value == [
        {"name": "audit", "description": "Reads logs."},
        {"name": "zip", "description": "Packs files."},
    ]


async def test_only_what_the_agent_may_use_is_told_and_another_agent_gets_an_update(machine: Machine) -> None:
    write(machine.local, "zip", "Packs files.")
    write(machine.local, "audit", "Reads logs.")
    begun = await machine.begin(only("audit"))
    assert "zip" not in begun.baseline
    updated = await (await machine.context(only("audit", "zip"))).reconcile(begun.snapshot, OBSERVING)
    assert isinstance(updated, Updated)
    assert updated.text == (
        "The available skills have changed. What follows takes the place of every earlier list.\n\n"
        "These skills are available. Load one with the `skill` tool when a task fits its description.\n\n"
        "- audit: Reads logs.\n- zip: Packs files."
    )


async def test_without_any_skill_the_model_is_told_so(machine: Machine) -> None:
    assert (await machine.begin()).baseline == "No skills are available."


async def test_an_agent_that_may_use_no_skill_is_told_nothing_and_one_that_might_is(machine: Machine) -> None:
    write(machine.local, "zip", "Packs files.")
    assert (await machine.context(nothing)).keys == ()
    assert (await machine.begin(only("*"))).baseline == "No skills are available."
    begun = await machine.begin()
    removed = await (await machine.context(nothing)).reconcile(begun.snapshot, OBSERVING)
    assert isinstance(removed, Updated)
    assert removed.text == "Skills are not available any more. Do not use any that were listed before."


async def test_a_changed_body_tells_nothing_and_a_changed_description_does(machine: Machine) -> None:
    write(machine.local, "zip", "Packs files.")
    begun = await machine.begin()
    write(machine.local, "zip", "Packs files.", body="Another way.")
    assert await (await machine.context()).reconcile(begun.snapshot, OBSERVING) == Unchanged()
    write(machine.local, "zip", "Unpacks files.")
    updated = await (await machine.context()).reconcile(begun.snapshot, OBSERVING)
    assert isinstance(updated, Updated)
    assert updated.text.endswith("\n- zip: Unpacks files.")


async def test_a_description_is_told_on_one_line_and_bounded(machine: Machine) -> None:
    write(machine.local, "long", "|\n  First line\n\n  " + "x" * 2 * MAX_DESCRIPTION)
    (skill,) = await machine.skills.listed(machine.location)
    assert len(skill.description) == MAX_DESCRIPTION
    assert skill.description.startswith("First line xxx")


# --- which there are ------------------------------------------------------------------------------------------------


async def test_of_one_name_the_locations_skill_wins(machine: Machine) -> None:
    write(machine.user, "zip", "The user's.")
    write(machine.local, "zip", "The location's.")
    assert await machine.skills.listed(machine.location) == (SkillSummary(name="zip", description="The location's."),)
    assert (await machine.skills.load("zip", machine.location)).folder == str(machine.local / "zip")


async def test_where_projects_may_not_configure_only_the_users_skills_count(tmp_path: Path) -> None:
    machine = Machine(tmp_path, projects=False)
    write(machine.user, "audit", "Reads logs.")
    write(machine.local, "zip", "Packs files.")
    assert await machine.names() == ["audit"]


async def test_a_skill_of_the_location_may_not_lead_out_of_it_but_the_users_may_lie_anywhere(
    machine: Machine, tmp_path: Path
) -> None:
    outside = write(tmp_path / "dotfiles", "outside", "Elsewhere.")
    (machine.local / "outside").symlink_to(outside)
    assert await machine.names() == []
    (machine.user / "outside").symlink_to(outside)
    assert await machine.names() == ["outside"]


async def test_folders_without_a_usable_skill_are_passed_over(machine: Machine) -> None:
    write(machine.local, "good", "Good.")
    (machine.local / "no-file").mkdir()
    (machine.local / "a-file").write_text("x")
    (machine.local / "looping").mkdir()
    (machine.local / "looping" / "SKILL.md").symlink_to("SKILL.md")
    (machine.local / "pipe").mkdir()
    os.mkfifo(machine.local / "pipe" / "SKILL.md")
    bad = machine.local / "bad-name"
    bad.mkdir()
    (bad / "SKILL.md").write_text("---\nname: ../../etc\ndescription: x\n---\n")
    assert await machine.names() == ["good"]


async def test_a_skill_without_a_name_has_that_of_its_folder(machine: Machine) -> None:
    (machine.local / "plain").mkdir()
    (machine.local / "plain" / "SKILL.md").write_text("No head at all.")
    assert await machine.skills.listed(machine.location) == (SkillSummary(name="plain", description=""),)
    assert (await machine.skills.load("plain", machine.location)).body == "No head at all."


async def test_missing_folders_are_no_skills(tmp_path: Path) -> None:
    skills = Skills(Threads(), config_folder=str(tmp_path / "none"))
    assert await skills.listed(Location(directory=str(tmp_path))) == ()


async def test_a_folder_that_is_a_link_to_itself_is_no_folder(machine: Machine) -> None:
    machine.local.rmdir()
    machine.local.symlink_to("skills")
    assert await machine.names() == []


async def test_the_list_of_skills_stays_within_what_a_source_may_hold(machine: Machine) -> None:
    for folder, prefix in ((machine.user, "a"), (machine.local, "b")):
        for number in range(MAX_SKILLS):
            write(folder, f"{prefix}-{number:03}", "\U0001f600" * MAX_DESCRIPTION)
    with capture_logs() as logs:
        begun = await machine.begin()
    assert MAX_LISTED_BYTES - 5_000 < len(msgspec.json.encode(begun.snapshot)) < MAX_SOURCE_BYTES
    assert [line["event"] for line in logs] == ["there are too many skills to tell them all"]


async def test_a_folder_that_cannot_be_listed_makes_the_guidance_unavailable(machine: Machine) -> None:
    write(machine.user, "audit", "Reads logs.")
    begun = await machine.begin()
    machine.local.rmdir()
    machine.local.symlink_to("x" * 300)
    assert await (await machine.context()).reconcile(begun.snapshot, OBSERVING) == Unchanged()
    blocked = await (await machine.context()).initialize(OBSERVING)
    assert isinstance(blocked, Blocked)
    assert blocked.keys == ("core/skill-guidance",)
    with pytest.raises(FileTrouble, match="cannot be listed"):
        await machine.skills.load("audit", machine.location)


# --- loading --------------------------------------------------------------------------------------------------------


async def test_a_loaded_skill_has_its_text_its_folder_and_the_files_beside_it(machine: Machine) -> None:
    place = write(machine.local, "zip", "Packs files.", body="# How\n\nPack.")
    (place / "scripts").mkdir()
    for name in ("scripts/b.py", "scripts/a.py", "notes.txt", ".hidden"):
        (place / name).write_text("x")
    (place / "link").symlink_to("notes.txt")
    skill = await machine.skills.load("zip", machine.location)
    assert skill == Skill(
        name="zip",
        description="Packs files.",
        body="# How\n\nPack.",
        folder=str(place),
        files=("notes.txt", "scripts/a.py", "scripts/b.py"),
    )
    assert render_skill(skill) == (
        "# Skill: zip\n\n# How\n\nPack.\n\n"
        f"Paths in this skill are relative to its folder, {place}.\n\n"
        "Files in that folder (there may be more):\n- notes.txt\n- scripts/a.py\n- scripts/b.py"
    )


async def test_at_most_ten_supporting_files_are_named(machine: Machine) -> None:
    place = write(machine.local, "many", "Many.")
    for number in range(30):
        (place / f"{number:02}.txt").write_text("x")
    skill = await machine.skills.load("many", machine.location)
    assert skill.files == tuple(f"{number:02}.txt" for number in range(10))


async def test_a_skill_is_loaded_as_it_is_now_and_cut_when_it_is_huge(machine: Machine) -> None:
    place = write(machine.local, "zip", "Packs files.")
    await machine.begin()
    write(machine.local, "zip", "Packs files.", body="Changed.")
    assert (await machine.skills.load("zip", machine.location)).body == "Changed."
    write(machine.local, "zip", "Packs files.", body="y" * 2 * MAX_BYTES)
    huge = await machine.skills.load("zip", machine.location)
    assert huge.cut
    assert len(huge.body) < MAX_BYTES
    assert "(Only the first 128 KiB of this skill are shown.)" in render_skill(huge)
    (place / "SKILL.md").unlink()
    with pytest.raises(UnknownSkillError):
        await machine.skills.load("zip", machine.location)


@pytest.mark.parametrize("name", ["nothing", "../config", "", "audit/SKILL.md"])
async def test_an_unknown_skill_is_refused_without_naming_others(machine: Machine, name: str) -> None:
    write(machine.user, "audit", "Reads logs.")
    with pytest.raises(UnknownSkillError) as caught:
        await machine.skills.load(name, machine.location)
    assert str(caught.value) == f"There is no skill {name!r}."


# --- the head of a file -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "pairs"),
    [
        ("name: zip\ndescription: Packs files.", {"name": "zip", "description": "Packs files."}),
        ("description: 'It''s quoted: yes'", {"description": "It's quoted: yes"}),
        ('description: "a \\"b\\" \\u00e9"', {"description": 'a "b" é'}),
        ('description: "not json \\d"', {"description": "not json \\d"}),
        ('description: "open', {}),
        ("description: >-\n  one\n  two\n\nname: x", {"description": "one two", "name": "x"}),
        ("description: |\n  one\n  two", {"description": "one\ntwo"}),
        ("description: one\n  two  # kept as it is", {"description": "one two  # kept as it is"}),
        ("description:\n  on the\n  next lines", {"description": "on the next lines"}),
        ("description: text # a comment\n# another", {"description": "text"}),
        ("name: zip\nmetadata:\n  version: 1\n  tags:\n    - a\nlicense: MIT", {"name": "zip", "license": "MIT"}),
        ("tools: [a, b]\nanchor: &x\nname: zip", {"name": "zip"}),
        ("description: has: a colon", {"description": "has: a colon"}),
        ("no pair at all\nname:zip\n: x", {}),
        ("", {}),
    ],
)
def test_the_head_is_read_as_such_heads_are_written(head: str, pairs: dict[str, str]) -> None:
    parsed = parse_front_matter(f"---\n{head}\n---\n\nBody.\n---\nMore.\n")
    assert parsed == FrontMatter(pairs, "Body.\n---\nMore.")


@pytest.mark.parametrize("text", ["", "Body.", "--\nname: x\n---\n", "---\nname: x\nnever closed", " ---\nname: x\n---\n"])
def test_a_text_without_a_head_is_all_body(text: str) -> None:
    assert parse_front_matter(text) == FrontMatter({}, text)
