"""The built-in tools on real files: what they show, and that nothing leads them out of the location."""

from __future__ import annotations

import os
import socket
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from steerway.actors.blocking import Threads
from steerway.actors.tools.built_in import built_in_tools
from steerway.actors.tools.confinement import Confinement, Place
from steerway.actors.tools.patterns import PathPattern
from steerway.actors.tools.settlement import Failed, Succeeded
from steerway.actors.tools.stopping import Abandoned, Stop, run_stoppable
from steerway.actors.tools.tool import ToolFailure
from steerway.actors.tools.walking import Walk
from steerway.protocol.values import FileContent, TextContent
from support.tools import make_context, make_registry

NOON = datetime(2031, 5, 6, 12, 30, 15, tzinfo=timezone(timedelta(hours=2), "CEST"))


class Site:
    """A location, a folder of managed outputs, something outside, and the built-in tools at work there."""

    def __init__(self, root: Path) -> None:
        self.here = root / "here"
        self.outputs = root / "outputs"
        self.outside = root / "outside"
        for folder in (self.here, self.outputs, self.outside):
            folder.mkdir()
        (self.outside / "secret").write_text("the secret\n")
        tools = built_in_tools(now=lambda: NOON, outputs_directory=str(self.outputs))
        self.registry = make_registry(self.outputs, *tools)

    def file(self, name: str, content: str | bytes = "") -> Path:
        path = self.here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    async def call(self, name: str, **arguments: Any) -> Succeeded | Failed:
        context = make_context(self.here)
        tools = self.registry.materialise(context.location, context.agent)
        return await tools.bound(await tools.run(name, arguments, "", context), context)

    async def text(self, name: str, **arguments: Any) -> str:
        settlement = await self.call(name, **arguments)
        assert isinstance(settlement, Succeeded), settlement
        assert settlement.managed_outputs is None
        (item,) = settlement.content
        assert isinstance(item, TextContent)
        return item.text

    async def refusal(self, name: str, **arguments: Any) -> str:
        settlement = await self.call(name, **arguments)
        assert isinstance(settlement, Failed), settlement
        assert settlement.error.type == "tool.execution"
        return settlement.error.message


