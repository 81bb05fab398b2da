"""Google as a provider: found by its variables, asked over HTTP, its failures retried or not."""

import json
from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from steerway.actors.configuration import GOOGLE_BASE_URL, Configuration, Model, Provider, Store
from steerway.actors.models import Models
from steerway.actors.models.catalog import Catalog
from steerway.actors.settings import Surroundings, load_settings
from steerway.protocol.llm.events import Finished, LLMEvent, ProviderFailed, TextDelta, UsageReported
from steerway.protocol.llm.gemini import UNCHECKED
from steerway.protocol.llm.request import Generation, LLMRequest, Text, UserMessage
from steerway.protocol.values import CompletedOutcome, ModelRef
from steerway.protocol.values.event import RetryScheduled
from support import gemini
from support.answers import answer, finish, reasoning, status, stream, text, tool_call, usage
from support.house import open_house
from support.provider import Provider as Scripted
from support.provider import open_provider
from support.tools import printing_tool

KEY = "AIza-key-0123456789abcdef"
MODEL = ModelRef(provider="google", id="small")


def configuration(scripted: Scripted, **fields: Any) -> Configuration:
    models = {"small": Model(id="gemini-3-pro", output=777)}
    google = Provider(protocol="gemini", base_url=scripted.base_url, api_key_env="KEY", models=models, **fields)
    return Configuration(store=Store(synchronous="normal"), providers={"google": google})


async def asked(models: Models) -> list[LLMEvent]:
    request = LLMRequest(
        model="unset",
        system=(),
        messages=(UserMessage(content=(Text(text="Hi"),)),),
        tools=(),
        tool_choice="auto",
        generation=Generation(),
        options={},
        body={},
    )
    async with models.stream(models.resolve(MODEL), request) as batches:
        return [event async for batch in batches for event in batch]


def provider_of(tmp_path: Path, **environ: str) -> Provider | None:
    place = Surroundings(environ=environ, directory=tmp_path, config_folder=tmp_path, data_folder=tmp_path)
    return load_settings(place, config_file=None, flags={}).configuration.providers.get("google")


def test_google_s_variables_are_a_provider(tmp_path: Path) -> None:
    assert provider_of(tmp_path) is None
    for variable in ("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GENERATIVE_AI_API_KEY"):
        found = provider_of(tmp_path, **{variable: KEY})
        assert found is not None
        assert (found.protocol, found.base_url, found.api_key_env) == ("gemini", GOOGLE_BASE_URL, variable)
    both = provider_of(tmp_path, GOOGLE_API_KEY="x", GEMINI_API_KEY=KEY)
    assert both is not None
    assert both.api_key_env == "GEMINI_API_KEY"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("http://127.0.0.1:9", "http://127.0.0.1:9/v1beta"),
        ("http://127.0.0.1:9/", "http://127.0.0.1:9/v1beta"),
        ("http://127.0.0.1:9/proxy/v1beta", "http://127.0.0.1:9/proxy/v1beta"),
        ("http://127.0.0.1:9/proxy/v1/", "http://127.0.0.1:9/proxy/v1"),
    ],
)
def test_a_base_url_of_google_s_variables_gets_the_version_it_leaves_out(tmp_path: Path, given: str, expected: str) -> None:
    for variable in ("GEMINI_BASE_URL", "GOOGLE_GEMINI_BASE_URL"):
        found = provider_of(tmp_path, **{variable: given})
        assert found is not None
        assert (found.base_url, found.api_key_env) == (expected, None)


