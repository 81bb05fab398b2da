"""Pages of sessions and messages over the public surface: every item once, cursors that carry their query, no disclosure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from steerway.protocol.values import Location, MessageId, PageCursor, SessionId, UserMessage
from steerway.protocol.values.errors import (
    InvalidCursorError,
    InvalidRequestError,
    MessageNotFoundError,
    SessionNotFoundError,
)
from steerway.protocol.values.page import Order, Page
from support.answers import answer, hold, text
from support.house import OpenHouse, scripted_house


async def walk(first: Page[Any], turn: Callable[[PageCursor], Awaitable[Page[Any]]]) -> list[Page[Any]]:
    """All pages from the first on, following `next`."""
    pages = [first]
    while pages[-1].next is not None:
        pages.append(await turn(pages[-1].next))
    return pages


async def talk(house: OpenHouse, prompts: int, **fields: Any) -> SessionId:
    """A session with so many prompts and answers."""
    session = await house.session(**fields)
    for number in range(prompts):
        await house.ask(session, f"Prompt {number}")
    return session


# --- messages -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_pages_of_messages_show_each_once_and_lead_back(tmp_path: Path, order: Order) -> None:
    """Scenario 163, for pages of every length."""
    async with scripted_house(tmp_path) as house:
        session = await talk(house, 3)
        everything = [message.id for message in await house.history(session)]
        if order == "desc":
            everything.reverse()
        for limit in range(1, len(everything) + 2):
            pages = await walk(
                await house.sessions.messages(session, order=order, limit=limit),
                lambda cursor: house.sessions.messages(session, cursor=cursor),
            )
            assert [message.id for page in pages for message in page.items] == everything
            assert pages[0].previous is None
            assert len(pages) == -(-len(everything) // limit)
            for earlier, later in pairwise(pages):
                assert later.previous is not None
                back = await house.sessions.messages(session, cursor=later.previous)
                assert back.items == earlier.items


async def test_the_newest_messages_come_first_unless_asked_otherwise(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        session = await talk(house, 2)
        newest = await house.sessions.messages(session)
        assert newest.items == tuple(reversed(await house.history(session)))
        assert (newest.previous, newest.next) == (None, None)


async def test_a_page_stays_where_it_is_while_the_session_grows(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        session = await talk(house, 2)
        first = await house.sessions.messages(session, order="asc", limit=3)
        assert first.next is not None
        await house.ask(session, "More")
        second = await house.sessions.messages(session, cursor=first.next)
        whole = await house.history(session)
        assert first.items + second.items == whole


async def test_a_cursor_is_good_for_its_own_session_and_kind_only(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        session, other = await talk(house, 1), await talk(house, 1)
        messages = (await house.sessions.messages(session, limit=1)).next
        sessions = (await house.sessions.list(limit=1)).next
        assert messages is not None
        assert sessions is not None
        for cursor, call in (
            (messages, partial(house.sessions.messages, other)),
            (sessions, partial(house.sessions.messages, session)),
            (messages, house.sessions.list),
            (PageCursor("no cursor"), house.sessions.list),
            (PageCursor(messages[:-2]), partial(house.sessions.messages, session)),
        ):
            with pytest.raises(InvalidCursorError):
                await call(cursor=cursor)


@pytest.mark.parametrize("more", [{"order": "asc"}, {"limit": 2}], ids=str)
async def test_a_continuation_takes_only_its_cursor(tmp_path: Path, more: dict[str, Any]) -> None:
    async with scripted_house(tmp_path) as house:
        session = await talk(house, 1)
        cursor = (await house.sessions.messages(session, limit=1)).next
        with pytest.raises((InvalidRequestError, InvalidCursorError)):
            await house.sessions.messages(session, cursor=cursor, **more)


@pytest.mark.parametrize("limit", [0, 201, -1])
async def test_a_page_has_between_one_and_two_hundred_items(tmp_path: Path, limit: int) -> None:
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        with pytest.raises(InvalidRequestError):
            await house.sessions.messages(session, limit=limit)
        with pytest.raises(InvalidRequestError):
            await house.sessions.list(limit=limit)


async def test_messages_of_an_unknown_session_are_not_found(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        for call in (house.sessions.messages, house.sessions.context, house.sessions.pending, house.sessions.attach):
            with pytest.raises(SessionNotFoundError):
                await call(SessionId("ses_unknown"))


# --- one message --------------------------------------------------------------------------------------------------


async def test_each_message_is_found_by_its_id(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        session = await talk(house, 1)
        for message in await house.history(session):
            assert await house.sessions.message(session, message.id) == message


async def test_a_message_of_another_session_is_not_found_as_if_it_were_not_there(tmp_path: Path) -> None:
    """The two answers differ in nothing but the id that was asked for."""
    async with scripted_house(tmp_path) as house:
        session, other = await talk(house, 1), await talk(house, 1)
        foreign = (await house.history(other))[0].id
        answers: list[tuple[str, dict[str, Any]]] = []
        for id in (foreign, MessageId("msg_unknown")):
            with pytest.raises(MessageNotFoundError) as caught:
                await house.sessions.message(session, id)
            answers.append((caught.value.message.replace(id, "ID"), {**caught.value.fields, "message_id": "ID"}))
        assert answers[0] == answers[1]


async def test_a_pending_prompt_is_no_message_yet(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        receipt = await house.admit(session, "Hello")
        with pytest.raises(MessageNotFoundError):
            await house.sessions.message(session, receipt.id)
        await house.sessions.resume(session)
        message = await house.sessions.message(session, receipt.id)
        assert isinstance(message, UserMessage)
        assert (message.text, message.created) == ("Hello", receipt.created)


async def test_the_context_is_what_the_next_turn_is_built_from(tmp_path: Path) -> None:
    held = hold()
    async with scripted_house(tmp_path, answer(text("Hi")), answer(held, text("Yes"))) as house:
        session = await house.session()
        await house.ask(session, "Hello")
        assert await house.sessions.context(session) == await house.history(session)
        await house.sessions.prompt(session, "And?")
        await held.reached.wait()
        assert [message.id for message in await house.sessions.context(session)] == [
            message.id for message in await house.history(session)
        ]
        held.release()


# --- sessions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_pages_of_sessions_show_each_once(tmp_path: Path, order: Order) -> None:
    async with scripted_house(tmp_path) as house:
        ids = [await house.session(title=f"Number {number}") for number in range(7)]
        pages = await walk(await house.sessions.list(order=order, limit=3), lambda cursor: house.sessions.list(cursor=cursor))
        found = [session.id for page in pages for session in page.items]
        assert found == (ids if order == "asc" else ids[::-1])
        assert [len(page.items) for page in pages] == [3, 3, 1]


async def test_a_list_is_narrowed_by_directory_parent_and_search_and_its_cursor_keeps_that(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    async with scripted_house(tmp_path) as house:
        parent = await house.session(title="Garden plan")
        children = [await house.session(title=f"Garden bed {number}", parent_id=parent) for number in range(3)]
        away = await house.session(title="Garden away", location=Location(directory=str(elsewhere)))
        await house.session(title="Kitchen")

        async def ids(**filters: Any) -> set[SessionId]:
            pages = await walk(await house.sessions.list(limit=2, **filters), lambda cursor: house.sessions.list(cursor=cursor))
            found = [session.id for page in pages for session in page.items]
            assert len(found) == len(set(found))
            return set(found)

        assert await ids(parent_id=parent) == set(children)
        assert await ids(directory=str(elsewhere)) == {away}
        assert await ids(search="garden") == {parent, away, *children}
        assert await ids(search="garden", directory=str(tmp_path)) == {parent, *children}
        assert await ids(search="garden", parent_id=parent) == set(children)
        assert await ids(search="cellar") == set()
