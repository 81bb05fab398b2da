"""Permission rules, what they make of tools and calls, and how a shell command is taken apart for them."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from steerway.actors.agents import Agent, Agents
from steerway.actors.tools.commands import patterns_to_save, resources
from steerway.actors.tools.permissions import built_in_rules, decide, evaluate, hidden, matches
from steerway.actors.tools.settlement import Failed, RawResult
from steerway.actors.tools.tool import (
    UNATTENDED,
    DeclinedError,
    PermissionCorrectedError,
    PermissionDeniedError,
    ToolFailure,
    Unattended,
    tool,
)
from steerway.protocol.values import Location, ToolDefinition
from steerway.protocol.values.permission import Effect, Rule, SavedPermission
from support.tools import ScriptedOwner, ScriptedTool, make_context, make_registry

HERE = Location(directory="/here")


def rule(action: str, resource: str, effect: Effect) -> Rule:
    return Rule(action=action, resource=resource, effect=effect)


def approval(action: str, resource: str) -> SavedPermission:
    return SavedPermission(id="per_1", directory="/here", action=action, resource=resource, created=1)


# --- patterns -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("*", "", True),
        ("*", "a\nb/c", True),
        ("a", "a", True),
        ("a", "ab", False),
        ("a", "ba", False),
        ("a?c", "abc", True),
        ("a?c", "ac", False),
        ("src/*", "src/deep/file.py", True),
        ("*.env", "config/.env", True),
        ("*.env", ".env.example", False),
        ("a*b*c", "a-b-b-c", True),
        ("a*ab", "ab", False),
        ("git *", "git status", True),
        ("git *", "git", True),
        ("git *", "gitx", False),
        ("git*", "git", True),
        ("src\\*", "src/a", True),
        ("src/*", "src\\a", True),
        ("[a-z]+(x)", "[a-z]+(x)", True),
        ("[a-z]", "b", False),
        ("a", "A", False),
        ("", "", True),
    ],
)
def test_a_pattern_matches_the_whole_text(pattern: str, text: str, *, expected: bool) -> None:
    assert matches(pattern, text) is expected


def naive_match(pattern: str, text: str) -> bool:
    """The rules, one letter at a time."""
    pattern, text = pattern.replace("\\", "/"), text.replace("\\", "/")

    def here(rest: str, left: str) -> bool:
        if not rest:
            return not left
        if rest[0] == "*":
            return here(rest[1:], left) or (left != "" and here(rest, left[1:]))
        return left != "" and rest[0] in ("?", left[0]) and here(rest[1:], left[1:])

    return here(pattern, text) or (pattern.endswith(" *") and here(pattern[:-2], text))


words = st.text(alphabet="ab*? /\\\n.", max_size=8)


@given(words, words)
def test_patterns_match_as_a_naive_matcher_does(pattern: str, text: str) -> None:
    assert matches(pattern, text) == naive_match(pattern, text)


def test_a_pattern_full_of_stars_is_quick_on_a_long_text() -> None:
    assert not matches("*a" * 40 + "b", "a" * 100_000)
    assert not matches("*?a" * 40 + "b", "a" * 100_000)


# --- rules --------------------------------------------------------------------------------------------------------

names = st.sampled_from(["read", "write", "shell", "*", "w*"])
paths = st.sampled_from(["a", "b", "a/b", "*", "a*", "?", "a *"])
rule_lists = st.lists(st.builds(rule, names, paths, st.sampled_from(["allow", "ask", "deny"])), max_size=6)


def naive_effect(rules: Sequence[Rule], action: str, resource: str) -> Effect:
    effect: Effect = "ask"
    for one in rules:
        if naive_match(one.action, action) and naive_match(one.resource, resource):
            effect = one.effect
    return effect


@given(rule_lists, st.sampled_from(["read", "write", "shell"]), st.lists(st.sampled_from(["a", "b", "a/b", "a b"]), min_size=1))
def test_rules_decide_as_a_naive_model_does(rules: list[Rule], action: str, asked: list[str]) -> None:
    effects = [naive_effect(rules, action, resource) for resource in asked]
    expected = "deny" if "deny" in effects else "ask" if "ask" in effects else "allow"
    assert evaluate(rules, action, asked) == expected


@given(
    rule_lists,
    st.lists(st.builds(approval, names, paths), max_size=4),
    st.sampled_from(["read", "write"]),
    st.lists(st.sampled_from(["a", "b", "a/b"]), min_size=1),
)
def test_saved_approvals_only_ever_turn_asking_into_allowing(
    rules: list[Rule], saved: list[SavedPermission], action: str, asked: list[str]
) -> None:
    alone, together = evaluate(rules, action, asked), decide(rules, saved, action, asked)
    if alone == "ask":
        approved = all(
            naive_effect(rules, action, resource) == "allow"
            or any(naive_match(one.action, action) and naive_match(one.resource, resource) for one in saved)
            for resource in asked
        )
        assert together == ("allow" if approved else "ask")
    else:
        assert together == alone


def test_what_no_rule_matches_is_asked_and_an_action_without_resources_is_one_on_everything() -> None:
    assert evaluate([], "read", ["a"]) == "ask"
    assert evaluate([rule("read", "b", "allow")], "read", ["a"]) == "ask"
    assert evaluate([rule("read", "b", "allow")], "read", []) == "ask"
    assert evaluate([rule("read", "*", "allow")], "read", []) == "allow"


def test_a_saved_approval_never_beats_a_configured_deny() -> None:
    rules = [rule("*", "*", "ask"), rule("shell", "rm *", "deny")]
    saved = [approval("*", "*")]
    assert decide(rules, saved, "shell", ["rm x"]) == "deny"
    assert decide(rules, saved, "shell", ["ls", "rm x"]) == "deny"
    assert decide(rules, saved, "shell", ["ls"]) == "allow"


@given(rule_lists)
def test_a_hidden_tool_is_denied_every_resource(rules: list[Rule]) -> None:
    last = next((one for one in reversed(rules) if naive_match(one.action, "write")), None)
    assert hidden(rules, "write") == (last is not None and (last.resource, last.effect) == ("*", "deny"))
    if hidden(rules, "write"):
        assert all(evaluate(rules, "write", [resource]) == "deny" for resource in ("a", "b", "*", ""))


def test_a_narrower_later_allow_brings_a_denied_tool_back() -> None:
    rules = [rule("write", "*", "deny")]
    assert hidden(rules, "write")
    assert not hidden([*rules, rule("write", "docs/*", "allow")], "write")
    assert not hidden([*rules, rule("write", "docs/*", "deny")], "write")
    assert hidden([*rules, rule("read", "*", "allow")], "write")


# --- agents -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agent", "effects"),
    [
        ("build", {"read": "allow", "glob": "allow", "deploy": "allow", "shell": "ask", "write": "ask", "edit": "ask"}),
        ("own", {"read": "allow", "question": "allow", "shell": "ask", "write": "ask", "edit": "ask"}),
        ("plan", {"read": "allow", "question": "allow", "shell": "deny", "write": "deny", "edit": "deny"}),
    ],
)
def test_the_built_in_rules_of_an_agent(agent: str, effects: dict[str, Effect]) -> None:
    rules = Agents([Agent(name="own")]).resolve(agent).rules
    assert {action: evaluate(rules, action, ["a"]) for action in effects} == effects


def test_configured_rules_stand_behind_the_built_in_ones() -> None:
    plan = Agent(name="plan", configured=(rule("write", "plan.md", "allow"), rule("read", "*.env", "deny")))
    assert plan.rules[: len(built_in_rules("plan"))] == built_in_rules("plan")
    assert evaluate(plan.rules, "write", ["plan.md"]) == "allow"
    assert evaluate(plan.rules, "write", ["a.py"]) == "deny"
    assert evaluate(plan.rules, "read", [".env"]) == "deny"


# --- tools and calls ----------------------------------------------------------------------------------------------


async def run(tmp_path: Path, scripted: ScriptedTool, owner: Any, rules: Sequence[Rule] = ()) -> RawResult:
    tools = make_registry(tmp_path, scripted.tool).materialise(HERE, "build", rules)
    return await tools.run(scripted.name, {"value": "v"}, "", make_context("/here", session=owner))


def failed(result: RawResult) -> tuple[str, str]:
    assert isinstance(result, Failed)
    return result.error.type, result.error.message


async def test_a_hidden_tool_is_neither_offered_nor_known(tmp_path: Path) -> None:
    secret, known = ScriptedTool("secret"), ScriptedTool("known")
    registry = make_registry(tmp_path, secret.tool, known.tool)
    tools = registry.materialise(HERE, "build", [rule("*", "*", "allow"), rule("secret", "*", "deny")])
    assert [one.name for one in tools.definitions] == ["known"]
    kind, message = failed(await tools.run("secret", {}, "", make_context()))
    assert kind == "tool.unknown"
    assert "known" in message
    assert secret.executions == 0
    offered = registry.materialise(HERE, "build", [rule("secret", "*", "deny"), rule("secret", "a", "allow")]).definitions
    assert all(isinstance(one, ToolDefinition) for one in offered)
    assert [one.name for one in offered] == ["known", "secret"]


async def test_a_tool_that_does_not_ask_itself_is_authorized_by_its_name(tmp_path: Path) -> None:
    owner = ScriptedOwner()
    scripted = ScriptedTool("deploy")
    await run(tmp_path, scripted, owner)
    assert [(one.action, one.resources, one.save) for one in owner.asked] == [("deploy", ("*",), ("*",))]
    assert scripted.executions == 1


async def test_input_that_does_not_fit_asks_nobody(tmp_path: Path) -> None:
    owner = ScriptedOwner()
    scripted = ScriptedTool("deploy")
    tools = make_registry(tmp_path, scripted.tool).materialise(HERE, "build")
    result = await tools.run("deploy", {"wrong": 1}, "", make_context(session=owner))
    assert failed(result)[0] == "tool.invalid-input"
    assert owner.asked == []


async def test_a_denied_call_does_not_run_and_the_model_reads_why(tmp_path: Path) -> None:
    scripted = ScriptedTool("deploy")
    rules = [rule("deploy", "*", "deny"), rule("deploy", "a", "allow")]
    kind, message = failed(await run(tmp_path, scripted, Unattended(rules), rules))
    assert kind == "permission.denied"
    assert "deploy" in message
    kind, message = failed(await run(tmp_path, scripted, Unattended([rule("deploy", "*", "ask")])))
    assert kind == "permission.denied"
    assert "nobody" in message
    assert scripted.executions == 0


async def test_a_correction_is_shown_to_the_model(tmp_path: Path) -> None:
    owner = ScriptedOwner(PermissionCorrectedError("deploy", ("*",), "use the staging server"))
    kind, message = failed(await run(tmp_path, ScriptedTool("deploy"), owner))
    assert kind == "permission.rejected"
    assert "use the staging server" in message


async def test_a_declined_call_passes_through_to_the_turn(tmp_path: Path) -> None:
    scripted = ScriptedTool("deploy")
    with pytest.raises(DeclinedError) as caught:
        await run(tmp_path, scripted, ScriptedOwner(DeclinedError.of_permission("deploy", ("*",))))
    assert caught.value.type == "permission.rejected"
    assert scripted.executions == 0


@tool
async def nested(value: str) -> None:
    """Be declined in a child task, beside another that waits."""

    async def child() -> None:
        raise DeclinedError.of_question()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        nursery.start_soon(child)


async def test_a_declined_call_inside_the_tools_own_nursery_still_passes_through(tmp_path: Path) -> None:
    tools = make_registry(tmp_path, nested).materialise(HERE, "build")
    with pytest.raises(DeclinedError) as caught:
        await tools.run("nested", {"value": ""}, "", make_context())
    assert caught.value.type == "question.rejected"


async def test_where_nobody_attends_the_default_agents_rules_hold() -> None:
    await UNATTENDED.authorize("read", ["a"])
    for action in ("shell", "write", "edit"):
        with pytest.raises(PermissionDeniedError):
            await UNATTENDED.authorize(action, ["a"])
    with pytest.raises(ToolFailure, match="Nobody"):
        await UNATTENDED.ask(())


def test_a_denial_shows_what_was_asked_for_and_not_all_of_it() -> None:
    message = str(PermissionDeniedError("shell", ["x" * 10_000, "b", "c", "d"]))
    assert len(message) < 500
    assert "`b`" in message


# --- shell commands as resources ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "parts", "saved"),
    [
        ("ls -l", (), ("ls *",)),
        ("git commit -m 'a; b | c'", (), ("git *",)),
        ('echo "a > b" 2>&1', (), ("echo *",)),
        ("make test > /dev/null 2>&1", (), ("make *",)),
        ("ls; rm -rf x", ("ls", "rm -rf x"), ("ls *", "rm *")),
        ("ls && rm x || cat y", ("ls", "rm x", "cat y"), ("ls *", "rm *", "cat *")),
        ("ls | wc -l", ("ls", "wc -l"), ("ls *", "wc *")),
        ("ls 2>&1 | wc", ("ls", "wc"), ("ls *", "wc *")),
        ("ls\nrm x", ("ls", "rm x"), ("ls *", "rm *")),
        ("ls & rm x", ("ls", "rm x"), ("ls *", "rm *")),
        ("echo x > ~/.profile", ("echo x", "> ~/.profile"), ("echo *",)),
        ("echo x >> a", ("echo x", "> a"), ("echo *",)),
        ("ls &>/dev/null rm", ("ls", "rm"), ("ls *", "rm *")),
        ("ls $(rm x)", ("ls", "rm x"), ("ls *", "rm *")),
        ("ls `rm x`", ("ls", "rm x"), ("ls *", "rm *")),
        ('echo "$(echo ")"; rm x; echo ")"', None, ("rm *",)),
        ("cat <<E\n'\nE\nrm x", None, ("rm *",)),
        ("ls # '\nrm x", None, ("rm *",)),
        ("echo $'\\''; rm x; echo ''", None, ("rm *",)),
        ("A=1 ls", (), ()),
        ("sudo rm x", (), ()),
        ("/usr/bin/env rm x", (), ()),
        ("'ls' x", (), ()),
        ("* x", (), ()),
        ("if true; then rm x; fi", ("if true", "then rm x", "fi"), ("fi *",)),
    ],
)
def test_a_command_is_judged_part_by_part(command: str, parts: tuple[str, ...] | None, saved: tuple[str, ...]) -> None:
    whole, *found = resources(command)
    assert whole == command
    if parts is None:
        assert any(one.startswith("rm x") for one in found), found
        assert set(saved) <= set(patterns_to_save(command))
    else:
        assert tuple(found) == parts
        assert patterns_to_save(command) == saved


def test_an_approved_command_lets_no_other_one_through() -> None:
    rules = built_in_rules("build")
    saved = [approval("shell", pattern) for pattern in patterns_to_save("ls -l | wc -l")]
    for allowed in ("ls", "ls x | wc", "wc -c 'a;b'", "ls -l 2>/dev/null"):
        assert decide(rules, saved, "shell", resources(allowed)) == "allow", allowed
    for asked in ("ls; rm x", "ls && rm x", "ls $(rm x)", "ls > .bashrc", "lsx", "ls\nrm", "ls | sh", "ls & rm", 'ls "`rm x`"'):
        assert decide(rules, saved, "shell", resources(asked)) == "ask", asked
    assert decide([*rules, rule("shell", "rm *", "deny")], saved, "shell", resources("ls; rm x")) == "deny"


pieces = st.sampled_from([*"'\"\\ab ;|&$()#`<>\n", "hit", " hit ", "; hit", "$(", "<<a\n", "2>&1", ">/dev/null"])


@settings(max_examples=60, deadline=None)
@given(st.lists(pieces, min_size=1, max_size=9))
def test_no_command_that_a_shell_runs_goes_unseen(tmp_path_factory: pytest.TempPathFactory, parts: list[str]) -> None:
    """Every script in which `sh` runs the program `hit` shows a part that begins with it, or asks as a whole."""
    command = "a " + "".join(parts)
    folder = tmp_path_factory.getbasetemp() / "unseen"
    folder.mkdir(exist_ok=True)
    mark = folder / "mark"
    (folder / "hit").write_text(f"#!/bin/sh\n: > {shlex.quote(str(mark))}\n")
    os.chmod(folder / "hit", 0o755)
    mark.unlink(missing_ok=True)
    subprocess.run(
        ["/bin/sh", "-c", f"cd {shlex.quote(str(folder))} && {{ a() {{ :; }}; b() {{ :; }}; :; }}\n{command}"],
        env={"PATH": str(folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=5,
        check=False,
    )
    if mark.exists():
        saved = [approval("shell", pattern) for pattern in ("a *", "b *", "ab *", "ba *")]
        assert decide(built_in_rules("build"), saved, "shell", resources(command)) == "ask"
