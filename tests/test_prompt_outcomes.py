"""What becomes of a prompt: `wait_prompt` in every case (ruling C3), and changes to prompts that wait, also in a race."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from steerway.protocol.values import (
    CompletedOutcome,
    FailedOutcome,
    InterruptedOutcome,
    MessageId,
    PromptPromoted,
    PromptRedelivered,
    PromptWithdrawn,
    RetryScheduled,
    SessionId,
    ToolSucceeded,
    TurnCompleted,
)
from steerway.protocol.values.errors import ConflictError, PromptNotFoundError, SessionNotFoundError
from steerway.protocol.values.failure import PROVIDER_INVALID_REQUEST
from steerway.protocol.values.session import PromotedOutcome, WithdrawnOutcome
from support.answers import answer, cut, hold, status, stream, text, tool_call
from support.house import OTHER, Ticks, open_house, said, scripted_house
from support.provider import open_provider
from support.tools import HeldTool

FIRST, SECOND = MessageId("msg_first"), MessageId("msg_second")


# --- outcomes -----------------------------------------------------------------------------------------------------


async def test_a_prompt_is_completed_by_the_last_turn_of_its_tool_loop(tmp_path: Path) -> None:
    tool = HeldTool("look")
    held = hold()
    script = [answer(tool_call("look")), answer(held, text("Done."))]
    async with scripted_house(tmp_path, *script, tools=[tool.tool]) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Look", id=FIRST)
        waiting = house.task(lambda: house.sessions.wait_prompt(session, FIRST))
        await tool.wait_started()
        tool.release()
        await held.reached.wait()
        await wait_all_tasks_blocked()
        assert len(await house.data(session, ToolSucceeded)) == 1
        assert not waiting.done
        held.release()
        assert await waiting.result() == CompletedOutcome()
        assert await house.sessions.wait_prompt(session, FIRST) == CompletedOutcome()


async def test_a_failed_turn_is_the_outcome_of_the_prompts_it_was_for(tmp_path: Path) -> None:
    async with scripted_house(tmp_path, status(400)) as house:
        session = await house.session()
        await house.admit(session, "One", id=FIRST)
        await house.admit(session, "Two", id=SECOND)
        waiting = [house.task(lambda id=id: house.sessions.wait_prompt(session, id)) for id in (FIRST, SECOND)]
        await wait_all_tasks_blocked()
        joined = await house.sessions.resume(session)
        for task in waiting:
            outcome = await task.result()
            assert isinstance(outcome, FailedOutcome)
            assert outcome == joined
            assert outcome.error.type == PROVIDER_INVALID_REQUEST


async def test_an_interrupted_turn_is_the_outcome_of_its_prompt(tmp_path: Path) -> None:
    held = hold()
    async with scripted_house(tmp_path, answer(text("Half"), held)) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Hello", id=FIRST)
        waiting = house.task(lambda: house.sessions.wait_prompt(session, FIRST))
        await held.reached.wait()
        await house.sessions.interrupt(session)
        assert await waiting.result() == InterruptedOutcome(reason="user")
        assert await house.sessions.wait_prompt(session, FIRST) == InterruptedOutcome(reason="user")


async def test_what_still_waits_behind_an_interrupt_is_waited_for(tmp_path: Path) -> None:
    held = hold()
    async with scripted_house(tmp_path, answer(text("Half"), held)) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Hello", id=FIRST)
        await held.reached.wait()
        await house.sessions.prompt(session, "And", id=SECOND)
        waiting = house.task(lambda: house.sessions.wait_prompt(session, SECOND))
        await house.sessions.interrupt(session)
        await wait_all_tasks_blocked()
        assert not waiting.done
        await house.sessions.resume(session)
        assert await waiting.result() == CompletedOutcome()


async def test_an_interrupt_between_two_turns_of_a_tool_loop_is_the_outcome(tmp_path: Path) -> None:
    tool = HeldTool("look")
    async with scripted_house(tmp_path, answer(tool_call("look")), tools=[tool.tool]) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Look", id=FIRST)
        waiting = house.task(lambda: house.sessions.wait_prompt(session, FIRST))
        await tool.wait_started()
        await house.sessions.interrupt(session)
        assert await waiting.result() == InterruptedOutcome(reason="user")


async def test_a_withdrawn_prompt_is_withdrawn_for_those_who_wait(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        await house.admit(session, "Hello", id=FIRST)
        waiting = house.task(lambda: house.sessions.wait_prompt(session, FIRST))
        await wait_all_tasks_blocked()
        assert not waiting.done
        assert await house.sessions.withdraw(session, FIRST) == WithdrawnOutcome()
        assert await waiting.result() == WithdrawnOutcome()
        assert await house.sessions.wait_prompt(session, FIRST) == WithdrawnOutcome()
        assert house.provider.requests == []


async def test_a_cut_answer_is_not_the_outcome_as_long_as_it_is_gone_on_from(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with scripted_house(tmp_path, stream(text("Half"), cut()), answer(text("and half"))) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Hello", id=FIRST)
        assert await house.sessions.wait_prompt(session, FIRST) == CompletedOutcome()
        assert len(house.provider.requests) == 2


async def test_a_superseded_request_is_not_the_outcome(tmp_path: Path, autojump_clock: MockClock) -> None:
    before = hold()
    async with scripted_house(tmp_path, status(503, before=[before])) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Hello", id=FIRST)
        await before.reached.wait()
        await house.sessions.prompt(session, "Rather", id=SECOND)
        before.release()
        for id in (FIRST, SECOND):
            assert await house.sessions.wait_prompt(session, id) == CompletedOutcome()
        assert said(house.provider.requests[1]) == [("user", "Hello"), ("user", "Rather")]


async def test_a_cut_answer_whose_continuation_fails_is_a_failure(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with scripted_house(tmp_path, stream(text("Half"), cut()), status(400)) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Hello", id=FIRST)
        outcome = await house.sessions.wait_prompt(session, FIRST)
        assert isinstance(outcome, FailedOutcome)
        assert outcome.error.type == PROVIDER_INVALID_REQUEST


async def test_outcomes_are_the_same_after_a_restart(tmp_path: Path) -> None:
    """They are derived from the log, never from what a process remembers."""
    ticks = Ticks()
    ids = [MessageId(f"msg_{number}") for number in range(4)]
    async with open_provider(answer(text("Yes")), status(400), answer(text("Half"), hold())) as provider:
        async with open_house(provider, tmp_path, ticks=ticks) as house:
            session = await house.session()
            outcomes: list[Any] = []
            for id in ids[:2]:
                await house.sessions.prompt(session, "Hello", id=id)
                outcomes.append(await house.sessions.wait_prompt(session, id))
            await house.admit(session, "Never mind", id=ids[3])
            await house.sessions.withdraw(session, ids[3])
            await house.sessions.prompt(session, "Hello", id=ids[2])
            await provider.wait_request(3)
        outcomes += [InterruptedOutcome(reason="shutdown"), WithdrawnOutcome()]
        async with open_house(provider, tmp_path, ticks=ticks) as house:
            assert [await house.sessions.wait_prompt(session, id) for id in ids] == outcomes


@pytest.mark.parametrize(("name", "more"), [("wait_prompt", ()), ("withdraw", ()), ("redeliver", ("queue",))])
async def test_an_unknown_prompt_and_one_of_another_session_are_not_found(
    tmp_path: Path, name: str, more: tuple[str, ...]
) -> None:
    async with scripted_house(tmp_path) as house:
        session, other = await house.session(), await house.session()
        await house.admit(other, "Hello", id=FIRST)
        for id in (FIRST, MessageId("msg_unknown")):
            with pytest.raises(PromptNotFoundError):
                await getattr(house.sessions, name)(session, id, *more)
        with pytest.raises(SessionNotFoundError):
            await getattr(house.sessions, name)(SessionId("ses_unknown"), FIRST, *more)
        assert await house.pending(other) == [FIRST]


# --- redelivery and withdrawal ------------------------------------------------------------------------------------


async def test_a_queued_prompt_that_becomes_a_steer_wakes_its_session(tmp_path: Path) -> None:
    """Scenario 21."""
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        first = await house.admit(session, "Hello", id=FIRST, delivery="queue")
        redelivered = await house.sessions.redeliver(session, FIRST, "steer")
        assert (redelivered.delivery, redelivered.admitted_seq) == ("steer", first.admitted_seq)
        assert await house.sessions.wait_prompt(session, FIRST) == CompletedOutcome()
        with pytest.raises(ConflictError):
            await house.sessions.redeliver(session, FIRST, "queue")


async def test_a_steer_that_becomes_queued_waits_for_the_idle_boundary(tmp_path: Path) -> None:
    tool = HeldTool("look")
    script = [answer(tool_call("look")), answer(text("One"))]
    async with scripted_house(tmp_path, *script, tools=[tool.tool]) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Look")
        await tool.wait_started()
        await house.sessions.prompt(session, "Later", id=FIRST)
        await house.sessions.redeliver(session, FIRST, "queue")
        tool.release()
        await house.sessions.wait(session)
        assert ("user", "Later") not in said(house.provider.requests[1])
        assert said(house.provider.requests[2])[-2:] == [("assistant", "One"), ("user", "Later")]


async def test_a_redelivered_steer_keeps_its_place_among_the_others(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        await house.admit(session, "One", id=FIRST, delivery="queue")
        await house.admit(session, "Two", id=SECOND)
        await house.sessions.redeliver(session, FIRST, "steer")
        await house.sessions.wait(session)
        assert said(house.provider.requests[0]) == [("user", "One"), ("user", "Two")]


async def test_the_same_delivery_again_and_a_prompt_that_left_are_conflicts(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        await house.admit(session, "One", id=FIRST, delivery="queue")
        with pytest.raises(ConflictError):
            await house.sessions.redeliver(session, FIRST, "queue")
        await house.sessions.withdraw(session, FIRST)
        with pytest.raises(ConflictError):
            await house.sessions.redeliver(session, FIRST, "steer")
        assert await house.data(session, PromptRedelivered) == []


async def test_a_withdrawn_prompt_cannot_be_admitted_again(tmp_path: Path) -> None:
    """The same prompt under the same id gets its receipt, which tells its fate."""
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        await house.admit(session, "Hello", id=FIRST)
        await house.sessions.withdraw(session, FIRST)
        again = await house.sessions.prompt(session, "Hello", id=FIRST)
        assert again.withdrawn_seq is not None
        await house.sessions.wait(session)
        assert await house.pending(session) == []
        assert house.provider.requests == []


async def test_a_withdrawal_in_a_race_with_promotion_says_who_won(tmp_path: Path) -> None:
    """At every moment of a drain's start exactly one fate, and the answer names it."""
    winners: set[str] = set()
    async with scripted_house(tmp_path) as house:
        for steps in range(0, 60, 2):
            session = await house.session()
            prompt = (await house.admit(session, "Hello")).id
            joined = house.task(lambda session=session: house.sessions.resume(session))
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            outcome = await house.sessions.withdraw(session, prompt)
            await joined.result()
            promoted = await house.data(session, PromptPromoted)
            withdrawn = await house.data(session, PromptWithdrawn)
            assert len(promoted) + len(withdrawn) == 1
            assert isinstance(outcome, PromotedOutcome) == bool(promoted)
            expected = CompletedOutcome() if promoted else WithdrawnOutcome()
            assert await house.sessions.wait_prompt(session, prompt) == expected
            winners.add(outcome.__struct_config__.tag)  # type: ignore[arg-type]
    assert winners == {"promoted", "withdrawn"}


