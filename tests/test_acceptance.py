"""The acceptance scenarios of the first slice, by number, through the public surface against the scripted provider.

Long, because the scenarios are one numbered list.
"""

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from steerway import Client, connect
from steerway.actors.blocking import Threads
from steerway.protocol.values import (
    Activity,
    AssistantMessage,
    CompletedOutcome,
    FailedOutcome,
    IdleOutcome,
    Interrupted,
    InterruptedOutcome,
    Location,
    MessageId,
    PromptAdmitted,
    PromptPromoted,
    SessionCreated,
    SessionId,
    SyntheticMessage,
    TextDelta,
    TextEnded,
    TextPart,
    TextStarted,
    ToolCalled,
    ToolError,
    ToolPart,
    ToolSucceeded,
    TurnCompleted,
    TurnFailed,
    TurnInterrupted,
    TurnStarted,
    UserMessage,
)
from steerway.protocol.values.errors import ConflictError, SessionNotFoundError
from support.answers import answer, cut, event, hold, reasoning, status, stream, text, tool_call
from support.house import SCRIPTED, LingeringTool, Ticks, crash_image, open_house, read_events, said, scripted_house
from support.provider import open_provider
from support.tools import HeldTool, ScriptedTool

HELLO = MessageId("msg_hello")


# --- admission ----------------------------------------------------------------------------------------------------


async def test_a_prompt_without_resume_is_only_received(tmp_path: Path) -> None:
    """Scenario 1."""
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        receipt = await house.sessions.prompt(session, "Hello", resume=False)
        await wait_all_tasks_blocked()
        assert receipt.delivery == "steer"
        assert receipt.promoted_seq is None
        assert await house.history(session) == ()
        assert await house.sessions.active() == {}
        assert house.provider.requests == []


@pytest.mark.parametrize("resume", [None, True])
async def test_a_prompt_wakes_its_session_once_and_forces_nothing(tmp_path: Path, resume: bool | None) -> None:
    """Scenario 2."""
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        watch = await house.watch()
        await house.sessions.prompt(session, "Hello", resume=resume)
        await house.sessions.wait(session)
        await wait_all_tasks_blocked()
        assert [activity.state for activity in watch.of(Activity)] == ["running", "idle"]
        assert len(house.provider.requests) == 1


async def test_the_same_id_prompt_and_delivery_give_the_same_receipt(tmp_path: Path) -> None:
    """Scenario 3."""
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        first = await house.admit(session, "Hello", id=HELLO)
        assert await house.admit(session, "Hello", id=HELLO) == first
        assert len(await house.data(session, PromptAdmitted)) == 1


async def test_two_concurrent_sends_with_one_id_admit_once(tmp_path: Path) -> None:
    """Scenario 4, over two connections."""
    async with scripted_house(tmp_path, blocking=Threads()) as house:
        session = await house.session()
        listening = await house.runtime.listen(host="127.0.0.1", port=0, token="secret")
        async with connect(listening.url, token="secret") as other:
            tasks = [
                house.task(lambda client=client: client.sessions.prompt(session, "Hello", id=HELLO, resume=False))
                for client in (house.runtime, other)
            ]
            first, second = [await task.result() for task in tasks]
        assert first == second
        assert len(await house.data(session, PromptAdmitted)) == 1


async def test_the_same_text_without_an_id_is_two_inputs(tmp_path: Path) -> None:
    """Scenario 5."""
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        ids = [(await house.admit(session, "Hello")).id for _ in range(2)]
        assert ids[0] != ids[1]
        assert await house.pending(session) == ids


@pytest.mark.parametrize("change", [{"text": "Other"}, {"delivery": "queue"}, {"metadata": {"a": 1}}], ids=str)
async def test_an_id_used_for_something_else_is_a_conflict(tmp_path: Path, change: dict[str, object]) -> None:
    """Scenarios 6, 7 and 18, which the duties of admission bring along."""
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        await house.admit(session, "Hello", id=HELLO)
        with pytest.raises(ConflictError):
            await house.sessions.prompt(session, **({"text": "Hello", "id": HELLO, "resume": False} | change))  # type: ignore[arg-type]
        assert await house.pending(session) == [HELLO]
        assert len(await house.data(session, PromptAdmitted)) == 1


