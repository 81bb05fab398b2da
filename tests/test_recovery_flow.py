"""What a start does about the work of a process that is gone: it settles, and under policy `continue` goes on.

Long, because all starts share the same crashed processes.

A process that dies is a copy of its store at that moment (`crash_image`), opened by the next runtime.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from steerway.actors.configuration import Configuration, ConfigurationError, Recovery
from steerway.actors.context.source import ContextSource, codec_of
from steerway.actors.session.recovery import CONTINUATION_NOTE, MAX_CONTINUATIONS
from steerway.actors.settings import Surroundings, load_settings
from steerway.protocol.values import (
    AssistantMessage,
    CompletedOutcome,
    InterruptedOutcome,
    MessageId,
    SessionId,
    SyntheticMessage,
    TextDelta,
    TextEnded,
    TextPart,
    TurnCompleted,
    TurnInterrupted,
)
from steerway.protocol.values.errors import ConflictError
from steerway.protocol.values.event import (
    PermissionAsked,
    PermissionReplied,
    QuestionAsked,
    QuestionRejected,
    RetryScheduled,
    ToolSucceeded,
)
from support.answers import answer, cut, hold, status, stream, text, tool_call
from support.house import OpenHouse, Ticks, configuration, crash_image, open_house, said
from support.provider import Provider, open_provider
from support.stores import append, open_store, promoted
from support.tools import HeldTool, ScriptedTool

PROMPT = MessageId("msg_prompt")


def continuing(provider: Provider) -> Configuration:
    return configuration(provider, recovery=Recovery(policy="continue"))


async def answered(house: OpenHouse, session: SessionId) -> None:
    """The next prompt works."""
    assert await house.ask(session, "And now?") == CompletedOutcome()
    assert said(house.provider.requests[-1])[-1] == ("user", "And now?")


# --- settling -----------------------------------------------------------------------------------------------------


async def test_text_that_was_checkpointed_survives(tmp_path: Path, mock_clock: MockClock) -> None:
    """At most the last second of an answer is lost."""
    ticks = Ticks()
    first, second = hold(), hold()
    async with open_provider(answer(text("One"), first, text(", two"), second)) as provider:
        async with open_house(provider, tmp_path, ticks=ticks) as house:
            session = await house.session()
            watch = await house.watch()
            await house.sessions.prompt(session, "Hello")
            await watch.until(TextDelta)
            mock_clock.jump(2)
            first.release()
            await watch.until(TextDelta, 2)
            await wait_all_tasks_blocked()
            image = crash_image(house, tmp_path / "next")
        async with open_house(provider, image, ticks=ticks) as house:
            (ended,) = await house.data(session, TextEnded)
            assert ended.text == "One, two"
            message = (await house.history(session))[-1]
            assert isinstance(message, AssistantMessage)
            assert message.content == (TextPart(id=ended.part_id, text="One, two"),)
            await answered(house, session)


@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
async def test_settling_is_the_same_however_often_a_process_dies_in_it(tmp_path: Path, again: bool) -> None:
    ticks = Ticks()
    tool = HeldTool("look")
    async with open_provider(answer(text("On it"), tool_call("look"))) as provider:
        async with open_house(provider, tmp_path, ticks=ticks, tools=[tool.tool]) as house:
            session = await house.session()
            await house.sessions.prompt(session, "Look", id=PROMPT)
            await tool.wait_started()
            image = crash_image(house, tmp_path / "next")
        if again:
            async with open_house(provider, image, ticks=ticks, tools=[tool.tool]) as house:
                image = crash_image(house, tmp_path / "after")
        async with open_house(provider, image, ticks=ticks, tools=[tool.tool]) as house:
            assert (await house.types(session))[-3:] == ["tool.called", "tool.failed", "turn.interrupted"]
            (interrupted,) = await house.data(session, TurnInterrupted)
            assert interrupted.reason == "recovery"
            assert await house.sessions.active() == {}
            assert await house.sessions.wait_prompt(session, PROMPT) == InterruptedOutcome(reason="recovery")
            assert len(provider.requests) == 1
            await answered(house, session)
        assert tool.executions == 1


async def test_a_call_whose_input_was_still_arriving_fails_with_what_arrived(tmp_path: Path) -> None:
    ticks = Ticks()
    held = hold()
    tool = ScriptedTool("look")
    call = tool_call("look", ['{"value": ', '"x"}'])
    async with open_provider(answer(*call[:2], held, *call[2:])) as provider:
        async with open_house(provider, tmp_path, ticks=ticks, tools=[tool.tool]) as house:
            session = await house.session()
            await house.sessions.prompt(session, "Look")
            await held.reached.wait()
            await wait_all_tasks_blocked()
            image = crash_image(house, tmp_path / "next")
        async with open_house(provider, image, ticks=ticks, tools=[tool.tool]) as house:
            assert (await house.types(session))[-4:] == [
                "tool.input.started",
                "tool.input.ended",
                "tool.failed",
                "turn.interrupted",
            ]
            await answered(house, session)
        assert tool.executions == 0


async def test_a_turn_that_waited_for_its_next_attempt_is_interrupted(tmp_path: Path, mock_clock: MockClock) -> None:
    ticks = Ticks()
    async with open_provider(status(503)) as provider:
        async with open_house(provider, tmp_path, ticks=ticks) as house:
            session = await house.session()
            await house.sessions.prompt(session, "Hello", id=PROMPT)
            await provider.wait_request()
            while "retry.scheduled" not in await house.types(session):
                await wait_all_tasks_blocked()
            image = crash_image(house, tmp_path / "next")
        async with open_house(provider, image, ticks=ticks) as house:
            assert (await house.types(session))[-2:] == ["retry.scheduled", "turn.interrupted"]
            assert await house.sessions.wait_prompt(session, PROMPT) == InterruptedOutcome(reason="recovery")
            await answered(house, session)


def promote_and_die(house: OpenHouse, session: SessionId, folder: Path) -> Path:
    """The store of a process that died between a promotion and the turn it was for."""
    image = crash_image(house, folder)
    database = open_store(image / "sessions.db")
    try:
        append(database, session, promoted(PROMPT))
    finally:
        database.close()
    return image


async def test_a_prompt_promoted_just_before_the_end_is_answered_as_interrupted(tmp_path: Path) -> None:
    """Ruling C3: nothing is open, and nobody answers it any more; the next run has it in history."""
    ticks = Ticks()
    async with open_provider() as provider:
        async with open_house(provider, tmp_path, ticks=ticks) as house:
            session = await house.session()
            await house.admit(session, "Hello", id=PROMPT)
            image = promote_and_die(house, session, tmp_path / "next")
        async with open_house(provider, image, ticks=ticks) as house:
            assert await house.sessions.wait_prompt(session, PROMPT) == InterruptedOutcome()
            assert provider.requests == []
            await answered(house, session)
            assert said(provider.requests[0]) == [("user", "Hello"), ("user", "And now?")]


QUESTION = {"questions": [{"question": "Which?", "header": "Choice", "options": [{"label": "a"}, {"label": "b"}]}]}


@pytest.mark.parametrize(
    ("call", "asked", "closed"),
    [
        (tool_call("write", {"path": "a.txt", "content": "x"}), PermissionAsked, PermissionReplied),
        (tool_call("question", QUESTION), QuestionAsked, QuestionRejected),
    ],
    ids=["permission", "question"],
)
async def test_an_open_request_is_closed_as_cancelled(tmp_path: Path, call: Any, asked: Any, closed: Any) -> None:
    ticks = Ticks()
    async with open_provider(answer(call)) as provider:
        async with open_house(provider, tmp_path, ticks=ticks) as house:
            session = await house.session()
            watch = await house.watch()
            await house.sessions.prompt(session, "Do it")
            request = await watch.until(asked)
            image = crash_image(house, tmp_path / "next")
        async with open_house(provider, image, ticks=ticks) as house:
            (end,) = await house.data(session, closed)
            assert end.request_id == request.request_id
            assert "cancelled" in (getattr(end, "reply", None), getattr(end, "reason", None))
            assert await house.runtime.permissions.list() == ()
            assert await house.runtime.questions.list() == ()
            late = house.runtime.permissions.reply(request.request_id, "once")
            if asked is QuestionAsked:
                late.close()
                late = house.runtime.questions.reply(request.request_id, (("a",),))
            with pytest.raises(ConflictError) as caught:
                await late
            assert caught.value.fields["reply"] == "cancelled"
            await answered(house, session)
        assert not (image / "a.txt").exists()


async def test_a_start_reads_only_what_is_unfinished(tmp_path: Path) -> None:
    """Sessions that are at rest get no event by a start."""
    ticks = Ticks()
    async with open_provider() as provider:
        async with open_house(provider, tmp_path, ticks=ticks) as house:
            session = await house.session()
            await house.ask(session, "Hello")
            waiting = await house.session()
            await house.admit(waiting, "Later")
            before = await house.events(session)
        async with open_house(provider, tmp_path, ticks=ticks) as house:
            assert await house.events(session) == before
            assert await house.types(waiting) == ["created", "prompt.admitted"]
            assert await house.sessions.active() == {}
        assert len(provider.requests) == 1


# --- policy `continue` --------------------------------------------------------------------------------------------


async def test_continue_goes_on_with_what_a_crash_left(tmp_path: Path) -> None:
    ticks = Ticks()
    tool = HeldTool("look")
    async with open_provider(answer(tool_call("look")), answer(text("As I was saying"))) as provider:
        async with open_house(provider, tmp_path, ticks=ticks, tools=[tool.tool]) as house:
            session = await house.session()
            await house.sessions.prompt(session, "Look")
            await tool.wait_started()
            image = crash_image(house, tmp_path / "next")
        settings = continuing(provider)
        async with open_house(provider, image, ticks=ticks, tools=[tool.tool], settings=settings) as house:
            await house.sessions.wait(session)
            assert [role for role, _ in said(provider.requests[1])] == ["user", "assistant", "tool", "user"]
            assert said(provider.requests[1])[-1] == ("user", CONTINUATION_NOTE)
            assert [tool["function"]["name"] for tool in provider.requests[1].tools].count("look") == 1
            assert isinstance((await house.data(session))[-1], TurnCompleted)
        async with open_house(provider, image, ticks=ticks, tools=[tool.tool], settings=settings) as house:
            await house.sessions.wait(session)
        assert len(provider.requests) == 2
        assert tool.executions == 1


@pytest.mark.parametrize("end", ["crash", "stop"])
async def test_a_prompt_is_waited_for_until_the_turn_that_goes_on_has_its_end(tmp_path: Path, end: str) -> None:
    ticks = Ticks()
    held = hold()
    async with open_provider(answer(text("Half"), hold()), answer(text("More"), held)) as provider:
        async with open_house(provider, tmp_path, ticks=ticks) as house:
            session = await house.session()
            watch = await house.watch()
            await house.sessions.prompt(session, "Hello", id=PROMPT)
            await watch.until(TextDelta)
            image = crash_image(house, tmp_path / "next") if end == "crash" else tmp_path
        async with open_house(provider, image, ticks=ticks, settings=continuing(provider)) as house:
            early = house.task(lambda: house.sessions.wait_prompt(session, PROMPT))
            await held.reached.wait()
            late = house.task(lambda: house.sessions.wait_prompt(session, PROMPT))
            await wait_all_tasks_blocked()
            assert (early.done, late.done) == (False, False)
            held.release()
            assert await early.result() == await late.result() == CompletedOutcome()
            assert await house.sessions.wait_prompt(session, PROMPT) == CompletedOutcome()
        async with open_house(provider, image, ticks=ticks) as house:
            assert await house.sessions.wait_prompt(session, PROMPT) == CompletedOutcome()


async def test_continue_goes_on_with_a_promotion_without_a_turn(tmp_path: Path) -> None:
    """Ruling B5: a crash between promotion and attempt leaves nothing unfinished, and is found all the same."""
    ticks = Ticks()
    async with open_provider() as provider:
        async with open_house(provider, tmp_path, ticks=ticks) as house:
            session = await house.session()
            await house.admit(session, "Hello", id=PROMPT)
            image = promote_and_die(house, session, tmp_path / "next")
        async with open_house(provider, image, ticks=ticks, settings=continuing(provider)) as house:
            assert await house.sessions.wait_prompt(session, PROMPT) == CompletedOutcome()
            assert said(provider.requests[0]) == [("user", "Hello"), ("user", CONTINUATION_NOTE)]


async def test_continue_goes_on_with_what_an_orderly_stop_interrupted(tmp_path: Path) -> None:
    ticks = Ticks()
    async with open_provider(answer(text("Half"), hold())) as provider:
        async with open_house(provider, tmp_path, ticks=ticks) as house:
            session = await house.session()
            watch = await house.watch()
            await house.sessions.prompt(session, "Hello")
            await watch.until(TextDelta)
        async with open_house(provider, tmp_path, ticks=ticks, settings=continuing(provider)) as house:
            await house.sessions.wait(session)
            (interrupted,) = await house.data(session, TurnInterrupted)
            assert interrupted.reason == "shutdown"
            assert said(provider.requests[1]) == [("user", "Hello"), ("assistant", "Half"), ("user", CONTINUATION_NOTE)]


@pytest.mark.parametrize("end", ["crash", "stop"])
async def test_continue_goes_on_with_a_cut_answer_that_waited_for_its_continuation(
    tmp_path: Path, mock_clock: MockClock, end: str
) -> None:
    """The turn is open until its back-off is over, so that neither an end nor an interrupt falls between two turns."""
    ticks = Ticks()
    async with open_provider(stream(text("Half"), cut())) as provider:
        async with open_house(provider, tmp_path, ticks=ticks) as house:
            session = await house.session()
            watch = await house.watch()
            await house.sessions.prompt(session, "Hello")
            await watch.until(RetryScheduled)
            image = crash_image(house, tmp_path / "next") if end == "crash" else tmp_path
        async with open_house(provider, image, ticks=ticks, settings=continuing(provider)) as house:
            await house.sessions.wait(session)
            (interrupted,) = await house.data(session, TurnInterrupted)
            assert interrupted.reason == ("recovery" if end == "crash" else "shutdown")
            assert said(provider.requests[1]) == [("user", "Hello"), ("assistant", "Half"), ("user", CONTINUATION_NOTE)]


async def test_continue_leaves_alone_what_a_user_interrupted_and_what_only_waits(tmp_path: Path) -> None:
    ticks = Ticks()
    async with open_provider(answer(text("Half"), hold())) as provider:
        async with open_house(provider, tmp_path, ticks=ticks) as house:
            session = await house.session()
            watch = await house.watch()
            await house.sessions.prompt(session, "Hello")
            await watch.until(TextDelta)
            await house.sessions.interrupt(session)
            waiting = await house.session()
            await house.admit(waiting, "Later")
            before = await house.events(session)
        async with open_house(provider, tmp_path, ticks=ticks, settings=continuing(provider)) as house:
            await wait_all_tasks_blocked()
            assert await house.sessions.active() == {}
            assert await house.events(session) == before
            assert len(await house.pending(waiting)) == 1
        assert len(provider.requests) == 1


async def test_a_start_gives_up_on_work_that_ended_ten_of_them(tmp_path: Path) -> None:
    """Each time is counted before the provider is asked; an answer begins the count anew."""
    ticks = Ticks()
    folder = tmp_path
    async with open_provider(respond=lambda _: answer(before=[hold()])) as provider:
        async with open_house(provider, folder, ticks=ticks) as house:
            session = await house.session()
            await house.sessions.prompt(session, "Hello")
            await provider.wait_request()
            folder = crash_image(house, tmp_path / "crash-0")
        settings = continuing(provider)
        for number in range(1, MAX_CONTINUATIONS + 1):
            async with open_house(provider, folder, ticks=ticks, settings=settings, check=False) as house:
                await provider.wait_request(number + 1)
                folder = crash_image(house, tmp_path / f"crash-{number}")
        async with open_house(provider, folder, ticks=ticks, settings=settings) as house:
            await wait_all_tasks_blocked()
            assert await house.sessions.active() == {}
            assert len(provider.requests) == MAX_CONTINUATIONS + 1
            notes = [message for message in await house.history(session) if isinstance(message, SyntheticMessage)]
            assert [note.text for note in notes] == [CONTINUATION_NOTE] * MAX_CONTINUATIONS
            provider.respond = lambda _: answer(text("Done."))
            assert await house.ask(session, "Are you there?") == CompletedOutcome()
            provider.respond = lambda _: answer(before=[hold()])
            await house.sessions.prompt(session, "More")
            await provider.wait_request(MAX_CONTINUATIONS + 3)
            folder = crash_image(house, tmp_path / "anew")
        provider.respond = lambda _: answer(text("Done."))
        async with open_house(provider, folder, ticks=ticks, settings=settings) as house:
            await house.sessions.wait(session)
            assert len(provider.requests) == MAX_CONTINUATIONS + 4
            assert isinstance((await house.data(session))[-1], TurnCompleted)


def test_the_policy_is_read_and_not_from_a_file_that_was_only_found(tmp_path: Path) -> None:
    def surroundings(**environ: str) -> Surroundings:
        return Surroundings(environ=environ, directory=tmp_path, config_folder=tmp_path / "own", data_folder=tmp_path)

    file = tmp_path / "steerway.toml"
    file.write_text("[recovery]\npolicy = 'continue'\n")
    assert load_settings(surroundings(), config_file=file).configuration.recovery.policy == "continue"
    with pytest.raises(ConfigurationError) as caught:
        load_settings(surroundings())
    assert caught.value.key == "recovery"
    file.unlink()
    assert load_settings(surroundings()).configuration.recovery.policy == "settle"
    given = surroundings(STEERWAY_RECOVERY_POLICY="continue")
    assert load_settings(given).configuration.recovery.policy == "continue"
    with pytest.raises(ConfigurationError, match="later"):
        load_settings(surroundings(STEERWAY_RECOVERY_POLICY="later"))


async def test_work_that_a_user_interrupted_between_turns_is_not_continued_after_a_restart(tmp_path: Path) -> None:
    """Ruling B5: the user's interrupt answers it, also where no turn was open that could end as interrupted."""
    entered = trio.Event()
    observed = 0

    async def load() -> str:
        nonlocal observed
        observed += 1
        if observed == 2:
            entered.set()
            await trio.sleep_forever()
        return "calm"

    weather = ContextSource(
        key="test/weather", codec=codec_of(str), load=load, baseline=lambda value: value, update=lambda _, value: value
    )
    async with open_provider(answer(tool_call("date"))) as provider:
        async with open_house(provider, tmp_path) as house:
            session = await house.session()
            house.runtime.context.register(weather)
            await house.sessions.prompt(session, "What is the date?")
            await entered.wait()
            await house.sessions.interrupt(session)
            assert len(await house.data(session, ToolSucceeded)) == 1
        assert len(provider.requests) == 1
        async with open_house(provider, tmp_path, settings=continuing(provider)) as house:
            await wait_all_tasks_blocked()
            assert await house.sessions.active() == {}
            assert len(provider.requests) == 1
