"""What `glob` and `grep` ask for, and that a rule about paths holds for every file that a search meets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import trio

from steerway.actors.blocking import Threads
from steerway.actors.tools.confinement import Confinement
from steerway.actors.tools.path_rules import PathRules
from steerway.actors.tools.permissions import built_in_rules
from steerway.actors.tools.searching import glob_tool, grep_tool
from steerway.actors.tools.settlement import Failed, RawResult
from steerway.actors.tools.tool import CallOwner, DeclinedError, PermissionDeniedError, ToolOutput, Unattended
from steerway.protocol.values import TextContent
from steerway.protocol.values.permission import Rule
from support.tools import Asked, ScriptedOwner, make_context, make_registry

ALLOW = built_in_rules("build")


def rule(action: str, resource: str, effect: Any) -> Rule:
    return Rule(action=action, resource=resource, effect=effect)


class Project:
    """A folder with a few files, searched under rules and with somebody to ask."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("a.txt", ".env", "deploy/prod.env", "deploy/b.txt"):
            path = root / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"token of {name}\n")

    async def run(self, name: str, owner: CallOwner, *rules: Rule, **arguments: Any) -> RawResult:
        context = make_context(self.root, session=owner)
        registry = make_registry(self.root, glob_tool(Confinement), grep_tool(Confinement))
        return await registry.materialise(context.location, "build", (*ALLOW, *rules)).run(name, arguments, "", context)

    async def text(self, name: str, owner: CallOwner, *rules: Rule, **arguments: Any) -> str:
        result = await self.run(name, owner, *rules, **arguments)
        assert isinstance(result, ToolOutput), result
        (item,) = result.content
        assert isinstance(item, TextContent)
        return item.text


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


async def test_permission_is_asked_for_the_place_where_a_search_begins(project: Project) -> None:
    owner = ScriptedOwner()
    await project.text("grep", owner, pattern="to+ken", path="deploy/../deploy")
    await project.text("glob", owner, pattern="*.txt")
    assert owner.asked == [
        Asked("grep", ("deploy",), ("*",), {"path": "deploy", "pattern": "to+ken", "include": None}),
        Asked("glob", (".",), ("*",), {"path": ".", "pattern": "*.txt"}),
    ]
    refused = await project.run("grep", Unattended([*ALLOW, rule("grep", "deploy*", "deny")]), pattern="x", path="deploy")
    assert isinstance(refused, Failed)
    assert (refused.error.type, refused.error.message) == (
        "permission.denied",
        "grep `deploy` is not permitted: a permission rule denies it.",
    )


async def test_what_reading_is_denied_for_is_not_searched_either(project: Project) -> None:
    owner = ScriptedOwner()
    deny = rule("read", "*.env", "deny")
    assert await project.text("grep", owner, deny, pattern="token") == (
        "a.txt:1: token of a.txt\ndeploy/b.txt:1: token of deploy/b.txt\n\n"
        "(2 files were left out: the permission rules keep them closed)"
    )
    assert [asked.action for asked in owner.asked] == ["grep"]
    refused = await project.run("grep", owner, deny, pattern="token", path=".env")
    assert isinstance(refused, Failed)
    assert refused.error.message == "read `.env` is not permitted: a permission rule denies it."


