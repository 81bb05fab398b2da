"""Letters of a session one by one, and its life in memory."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from steerway.actors.blocking import Threads
from steerway.actors.session import registry
from steerway.actors.session.actor import SessionActor
from steerway.actors.session.registry import SessionRegistry
from steerway.protocol.values import (
    Activity,
    CompletedOutcome,
    FailedOutcome,
    IdleOutcome,
    Location,
    MessageId,
    ModelRef,
    Outcome,
    PromotedOutcome,
    PromptAdmitted,
    PromptPromoted,
    PromptWithdrawn,
    SessionId,
    TurnCompleted,
    WithdrawnOutcome,
)
from steerway.protocol.values.errors import (
    AgentNotFoundError,
    ClientError,
    ConflictError,
    InboxFullError,
    InvalidRequestError,
    ModelUnavailableError,
    PromptNotFoundError,
    SessionNotFoundError,
)
from support.answers import answer, hold, status, text
from support.house import Task, Ticks, open_house, scripted_house
from support.provider import open_provider

UNKNOWN = SessionId("ses_unknown")


# --- withdraw -----------------------------------------------------------------------------------------------------


async def test_a_pending_prompt_is_withdrawn_once_and_its_id_stays_taken(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        receipt = await house.admit(session, "Hello", id=MessageId("msg_1"))
        assert await house.sessions.withdraw(session, receipt.id) == WithdrawnOutcome()
        assert await house.sessions.withdraw(session, receipt.id) == WithdrawnOutcome()
        assert await house.pending(session) == []
        assert len(await house.data(session, PromptWithdrawn)) == 1
        again = await house.sessions.prompt(session, "Hello", id=receipt.id)
        assert again.withdrawn_seq == receipt.admitted_seq + 1
        await house.sessions.wait(session)
        assert house.provider.requests == []
        with pytest.raises(ConflictError):
            await house.admit(session, "Other", id=receipt.id)


async def test_a_lost_receipt_can_be_asked_for_after_the_delivery_was_changed(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        receipt = await house.admit(session, "Hello", id=MessageId("msg_1"), delivery="queue")
        changed = await house.sessions.redeliver(session, receipt.id, "steer")
        await house.sessions.wait(session)
        again = await house.admit(session, "Hello", id=receipt.id, delivery="queue")
        assert (again.delivery, again.admitted_seq, again.prompt) == ("steer", changed.admitted_seq, changed.prompt)
        assert again.promoted_seq is not None
        with pytest.raises(ConflictError):
            await house.admit(session, "Hello", id=receipt.id, delivery="steer")
        assert len(await house.data(session, PromptAdmitted)) == 1


async def test_a_withdrawal_that_comes_late_says_that_promotion_won(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        receipt = await house.admit(session, "Hello")
        await house.sessions.resume(session)
        fate = await house.sessions.withdraw(session, receipt.id)
        (promoted,) = [event for event in await house.events(session) if isinstance(event.data, PromptPromoted)]
        assert fate == PromotedOutcome(promoted_seq=promoted.seq or 0)


async def test_only_the_sessions_own_prompts_can_be_withdrawn(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        session, other = await house.session(), await house.session()
        receipt = await house.admit(other, "Hello")
        for id in (receipt.id, MessageId("msg_never")):
            with pytest.raises(PromptNotFoundError):
                await house.sessions.withdraw(session, id)
        assert await house.pending(other) == [receipt.id]


async def test_withdrawal_and_promotion_race_and_one_of_them_wins(tmp_path: Path) -> None:
    async with scripted_house(tmp_path, blocking=Threads()) as house:
        session = await house.session()
        for number in range(10):
            receipt = await house.admit(session, f"Prompt {number}")
            resumed = house.task(lambda: house.sessions.resume(session))
            fate = await house.sessions.withdraw(session, receipt.id)
            await resumed.result()
            fates = await house.data(session, PromptPromoted, PromptWithdrawn)
            assert isinstance(fates[-1], PromptPromoted) == isinstance(fate, PromotedOutcome)
            assert len(fates) == number + 1


# --- limits and refusals ------------------------------------------------------------------------------------------


async def test_an_inbox_takes_its_limit_and_not_one_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steerway.actors.runtime.MAX_PENDING", 3)
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        receipts = [await house.admit(session, f"Prompt {number}") for number in range(3)]
        with pytest.raises(InboxFullError) as caught:
            await house.admit(session, "One more")
        assert caught.value.fields["limit"] == 3
        assert await house.admit(session, "Prompt 0", id=receipts[0].id) == receipts[0]  # a retry is no new input
        await house.sessions.withdraw(session, receipts[0].id)
        await house.admit(session, "One more")
        assert len(await house.pending(session)) == 3


async def test_pipelined_prompts_respect_the_limit_and_keep_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ruling A11, and the limit counts what is still being committed."""
    monkeypatch.setattr("steerway.actors.runtime.MAX_PENDING", 5)
    async with scripted_house(tmp_path, blocking=Threads()) as house:
        session = await house.session()
        sent: list[str] = []
        refused: list[str] = []

        async def send(words: str) -> None:
            sent.append(words)
            try:
                await house.admit(session, words)
            except InboxFullError:
                refused.append(words)

        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(send, f"Prompt {number}")
        assert set(refused) == set(sent[5:])  # who is woken first is trio's choice
        assert [data.prompt.text for data in await house.data(session, PromptAdmitted)] == sent[:5]


