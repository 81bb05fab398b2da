"""Bounded tool output, and the files that keep what did not fit."""

from __future__ import annotations

import itertools
import os
import random
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from steerway.actors.blocking import Inline, Threads, Worker
from steerway.actors.tools.bounding import OutputBounds
from steerway.actors.tools.capture import OutputLimits, TextCapture
from steerway.actors.tools.settlement import Succeeded
from steerway.actors.tools.tool import ToolContext, ToolOutput
from steerway.protocol.values import FileContent, ManagedOutput, TextContent
from steerway.storage.outputs import OutputFile, OutputFiles
from support.tools import ScriptedTool, byte_tool, make_context, make_files, make_registry, printing_tool

T = TypeVar("T")
DAY_MS = 24 * 60 * 60 * 1000


async def succeed(
    scripted: ScriptedTool, folder: Path, *, lost: list[str] | None = None, files: OutputFiles | None = None
) -> Succeeded:
    def on_lost(_: ToolContext, reason: str) -> None:
        assert lost is not None
        lost.append(reason)

    registry = make_registry(folder, scripted.tool, on_lost=on_lost, files=files)
    context = make_context("/here")
    tools = registry.materialise(context.location, context.agent)
    settlement = await tools.bound(await tools.run(scripted.name, {}, "{}", context), context)
    assert isinstance(settlement, Succeeded)
    return settlement


def shown(settlement: Succeeded) -> str:
    item = settlement.content[0]
    assert isinstance(item, TextContent)
    return item.text


def kept(settlement: Succeeded) -> ManagedOutput:
    assert settlement.managed_outputs is not None
    (managed,) = settlement.managed_outputs
    return managed


def content(settlement: Succeeded) -> str:
    return Path(kept(settlement).path).read_bytes().decode()


def lines_of(text: str) -> int:
    return text.count("\n") + (0 if text.endswith("\n") or not text else 1)


# --- what the model sees ------------------------------------------------------------------------------------------


async def test_output_within_both_limits_is_left_alone(tmp_path: Path) -> None:
    text = "x" * 24 + "\n"
    settlement = await succeed(printing_tool("t", text * 2_000), tmp_path / "outputs")
    assert settlement == Succeeded((TextContent(text=text * 2_000),))
    assert not (tmp_path / "outputs").exists()


async def test_too_many_lines_leave_head_and_tail_with_a_marker_between(tmp_path: Path) -> None:
    whole = "".join(f"line {number}\n" for number in range(1, 2_002))
    settlement = await succeed(printing_tool("t", whole), tmp_path)
    preview = shown(settlement)
    head, marker, tail = preview.split("\n\n")
    assert head.split("\n") == [f"line {number}" for number in range(1, 999)]
    assert tail == "".join(f"line {number}\n" for number in range(1_004, 2_002))
    assert "5 lines, 49 bytes left out" in marker
    assert kept(settlement).path in marker
    assert kept(settlement) == ManagedOutput(path=kept(settlement).path, bytes=len(whole), lines=2_001, complete=True)
    assert content(settlement) == whole
    assert settlement.lossy is None


async def test_five_megabytes_of_random_bytes_in_one_line_become_bounded_valid_text(tmp_path: Path) -> None:
    data = random.Random(1).randbytes(5 * 1024 * 1024).replace(b"\n", b"")
    settlement = await succeed(printing_tool("t", data), tmp_path)
    preview = shown(settlement)
    assert 51_000 < len(preview.encode()) <= 51_200
    assert lines_of(preview) <= 2_000
    assert not any(ord(character) < 32 and character not in "\t\n\r" for character in preview)
    managed = kept(settlement)
    assert managed.path in preview
    assert managed.complete
    whole = content(settlement)
    assert (len(whole.encode()), lines_of(whole)) == (managed.bytes, managed.lines)
    assert preview.startswith(whole[:1_000])
    assert preview.endswith(whole[-1_000:])


async def test_one_limit_covers_all_text_together_and_the_file_has_the_exact_concatenation(tmp_path: Path) -> None:
    media = FileContent(data=b"m" * (6 * 1024 * 1024), mime="image/png")
    parts = ("a" * 30_000, "é" * 15_000)
    output = ToolOutput((TextContent(text=parts[0]), media, TextContent(text=parts[1])), {"kept": True})
    settlement = await succeed(ScriptedTool("t", lambda _: output), tmp_path)
    assert len(settlement.content) == 2
    assert settlement.content[1] == media
    assert settlement.structured == {"kept": True}
    assert len(shown(settlement).encode()) <= 51_200
    assert content(settlement) == "".join(parts)


async def test_media_alone_is_never_counted(tmp_path: Path) -> None:
    media = FileContent(data=b"m" * (6 * 1024 * 1024), mime="image/png")
    settlement = await succeed(ScriptedTool("t", lambda _: ToolOutput((media,))), tmp_path / "outputs")
    assert settlement == Succeeded((media,))
    assert not (tmp_path / "outputs").exists()


