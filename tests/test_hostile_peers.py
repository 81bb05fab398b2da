"""Peers that ask for too much: each is answered, and costs nobody else anything."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from steerway import connect, open_runtime
from steerway.actors.feed import Feed
from steerway.protocol.codec import CODECS, JSON, MAX_DEPTH, MAX_VALUES, MSGPACK, MalformedFrameError
from steerway.protocol.operations import CONTRACT
from steerway.protocol.values import MAX_PROMPT_JSON_BYTES, Admission, Location, PromptAdmitted, SessionId
from steerway.protocol.values.errors import InvalidRequestError
from support.gateway import MadeUpRouter, listening, raw_websocket
from support.gateway import call as frame

UNKNOWN = SessionId("ses_unknown")
MIB = 1024 * 1024


@asynccontextmanager
async def demo_runtime(folder: Path) -> AsyncGenerator[Any]:
    async with open_runtime(folder / "sessions.db") as runtime:
        yield runtime


async def call(runtime: Any, method: str, params: dict[str, Any]) -> Any:
    """Ask anything, past the client's own types."""
    given = msgspec.defstruct("Given", list(params))
    return await runtime.call(CONTRACT.operations[method], given(**params))


# --- frames -----------------------------------------------------------------------------------------------------------


def arrays_of_nothing(count: int, codec_name: str) -> bytes:
    if codec_name == JSON.subprotocol:
        return b"[" + b"[]," * count + b"0]"
    one = b"\xdc\x03\xe7" + b"\x90" * 999
    return b"\xdc" + (count // 1_000).to_bytes(2, "big") + one * (count // 1_000)


@pytest.mark.parametrize("codec_name", sorted(CODECS))
def test_millions_of_tiny_values_are_refused_before_they_are_made(codec_name: str) -> None:
    with pytest.raises(MalformedFrameError, match=f"more than {MAX_VALUES} values"):
        CODECS[codec_name].unpack(arrays_of_nothing(3_000_000, codec_name))


@pytest.mark.parametrize("codec_name", sorted(CODECS))
def test_as_many_values_as_a_message_may_have_are_read(codec_name: str) -> None:
    codec = CODECS[codec_name]
    value = {"texts": ["a, [b], {c}"] * (MAX_VALUES - 10)}
    assert codec.unpack(codec.encode(value)) == value


@pytest.mark.parametrize("piece", [b",", b"[", b'\\"', b"\\\\", b'\\",{', b"\\u0000"])
def test_the_punctuation_of_a_long_text_is_no_value(piece: bytes) -> None:
    frame = b'{"text":"' + piece * (MIB // len(piece)) + b'","more":[1,2]}'
    assert JSON.unpack(frame)["more"] == [1, 2]


@pytest.mark.parametrize("frame", [b'"' + b'\\"' * MIB, b'"' * MIB, b"[" * MIB, b'{"":' * MIB, b'"\\'])
def test_a_long_text_that_is_no_json_is_malformed(frame: bytes) -> None:
    with pytest.raises(MalformedFrameError):
        JSON.unpack(frame)


def test_many_values_are_not_too_deep_values() -> None:
    with pytest.raises(MalformedFrameError, match="deeper"):
        MSGPACK.unpack(b"\x91" * (MAX_DEPTH + 1) + b"\x90")


async def test_true_is_not_the_first_request_or_stream() -> None:
    async with listening(MadeUpRouter(Feed(now_ms=lambda: 0))) as server:
        peer = await raw_websocket(server)
        await peer.send(frame(1, "hold", {"name": "held"}))
        assert (await peer.ask(2, "watch"))["result"] == {"subscription": 1}
        await peer.ask(3, "rpc.cancel", {"id": True})
        await peer.ask(4, "rpc.unsubscribe", {"subscription": True})
        assert (server.usage.requests, server.usage.subscriptions) == (1, 1)


# --- params -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "params", "field"),
    [
        ("sessions.list", {"search": "x" * 201}, "search"),
        ("sessions.list", {"directory": "/" + "x" * 4_096}, "directory"),
        ("sessions.create", {"title": "x" * 1_001}, "title"),
        ("sessions.create", {"agent": "x" * MIB}, "agent"),
        ("sessions.create", {"metadata": {"x": "x" * 65_536}}, "metadata"),
        ("sessions.create", {"model": {"provider": "x" * MIB, "id": "x"}}, "model"),
        ("sessions.update", {"session_id": UNKNOWN, "title": "x" * 1_001}, "title"),
        ("sessions.update", {"session_id": UNKNOWN, "metadata": {"x": "x" * 65_536}}, "metadata"),
        ("sessions.switch_model", {"session_id": UNKNOWN, "model": {"provider": "demo", "id": "x" * 201}}, "model"),
        ("sessions.switch_agent", {"session_id": UNKNOWN, "agent": "x" * 201}, "agent"),
        ("sessions.prompt", {"session_id": UNKNOWN, "text": "x", "metadata": {"x": "x" * 65_536}}, "metadata"),
        ("sessions.prompt", {"session_id": UNKNOWN, "text": "\0" * (3 * MIB)}, "text"),
        (
            "sessions.prompt",
            {"session_id": UNKNOWN, "text": "x", "files": [{"data": b"", "mime": "text/" + "x" * MIB}]},
            "files[0].mime",
        ),
        (
            "sessions.prompt",
            {"session_id": UNKNOWN, "text": "x", "files": [{"uri": f"data:text/{'x' * 256},"}]},
            "files[0].mime",
        ),
        ("permissions.reply", {"request_id": "per_" + "x" * MIB, "reply": "once"}, "request_id"),
        ("permissions.reply", {"request_id": "per_1", "reply": "reject", "message": "x" * 65_537}, "message"),
        ("permissions.forget", {"id": "x" * 201}, "id"),
        ("questions.reply", {"request_id": "que_1", "answers": [["x" * 40_000], ["x" * 40_000]]}, "answers"),
        ("server.info", {"x" * MIB: 1}, "x" * 200),
    ],
)
async def test_what_would_not_fit_beside_others_is_refused_by_name(
    tmp_path: Path, method: str, params: dict[str, Any], field: str
) -> None:
    async with demo_runtime(tmp_path) as runtime:
        with pytest.raises(InvalidRequestError) as refused:
            await call(runtime, method, params)
    assert refused.value.fields["field"] == field
    assert len(str(refused.value)) < 2_000


async def test_the_longest_query_has_a_next_page(tmp_path: Path) -> None:
    directory = tmp_path.joinpath(*["\N{ROCKET}" * 60] * 12)
    directory.mkdir(parents=True)
    title = "\N{ROCKET}" * 200
    async with demo_runtime(tmp_path) as runtime:
        for _ in range(2):
            await runtime.sessions.create(location=Location(directory=str(directory)), title=title)
        query = {"directory": str(directory), "search": title, "limit": 1}
        first = await call(runtime, "sessions.list", query)
        second = await call(runtime, "sessions.list", {"cursor": first.next})
        assert {item.title for item in (*first.items, *second.items)} == {title}
        assert first.items != second.items


async def test_the_largest_prompt_is_read_by_every_kind_of_client(tmp_path: Path) -> None:
    text = "\0" * (MAX_PROMPT_JSON_BYTES // 6 - 100)
    async with demo_runtime(tmp_path) as runtime:
        session = await runtime.sessions.create()
        await runtime.sessions.prompt(session.id, text, resume=False)
        listening = await runtime.listen(host="127.0.0.1", port=0, token="secret")
        async with connect(listening.url, token="secret", subprotocol=JSON.subprotocol) as client:
            (waiting,) = await client.sessions.pending(session.id)
            assert isinstance(waiting, Admission)
            assert waiting.prompt.text == text
            async with client.sessions.events(session.id) as events:
                async for event in events:
                    if isinstance(event.data, PromptAdmitted):
                        assert event.data.prompt.text == text
                        break


# --- streams ----------------------------------------------------------------------------------------------------------


async def admitted(stream: Any) -> int:
    """How long the text of the first prompt is that a stream tells of."""
    async with stream as events:
        async for event in events:
            if isinstance(event.data, PromptAdmitted):
                return len(event.data.prompt.text)
    raise AssertionError("the stream ended before")


@pytest.mark.parametrize("durable", [True, False])
async def test_many_streams_of_large_events_do_not_cost_their_reader_the_connection(tmp_path: Path, durable: bool) -> None:
    size = 7 * MIB
    async with demo_runtime(tmp_path) as runtime:
        session = await runtime.sessions.create()
        listening = await runtime.listen(host="127.0.0.1", port=0, token="secret")
        async with connect(listening.url, token="secret") as client, trio.open_nursery() as nursery:
            read: list[int] = []
            streams = [client.sessions.events(session.id) if durable else client.events.subscribe() for _ in range(6)]
            for stream in streams:
                await anext(stream)

            async def reader(stream: Any) -> None:
                read.append(await admitted(stream))

            for stream in streams:
                nursery.start_soon(reader, stream)
            await runtime.sessions.prompt(session.id, "x" * size, resume=False)
            with trio.fail_after(20):
                while len(read) < len(streams):
                    await client.server.health()
    assert read == [size] * 6