async def test_a_prompt_withdrawn_during_a_turn_is_not_in_the_next(tmp_path: Path) -> None:
    held = hold()
    async with scripted_house(tmp_path, answer(text("Hi"), held)) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Hello")
        await held.reached.wait()
        await house.sessions.prompt(session, "Not this", id=FIRST)
        await house.sessions.withdraw(session, FIRST)
        held.release()
        await house.sessions.wait(session)
        assert len(house.provider.requests) == 1
        assert len(await house.data(session, TurnCompleted)) == 1


async def test_waiting_for_a_prompt_starts_nothing(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        await house.admit(session, "Hello", id=FIRST)
        with trio.move_on_after(0.05) as limit:
            await house.sessions.wait_prompt(session, FIRST)
        assert limit.cancelled_caught
        assert await house.sessions.active() == {}
        assert house.provider.requests == []
        assert await house.pending(session) == [FIRST]


async def test_a_switch_of_the_model_is_no_outcome(tmp_path: Path) -> None:
    before = hold()
    async with scripted_house(tmp_path, status(429, headers={"Retry-After": "300"}, before=[before])) as house:
        session = await house.session()
        watch = await house.watch()
        await house.sessions.prompt(session, "Hello", id=FIRST)
        waiting = house.task(lambda: house.sessions.wait_prompt(session, FIRST))
        await before.reached.wait()
        before.release()
        await watch.until(RetryScheduled)
        await house.sessions.switch_model(session, OTHER)
        assert await waiting.result() == CompletedOutcome()
