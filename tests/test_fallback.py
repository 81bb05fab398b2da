"""Fallback models: named ones only, on overload only, and what history says of it."""

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from steerway.actors.configuration import Configuration, ConfigurationError, Model, ModelSelection, Provider, Store
from steerway.actors.models import Models
from steerway.protocol.values import (
    PROVIDER_OVERLOADED,
    SUPERSEDED,
    CompletedOutcome,
    FailedOutcome,
    ModelRef,
    RetryScheduled,
    TurnCompleted,
    TurnFailed,
    TurnStarted,
)
from support.answers import answer, event, status, stream, text, tool_call
from support.house import open_house, said
from support.provider import Provider as ScriptedProvider
from support.provider import open_provider
from support.tools import HeldTool, printing_tool

OVERLOADED = 529


def settings(provider: ScriptedProvider, *fallback: str) -> Configuration:
    scripted = Provider(protocol="openai-chat", base_url=provider.base_url, models={name: Model() for name in ("a", "b", "c")})
    keyed = Provider(protocol="openai-chat", base_url=provider.base_url, api_key_env="NOT_SET")
    return Configuration(
        store=Store(synchronous="normal"),
        providers={"p": scripted, "keyed": keyed},
        models=ModelSelection(default="p/a", fallback=fallback),
    )


async def test_an_overloaded_model_is_replaced_by_the_next_named_one_at_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_provider() as provider:
        given = settings(provider, "keyed/x", "p/a", "p/b", "p/c")
        async with open_house(provider, tmp_path, settings=given, tools=[printing_tool("look", "seen").tool]) as house:
            provider.script(
                status(OVERLOADED),
                status(OVERLOADED),
                answer(tool_call("look", {})),
                answer(text("Done.")),
                answer(text("Again.")),
            )
            session = await house.session()
            begun = trio.current_time()
            assert await house.ask(session, "Hello") == CompletedOutcome()
            assert trio.current_time() == begun
            assert [request.model for request in provider.requests] == ["a", "b", "c", "c"]
            assert [data.model.id for data in await house.data(session, TurnStarted)] == ["a", "b", "c", "c"]
            failed = await house.data(session, TurnFailed)
            assert [data.error.type for data in failed] == [SUPERSEDED] * 2
            assert all("overloaded" in data.error.message for data in failed)
            assert len(await house.data(session, TurnCompleted)) == 2
            assert (await house.sessions.get(session)).model is None

            assert await house.ask(session, "Next") == CompletedOutcome()
            assert provider.requests[-1].model == "a"


async def test_without_a_fallback_left_the_last_model_is_tried_again_with_the_rest_of_the_budget(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with (
        open_provider(respond=lambda request: status(OVERLOADED)) as provider,
        open_house(provider, tmp_path, settings=settings(provider, "p/b")) as house,
    ):
        session = await house.session()
        assert isinstance(await house.ask(session, "Hello"), FailedOutcome)
        assert [request.model for request in provider.requests] == ["a", "b", "b", "b", "b"]
        assert len(await house.data(session, RetryScheduled)) == 3


@pytest.mark.parametrize("code", [429, 500])
async def test_other_failures_never_change_the_model(tmp_path: Path, autojump_clock: MockClock, code: int) -> None:
    async with (
        open_provider(status(code)) as provider,
        open_house(provider, tmp_path, settings=settings(provider, "p/b")) as house,
    ):
        assert await house.ask(await house.session(), "Hello") == CompletedOutcome()
        assert [request.model for request in provider.requests] == ["a", "a"]


async def test_without_named_fallbacks_there_are_none(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with (
        open_provider(status(OVERLOADED)) as provider,
        open_house(provider, tmp_path, settings=settings(provider)) as house,
    ):
        assert await house.ask(await house.session(), "Hello") == CompletedOutcome()
        assert [request.model for request in provider.requests] == ["a", "a"]


async def test_selecting_a_model_ends_a_fallback(tmp_path: Path) -> None:
    held = HeldTool("look")
    async with (
        open_provider(status(OVERLOADED), answer(tool_call("look", {}))) as provider,
        open_house(provider, tmp_path, settings=settings(provider, "p/b"), tools=[held.tool]) as house,
    ):
        session = await house.session()
        await house.admit(session, "Hello")
        running = house.task(lambda: house.sessions.resume(session))
        await held.wait_started(1)
        await house.sessions.switch_model(session, ModelRef(provider="p", id="c"))
        held.release()
        assert await running.result() == CompletedOutcome()
        assert [request.model for request in provider.requests] == ["a", "b", "c"]


def test_a_fallback_that_names_no_model_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Models(Configuration(models=ModelSelection(fallback=("nothing",))), {})
    assert caught.value.key == "models.fallback"


async def test_an_overload_in_the_middle_of_an_answer_asks_the_next_model_at_once(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    overloaded = stream(text("The first half"), event({"error": {"type": "overloaded_error", "message": "Overloaded"}}))
    async with (
        open_provider(overloaded, answer(text("the second half"))) as provider,
        open_house(provider, tmp_path, settings=settings(provider, "p/b")) as house,
    ):
        session = await house.session()
        begun = trio.current_time()
        assert await house.ask(session, "Hello") == CompletedOutcome()
        assert trio.current_time() == begun
        assert [request.model for request in provider.requests] == ["a", "b"]
        assert ("assistant", "The first half") in said(provider.requests[1])
        assert await house.data(session, RetryScheduled) == []
        (failed,) = await house.data(session, TurnFailed)
        assert (failed.error.type, failed.continues) == (PROVIDER_OVERLOADED, True)
