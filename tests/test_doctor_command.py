"""`steerway doctor` as its users meet it."""

from __future__ import annotations

from pathlib import Path

import pytest

from steerway.protocol.values import MessageId, SessionId
from support.doctor import assert_healthy
from support.program import Home
from support.stores import admitted, append, open_store, raw, session_created, started

S = SessionId("ses_1")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    home.store.parent.mkdir(parents=True)
    database = open_store(home.store)
    append(database, S, session_created("A\x1b[31m title"))
    database.close()
    return home


def test_a_sound_store_gives_0(home: Home) -> None:
    done = home.inside("doctor")
    assert (done.code, done.errors) == (0, "")
    assert str(home.store) in done.output
    assert "1 session, 1 event\n" in done.output
    assert "nothing was found; --rebuild-check would compare" in done.output
    assert "the projections are what the log says" in home.inside("doctor", "--rebuild-check").output


def test_what_is_found_gives_1_with_what_to_do(home: Home) -> None:
    database = open_store(home.store)
    append(database, S, started(MessageId("msg_1")))
    database.close()
    done = home.inside("doctor")
    assert done.code == 1
    assert "turn msg_1 has no terminal event" in done.output
    assert "steerway doctor --fix" in done.errors
    done = home.inside("doctor", "--fix")
    assert (done.code, done.errors) == (0, "")
    assert f"fixed: settled session {S}" in done.output
    assert_healthy(home.store)


def test_projections_are_compared_when_asked(home: Home) -> None:
    raw(home.store, "UPDATE session SET revision = 9")
    assert home.inside("doctor").code == 0
    done = home.inside("doctor", "--rebuild-check", "--json")
    assert done.code == 1
    (answer,) = done.lines()
    assert (answer["healthy"], answer["fixed"]) == (False, [])
    (finding,) = answer["report"]["findings"]
    assert (finding["check"], finding["where"], finding["severity"]) == ("projections", f"session {S}", "error")
    assert home.inside("doctor", "--fix", "--json").lines()[0]["healthy"]


def test_a_log_that_contradicts_itself_is_not_mended(home: Home) -> None:
    database = open_store(home.store)
    append(database, S, admitted(MessageId("msg_1")), admitted(MessageId("msg_2")))
    database.close()
    raw(home.store, "DELETE FROM event WHERE seq = 2; UPDATE session SET revision = 9")
    done = home.inside("doctor", "--rebuild-check")
    assert done.code == 1
    assert "has 2 events, from 1 to 3, and its head is 3" in done.output
    assert "event 3 follows event 1" in done.output
    done = home.inside("doctor", "--fix")
    assert (done.code, done.output) == (1, "")
    assert "The log contradicts itself" in done.errors
    assert raw(home.store, "SELECT revision FROM session") == [(9,)]


def test_an_owned_store_is_examined_and_not_mended(home: Home) -> None:
    database = open_store(home.store)
    done = home.inside("doctor")
    assert done.code == 0
    assert "a process owns it" in done.output
    done = home.inside("doctor", "--fix")
    assert (done.code, done.output) == (1, "")
    assert "open already" in done.errors
    database.close()


def test_without_a_store_there_is_nothing_to_examine(tmp_path: Path) -> None:
    done = Home(tmp_path).inside("doctor", "--fix")
    assert (done.code, done.output) == (1, "")
    assert "There is no store at" in done.errors
    assert not Home(tmp_path).store.exists()