async def test_a_retry_with_resume_wakes_for_what_was_admitted_without(tmp_path: Path) -> None:
    """Scenario 10."""
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        watch = await house.watch()
        first = await house.admit(session, "Hello", id=HELLO)
        assert await house.sessions.prompt(session, "Hello", id=HELLO) == first
        await house.sessions.wait(session)
        await wait_all_tasks_blocked()
        assert len(house.provider.requests) == 1
        assert len(watch.of(Activity)) == 2


async def test_a_retry_after_promotion_gives_the_receipt_with_its_fate(tmp_path: Path) -> None:
    """Scenario 11."""
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        first = await house.admit(session, "Hello", id=HELLO)
        assert await house.sessions.resume(session) == CompletedOutcome()
        again = await house.sessions.prompt(session, "Hello", id=HELLO)
        (promoted,) = [event for event in await house.events(session) if isinstance(event.data, PromptPromoted)]
        assert again.promoted_seq == promoted.seq
        assert (again.id, again.admitted_seq, again.created) == (first.id, first.admitted_seq, first.created)
        assert await house.sessions.wait(session) == IdleOutcome()
        assert len(house.provider.requests) == 1


async def test_a_prompt_to_an_unknown_session_is_refused(tmp_path: Path) -> None:
    """Scenario 12."""
    async with scripted_house(tmp_path) as house:
        unknown = SessionId("ses_unknown")
        with pytest.raises(SessionNotFoundError):
            await house.sessions.prompt(unknown, "Hello")
        with pytest.raises(SessionNotFoundError):
            await house.events(unknown)
        assert (await house.sessions.list()).items == ()


# --- the coordinator ----------------------------------------------------------------------------------------------


async def test_two_concurrent_resumes_share_one_drain(tmp_path: Path) -> None:
    """Scenario 22."""
    held = hold()
    async with scripted_house(tmp_path, answer(held, text("Hi"))) as house:
        session = await house.session()
        watch = await house.watch()
        await house.admit(session, "Hello")
        tasks = [house.task(lambda: house.sessions.resume(session)) for _ in range(2)]
        await held.reached.wait()
        held.release()
        assert [await task.result() for task in tasks] == [CompletedOutcome()] * 2
        await wait_all_tasks_blocked()
        assert len(house.provider.requests) == 1
        assert [activity.state for activity in watch.of(Activity)] == ["running", "idle"]


async def test_a_resume_that_joins_a_woken_drain_forces_no_successor(tmp_path: Path) -> None:
    """Scenario 23."""
    held = hold()
    async with scripted_house(tmp_path, answer(held, text("Hi"))) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Hello")
        await held.reached.wait()
        joined = house.task(lambda: house.sessions.resume(session))
        await wait_all_tasks_blocked()
        held.release()
        assert await joined.result() == CompletedOutcome()
        await house.sessions.wait(session)
        assert len(house.provider.requests) == 1


async def test_a_wake_of_an_idle_session_starts_an_unforced_drain(tmp_path: Path) -> None:
    """Scenario 24: the prompt is promoted, and no instruction is made up to have a turn."""
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Hello")
        await house.sessions.wait(session)
        kinds = [type(message) for message in await house.history(session)]
        assert kinds == [UserMessage, AssistantMessage]


async def test_three_wakes_during_a_drain_lead_to_one_more_look_that_a_joiner_awaits(tmp_path: Path) -> None:
    """Scenario 25: the three prompts, queued, are answered before the joiner is."""
    held = hold()
    async with scripted_house(tmp_path, answer(held, text("Hi"))) as house:
        session = await house.session()
        watch = await house.watch()
        await house.sessions.prompt(session, "Hello")
        await held.reached.wait()
        for number in range(3):
            await house.sessions.prompt(session, f"More {number}", delivery="queue")
        joined = house.task(lambda: house.sessions.resume(session))
        await wait_all_tasks_blocked()
        held.release()
        assert await joined.result() == CompletedOutcome()
        assert len(house.provider.requests) == 4
        await wait_all_tasks_blocked()
        assert [activity.state for activity in watch.of(Activity)] == ["running", "idle"]


