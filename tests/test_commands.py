"""The commands that look and ask: `run`, `sessions`, `events`, `config`, and how they fail.

Long, because all commands share one home and one way of being called.
"""

from __future__ import annotations

import io
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

import steerway
from steerway.actors.commands.failures import told
from steerway.actors.commands.output import table
from steerway.actors.commands.program import program
from steerway.actors.commands.sessions import sessions
from steerway.actors.configuration import Configuration
from support.program import SECONDS, Done, Home, Serving

DEMO = ("--model", "demo/demo")


class Stored(Home):
    """A home with a store that has one session in it, made by `run`; or a copy of another one."""

    def __init__(self, folder: Path, copied: Stored | None = None) -> None:
        if copied is not None:
            shutil.copytree(copied.folder, folder, dirs_exist_ok=True)
        super().__init__(folder)
        self.first = copied.first if copied else self.call("run", *DEMO, "What is the date, \x1b[31mplease\x1b[0m?")
        self.session_id = self.first.errors.split()[-1]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    return Stored(tmp_path_factory.mktemp("stored"))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, stored: Stored) -> Generator[tuple[Stored, Serving]]:
    """A store with a session, owned by a running server."""
    home = Stored(tmp_path_factory.mktemp("served"), stored)
    with home.serving() as serving:
        yield home, serving


def refused(done: Done, code: int, *parts: str) -> None:
    """One sentence on standard error, no traceback, nothing on standard output."""
    assert (done.code, done.output) == (code, ""), done
    assert "Traceback" not in done.errors
    for part in parts:
        assert part in done.errors


