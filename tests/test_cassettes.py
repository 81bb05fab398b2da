"""Cassettes: what is kept of an exchange, what is not, and that it plays the same again."""

import json
from base64 import b64decode, b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from steerway.actors.configuration import Configuration, ConfigurationError, Model, ModelSelection, Provider, Store
from steerway.actors.configuration import WireProtocol as Wire
from steerway.actors.models import Models
from steerway.actors.models.cassettes import Player, Recorder
from steerway.actors.models.request import prepare
from steerway.actors.runtime import open_runtime
from steerway.protocol.llm.events import Finished, LLMEvent, ProviderFailed, TextDelta, ToolCall
from steerway.protocol.llm.openai_chat import OpenAIChatAdapter
from steerway.protocol.llm.request import Generation, LLMRequest, Text, UserMessage
from steerway.protocol.values import CompletedOutcome, Event, ModelRef, Outcome, SessionId
from steerway.protocol.values.failure import PROVIDER_INCOMPLETE, PROVIDER_NO_ROUTE, PROVIDER_RATE_LIMIT
from steerway.protocol.values.model import NO_TOKENS, CacheTokens, Tokens
from steerway.protocol.values.tool import ToolDefinition
from support import kept_cassettes
from support.answers import answer, cut, hold, reasoning, status, text, tool_call, usage
from support.house import Ticks, read_events
from support.provider import open_provider
from support.tools import printing_tool

KEY = "key-0123456789abcdef"
TITLE = "title-of-nobody"
PROTOCOLS: list[Wire] = ["openai-chat", "openai-responses", "anthropic-messages", "gemini"]
LOOK = ToolDefinition(name="look", description="Look.", input_schema={"type": "object", "properties": {}})


def request(words: str = "Hello", **fields: Any) -> LLMRequest:
    base: dict[str, Any] = {
        "model": "unset",
        "system": ("Be kind.",),
        "messages": (UserMessage(content=(Text(text=words),)),),
        "tools": (LOOK,),
        "tool_choice": "auto",
        "generation": Generation(max_tokens=500),
        "options": {},
        "body": {},
        "cache_key": "ses_1",
    }
    return LLMRequest(**(base | fields))


def models(wire: Wire, base_url: str, **environ: Path | str) -> Models:
    provider = Provider(
        protocol=wire, base_url=base_url, api_key_env="KEY", headers={"X-Title": TITLE}, models={"m": Model(id="scripted")}
    )
    given = {"KEY": KEY} | {f"STEERWAY_{name.upper()}": str(value) for name, value in environ.items()}
    return Models(Configuration(providers={"p": provider}), given)


async def ask(models: Models, asked: LLMRequest | None = None) -> list[list[LLMEvent]]:
    info = models.resolve(ModelRef(provider="p", id="m"))
    async with models.stream(info, asked or request()) as batches:
        return [batch async for batch in batches]


def joined(batches: Sequence[Sequence[LLMEvent]]) -> list[LLMEvent]:
    """The events with the deltas of one arrival joined to what a reader sees, whatever the arrivals were."""
    events: list[LLMEvent] = []
    for event in (event for batch in batches for event in batch):
        match events[-1:], event:
            case [TextDelta(id=id, text=before)], TextDelta(id=same, text=after) if id == same:
                events[-1] = TextDelta(id=id, text=before + after)
            case _:
                events.append(event)
    return events


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*"))


