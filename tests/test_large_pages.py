"""Histories that are larger than an answer: pages end early, and what cannot be answered says what to ask instead."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from steerway import Client, connect
from steerway.protocol.codec import JSON, MAX_MESSAGE_BYTES, MSGPACK, Codec
from steerway.protocol.operations import ListMessages, ListSessions
from steerway.protocol.values import (
    EventData,
    Message,
    MessageId,
    Order,
    Prompt,
    PromptAdmitted,
    PromptPromoted,
    SessionId,
    SyntheticAdded,
)
from steerway.protocol.values.errors import InvalidRequestError
from steerway.protocol.values.page import PageCursor
from steerway.protocol.values.prompt import PromptFile
from steerway.storage.pages import MAX_PAGE_BYTES
from support.house import scripted_house
from support.stores import append, open_store, session_created

S = SessionId("ses_large")
MIB = 1024 * 1024


def prompt(name: str, data: bytes) -> list[EventData]:
    """A promoted prompt with one file."""
    id = MessageId(f"msg_{name}")
    said = Prompt(text=name, files=(PromptFile(data=data, mime="application/octet-stream"),))
    return [
        PromptAdmitted(message_id=id, prompt=said, delivery="steer"),
        PromptPromoted(message_id=id, prompt=said, delivery="steer", admitted=1_000),
    ]


def note(name: str, text: str) -> SyntheticAdded:
    return SyntheticAdded(message_id=MessageId(f"msg_{name}"), text=text)


def store(folder: Path, *data: EventData) -> Path:
    """A store whose session `S` has these events."""
    path = folder / "sessions.db"
    database = open_store(path)
    append(database, S, session_created(directory=str(folder)))
    for each in data:
        append(database, S, each)
    database.close()
    return path


@asynccontextmanager
async def client_of(folder: Path, codec: Codec) -> AsyncGenerator[Client]:
    """A client on a socket, of a runtime on the store in `folder`."""
    async with scripted_house(folder) as house:
        listening = await house.runtime.listen(host="127.0.0.1", port=0, token="secret")
        async with connect(listening.url, token="secret", subprotocol=codec.subprotocol) as client:
            yield client


def names(messages: tuple[Message, ...]) -> list[str]:
    return [message.id.removeprefix("msg_") for message in messages]


@pytest.mark.parametrize(("codec", "sizes"), [(MSGPACK, [2, 1]), (JSON, [1, 1, 1])])
@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_pages_end_before_they_are_too_large(tmp_path: Path, codec: Codec, sizes: list[int], order: Order) -> None:
    """Five MiB three times, which JSON makes a third larger."""
    store(tmp_path, *(each for number in range(3) for each in prompt(str(number), bytes(5 * MIB))))
    expected = [str(number) for number in range(3)]
    async with client_of(tmp_path, codec) as client:
        page = await client.sessions.messages(S, order=order, limit=200)
        pages = [page]
        while page.next is not None:
            page = await client.sessions.messages(S, cursor=page.next)
            pages.append(page)
        assert [len(page.items) for page in pages] == sizes
        shown = [name for page in pages for name in names(page.items)]
        assert shown == (expected if order == "asc" else expected[::-1])
        assert pages[-1].previous is not None
        back = await client.sessions.messages(S, cursor=pages[-1].previous)
        assert names(back.items)[-1] == names(pages[-2].items)[-1]
        assert back.next is not None


@pytest.mark.parametrize("codec", [MSGPACK, JSON])
async def test_a_page_of_small_messages_is_not_shortened(tmp_path: Path, codec: Codec) -> None:
    store(tmp_path, *(note(str(number), "x" * 50_000) for number in range(200)))
    async with client_of(tmp_path, codec) as client:
        page = await client.sessions.messages(S, limit=200)
        assert (len(page.items), page.next) == (200, None)


async def test_what_json_must_escape_counts_as_it_is_written(tmp_path: Path) -> None:
    store(tmp_path, *(note(str(number), "\x00" * (MIB - 100)) for number in range(3)))
    async with client_of(tmp_path, JSON) as client:
        page = await client.sessions.messages(S, order="asc")
        assert names(page.items) == ["0", "1"]
        assert len(JSON.encode(page)) <= MAX_PAGE_BYTES + 10_000


@pytest.mark.parametrize("codec", [MSGPACK, JSON])
async def test_one_message_larger_than_an_answer_is_named_and_can_be_passed(tmp_path: Path, codec: Codec) -> None:
    text = "x" * (MAX_MESSAGE_BYTES + 1)
    store(tmp_path, note("first", "Hello"), note("large", text), note("last", "Bye"))
    async with client_of(tmp_path, codec) as client:
        page = await client.sessions.messages(S, order="asc")
        assert names(page.items) == ["first"]
        assert page.next is not None
        with pytest.raises(InvalidRequestError, match="larger than an answer") as caught:
            await client.sessions.messages(S, cursor=page.next)
        assert caught.value.fields["message_id"] == "msg_large"
        behind = await client.sessions.messages(S, cursor=PageCursor(caught.value.fields["next"]))
        assert names(behind.items) == ["last"]
        before = await client.sessions.messages(S, cursor=PageCursor(caught.value.fields["previous"]))
        assert names(before.items) == ["first"]
        with pytest.raises(InvalidRequestError, match="larger than a message may be"):
            await client.sessions.message(S, MessageId("msg_large"))


async def test_a_message_may_be_too_large_for_one_encoding_only(tmp_path: Path) -> None:
    store(tmp_path, note("large", "\x00" * (4 * MIB)))
    async with client_of(tmp_path, MSGPACK) as client:
        assert names((await client.sessions.messages(S)).items) == ["large"]
        assert names(await client.sessions.context(S)) == ["large"]
    async with client_of(tmp_path, JSON) as client:
        with pytest.raises(InvalidRequestError, match="larger than an answer"):
            await client.sessions.messages(S)


@pytest.mark.parametrize(("codec", "count"), [(MSGPACK, 17), (JSON, 17), (JSON, 13)])
async def test_a_context_larger_than_an_answer_is_refused_with_what_to_ask_instead(
    tmp_path: Path, codec: Codec, count: int
) -> None:
    store(tmp_path, *(each for number in range(count) for each in prompt(str(number), bytes(MIB))))
    async with client_of(tmp_path, codec) as client:
        with pytest.raises(InvalidRequestError, match=r"sessions\.messages"):
            await client.sessions.context(S)
        assert len((await client.sessions.messages(S)).items) > 1


def test_what_falls_out_of_a_page_is_not_read(tmp_path: Path) -> None:
    """Of 20 MiB a page reads what it shows: the statement that reads bodies is told the page's own sequences."""
    database = open_store(store(tmp_path, *(each for number in range(4) for each in prompt(str(number), bytes(5 * MIB)))))
    reader = database.open_reader()
    weighed: list[int] = []

    def weigh(message: Message) -> int:
        weighed.append(1)
        return len(MSGPACK.encode(message))

    page = reader.messages_page(ListMessages(session_id=S, limit=200), weigh)
    assert len(page.items) == len(weighed) == 2
    reader.close()
    database.close()


def test_pages_of_sessions_end_before_they_are_too_large(tmp_path: Path) -> None:
    database = open_store(tmp_path / "sessions.db")
    for number in range(200):
        append(database, SessionId(f"ses_{number:03}"), session_created(metadata={"text": "\x00" * 60_000}))
    reader = database.open_reader()
    query = ListSessions(limit=200)
    shown: list[str] = []
    while True:
        page = reader.sessions_page(query, lambda session: len(JSON.encode(session)))
        assert len(JSON.encode(page)) <= MAX_PAGE_BYTES + 10_000
        shown += [session.id for session in page.items]
        if page.next is None:
            break
        query = ListSessions(cursor=page.next)
    assert sorted(set(shown)) == sorted(shown) == [f"ses_{number:03}" for number in range(200)]
    reader.close()
    database.close()
