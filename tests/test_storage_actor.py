"""The storage actor: what happens in which order around a commit, and what one writer's chain means.

Long, because all orders are told with the same few transactions.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import apsw
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from steerway.actors.blocking import Blocking, Inline, InlineWorker, Threads, Worker
from steerway.actors.feed import Feed
from steerway.actors.storage import IDLE_SECONDS, Chain, StorageActor
from steerway.protocol.values import Event, MessageId, PartId, SessionId, TextDelta, decode_event
from steerway.protocol.values.errors import (
    ConflictError,
    ServiceUnavailableError,
    SessionNotFoundError,
    StorageUnavailableError,
)
from steerway.storage.connections import connect_reader
from steerway.storage.database import Database
from steerway.storage.journal import StoredEvent
from steerway.storage.reader import Reader
from support.stores import appending, open_store, session_created

T = TypeVar("T")
ONE, TWO, THREE = (SessionId(f"ses_{name}") for name in ("one", "two", "three"))


class Gate(Inline):
    """In-line work whose commits wait until the gate is opened: so groups form as a test wants."""

    def __init__(self) -> None:
        self.opened = trio.Event()
        self.groups = 0

    def worker(self, name: str) -> Worker:
        gate = self

        class Gated(InlineWorker):
            async def run(self, work: Callable[[], T]) -> T:
                gate.groups += 1
                await gate.opened.wait()
                return await super().run(work)

        return Gated()


class Recorder(Feed):
    """A feed that writes down what is published, in one diary with everything else."""

    def __init__(self, diary: list[str]) -> None:
        super().__init__(lambda: 1)
        self.diary = diary

    def publish(self, events: Sequence[StoredEvent]) -> None:
        self.diary += [f"published {event.session_id}" for event in events]

    def publish_live(self, event: Event) -> None:
        assert isinstance(event.data, TextDelta)
        self.diary.append(f"live {event.data.delta}")


class Opened:
    def __init__(self, actor: StorageActor, database: Database, diary: list[str]) -> None:
        self.actor = actor
        self.database = database
        self.diary = diary

    def note(self, line: str) -> Callable[[Any], None]:
        """A continuation that writes a line, with the error's name if there is one."""

        def write(result: Any) -> None:
            self.diary.append(f"{line} {type(result).__name__}" if isinstance(result, Exception) else line)

        return write


@asynccontextmanager
async def opened(folder: Path, blocking: Blocking | None = None) -> AsyncGenerator[Opened]:
    diary: list[str] = []
    database = open_store(folder / "sessions.db")
    async with trio.open_nursery() as nursery:
        actor = StorageActor(database, Recorder(diary), blocking or Inline())
        await nursery.start(actor.run)
        try:
            yield Opened(actor, database, diary)
        finally:
            actor.close()
    database.close()


def creating(session_id: SessionId) -> Callable[[Any], Any]:
    return appending(session_id, session_created())


def delta(text: str) -> Event:
    data = TextDelta(assistant_message_id=MessageId("msg_1"), part_id=PartId("prt_1"), offset=0, delta=text)
    return Event(type=data.type, created=1, data=data, session_id=ONE)


def refusing(error: Exception) -> Callable[[Any], Any]:
    def work(transaction: Any) -> None:
        creating(TWO)(transaction)
        raise error

    return work


async def test_views_advance_then_events_are_published_then_waiters_wake(tmp_path: Path) -> None:
    """Rulings A1 and A2, member by member in commit order."""
    gate = Gate()
    async with opened(tmp_path, gate) as house:
        diary = house.diary

        async def wait(answer: Any, name: str) -> None:
            await answer.wait()
            diary.append(f"woke {name}")

        async with trio.open_nursery() as nursery:
            for session_id, name in ((ONE, "one"), (TWO, "two")):
                answer = house.actor.post(creating(session_id), then=house.note(f"advanced {name}"))
                answer.when_done(lambda _, name=name: diary.append(f"answered {name}"))
                nursery.start_soon(wait, answer, name)
            await wait_all_tasks_blocked()
            gate.opened.set()
        assert diary[:6] == [
            "advanced one",
            "published ses_one",
            "advanced two",
            "published ses_two",
            "answered one",
            "answered two",
        ]
        assert sorted(diary[6:]) == ["woke one", "woke two"]


async def test_what_waits_is_committed_as_one_group_in_order(tmp_path: Path) -> None:
    gate = Gate()
    async with opened(tmp_path, gate) as house:
        answers = [house.actor.post(creating(SessionId(f"ses_{number}"))) for number in range(50)]
        await wait_all_tasks_blocked()
        gate.opened.set()
        for answer in answers:
            await answer.wait()
        assert house.diary == [f"published ses_{number}" for number in range(50)]
        found = house.actor.statistics()
        assert (found.members, found.groups, found.largest_group, found.failed_groups, found.waiting) == (50, 1, 50, 0, 0)


