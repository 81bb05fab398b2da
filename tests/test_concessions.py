"""A request that a provider refuses is made again without what of its history may be the reason: no session is poisoned."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from steerway.actors.configuration import Configuration, Model, ModelSelection, Provider
from steerway.protocol.values import PROVIDER_INVALID_REQUEST, CompletedOutcome, FailedOutcome, TurnCompleted, TurnFailed
from steerway.protocol.values.prompt import PromptFile
from support.answers import Answer, answer, reasoning, status, text
from support.anthropic_messages import SIGNATURE
from support.house import OpenHouse, Ticks, open_house
from support.provider import Request, open_provider

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 64
IMAGE = PromptFile(data=PNG, mime="image/png", name="a.png")
IMAGE_TYPE = b'"type":"image"'


@asynccontextmanager
async def refusing(
    folder: Path, refuses: Callable[[Request], bool], *, ticks: Ticks | None = None
) -> AsyncGenerator[OpenHouse]:
    """A house whose provider thinks aloud, and refuses some requests as invalid."""

    def respond(request: Request) -> Answer:
        if refuses(request):
            return status(400)
        return answer(reasoning("Hm."), text(f"Answer {request.number}"))

    async with open_provider() as provider:
        provider.respond = respond
        asked = Provider(protocol="anthropic-messages", base_url=provider.base_url, models={"claude": Model()})
        settings = Configuration(providers={"anthropic": asked}, models=ModelSelection(default="anthropic/claude"))
        async with open_house(provider, folder, settings=settings, ticks=ticks) as house:
            yield house


def signatures(request: Request) -> int:
    return request.body.count(SIGNATURE.encode())


async def test_metadata_that_a_provider_does_not_know_any_more_are_left_out_and_new_ones_sent(tmp_path: Path) -> None:
    refusals: list[int] = []

    def refuses(request: Request) -> bool:
        if request.number == 3 and signatures(request):
            refusals.append(signatures(request))
        return bool(refusals) and request.number == 3

    async with refusing(tmp_path, refuses) as house:
        session = await house.session()
        for prompt in ("one", "two", "three", "four"):
            assert await house.ask(session, prompt) == CompletedOutcome()
        assert refusals == [2]
        requests = house.provider.requests
        assert [signatures(request) for request in requests] == [0, 1, 2, 0, 1]
        shown = await house.sessions.provider_context(session)
        assert shown.request is not None
        kept = msgspec.json.encode(shown.request).count(SIGNATURE.encode())
        assert kept == 2  # of the last two answers: what was refused is not shown either
        assert b"Hm." in requests[3].body  # as text
        (failed,) = await house.data(session, TurnFailed)
        assert (failed.error.type, failed.continues) == (PROVIDER_INVALID_REQUEST, True)
        assert len(await house.data(session, TurnCompleted)) == 4


async def test_a_picture_that_a_provider_cannot_read_does_not_end_the_session(tmp_path: Path) -> None:
    async with refusing(tmp_path, lambda request: IMAGE_TYPE in request.body) as house:
        session = await house.session()
        assert await house.ask(session, "Look", files=(IMAGE,)) == CompletedOutcome()
        assert await house.ask(session, "And now?") == CompletedOutcome()
        assert [IMAGE_TYPE in request.body for request in house.provider.requests] == [True, False, False]
        assert b"was not sent" in house.provider.requests[-1].body


async def test_metadata_go_before_media_and_the_rest_is_a_failure(tmp_path: Path) -> None:
    async with refusing(tmp_path, lambda request: request.number > 1) as house:
        session = await house.session()
        assert await house.ask(session, "Look", files=(IMAGE,)) == CompletedOutcome()
        outcome = await house.ask(session, "Again")
        assert isinstance(outcome, FailedOutcome)
        assert outcome.error.type == PROVIDER_INVALID_REQUEST
        sent = [(signatures(request), IMAGE_TYPE in request.body) for request in house.provider.requests[1:]]
        assert sent == [(1, True), (0, True), (0, False)]
        assert [data.continues for data in await house.data(session, TurnFailed)] == [True, True, None]


async def test_a_refusal_without_anything_to_leave_out_is_final(tmp_path: Path) -> None:
    async with refusing(tmp_path, lambda request: True) as house:
        session = await house.session()
        assert isinstance(await house.ask(session, "Hello"), FailedOutcome)
        assert len(house.provider.requests) == 1


async def test_another_process_asks_once_with_everything_again(tmp_path: Path) -> None:
    """What is left out is remembered in memory: a provider may know tomorrow what it refused today."""
    ticks = Ticks()

    def refuses(request: Request) -> bool:
        return signatures(request) > 0

    async with refusing(tmp_path, refuses, ticks=ticks) as house:
        session = await house.session()
        await house.ask(session, "one")
        assert await house.ask(session, "two") == CompletedOutcome()
        assert [signatures(request) for request in house.provider.requests] == [0, 1, 0]
    async with refusing(tmp_path, refuses, ticks=ticks) as house:
        assert await house.ask(session, "three") == CompletedOutcome()
        assert [signatures(request) for request in house.provider.requests] == [2, 0]
