"""`shell` with real processes: what comes back, what ends, and what never gets out.

Long, because all cases share one way of running and of looking for what is left.
"""

from __future__ import annotations

import os
import signal
import time
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import trio

from steerway.actors.blocking import Threads
from steerway.actors.tools.capture import OutputLimits, SpillFile
from steerway.actors.tools.confinement import Confinement
from steerway.actors.tools.environment import child_environment
from steerway.actors.tools.registry import ToolSet
from steerway.actors.tools.settlement import Failed, Settlement, Succeeded
from steerway.actors.tools.shell import shell_tool
from steerway.actors.tools.tool import PermissionDeniedError, ToolContext
from steerway.protocol.values import ManagedOutput, TextContent
from support.tools import ScriptedOwner, make_context, make_files, make_registry


class Site:
    """A location, a folder for outputs, a pipe to hear from commands, and the tool at work."""

    def __init__(self, root: Path) -> None:
        self.here = root / "here"
        self.here.mkdir()
        self.outputs = root / "outputs"
        self.fifo = root / "fifo"
        os.mkfifo(self.fifo)
        self.owner = ScriptedOwner()
        self.environ: Mapping[str, str] = {"PATH": os.environ["PATH"], "FIFO": str(self.fifo)}
        self.max_file_bytes = 64 << 20
        self.create: Callable[[], SpillFile] | None = None

    def tools(self) -> tuple[ToolSet, ToolContext]:
        files = make_files(self.outputs, max_file_bytes=self.max_file_bytes)
        limits = OutputLimits()
        made = shell_tool(Confinement, child_environment(self.environ), limits, self.create or files.create)
        context = make_context(self.here, session=self.owner, blocking=Threads())
        return make_registry(self.outputs, made, files=files).materialise(context.location, "build"), context

    async def call(self, command: str, **arguments: Any) -> Settlement:
        tools, context = self.tools()
        raw = await tools.run("shell", {"command": command, **arguments}, "", context)
        return await tools.bound(raw, context)

    async def done(self, command: str, **arguments: Any) -> Succeeded:
        settlement = await self.call(command, **arguments)
        assert isinstance(settlement, Succeeded), settlement
        assert len(text_of(settlement).encode()) <= 51_200
        return settlement

    async def text(self, command: str, **arguments: Any) -> str:
        return text_of(await self.done(command, **arguments))

    async def refusal(self, command: str, **arguments: Any) -> str:
        settlement = await self.call(command, **arguments)
        assert isinstance(settlement, Failed), settlement
        return settlement.error.message

    async def heard(self) -> str:
        """What a command writes into the pipe; waits for it."""
        return await trio.to_thread.run_sync(self.fifo.read_text)


@pytest.fixture
def place(tmp_path: Path) -> Site:
    return Site(tmp_path)


def text_of(settlement: Succeeded) -> str:
    (item,) = settlement.content
    assert isinstance(item, TextContent)
    return item.text


def read(managed: ManagedOutput) -> bytes:
    return Path(managed.path).read_bytes()


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def living_in_session(session: int) -> list[int]:
    found: list[int] = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.getsid(int(name)) == session and is_alive(int(name)):
                found.append(int(name))
        except ProcessLookupError:
            continue
    return found


# --- what comes back ----------------------------------------------------------------------------------------------


async def test_both_outputs_come_back_in_order_with_the_exit_code(place: Site) -> None:
    settlement = await place.done("echo one; echo two >&2; echo three; exit 3")
    assert text_of(settlement) == "one\ntwo\nthree\n\n[exit code 3]"
    assert settlement.structured == {"exit_code": 3, "timed_out": False}
    assert await place.text("true") == "(no output)\n\n[exit code 0]"
    assert "127" in await place.text("no-such-program")


async def test_a_command_that_a_signal_ends_says_so(place: Site) -> None:
    settlement = await place.done("echo last words; kill -9 $$")
    assert settlement.structured == {"exit_code": None, "timed_out": False, "signal": "SIGKILL"}
    assert "ended by SIGKILL" in text_of(settlement)