def test_help_loads_nothing_heavy() -> None:
    heavy = {"apsw", "h11", "httpx2", "msgpack", "msgspec", "platformdirs", "rich", "structlog", "trio", "trio_websocket"}
    program = (
        "import sys, steerway.actors.commands.program as p; p.program(['--help'], standalone_mode=False)\n"
        "print(sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert all(command in done.stdout for command in ("demo", "serve", "run", "sessions", "events", "config"))
    assert "click" in done.stderr
    assert {name for name in heavy if f"'{name}'" in done.stderr} == set()


# --- run ----------------------------------------------------------------------------------------------------------


def test_run_writes_the_answer_to_standard_output_and_the_rest_beside_it(stored: Stored) -> None:
    done = stored.first
    assert done.code == 0
    first, second = done.output.splitlines()
    assert first.endswith("Let me use the date tool for that.")
    assert second.startswith("The date tool says: ")
    assert "date {}" in done.errors
    assert "\x1b" not in done.errors


def test_run_goes_on_with_a_session_reads_standard_input_and_prints_events(stored: Stored) -> None:
    home = stored
    done = home.call("run", "--session", home.session_id, "--format", "json", "-", input="Count to 3.\nThen stop.")
    assert (done.code, done.errors) == (0, "")
    events = done.lines()
    assert {event["session_id"] for event in events} == {home.session_id}
    (admitted,) = (event for event in events if event["type"] == "session.prompt.admitted")
    assert admitted["data"]["prompt"]["text"] == "Count to 3.\nThen stop."
    durable = [event["seq"] for event in events if "seq" in event]
    assert durable == list(range(durable[0], durable[0] + len(durable)))
    joined = "".join(event["data"]["delta"] for event in events if event["type"] == "session.text.delta")
    assert [event["data"]["text"] for event in events if event["type"] == "session.text.ended"] == [joined]
    assert joined.endswith("1 2 3.")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("Hello",), ("No model is selected", "--model demo/demo")),
        (("--model", "nobody/nothing", "Hello"), ("there is no provider nobody",)),
        (("--model", "nonsense", "Hello"), ("provider/model",)),
        (("--agent", "nobody", *DEMO, "Hello"), ("There is no agent nobody; there are build",)),
        ((*DEMO, " "), ("The prompt is empty",)),
        (("--session", "ses_1", "--agent", "build", "Hello"), ("--agent and --directory are for a new session",)),
        (("--token-file", "x", "Hello"), ("--url",)),
        (("--url", "http://127.0.0.1:1", "Hello"), ("ws://",)),
    ],
)
def test_run_refuses_wrong_use_before_it_stores_anything(
    tmp_path: Path, arguments: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    home = Home(tmp_path)
    refused(home.inside("run", *arguments), 2, *parts)
    assert not home.store.exists()


def test_a_failed_answer_is_told_and_gives_1(tmp_path: Path) -> None:
    home = Home(tmp_path)
    settings = home.work / "mine.toml"
    settings.write_text('[providers.slow]\nprotocol = "demo"\n[providers.slow.models.m]\noptions = { delay = -1 }\n')
    done = home.call("run", "--config", "mine.toml", "--model", "slow/m", "Hello")
    assert (done.code, done.output) == (1, "")
    assert "steerway: The option delay of a demo model is a number" in done.errors


def test_ctrl_c_interrupts_the_session_and_gives_130(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with home.start("run", *DEMO, "Count to 100000.") as process:
        assert process.stdout is not None
        while "2" not in process.stdout.read(1):
            pass
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert "Interrupted." in errors
    events = home.inside("events", "--json", errors.split()[-1]).lines()
    assert [event["data"].get("reason") for event in events[-1:]] == ["user"]
    assert events[-1]["type"] == "session.turn.interrupted"


# --- sessions and events --------------------------------------------------------------------------------------------


def test_sessions_and_events_are_read_beside_the_running_owner_and_asked_by_url_alike(served: tuple[Stored, Serving]) -> None:
    home, serving = served
    by_url = ("--url", serving.url)
    listed = home.inside("sessions", "list", "--json").lines()[0]
    assert home.session_id in [session["id"] for session in listed["items"]]
    assert home.inside("sessions", "list", "--json", *by_url).lines()[0] == listed
    shown = home.inside("sessions", "show", home.session_id, "--json").lines()[0]
    assert [message["type"] for message in shown["messages"]][:3] == ["user", "assistant", "assistant"]
    assert shown["session"] in listed["items"]
    assert home.inside("sessions", "show", home.session_id, "--json", *by_url).lines()[0] == shown
    events = home.inside("events", home.session_id, "--json").lines()
    assert [event["seq"] for event in events] == list(range(1, shown["session"]["head"] + 1))
    remote = home.inside("events", home.session_id, "--json", "--after", "3", *by_url).lines()
    assert remote == events[3:]


def test_what_people_read_holds_no_control_characters(stored: Stored) -> None:
    outputs = (
        stored.inside("sessions", "list").output,
        stored.inside("sessions", "show", stored.session_id).output,
        stored.inside("events", stored.session_id).output,
    )
    for output in outputs:
        assert "please" in output
        assert "\x1b" not in output
    listed, shown, events = outputs
    assert stored.session_id in listed
    assert "[tool date {}]" in shown
    assert "tool.succeeded" in events


def test_follow_goes_on_with_new_events_of_the_local_server(served: tuple[Stored, Serving]) -> None:
    home, serving = served
    known = len(home.inside("events", home.session_id, "--json").lines())
    with home.start("events", home.session_id, "--json", "--follow", "--after", str(known - 1)) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["seq"] == known
        done = home.call("run", "--url", serving.url, "--session", home.session_id, "Count to 2.")
        assert (done.code, done.output) == (0, "You added: “Count to 2.”. 1 2.\n")
        seen = [json.loads(process.stdout.readline())]
        while seen[-1]["type"] != "session.turn.completed":
            seen.append(json.loads(process.stdout.readline()))
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=SECONDS)
    assert [event["seq"] for event in seen] == list(range(known + 1, known + 1 + len(seen)))
    assert (process.returncode, errors) == (130, "steerway: Interrupted.\n")


def test_a_reader_that_leaves_is_no_error(stored: Stored) -> None:
    with stored.start("events", stored.session_id, "--json") as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait(SECONDS) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "parts"),
    [
        (("events", "ses_none"), 1, ("There is no session", "steerway sessions list")),
        (("sessions", "list", "--db", "missing.db"), 1, ("There is no store at", "missing.db")),
        (("sessions", "list", "--cursor", "nonsense"), 2, ("cursor",)),
        (("sessions", "list", "--url", "ws://127.0.0.1:1/"), 1, ("cannot be reached",)),
        (("sessions", "list", "--url", "ws://127.0.0.1:1/", "--db", "x"), 2, ("--db",)),
        (("sessions", "list", "--url", "ws://"), 2, ("names a host",)),
        (("sessions", "list", "--url", "ws://127.0.0.1:99999"), 2, ("from 1 to 65535",)),
        (("sessions", "list", "--url", "ws://127.0.0.1:port"), 2, ("from 1 to 65535",)),
        (("run", "What", "is", "the", "date?"), 2, ("put it in quotes",)),
        (("run", "--agent", "nobody", "Hello"), 2, ("There is no agent nobody; there are build, plan.",)),
        (("events", "ses_none", "--follow"), 1, ("running server", "--url")),
        (("events", "ses_none", "--follow", "--db", "x"), 2, ("--db",)),
        (("sessions", "list", "--config", "missing.toml"), 2, ("missing.toml",)),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    stored: Stored, arguments: tuple[str, ...], code: int, parts: tuple[str, ...]
) -> None:
    refused(stored.inside(*arguments), code, *parts)