async def test_every_letter_to_an_unknown_session_says_so(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        sessions = house.sessions
        for call in (
            lambda: sessions.prompt(UNKNOWN, "Hello"),
            lambda: sessions.withdraw(UNKNOWN, MessageId("msg_1")),
            lambda: sessions.interrupt(UNKNOWN),
            lambda: sessions.resume(UNKNOWN),
            lambda: sessions.wait(UNKNOWN),
            lambda: sessions.get(UNKNOWN),
            lambda: sessions.pending(UNKNOWN),
            lambda: sessions.messages(UNKNOWN),
            lambda: house.events(UNKNOWN),
        ):
            with pytest.raises(SessionNotFoundError):
                await call()
        assert (await sessions.create(id=UNKNOWN)).id == UNKNOWN  # asking has not spoilt the id


async def test_a_letter_that_follows_the_creation_in_one_breath_finds_the_session(tmp_path: Path) -> None:
    """Ruling A10: a missing session has its mailbox at once."""
    async with scripted_house(tmp_path, blocking=Threads()) as house:
        created = house.task(lambda: house.sessions.create(id=UNKNOWN))
        await trio.lowlevel.checkpoint()
        while not created.done:
            try:
                await house.admit(UNKNOWN, "Hello", id=MessageId("msg_1"))
                break
            except SessionNotFoundError:
                continue
        await created.result()
        await house.admit(UNKNOWN, "Hello", id=MessageId("msg_1"))
        assert await house.types(UNKNOWN) == ["created", "prompt.admitted"]


async def test_a_session_needs_a_directory_and_a_parent_that_exist(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        for directory in ("relative", str(tmp_path / "nowhere"), "/\0"):
            with pytest.raises(InvalidRequestError) as caught:
                await house.session(location=Location(directory=directory))
            assert caught.value.fields["field"] == "location.directory"
        with pytest.raises(SessionNotFoundError):
            await house.session(parent_id=UNKNOWN)
        with pytest.raises(SessionNotFoundError):
            await house.session(parent_id=UNKNOWN, location=Location(directory=str(tmp_path)))
        assert (await house.sessions.list()).items == ()


async def test_a_child_inherits_the_location_of_its_parent(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    async with scripted_house(tmp_path) as house:
        parent = await house.session(location=Location(directory=str(place)))
        child = await house.sessions.create(parent_id=parent)
        assert child.location.directory == str(place)
        assert [item.id for item in (await house.sessions.list(parent_id=parent)).items] == [child.id]


# --- waiting ------------------------------------------------------------------------------------------------------


async def test_wait_starts_nothing_and_is_answered_at_once_when_idle(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        await house.admit(session, "Hello")
        assert await house.sessions.wait(session) == IdleOutcome()
        assert house.provider.requests == []


async def test_a_wait_sent_after_the_receipt_waits_for_the_work_it_caused(tmp_path: Path) -> None:
    """Ruling C3."""
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        for number in range(5):
            await house.sessions.prompt(session, f"Prompt {number}")
            await house.sessions.wait(session)
            assert len(await house.data(session, TurnCompleted)) == number + 1


async def test_a_call_that_times_out_leaves_the_work_alone(tmp_path: Path, autojump_clock: MockClock) -> None:
    held = hold()
    async with scripted_house(tmp_path, answer(text("Half"), held)) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Hello")
        await held.reached.wait()
        with pytest.raises(ClientError) as caught:
            await house.sessions.wait(session, timeout=3)
        assert caught.value.reason == "timeout"
        assert set(await house.sessions.active()) == {session}
        held.release()
        assert await house.sessions.wait(session) == IdleOutcome()


# --- create -------------------------------------------------------------------------------------------------------


async def test_a_session_that_exists_is_answered_whatever_else_is_asked_for(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Also when it is not in memory; what it was asked for with may have gone from the configuration meanwhile."""
    wrong: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"agent": "nobody"}, AgentNotFoundError),
        ({"model": ModelRef(provider="nobody", id="nothing")}, ModelUnavailableError),
        ({"model": ModelRef(provider="x" * 201, id="y")}, InvalidRequestError),
        ({"metadata": {"a": "x" * 70_000}}, InvalidRequestError),
        ({"location": Location(directory="nowhere")}, InvalidRequestError),
    ]
    async with scripted_house(tmp_path) as house:
        session = await house.sessions.create(id=SessionId("ses_mine"), title="Mine")
        for fields, error in wrong:
            assert await house.sessions.create(id=session.id, **fields) == session
            await trio.sleep(3600)
            assert await house.sessions.create(id=session.id, **fields) == session
            with pytest.raises(error):
                await house.sessions.create(id=SessionId("ses_other"), **fields)
            with pytest.raises(error):
                await house.sessions.create(**fields)
        assert len((await house.sessions.list()).items) == 1


# --- in memory and out --------------------------------------------------------------------------------------------


async def test_an_idle_session_leaves_memory_and_comes_back_with_everything(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[SessionId] = []
    original = SessionActor.run

    async def run(self: SessionActor) -> None:
        try:
            await original(self)
        finally:
            ended.append(self.session_id)

    monkeypatch.setattr(SessionActor, "run", run)
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        await house.ask(session, "Hello")
        waiting = await house.admit(session, "Later")
        assert (await house.sessions.get(session)).last_outcome == CompletedOutcome()
        await trio.sleep(3600)
        assert ended == [session]
        assert (await house.sessions.get(session)).last_outcome == CompletedOutcome()
        assert (await house.sessions.attach(session)).session.last_outcome == CompletedOutcome()
        assert await house.pending(session) == [waiting.id]
        assert await house.sessions.resume(session) == CompletedOutcome()
        assert len(house.provider.requests) == 2


async def test_how_the_last_run_ended_is_known_after_leaving_memory_for_so_many_sessions(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "MAX_OUTCOMES", 2)
    async with scripted_house(tmp_path, *(status(400) for _ in range(3))) as house:
        outcomes: dict[SessionId, Outcome] = {}
        for _ in range(3):
            session = await house.session()
            outcomes[session] = await house.ask(session, "Hello")
            await trio.sleep(3600)
        first, second, third = outcomes
        resident = await house.session()
        await house.ask(resident, "Hello")
        page = await house.sessions.list()
        shown = {session.id: session.last_outcome for session in page.items}
        assert shown == {first: None, second: outcomes[second], third: outcomes[third], resident: CompletedOutcome()}
        assert isinstance(outcomes[third], FailedOutcome)


async def test_a_session_whose_waiters_have_given_up_leaves_memory(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    dismissed: list[int] = []
    original = SessionRegistry.dismiss_idle

    def dismiss(self: SessionRegistry) -> int:
        dismissed.append(original(self))
        return dismissed[-1]

    monkeypatch.setattr(SessionRegistry, "dismiss_idle", dismiss)
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        receipt = await house.admit(session, "Later")
        with pytest.raises(ClientError):
            await house.sessions.wait_prompt(session, receipt.id, timeout=1)
        await trio.sleep(3600)
        assert sum(dismissed) == 1


async def test_a_working_session_does_not_leave_memory(tmp_path: Path, autojump_clock: MockClock) -> None:
    held = hold()
    every_minute = [part for _ in range(20) for part in text(["x"])]
    async with scripted_house(tmp_path, answer(text([part.text for part in every_minute], every=60), held)) as house:  # type: ignore[union-attr]
        session = await house.session()
        watch = await house.watch()
        await house.sessions.prompt(session, "Hello")
        await held.reached.wait()
        assert trio.current_time() > 1_000
        assert set(await house.sessions.active()) == {session}
        held.release()
        await house.sessions.wait(session)
        await wait_all_tasks_blocked()
        assert [activity.state for activity in watch.of(Activity)] == ["running", "idle"]


async def test_what_was_admitted_is_there_after_a_restart_and_waits_for_a_wake(tmp_path: Path) -> None:
    ticks = Ticks()
    async with open_provider() as provider:
        async with open_house(provider, tmp_path, ticks=ticks) as house:
            session = await house.session()
            ids = [(await house.admit(session, f"Prompt {number}")).id for number in range(3)]
        async with open_house(provider, tmp_path, ticks=ticks) as house:
            assert await house.pending(session) == ids
            await wait_all_tasks_blocked()
            assert provider.requests == []
            await house.sessions.resume(session)
            assert await house.pending(session) == []
            assert len(provider.requests) == 1


async def test_a_prompt_that_follows_the_creation_of_a_child_in_one_breath_finds_it(tmp_path: Path) -> None:
    """Ruling A11: the child takes its parent's location in its own transaction, so no read comes before its letter."""
    async with scripted_house(tmp_path, blocking=Threads()) as house:
        folder = tmp_path / "elsewhere"
        folder.mkdir()
        parent = await house.sessions.create(location=Location(directory=str(folder)))
        async with trio.open_nursery() as nursery:
            created = Task(nursery, partial(house.sessions.create, id=UNKNOWN, parent_id=parent.id))
            await wait_all_tasks_blocked()
            receipt = await house.sessions.prompt(UNKNOWN, "Hello", resume=False)
            child = await created.result()
        assert (child.location, child.parent_id) == (parent.location, parent.id)
        assert await house.pending(UNKNOWN) == [receipt.id]


async def test_the_inbox_never_grows_beyond_what_one_answer_can_carry(tmp_path: Path) -> None:
    """A client that joins is shown all that waits, in one message."""
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        first = await house.sessions.prompt(session, "x" * 8_000_000, resume=False)
        with pytest.raises(InboxFullError, match="bytes"):
            await house.sessions.prompt(session, "y" * 8_000_000, resume=False)
        second = await house.sessions.prompt(session, "z" * 4_000_000, resume=False)
        assert await house.pending(session) == [first.id, second.id]
        assert len((await house.sessions.attach(session)).pending) == 2
        await house.sessions.withdraw(session, first.id)
        assert (await house.sessions.prompt(session, "y" * 8_000_000, resume=False)).promoted_seq is None