async def test_a_failing_member_is_alone(tmp_path: Path) -> None:
    gate = Gate()
    async with opened(tmp_path, gate) as house:
        before = house.actor.post(creating(ONE))
        failing = house.actor.post(refusing(ConflictError("no")), then=house.note("advanced"))
        behind = house.actor.post(creating(THREE))
        await wait_all_tasks_blocked()
        gate.opened.set()
        await before.wait()
        await behind.wait()
        with pytest.raises(ConflictError):
            failing.result()
        assert house.diary == ["published ses_one", "advanced ConflictError", "published ses_three"]
        with pytest.raises(SessionNotFoundError):
            await house.actor.read(lambda reader: reader.session(TWO))


async def test_a_chain_fails_from_its_first_failure_to_the_gate(tmp_path: Path) -> None:
    """Ruling A4, in one group and over two."""
    gate = Gate()
    async with opened(tmp_path, gate) as house:
        chain, error = Chain(), ConflictError("first")
        first = house.actor.post(refusing(error), chain=chain)
        same_group = house.actor.post(creating(TWO), chain=chain)
        other = house.actor.post(creating(ONE), chain=Chain())
        await wait_all_tasks_blocked()
        gate.opened.set()
        await other.wait()
        later = house.actor.post(creating(THREE), chain=chain, then=house.note("advanced"))
        for answer in (first, same_group, later):
            assert answer.error is error
        assert house.diary == ["published ses_one", "advanced ConflictError"]
        with pytest.raises(ConflictError, match="first"):
            await house.actor.gate(chain)
        await house.actor.gate(chain)  # met once
        await house.actor.post(creating(TWO), chain=chain).wait()


async def test_a_live_event_keeps_its_place_in_the_chain(tmp_path: Path) -> None:
    """Ruling A3: right behind what was posted before it, and at once when nothing is outstanding."""
    gate = Gate()
    async with opened(tmp_path, gate) as house:
        chain = Chain()
        house.actor.post_live(delta("at once"), chain)
        assert house.diary == ["live at once"]
        house.actor.post(creating(ONE), chain=chain)
        house.actor.post_live(delta("a"), chain)
        house.actor.post_live(delta("b"), chain)
        house.actor.post(creating(TWO), chain=chain)
        house.actor.post_live(delta("c"), chain)
        house.actor.post_live(delta("of nobody's"), Chain())
        await wait_all_tasks_blocked()
        gate.opened.set()
        await house.actor.gate(chain)
        assert house.diary[1:] == ["live of nobody's", "published ses_one", "live a", "live b", "published ses_two", "live c"]


async def test_live_events_behind_a_failure_are_dropped_until_the_gate(tmp_path: Path) -> None:
    async with opened(tmp_path) as house:
        chain = Chain()
        house.actor.post(refusing(ConflictError("no")), chain=chain)
        house.actor.post_live(delta("behind"), chain)
        await wait_all_tasks_blocked()
        house.actor.post_live(delta("later"), chain)
        assert house.diary == []
        with pytest.raises(ConflictError):
            await house.actor.gate(chain)
        house.actor.post_live(delta("after"), chain)
        assert house.diary == ["live after"]


async def test_a_cancelled_wait_still_commits(tmp_path: Path) -> None:
    """Ruling A5: a posted transaction always runs, and `commit` always knows how it went."""
    gate = Gate()
    async with opened(tmp_path, gate) as house:
        known: list[Any] = []

        async def commit(scope: trio.CancelScope) -> None:
            with scope:
                known.append(await house.actor.commit(lambda transaction: creating(ONE)(transaction) and "known"))

        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()
            nursery.start_soon(commit, scope)
            posted = house.actor.post(creating(TWO))
            await wait_all_tasks_blocked()
            scope.cancel()
            with trio.move_on_after(0):
                await posted.wait()
            await wait_all_tasks_blocked()
            gate.opened.set()
        assert known == ["known"]
        assert sorted(house.diary) == ["published ses_one", "published ses_two"]


async def test_what_was_posted_before_the_close_is_committed_and_nothing_after(tmp_path: Path) -> None:
    gate = Gate()
    async with opened(tmp_path, gate) as house:
        first = house.actor.post(creating(ONE))
        await wait_all_tasks_blocked()
        second = house.actor.post(creating(TWO))
        house.actor.close()
        third = house.actor.post(creating(THREE), then=house.note("advanced"))
        assert isinstance(third.error, ServiceUnavailableError)
        gate.opened.set()
        await first.wait()
        await second.wait()
        assert house.diary == ["advanced ServiceUnavailableError", "published ses_one", "published ses_two"]
        assert gate.groups == 2


async def test_it_outlives_the_cancellation_of_its_nursery_until_it_is_closed(tmp_path: Path) -> None:
    """Ruling A8."""
    database = open_store(tmp_path / "sessions.db")
    async with trio.open_nursery() as nursery:
        actor = StorageActor(database, Recorder([]), Inline())
        await nursery.start(actor.run)
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await actor.commit(creating(ONE))
            assert (await actor.read(lambda reader: reader.session(ONE))).head == 1
        actor.close()
    database.close()