async def test_an_interrupt_of_an_idle_session_does_nothing(tmp_path: Path) -> None:
    """Scenario 27."""
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        before = await house.events(session)
        assert await house.sessions.interrupt(session) == Interrupted(interrupted=False)
        assert await house.events(session) == before


async def test_an_interrupt_drops_the_pending_wake(tmp_path: Path) -> None:
    """Scenario 28."""
    held = hold()
    async with scripted_house(tmp_path, answer(held, text("Hi"))) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Hello")
        await held.reached.wait()
        waiting = await house.sessions.prompt(session, "And?")
        assert await house.sessions.interrupt(session) == Interrupted(interrupted=True)
        assert await house.sessions.active() == {}
        await wait_all_tasks_blocked()
        assert len(house.provider.requests) == 1
        assert await house.pending(session) == [waiting.id]


async def test_a_resume_during_cleanup_starts_a_fresh_run_behind_it(tmp_path: Path) -> None:
    """Scenario 30, by the same table."""
    tool = LingeringTool("linger")
    async with scripted_house(tmp_path, answer(tool_call("linger")), tools=[tool.tool]) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Look")
        await tool.wait_started()
        stopped = house.task(lambda: house.sessions.interrupt(session))
        await tool.cancelled.wait()
        resumed = house.task(lambda: house.sessions.resume(session))
        await wait_all_tasks_blocked()
        assert len(house.provider.requests) == 1
        tool.let_go.set()
        assert await stopped.result() == Interrupted(interrupted=True)
        assert await resumed.result() == CompletedOutcome()
        assert len(house.provider.requests) == 2


async def test_a_cancelled_joiner_leaves_the_others_their_drain(tmp_path: Path) -> None:
    """Scenario 32."""
    held = hold()
    async with scripted_house(tmp_path, answer(held, text("Hi"))) as house:
        session = await house.session()
        await house.admit(session, "Hello")
        leaving, staying = (house.task(lambda: house.sessions.resume(session)) for _ in range(2))
        await held.reached.wait()
        leaving.scope.cancel()
        await wait_all_tasks_blocked()
        assert leaving.done
        held.release()
        assert await staying.result() == CompletedOutcome()
        assert len(await house.data(session, TurnCompleted)) == 1


async def test_two_sessions_drain_at_the_same_time(tmp_path: Path) -> None:
    """Scenario 33."""
    first, second = hold(), hold()
    async with scripted_house(tmp_path, answer(first, text("One")), answer(second, text("Two"))) as house:
        sessions = [await house.session() for _ in range(2)]
        for session in sessions:
            await house.sessions.prompt(session, "Hello")
        await first.reached.wait()
        await second.reached.wait()
        assert set(await house.sessions.active()) == set(sessions)
        first.release()
        second.release()
        for session in sessions:
            assert await house.sessions.wait(session) == IdleOutcome()


# --- drain and promotion ------------------------------------------------------------------------------------------


async def test_two_pending_steers_are_in_one_request_in_order(tmp_path: Path) -> None:
    """Scenario 41."""
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        await house.admit(session, "First")
        await house.admit(session, "Second")
        await house.sessions.resume(session)
        (request,) = house.provider.requests
        assert said(request) == [("user", "First"), ("user", "Second")]


async def test_a_steer_during_a_turn_comes_in_the_next_one_behind_the_assistant(tmp_path: Path) -> None:
    """Scenario 42."""
    held = hold()
    async with scripted_house(tmp_path, answer(text("Half"), held, text(" and half"))) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Hello")
        await held.reached.wait()
        await house.sessions.prompt(session, "Turn left")
        held.release()
        await house.sessions.wait(session)
        assert said(house.provider.requests[1]) == [
            ("user", "Hello"),
            ("assistant", "Half and half"),
            ("user", "Turn left"),
        ]