@pytest.mark.parametrize("wire", PROTOCOLS)
async def test_what_was_recorded_plays_the_same_again(wire: Wire, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "tapes"
    answers = (
        answer(text("Grüße 🙂, ", deltas=4), text("all of you.", deltas=3), usage(prompt=9, completion=4, cached=2)),
        answer(reasoning("Let me look."), tool_call("look", {"a": "ü"}, deltas=3)),
        status(429, headers={"retry-after": "7"}),
        answer(text("Half an ans"), cut("fin")),
    )
    async with (
        open_provider(*answers, api_key=KEY, check=False) as provider,
        models(wire, provider.base_url, record=folder) as live,
    ):
        recorded = [await ask(live, request(f"Number {number}")) for number in range(4)]
        assert provider.unplayed == 0
    assert [path.name for path in files(folder)] == [f"{number:04d}-p-m.json" for number in range(1, 5)]
    assert {path.stat().st_mode & 0o777 for path in files(folder)} == {0o600}
    async with models(wire, "http://127.0.0.1:9/v1", replay=folder) as played:
        replayed = [await ask(played, request(f"Number {number}", cache_key="ses_2")) for number in (1, 0, 3, 2)]
    assert [replayed[place] for place in (1, 0, 3, 2)] == recorded
    whole, _, refused, half = (batches[-1][-1] for batches in recorded)
    assert isinstance(whole, Finished)
    assert isinstance(refused, ProviderFailed)
    assert (refused.failure.type, refused.retry_after_ms) == (PROVIDER_RATE_LIMIT, 7000)
    assert isinstance(half, ProviderFailed)
    assert half.failure.type == PROVIDER_INCOMPLETE


@pytest.mark.parametrize("wire", PROTOCOLS)
async def test_no_credential_is_kept_even_where_a_provider_repeats_it(wire: Wire, tmp_path: Path) -> None:
    echoes = (
        answer(text(f"Your key is {KEY}, your title {TITLE}.")),
        status(400, {"error": {"message": f"bad key {KEY}", "type": "invalid_request_error"}}),
    )
    async with open_provider(*echoes, check=False) as provider, models(wire, provider.base_url, record=tmp_path) as live:
        first = await ask(live, request(body={"user": f"{TITLE}!"}))
        await ask(live)
    kept = [path.read_text() for path in files(tmp_path)]
    assert len(kept) == 2
    for content in kept:
        assert KEY not in content
        assert TITLE not in content
        assert "authorization" not in content.lower()
        assert "x-api-key" not in content.lower()
    assert "*" * len(KEY) in kept[0]
    async with models(wire, "http://127.0.0.1:9/v1", replay=tmp_path) as played:
        again = await ask(played, request(body={"user": f"{TITLE}!"}))
    said = "".join(event.text for event in joined(first) if isinstance(event, TextDelta))
    hidden = "".join(event.text for event in joined(again) if isinstance(event, TextDelta))
    assert hidden == said.replace(KEY, "*" * len(KEY)).replace(TITLE, "*" * len(TITLE))


async def test_pieces_keep_their_cuts_also_inside_a_character_and_a_secret(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    async with open_provider() as provider, models("openai-chat", provider.base_url, record=one) as live:
        await ask(live)
    (path,) = files(one)
    cassette = json.loads(path.read_text())
    frame = 'data: {"choices":[{"index":0,"delta":{"content":"🙂 key-0123456789abcdef"}}]}\n\n'.encode()
    in_smile, in_key = frame.index(b"\x9f"), frame.index(b"789")
    begun, rest = frame[:in_smile], frame[in_smile:in_key]
    encoded = [{"base64": b64encode(piece).decode()} for piece in (begun, rest)]
    cassette["response"]["pieces"] = [*encoded, frame[in_key:].decode()]
    path.write_text(json.dumps(cassette))
    asked = models("openai-chat", "http://127.0.0.1:9/v1")
    info = asked.resolve(ModelRef(provider="p", id="m"))
    recorder = Recorder(Player(one), two)
    adapter = OpenAIChatAdapter()
    async with recorder.open(info, adapter, adapter.encode(prepare(info, request()))) as batches:
        events = [event async for batch in batches for event in batch]
    assert f"🙂 {KEY}" in [event.text for event in joined([events]) if isinstance(event, TextDelta)]
    (kept,) = files(two)
    first, second, third = json.loads(kept.read_text())["response"]["pieces"]
    assert first == encoded[0]
    assert b64decode(second["base64"]) == rest[: rest.index(b"key")] + b"*" * len("key-0123456")
    assert third == "*" * len("789abcdef") + frame[frame.index(b"def") + 3 :].decode()


async def test_what_was_left_early_is_kept_as_far_as_it_came(tmp_path: Path) -> None:
    script = answer(text("Begun", deltas=1), hold())
    async with open_provider(script) as provider, models("openai-chat", provider.base_url, record=tmp_path) as live:
        info = live.resolve(ModelRef(provider="p", id="m"))
        with trio.CancelScope() as scope:
            async with live.stream(info, request()) as batches:
                async for batch in batches:
                    if any(isinstance(event, TextDelta) for event in batch):
                        scope.cancel()
        assert scope.cancelled_caught
    (path,) = files(tmp_path)
    assert "Begun" in path.read_text()


@pytest.mark.parametrize("number", ["123456", "100000"])
async def test_a_credential_that_is_also_a_number_of_a_request_disturbs_nothing(tmp_path: Path, number: str) -> None:
    asked = request(generation=Generation(max_tokens=int(number)))
    async with open_provider(check=False) as provider:
        given = Provider(protocol="openai-chat", base_url=provider.base_url, headers={"X-Tenant": number})
        settings = Configuration(providers={"p": given})
        async with Models(settings, {"STEERWAY_RECORD": str(tmp_path)}) as live:
            assert isinstance((await ask(live, asked))[-1][-1], Finished)
        async with Models(settings, {"STEERWAY_REPLAY": str(tmp_path)}) as played:
            assert isinstance((await ask(played, asked))[-1][-1], Finished)
    (kept,) = files(tmp_path)
    assert number not in kept.read_text()


async def test_a_folder_that_cannot_be_written_disturbs_nothing(tmp_path: Path) -> None:
    async with open_provider() as provider, models("openai-chat", provider.base_url, record="/dev/null/x") as live:
        assert isinstance((await ask(live))[-1][-1], Finished)


async def test_a_request_that_no_cassette_answers_fails_without_a_route(tmp_path: Path) -> None:
    async with models("openai-chat", "http://127.0.0.1:9/v1", replay=tmp_path) as played:
        ((failed,),) = await ask(played)
    assert isinstance(failed, ProviderFailed)
    assert (failed.failure.type, failed.retryable) == (PROVIDER_NO_ROUTE, False)


def test_a_file_that_is_no_cassette_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "0001-x.json").write_text("{}")
    with pytest.raises(ConfigurationError, match=r"0001-x\.json cannot be played"):
        models("openai-chat", "http://127.0.0.1:9/v1", replay=tmp_path)


# --- whole sessions ---------------------------------------------------------------------------------------------------


async def converse(store: Path, wire: Wire, base_url: str, **environ: Path) -> tuple[Outcome, list[Event]]:
    """A session with a tool, in a store of its own; the same ids and times in each run."""
    ticks = Ticks()
    provider = Provider(protocol=wire, base_url=base_url, models={"m": Model(id="scripted", output=500)})
    configuration = Configuration(
        store=Store(synchronous="normal"), providers={"p": provider}, models=ModelSelection(default="p/m")
    )
    async with open_runtime(
        store,
        configuration=configuration,
        directory=store.parent,
        tools=[printing_tool("look", "seen").tool],
        environ={f"STEERWAY_{name.upper()}": str(value) for name, value in environ.items()},
        now_ms=ticks.now_ms,
        random_bytes=ticks.random_bytes,
    ) as runtime:
        session = (await runtime.sessions.create(id=SessionId("ses_recorded"))).id
        await runtime.sessions.prompt(session, "Look around.", resume=False)
        outcome = await runtime.sessions.resume(session)
        return outcome, await read_events(runtime, session)


@pytest.mark.parametrize("wire", PROTOCOLS)
async def test_a_whole_session_is_played_without_its_provider(wire: Wire, tmp_path: Path) -> None:
    tapes = tmp_path / "tapes"
    async with open_provider(answer(tool_call("look", {})), answer(text("Nothing there."))) as provider:
        live = await converse(tmp_path / "live.db", wire, provider.base_url, record=tapes)
    assert len(files(tapes)) == 2
    played = await converse(tmp_path / "played.db", wire, "http://127.0.0.1:9/v1", replay=tapes)
    assert live[0] == played[0] == CompletedOutcome()
    assert [event.type for event in played[1]] == [event.type for event in live[1]]


@pytest.mark.parametrize("wire", PROTOCOLS)
async def test_the_kept_cassettes_are_still_asked_for_and_understood(wire: Wire) -> None:
    """Requests say what they said when these were recorded (`support/kept_cassettes.py`)."""
    folder = kept_cassettes.FOLDER / wire
    first, second = await kept_cassettes.converse(wire, "http://127.0.0.1:9/v1", {"STEERWAY_REPLAY": str(folder)})
    (call,) = (event for event in first if isinstance(event, ToolCall))
    assert (call.name, call.input) == ("look", {"at": "the door"})
    said = ["".join(event.text for event in events if isinstance(event, TextDelta)) for events in (first, second)]
    assert said == ["Let me look.", "A cat 🐈."]
    ends = [events[-1] for events in (first, second)]
    assert [(end.finish, end.tokens) for end in ends if isinstance(end, Finished)] == [
        ("tool-calls", Tokens(input=40, output=15, reasoning=5, cache=NO_TOKENS.cache)),
        ("stop", Tokens(input=40, output=6, reasoning=0, cache=CacheTokens(read=40, write=0))),
    ]
