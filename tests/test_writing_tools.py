"""`write` and `edit` on real files: what they change, what they leave alone, and that nothing leads them outside."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from steerway.actors.blocking import Threads
from steerway.actors.tools.confinement import Confinement
from steerway.actors.tools.replacing import look, replace
from steerway.actors.tools.settlement import Failed
from steerway.actors.tools.stopping import Abandoned, Stop
from steerway.actors.tools.tool import ToolFailure, ToolOutput
from steerway.actors.tools.writing import Turns, edit_tool, write_tool
from steerway.protocol.values import TextContent
from support.tools import ScriptedOwner, make_context, make_registry


class Site:
    """A location with the tools at work, somebody who allows them, and something outside."""

    def __init__(self, root: Path) -> None:
        self.here = root / "here"
        self.outside = root / "outside"
        for folder in (self.here, self.outside):
            folder.mkdir()
        self.secret = self.outside / "secret"
        self.secret.write_text("the secret\n")
        turns = Turns()
        self.registry = make_registry(root / "outputs", write_tool(Confinement, turns), edit_tool(Confinement, turns))
        self.owner = ScriptedOwner()

    def file(self, name: str, content: str | bytes = "") -> Path:
        path = self.here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    async def call(self, name: str, **arguments: Any) -> ToolOutput | Failed:
        context = make_context(self.here, session=self.owner)
        tools = self.registry.materialise(context.location, context.agent)
        return await tools.run(name, arguments, "", context)

    async def done(self, name: str, **arguments: Any) -> tuple[str, Any]:
        output = await self.call(name, **arguments)
        assert isinstance(output, ToolOutput), output
        (item,) = output.content
        assert isinstance(item, TextContent)
        return item.text, output.structured

    async def refusal(self, name: str, **arguments: Any) -> str:
        result = await self.call(name, **arguments)
        assert isinstance(result, Failed), result
        assert result.error.type == "tool.execution"
        return result.error.message

    def entries(self) -> list[str]:
        return sorted(str(path.relative_to(self.here)) for path in self.here.rglob("*"))


@pytest.fixture
def place(tmp_path: Path) -> Site:
    return Site(tmp_path)


# --- write --------------------------------------------------------------------------------------------------------


async def test_a_new_file_is_written_with_its_directories(place: Site) -> None:
    text, structured = await place.done("write", path="src/deep/a.txt", content="héllo\r\n")
    assert (place.here / "src/deep/a.txt").read_bytes() == "héllo\r\n".encode()
    assert structured == {"path": "src/deep/a.txt", "bytes": 8, "created": True}
    assert "src/deep/a.txt" in text
    assert place.entries() == ["src", "src/deep", "src/deep/a.txt"]
    await place.done("write", path=str(place.here / "b"), content="")
    assert (place.here / "b").read_bytes() == b""


async def test_an_existing_file_is_replaced_as_a_whole_and_keeps_its_mode(place: Site) -> None:
    path = place.file("run.sh", "old\n" * 1_000)
    path.chmod(0o750)
    before = path.stat()
    _, structured = await place.done("write", path="run.sh", content="new")
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o750
    assert path.stat().st_ino != before.st_ino
    assert structured["created"] is False
    assert place.entries() == ["run.sh"]


async def test_a_new_file_gets_the_mode_that_the_process_gives(place: Site) -> None:
    await place.done("write", path="a", content="x")
    (place.here / "usual").touch()
    assert (place.here / "a").stat().st_mode == (place.here / "usual").stat().st_mode


async def test_a_surrogate_is_repaired(place: Site) -> None:
    await place.done("write", path="a", content="x\ud800y")
    assert (place.here / "a").read_text() == "x\ufffdy"


async def test_whoever_is_asked_sees_what_would_be_written(place: Site) -> None:
    place.file("b", "one")
    await place.done("write", path="a", content="x" * 10_000)
    await place.done("edit", path="./b", old_string="one", new_string="two")
    write, edit = place.owner.asked
    assert (write.action, write.resources, write.save) == ("write", ("a",), ("*",))
    assert write.metadata is not None
    assert write.metadata["created"] is True
    assert len(write.metadata["content"]) == 4_001
    assert (edit.action, edit.resources) == ("edit", ("b",))
    assert edit.metadata == {"path": "b", "old": "one", "new": "two", "replacements": 1}


async def test_without_permission_nothing_is_touched(place: Site) -> None:
    place.owner.refusal = ToolFailure("no")
    path = place.file("a", "one")
    assert await place.refusal("write", path="sub/b", content="x") == "no"
    assert await place.refusal("edit", path="a", old_string="one", new_string="two") == "no"
    assert path.read_text() == "one"
    assert place.entries() == ["a"]


# --- edit ---------------------------------------------------------------------------------------------------------


async def test_text_that_is_there_once_is_replaced_exactly(place: Site) -> None:
    path = place.file("a.py", "def f():\n    return 1\n\n\ndef g():\n    return 2\n")
    _, structured = await place.done("edit", path="a.py", old_string="    return 1\n", new_string="    return (.*)\\1\n")
    assert path.read_text() == "def f():\n    return (.*)\\1\n\n\ndef g():\n    return 2\n"
    assert structured == {"path": "a.py", "replacements": 1}


async def test_ambiguous_or_missing_text_changes_nothing_and_asks_nobody(place: Site) -> None:
    path = place.file("a", "x = 1\nx = 1\n")
    assert "2 times" in await place.refusal("edit", path="a", old_string="x = 1", new_string="y")
    assert "is not in" in await place.refusal("edit", path="a", old_string="x  = 1", new_string="y")
    assert "the same" in await place.refusal("edit", path="a", old_string="x", new_string="x")
    assert "does not exist" in await place.refusal("edit", path="b", old_string="x", new_string="y")
    assert path.read_text() == "x = 1\nx = 1\n"
    assert place.owner.asked == []
    text, _ = await place.done("edit", path="a", old_string="x = 1", new_string="y", replace_all=True)
    assert "2 times" in text
    assert path.read_text() == "y\ny\n"


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        ("a\r\nb\r\nc\r\n", "a\nb", "x\ny\nz", "x\r\ny\r\nz\r\nc\r\n"),
        ("a\r\nb\r\nc\r\n", "a\r\nb", "x\r\ny", "x\r\ny\r\nc\r\n"),
        ("a\nb\nc\n", "a\r\nb", "x\r\ny", "x\ny\nc\n"),
        ("a\r\nb\nc\n", "a\r\nb\n", "x\n", "x\nc\n"),
        ("\ufeffa\r\nb", "b", "x\n", "\ufeffa\r\nx\r\n"),
        ("no end", "end", "more", "no more"),
    ],
)
async def test_line_endings_stay_as_they_are(place: Site, before: str, old: str, new: str, after: str) -> None:
    path = place.file("a", before)
    await place.done("edit", path="a", old_string=old, new_string=new)
    assert path.read_bytes().decode() == after


async def test_what_is_no_utf_8_or_too_large_is_left_alone(place: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    path = place.file("latin", "caf\xe9".encode("latin-1"))
    assert "not UTF-8" in await place.refusal("edit", path="latin", old_string="caf", new_string="x")
    assert path.read_bytes() == b"caf\xe9"
    monkeypatch.setattr("steerway.actors.tools.replacing.MAX_CONTENT_BYTES", 10)
    monkeypatch.setattr("steerway.actors.tools.writing.MAX_CONTENT_BYTES", 10)
    large = place.file("large", "x" * 11)
    assert "larger than" in await place.refusal("edit", path="large", old_string="x", new_string="y")
    assert "at most" in await place.refusal("write", path="new", content="x" * 11)
    await place.done("write", path="large", content="small")
    assert large.read_text() == "small"


# --- what happens meanwhile ---------------------------------------------------------------------------------------


async def test_a_file_that_changed_while_somebody_was_asked_is_not_replaced(place: Site) -> None:
    path = place.file("a", "one")

    def same_size_and_time() -> None:
        before = path.stat()
        path.write_text("ONE")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    place.owner.meanwhile = same_size_and_time
    assert "changed by somebody else" in await place.refusal("edit", path="a", old_string="one", new_string="two")
    assert path.read_text() == "ONE"
    place.owner.meanwhile = lambda: place.file("b", "theirs")
    assert "changed by somebody else" in await place.refusal("write", path="b", content="ours")
    assert (place.here / "b").read_text() == "theirs"
    place.owner.meanwhile = path.unlink
    assert "changed by somebody else" in await place.refusal("write", path="a", content="ours")
    assert place.entries() == ["b"]


async def test_two_edits_of_one_file_at_once_both_happen(place: Site) -> None:
    path = place.file("a", "one two three")
    (place.here / "alias").symlink_to("a")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: place.done("edit", path="a", old_string="one", new_string="1"))
        nursery.start_soon(lambda: place.done("edit", path="./a", old_string="two", new_string="2"))
        nursery.start_soon(lambda: place.done("edit", path="alias", old_string="three", new_string="3"))
    assert path.read_text() == "1 2 3"


async def test_a_file_is_free_again_when_the_call_that_waits_for_permission_is_cancelled(place: Site) -> None:
    class Held(ScriptedOwner):
        async def authorize(self, *_: Any, **__: Any) -> None:
            await trio.sleep_forever()

    path = place.file("a", "one")
    allowing, place.owner = place.owner, Held()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: place.call("edit", path="a", old_string="one", new_string="lost"))
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    place.owner = allowing
    await place.done("edit", path="a", old_string="one", new_string="two")
    assert path.read_text() == "two"


def test_a_replacement_that_nobody_waits_for_any_more_does_not_happen(place: Site) -> None:
    path = place.file("a", "one")
    stop = Stop()
    stop.set()
    with pytest.raises(Abandoned):
        replace(look(Confinement(str(place.here)), "a"), b"two", stop)
    assert path.read_text() == "one"
    assert place.entries() == ["a"]


async def test_a_failed_replacement_leaves_nothing_behind(place: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    path = place.file("a", "one")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert "No space left" in await place.refusal("write", path="a", content="two")
    assert path.read_text() == "one"
    assert place.entries() == ["a"]


async def test_it_works_in_threads(place: Site) -> None:
    context = make_context(place.here, session=place.owner, blocking=Threads())
    tools = place.registry.materialise(context.location, context.agent)
    assert isinstance(await tools.run("write", {"path": "a", "content": "x"}, "", context), ToolOutput)
    assert (place.here / "a").read_text() == "x"


# --- confinement --------------------------------------------------------------------------------------------------


async def test_nothing_outside_is_written_by_any_way(place: Site) -> None:
    (place.here / "link").symlink_to(place.secret)
    (place.here / "new-link").symlink_to(place.outside / "new")
    (place.here / "way").symlink_to(place.outside)
    (place.here / "up").symlink_to("..")
    for path in (
        "../outside/secret",
        "../new",
        str(place.secret),
        "link",
        "new-link",
        "way/new",
        "way/sub/new",
        "up/outside/new",
        "/etc/steerway-test",
        "missing/../../new",
        str(place.here) + "x",
    ):
        assert "outside the location" in await place.refusal("write", path=path, content="x"), path
        assert "outside the location" in await place.refusal("edit", path=path, old_string="the", new_string="x"), path
    assert place.secret.read_text() == "the secret\n"
    assert sorted(os.listdir(place.outside)) == ["secret"]
    assert place.owner.asked == []
    assert "not a usable path" in await place.refusal("write", path="a\x00b", content="")


async def test_links_inside_are_followed_and_stay_links(place: Site) -> None:
    target = place.file("real/a", "one")
    (place.here / "link").symlink_to("real/a")
    (place.here / "dangling").symlink_to("real/new")
    await place.done("edit", path="link", old_string="one", new_string="two")
    await place.done("write", path="dangling", content="made")
    assert target.read_text() == "two"
    assert (place.here / "real/new").read_text() == "made"
    assert (place.here / "link").is_symlink()
    assert (place.here / "dangling").is_symlink()
    assert place.owner.asked[0].resources == ("real/a",)


async def test_nothing_inside_a_git_directory_is_written(place: Site) -> None:
    place.file(".git/config", "[core]\n")
    place.file("vendored/.git", "gitdir: elsewhere\n")
    (place.here / "disguise").symlink_to(".git")
    for path in (".git/config", ".git/hooks/pre-commit", "vendored/.git", "vendored/.GIT/x", "disguise/config", ".git"):
        assert ".git" in await place.refusal("write", path=path, content="x"), path
    assert (place.here / ".git/config").read_text() == "[core]\n"
    await place.done("write", path=".gitignore", content="*.pyc\n")


async def test_a_link_put_in_place_after_the_look_leads_nowhere(place: Site) -> None:
    place.file("folder/a", "one")

    def swap_the_folder() -> None:
        (place.here / "folder").rename(place.here / "moved")
        (place.here / "folder").symlink_to(place.outside)

    place.owner.meanwhile = swap_the_folder
    await place.refusal("write", path="folder/a", content="two")
    assert sorted(os.listdir(place.outside)) == ["secret"]

    def swap_the_file() -> None:
        (place.here / "moved/a").unlink()
        (place.here / "moved/a").symlink_to(place.secret)

    place.owner.meanwhile = swap_the_file
    await place.refusal("write", path="moved/a", content="two")
    assert place.secret.read_text() == "the secret\n"


async def test_a_hard_link_is_read_and_a_write_does_not_reach_its_other_name(place: Site) -> None:
    os.link(place.secret, place.here / "inside")
    await place.done("edit", path="inside", old_string="secret", new_string="public")
    assert (place.here / "inside").read_text() == "the public\n"
    assert place.secret.read_text() == "the secret\n"


async def test_what_is_no_regular_file_or_is_protected_is_left_alone(place: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(place.here / "pipe")
    place.file("folder/a")
    place.file("plain")
    with trio.fail_after(5):
        assert "not a regular file" in await place.refusal("write", path="pipe", content="x")
        assert "not a regular file" in await place.refusal("edit", path="pipe", old_string="x", new_string="y")
    assert "is a directory" in await place.refusal("write", path="folder", content="x")
    assert "is a directory" in await place.refusal("write", path=".", content="x")
    assert "not a directory" in await place.refusal("write", path="plain/under", content="x")
    monkeypatch.setattr(os, "access", lambda *_, **__: False)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    assert "may not be written" in await place.refusal("write", path="plain", content="x")