@pytest.fixture
def place(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def test_the_date_is_local_with_its_offset(place: Site) -> None:
    assert await place.text("date") == "Tuesday, 2031-05-06T12:30:15+02:00 (CEST)"


# --- read ---------------------------------------------------------------------------------------------------------


async def test_a_file_is_shown_with_line_numbers(place: Site) -> None:
    place.file("sub/a.txt", "one\r\ntwo\n\nfour")
    shown = "1: one\n2: two\n3: \n4: four"
    assert await place.text("read", path="sub/a.txt") == shown
    assert await place.text("read", path=str(place.here / "sub" / "a.txt")) == shown
    assert await place.text("read", path="sub/../sub/./a.txt") == shown


async def test_pages_follow_one_another_without_gap(place: Site) -> None:
    place.file("long", "".join(f"line {number}\n" for number in range(1, 5_001)))
    seen: list[str] = []
    offset = 1
    while True:
        page = await place.text("read", path="long", offset=offset)
        assert len(page.encode()) <= 51_200
        assert page.count("\n") < 2_000
        body, _, note = page.partition("\n\n(")
        seen += body.split("\n")
        if not note:
            break
        offset = int(note.rstrip(")").rsplit(" ", 1)[1])
    assert seen == [f"{number}: line {number}" for number in range(1, 5_001)]


async def test_a_page_ends_where_asked(place: Site) -> None:
    place.file("a", "1\n2\n3\n4\n")
    assert await place.text("read", path="a", offset=2, limit=2) == "2: 2\n3: 3\n\n(more lines follow: go on with offset 4)"
    assert await place.text("read", path="a", offset=3, limit=2) == "3: 3\n4: 4"
    assert "has 4 lines" in await place.refusal("read", path="a", offset=5)


async def test_a_page_of_long_lines_keeps_the_byte_limit_and_cuts_each_line(place: Site) -> None:
    place.file("wide", ("é" * 5_000 + "\n") * 100)
    page = await place.text("read", path="wide")
    assert len(page.encode()) <= 51_200
    assert page.startswith("1: " + "é" * 2_000 + "… (the line goes on)\n2: ")
    assert "go on with offset 13" in page


async def test_a_huge_file_is_not_read_whole(place: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    path = place.file("huge", "line\n" * 100_000)
    os.truncate(path, 1 << 40)  # sparse: reading it whole would take for ever
    read: list[int] = []
    really = os.read

    def counting(fd: int, size: int) -> bytes:
        data = really(fd, size)
        read.append(len(data))
        return data

    monkeypatch.setattr(os, "read", counting)
    assert (await place.text("read", path="huge", offset=50_000, limit=1)).startswith("50000: line\n")
    assert sum(read) < 1_000_000


async def test_a_single_endless_line_is_given_up(place: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steerway.actors.tools.reading.MAX_SCAN_BYTES", 1 << 20)
    place.file("endless", "x" * (3 << 20))
    page = await place.text("read", path="endless")
    assert page.startswith("1: " + "x" * 2_000 + "… (the line goes on)\n\n(only the first ")
    assert "not within the first" in await place.refusal("read", path="endless", offset=2)


async def test_binary_files_are_refused_and_images_become_media(place: Site) -> None:
    place.file("b", b"\x7fELF\x00\x01")
    place.file("noise", bytes(range(128, 256)) * 100)
    place.file("latin", "caf\xe9 et th\xe9\n".encode("latin-1"))
    png = b"\x89PNG\r\n\x1a\n" + b"\x00" * 100_000
    place.file("a.png", png)
    assert "binary file of 6 bytes" in await place.refusal("read", path="b")
    assert "binary file" in await place.refusal("read", path="noise")
    assert await place.text("read", path="latin") == "1: caf\ufffd et th\ufffd"
    settlement = await place.call("read", path="a.png")
    assert settlement == Succeeded((FileContent(data=png, mime="image/png", name="a.png"),))


async def test_a_pdf_becomes_a_medium_whatever_it_is_called(place: Site) -> None:
    pdf = b"%PDF-1.7\n" + b"all of it could be read as text\n" * 10
    place.file("paper", pdf)
    settlement = await place.call("read", path="paper")
    assert settlement == Succeeded((FileContent(data=pdf, mime="application/pdf", name="paper"),))


async def test_an_image_or_a_pdf_that_is_too_large_is_refused(place: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steerway.actors.tools.reading.MAX_MEDIA_BYTES", 1 << 20)
    place.file("a.jpg", b"\xff\xd8\xff" + b"x" * (1 << 20))
    place.file("a.pdf", b"%PDF-" + b"x" * (1 << 20))
    assert "is an image of more than 1 MiB" in await place.refusal("read", path="a.jpg")
    assert "is a PDF of more than 1 MiB" in await place.refusal("read", path="a.pdf")


async def test_directories_list_their_entries_in_pages(place: Site) -> None:
    place.file("b", "")
    place.file("a/inner", "")
    (place.here / "c").symlink_to("/etc")
    assert await place.text("read", path=".") == "a/\nb\nc@"
    assert await place.text("read", path=".", offset=2, limit=1) == "b\n\n(more entries follow: go on with offset 3)"
    assert "has 3 entries" in await place.refusal("read", path=".", offset=4)
    (place.here / "empty").mkdir()
    assert await place.text("read", path="empty") == "(empty directory)"
    assert await place.text("read", path="b") == "(empty file)"


async def test_pipes_sockets_and_devices_are_refused_without_waiting(place: Site) -> None:
    os.mkfifo(place.here / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place.here / "socket"))
        for name in ("pipe", "socket"):
            assert "neither a file nor a directory" in await place.refusal("read", path=name)
    with pytest.raises(ToolFailure, match="neither"), Confinement("/").open(Place("/", ("dev", "null"))):
        pass


# --- confinement --------------------------------------------------------------------------------------------------


async def test_nothing_outside_is_read_by_any_way(place: Site) -> None:
    (place.here / "link").symlink_to(place.outside / "secret")
    (place.here / "way").symlink_to(place.outside)
    (place.here / "up").symlink_to("..")
    (place.here / "loop").symlink_to("loop")
    for path in (
        "../outside/secret",
        str(place.outside / "secret"),
        "link",
        "way/secret",
        "up/outside/secret",
        "/etc/passwd",
        str(place.here) + "/../outside/secret",
        str(place.here) + "x",
        "..",
    ):
        message = await place.refusal("read", path=path)
        assert "outside the location" in message, path
        assert "the secret" not in message
    assert "outside the location" in await place.refusal("read", path="/nowhere/at/all")
    await place.refusal("read", path="loop")
    assert "not a usable path" in await place.refusal("read", path="a\x00b")
    await place.refusal("read", path="x" * 10_000)


async def test_links_inside_are_followed_and_a_linked_location_is_fine(tmp_path: Path) -> None:
    place = Site(tmp_path)
    place.file("real/a", "inside\n")
    (place.here / "link").symlink_to("real/a")
    assert await place.text("read", path="link") == "1: inside"
    (tmp_path / "alias").symlink_to(place.here)
    context = make_context(tmp_path / "alias")
    tools = place.registry.materialise(context.location, context.agent)
    settlement = await tools.bound(await tools.run("read", {"path": "real/a"}, "", context), context)
    assert settlement == Succeeded((TextContent(text="1: inside"),))


async def test_managed_outputs_are_readable_and_searchable_by_absolute_path(place: Site) -> None:
    kept = place.outputs / "tool_1"
    kept.write_text("kept text\n")
    assert await place.text("read", path=str(kept)) == "1: kept text"
    assert await place.text("grep", pattern="kept", path=str(kept)) == f"{kept}:1: kept text"
    assert await place.text("glob", pattern="tool_*", path=str(place.outputs)) == str(kept)


@pytest.mark.parametrize("swapped", ["file", "directory"])
def test_a_link_put_in_place_after_the_check_leads_nowhere(place: Site, swapped: str) -> None:
    place.file("folder/secret", "mine\n")
    confinement = Confinement(str(place.here))
    found = confinement.resolve("folder/secret")
    (place.here / "folder" / "secret").unlink()
    if swapped == "file":
        (place.here / "folder" / "secret").symlink_to(place.outside / "secret")
    else:
        (place.here / "folder").rmdir()
        (place.here / "folder").symlink_to(place.outside)
    with pytest.raises(ToolFailure), confinement.open(found):
        pass


async def test_what_is_missing_or_not_permitted_is_said(place: Site) -> None:
    place.file("plain", "")
    assert "does not exist" in await place.refusal("read", path="missing")
    assert "does not exist" in await place.refusal("read", path="plain/under")
    gone = make_context(place.here / "gone")
    tools = place.registry.materialise(gone.location, gone.agent)
    settlement = await tools.bound(await tools.run("read", {"path": "."}, "", gone), gone)
    assert isinstance(settlement, Failed)


# --- glob ---------------------------------------------------------------------------------------------------------


async def test_glob_finds_by_name_in_order_without_following_links(place: Site) -> None:
    for name in ("a.py", "b.txt", "src/c.py", "src/deep/d.py", "src/deep/e.ts", ".git/hooks/x.py", ".hidden/y.py"):
        place.file(name)
    (place.here / "way").symlink_to(place.outside)
    (place.here / "z.py").symlink_to(place.outside / "secret")
    assert await place.text("glob", pattern="**/*.py") == ".hidden/y.py\na.py\nsrc/c.py\nsrc/deep/d.py\nz.py"
    assert await place.text("glob", pattern="*.{py,txt}") == "a.py\nb.txt\nz.py"
    assert await place.text("glob", pattern="deep/*", path="src") == "src/deep/d.py\nsrc/deep/e.ts"
    assert await place.text("glob", pattern="way/*") == "(nothing found)"
    assert await place.text("glob", pattern="**", limit=2) == ".hidden/y.py\na.py\n\n(only the first 2 results are shown)"
    assert "outside" in await place.refusal("glob", pattern="*", path="way")
    assert "cannot lead upwards" in await place.refusal("glob", pattern="../*")
    assert "cannot lead upwards" in await place.refusal("glob", pattern="/etc/*")


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("**/a", "a", True),
        ("**/a", "x/y/a", True),
        ("x/**", "x/y/z", True),
        ("x/**/z", "x/z", True),
        ("**/x/**/z", "a/x/b/c/z", True),
        ("*", "a/b", False),
        ("a?[0-9]", "ab7", True),
        ("a?[!0-9]", "ab7", False),
        ("{a,b}/{c,d}", "b/d", True),
        ("{a,b", "{a,b", True),
        ("./a", "a", True),
    ],
)
def test_patterns_match_whole_paths(pattern: str, path: str, *, expected: bool) -> None:
    assert PathPattern(pattern).matches(path.split("/")) is expected


def test_patterns_that_would_explode_are_refused_or_quick() -> None:
    with pytest.raises(ToolFailure, match="alternatives"):
        PathPattern("{a,b}" * 20)
    assert not PathPattern("**/" * 200 + "*a" * 100 + "b").matches(["a" * 255] * 200)


# --- grep ---------------------------------------------------------------------------------------------------------


async def test_grep_finds_lines_in_text_files_only(place: Site) -> None:
    place.file("a.txt", "needle\nhay\nNeedle\n")
    place.file("src/b.py", "x = 'needle'\n")
    place.file("c.bin", b"needle\x00")
    place.file(".git/d", "needle\n")
    (place.here / "link").symlink_to(place.outside)
    assert await place.text("grep", pattern="needle") == "a.txt:1: needle\nsrc/b.py:1: x = 'needle'"
    assert await place.text("grep", pattern="needle", ignore_case=True, include="*.txt") == "a.txt:1: needle\na.txt:3: Needle"
    assert await place.text("grep", pattern="^x", include="src/*.py") == "src/b.py:1: x = 'needle'"
    assert await place.text("grep", pattern="secret") == "(nothing found)"
    assert await place.text("grep", pattern="e", limit=1) == "a.txt:1: needle\n\n(only the first 1 results are shown)"
    assert "no regular expression" in await place.refusal("grep", pattern="(")


async def test_an_expression_that_would_take_for_ever_is_given_up(place: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steerway.actors.tools.searching.MATCH_SECONDS", 0.02)
    place.file("a", "a" * 60 + "\n")
    assert "takes too long" in await place.refusal("grep", pattern=r"(a|aa)+(b|a)+c\1$")


async def test_a_search_has_a_budget_of_bytes_and_of_entries(place: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steerway.actors.tools.searching.MAX_SEARCH_BYTES", 100_000)
    place.file("a", "hay\n" * 100_000 + "needle\n")
    assert "only the first 100000 bytes" in await place.text("grep", pattern="needle")
    monkeypatch.setattr("steerway.actors.tools.walking.MAX_ENTRIES", 5)
    for number in range(10):
        place.file(f"many/{number}")
    assert "not all were looked at" in await place.text("glob", pattern="**/9")


def test_a_walk_stops_when_nobody_waits_any_more(place: Site) -> None:
    place.file("a")
    stop = Stop()
    stop.set()
    confinement = Confinement(str(place.here))
    with pytest.raises(Abandoned):
        list(Walk(confinement, confinement.resolve("."), stop))


async def test_an_abandoned_search_is_told_to_stop() -> None:
    context = make_context(blocking=Threads())
    started = trio.Event()
    token = trio.lowlevel.current_trio_token()
    stopped = trio.Event()

    def work(stop: Stop) -> None:
        token.run_sync_soon(started.set)
        try:
            while True:
                stop.check()
        except Abandoned:
            token.run_sync_soon(stopped.set)
            raise

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_stoppable, context, work)
        await started.wait()
        nursery.cancel_scope.cancel()
    await stopped.wait()
    await wait_all_tasks_blocked()
