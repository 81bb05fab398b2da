"""`steerway run` and what its session asks for: on a terminal, without one, and as `--permissions` says."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import trio

import steerway
from steerway.actors.commands.answering import chosen
from steerway.protocol.values.question import Question, QuestionOption
from support.program import SECONDS, Done, Home

DEMO = ("run", "--model", "demo/demo")
SHELL = 'Call shell with {"command": "echo made > made; echo all done"}'
QUESTION = {
    "questions": [
        {"header": "Colour", "question": "Which colour?", "options": [{"label": "red"}, {"label": "blue"}]},
        {"header": "Name", "question": "What name?"},
    ]
}
ASK = f"Call question with {json.dumps(QUESTION)}"


class AtTerminal:
    """`steerway run` with a person at a terminal: input and standard error are one, standard output goes to a file."""

    def __init__(self, process: subprocess.Popen[str], master: int) -> None:
        self.process = process
        self._master = master
        self.seen = ""

    def until(self, text: str) -> str:
        """What the terminal has shown since the last time, up to and with `text`."""
        while text not in self.seen:
            try:
                piece = os.read(self._master, 65_536)
            except OSError:  # the other end was closed
                piece = b""
            if not piece:
                raise AssertionError(f"{text!r} never came: {self.seen!r}")
            self.seen += piece.decode()
        before, _, self.seen = self.seen.partition(text)
        return before + text

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def end(self) -> Done:
        with suppress(AssertionError):
            self.until("\0 never comes")
        output, _ = self.process.communicate(timeout=SECONDS)
        return Done(self.process.returncode, output, self.seen)


@contextmanager
def at_terminal(home: Home, *arguments: str) -> Generator[AtTerminal]:
    master, slave = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "steerway", *arguments],
        cwd=home.work,
        env=home.environ,
        stdin=slave,
        stdout=subprocess.PIPE,
        stderr=slave,
        text=True,
        start_new_session=True,
    ) as process:
        os.close(slave)
        try:
            yield AtTerminal(process, master)
        finally:
            process.kill()
            os.close(master)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def made(home: Home) -> bool:
    return (home.work / "made").exists()


# --- without a terminal -------------------------------------------------------------------------------------------


def test_without_a_terminal_a_permission_is_denied_and_the_model_goes_on(home: Home) -> None:
    done = home.call(*DEMO, SHELL)
    assert done.code == 0
    assert "not permitted: shell echo made > made; echo all done (`--permissions allow` would have allowed it)" in done.errors
    assert "Nobody is there who could allow this" in done.output
    assert not made(home)


@pytest.mark.parametrize("policy", ["allow", "deny"])
def test_permissions_can_be_allowed_and_denied_beforehand(home: Home, policy: str) -> None:
    with home.serving() as serving:
        done = home.call(*DEMO, "--permissions", policy, "--url", serving.url, SHELL)
    assert (done.code, made(home)) == (0, policy == "allow")
    assert ("The shell tool failed" in done.output) == (policy == "deny")


def test_what_is_allowed_beforehand_in_this_process_is_never_asked_for(home: Home) -> None:
    done = home.call(*DEMO, "--permissions", "allow", "--format", "json", SHELL)
    assert (done.code, made(home)) == (0, True)
    assert "session.permission.asked" not in {event["type"] for event in done.lines()}


def test_to_ask_without_a_terminal_is_wrong_use_unless_others_may_answer(home: Home) -> None:
    done = home.inside(*DEMO, "--permissions", "ask", "Hello")
    assert (done.code, done.output) == (2, "")
    assert "--permissions ask needs a terminal" in done.errors
    assert not home.store.exists()


def test_a_question_without_a_terminal_is_shown_and_dismissed(home: Home) -> None:
    done = home.call(*DEMO, ASK)
    assert done.code != 0
    assert "? Which colour?" in done.errors
    assert "1. red" in done.errors
    assert "Nobody is here to answer; the next prompt to the session can." in done.errors


# --- at a terminal ------------------------------------------------------------------------------------------------


def test_at_a_terminal_a_person_allows_and_denies(home: Home) -> None:
    with at_terminal(home, *DEMO, SHELL) as person:
        shown = person.until("what to do instead: ")
        assert "? shell echo made > made; echo all done\r\n" in shown
        assert "[a]lways (echo *)" in shown
        assert not made(home)
        person.type("y\n")
        done = person.end()
    assert done.code == 0
    assert "all done" in done.output
    assert made(home)


def test_words_instead_of_yes_or_no_are_told_to_the_model(home: Home) -> None:
    with at_terminal(home, *DEMO, SHELL) as person:
        person.until("what to do instead: ")
        person.type("use the write tool\n")
        done = person.end()
    assert done.code == 0
    assert "use the write tool" in done.output
    assert not made(home)


@pytest.mark.parametrize("answer", ["n\n", "\x04"])
def test_a_no_ends_the_work(home: Home, answer: str) -> None:
    with at_terminal(home, *DEMO, SHELL) as person:
        person.until("what to do instead: ")
        person.type(answer)
        done = person.end()
    assert done.code != 0
    assert not made(home)


def test_always_is_kept_for_the_directory(home: Home) -> None:
    call = 'Call shell with {"command": "echo twice"}'
    with at_terminal(home, *DEMO, call) as person:
        person.until("what to do instead: ")
        person.type("a\n")
        assert person.end().code == 0
    with at_terminal(home, *DEMO, call) as person:
        done = person.end()
    assert done.code == 0
    assert "Allow it?" not in done.errors


def test_ctrl_c_while_somebody_is_asked_interrupts(home: Home) -> None:
    with at_terminal(home, *DEMO, SHELL) as person:
        person.until("what to do instead: ")
        person.process.send_signal(2)
        done = person.end()
    assert done.code == 130
    assert not made(home)


def test_what_a_write_would_write_is_shown_without_control_characters(home: Home) -> None:
    content = {"path": "notes.txt", "content": "one\n\x1b[31mtwo"}
    with at_terminal(home, *DEMO, f"Call write with {json.dumps(content)}") as person:
        shown = person.until("what to do instead: ")
        assert "? write notes.txt\r\n    content: one\r\n      \ufffd[31mtwo\r\n" in shown
        person.type("yes\n")
        assert person.end().code == 0
    assert (home.work / "notes.txt").read_text() == "one\n\x1b[31mtwo"


def test_questions_are_asked_one_after_the_other(home: Home) -> None:
    with at_terminal(home, *DEMO, ASK) as person:
        assert "? Which colour?\r\n    1. red\r\n    2. blue\r\n" in person.until("dismiss it: ")
        person.type("3\n")
        person.until("none of the answers.")
        person.until("dismiss it: ")
        person.type("2\n")
        assert "? What name?" in person.until("dismiss it: ")
        person.type("Ada\n")
        done = person.end()
    assert done.code == 0
    assert "blue" in done.output
    assert "Ada" in done.output


def test_another_clients_answer_takes_the_question_away(home: Home) -> None:
    with home.serving() as serving, at_terminal(home, *DEMO, "--url", serving.url, SHELL) as person:
        person.until("what to do instead: ")

        async def allow() -> None:
            async with steerway.connect(serving.url, token=serving.token) as client:
                (request,) = await client.permissions.list()
                await client.permissions.reply(request.id, "once")

        trio.run(allow)
        done = person.end()
    assert done.code == 0
    assert "all done" in done.output


# --- what an answer means -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "multiple", "custom", "answer"),
    [
        ("1", False, True, ("red",)),
        ("1, 2 1", True, True, ("red", "blue")),
        ("1 2", False, True, ()),
        ("0", False, True, ()),
        ("green", False, True, ("green",)),
        ("green", False, False, ()),
        ("2", False, None, ("blue",)),
    ],
)
def test_a_line_is_read_as_numbers_where_it_can_be(
    line: str, multiple: bool, custom: bool | None, answer: tuple[str, ...]
) -> None:
    options = (QuestionOption(label="red", description=""), QuestionOption(label="blue", description=""))
    asked = Question(question="Which?", header="Colour", options=options, multiple=multiple, custom=custom)
    assert chosen(asked, line) == answer


def test_without_options_numbers_are_words() -> None:
    assert chosen(Question(question="How many?", header="Number", options=()), "42") == ("42",)


def test_what_is_told_while_a_question_waits_stands_on_a_line_of_its_own(home: Home) -> None:
    with at_terminal(home, *DEMO, SHELL) as person:
        person.until("say what to do instead: ")
        person.process.send_signal(signal.SIGINT)
        assert person.until("interrupted") == "\r\n    failed: Tool execution interrupted"
        done = person.end()
    assert (done.code, "Interrupted.\r\nsession " in done.errors) == (130, True)
