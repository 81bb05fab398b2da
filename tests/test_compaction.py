"""Compaction: what begins it, what it sends and keeps, how it fails, and what a session does meanwhile."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio
from trio.testing import wait_all_tasks_blocked

from steerway.actors.configuration import Compaction, Configuration, Model, Provider
from steerway.protocol.values import (
    COMPACTION_UNAVAILABLE,
    CompactControl,
    CompactionCompleted,
    CompactionDelta,
    CompactionFailed,
    CompactionMessage,
    CompactionStarted,
    CompletedOutcome,
    EpochStarted,
    FailedOutcome,
    InterruptedOutcome,
    PromptPromoted,
    SystemMessage,
    ToolPruned,
    TurnFailed,
    TurnStarted,
)
from steerway.protocol.values.failure import ABORTED, PROVIDER_CONTEXT_OVERFLOW
from support.answers import Answer, answer, finish, hold, status, text, tool_call
from support.house import OpenHouse, Ticks, baseline, configuration, crash_image, open_house, said
from support.provider import Provider as ScriptedProvider
from support.provider import Request, open_provider
from support.tools import ScriptedTool

LONG = "word " * 800
"""A thousand tokens."""
TOO_LARGE = {"error": {"message": "This model's maximum context length is 8192 tokens."}}


def settings(
    provider: ScriptedProvider, *, context: int | None = 8_000, auto: bool = True, keep_tokens: int = 500
) -> Configuration:
    """The scripted model with a known context, and little kept."""
    made = configuration(provider, compaction=Compaction(auto=auto, keep_tokens=keep_tokens, buffer=1_000))
    model = Provider(
        protocol="openai-chat", base_url=provider.base_url, models={"scripted": Model(context=context, output=500)}
    )
    made.providers["scripted"] = model
    return made


def is_summary(request: Request) -> bool:
    return "You write the memory of a conversation" in str(request.messages[-1]["content"])


def summarising(provider: ScriptedProvider, summary: Callable[[Request], Answer]) -> None:
    """Answer summary requests by `summary`, everything else with two words."""
    provider.respond = lambda request: summary(request) if is_summary(request) else answer(text("Well understood."))


async def fill(house: OpenHouse, session: Any, turns: int) -> None:
    for turn in range(turns):
        assert await house.ask(session, f"{turn} {LONG}") == CompletedOutcome()


async def test_a_request_that_would_not_fit_is_summarised_first_and_the_same_step_goes_on(tmp_path: Path) -> None:
    async with open_provider() as provider:
        summarising(provider, lambda _: answer(text("## Goal\nWords.")))
        async with open_house(provider, tmp_path, settings=settings(provider)) as house:
            session = await house.session()
            watch = await house.watch()
            await fill(house, session, 8)
            (completed, *_) = await house.data(session, CompactionCompleted)
            summary = next(request for request in provider.requests if is_summary(request))
            after = provider.requests[provider.requests.index(summary) + 1]
            assert summary.tools == ()
            assert [role for role, _ in said(after)] == ["user"]
            assert "## Goal\nWords." in said(after)[0][1]
            types = [event.type for event in await house.events(session)]
            start = types.index(CompactionStarted.type)
            expected = (PromptPromoted, CompactionStarted, CompactionCompleted, EpochStarted, TurnStarted)
            assert types[start - 1 : start + 4] == [kind.type for kind in expected]
            assert completed.tokens.output > 0
            assert "".join(delta.delta for delta in watch.of(CompactionDelta)).startswith("## Goal\nWords.")
            session_now = await house.sessions.get(session)
            assert session_now.tokens.input > completed.tokens.input
            assert len(await house.history(session)) > len(await house.sessions.context(session))


async def test_what_was_just_asked_stays_beside_the_summary(tmp_path: Path) -> None:
    async with open_provider() as provider:
        summarising(provider, lambda _: answer(text("Summary.")))
        async with open_house(provider, tmp_path, settings=settings(provider, keep_tokens=300)) as house:
            session = await house.session()
            await fill(house, session, 5)
            await house.ask(session, f"What is the answer? {LONG}")
            await house.ask(session, "And now?")
            assert await house.data(session, CompactionCompleted)
            last = said(provider.requests[-1])
            assert any("What is the answer?" in line for _, line in last)


async def test_a_second_summary_is_made_from_the_first(tmp_path: Path) -> None:
    async with open_provider() as provider:
        count = 0

        def summary(_: Request) -> Answer:
            nonlocal count
            count += 1
            return answer(text(f"Summary number {count}."))

        summarising(provider, summary)
        async with open_house(provider, tmp_path, settings=settings(provider)) as house:
            session = await house.session()
            await fill(house, session, 16)
            asked = [request for request in provider.requests if is_summary(request)]
            assert len(asked) >= 2
            assert "Summary number 1." in str(asked[1].messages)
            assert "Summary number 1." not in said(provider.requests[-1])[0][1]


async def test_compaction_begins_an_epoch_with_the_current_context_and_without_old_updates(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("First rule.", encoding="utf-8")
    async with open_provider() as provider:
        summarising(provider, lambda _: answer(text("Summary.")))
        async with open_house(provider, tmp_path, settings=settings(provider, context=None)) as house:
            session = await house.session()
            await house.ask(session, "one")
            (tmp_path / "AGENTS.md").write_text("Second rule.", encoding="utf-8")
            await house.ask(session, "two")
            await house.sessions.compact(session)
            await house.sessions.wait(session)
            await house.ask(session, "three")
            summary = next(request for request in provider.requests if is_summary(request))
            last = provider.requests[-1]
            assert "rule" not in str(summary.messages)
            assert "Second rule." in baseline(last)
            assert "First rule." not in baseline(last)
            assert not any("<system-update>" in line for _, line in said(last))
            assert [epoch.reason for epoch in await house.data(session, EpochStarted)] == ["initial", "compaction"]
            assert [type(message) for message in await house.sessions.context(session)].count(SystemMessage) == 0
            assert any(isinstance(message, SystemMessage) for message in await house.history(session))


async def test_a_compaction_that_was_asked_for_bounds_promotion(tmp_path: Path) -> None:
    async with open_provider() as provider:
        held = hold()
        summarising(provider, lambda _: answer(held, text("Summary.")))
        async with open_house(provider, tmp_path, settings=settings(provider, context=None)) as house:
            session = await house.session()
            await house.ask(session, "one")
            item = await house.sessions.compact(session)
            await held.reached.wait()
            behind = await house.sessions.prompt(session, "two")
            again = await house.sessions.compact(session)
            assert again.id != item.id
            assert await house.sessions.compact(session) == again
            waiting = await house.sessions.pending(session)
            assert [type(one) for one in waiting][-1] is CompactControl
            assert [one.id for one in waiting] == [behind.id, again.id]
            held.release()
            await house.sessions.wait(session)
            assert await house.pending(session) == []
            started = [data.message_id for data in await house.data(session, CompactionStarted)]
            assert started == [item.id, again.id]
            assert [line for _, line in said(provider.requests[2])][-1] == "two"


async def test_a_control_item_can_be_withdrawn_before_it_is_done(tmp_path: Path) -> None:
    async with open_provider() as provider, open_house(provider, tmp_path, settings=settings(provider)) as house:
        session = await house.session()
        held = hold()
        provider.script(answer(held, text("Done.")))
        first = house.task(lambda: house.ask(session, "one"))
        await held.reached.wait()
        item = await house.sessions.compact(session)
        assert (await house.sessions.withdraw(session, item.id)).__struct_config__.tag == "withdrawn"
        held.release()
        await first.result()
        await house.sessions.wait(session)
        assert await house.data(session, CompactionStarted) == []


async def test_without_history_a_compaction_fails_as_unavailable(tmp_path: Path) -> None:
    async with open_provider() as provider, open_house(provider, tmp_path, settings=settings(provider)) as house:
        session = await house.session()
        await house.sessions.compact(session)
        await house.sessions.wait(session)
        (failed,) = await house.data(session, CompactionFailed)
        assert failed.error.type == COMPACTION_UNAVAILABLE
        assert provider.requests == []
        assert await house.ask(session, "one") == CompletedOutcome()


async def test_a_blank_or_cut_summary_changes_nothing_and_three_failures_are_enough(tmp_path: Path) -> None:
    answers = [answer(text(" ")), answer(text("Half a"), finish("length")), status(401)]
    async with open_provider() as provider:
        summarising(provider, lambda _: answers.pop(0))
        async with open_house(provider, tmp_path, settings=settings(provider)) as house:
            session = await house.session()
            await fill(house, session, 12)
            failed = await house.data(session, CompactionFailed)
            assert len(failed) == 3
            assert answers == []
            assert await house.data(session, CompactionCompleted) == []
            assert len(said(provider.requests[-1])) == 2 * 11 + 1


async def test_an_overflow_before_output_is_summarised_and_answered(tmp_path: Path) -> None:
    async with open_provider() as provider:
        refused = False

        def respond(request: Request) -> Answer:
            nonlocal refused
            if is_summary(request):
                return answer(text("Summary."))
            if len(request.messages) > 5 and not refused:
                refused = True
                return status(400, TOO_LARGE)
            return answer(text("Well understood."))

        provider.respond = respond
        async with open_house(provider, tmp_path, settings=settings(provider, context=None)) as house:
            session = await house.session()
            await fill(house, session, 2)
            receipt = await house.sessions.prompt(session, f"last {LONG}")
            assert await house.sessions.wait_prompt(session, receipt.id) == CompletedOutcome()
            (failed,) = await house.data(session, TurnFailed)
            assert failed.error.type == PROVIDER_CONTEXT_OVERFLOW
            assert failed.continues
            (started,) = await house.data(session, CompactionStarted)
            assert started.reason == "overflow"
            assert isinstance((await house.sessions.context(session))[0], CompactionMessage)
            assert len(await house.data(session, PromptPromoted)) == 3


async def test_a_second_overflow_of_the_same_step_is_final(tmp_path: Path) -> None:
    async with open_provider() as provider:
        provider.respond = lambda request: answer(text("Summary.")) if is_summary(request) else status(400, TOO_LARGE)
        async with open_house(provider, tmp_path, settings=settings(provider, context=None)) as house:
            session = await house.session()
            outcome = await house.ask(session, f"one {LONG}")
            assert isinstance(outcome, FailedOutcome)
            assert outcome.error.type == PROVIDER_CONTEXT_OVERFLOW
            assert [failed.continues for failed in await house.data(session, TurnFailed)] == [True, None]


async def test_an_overflow_that_cannot_be_summarised_is_the_prompts_outcome(tmp_path: Path) -> None:
    async with open_provider() as provider:
        provider.respond = lambda request: status(401) if is_summary(request) else status(400, TOO_LARGE)
        async with open_house(provider, tmp_path, settings=settings(provider, context=None)) as house:
            session = await house.session()
            receipt = await house.sessions.prompt(session, f"one {LONG}")
            outcome = await house.sessions.wait_prompt(session, receipt.id)
            assert isinstance(outcome, FailedOutcome)
            assert outcome.error.type == PROVIDER_CONTEXT_OVERFLOW


async def test_off_means_off(tmp_path: Path) -> None:
    async with open_provider() as provider, open_house(provider, tmp_path, settings=settings(provider, auto=False)) as house:
        session = await house.session()
        await fill(house, session, 12)
        provider.respond = lambda _: status(400, TOO_LARGE)
        assert isinstance(await house.ask(session, "more"), FailedOutcome)
        assert await house.data(session, CompactionStarted, ToolPruned) == []


async def test_an_interrupt_during_the_summary_fails_it_and_keeps_history(tmp_path: Path) -> None:
    async with open_provider() as provider:
        held = hold()
        summarising(provider, lambda _: answer(text("Half"), held, text("Summary.")))
        async with open_house(provider, tmp_path, settings=settings(provider, context=None)) as house:
            session = await house.session()
            await house.ask(session, "one")
            await house.sessions.compact(session)
            await held.reached.wait()
            assert (await house.sessions.interrupt(session)).interrupted
            (failed,) = await house.data(session, CompactionFailed)
            assert failed.error.type == ABORTED
            assert (await house.sessions.get(session)).last_outcome == InterruptedOutcome(reason="user")
            assert await house.ask(session, "two") == CompletedOutcome()
            assert len(said(provider.requests[-1])) == 3


async def test_an_interrupt_before_the_summary_is_asked_for_leaves_no_open_compaction(tmp_path: Path) -> None:
    async with open_provider() as provider, open_house(provider, tmp_path) as house:
        session = await house.session()
        await house.ask(session, "one")
        for steps in range(200):  # the first interrupt that comes too late to keep the compaction from starting
            await house.sessions.compact(session)
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            await house.sessions.interrupt(session)
            await house.sessions.wait(session)
            if await house.data(session, CompactionStarted):
                break
        assert [failed.error.type for failed in await house.data(session, CompactionFailed)] == [ABORTED]
        assert await house.pending(session) == []
        assert len(provider.requests) == 1


async def test_a_process_that_dies_during_a_summary_leaves_it_failed(tmp_path: Path) -> None:
    ticks = Ticks()
    async with open_provider() as provider:
        held = hold()
        summarising(provider, lambda _: answer(held, text("Summary.")))
        async with open_house(provider, tmp_path / "first", ticks=ticks, settings=settings(provider, context=None)) as house:
            session = await house.session()
            await house.ask(session, "one")
            await house.sessions.compact(session)
            await held.reached.wait()
            await wait_all_tasks_blocked()
            image = crash_image(house, tmp_path / "second")
            held.release()
            await house.sessions.wait(session)
        async with open_house(provider, image, ticks=ticks, settings=settings(provider, context=None)) as house:
            (failed,) = await house.data(session, CompactionFailed)
            assert failed.error.type == ABORTED


async def test_old_results_are_pruned_before_a_summary_is_needed(tmp_path: Path) -> None:
    tool = ScriptedTool("look", lambda _: LONG).tool
    async with open_provider() as provider:

        def respond(request: Request) -> Answer:
            if request.messages[-1]["role"] == "user":
                return answer(tool_call("look", {"value": "x"}))
            return answer(text("Seen."))

        provider.respond = respond
        async with open_house(provider, tmp_path, tools=[tool], settings=settings(provider)) as house:
            session = await house.session()
            for turn in range(7):
                assert await house.ask(session, f"look {turn}") == CompletedOutcome()
            (pruned, *_) = await house.data(session, ToolPruned)
            assert pruned.call_ids
            assert await house.data(session, CompactionStarted) == []
            results = [line for role, line in said(provider.requests[-1]) if role == "tool"]
            assert results[0].startswith("[This old result was removed")
            assert results[-1].strip() == LONG.strip()
            assert [epoch.reason for epoch in await house.data(session, EpochStarted)][:2] == ["initial", "compaction"]