async def test_a_queued_prompt_waits_until_the_tool_loop_has_ended(tmp_path: Path) -> None:
    """Scenario 44: it is in the third request."""
    tool = HeldTool("look")
    script = (answer(tool_call("look")), answer(text("Looked")), answer(text("Answered")))
    async with scripted_house(tmp_path, *script, tools=[tool.tool]) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Look")
        await tool.wait_started()
        await house.sessions.prompt(session, "Later", delivery="queue")
        tool.release()
        await house.sessions.wait(session)
        texts = [[line for role, line in said(request) if role == "user"] for request in house.provider.requests]
        assert texts == [["Look"], ["Look"], ["Look", "Later"]]


async def test_queued_prompts_run_one_per_idle_boundary_in_order(tmp_path: Path) -> None:
    """Scenario 45."""
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        await house.admit(session, "First", delivery="queue")
        await house.admit(session, "Second", delivery="queue")
        await house.sessions.resume(session)
        assert [said(request) for request in house.provider.requests] == [
            [("user", "First")],
            [("user", "First"), ("assistant", "Done."), ("user", "Second")],
        ]


async def test_a_steer_goes_before_a_queued_prompt(tmp_path: Path) -> None:
    """Scenario 47, by the same rule."""
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        await house.admit(session, "Queued", delivery="queue")
        await house.admit(session, "Steer")
        await house.sessions.resume(session)
        assert [said(request)[-1] for request in house.provider.requests] == [("user", "Steer"), ("user", "Queued")]


async def test_an_idle_session_promotes_a_queued_prompt_when_woken(tmp_path: Path) -> None:
    """Scenario 48."""
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Queued", delivery="queue")
        await house.sessions.wait(session)
        assert [said(request) for request in house.provider.requests] == [[("user", "Queued")]]


async def test_with_nothing_pending_a_wake_asks_nobody_and_a_resume_asks_once(tmp_path: Path) -> None:
    """Scenario 49: the retry of an answered prompt is a wake with nothing to do."""
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        await house.ask(session, "Hello", id=HELLO)
        await house.sessions.prompt(session, "Hello", id=HELLO)
        await house.sessions.wait(session)
        assert len(house.provider.requests) == 1
        assert await house.sessions.resume(session) == CompletedOutcome()
        assert len(house.provider.requests) == 2
        assert isinstance((await house.history(session))[2], SyntheticMessage)  # ruling C9


@pytest.mark.parametrize("delivery", ["queue", "steer"])
async def test_what_was_pending_at_an_interrupt_runs_at_the_next_resume(tmp_path: Path, delivery: str) -> None:
    """Scenario 50."""
    held = hold()
    async with scripted_house(tmp_path, answer(text("Half"), held)) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Hello")
        await held.reached.wait()
        waiting = await house.sessions.prompt(session, "Then this", delivery=delivery)  # type: ignore[arg-type]
        await house.sessions.interrupt(session)
        await wait_all_tasks_blocked()
        assert await house.pending(session) == [waiting.id]
        assert await house.sessions.resume(session) == CompletedOutcome()
        assert said(house.provider.requests[1])[-1] == ("user", "Then this")
        assert await house.pending(session) == []


# --- tools --------------------------------------------------------------------------------------------------------


async def test_a_call_is_durable_before_its_tool_and_its_result_before_the_next_request(tmp_path: Path) -> None:
    """Scenario 62."""
    tool = HeldTool("look")
    second = hold()
    async with scripted_house(
        tmp_path, answer(tool_call("look", {"value": "up"})), answer(second, text("Up")), tools=[tool.tool]
    ) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Look")
        await tool.wait_started()
        (called,) = await house.data(session, ToolCalled)
        assert (called.tool, called.input) == ("look", {"value": "up"})
        assert not await house.data(session, ToolSucceeded)
        tool.release()
        await second.reached.wait()
        assert len(await house.data(session, ToolSucceeded)) == 1
        assert said(house.provider.requests[1]) == [("user", "Look"), ("assistant", "look"), ("tool", "got up")]
        second.release()
        await house.sessions.wait(session)
        assert tool.executions == 1


