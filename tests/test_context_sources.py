"""Date, environment, project and API entries: what they observe and how they say it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from steerway.actors.blocking import Threads
from steerway.actors.context.algebra import Blocked, Initialized, SystemContext, Unchanged, Updated
from steerway.actors.context.built_in import date_source, environment_source, register_built_in
from steerway.actors.context.entries import MAX_ENTRIES, MAX_ENTRY_BYTES, checked_entry, entries_context
from steerway.actors.context.instructions import Instructions
from steerway.actors.context.observing import Observing
from steerway.actors.context.project import Project, find_project, project_config_enabled
from steerway.actors.context.registry import SystemContextRegistry
from steerway.actors.context.snapshot import Snapshot
from steerway.protocol.values import Location
from steerway.protocol.values.errors import InvalidRequestError

OBSERVING = Observing()


async def begin(context: SystemContext) -> Initialized:
    outcome = await context.initialize(OBSERVING)
    assert isinstance(outcome, Initialized)
    return outcome


async def told(context: SystemContext, snapshot: Snapshot) -> str | None:
    """The update text; None when there is nothing to tell."""
    match await context.reconcile(snapshot, OBSERVING):
        case Updated(text=text):
            return text
        case Unchanged():
            return None
        case other:
            raise AssertionError(other)


# --- the date -----------------------------------------------------------------------------------------------------


@pytest.fixture
def far_east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine fourteen hours ahead of Greenwich."""
    monkeypatch.setenv("TZ", "<+14>-14")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


class Wall:
    """Wall time that the test sets."""

    def __init__(self, moment: str) -> None:
        self.moment = moment

    def __call__(self) -> int:
        return int(datetime.fromisoformat(self.moment).replace(tzinfo=UTC).timestamp() * 1000)


@pytest.mark.usefixtures("far_east")
async def test_the_date_is_that_of_the_machine_and_told_once_a_day() -> None:
    wall = Wall("2026-07-02T09:59:59")
    context = SystemContext.make(date_source(wall))
    begun = await begin(context)
    assert begun.baseline == "Today's date is Thursday, 2026-07-02."
    assert begun.snapshot["core/date"].value == "2026-07-02"
    wall.moment = "2026-07-01T10:00:00"
    assert await told(context, begun.snapshot) is None
    wall.moment = "2026-07-02T10:00:00"
    text = await told(context, begun.snapshot)
    assert text == "The date has changed: today is Friday, 2026-07-03."


# --- the project and the environment -------------------------------------------------------------------------------


def test_the_project_root_is_the_nearest_ancestor_with_git(tmp_path: Path) -> None:
    inner = tmp_path / "outer" / "inner"
    deep = inner / "a" / "b"
    deep.mkdir(parents=True)
    (tmp_path / "outer" / ".git").mkdir()
    (inner / ".git").write_text("gitdir: elsewhere\n")
    assert find_project(str(deep)) == Project(directory=str(deep), root=str(inner), git=True)
    assert find_project(str(deep)).upward() == (str(deep), str(inner / "a"), str(inner))
    assert find_project(str(tmp_path / "outer")).upward() == (str(tmp_path / "outer"),)


def test_outside_git_the_location_is_the_project_root(tmp_path: Path) -> None:
    assert find_project(str(tmp_path)) == Project(directory=str(tmp_path), root=str(tmp_path), git=False)


def test_a_location_behind_a_link_has_the_project_it_really_lies_in(tmp_path: Path) -> None:
    (tmp_path / "real" / ".git").mkdir(parents=True)
    (tmp_path / "real" / "sub").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real" / "sub")
    assert find_project(str(tmp_path / "link")).root == str(tmp_path / "real")


@pytest.mark.parametrize(
    ("environ", "enabled"),
    [
        ({}, True),
        ({"STEERWAY_DISABLE_PROJECT_CONFIG": ""}, True),
        ({"STEERWAY_DISABLE_PROJECT_CONFIG": "0"}, True),
        ({"OPENCODE_DISABLE_PROJECT_CONFIG": "false"}, True),
        ({"STEERWAY_DISABLE_PROJECT_CONFIG": "1"}, False),
        ({"STEERWAY_DISABLE_PROJECT_CONFIG": "0", "OPENCODE_DISABLE_PROJECT_CONFIG": "TRUE"}, False),
    ],
)
def test_either_variable_turns_project_configuration_off(environ: dict[str, str], enabled: bool) -> None:
    assert project_config_enabled(environ) is enabled


