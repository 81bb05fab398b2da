"""Retries of a provider turn, in virtual time: when they come, what they send, what ends a back-off, and cut answers.

Long, because all kinds of failure are told in the same virtual time.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from steerway.actors.configuration import Agent
from steerway.actors.session.promotion import CUT_INSTRUCTION
from steerway.actors.session.retry import (
    FIRST_DELAY_SECONDS,
    JITTER,
    MAX_EMPTY_ANSWERS,
    MAX_RETRIES,
    MAX_RETRY_AFTER_SECONDS,
    RetryBudget,
)
from steerway.protocol.values import (
    AssistantMessage,
    CompletedOutcome,
    FailedOutcome,
    Interrupted,
    InterruptedOutcome,
    PromptPromoted,
    RetryScheduled,
    TextPart,
    ToolSucceeded,
    TurnCompleted,
    TurnFailed,
    TurnInterrupted,
    TurnStarted,
)
from steerway.protocol.values.failure import (
    PROVIDER_AUTH,
    PROVIDER_CONTENT_FILTER,
    PROVIDER_INCOMPLETE,
    PROVIDER_INTERNAL,
    PROVIDER_INVALID_OUTPUT,
    PROVIDER_INVALID_REQUEST,
    PROVIDER_OVERLOADED,
    PROVIDER_RATE_LIMIT,
    SUPERSEDED,
)
from support.answers import Answer, answer, cut, finish, reasoning, status, stream, text, tool_call
from support.house import OTHER, OpenHouse, configuration, open_house, said, scripted_house
from support.provider import open_provider
from support.tools import ScriptedTool


def failing(count: int, code: int = 503) -> list[Answer]:
    return [status(code) for _ in range(count)]


def gaps(house: OpenHouse) -> list[float]:
    """Seconds between the requests."""
    return [later.at - earlier.at for earlier, later in pairwise(house.provider.requests)]


async def in_back_off(house: OpenHouse, session: Any, count: int = 1) -> None:
    """Wait until so many retries are scheduled."""
    scheduled = 0
    async with house.sessions.events(session) as stream:
        async for event in stream:
            scheduled += isinstance(event.data, RetryScheduled)
            if scheduled == count:
                return


# --- the budget ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("random", [0.0, 0.5, 1.0 - 2**-32])
def test_delays_double_from_two_seconds_and_jitter_only_lengthens_them(random: float) -> None:
    budget = RetryBudget(lambda: random)
    delays = [budget.take(None) for _ in range(MAX_RETRIES + 1)]
    assert delays == [2.0 * 2**number * (1 + JITTER * random) for number in range(4)] + [None]


@pytest.mark.parametrize(
    ("retry_after_ms", "seconds"),
    [(None, 2.0), (0, 2.0), (1_999, 2.0), (5_000, 5.0), (900_000, 900.0), (86_400_000, 900.0)],
)
def test_retry_after_only_raises_a_delay_and_is_capped(retry_after_ms: int | None, seconds: float) -> None:
    assert RetryBudget(lambda: 0.0).take(retry_after_ms) == seconds


def test_a_success_makes_the_budget_whole() -> None:
    budget = RetryBudget(lambda: 0.0)
    for _ in range(3):
        assert [budget.take(None) for _ in range(4)] == [2.0, 4.0, 8.0, 16.0]
        assert budget.take(None) is None
        budget.succeeded()


def test_empty_answers_have_a_smaller_limit_within_the_same_budget() -> None:
    budget = RetryBudget(lambda: 0.0)
    assert [budget.take(None, empty=True) for _ in range(MAX_EMPTY_ANSWERS + 1)] == [2.0, 4.0, None]
    assert [budget.take(None) for _ in range(3)] == [8.0, 16.0, None]


# --- before any output --------------------------------------------------------------------------------------------


async def test_a_failure_is_retried_after_two_seconds_within_the_same_turn(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Scenario 91."""
    async with scripted_house(tmp_path, status(503)) as house:
        session = await house.session()
        before = trio.current_time()
        assert await house.ask(session, "Hello") == CompletedOutcome()
        (delay,) = gaps(house)
        assert FIRST_DELAY_SECONDS <= delay <= FIRST_DELAY_SECONDS * (1 + JITTER) + 0.1
        assert trio.current_time() - before < 3
        first, second = await house.data(session, TurnStarted)
        assert first.assistant_message_id == second.assistant_message_id
        assert (first.attempt, second.attempt) == (1, 2)
        (scheduled,) = await house.data(session, RetryScheduled)
        assert (scheduled.attempt, scheduled.error.type) == (2, PROVIDER_OVERLOADED)
        assistants = [message for message in await house.history(session) if isinstance(message, AssistantMessage)]
        assert [(message.attempt, message.error, message.retry) for message in assistants] == [(2, None, None)]