def test_a_provider_of_the_ai_sdk_speaks_gemini_with_its_options_in_their_domains(tmp_path: Path) -> None:
    (tmp_path / "steerway.toml").write_text(
        '[providers.g]\nnpm = "@ai-sdk/google"\n[providers.g.models.m]\n'
        "options = { thinking_config = { includeThoughts = true }, safetySettings = [], topK = 3, labels = { a = 'b' } }\n"
    )
    place = Surroundings(environ={}, directory=tmp_path / "below", config_folder=tmp_path, data_folder=tmp_path)
    info = Catalog(load_settings(place, config_file=None, flags={}).configuration, {}).resolve(ModelRef(provider="g", id="m"))
    assert (info.protocol, info.base_url) == ("gemini", GOOGLE_BASE_URL)
    assert info.options == {"thinkingConfig": {"includeThoughts": True}, "safetySettings": []}
    assert (info.generation.top_k, info.body) == (3, {"labels": {"a": "b"}})


async def test_the_key_is_in_a_header_and_nowhere_in_the_url() -> None:
    script = answer(reasoning("Hm"), text(["Hel", "lo"]), usage(20, 9, cached=5, reasoning=4))
    async with (
        open_provider(script, api_key=KEY) as scripted,
        Models(configuration(scripted, options={"thinkingConfig": {"includeThoughts": True}}), {"KEY": KEY}) as models,
    ):
        events = await asked(models)
        (request,) = scripted.requests
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "Hello"
    assert sum(isinstance(event, UsageReported) for event in events) == 1
    assert isinstance(end := events[-1], Finished)
    assert (end.finish, end.tokens.input, end.tokens.cache.read) == ("stop", 15, 5)
    assert (end.tokens.output, end.tokens.reasoning) == (5, 4)
    assert request.path == "/v1/models/gemini-3-pro:streamGenerateContent"
    assert request.headers["x-goog-api-key"] == KEY
    assert request.json["generationConfig"] == {"thinkingConfig": {"includeThoughts": True}}
    assert KEY.encode() not in request.body


@pytest.mark.parametrize("code", [401, 400])
async def test_a_wrong_key_is_an_authentication_failure(code: int) -> None:
    details = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}]
    message = f"API key not valid: {KEY}"
    body = {"error": {"code": code, "message": message, "status": "INVALID_ARGUMENT", "details": details}}
    async with (
        open_provider(status(code, json.dumps(body))) as scripted,
        Models(configuration(scripted), {"KEY": KEY}) as models,
    ):
        (failed,) = await asked(models)
    assert isinstance(failed, ProviderFailed)
    assert (failed.failure.type, failed.retryable) == ("provider.auth", False)
    assert KEY not in repr(failed)


async def test_a_turn_with_parallel_calls_is_retried_where_a_call_could_not_be_written(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    look = printing_tool("look", "seen")
    async with open_provider() as scripted:
        google = Provider(protocol="gemini", base_url=scripted.base_url)
        settings = Configuration(store=Store(synchronous="normal"), providers={"google": google})
        async with open_house(scripted, tmp_path, settings=settings, tools=[look.tool]) as house:
            scripted.script(
                stream(finish("MALFORMED_FUNCTION_CALL"), usage(9, 0)),
                answer(tool_call("look", {}), tool_call("look", {}, id="c2")),
                status(429, {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "details": [{"retryDelay": "70s"}]}}),
                answer(text("Done.")),
            )
            session = await house.session(model=ModelRef(provider="google", id="gemini-3-pro"))
            assert await house.ask(session, "Look twice.") == CompletedOutcome()
            retries = await house.data(session, RetryScheduled)
        bodies = [request.json for request in scripted.requests]
    assert len(retries) == 2
    assert scripted.requests[3].at - scripted.requests[2].at >= 70
    assert bodies[0] == bodies[1]
    assert bodies[2] == bodies[3]
    calls, results = (content["parts"] for content in bodies[2]["contents"][-2:])
    assert [part.get("thoughtSignature") for part in calls] == [gemini.SIGNATURE, None]
    assert [part["functionCall"].get("id") for part in calls] == [None, "c2"]
    assert [part["functionResponse"]["response"] for part in results] == [{"output": "seen"}] * 2
    assert UNCHECKED not in scripted.requests[3].body.decode()