def test_a_server_is_not_sent_a_token_that_is_not_its_own(served: tuple[Stored, Serving]) -> None:
    home, serving = served
    other = serving.url.replace("127.0.0.1", "localhost")
    refused(home.inside("sessions", "list", "--url", other), 1, "none is known here", "--token-file")
    wrong = home.folder / "wrong-token"
    wrong.write_text("wrong")
    refused(
        home.inside("sessions", "list", "--url", other, "--token-file", str(wrong)), 1, f"the one in {wrong} is wrong", other
    )
    refused(home.call("run", "--url", other, "--token-file", str(wrong), "Hello"), 1, f"the one in {wrong} is wrong")
    done = home.inside("sessions", "list", "--json", "--url", other, "--token-file", serving.token_file)
    assert done.code == 0


def test_the_store_of_a_running_server_is_not_run_in(served: tuple[Stored, Serving]) -> None:
    home, serving = served
    refused(home.call("run", *DEMO, "Hello"), 1, f"Process {serving.process.pid}", f"`--url {serving.url}`", "--take-over")


def test_a_token_that_has_changed_meanwhile_is_told_with_its_file(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with home.serving() as serving:
        Path(serving.token_file).write_text("another\n")
        told = home.inside("sessions", "list", "--url", serving.url)
        refused(told, 1, f"the one in {serving.token_file} is wrong", "--token-file")
        refused(home.call("events", "ses_1", "--follow"), 1, f"the one in {serving.token_file} is wrong")


# --- config -----------------------------------------------------------------------------------------------------------


def test_config_shows_values_with_their_layers_and_no_secret(tmp_path: Path) -> None:
    home = Home(tmp_path, {"STEERWAY_GATEWAY_PORT": "5001"})
    (home.work / "steerway.toml").write_text('[models]\ndefault = "mine/m"\n')
    named = home.work / "named.toml"
    named.write_text('[providers.mine]\nprotocol = "openai-chat"\nheaders = { X-Key = "hush" }\n[store]\npath = "kept.db"\n')
    done = home.inside("config", "--json", "--config", "named.toml")
    assert done.code == 0
    settings = {setting["key"]: (setting["value"], setting["source"]) for setting in done.lines()[0]}
    assert settings["gateway.port"] == (5001, "environment STEERWAY_GATEWAY_PORT")
    assert settings["models.default"] == ("mine/m", str(home.work / "steerway.toml"))
    assert settings["store.path"] == (str(home.work / "kept.db"), str(named))
    assert settings["gateway.host"] == ("127.0.0.1", "default")
    assert settings["providers.mine.headers.X-Key"][0] == "(not shown)"
    readable = home.inside("config", "--config", "named.toml", "--db", "other.db")
    assert "hush" not in readable.output + done.output
    assert any(line.split()[0::2] == ["store.path", "flag"] for line in readable.output.splitlines())


def test_an_unknown_key_names_the_nearest_known_one(tmp_path: Path) -> None:
    home = Home(tmp_path)
    (home.work / "steerway.toml").write_text('[models]\ndefualt = "demo/demo"\n')
    refused(home.inside("config"), 2, "defualt", "default", "steerway.toml")


def test_the_options_that_name_a_store_or_a_server_go_with_every_command_that_takes_one() -> None:
    """Ruling C5."""
    store, server = {"db", "config"}, {"url", "token_file"}
    commands = {**program.commands, **{f"sessions {name}": command for name, command in sessions.commands.items()}}
    found = {
        name: {parameter.name for parameter in command.params} & (store | server)
        for name, command in commands.items()
        if name not in ("demo", "sessions")  # a store of its own; a group
    }
    assert {name for name, options in found.items() if not store <= options} == set()
    assert {name for name, options in found.items() if not server <= options} == {"serve", "config", "doctor"}
    assert found["serve"] == {"db", "config", "token_file"}


# --- how it is started ----------------------------------------------------------------------------------------------------


def called(home: Home, command: str) -> Done:
    """What a command line of a shell comes to."""
    shell = ["sh", "-c", command]
    done = subprocess.run(shell, check=False, cwd=home.work, env=home.environ, capture_output=True, text=True)
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_program_whose_streams_are_closed_does_its_work_all_the_same(stored: Stored, closed: str) -> None:
    command = f'exec "{sys.executable}" -m steerway sessions list {closed}'
    done = called(stored, command)
    assert (done.code, done.errors) == (0, "")
    assert (stored.session_id in done.output) == (">&-" not in closed.split())


def test_a_prompt_from_a_closed_standard_input_is_empty(stored: Stored) -> None:
    command = f'exec "{sys.executable}" -m steerway run --model demo/demo - <&-'
    refused(called(stored, command), 2, "The prompt is empty")


def test_a_working_directory_that_was_removed_is_told(stored: Stored) -> None:
    command = f'mkdir gone && cd gone && rmdir ../gone && exec "{sys.executable}" -m steerway sessions list'
    refused(called(stored, command), 2, "The working directory is not there any more")


def test_an_interrupt_while_the_program_is_loaded_is_a_sentence() -> None:
    program = (
        "import sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'steerway.actors.commands.program':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from steerway.actors.commands import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "steerway: Interrupted.\n")


def test_the_built_in_agents_can_be_chosen(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert home.call("run", *DEMO, "--agent", "plan", "Hello").code == 0


async def test_a_session_is_shown_with_its_budget(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.store.parent.mkdir(parents=True)
    async with steerway.open_runtime(home.store, configuration=Configuration(), environ={}) as runtime:
        session = await runtime.sessions.create()
        await runtime.sessions.update(session.id, budget=0.5)
    assert "cost       $0.0000 of a budget of $0.5000\n" in home.inside("sessions", "show", session.id).output


# --- what people see on a terminal ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("columns", "title"), [(30, "A title t…"), (80, "A title t…"), (200, "A title that is long")])
def test_a_terminal_that_is_too_narrow_costs_titles_and_never_ids(
    monkeypatch: pytest.MonkeyPatch, columns: int, title: str
) -> None:
    shown = _OnTerminal()
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setenv("COLUMNS", str(columns))
    row = ["ses_" + "0" * 26, "2026-12-01 00:00:00", "16", "demo/demo-model", "A title that is long"]
    table(["SESSION", "UPDATED", "EVENTS", "MODEL", "TITLE"], [row], cut=True)
    (line,) = [line for line in shown.getvalue().splitlines() if "ses_" in line]
    assert line.split("  ")[:2] == row[:2]
    assert line.rstrip().endswith(f"demo/demo-model  {title}")


@pytest.mark.parametrize("columns", [20, 60])
def test_a_terminal_that_is_too_narrow_folds_values_and_never_their_keys(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    shown = _OnTerminal()
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setenv("COLUMNS", str(columns))
    table(["KEY", "VALUE", "FROM"], [["store.path.of.many.parts", "v" * 60, "default"]])
    assert "store.path.of.many.parts" in shown.getvalue()
    assert shown.getvalue().count("v") == 60
    assert "default" in shown.getvalue()


class _OnTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


# --- what nobody foresaw ----------------------------------------------------------------------------------------------


def test_a_traceback_can_be_asked_for_before_and_behind_a_command(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.store.parent.mkdir(parents=True)
    home.store.write_bytes(b"no database at all" * 1_000)
    refused(home.inside("sessions", "list", "--limit", "3"), 1, "steerway: ")
    for place in range(3):
        arguments = ["sessions", "list"]
        arguments.insert(place, "--traceback")
        with pytest.raises(Exception, match="database"):
            home.inside(*arguments)


def test_behind_two_dashes_a_traceback_is_a_prompt(tmp_path: Path) -> None:
    done = Home(tmp_path).call("run", *DEMO, "--", "--traceback")
    assert (done.code, "--traceback" in done.output) == (0, True)


def test_every_error_becomes_a_sentence_and_only_leaving_does_not() -> None:
    unforeseen = told(ZeroDivisionError("by zero"))
    assert unforeseen is not None
    assert (unforeseen.exit_code, "ZeroDivisionError: by zero" in unforeseen.message) == (1, True)
    interrupted = told(BaseExceptionGroup("several", [ValueError("x"), KeyboardInterrupt()]))
    assert interrupted is not None
    assert interrupted.exit_code == 130
    assert told(SystemExit(3)) is None
    assert told(BrokenPipeError(32, "Broken pipe")) is None


def test_a_retry_is_told_while_it_waits(tmp_path: Path) -> None:
    """Silence for half a minute would look like a program that hangs."""
    home = Home(tmp_path)
    file = tmp_path / "dead.toml"
    file.write_text('[providers.dead]\nprotocol = "openai-chat"\nbase_url = "http://127.0.0.1:9/v1"\n')
    with home.start("run", "--config", str(file), "--model", "dead/any", "Hello") as running:
        assert running.stderr is not None
        told = running.stderr.readline()
        running.send_signal(signal.SIGINT)
        running.wait(20)
    assert "Attempt 2 in 2 s." in told