async def test_two_local_calls_run_together_and_both_settle_before_history_continues(tmp_path: Path) -> None:
    """Scenario 63."""
    left, right = HeldTool("left"), HeldTool("right")
    script = (answer(tool_call("left"), tool_call("right")), answer(text("Both")))
    async with scripted_house(tmp_path, *script, tools=[left.tool, right.tool]) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Look")
        await left.wait_started()
        await right.wait_started()
        right.release()
        await wait_all_tasks_blocked()
        assert len(house.provider.requests) == 1
        assert len(await house.data(session, ToolSucceeded)) == 1
        left.release()
        await house.sessions.wait(session)
        assert [role for role, _ in said(house.provider.requests[1])] == ["user", "assistant", "tool", "tool"]


async def test_a_call_left_by_a_dead_process_is_failed_and_the_model_told(tmp_path: Path) -> None:
    """Scenario 65: the store as it was while the tool ran, opened by another runtime."""
    ticks = Ticks()
    tool = HeldTool("look")
    async with open_provider(answer(text("On it"), tool_call("look"))) as provider:
        async with open_house(provider, tmp_path, ticks=ticks, tools=[tool.tool]) as house:
            session = await house.session()
            await house.sessions.prompt(session, "Look")
            await tool.wait_started()
            image = crash_image(house, tmp_path / "next")
        async with open_house(provider, image, ticks=ticks, tools=[tool.tool]) as house:
            assert (await house.types(session))[-2:] == ["tool.failed", "turn.interrupted"]
            message = (await house.history(session))[1]
            assert isinstance(message, AssistantMessage)
            part = message.content[1]
            assert isinstance(part, ToolPart)
            assert isinstance(part.state, ToolError)
            await house.ask(session, "Go on")
            assert said(provider.requests[1])[2] == ("tool", f"Error: {part.state.error.message}")
        assert tool.executions == 1


async def test_an_unknown_tool_is_an_error_for_the_model_and_the_turn_goes_on(tmp_path: Path) -> None:
    """Scenario 68."""
    async with scripted_house(tmp_path, answer(tool_call("nowhere")), answer(text("Sorry"))) as house:
        session = await house.session()
        assert await house.ask(session, "Look") == CompletedOutcome()
        role, line = said(house.provider.requests[1])[2]
        assert role == "tool"
        assert "no tool `nowhere`" in line


# --- provider failures --------------------------------------------------------------------------------------------


async def test_an_error_in_the_stream_before_output_leaves_a_failed_assistant(tmp_path: Path) -> None:
    """Scenario 84."""
    failing = stream(event({"error": {"message": "The model refuses.", "type": "invalid_request_error"}}))
    async with scripted_house(tmp_path, failing) as house:
        session = await house.session()
        outcome = await house.ask(session, "Hello")
        assert isinstance(outcome, FailedOutcome)
        message = (await house.history(session))[1]
        assert isinstance(message, AssistantMessage)
        assert message.finish == "error"
        assert message.error == outcome.error
        assert message.content == ()


