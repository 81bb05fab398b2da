"""One Provider Turn: wherever it is stopped or broken it has one end, and the history it leaves can be sent.

Long, because all ends of a turn are seen together.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from steerway.actors.blocking import Inline, InlineWorker, Worker
from steerway.actors.session.response import MAX_ANSWER, PART_SIZE
from steerway.protocol.values import (
    PROVIDER_CONTENT_FILTER,
    PROVIDER_INVALID_OUTPUT,
    TOOL_EXECUTION,
    TOOL_INVALID_INPUT,
    TOOL_UNKNOWN,
    AssistantMessage,
    CompletedOutcome,
    FailedOutcome,
    InterruptedOutcome,
    ReasoningDelta,
    ReasoningEnded,
    SessionId,
    TextDelta,
    TextEnded,
    TextPart,
    ToolCalled,
    ToolFailed,
    ToolInputDelta,
    ToolInputEnded,
    ToolPart,
    ToolSucceeded,
    TurnCompleted,
    TurnFailed,
    TurnInterrupted,
    TurnStarted,
)
from support.answers import Block, answer, cut, event, finish, hold, interleave, raw, reasoning, status, stream, text, tool_call
from support.house import TERMINAL, OpenHouse, said, scripted_house
from support.tools import HeldTool, ScriptedTool, raising_tool

T = TypeVar("T")


async def interrupted(house: OpenHouse, session: SessionId) -> None:
    """Interrupt, and look at what is always true afterwards; then the next prompt works (its request is checked)."""
    assert (await house.sessions.interrupt(session)).interrupted
    assert await house.sessions.active() == {}
    ends = await house.data(session, *TERMINAL)
    assert [type(end) for end in ends] == [TurnInterrupted]
    assert ends[0].reason == "user"
    assert (await house.sessions.get(session)).last_outcome == InterruptedOutcome(reason="user")
    assert await house.ask(session, "Again") == CompletedOutcome()
    assert said(house.provider.requests[-1])[-1] == ("user", "Again")


async def begun(house: OpenHouse) -> SessionId:
    session = await house.session()
    await house.sessions.prompt(session, "Hello")
    return session


class SlowDisk(Inline):
    """Every commit takes half a minute."""

    def worker(self, name: str) -> Worker:
        class Slow(InlineWorker):
            async def run(self, work: Callable[[], T]) -> T:
                if name == "steerway-storage":
                    with trio.CancelScope(shield=True):
                        await trio.sleep(30)
                return await super().run(work)

        return Slow()


async def test_a_turn_whose_end_was_committed_late_has_ended_all_the_same(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with scripted_house(tmp_path, blocking=SlowDisk()) as house:
        session = await house.session()
        assert await house.ask(session, "Hello") == CompletedOutcome()
        assert (await house.sessions.get(session)).last_outcome == CompletedOutcome()


# --- interrupts, from the first moment to the last ----------------------------------------------------------------


async def test_an_interrupt_before_the_first_byte(tmp_path: Path) -> None:
    before = hold()
    async with scripted_house(tmp_path, answer(text("Hi"), before=[before])) as house:
        session = await begun(house)
        await before.reached.wait()
        await interrupted(house, session)
        await house.provider.answers[0].disconnected.wait()
        assert [ended.text for ended in await house.data(session, TextEnded)] == ["Done."]
        assert said(house.provider.requests[1]) == [("user", "Hello"), ("user", "Again")]


async def test_an_interrupt_between_deltas_keeps_what_arrived(tmp_path: Path) -> None:
    held = hold()
    async with scripted_house(tmp_path, answer(text(["Ha", "lf"]), held, text(" and half"))) as house:
        watch = await house.watch()
        session = await begun(house)
        await held.reached.wait()
        while "".join(delta.delta for delta in watch.of(TextDelta)) != "Half":
            await watch.until(TextDelta, len(watch.of(TextDelta)) + 1)
        await interrupted(house, session)
        assert (await house.data(session, TextEnded))[0].text == "Half"
        assert said(house.provider.requests[1])[1] == ("assistant", "Half")


async def test_an_interrupt_in_the_middle_of_a_delta_keeps_the_deltas_before_it(tmp_path: Path) -> None:
    held = hold()
    whole, half = answer(text(["Ha", "lf"])), b'data: {"choices": [{"index": 0, "del'
    async with scripted_house(tmp_path, stream(whole.parts[:2], raw(half), held)) as house:
        watch = await house.watch()
        session = await begun(house)
        await held.reached.wait()
        await watch.until(TextDelta)
        await wait_all_tasks_blocked()
        await interrupted(house, session)
        assert (await house.data(session, TextEnded))[0].text == "Half"


async def test_an_interrupt_in_reasoning_ends_the_fragment(tmp_path: Path) -> None:
    held = hold()
    async with scripted_house(tmp_path, answer(reasoning("Hm"), held)) as house:
        watch = await house.watch()
        session = await begun(house)
        await watch.until(ReasoningDelta)
        await interrupted(house, session)
        assert [ended.text for ended in await house.data(session, ReasoningEnded)] == ["Hm"]


async def test_an_interrupt_in_the_middle_of_a_tool_input_runs_nothing(tmp_path: Path) -> None:
    tool, held = ScriptedTool("look"), hold()
    first, *rest = tool_call("look", '{"value": "up"}', deltas=3)
    async with scripted_house(
        tmp_path, answer(text("Wait"), (first, rest[0]), held, tuple(rest[1:])), tools=[tool.tool]
    ) as house:
        watch = await house.watch()
        session = await begun(house)
        await watch.until(ToolInputDelta)
        await interrupted(house, session)
        (ended,) = await house.data(session, ToolInputEnded)
        assert ended.text == '{"val'
        assert not await house.data(session, ToolCalled)
        (failed,) = await house.data(session, ToolFailed)
        assert failed.error.type == "aborted"
        assert tool.executions == 0
        assert [role for role, _ in said(house.provider.requests[1])] == ["user", "assistant", "tool", "user"]


async def test_an_interrupt_while_a_tool_runs_fails_its_call(tmp_path: Path) -> None:
    """The call is failed durably, and the next request has user, assistant, tool (scenario 71)."""
    tool = HeldTool("look")
    async with scripted_house(tmp_path, answer(tool_call("look")), tools=[tool.tool]) as house:
        session = await begun(house)
        await tool.wait_started()
        await interrupted(house, session)
        assert tool.cancellations == 1
        (failed,) = await house.data(session, ToolFailed)
        assert failed.error.type == "aborted"
        assert [role for role, _ in said(house.provider.requests[1])] == ["user", "assistant", "tool", "user"]


async def test_an_interrupt_before_the_calls_are_complete_fails_them_and_runs_nothing(tmp_path: Path) -> None:
    tool, held = ScriptedTool("look"), hold()
    parts = (tool_call("look", {"value": "a"}), tool_call("look", {"value": "b"}), text("Meanwhile"), held)
    async with scripted_house(tmp_path, answer(*parts), tools=[tool.tool]) as house:
        watch = await house.watch()
        session = await begun(house)
        await watch.until(TextDelta)
        await interrupted(house, session)
        assert len(await house.data(session, ToolFailed)) == 2
        assert tool.executions == 0


async def test_an_interrupt_behind_the_last_chunk_while_the_body_is_open(tmp_path: Path) -> None:
    """The explicit end was seen, so the turn is complete; the interrupt finds a session that rests, or is about to."""
    held = hold()
    async with scripted_house(tmp_path, stream(*answer(text("Whole")).parts, held)) as house:
        watch = await house.watch()
        session = await begun(house)
        await held.reached.wait()
        await house.sessions.interrupt(session)
        ends = await house.data(session, *TERMINAL)
        assert len(ends) == 1
        assert [ended.text for ended in await house.data(session, TextEnded)] == ["Whole"]
        assert await house.ask(session, "Again") == CompletedOutcome()
        assert not watch.error


async def test_interrupts_at_every_moment_of_an_answer_leave_one_end(tmp_path: Path) -> None:
    """The same answer, cut by an interrupt after each of its parts, in one session whose history grows."""
    tool = ScriptedTool("look")

    def parts() -> Sequence[Any]:
        return answer(reasoning("Hm"), text(["One", "Two"]), tool_call("look", {"value": "x"}, deltas=2)).parts

    async with scripted_house(tmp_path, tools=[tool.tool]) as house:
        session = await house.session()
        for number in range(len(parts()) + 1):
            held = hold()
            house.provider.script(stream(*parts()[:number], held, *parts()[number:]))
            await house.sessions.prompt(session, f"Prompt {number}")
            await held.reached.wait()
            await wait_all_tasks_blocked()
            await house.sessions.interrupt(session)
            await house.sessions.wait(session)
        started = len(await house.data(session, TurnStarted))
        assert started == len(await house.data(session, *TERMINAL))
        assert len(await house.data(session, TurnInterrupted)) >= len(parts()) - 2
        assert await house.ask(session, "And now?") == CompletedOutcome()


# --- failures -----------------------------------------------------------------------------------------------------


def exploded(kind: str) -> Any:
    return event({"error": {"message": "The model exploded.", "type": kind}})


FINAL = [
    pytest.param(lambda: status(401), "", id="status 401"),
    pytest.param(lambda: stream(exploded("invalid_request_error")), "", id="error before output"),
    pytest.param(lambda: answer(text("Half"), finish("content_filter")), "Half", id="content filter"),
]
PASSING = [
    pytest.param(lambda: status(500), "", id="status 500"),
    pytest.param(lambda: answer(cut_at=0, cut_how="reset"), "", id="cut before the first byte"),
    pytest.param(lambda: stream(exploded("server_error")), "", id="error before output"),
    pytest.param(lambda: stream(answer(text("Half")).parts[:1], exploded("server_error")), "Half", id="error after output"),
    pytest.param(lambda: stream(answer(text("Half")).parts[:1]), "Half", id="just stops"),
    pytest.param(lambda: answer(text("Half"), cut("fin")), "Half", id="cut by an orderly close"),
]


@pytest.mark.parametrize(("broken", "kept"), FINAL)
async def test_a_final_failure_ends_the_turn_once_keeps_what_arrived_and_poisons_nothing(
    tmp_path: Path, broken: Any, kept: str
) -> None:
    async with scripted_house(tmp_path, broken()) as house:
        session = await house.session()
        outcome = await house.ask(session, "Hello")
        assert isinstance(outcome, FailedOutcome)
        (failed,) = await house.data(session, *TERMINAL)
        assert isinstance(failed, TurnFailed)
        assert failed.error == outcome.error
        message = (await house.history(session))[1]
        assert isinstance(message, AssistantMessage)
        assert message.finish == "error"
        assert "".join(part.text for part in message.content if isinstance(part, TextPart)) == kept
        assert await house.ask(session, "Again") == CompletedOutcome()
        spoken = [("assistant", kept)] if kept else []
        assert said(house.provider.requests[1]) == [("user", "Hello"), *spoken, ("user", "Again")]


@pytest.mark.parametrize(("broken", "kept"), PASSING)
async def test_a_failure_that_does_not_pass_ends_the_run_and_poisons_nothing(
    tmp_path: Path, autojump_clock: MockClock, broken: Any, kept: str
) -> None:
    """Five requests; before output they are attempts of one turn, after output each is a turn of its own."""
    async with scripted_house(tmp_path) as house:
        healthy = house.provider.respond
        house.provider.respond = lambda _: broken()
        session = await house.session()
        outcome = await house.ask(session, "Hello")
        assert isinstance(outcome, FailedOutcome)
        assert len(house.provider.requests) == 5
        ends = await house.data(session, *TERMINAL)
        assert [type(end) for end in ends] == [TurnFailed] * (5 if kept else 1)
        assert ends[-1].error == outcome.error
        assert [ended.text for ended in await house.data(session, TextEnded)] == [kept] * 5 * bool(kept)
        house.provider.respond = healthy
        assert await house.ask(session, "Again") == CompletedOutcome()
        assert said(house.provider.requests[-1])[-1] == ("user", "Again")


@pytest.mark.parametrize(("broken", "kept"), PASSING)
async def test_a_failure_that_passes_is_outlived(tmp_path: Path, autojump_clock: MockClock, broken: Any, kept: str) -> None:
    async with scripted_house(tmp_path, broken()) as house:
        session = await house.session()
        assert await house.ask(session, "Hello") == CompletedOutcome()
        assert [ended.text for ended in await house.data(session, TextEnded)] == [*[kept] * bool(kept), "Done."]
        assert len(house.provider.requests) == 2


MIB = 1024 * 1024


def text_and_call(pieces: Sequence[str]) -> Block:
    return (*text("Looking."), *tool_call("look", pieces))


@pytest.mark.parametrize("spoken", [text, reasoning, text_and_call])
async def test_an_answer_beyond_all_measure_ends_the_turn_and_keeps_what_came_before(
    tmp_path: Path, spoken: Callable[[Sequence[str]], Block]
) -> None:
    tool = ScriptedTool("look")
    endless = stream(*spoken(["x" * MIB] * (MAX_ANSWER // MIB + 1)), hold())
    async with scripted_house(tmp_path, endless, tools=[tool.tool]) as house:
        session = await house.session()
        outcome = await house.ask(session, "Hello")
        assert isinstance(outcome, FailedOutcome)
        assert outcome.error.type == PROVIDER_INVALID_OUTPUT
        assert "more than 8 MiB" in outcome.error.message
        ended = await house.data(session, TextEnded, ReasoningEnded, ToolInputEnded)
        assert MAX_ANSWER - MIB <= sum(len(data.text) for data in ended) <= MAX_ANSWER
        assert tool.executions == 0
        assert len(house.provider.requests) == 1


async def test_an_answer_of_countless_small_parts_ends_the_turn_too(tmp_path: Path) -> None:
    parts = (*reasoning("a"), *text("b"))
    async with scripted_house(tmp_path, stream(*parts * (MAX_ANSWER // PART_SIZE // 2), hold())) as house:
        outcome = await house.ask(await house.session(), "Hello")
        assert isinstance(outcome, FailedOutcome)
        assert outcome.error.type == PROVIDER_INVALID_OUTPUT


async def test_a_content_filter_is_named(tmp_path: Path) -> None:
    async with scripted_house(tmp_path, answer(text("Half"), finish("content_filter"))) as house:
        outcome = await house.ask(await house.session(), "Hello")
        assert isinstance(outcome, FailedOutcome)
        assert outcome.error.type == PROVIDER_CONTENT_FILTER


async def test_a_stream_cut_in_the_middle_of_a_call_runs_nothing(tmp_path: Path, autojump_clock: MockClock) -> None:
    tool = ScriptedTool("look")
    async with scripted_house(tmp_path, stream(tool_call("look", {"value": "a"}), cut()), tools=[tool.tool]) as house:
        session = await house.session()
        assert await house.ask(session, "Look") == CompletedOutcome()
        assert len(await house.data(session, ToolFailed)) == 1
        assert tool.executions == 0
        assert [role for role, _ in said(house.provider.requests[1])] == ["user", "assistant", "tool", "user"]


# --- tools --------------------------------------------------------------------------------------------------------


def tool_parts(message: Any) -> list[ToolPart]:
    return [part for part in message.content if isinstance(part, ToolPart)]


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda: tool_call("nowhere"), TOOL_UNKNOWN),
        (lambda: tool_call("look", '{"value": '), TOOL_INVALID_INPUT),
        (lambda: tool_call("look", '["value"]'), TOOL_INVALID_INPUT),
        (lambda: tool_call("look", {"value": 7}), TOOL_INVALID_INPUT),
        (lambda: tool_call("broken"), TOOL_EXECUTION),
    ],
    ids=["unknown", "malformed", "no object", "wrong type", "raises"],
)
async def test_a_call_that_cannot_work_is_an_error_for_the_model(tmp_path: Path, call: Any, kind: str) -> None:
    look, broken = ScriptedTool("look"), raising_tool("broken", RuntimeError("inside"))
    async with scripted_house(tmp_path, answer(call()), tools=[look.tool, broken.tool]) as house:
        session = await house.session()
        assert await house.ask(session, "Look") == CompletedOutcome()
        (failed,) = await house.data(session, ToolFailed)
        assert failed.error.type == kind
        assert look.executions == 0
        role, line = said(house.provider.requests[1])[2]
        assert role == "tool"
        assert failed.error.message.strip() in line


async def test_two_calls_whose_inputs_interleave_keep_their_own(tmp_path: Path) -> None:
    left, right = ScriptedTool("left"), ScriptedTool("right")
    both: Block = interleave(tool_call("left", {"value": "one"}, deltas=4), tool_call("right", {"value": "two"}, deltas=3))
    async with scripted_house(tmp_path, answer(both), tools=[left.tool, right.tool]) as house:
        session = await house.session()
        assert await house.ask(session, "Look") == CompletedOutcome()
        assert (left.values, right.values) == (["one"], ["two"])
        parts = tool_parts((await house.history(session))[1])
        assert [(part.name, part.provider_call_id != part.id) for part in parts] == [("left", True), ("right", True)]
        assert [line for role, line in said(house.provider.requests[1]) if role == "tool"] == ["got one", "got two"]


async def test_a_provider_that_repeats_a_call_id_keeps_both_calls(tmp_path: Path) -> None:
    """Our own id is a call's identity; the provider's is data."""
    tool = ScriptedTool("look")
    calls = [answer(tool_call("look", {"value": word}, id="call_same")) for word in ("one", "two")]
    async with scripted_house(tmp_path, *calls, tools=[tool.tool]) as house:
        session = await house.session()
        assert await house.ask(session, "Look") == CompletedOutcome()
        assert tool.values == ["one", "two"]
        assert len({called.call_id for called in await house.data(session, ToolCalled)}) == 2


async def test_at_most_eight_calls_of_a_turn_run_at_once(tmp_path: Path) -> None:
    tool = HeldTool("look")
    async with scripted_house(tmp_path, answer(*[tool_call("look") for _ in range(10)]), tools=[tool.tool]) as house:
        session = await begun(house)
        await tool.wait_started(8)
        await wait_all_tasks_blocked()
        assert tool.executions == 8
        tool.release()
        await house.sessions.wait(session)
        assert tool.executions == 10
        assert len(await house.data(session, ToolSucceeded)) == 10


async def test_a_success_before_the_interrupt_is_kept(tmp_path: Path) -> None:
    """One call of two had succeeded; its result is what history shows, the other's is that it was interrupted."""
    quick, slow = ScriptedTool("quick"), HeldTool("slow")
    async with scripted_house(tmp_path, answer(tool_call("quick"), tool_call("slow")), tools=[quick.tool, slow.tool]) as house:
        watch = await house.watch()
        session = await begun(house)
        await slow.wait_started()
        await watch.until(ToolSucceeded)
        await interrupted(house, session)
        assert len(await house.data(session, ToolSucceeded)) == 1
        assert len(await house.data(session, ToolFailed)) == 1


# --- the request --------------------------------------------------------------------------------------------------


async def test_a_request_of_a_session_begins_with_the_request_before(tmp_path: Path) -> None:
    tool = ScriptedTool("look")
    script = [answer(tool_call("look")), answer(text("Looked")), answer(text("Second"))]
    async with scripted_house(tmp_path, *script, tools=[tool.tool]) as house:
        session = await house.session()
        await house.ask(session, "Look")
        await house.ask(session, "More")
        for before, after in zip(house.provider.requests, house.provider.requests[1:], strict=False):
            assert after.messages[: len(before.messages)] == before.messages
            assert after.tools == before.tools


async def test_usage_of_the_turns_adds_up_in_the_session(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        await house.ask(session, "Hello")
        await house.ask(session, "Again")
        completed = await house.data(session, TurnCompleted)
        tokens = (await house.sessions.get(session)).tokens
        assert tokens.input == sum(end.tokens.input for end in completed) > 0
        assert tokens.output == sum(end.tokens.output for end in completed) > 0
