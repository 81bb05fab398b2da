"""`steerway demo` as a process: what it claims happened, and it says so when something did not."""

from __future__ import annotations

import io
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from steerway.actors.commands.demo_server import server_process
from steerway.actors.commands.demo_stage import Stage
from steerway.actors.commands.failures import Refusal
from steerway.actors.commands.invocation import as_typed
from support.program import SECONDS, Home


def a_home(tmp_path: Path) -> Home:
    (tmp_path / "temporary").mkdir()
    return Home(tmp_path, {"TMPDIR": str(tmp_path / "temporary")})


def test_the_demo_tells_its_story_and_leaves_nothing_behind(tmp_path: Path) -> None:
    home = a_home(tmp_path)
    done = home.call("demo")
    assert (done.code, done.errors) == (0, "")
    assert done.output.count("✓") == 14
    assert "14 claims, each checked" in done.output
    acts = ("Ask", "Steer and queue", "Change the rules", "Stop", "Crash", "And everything is still there", "That was it")
    for number, act in enumerate(acts, 1):
        assert f"{number}. {act}" in done.output
    assert "\x1b" not in done.output  # it does not go to a terminal
    *story, run, serve = done.output.splitlines()
    assert max(len(line) for line in story) <= 80
    assert serve.strip() == f"{shlex.quote(sys.executable)} -m steerway serve"
    answered = subprocess.run(
        run.strip(), check=False, shell=True, env=home.environ, cwd=home.work, capture_output=True, text=True
    )
    assert (answered.returncode, "The date tool says" in answered.stdout) == (0, True)
    assert list((tmp_path / "temporary").iterdir()) == []
    assert not home.state.exists()


@pytest.mark.parametrize(
    ("called", "directory", "typed"),
    [
        ("bin/steerway", ".", "bin/steerway"),
        ("{home}/bin/steerway", ".", "bin/steerway"),
        ("{home}/bin/steerway", "path", "'{home}/bin/steerway'"),
        ("{home}/path/steerway", "path", "steerway"),
        ("{home}/lib/steerway/__main__.py", "path", "{python} -m steerway"),
    ],
)
def test_hints_are_typed_as_the_program_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, called: str, directory: str, typed: str
) -> None:
    home = tmp_path / "a home"
    for folder in ("bin", "path"):
        (home / folder).mkdir(parents=True)
        (home / folder / "steerway").touch(0o755)
    names = {"home": str(home), "python": shlex.quote(sys.executable)}
    monkeypatch.chdir(home / directory)
    monkeypatch.setenv("PATH", str(home / "path"))
    monkeypatch.setattr(sys, "argv", [called.format(**names), "demo"])
    assert as_typed() == typed.format(**names)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_the_demo_fails_in_one_sentence_when_its_story_is_disturbed(tmp_path: Path, number: signal.Signals) -> None:
    home = a_home(tmp_path)
    with home.start("demo") as process:
        assert process.stdout is not None
        while "you >" not in process.stdout.readline():
            pass
        (server,) = psutil.Process(process.pid).children()
        (server if number == signal.SIGKILL else process).send_signal(number)
        _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == (1 if number == signal.SIGKILL else 130)
    assert errors.startswith("steerway: ")
    assert errors.count("\n") == 1
    assert psutil.wait_procs([server], timeout=SECONDS)[1] == []
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_claim_that_does_not_hold_ends_the_demo() -> None:
    shown = io.StringIO()
    stage = Stage(shown)
    stage.claim(True, "This holds.")
    with pytest.raises(Refusal, match="This does not") as refused:
        stage.claim(False, "This does not.")
    assert refused.value.exit_code == 1
    assert "This holds." in shown.getvalue()
    assert "This does not." not in shown.getvalue()


async def test_the_server_of_the_demo_is_not_what_ctrl_c_interrupts(tmp_path: Path) -> None:
    """Not even while it is loaded: then it could not say a sentence yet."""
    async with server_process(tmp_path / "demo.db", tmp_path) as server:
        assert os.getpgid(server.process.pid) != os.getpgid(0)