async def test_a_lasting_failure_is_five_requests_with_their_attempts_and_times(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Scenario 93: the same bytes each time, and the turn fails with the last failure."""
    async with scripted_house(tmp_path, *failing(9)) as house:
        session = await house.session()
        outcome = await house.ask(session, "Hello")
        assert isinstance(outcome, FailedOutcome)
        assert outcome.error.type == PROVIDER_OVERLOADED
        assert len(house.provider.requests) == 1 + MAX_RETRIES
        assert len({request.body for request in house.provider.requests}) == 1
        for number, delay in enumerate(gaps(house)):
            assert 2 * 2**number <= delay <= 2 * 2**number * (1 + JITTER) + 0.1
        assert [started.attempt for started in await house.data(session, TurnStarted)] == [1, 2, 3, 4, 5]
        scheduled = [(e.data, e.created) for e in await house.events(session) if isinstance(e.data, RetryScheduled)]
        assert [data.attempt for data, _ in scheduled] == [2, 3, 4, 5]
        for number, (data, created) in enumerate(scheduled):
            until = (data.at - created) / 1000
            assert 2 * 2**number - 0.1 <= until <= 2 * 2**number * (1 + JITTER)
        (failed,) = await house.data(session, TurnFailed)
        assert (failed.error, failed.continues) == (outcome.error, None)
        await house.sessions.wait(session)
        assert len(house.provider.requests) == 5


async def test_the_budget_is_whole_again_for_the_next_run(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with scripted_house(tmp_path, *failing(9)) as house:
        session = await house.session()
        assert isinstance(await house.ask(session, "Hello"), FailedOutcome)
        assert await house.ask(session, "Again") == CompletedOutcome()
        assert len(house.provider.requests) == 10


@pytest.mark.parametrize(
    ("header", "low", "high"),
    [("5", 5.0, 5.1), ("1", 2.0, 2.6), ("86400", MAX_RETRY_AFTER_SECONDS, MAX_RETRY_AFTER_SECONDS + 1)],
    ids=["raises", "never shortens", "is capped"],
)
async def test_the_providers_retry_after_is_respected(
    tmp_path: Path, autojump_clock: MockClock, header: str, low: float, high: float
) -> None:
    """Scenario 92."""
    async with scripted_house(tmp_path, status(429, headers={"Retry-After": header})) as house:
        session = await house.session()
        assert await house.ask(session, "Hello") == CompletedOutcome()
        (delay,) = gaps(house)
        assert low <= delay <= high
        (scheduled,) = await house.data(session, RetryScheduled)
        assert scheduled.error.type == PROVIDER_RATE_LIMIT


@pytest.mark.parametrize(
    ("code", "type"),
    [(400, PROVIDER_INVALID_REQUEST), (401, PROVIDER_AUTH), (403, PROVIDER_AUTH), (404, None)],
)
async def test_what_another_try_cannot_mend_is_not_tried_again(
    tmp_path: Path, autojump_clock: MockClock, code: int, type: str
) -> None:
    """Scenario 95."""
    async with scripted_house(tmp_path, *failing(1, code)) as house:
        session = await house.session()
        outcome = await house.ask(session, "Hello")
        assert isinstance(outcome, FailedOutcome)
        assert len(house.provider.requests) == 1
        assert await house.data(session, RetryScheduled) == []
        assert type is None or outcome.error.type == type


@pytest.mark.parametrize(
    ("broken", "type"),
    [
        (lambda: status(500), PROVIDER_INTERNAL),
        (lambda: stream(cut()), PROVIDER_INCOMPLETE),
        (lambda: stream(cut("fin")), PROVIDER_INCOMPLETE),
    ],
    ids=["500", "reset", "fin"],
)
async def test_what_may_pass_is_tried_again(tmp_path: Path, autojump_clock: MockClock, broken: Any, type: str) -> None:
    async with scripted_house(tmp_path, broken()) as house:
        session = await house.session()
        assert await house.ask(session, "Hello") == CompletedOutcome()
        (scheduled,) = await house.data(session, RetryScheduled)
        assert scheduled.error.type == type
        assert len(house.provider.requests) == 2


async def test_nothing_is_promoted_while_a_turn_is_tried_again(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A queued prompt waits for the end of the run, and the request that is repeated stays the same."""
    async with scripted_house(tmp_path, *failing(2)) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Hello")
        await in_back_off(house, session)
        waiting = await house.sessions.prompt(session, "Later", delivery="queue")
        await in_back_off(house, session, 2)
        assert await house.pending(session) == [waiting.id]
        await house.sessions.wait(session)
        bodies = [request.body for request in house.provider.requests]
        assert len(set(bodies[:3])) == 1
        assert said(house.provider.requests[3])[-1] == ("user", "Later")
        types = await house.types(session)
        assert types.index("turn.completed") < types.index("prompt.promoted", types.index("turn.started"))


async def test_retries_consume_no_steps(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Scenario 94, as decided here: an agent of two steps has both after two retries."""
    tool = ScriptedTool("look")
    async with open_provider(*failing(2), answer(tool_call("look")), *failing(2)) as provider:
        settings = configuration(provider)
        settings.agents["two"] = Agent(steps=2)
        async with open_house(provider, tmp_path, settings=settings, tools=[tool.tool]) as house:
            session = await house.session(agent="two")
            assert await house.ask(session, "Look") == CompletedOutcome()
        assert len(provider.requests) == 6
        assert tool.executions == 1
        assert [request.json.get("tool_choice") == "none" for request in provider.requests] == [False] * 3 + [True] * 3


# --- empty answers ------------------------------------------------------------------------------------------------


async def test_empty_answers_are_limited_and_then_a_typed_failure(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with scripted_house(tmp_path, *[answer() for _ in range(5)]) as house:
        session = await house.session()
        outcome = await house.ask(session, "Hello")
        assert isinstance(outcome, FailedOutcome)
        assert outcome.error.type == PROVIDER_INVALID_OUTPUT
        assert len(house.provider.requests) == 1 + MAX_EMPTY_ANSWERS
        assert len({request.body for request in house.provider.requests}) == 1


async def test_an_answer_behind_an_empty_one_is_taken(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with scripted_house(tmp_path, answer()) as house:
        session = await house.session()
        assert await house.ask(session, "Hello") == CompletedOutcome()
        (started,) = {data.assistant_message_id for data in await house.data(session, TurnStarted)}
        message = (await house.history(session))[-1]
        assert isinstance(message, AssistantMessage)
        assert message.id == started


# --- what ends a back-off -----------------------------------------------------------------------------------------


async def test_an_interrupt_ends_a_back_off_at_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with scripted_house(tmp_path, status(429, headers={"Retry-After": "600"})) as house:
        session = await house.session()
        joined = house.task(lambda: house.ask(session, "Hello"))
        await in_back_off(house, session)
        before = trio.current_time()
        assert await house.sessions.interrupt(session) == Interrupted(interrupted=True)
        assert trio.current_time() - before < 1
        assert await joined.result() == InterruptedOutcome(reason="user")
        assert (await house.types(session))[-2:] == ["retry.scheduled", "turn.interrupted"]
        await trio.sleep(1_000)
        assert len(house.provider.requests) == 1
        assert await house.ask(session, "Now?") == CompletedOutcome()
        assert said(house.provider.requests[1]) == [("user", "Hello"), ("user", "Now?")]


async def test_a_model_switch_ends_a_back_off_at_once_and_the_next_request_has_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with scripted_house(tmp_path, status(429, headers={"Retry-After": "600"})) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Hello")
        await in_back_off(house, session)
        before = trio.current_time()
        await house.sessions.switch_model(session, OTHER)
        await house.sessions.wait(session)
        assert trio.current_time() - before < 1
        first, second = house.provider.requests
        assert (first.model, second.model) == ("scripted", "other")
        (failed,) = await house.data(session, TurnFailed)
        assert (failed.error.type, failed.continues) == (SUPERSEDED, True)
        turns = {data.assistant_message_id for data in await house.data(session, TurnStarted)}
        assert len(turns) == 2


async def test_selecting_the_same_model_ends_no_back_off(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with scripted_house(tmp_path, status(429, headers={"Retry-After": "600"})) as house:
        session = await house.session(model=OTHER)
        await house.sessions.prompt(session, "Hello")
        await in_back_off(house, session)
        await house.sessions.switch_model(session, OTHER)
        await house.sessions.wait(session)
        assert gaps(house)[0] >= 600
        assert await house.data(session, TurnFailed) == []


async def test_a_steer_leaves_the_delay_and_then_takes_the_turns_place(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with scripted_house(tmp_path, status(429, headers={"Retry-After": "60"})) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Hello")
        await in_back_off(house, session)
        steer = await house.sessions.prompt(session, "Rather this")
        await wait_all_tasks_blocked()
        assert await house.pending(session) == [steer.id]
        await house.sessions.wait(session)
        assert 60 <= gaps(house)[0] < 61
        assert said(house.provider.requests[1]) == [("user", "Hello"), ("user", "Rather this")]
        (failed,) = await house.data(session, TurnFailed)
        assert (failed.error.type, failed.continues) == (SUPERSEDED, True)
        types = await house.types(session)
        assert types.index("turn.failed") < types.index("prompt.promoted", types.index("turn.failed"))
        assert len(await house.data(session, PromptPromoted)) == 2


async def test_a_steer_that_was_withdrawn_in_the_back_off_changes_nothing(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with scripted_house(tmp_path, status(429, headers={"Retry-After": "60"})) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Hello")
        await in_back_off(house, session)
        steer = await house.sessions.prompt(session, "Rather this")
        await house.sessions.withdraw(session, steer.id)
        await house.sessions.wait(session)
        first, second = house.provider.requests
        assert first.body == second.body
        assert await house.data(session, TurnFailed) == []


async def test_the_budget_goes_on_across_superseded_turns(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Five requests in all, however many turns they belong to."""
    async with scripted_house(tmp_path, *failing(9)) as house:
        session = await house.session()
        joined = house.task(lambda: house.ask(session, "Hello"))
        for number in range(1, 4):
            await in_back_off(house, session, number)
            await house.sessions.prompt(session, f"Steer {number}")
        assert isinstance(await joined.result(), FailedOutcome)
        assert len(house.provider.requests) == 1 + MAX_RETRIES
        for number, delay in enumerate(gaps(house)):
            assert 2 * 2**number <= delay <= 2 * 2**number * (1 + JITTER) + 0.2
        assert [failed.error.type for failed in await house.data(session, TurnFailed)] == [
            *[SUPERSEDED] * 3,
            PROVIDER_OVERLOADED,
        ]


# --- cut answers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["reset", "fin"])
async def test_a_cut_answer_is_kept_and_gone_on_from_in_a_new_turn(tmp_path: Path, autojump_clock: MockClock, how: Any) -> None:
    """The partial answer, the failure, the instruction to go on, and a turn of its own behind the back-off."""
    async with scripted_house(tmp_path, stream(text("Once upon"), cut(how)), answer(text(" a time."))) as house:
        session = await house.session()
        assert await house.ask(session, "Tell me") == CompletedOutcome()
        (delay,) = gaps(house)
        assert 2 <= delay <= 2.6
        assert said(house.provider.requests[1]) == [
            ("user", "Tell me"),
            ("assistant", "Once upon"),
            ("user", CUT_INSTRUCTION),
        ]
        (failed,) = await house.data(session, TurnFailed)
        assert (failed.error.type, failed.continues) == (PROVIDER_INCOMPLETE, True)
        assert len({data.assistant_message_id for data in await house.data(session, TurnStarted)}) == 2
        types = await house.types(session)
        at = types.index("text.ended")
        assert types[at : at + 5] == ["text.ended", "retry.scheduled", "turn.failed", "synthetic", "turn.started"]
        message = (await house.history(session))[1]
        assert isinstance(message, AssistantMessage)
        (part,) = message.content
        assert isinstance(part, TextPart)
        assert part.text == "Once upon"
        assert (message.error, message.finish) == (failed.error, "error")


async def test_a_call_that_settled_before_the_cut_is_kept(tmp_path: Path, autojump_clock: MockClock) -> None:
    tool = ScriptedTool("look")
    broken = stream(tool_call("look"), text("and then"), cut("fin"))
    async with scripted_house(tmp_path, broken, tools=[tool.tool]) as house:
        session = await house.session()
        assert await house.ask(session, "Look") == CompletedOutcome()
        roles = [role for role, _ in said(house.provider.requests[1])]
        assert roles in (["user", "assistant", "tool", "user"], ["user", "assistant", "user"])
        assert len(await house.data(session, ToolSucceeded)) == tool.executions


async def test_an_interrupt_in_the_back_off_of_a_cut_answer_is_the_end_of_its_turn(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with scripted_house(tmp_path, stream(text("Once upon"), cut())) as house:
        session = await house.session()
        joined = house.task(lambda: house.ask(session, "Tell me"))
        await in_back_off(house, session)
        view = await house.sessions.attach(session)
        assert view.turn is not None
        assert view.turn.retry is not None
        assert await house.sessions.interrupt(session) == Interrupted(interrupted=True)
        assert await joined.result() == InterruptedOutcome(reason="user")
        assert await house.data(session, TurnFailed) == []
        assert len(await house.data(session, TurnInterrupted)) == 1
        await trio.sleep(100)
        assert len(house.provider.requests) == 1
        assert await house.ask(session, "Go on") == CompletedOutcome()
        assert said(house.provider.requests[1]) == [("user", "Tell me"), ("assistant", "Once upon"), ("user", "Go on")]


async def test_the_budget_goes_on_across_cut_answers(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with scripted_house(tmp_path, *[stream(text(f"Part {number}"), cut()) for number in range(9)]) as house:
        session = await house.session()
        outcome = await house.ask(session, "Tell me")
        assert isinstance(outcome, FailedOutcome)
        assert outcome.error.type == PROVIDER_INCOMPLETE
        assert len(house.provider.requests) == 1 + MAX_RETRIES
        assert [failed.continues for failed in await house.data(session, TurnFailed)] == [True] * 4 + [None]
        for number, delay in enumerate(gaps(house)):
            assert 2 * 2**number <= delay <= 2 * 2**number * (1 + JITTER) + 0.1


async def test_a_success_between_two_cuts_makes_the_budget_whole(tmp_path: Path, autojump_clock: MockClock) -> None:
    tool = ScriptedTool("look")
    script = [*failing(4), answer(tool_call("look")), *failing(4), answer(text("Done."))]
    async with scripted_house(tmp_path, *script, tools=[tool.tool]) as house:
        session = await house.session()
        assert await house.ask(session, "Look") == CompletedOutcome()
        assert len(house.provider.requests) == 10


async def test_a_steer_comes_behind_the_instruction_to_go_on(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The continuation is a turn with its own boundary."""
    async with scripted_house(tmp_path, stream(text("Once upon"), cut())) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Tell me")
        await in_back_off(house, session)
        await house.sessions.prompt(session, "About a fox")
        await house.sessions.wait(session)
        assert said(house.provider.requests[1])[1:] == [
            ("assistant", "Once upon"),
            ("user", CUT_INSTRUCTION),
            ("user", "About a fox"),
        ]


async def test_a_model_switch_ends_the_back_off_of_a_cut_answer(tmp_path: Path, autojump_clock: MockClock) -> None:
    broken = stream(reasoning("Hm."), text("Once upon"), cut())
    async with scripted_house(tmp_path, broken) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Tell me")
        await in_back_off(house, session)
        before = trio.current_time()
        await house.sessions.switch_model(session, OTHER)
        await house.sessions.wait(session)
        assert trio.current_time() - before < 1
        assert house.provider.requests[1].model == "other"
        assert said(house.provider.requests[1])[-1] == ("user", CUT_INSTRUCTION)


async def test_a_content_filter_keeps_the_text_and_is_not_tried_again(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Scenario 96."""
    async with scripted_house(tmp_path, answer(text("Well, "), finish("content_filter"))) as house:
        session = await house.session()
        outcome = await house.ask(session, "Hello")
        assert isinstance(outcome, FailedOutcome)
        assert outcome.error.type == PROVIDER_CONTENT_FILTER
        assert len(house.provider.requests) == 1
        message = (await house.history(session))[-1]
        assert isinstance(message, AssistantMessage)
        assert [part.text for part in message.content if isinstance(part, TextPart)] == ["Well, "]
        assert await house.data(session, TurnCompleted) == []