async def test_structured_only_output_is_previewed_as_json_and_stays_as_it_is(tmp_path: Path) -> None:
    value = {"rows": [{"number": number} for number in range(5_000)]}
    settlement = await succeed(ScriptedTool("t", lambda _: value), tmp_path)
    assert settlement.structured == value
    assert shown(settlement).startswith('{\n  "rows": [\n')
    assert lines_of(shown(settlement)) <= 2_000
    assert '"number": 2500' in content(settlement)


async def test_a_path_the_tool_made_itself_survives(tmp_path: Path) -> None:
    own = ManagedOutput(path="/outputs/tool_own", bytes=10, lines=1, complete=False)
    small = ToolOutput((TextContent(text="see there"),), managed_outputs=(own,), lossy=True)
    settlement = await succeed(ScriptedTool("t", lambda _: small), tmp_path)
    assert (settlement.managed_outputs, settlement.lossy) == ((own,), True)
    large = ToolOutput((TextContent(text="x" * 60_000),), managed_outputs=(own,))
    settlement = await succeed(ScriptedTool("t", lambda _: large), tmp_path)
    assert settlement.managed_outputs is not None
    assert settlement.managed_outputs[0] == own
    assert len(settlement.managed_outputs) == 2


async def test_control_characters_and_lone_surrogates_go(tmp_path: Path) -> None:
    settlement = await succeed(printing_tool("t", "a\x1b[31m\x00b\tc\r\n\ud83d\x85d"), tmp_path)
    assert shown(settlement) == "a[31mb\tc\r\n\ufffdd"


# --- failures to keep it ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("obstacle", ["a file", "a link", "no room"])
async def test_what_cannot_be_kept_is_a_lossy_success_without_a_path_and_a_diagnostic(tmp_path: Path, obstacle: str) -> None:
    folder = tmp_path / "outputs"
    files = make_files(folder)
    if obstacle == "a file":
        folder.write_text("in the way")
    elif obstacle == "a link":
        (tmp_path / "elsewhere").mkdir()
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        files.create = FullDisk  # type: ignore[method-assign]
    lost: list[str] = []
    with capture_logs() as logs:
        settlement = await succeed(byte_tool("t", 60_000), folder, lost=lost, files=files)
    assert settlement.lossy is True
    assert settlement.managed_outputs is None
    assert "could not be kept" in shown(settlement)
    assert len(shown(settlement).encode()) <= 51_200
    assert len(lost) == 1
    assert [line["log_level"] for line in logs] == ["warning"]