async def test_it_starts_in_the_location_or_in_a_directory_of_it(place: Site) -> None:
    (place.here / "sub").mkdir()
    (place.here / "file").touch()
    assert (await place.text('pwd; echo "$PWD"')).startswith(f"{place.here}\n{place.here}\n")
    assert (await place.text("pwd", workdir="sub")).startswith(f"{place.here}/sub\n")
    assert (await place.text("pwd", workdir=str(place.here / "sub"))).startswith(f"{place.here}/sub\n")
    assert "outside the location" in await place.refusal("pwd", workdir="..")
    assert "not a directory" in await place.refusal("pwd", workdir="file")
    assert "does not exist" in await place.refusal("pwd", workdir="missing")


async def test_there_is_no_input_and_no_descriptor_of_the_runtime(place: Site, tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    leaked = os.dup2(folder, 200, inheritable=True)
    try:
        shown = await place.text(
            "cat; test -e /proc/$$/fd/200; echo $?; cut -d' ' -f6 /proc/$$/stat; echo $$; test -t 1 || echo no"
        )
    finally:
        os.close(folder)
        os.close(leaked)
    exists, session, pid, terminal = shown.partition("\n\n[")[0].split("\n")
    assert exists == "1"
    assert session == pid
    assert terminal == "no"


async def test_a_command_that_cannot_be_started_is_a_failure_that_says_why(place: Site) -> None:
    assert "null byte" in await place.refusal("echo \x00")
    assert "too long" in await place.refusal(f"echo {'x' * 200_000}")
    assert "empty" in await place.refusal("  \n")
    assert (await place.refusal("")).startswith("`shell` was not run")
    assert (await place.refusal("ls", timeout_seconds=601)).startswith("`shell` was not run")


# --- permission ---------------------------------------------------------------------------------------------------


async def test_permission_is_asked_for_the_command_before_it_runs(place: Site) -> None:
    place.owner.refusal = PermissionDeniedError("shell", ["touch"])
    settlement = await place.call("touch made && ls")
    assert isinstance(settlement, Failed)
    assert settlement.error.type == "permission.denied"
    assert os.listdir(place.here) == []
    (asked,) = place.owner.asked
    assert asked.resources == ("touch made && ls", "touch made", "ls")
    assert asked.save == ("touch *", "ls *")
    assert asked.metadata == {"command": "touch made && ls", "workdir": ".", "timeout_seconds": 120.0}


# --- environment --------------------------------------------------------------------------------------------------


def test_nothing_that_looks_like_a_credential_reaches_a_child() -> None:
    secret = {
        "OPENAI_API_KEY": "sk-1234567890",
        "MY_MODEL": "configured-key-value",
        "COPY": "configured-key-value",
        "GITHUB_TOKEN": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_ACCESS_KEY_ID": "x",
        "db_password": "x",
        "DB_PASSWD": "x",
        "MYSQL_PASS": "x",
        "GOOGLE_APPLICATION_CREDENTIALS": "x",
        "STEERWAY_TOKEN": "x",
        "DATABASE_URL": "postgres://user:hunter2@host/db",
        "NPM_CONFIG__AUTH": "x",
    }
    harmless = {
        "PATH": "/bin",
        "HOME": "/home/me",
        "LANG": "C.UTF-8",
        "PWD": "/x",
        "KEYBOARD": "de",
        "PATTERN": "p",
        "COMPASS": "n",
        "AUTHOR": "me",
        "SSH_AUTH_SOCK": "/run/agent",
        "SITE": "https://example.org:8080/a@b",
    }
    given = child_environment({**secret, **harmless}, ["MY_MODEL"])
    assert not set(secret) & set(given)
    assert harmless.items() <= given.items()
    assert given["TERM"] == "dumb"
    assert given["PAGER"] == "cat"
    assert child_environment({"A": "none", "LOCAL": "none"}, ["LOCAL"])["A"] == "none"
    assert child_environment({})["PATH"] != ""


async def test_a_command_sees_the_filtered_environment_only(place: Site) -> None:
    place.environ = {"PATH": os.environ["PATH"], "OPENAI_API_KEY": "sk-1234567890", "LANG": "C"}
    names = {line.partition("=")[0] for line in (await place.text("env")).partition("\n\n[")[0].split("\n")}
    assert {"PATH", "LANG", "TERM", "PWD"} <= names
    assert "OPENAI_API_KEY" not in names
    assert "HOME" not in names  # what the runtime does not have, a child does not get from elsewhere


# --- output of any size -------------------------------------------------------------------------------------------


async def test_a_large_output_is_kept_whole_in_a_file_and_shown_at_both_ends(place: Site) -> None:
    settlement = await place.done("seq 1 100000")
    assert settlement.managed_outputs is not None
    (managed,) = settlement.managed_outputs
    whole = "".join(f"{number}\n" for number in range(1, 100_001))
    assert read(managed) == whole.encode()
    assert (managed.bytes, managed.lines, managed.complete) == (len(whole), 100_000, True)
    shown = text_of(settlement)
    assert shown.startswith("1\n2\n3\n")
    assert shown.endswith("\n99999\n100000\n\n[exit code 0]")
    assert managed.path in shown
    assert os.listdir(place.outputs) == [Path(managed.path).name]


async def test_binary_output_is_text_within_the_limits(place: Site) -> None:
    settlement = await place.done("head -c 5000000 /dev/urandom")
    shown = text_of(settlement)
    assert "\x00" not in shown
    assert settlement.managed_outputs is not None
    assert settlement.managed_outputs[0].path in shown
    assert "exit code 0" in shown


async def test_an_endless_output_costs_neither_memory_nor_disk(place: Site) -> None:
    place.max_file_bytes = 1 << 20
    tracemalloc.start()
    try:
        settlement = await place.done("yes", timeout_seconds=0.5)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20
    assert settlement.managed_outputs is not None
    (managed,) = settlement.managed_outputs
    assert not managed.complete
    assert len(read(managed)) <= 1 << 20
    assert "incomplete" in text_of(settlement)
    assert settlement.structured["timed_out"] is True


async def test_an_output_that_cannot_be_kept_leaves_the_call_successful(place: Site) -> None:
    def full() -> SpillFile:
        raise OSError(28, "No space left on device")

    place.create = full
    settlement = await place.done("seq 1 100000")
    assert settlement.lossy
    assert settlement.managed_outputs is None
    assert "could not be kept" in text_of(settlement)


async def test_the_end_of_what_is_printed_is_shown_meanwhile(place: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steerway.actors.tools.shell.PROGRESS_SECONDS", 0.01)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(place.done, 'printf "%05000d" 7; echo; echo waiting; read line < "$FIFO"')
        await place.owner.progressed.wait()
        await trio.to_thread.run_sync(place.fifo.write_text, "go on\n")
    assert place.owner.shown[-1].endswith("00007\nwaiting\n")
    assert all(len(shown) <= 4_096 for shown in place.owner.shown)
    assert len(place.owner.shown) <= 2


# --- the end ------------------------------------------------------------------------------------------------------


async def test_int_01_a_command_that_traps_term_and_int_is_dead_within_five_seconds_of_an_interrupt(place: Site) -> None:
    command = """
        trap '' TERM INT HUP
        (trap '' TERM INT; while :; do sleep 0.2; done) &
        timeout 60 sh -c 'trap "" TERM INT; while :; do sleep 0.2; done' &
        echo $$ > "$FIFO"
        while :; do echo tick; sleep 0.2; done
    """
    ended: list[Settlement] = []

    async def call() -> None:
        ended.append(await place.call(command))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        session = int(await place.heard())
        assert len(living_in_session(session)) >= 3
        begun = time.monotonic()
        nursery.cancel_scope.cancel()
    assert time.monotonic() - begun < 5
    assert living_in_session(session) == []
    assert ended == []


async def test_a_polite_command_ends_at_once_and_may_clean_up(place: Site) -> None:
    command = """trap 'echo bye > cleaned; exit' TERM; echo $$ > "$FIFO"; while :; do sleep 0.01; done"""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(place.call, command)
        session = int(await place.heard())
        begun = time.monotonic()
        nursery.cancel_scope.cancel()
    assert time.monotonic() - begun < 1.5
    assert living_in_session(session) == []
    assert (place.here / "cleaned").read_text() == "bye\n"


async def test_an_interrupted_command_leaves_no_output_file(place: Site) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(place.call, 'seq 1 100000; echo > "$FIFO"; sleep 60')
        await place.heard()
        nursery.cancel_scope.cancel()
    assert not place.outputs.exists() or os.listdir(place.outputs) == []


async def test_an_interrupt_in_mid_flood_ends_it(place: Site) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(place.call, 'echo $$ > "$FIFO"; yes | cat')
        session = int(await place.heard())
        nursery.cancel_scope.cancel()
    assert living_in_session(session) == []


async def test_a_time_out_keeps_what_was_printed(place: Site) -> None:
    settlement = await place.done("echo begun; echo $$; sleep 60", timeout_seconds=0.3)
    assert settlement.structured["timed_out"] is True
    shown = text_of(settlement)
    assert shown.startswith("begun\n")
    assert "longer than 0.3 s" in shown
    assert living_in_session(int(shown.split("\n")[1])) == []


async def test_a_time_out_kills_what_does_not_listen(place: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steerway.actors.tools.processes.TERM_SECONDS", 0.2)
    settlement = await place.done("trap '' TERM; echo $$; while :; do sleep 0.05; done", timeout_seconds=0.2)
    shown = text_of(settlement)
    assert settlement.structured == {"exit_code": None, "timed_out": True}
    assert living_in_session(int(shown.split("\n")[0])) == []


async def test_what_a_command_leaves_behind_is_ended_with_it(place: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steerway.actors.tools.processes.TERM_SECONDS", 0.2)
    command = """
        sleep 60 & echo $!
        sh -c 'trap "" TERM; sleep 60 & wait; while :; do sleep 1; done' > /dev/null 2>&1 & echo $!
        timeout 60 sleep 60 & echo $!
        (sleep 60 &)
        echo $$
    """
    begun = time.monotonic()
    settlement = await place.done(command)
    assert time.monotonic() - begun < 10
    assert settlement.structured == {"exit_code": 0, "timed_out": False}
    *children, session = (int(line) for line in text_of(settlement).partition("\n\n[")[0].split("\n"))
    assert len(children) == 3
    assert not any(map(is_alive, children))
    assert living_in_session(session) == []


async def test_many_children_are_all_found(place: Site) -> None:
    async with trio.open_nursery() as nursery:
        command = 'for i in $(seq 1 30); do sh -c "sleep 60 & sleep 60" & done; echo $$ > "$FIFO"; wait'
        nursery.start_soon(place.call, command)
        session = int(await place.heard())
        nursery.cancel_scope.cancel()
    assert living_in_session(session) == []


async def test_a_daemon_that_left_the_session_does_not_hold_the_call_open(place: Site) -> None:
    command = """setsid sh -c 'echo $$ > "$FIFO"; exec sleep 30' & read pid < "$FIFO"; echo $pid"""
    begun = time.monotonic()
    settlement = await place.done(command)
    pid = int(text_of(settlement).split("\n")[0])
    try:
        assert time.monotonic() - begun < 5
        assert settlement.structured == {"exit_code": 0, "timed_out": False, "left_running": True}
        assert "left its session" in text_of(settlement)
        assert is_alive(pid)
    finally:
        os.kill(pid, signal.SIGKILL)


async def test_a_command_that_closes_its_output_is_still_waited_for(place: Site) -> None:
    await place.text("echo seen; exec > /dev/null 2>&1; sleep 0.1; echo late > late")
    assert (place.here / "late").exists()