async def test_a_denied_file_is_not_even_opened(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    really = os.open

    def watching(path: Any, *arguments: Any, **options: Any) -> int:
        opened.append(os.path.basename(path))
        return really(path, *arguments, **options)

    monkeypatch.setattr(os, "open", watching)
    await project.text("grep", ScriptedOwner(), rule("read", "*.env", "deny"), pattern="token")
    assert ("b.txt" in opened, ".env" in opened, "prod.env" in opened) == (True, False, False)


async def test_names_are_found_unless_glob_itself_is_denied_them(project: Project) -> None:
    owner = ScriptedOwner()
    assert await project.text("glob", owner, rule("read", "*.env", "deny"), pattern="**/*.env") == ".env\ndeploy/prod.env"
    assert await project.text("glob", owner, rule("glob", "deploy/*", "deny"), pattern="**") == (
        ".env\na.txt\n\n(2 files were left out: the permission rules keep them closed)"
    )
    assert await project.text("grep", owner, rule("grep", "deploy/*", "deny"), pattern="token", include="*.env") == (
        ".env:1: token of .env\n\n(1 file was left out: the permission rules keep it closed)"
    )


async def test_where_reading_has_to_be_asked_for_it_is_asked_once_for_what_would_be_shown(project: Project) -> None:
    owner = ScriptedOwner()
    ask = rule("read", "*.env", "ask")
    assert "prod.env:1: token" in await project.text("grep", owner, ask, pattern="token")
    assert owner.asked[1:] == [Asked("read", (".env", "deploy/prod.env"), ("*",), {"grep": "token"})]
    assert await project.text("grep", owner, ask, pattern="of a.txt") == "a.txt:1: token of a.txt"
    assert len(owner.asked) == 3


async def test_what_nobody_allows_is_left_out_and_what_somebody_declines_ends_the_call(project: Project) -> None:
    ask = rule("read", "*.env", "ask")
    assert await project.text("grep", Unattended([*ALLOW, ask]), ask, pattern="token") == (
        "a.txt:1: token of a.txt\ndeploy/b.txt:1: token of deploy/b.txt\n\n"
        "(2 files were left out: the permission rules keep them closed)"
    )

    class Declining(ScriptedOwner):
        async def authorize(self, action: str, *arguments: Any, **options: Any) -> None:
            await trio.lowlevel.checkpoint()
            if action == "read":
                raise DeclinedError("no", type="permission.rejected")

    with pytest.raises(DeclinedError):
        await project.run("grep", Declining(), ask, pattern="token")


async def test_a_name_that_is_no_text_can_be_asked_for(project: Project) -> None:
    (project.root / os.fsdecode(b"\xff.env")).write_text("token\n")
    owner = ScriptedOwner()
    assert "\ufffd.env:1: token" in await project.text("grep", owner, rule("read", "*.env", "ask"), pattern="token")
    assert owner.asked[1].resources == (".env", "deploy/prod.env", "\ufffd.env")


def test_rules_that_name_no_path_are_asked_once() -> None:
    assert PathRules([*ALLOW, rule("read", "*", "ask")], "read").effect("any") == "ask"
    assert PathRules([*ALLOW, rule("rea?", "x*", "deny")], "read").denies("xy")
    assert not PathRules([*ALLOW, rule("edit", "x*", "deny")], "read").denies("xy")
    assert PathRules([], "read").effect("any") == "ask"


async def test_pipes_and_devices_are_never_waited_for_by_a_search(project: Project) -> None:
    os.mkfifo(project.root / "pipe")
    (project.root / "zero").symlink_to("/dev/zero")
    with trio.fail_after(5):
        assert "pipe" not in await project.text("grep", ScriptedOwner(), pattern="x|token")
        refused = await project.run("grep", ScriptedOwner(), pattern="x", path="pipe")
        assert isinstance(refused, Failed)
        assert "neither a file nor a directory" in refused.error.message
        assert isinstance(await project.run("grep", ScriptedOwner(), pattern="x", path="zero"), Failed)


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="this system has no /proc")
async def test_files_of_the_kernel_are_read_without_waiting_and_with_a_bound() -> None:
    """`/proc` has regular files that say nothing of their size, that fail when read, or that have no end."""
    context = make_context("/proc/self", blocking=Threads(), session=ScriptedOwner())
    tools = make_registry("/proc/self", grep_tool(Confinement)).materialise(context.location, "build", ALLOW)
    with trio.fail_after(30):
        arguments = {"pattern": "^Name:", "include": "{status,mem,pagemap,kmsg,environ,maps,clear_refs}"}
        result = await tools.run("grep", arguments, "", context)
    assert isinstance(result, ToolOutput)
    (item,) = result.content
    assert isinstance(item, TextContent)
    assert "status:1: Name:" in item.text


async def test_a_refusal_of_the_place_shows_nothing(project: Project) -> None:
    result = await project.run("grep", ScriptedOwner(PermissionDeniedError("grep", (".",))), pattern="token")
    assert isinstance(result, Failed)
    assert result.error.type == "permission.denied"