class FullDisk(OutputFile):
    """A file on a disk that fills up."""

    def __init__(self) -> None:
        pass

    def write(self, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    def discard(self) -> None:
        pass


class HeldBlocking(Threads):
    """Work that waits until `release` is set, in its thread."""

    def __init__(self) -> None:
        super().__init__()
        self.release = threading.Event()
        self.ended = threading.Event()

    async def run(self, work: Callable[[], T], *, abandon_on_cancel: bool = False) -> T:
        def held() -> T:
            self.release.wait()
            try:
                return work()
            finally:
                self.ended.set()

        return await super().run(held, abandon_on_cancel=abandon_on_cancel)


async def test_keeping_that_takes_too_long_is_given_up_and_its_late_file_removed(tmp_path: Path) -> None:
    blocking = HeldBlocking()
    lost: list[str] = []
    bounds = OutputBounds(make_files(tmp_path), blocking, on_lost=lambda _, reason: lost.append(reason), seconds=0.01)
    output = ToolOutput((TextContent(text="x" * 60_000),))
    try:
        with capture_logs():
            settlement = await bounds.bound(output, make_context())
    finally:
        blocking.release.set()
    assert isinstance(settlement, Succeeded)
    assert settlement.lossy is True
    assert "could not be kept" in shown(settlement)
    assert len(lost) == 1
    await trio.to_thread.run_sync(blocking.ended.wait)
    assert os.listdir(tmp_path) == []
    assert bounds.statistics() == {"outputs_kept": 0, "outputs_lost": 1}


class WatchedBlocking(Inline):
    """Counts what is run through it."""

    def __init__(self) -> None:
        self.runs = 0

    async def run(self, work: Callable[[], T], *, abandon_on_cancel: bool = False) -> T:
        self.runs += 1
        return await super().run(work, abandon_on_cancel=abandon_on_cancel)

    def worker(self, name: str) -> Worker:
        raise NotImplementedError


async def test_small_outputs_need_no_thread_and_large_ones_one_visit(tmp_path: Path) -> None:
    blocking = WatchedBlocking()
    bounds = OutputBounds(make_files(tmp_path), blocking)
    await bounds.bound(ToolOutput((TextContent(text="x"),)), make_context())
    assert blocking.runs == 0
    await bounds.bound(ToolOutput((TextContent(text="x" * 60_000),)), make_context())
    assert blocking.runs == 1


# --- capturing ----------------------------------------------------------------------------------------------------


def test_a_capture_that_reaches_the_cap_is_called_incomplete(tmp_path: Path) -> None:
    files = make_files(tmp_path, max_file_bytes=100_001)
    capture = TextCapture(OutputLimits(), files.create)
    for _ in range(100):
        capture.write("é" * 1_000)
    captured = capture.finish()
    assert captured.managed is not None
    assert captured.managed.complete is False
    assert captured.managed.bytes == 100_000
    assert f"incomplete, only the first 100000 bytes of the text are in {captured.managed.path}" in captured.text
    assert Path(captured.managed.path).read_text() == "é" * 50_000


def test_characters_cut_between_two_pieces_are_put_together() -> None:
    capture = TextCapture(OutputLimits(), None)
    for byte in "a😀é".encode() + b"\xf0\x9f":
        capture.write(bytes([byte]))
    assert capture.finish().text == "a😀é\ufffd"


def test_a_capture_holds_only_head_and_tail_in_memory(tmp_path: Path) -> None:
    capture = TextCapture(OutputLimits(), make_files(tmp_path).create)
    for _ in range(1_000):
        capture.write(b"x" * 10_000)
        held = sum(len(value) for value in vars(capture).values() if isinstance(value, bytearray))
        assert held <= 2 * 51_200
    capture.abandon()
    assert os.listdir(tmp_path) == []


@given(
    text=st.text(alphabet=st.sampled_from("ab\né😀\r"), max_size=400),
    max_lines=st.integers(min_value=1, max_value=30),
    max_bytes=st.integers(min_value=0, max_value=300),
    cuts=st.lists(st.integers(min_value=0, max_value=400), max_size=4),
)
def test_no_text_and_no_limit_makes_a_preview_too_large_or_loses_a_small_text(
    text: str, max_lines: int, max_bytes: int, cuts: list[int]
) -> None:
    capture = TextCapture(OutputLimits(max_lines=max_lines, max_bytes=max_bytes), None)
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    for start, end in itertools.pairwise(places):
        capture.write(text[start:end])
    captured = capture.finish()
    assert len(captured.text.encode()) <= max_bytes
    assert lines_of(captured.text) <= max_lines
    fits = len(text.encode()) <= max_bytes and lines_of(text) <= max_lines
    assert captured.bounded is not fits
    if fits:
        assert captured.text == text
    elif "left out here" in captured.text and captured.text.count("\n\n[output truncated") == 1:
        head, _, rest = captured.text.partition("\n\n[output truncated: ")
        counts, _, tail = rest.partition("could not be kept]\n\n")
        assert text.startswith(head)
        assert text.endswith(tail)
        left_out = int(counts.split(" lines, ")[1].split(" bytes")[0])
        hidden = text[len(head) : len(text) - len(tail)]
        assert len(hidden.encode()) - left_out in (0, 1)  # a head's own line feed is swallowed by the blank line


# --- the files ----------------------------------------------------------------------------------------------------


def test_files_are_private_and_never_overwrite_one_another(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "outputs"
    taken = iter([b"\0" * 16, b"\0" * 16, b"\1" * 16])
    files = OutputFiles(folder, now_ms=lambda: 7, random_bytes=lambda _: next(taken))
    first, second = files.create(), files.create()
    first.write(b"one\n")
    second.write(b"two\nthree")
    one, two = first.keep(), second.keep()
    assert (one.lines, two.lines) == (1, 2)
    assert Path(one.path).read_text() == "one\n"
    assert stat.S_IMODE(os.stat(one.path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert all(name.startswith("tool_") for name in os.listdir(folder))


def test_a_folder_that_others_can_read_is_closed_to_them(tmp_path: Path) -> None:
    folder = tmp_path / "outputs"
    folder.mkdir(mode=0o755)
    make_files(folder).create().discard()
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700


def test_the_sweep_takes_only_old_files_of_ours(tmp_path: Path) -> None:
    now = 100 * DAY_MS
    files = make_files(tmp_path)
    ages = {"tool_old": 8, "tool_new": 6, "other": 80, "tool_folder": 80, "tool_link": 80}
    (tmp_path / "tool_folder").mkdir()
    (tmp_path / "tool_link").symlink_to(tmp_path / "other")
    for name in ("tool_old", "tool_new", "other"):
        (tmp_path / name).touch()
    for name, days in ages.items():
        moment = (now - days * DAY_MS) * 1_000_000
        os.utime(tmp_path / name, ns=(moment, moment), follow_symlinks=False)
    assert files.sweep(now) == 1
    assert sorted(os.listdir(tmp_path)) == ["other", "tool_folder", "tool_link", "tool_new"]
    assert make_files(tmp_path / "missing").sweep(now) == 0