async def test_a_broken_stream_fails_the_assistant_and_in_the_end_the_run_alike(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Scenario 85. Each answer is cut, so each retry leaves an assistant, failed with what it said."""
    async with scripted_house(tmp_path) as house:
        house.provider.respond = lambda _: answer(text("Half"), cut())
        session = await house.session()
        outcome = await house.ask(session, "Hello")
        assert isinstance(outcome, FailedOutcome)
        failed = await house.data(session, TurnFailed)
        messages = [message for message in await house.history(session) if isinstance(message, AssistantMessage)]
        assert [message.error for message in messages] == [end.error for end in failed]
        assert len(failed) == len(house.provider.requests) == 5
        assert failed[-1].error == outcome.error
        texts = [part.text for message in messages for part in message.content if isinstance(part, TextPart)]
        assert texts == ["Half"] * 5


async def test_a_failed_run_asks_anew_when_resumed(tmp_path: Path) -> None:
    """Scenario 87, which follows from it."""
    async with scripted_house(tmp_path, status(400)) as house:
        session = await house.session()
        assert isinstance(await house.ask(session, "Hello"), FailedOutcome)
        assert await house.sessions.resume(session) == CompletedOutcome()
        assert len(house.provider.requests) == 2


async def test_deltas_are_live_and_only_start_and_end_are_durable(tmp_path: Path) -> None:
    """Scenario 89."""
    held = hold()
    async with scripted_house(tmp_path, answer(reasoning("Hm"), text(["He", "l"]), held, text("lo"))) as house:
        session = await house.session()
        watch = await house.watch()
        await house.sessions.prompt(session, "Hello")
        await held.reached.wait()
        held.release()
        await house.sessions.wait(session)
        await watch.until(TurnCompleted)
        deltas = watch.of(TextDelta)
        assert "".join(delta.delta for delta in deltas) == "Hello"
        assert [delta.offset for delta in deltas] == [len("".join(d.delta for d in deltas[:n])) for n in range(len(deltas))]
        assert await house.types(session) == [
            "created",
            "prompt.admitted",
            "prompt.promoted",
            "turn.started",
            "reasoning.started",
            "reasoning.ended",
            "text.started",
            "text.ended",
            "turn.completed",
        ]
        assert [ended.text for ended in await house.data(session, TextEnded)] == ["Hello"]
        kinds = [type(event.data) for event in watch.events if isinstance(event.data, TextStarted | TextDelta | TextEnded)]
        assert kinds == [TextStarted, *[TextDelta] * len(deltas), TextEnded]


# --- events, projection, API --------------------------------------------------------------------------------------


async def test_sequences_rise_by_one_and_each_event_shows_at_once_in_the_projection(tmp_path: Path) -> None:
    """Scenario 154. Ours count from 1."""
    held = hold()
    async with scripted_house(tmp_path, answer(held)) as house:
        session, other = await house.session(), await house.session()
        for number in (2, 3, 4):
            assert (await house.admit(session, "Hello")).admitted_seq == number
            assert (await house.sessions.get(session)).head == number
            assert len(await house.pending(session)) == number - 1
        assert (await house.admit(other, "Hello")).admitted_seq == 2


async def test_a_message_id_belongs_to_one_message(tmp_path: Path) -> None:
    """Scenario 160: neither another session's prompt nor an assistant's message lends its id."""
    async with scripted_house(tmp_path) as house:
        session, other = await house.session(), await house.session()
        await house.ask(session, "Hello", id=HELLO)
        assistant = (await house.history(session))[1].id
        for taken in (HELLO, assistant):
            with pytest.raises(ConflictError):
                await house.admit(other, "Hello", id=taken)
        assert await house.types(other) == ["created"]


async def test_creating_an_existing_session_returns_it_unchanged(tmp_path: Path) -> None:
    """Scenario 162."""
    async with scripted_house(tmp_path) as house:
        mine = SessionId("ses_mine")
        first = await house.sessions.create(id=mine, title="One", model=SCRIPTED, metadata={"a": 1})
        again = await house.sessions.create(id=mine, title="Two", agent="plain", location=Location(directory="/nowhere"))
        assert again == first
        assert len(await house.data(mine, SessionCreated)) == 1


async def test_interrupt_knows_idle_unknown_and_twice(tmp_path: Path) -> None:
    """Scenario 165."""
    held = hold()
    async with scripted_house(tmp_path, answer(held)) as house:
        session = await house.session()
        assert await house.sessions.interrupt(session) == Interrupted(interrupted=False)
        with pytest.raises(SessionNotFoundError):
            await house.sessions.interrupt(SessionId("ses_unknown"))
        await house.sessions.prompt(session, "Hello")
        await held.reached.wait()
        both = [house.task(lambda: house.sessions.interrupt(session)) for _ in range(2)]
        assert await both[0].result() == Interrupted(interrupted=True)
        await both[1].result()
        assert await house.sessions.interrupt(session) == Interrupted(interrupted=False)
        assert len(await house.data(session, TurnInterrupted)) == 1


async def test_a_session_is_active_during_its_drain_and_not_after(tmp_path: Path) -> None:
    """Scenario 166."""
    held = hold()
    async with scripted_house(tmp_path, answer(held, text("Hi"))) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Hello")
        await held.reached.wait()
        assert set(await house.sessions.active()) == {session}
        held.release()
        await house.sessions.wait(session)
        assert await house.sessions.active() == {}


# --- the same over a socket ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("subprotocol", ["steerway.v1.msgpack", "steerway.v1.json"])
async def test_two_clients_see_the_same_events_and_a_late_one_catches_up(tmp_path: Path, subprotocol: str) -> None:
    """A prompt end to end over WebSockets: admitted by one client, watched by two, replayed by a third."""
    held = hold()
    async with scripted_house(tmp_path, answer(text(["Hel", "lo"]), held), blocking=Threads()) as house:
        listening = await house.runtime.listen(host="127.0.0.1", port=0, token="secret")
        async with (
            connect(listening.url, token="secret", subprotocol=subprotocol) as one,
            connect(listening.url, token="secret", subprotocol=subprotocol) as two,
        ):
            session = (await one.sessions.create()).id
            seen: list[list[str]] = [[], []]

            async def follow(client: Client, into: list[str]) -> None:
                async with client.sessions.events(session) as stream:
                    async for item in stream:
                        if item.seq is not None:
                            into.append(item.type)
                        if isinstance(item.data, TurnCompleted):
                            return

            tasks = [house.task(lambda c=client, i=into: follow(c, i)) for client, into in zip((one, two), seen, strict=True)]
            await one.sessions.prompt(session, "Hello")
            await held.reached.wait()
            held.release()
            for task in tasks:
                await task.result()
            async with connect(listening.url, token="secret", subprotocol=subprotocol) as late:
                replayed = [item.type for item in await read_events(late, session)]
            assert seen[0] == seen[1] == replayed
            assert replayed[0] == SessionCreated.type
            assert TurnStarted.type in replayed


async def test_an_interrupt_over_a_socket_stops_a_held_stream_and_keeps_the_inbox(tmp_path: Path) -> None:
    """What the second client says reaches the work that the first began."""
    held = hold()
    async with scripted_house(tmp_path, answer(text("Half"), held), blocking=Threads()) as house:
        listening = await house.runtime.listen(host="127.0.0.1", port=0, token="secret")
        async with connect(listening.url, token="secret") as one, connect(listening.url, token="secret") as two:
            session = (await one.sessions.create()).id
            await one.sessions.prompt(session, "Hello")
            joined = house.task(lambda: one.sessions.resume(session))
            await held.reached.wait()
            later = await two.sessions.prompt(session, "Later", delivery="queue")
            assert (await two.sessions.interrupt(session)).interrupted
            assert await joined.result() == InterruptedOutcome(reason="user")
            await house.provider.answers[0].disconnected.wait()
            assert [waiting.id for waiting in await two.sessions.pending(session)] == [later.id]


async def test_an_interrupt_is_answered_after_five_seconds_while_cleanup_goes_on(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """A tool that takes its time over a cancellation delays the settlement, not the answer."""

    tool = LingeringTool("slow")
    async with scripted_house(tmp_path, answer(tool_call("slow")), tools=[tool.tool]) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Look")
        await tool.wait_started()
        began = trio.current_time()
        assert await house.sessions.interrupt(session) == Interrupted(interrupted=True)
        assert trio.current_time() - began == pytest.approx(5)
        assert set(await house.sessions.active()) == {session}
        tool.let_go.set()
        assert await house.sessions.wait(session) == IdleOutcome()


async def test_a_tool_run_without_arguments_takes_its_defaults(tmp_path: Path) -> None:
    tool = ScriptedTool("look")
    async with scripted_house(tmp_path, answer(tool_call("look", "")), tools=[tool.tool]) as house:
        session = await house.session()
        assert await house.ask(session, "Look") == CompletedOutcome()
        assert tool.values == [""]
