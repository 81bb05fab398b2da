"""What a session keeps of its history between turns changes nothing that can be seen, and begins a turn earlier."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio

from steerway.actors.configuration import Configuration, Model, ModelSelection, Provider
from steerway.actors.models.models import Models
from steerway.actors.session.history import KEPT_MESSAGES, Histories, History
from steerway.protocol.llm.invariants import RequestInvariantError
from steerway.protocol.values import (
    CompletedOutcome,
    FailedOutcome,
    ModelSwitched,
    PromptPromoted,
    SessionId,
    SyntheticAdded,
    TextStarted,
    TurnFailed,
    TurnInterrupted,
    TurnStarted,
)
from steerway.protocol.values.ids import MessageId
from steerway.protocol.values.model import Prices
from steerway.storage.history import Stretch
from support.answers import answer, event, hold, stream, text, tool_call
from support.house import OTHER, SCRIPTED, OpenHouse, Ticks, open_house, scripted_house
from support.provider import open_provider
from support.stores import append, open_store, session_created
from support.tools import ScriptedTool

S = SessionId("ses_kept")

# --- the same requests ------------------------------------------------------------------------------------------------


def _answer(number: int) -> Any:
    if number % 3 == 0:
        return answer(tool_call("echo", {"value": f"Ünï {number}"}, id=f"call_{number % 6}"))
    return answer(text(f"Answer {number} <&> \U0001f600"))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


async def _converse(house: OpenHouse, turn: int, instructions: Path) -> None:
    """One prompt, and now and then what changes the requests."""
    if turn == 0:
        await house.session(id=S)
    if turn % 7 == 3:
        _write(instructions, f"Rule {turn}.")
    if turn % 9 == 5:
        await house.sessions.switch_model(S, OTHER if turn % 2 else SCRIPTED)
    if turn == 22:
        await house.sessions.compact(S)
        await house.sessions.wait(S)
    await house.ask(S, f"Prompt {turn}")


async def _bodies(folder: Path, *, reopen: bool) -> list[bytes]:
    """What a provider is sent over 30 prompts. `reopen`: by another process each time, which remembers nothing."""
    ticks = Ticks()
    async with open_provider() as provider:
        provider.respond = lambda request: _answer(request.number)

        @asynccontextmanager
        async def opened() -> AsyncGenerator[OpenHouse]:
            async with open_house(provider, folder, ticks=ticks, tools=[ScriptedTool("echo").tool]) as house:
                yield house

        if reopen:
            for turn in range(30):
                async with opened() as house:
                    await _converse(house, turn, folder / "AGENTS.md")
        else:
            async with opened() as house:
                for turn in range(30):
                    await _converse(house, turn, folder / "AGENTS.md")
        return _comparable(folder, [request.body for request in provider.requests])


def _comparable(folder: Path, bodies: list[bytes]) -> list[bytes]:
    """Without what two runs cannot share: the folder, and call ids of our own, which hold the time."""
    ids: dict[bytes, bytes] = {}

    def number(found: re.Match[bytes]) -> bytes:
        return ids.setdefault(found[0], b"own_call_%d" % len(ids))

    return [re.sub(rb"call_[0-9a-z]{20,}", number, body.replace(str(folder).encode(), b"FOLDER")) for body in bodies]


async def test_what_is_kept_gives_the_requests_of_who_remembers_nothing(tmp_path: Path) -> None:
    for name in ("kept", "anew"):
        (tmp_path / name).mkdir()
    kept = await _bodies(tmp_path / "kept", reopen=False)
    anew = await _bodies(tmp_path / "anew", reopen=True)
    assert len(kept) > 40
    assert kept == anew


# --- what is kept -----------------------------------------------------------------------------------------------------


@pytest.fixture
def stretches(tmp_path: Path) -> Callable[[int], Stretch]:
    """Histories of so many messages."""

    def of(count: int) -> Stretch:
        database = open_store(tmp_path / f"{count}.db")
        notes = [SyntheticAdded(message_id=MessageId(f"msg_{number}"), text="A note.") for number in range(count)]
        append(database, S, session_created(), *notes)
        reader = database.open_reader()
        try:
            return reader.stretch(S, None)
        finally:
            reader.close()
            database.close()

    return of


def _history(stretch: Stretch) -> History:
    provider = Provider(protocol="openai-chat", base_url="http://127.0.0.1:1/v1")
    models = Models(Configuration(providers={"p": provider}, models=ModelSelection(default="p/m")), {})
    history = History(models, models.resolve(None))
    history.extend(stretch)
    return history


def test_long_histories_rest_within_a_bound_and_the_ones_used_last_stay(stretches: Callable[[int], Stretch]) -> None:
    stretch = stretches(KEPT_MESSAGES)
    first, second, third = (_history(stretch) for _ in range(3))
    histories = Histories(limit=2 * first.weight)
    one, two, three = (SessionId(f"ses_{number}") for number in range(3))
    histories.put(one, first)
    histories.put(two, second)
    assert histories.take(one) is first
    histories.put(one, first)
    histories.put(three, third)
    assert [histories.take(session) for session in (one, two, three)] == [first, None, third]
    histories.put(one, first)
    histories.forget(one)
    assert histories.take(one) is None
    assert Histories(limit=first.weight - 1).take(one) is None
    small = Histories(limit=first.weight - 1)
    small.put(one, first)
    assert small.take(one) is None


def test_a_short_history_is_not_worth_its_memory(stretches: Callable[[int], Stretch]) -> None:
    histories = Histories()
    histories.put(S, _history(stretches(KEPT_MESSAGES - 1)))
    assert histories.take(S) is None


# --- a turn that begins with its boundary -----------------------------------------------------------------------------


async def test_nothing_comes_between_what_was_promoted_and_its_attempt(tmp_path: Path) -> None:
    """Ruling A14: a switch that was answered before the attempt counts for it."""
    async with scripted_house(tmp_path) as house:
        session = await house.session(model=SCRIPTED)
        for turn in range(12):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(house.ask, session, "Hello")
                for _ in range(turn % 4):
                    await trio.lowlevel.checkpoint()
                nursery.start_soon(house.sessions.switch_model, session, OTHER if turn % 2 else SCRIPTED)
        model = SCRIPTED
        events = [event.data for event in await house.events(session)]
        for before, data in pairwise(events):
            match data:
                case ModelSwitched(model=model):
                    pass
                case TurnStarted():
                    assert isinstance(before, PromptPromoted)
                    assert data.model == model
                case _:
                    pass
        assert sum(isinstance(data, ModelSwitched) for data in events) >= 10


async def test_a_turn_whose_request_cannot_be_made_has_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with scripted_house(tmp_path) as house:
        session = await house.session()

        def broken(_: History) -> Any:
            raise RequestInvariantError(0, "the test broke it")

        with monkeypatch.context() as defect:
            defect.setattr(History, "messages", broken)
            outcome = await house.ask(session, "Hello")
        assert isinstance(outcome, FailedOutcome)
        assert "the test broke it" in outcome.error.message
        started, failed = await house.data(session, TurnStarted, TurnFailed)
        assert started.assistant_message_id == failed.assistant_message_id
        assert house.provider.requests == []
        assert await house.ask(session, "Once more") == CompletedOutcome()


# --- what an interrupted turn used --------------------------------------------------------------------------------------


@pytest.fixture
def anthropic() -> Callable[[str], Configuration]:
    def settings(base_url: str) -> Configuration:
        models = {"claude-sonnet-4-5": Model(cost=Prices(input=3.0, output=15.0))}
        provider = Provider(protocol="anthropic-messages", base_url=base_url, models=models)
        return Configuration(providers={"anthropic": provider}, models=ModelSelection(default="anthropic/claude-sonnet-4-5"))

    return settings


async def test_an_interrupted_turn_tells_what_the_provider_said_that_it_used(
    tmp_path: Path, anthropic: Callable[[str], Configuration]
) -> None:
    message: dict[str, Any] = {
        "id": "msg_1",
        "role": "assistant",
        "content": [],
        "usage": {"input_tokens": 1_000_000, "output_tokens": 1},
    }
    begun = stream(
        event({"type": "message_start", "message": message}, "message_start"),
        event({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
        event({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Well"}}),
        hold(),
    )
    async with open_provider(begun) as provider:
        settings = anthropic(provider.base_url)
        async with open_house(provider, tmp_path, settings=settings) as house:
            session, watch = await house.session(), await house.watch()
            await house.sessions.prompt(session, "Hello")
            await watch.until(TextStarted)
            await house.sessions.interrupt(session)
            (interrupted,) = await house.data(session, TurnInterrupted)
            assert interrupted.tokens is not None
            assert interrupted.tokens.input == 1_000_000
            assert interrupted.cost is not None
            assert interrupted.cost > 1
            stored = await house.sessions.get(session)
            assert (stored.tokens, stored.cost) == (interrupted.tokens, interrupted.cost)
            (_, stopped) = await house.history(session)
            assert (stopped.tokens, stopped.cost) == (interrupted.tokens, interrupted.cost)  # type: ignore[union-attr]