async def test_a_defect_of_the_writer_ends_the_actor_and_everybody_who_waits_learns_of_it(tmp_path: Path) -> None:
    def interrupt(_: Any) -> None:
        raise KeyboardInterrupt

    answers: list[Any] = []

    async def meet_it() -> None:
        gate = Gate()
        async with opened(tmp_path, gate) as house:
            chain = Chain()
            answers.extend(
                [
                    house.actor.post(creating(ONE)),
                    house.actor.post(interrupt, chain=chain),
                    house.actor.post(creating(TWO)),
                ]
            )
            house.actor.post_live(delta("never"), chain)
            await wait_all_tasks_blocked()
            answers.append(house.actor.post(creating(THREE)))
            gate.opened.set()
            await house.actor.gate(chain)

    with pytest.raises(BaseExceptionGroup) as caught:
        await meet_it()
    assert caught.group_contains(KeyboardInterrupt)
    for posted in answers:
        with pytest.raises(ServiceUnavailableError):
            posted.result()


async def test_a_failing_disk_is_told_to_whoever_reads(tmp_path: Path) -> None:
    def broken(_: Any) -> None:
        raise apsw.IOError("disk I/O error")

    async with opened(tmp_path) as house:
        with pytest.raises(StorageUnavailableError):
            await house.actor.read(broken)


async def test_a_reader_that_is_given_back_after_the_end_is_closed(tmp_path: Path) -> None:
    class Slow(Gate):
        """Readers wait; commits do not."""

        def worker(self, name: str) -> Worker:
            return super().worker(name) if name == "steerway-reader" else InlineWorker()

    def head(reader: Reader) -> int:
        return reader.head(ONE)

    slow = Slow()
    async with trio.open_nursery() as outer:
        async with opened(tmp_path, slow) as house:
            await house.actor.commit(creating(ONE))
            outer.start_soon(house.actor.read, head)
            await wait_all_tasks_blocked()
        slow.opened.set()
    assert vars(house.actor)["_idle_readers"] == []


async def test_a_full_disk_fails_the_group_and_the_next_one_probes(tmp_path: Path) -> None:
    """Ruling A6: nothing of the group is stored, and there is no state to get stuck in."""
    gate = Gate()
    async with opened(tmp_path, gate) as house:
        big = appending(ONE, session_created("x" * 2_000_000))
        house.database.limit_pages(1)
        answers = [house.actor.post(creating(TWO)), house.actor.post(big), house.actor.post(creating(THREE))]
        await wait_all_tasks_blocked()
        gate.opened.set()
        for answer in answers:
            with pytest.raises(StorageUnavailableError):
                await answer.wait()
        assert house.actor.statistics().failed_groups == 1
        house.database.limit_pages(None)
        await house.actor.commit(creating(TWO))
        assert house.diary == ["published ses_two"]


@pytest.mark.parametrize("blocking", [Inline, Threads])
async def test_a_read_sees_every_commit_that_was_answered_before_it(tmp_path: Path, blocking: type[Blocking]) -> None:
    async with opened(tmp_path, blocking()) as house:
        for number in range(20):
            session_id = SessionId(f"ses_{number}")
            await house.actor.commit(creating(session_id))
            assert (await house.actor.read(lambda reader, id=session_id: reader.session(id))).head == 1
        rows = await house.actor.read(lambda reader: reader.events_page(SessionId("ses_0"), 0))
        assert [decode_event(body).seq for _, body in rows] == [1]


async def test_many_reads_share_few_connections_and_a_failing_one_gives_its_back(tmp_path: Path) -> None:
    async with opened(tmp_path, Threads()) as house:
        await house.actor.commit(creating(ONE))
        seen: set[int] = set()

        async def look() -> None:
            for _ in range(5):
                seen.add(await house.actor.read(id))
            with pytest.raises(SessionNotFoundError):
                await house.actor.read(lambda reader: reader.session(TWO))

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(look)
        assert 1 <= len(seen) <= 3


async def test_the_log_is_truncated_in_an_idle_moment_but_no_reader_is_waited_for(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    log = tmp_path / "sessions.db-wal"
    async with trio.open_nursery() as nursery:
        database = open_store(tmp_path / "sessions.db")
        storage = StorageActor(database, Feed(lambda: 1), Inline())
        await nursery.start(storage.run)
        await storage.commit(appending(ONE, session_created()))
        reader = connect_reader(database.path)
        reader.execute("BEGIN").execute("SELECT count(*) FROM event").fetchall()
        await storage.commit(appending(TWO, session_created()))
        await trio.sleep(IDLE_SECONDS + 1)
        assert log.stat().st_size > 0
        reader.close()
        await storage.commit(appending(THREE, session_created()))
        await trio.sleep(IDLE_SECONDS + 1)
        assert log.stat().st_size == 0
        storage.close()
    database.close()