async def test_the_environment_names_folder_project_git_and_platform(tmp_path: Path) -> None:
    here = tmp_path / "project" / "sub"
    here.mkdir(parents=True)
    context = SystemContext.make(environment_source(Location(directory=str(here)), Threads(), platform="linux"))
    begun = await begin(context)
    assert begun.baseline == (
        f"You work in this environment:\n- working directory: {here}\n- project root: {here}\n"
        "- git repository: no\n- platform: linux"
    )
    assert await told(context, begun.snapshot) is None
    (tmp_path / "project" / ".git").mkdir()
    assert await told(context, begun.snapshot) == (
        f"The environment has changed. It is now:\n- working directory: {here}\n- project root: {tmp_path / 'project'}\n"
        "- git repository: yes\n- platform: linux"
    )


async def test_an_environment_that_cannot_be_looked_at_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / ".git").symlink_to(".git")
    outcome = await SystemContext.make(environment_source(Location(directory=str(tmp_path)), Threads())).initialize(OBSERVING)
    assert isinstance(outcome, Blocked)
    assert outcome.keys == ("core/environment",)
    assert "cannot be looked at" in outcome.reasons["core/environment"]


async def test_the_core_registers_its_sources_for_all_locations_and_can_take_them_back(tmp_path: Path) -> None:
    registry = SystemContextRegistry()
    (tmp_path / "AGENTS.md").write_text("Be kind.")
    instructions = Instructions(Threads(), config_folder=str(tmp_path / "none"))
    core = register_built_in(registry, blocking=Threads(), now_ms=Wall("2026-07-02"), instructions=instructions)
    location = Location(directory=str(tmp_path))
    begun = await begin(await registry.load(location, OBSERVING))
    assert list(begun.snapshot) == ["core/date", "core/environment", "core/instructions"]
    assert begun.baseline.index("Today's date") < begun.baseline.index("You work in") < begun.baseline.index("Be kind.")
    for one in core:
        one.close()
    assert (await registry.load(location, OBSERVING)).keys == ()


# --- API-managed entries -------------------------------------------------------------------------------------------


async def test_entries_are_told_changed_and_removed_one_by_one() -> None:
    begun = await begin(entries_context({"ticket": {"b": 1, "a": [None]}, "mood": "calm"}))
    assert begun.baseline == (
        "Context 'mood', set by the program that runs this session:\ncalm\n\n"
        'Context \'ticket\', set by the program that runs this session:\n{"a":[null],"b":1}'
    )
    assert list(begun.snapshot) == ["api/mood", "api/ticket"]
    assert await told(entries_context({"ticket": {"a": [None], "b": 1}, "mood": "calm"}), begun.snapshot) is None
    assert await told(entries_context({"ticket": None}), begun.snapshot) == (
        "Context 'ticket' has changed. It is now:\nnull\n\nContext 'mood' was removed. What it said no longer applies."
    )


async def test_an_entry_that_comes_back_after_it_was_removed_is_introduced_again() -> None:
    first = await begin(entries_context({"mood": "calm"}))
    removed = await entries_context({}).reconcile(first.snapshot, OBSERVING)
    assert isinstance(removed, Updated)
    assert removed.snapshot == {}
    assert await told(entries_context({}), removed.snapshot) is None
    assert await told(entries_context({"mood": "calm"}), removed.snapshot) == (
        "Context 'mood', set by the program that runs this session:\ncalm"
    )


@pytest.mark.parametrize("value", [None, "", 0, False, [], {}, " ", 1.5, "text", {"a": {"b": [1]}}])
async def test_any_json_value_is_an_entry(value: Any) -> None:
    stored = checked_entry("any", value)
    assert stored == value
    assert (await begin(entries_context({"any": stored}))).snapshot["api/any"].value == value


@pytest.mark.parametrize("key", ["", "a/b", "Upper", ".hidden", "with space", "x" * 101])
def test_a_key_that_cannot_be_part_of_a_context_key_is_refused(key: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        checked_entry(key, 1)
    assert caught.value.fields == {"field": "key"}


def test_an_entry_has_at_most_eight_kibibytes_as_json() -> None:
    assert checked_entry("k", "x" * (MAX_ENTRY_BYTES - 2))
    for large in ("x" * (MAX_ENTRY_BYTES - 1), "é" * (MAX_ENTRY_BYTES // 2)):
        with pytest.raises(InvalidRequestError, match="at most 8192 bytes") as caught:
            checked_entry("k", large)
        assert caught.value.fields == {"field": "value"}


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("value", [float("nan"), {1: 2}, object(), 2**70, nested(60)])
def test_a_value_that_is_no_json_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        checked_entry("k", value)
    assert caught.value.fields == {"field": "value"}


def test_a_session_has_a_bounded_number_of_entries() -> None:
    existing = [f"k{number}" for number in range(MAX_ENTRIES)]
    assert checked_entry("k0", "again", existing) == "again"
    with pytest.raises(InvalidRequestError, match="at most 100"):
        checked_entry("one-more", "x", existing)


def test_lone_surrogates_of_an_entry_are_repaired() -> None:
    assert checked_entry("k", {"cut": "\ud83d"}) == {"cut": "\ufffd"}
