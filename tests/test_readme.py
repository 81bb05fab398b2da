"""What README shows works as it stands there: its programs run, its configuration is read."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import steerway
from steerway.actors.client.client import Client
from steerway.actors.configuration import Configuration
from steerway.protocol.values import Session
from support.program import SECONDS, Home

README = (Path(__file__).resolve().parents[1] / "README.md").read_text("utf-8")


def shown(language: str, beginning: str) -> str:
    """The one block of code that begins like this."""
    blocks: list[str] = re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    (block,) = [block for block in blocks if block.lstrip().startswith(beginning)]
    return block


async def run(block: str, client: Client, session: Session) -> dict[str, Any]:
    """Run a block that stands inside an async function; the names that it has made."""
    code = f"async def made():\n{textwrap.indent(block, '    ')}\n    return locals()\n"
    names: dict[str, Any] = {"steerway": steerway, "client": client, "runtime": client, "session": session}
    exec(compile(code, "README.md", "exec"), names)  # noqa: S102
    made: Callable[[], Awaitable[dict[str, Any]]] = names["made"]
    return await made()


async def test_what_a_session_can_do_is_done(tmp_path: Path) -> None:
    async with steerway.open_runtime(tmp_path / "store.db", configuration=Configuration(), environ={}) as client:
        session = await client.sessions.create(model=steerway.ModelRef(provider="demo", id="demo"))
        made = await run(shown("python", "first = "), client, session)
        kept = await client.sessions.get(session.id)
        assert (kept.title, kept.budget, str(kept.model)) == ("Counting", 0.5, "demo/demo:thinking")
        with pytest.raises(steerway.SessionNotFoundError):
            await client.sessions.get(made["fork"].id)


async def test_facts_of_a_program_are_told(tmp_path: Path) -> None:
    async with steerway.open_runtime(tmp_path / "store.db", configuration=Configuration(), environ={}) as client:
        session = await client.sessions.create(model=steerway.ModelRef(provider="demo", id="demo"))
        await run(shown("python", "async def load"), client, session)
        receipt = await client.sessions.prompt(session.id, "Hello")
        await client.sessions.wait_prompt(session.id, receipt.id)
        told = {one.key: one.value for one in (await client.sessions.provider_context(session.id)).sources}
        assert (told["acme/build"], told["api/ticket"]) == ("green", {"id": 7})


def test_the_embedded_program_runs(tmp_path: Path) -> None:
    block = shown("python", "import trio\nimport steerway\n\n\n@steerway.tool")
    home = Home(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", block],
        cwd=home.work,
        env=home.environ,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    assert "CompletedOutcome()" in done.stdout
    assert "It never rains in Rome." in done.stdout


def test_the_program_for_a_server_runs(tmp_path: Path) -> None:
    block = shown("python", "import trio\nimport steerway\n\n\nasync def main")
    home = Home(tmp_path)
    with home.serving():
        done = subprocess.run(
            [sys.executable, "-c", block],
            cwd=home.work,
            env=home.environ,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=True,
        )
    assert done.stdout.splitlines()[-1].endswith("session.turn.completed")


def test_the_configuration_is_read(tmp_path: Path) -> None:
    home = Home(tmp_path)
    (home.work / "shown.toml").write_text(shown("toml", "[models]"))
    done = home.inside("config", "--json", "--config", "shown.toml")
    settings = {setting["key"]: setting["value"] for setting in done.lines()[0]}
    assert settings["models.default"] == "local/small"
    assert settings["providers.local.models.large.input"] == ["text", "image", "pdf"]
