"""What broke once when somebody tried to break it: each fault by itself, as small as it could be made."""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from steerway import ContextSource, codec_of, connect
from steerway.actors.blocking import Inline, InlineWorker, Worker
from steerway.actors.configuration import Compaction, Configuration, Model
from steerway.actors.configuration import Provider as ProviderSettings
from steerway.actors.context.observing import Unavailable
from steerway.protocol.values import (
    CompactionStarted,
    CompletedOutcome,
    EpochStarted,
    FailedOutcome,
    Location,
    MessageId,
    SessionCreated,
    SessionId,
    SyntheticAdded,
    ToolPruned,
)
from steerway.protocol.values.errors import StorageUnavailableError
from support.answers import Answer, answer, hold, text, tool_call
from support.house import Ticks, configuration, open_house, said, scripted_house
from support.provider import Provider, Request, open_provider
from support.stores import append, open_store, raw
from support.tools import ScriptedTool

T = TypeVar("T")

LONG = "word " * 800
"""A thousand tokens."""


class HeldCommits(Inline):
    """In-line work whose commits can be held up: after `commits` more of them the next one waits for `let_go`."""

    def __init__(self) -> None:
        self.commits = -1
        self.held = trio.Event()
        self.let_go = trio.Event()

    def worker(self, name: str) -> Worker:
        return _HeldWorker(self) if name == "steerway-storage" else InlineWorker()


class _HeldWorker(InlineWorker):
    def __init__(self, commits: HeldCommits) -> None:
        self._commits = commits

    async def run(self, work: Callable[[], T]) -> T:
        self._commits.commits -= 1
        if self._commits.commits == -1:
            self._commits.held.set()
            with trio.CancelScope(shield=True):
                await self._commits.let_go.wait()
        return await super().run(work)


def _small_model(provider: Provider) -> Configuration:
    made = configuration(provider, compaction=Compaction(keep_tokens=500, buffer=1_000))
    made.providers["scripted"] = ProviderSettings(
        protocol="openai-chat", base_url=provider.base_url, models={"scripted": Model(context=8_000, output=500)}
    )
    return made


def _notes(folder: Path, count: int) -> SessionId:
    """A session in a new store there, with so many messages."""
    database, session = open_store(folder / "sessions.db"), SessionId("ses_noted")
    notes = [SyntheticAdded(message_id=MessageId(f"msg_{number}"), text="A note.") for number in range(count)]
    created = SessionCreated(title="Noted", location=Location(directory=str(folder)))
    append(database, session, created, *notes)
    database.close()
    return session


async def test_an_interrupt_while_results_are_pruned_leaves_no_history_that_still_has_them(tmp_path: Path) -> None:
    """What the session keeps between turns must not be older than what is stored, also while no new epoch can begin."""
    commits, tool = HeldCommits(), ScriptedTool("look", lambda _: LONG)
    value: list[str | Unavailable] = ["there"]

    async def load() -> str | Unavailable:
        return value[0]

    fact = ContextSource(
        key="acme/fact", codec=codec_of(str), load=load, baseline=lambda state: state, update=lambda _, state: state
    )

    def respond(request: Request) -> Answer:
        if request.messages[-1]["role"] == "user" and "look" in str(request.messages[-1]["content"]):
            return answer(tool_call("look", {"value": "x"}))
        return answer(text("Seen."))

    session = _notes(tmp_path, 40)
    async with (
        open_provider(respond=respond) as provider,
        open_house(provider, tmp_path, tools=[tool.tool], settings=_small_model(provider), blocking=commits) as house,
    ):
        house.runtime.context.register(fact)
        turns = 0
        while turns < 5:
            turns += 1
            assert await house.ask(session, f"look {turns}") == CompletedOutcome()
        assert await house.data(session, ToolPruned) == []
        await house.admit(session, f"Enough. {LONG}")
        commits.commits = 1
        resumed = house.task(lambda: house.sessions.resume(session))
        await commits.held.wait()
        stopped = house.task(lambda: house.sessions.interrupt(session))
        await wait_all_tasks_blocked()
        commits.let_go.set()
        await stopped.result()
        await resumed.result()
        assert len(await house.data(session, ToolPruned)) == 1
        value[0] = Unavailable()
        assert await house.ask(session, "And now?") == CompletedOutcome()
        assert len(await house.data(session, EpochStarted)) == 1
        results = [line for role, line in said(provider.requests[-1]) if role == "tool"]
        assert results[0].startswith("[This old result was removed")
        assert await house.data(session, CompactionStarted) == []


# --- a disk that is full ------------------------------------------------------------------------------------------------


@contextmanager
def _full_disk(store: Path) -> Generator[None]:
    """No file of this process can grow beyond what the write-ahead log has now; no write of that log succeeds."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (Path(f"{store}-wal").stat().st_size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


async def test_a_disk_that_fills_up_in_the_middle_of_a_turn_stops_that_turn_alone(tmp_path: Path) -> None:
    held = hold()
    async with scripted_house(tmp_path, answer(text("Half"), held, text(" and half"))) as house:
        session = await house.session()
        await house.admit(session, "Hello")
        resumed = house.task(lambda: house.sessions.resume(session))
        await held.reached.wait()
        await wait_all_tasks_blocked()
        with _full_disk(house.path):
            held.release()
            assert isinstance(await resumed.result(), FailedOutcome)
            with pytest.raises(StorageUnavailableError):
                await house.sessions.prompt(session, "Lost")
            assert not await house.sessions.active()
        assert await house.ask(session, "Once more") == CompletedOutcome()
        assert "Lost" not in str(await house.history(session))


async def test_a_disk_that_fills_up_in_the_middle_of_a_fork_shows_no_part_of_it(tmp_path: Path) -> None:
    commits, session, ticks = HeldCommits(), _notes(tmp_path, 1_500), Ticks()
    async with scripted_house(tmp_path, blocking=commits, ticks=ticks, check=False) as house:
        commits.commits = 1
        forked = house.task(lambda: house.sessions.fork(session))
        await commits.held.wait()
        with _full_disk(house.path):
            commits.let_go.set()
            with pytest.raises(StorageUnavailableError):
                await forked.result()
        assert [one.id for one in (await house.sessions.list()).items] == [session]
        assert raw(house.path, "SELECT count(*) FROM session WHERE hidden = 1") == [(1,)]
        whole = await house.sessions.fork(session)
        assert raw(house.path, "SELECT count(*) FROM session") == [(2,)], "the next fork swept what the first had to leave"
        assert whole.head == (await house.sessions.get(session)).head + 1
    async with scripted_house(tmp_path, ticks=ticks) as house:
        assert {one.id for one in (await house.sessions.list()).items} == {session, whole.id}


# --- a client that gives up ---------------------------------------------------------------------------------------------


def test_a_client_that_is_cancelled_lets_go_of_its_block(tmp_path: Path) -> None:
    """In a thread of its own: what hangs here cannot be cancelled."""

    async def give_up() -> None:
        async with scripted_house(tmp_path) as house:
            listening = await house.runtime.listen(host="127.0.0.1", port=0, token="token")
            with trio.CancelScope() as scope:
                async with connect(listening.url, token="token") as client:
                    await client.sessions.active()
                    scope.cancel()
                    await trio.sleep_forever()

    thread = threading.Thread(target=trio.run, args=(give_up,), daemon=True)
    thread.start()
    thread.join(3)
    assert not thread.is_alive()
