"""Titles and metadata of sessions: set, kept, published and searched, without disturbing the work."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import UNSET

from steerway import connect
from steerway.protocol.codec import CODECS
from steerway.protocol.values import CompletedOutcome, SessionId
from steerway.protocol.values.errors import SessionNotFoundError
from steerway.protocol.values.event import SessionUpdated
from support.answers import answer, hold, text
from support.house import Ticks, open_house, read_events, scripted_house
from support.provider import open_provider


async def test_what_is_left_out_stays_as_it_is(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        session = await house.session(title="First", metadata={"a": 1})
        updated = await house.sessions.update(session, title="Second")
        assert (updated.title, updated.metadata) == ("Second", {"a": 1})
        updated = await house.sessions.update(session, metadata={"b": [2, None, {"c": "d"}]})
        assert (updated.title, updated.metadata) == ("Second", {"b": [2, None, {"c": "d"}]})
        assert await house.sessions.get(session) == updated
        assert [(data.title, data.metadata) for data in await house.data(session, SessionUpdated)] == [
            ("Second", None),
            (None, {"b": [2, None, {"c": "d"}]}),
        ]


async def test_an_update_that_changes_nothing_leaves_no_event(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        session = await house.session(title="First", metadata={"a": 1})
        before = await house.sessions.get(session)
        assert await house.sessions.update(session) == before
        assert await house.sessions.update(session, title="First", metadata={"a": 1}) == before
        assert await house.types(session) == ["created"]


@pytest.mark.parametrize("subprotocol", CODECS)
async def test_a_budget_can_be_taken_away_and_is_left_alone_when_left_out(tmp_path: Path, subprotocol: str) -> None:
    ticks = Ticks()
    async with open_provider() as provider:
        async with open_house(provider, tmp_path, ticks=ticks) as house:
            session = await house.session(title="First")
            listening = await house.runtime.listen(host="127.0.0.1", port=0, token="secret")
            async with connect(listening.url, token="secret", subprotocol=subprotocol) as client:
                assert (await client.sessions.update(session, budget=2.5)).budget == 2.5
                assert (await client.sessions.update(session, title="Second")).budget == 2.5
                assert (await client.sessions.update(session, budget=None)).budget is None
                assert (await client.sessions.update(session, budget=None)).budget is None
                updates = [event.data for event in await read_events(client, session)]
            assert [data.budget for data in updates if isinstance(data, SessionUpdated)] == [2.5, UNSET, None]
        async with open_house(provider, tmp_path, ticks=ticks) as house:
            assert (await house.sessions.get(session)).budget is None


async def test_metadata_can_be_emptied_and_a_title_be_empty(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        session = await house.session(title="First", metadata={"a": 1})
        updated = await house.sessions.update(session, title="", metadata={})
        assert (updated.title, updated.metadata) == ("", {})


async def test_a_session_that_works_can_be_updated_and_goes_on(tmp_path: Path) -> None:
    held = hold()
    async with scripted_house(tmp_path, answer(text("Half"), held, text(" and half"))) as house:
        session = await house.session()
        watch = await house.watch()
        joined = house.task(lambda: house.ask(session, "Hello"))
        await held.reached.wait()
        await house.sessions.update(session, title="Renamed")
        assert (await watch.until(SessionUpdated)).title == "Renamed"
        held.release()
        assert await joined.result() == CompletedOutcome()
        assert len(house.provider.requests) == 1


async def test_the_new_title_is_found_also_after_a_restart(tmp_path: Path) -> None:
    ticks = Ticks()
    async with open_provider() as provider:
        async with open_house(provider, tmp_path, ticks=ticks) as house:
            session = await house.session(title="Gardening")
            await house.sessions.update(session, title="Carpentry")
        async with open_house(provider, tmp_path, ticks=ticks) as house:
            found = await house.sessions.list(search="carpen")
            assert [item.id for item in found.items] == [session]
            assert (await house.sessions.list(search="garden")).items == ()


async def test_an_unknown_session_cannot_be_updated(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        with pytest.raises(SessionNotFoundError):
            await house.sessions.update(SessionId("ses_unknown"), title="Name")
