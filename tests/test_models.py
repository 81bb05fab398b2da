"""Models over real HTTP on loopback: what is sent, what arrives, and what becomes of everything that goes wrong.

Long, because all failures of one way are seen together.
"""

import gzip
import logging
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import trio
import trustme
from trio.testing import MockClock, wait_all_tasks_blocked

from steerway.actors.configuration import (
    Agent,
    Configuration,
    ConfigurationError,
    Model,
    ModelSelection,
    Overlay,
    Provider,
    Timeouts,
)
from steerway.actors.models import ModelInfo, Models
from steerway.actors.models.transport import DRAIN_SECONDS
from steerway.protocol.llm.events import Finished, LLMEvent, ProviderFailed, TextDelta, TextEnd, TextStart
from steerway.protocol.llm.request import Generation, LLMRequest, Text, UserMessage
from steerway.protocol.values.errors import InvalidRequestError, ModelNotSelectedError, ModelUnavailableError
from steerway.protocol.values.model import ModelRef
from support.answers import answer, cut, delay, hold, raw, status, stream, text
from support.provider import Provider as ScriptedProvider
from support.provider import open_provider

KEY = "key-0123456789abcdef"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def ask(words: str = "Hello", **fields: Any) -> LLMRequest:
    base: dict[str, Any] = {
        "model": "unset",
        "system": ("Be kind.",),
        "messages": (UserMessage(content=(Text(text=words),)),),
        "tools": (),
        "tool_choice": "auto",
        "generation": Generation(),
        "options": {},
        "body": {},
    }
    return LLMRequest(**(base | fields))


def models_at(base_url: str, *, environ: Mapping[str, str] | None = None, **fields: Any) -> Models:
    provider = Provider(protocol="openai-chat", base_url=base_url, **fields)
    return Models(Configuration(providers={"scripted": provider}), environ or {})


def small(models: Models) -> ModelInfo:
    return models.resolve(ModelRef(provider="scripted", id="small"))


async def collect(models: Models, request: LLMRequest | None = None, info: ModelInfo | None = None) -> list[LLMEvent]:
    events: list[LLMEvent] = []
    async with models.stream(info or small(models), request or ask()) as batches:
        async for batch in batches:
            assert batch, "a batch is never empty"
            events += batch
    return events


def said(events: list[LLMEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def failure(events: list[LLMEvent]) -> ProviderFailed:
    last = events[-1]
    assert isinstance(last, ProviderFailed), events
    return last


# --- the catalog ------------------------------------------------------------------------------------------------------


def test_the_demo_model_is_always_there():
    models = Models(Configuration(), {})
    assert [str(info.ref) for info in models.list()] == ["demo/demo"]
    assert models.resolve(ModelRef(provider="demo", id="demo", variant="thinking")).options == {"reasoning": True}


def test_without_a_selection_the_error_names_the_demo_model():
    with pytest.raises(ModelNotSelectedError, match="demo/demo"):
        Models(Configuration(), {}).resolve(None)


def test_the_configured_default_answers_when_nothing_is_selected():
    models = Models(Configuration(models=ModelSelection(default="demo/demo:thinking")), {})
    assert models.resolve(None).ref == ModelRef(provider="demo", id="demo", variant="thinking")


LISTED = Configuration(
    providers={
        "local": Provider(
            protocol="openai-chat",
            options={"store": False, "nested": {"a": 1, "b": 1}},
            headers={"X-Layer": "provider"},
            models={
                "qwen:8b": Model(
                    id="qwen-on-the-wire",
                    context=100,
                    options={"nested": {"b": 2}},
                    variants={"deep": Overlay(options={"reasoningEffort": "high"}, headers={"x-layer": "variant"})},
                )
            },
        ),
        "open": Provider(protocol="openai-chat"),
        "keyed": Provider(protocol="openai-chat", api_key_env="KEYED_KEY", models={"m": Model()}),
    },
    agents={"build": Agent()},
)


@pytest.mark.parametrize(
    ("ref", "why"),
    [
        (ModelRef(provider="nobody", id="x"), "there is no provider nobody; there are demo, keyed, local, open"),
        (ModelRef(provider="local", id="x"), "local has no model x; it has qwen:8b"),
        (ModelRef(provider="local", id="qwen:8b", variant="x"), "the model has no variant x; it has deep"),
        (ModelRef(provider="open", id="any", variant="x"), "it has none"),
        (ModelRef(provider="keyed", id="m"), "set the environment variable KEYED_KEY"),
    ],
)
def test_a_model_that_cannot_be_asked_is_a_typed_error_and_nothing_takes_its_place(ref: ModelRef, why: str):
    with pytest.raises(ModelUnavailableError, match=why):
        Models(LISTED, {}).resolve(ref)


def test_a_provider_without_listed_models_takes_any_id():
    info = Models(LISTED, {}).resolve(ModelRef(provider="open", id="vendor/some-model:latest"))
    assert info.api_model == "vendor/some-model:latest"


def test_provider_model_and_variant_are_laid_over_each_other_key_by_key():
    info = Models(LISTED, {}).resolve(ModelRef(provider="local", id="qwen:8b", variant="deep"))
    assert info.api_model == "qwen-on-the-wire"
    assert info.options == {"store": False, "reasoningEffort": "high"}
    assert info.body == {"nested": {"a": 1, "b": 2}}
    assert info.headers == {"x-layer": "variant"}


def test_a_colon_is_part_of_an_id_unless_a_listed_model_stands_before_it():
    models = Models(LISTED, {})
    assert models.parse("local/qwen:8b") == ModelRef(provider="local", id="qwen:8b")
    assert models.parse("local/qwen:8b:deep") == ModelRef(provider="local", id="qwen:8b", variant="deep")
    assert models.parse("open/a/b:c") == ModelRef(provider="open", id="a/b:c")
    with pytest.raises(InvalidRequestError, match="provider/model"):
        models.parse("nothing")


def test_a_model_whose_key_is_not_set_is_not_listed():
    assert [str(info.ref) for info in Models(LISTED, {}).list()] == ["demo/demo", "local/qwen:8b"]
    assert [str(info.ref) for info in Models(LISTED, {"KEYED_KEY": "k"}).list()] == ["demo/demo", "keyed/m", "local/qwen:8b"]


def test_a_key_is_trimmed_and_one_that_fits_no_header_is_refused_without_being_repeated():
    ref = ModelRef(provider="keyed", id="m")
    key = Models(LISTED, {"KEYED_KEY": " k \n"}).resolve(ref).api_key
    assert key is not None
    assert key.reveal() == "k"
    with pytest.raises(ModelUnavailableError) as caught:
        Models(LISTED, {"KEYED_KEY": "se\ncret"}).resolve(ref)
    assert "cret" not in str(caught.value)


def test_the_name_of_the_demo_provider_cannot_be_taken():
    with pytest.raises(ConfigurationError, match="another name"):
        Models(Configuration(providers={"demo": Provider(protocol="openai-chat")}), {})


# --- what is sent -----------------------------------------------------------------------------------------------------


async def test_a_request_carries_key_headers_options_and_body_each_in_its_place():
    model = Model(
        id="small-on-the-wire",
        generation=Generation(temperature=0.5, seed=1),
        options={"reasoningEffort": "low"},
        body={"vendor": {"a": 1, "b": 1}},
    )
    async with open_provider(api_key=KEY) as provider:
        fields: dict[str, Any] = {"api_key_env": "K", "headers": {"X-Team": "blue"}, "models": {"small": model}}
        async with models_at(provider.base_url + "/", environ={"K": KEY}, **fields) as models:
            request = ask(generation=Generation(seed=2), options={"reasoningEffort": "high"}, body={"vendor": {"b": 2}})
            assert said(await collect(models, request)) == "Done."
        (sent,) = provider.requests
        assert sent.model == "small-on-the-wire"
        assert sent.headers["authorization"] == f"Bearer {KEY}"
        assert sent.headers["x-team"] == "blue"
        assert sent.headers["accept-encoding"] == "identity"
        assert sent.headers["user-agent"] == "steerway"
        assert (sent.json["temperature"], sent.json["seed"]) == (0.5, 2)
        assert sent.json["reasoning_effort"] == "high"
        assert sent.json["vendor"] == {"a": 1, "b": 2}


async def test_nothing_is_sent_before_the_first_batch_is_asked_for():
    async with open_provider() as provider, models_at(provider.base_url) as models:
        async with models.stream(small(models), ask()):
            await wait_all_tasks_blocked()
        assert provider.requests == []
        assert provider.open_connections == 0


async def test_a_redirect_is_not_followed_and_cookies_are_not_kept():
    async with open_provider() as elsewhere, open_provider() as provider:
        provider.script(
            status(307, headers={"location": elsewhere.base_url, "set-cookie": "a=b"}),
            status(500, headers={"set-cookie": "a=b"}),
        )
        async with models_at(provider.base_url, environ={"K": KEY}, api_key_env="K") as models:
            failed = failure(await collect(models))
            assert failed.failure.type == "provider.no-route"
            assert "base_url" in failed.failure.message
            assert not failed.retryable
            await collect(models)
            await collect(models)
        assert elsewhere.requests == []
        assert all("cookie" not in request.headers for request in provider.requests)


# --- what arrives -----------------------------------------------------------------------------------------------------


async def test_events_arrive_while_the_provider_is_still_speaking():
    held = hold()
    async with open_provider(answer(text("first"), held, text(" second"))) as provider, models_at(provider.base_url) as models:
        async with models.stream(small(models), ask()) as batches:
            events: list[LLMEvent] = []
            while not said(events):
                events += await anext(batches)
            assert said(events) == "first"
            held.release()
            async for batch in batches:
                events += batch
        assert [type(event) for event in events] == [TextStart, TextDelta, TextDelta, TextEnd, Finished]


@pytest.mark.parametrize("piece_bytes", [1, 7])
async def test_a_stream_in_small_pieces_gives_the_same_text(piece_bytes: int):
    script = answer(text("Grüße 👋 an alle", deltas=5), piece_bytes=piece_bytes)
    async with open_provider(script) as provider, models_at(provider.base_url) as models:
        events = await collect(models)
        assert said(events) == "Grüße 👋 an alle"
        assert isinstance(events[-1], Finished)


async def test_a_server_that_compresses_unasked_is_understood():
    chunk = b'data: {"choices":[{"index":0,"delta":{"content":"packed"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    script = stream(raw(gzip.compress(chunk)), headers={"content-encoding": "gzip"})
    async with open_provider(script) as provider, models_at(provider.base_url) as models:
        assert said(await collect(models)) == "packed"


async def test_one_connection_serves_turn_after_turn():
    async with open_provider() as provider, models_at(provider.base_url) as models:
        for _ in range(5):
            assert said(await collect(models)) == "Done."
            assert provider.open_connections == 1


async def test_a_body_that_goes_on_after_its_end_is_given_up_after_a_moment(autojump_clock: MockClock):
    script = answer(text("all"))
    script.parts += (hold(),)
    async with open_provider(script) as provider, models_at(provider.base_url) as models:
        started = trio.current_time()
        assert isinstance((await collect(models))[-1], Finished)
        assert trio.current_time() - started == pytest.approx(DRAIN_SECONDS)
        await script.disconnected.wait()


async def test_more_streams_than_any_pool_default_are_held_at_once_on_one_client():
    count = 130
    holds = [hold() for _ in range(count)]
    script = [answer(text("a"), held, text("b")) for held in holds]
    texts: list[str] = []

    async def one(models: Models) -> None:
        texts.append(said(await collect(models)))

    async with open_provider(*script) as provider, models_at(provider.base_url) as models:
        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(one, models)
            for held in holds:
                await held.reached.wait()
            assert provider.open_connections == count
            assert texts == []
            for held in holds:
                held.release()
        assert texts == ["ab"] * count


# --- cancelling -------------------------------------------------------------------------------------------------------


async def test_cancelling_a_held_stream_closes_its_connection_at_once_and_leaves_the_client_sound(autojump_clock: MockClock):
    held = answer(text("a"), hold())
    async with open_provider(held) as provider, models_at(provider.base_url) as models:
        started = trio.current_time()
        with trio.CancelScope() as scope:
            async with models.stream(small(models), ask()) as batches:
                async for _ in batches:
                    scope.cancel()
        assert scope.cancelled_caught
        await held.disconnected.wait()
        assert trio.current_time() == started
        assert said(await collect(models)) == "Done."


async def test_cancelling_before_the_first_byte_closes_the_connection():
    silent = hold()
    held = answer(text("a"), before=[silent])
    async with open_provider(held) as provider, models_at(provider.base_url) as models, trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:

            async def interrupt() -> None:
                await silent.reached.wait()
                scope.cancel()

            nursery.start_soon(interrupt)
            await collect(models)
        await held.disconnected.wait()


async def test_leaving_a_stream_early_closes_its_connection_at_once(autojump_clock: MockClock):
    held = answer(text("a"), hold())
    async with open_provider(held) as provider, models_at(provider.base_url) as models:
        started = trio.current_time()
        async with models.stream(small(models), ask()) as batches:
            await anext(batches)
        await held.disconnected.wait()
        assert trio.current_time() == started
        assert said(await collect(models)) == "Done."


async def test_an_error_of_the_consumer_passes_unwrapped():
    held = answer(text("a"), hold())
    async with open_provider(held) as provider, models_at(provider.base_url) as models:

        async def consume() -> None:
            async with models.stream(small(models), ask()) as batches:
                await anext(batches)
                raise LookupError

        with pytest.raises(LookupError):
            await consume()
        await held.disconnected.wait()


# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["reset", "fin"])
async def test_a_cut_stream_ends_its_fragments_and_is_a_retryable_failure(how: Any):
    async with open_provider(stream(text("half"), cut(how))) as provider, models_at(provider.base_url) as models:
        events = await collect(models)
        assert [type(event) for event in events] == [TextStart, TextDelta, TextEnd, ProviderFailed]
        assert failure(events).failure.type == "provider.incomplete"
        assert failure(events).retryable
        assert said(await collect(models)) == "Done."


async def test_a_stream_that_only_stops_is_a_failure_too():
    async with open_provider(stream(text("half"))) as provider, models_at(provider.base_url) as models:
        assert failure(await collect(models)).failure.type == "provider.incomplete"


async def test_a_connection_lost_before_an_answer_is_a_transport_failure():
    async with open_provider(answer(before=[cut("fin")])) as provider, models_at(provider.base_url) as models:
        (failed,) = await collect(models)
        assert failure([failed]).failure.type == "provider.transport"
        assert failure([failed]).retryable


async def test_a_provider_that_is_not_there_is_a_transport_failure_that_names_it():
    with trio.socket.socket() as unused:
        await unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        async with models_at(f"http://127.0.0.1:{port}/v1") as models:
            failed = failure(await collect(models))
    assert failed.failure.type == "provider.transport"
    assert failed.retryable
    assert f"127.0.0.1:{port}" in failed.failure.message


async def test_no_first_byte_in_time_is_a_retryable_transport_failure(autojump_clock: MockClock):
    before_head = answer(text("late"), before=[delay(1000)])
    after_head = stream(delay(1000))
    async with open_provider(before_head, after_head) as provider, models_at(provider.base_url) as models:
        for script in (before_head, after_head):
            started = trio.current_time()
            failed = failure(await collect(models))
            assert failed.failure.type == "provider.transport"
            assert "120 s" in failed.failure.message
            assert failed.retryable
            assert trio.current_time() - started == pytest.approx(120)
            await script.disconnected.wait()


async def test_a_stream_that_falls_silent_ends_its_fragments_and_fails(autojump_clock: MockClock):
    script = answer(text("half"), delay(1000))
    timeouts = Timeouts(connect=1, first_byte=2, idle=5)
    async with open_provider(script) as provider, models_at(provider.base_url, timeouts=timeouts) as models:
        started = trio.current_time()
        events = await collect(models)
        assert [type(event) for event in events] == [TextStart, TextDelta, TextEnd, ProviderFailed]
        assert failure(events).failure.type == "provider.transport"
        assert "5 s" in failure(events).failure.message
        assert failure(events).retryable
        assert trio.current_time() - started == pytest.approx(5)
        await script.disconnected.wait()


async def test_slow_but_steady_streams_and_slow_readers_are_not_timed_out(autojump_clock: MockClock):
    script = answer(text("abcdef", deltas=6, every=4))
    timeouts = Timeouts(connect=1, first_byte=2, idle=5)
    async with open_provider(script) as provider, models_at(provider.base_url, timeouts=timeouts) as models:
        events: list[LLMEvent] = []
        async with models.stream(small(models), ask()) as batches:
            async for batch in batches:
                events += batch
                await trio.sleep(20)
        assert said(events) == "abcdef"
        assert isinstance(events[-1], Finished)


@pytest.mark.parametrize(
    ("code", "kind", "retryable"),
    [
        (400, "provider.invalid-request", False),
        (401, "provider.auth", False),
        (429, "provider.rate-limit", True),
        (500, "provider.internal", True),
    ],
)
async def test_an_http_error_is_classified_and_its_connection_used_again(code: int, kind: str, retryable: bool):
    async with open_provider(status(code)) as provider, models_at(provider.base_url) as models:
        failed = failure(await collect(models))
        assert (failed.failure.type, failed.retryable) == (kind, retryable)
        assert said(await collect(models)) == "Done."
        assert provider.open_connections == 1


async def test_the_providers_wish_to_wait_is_handed_on():
    async with open_provider(status(429, headers={"retry-after": "7"})) as provider, models_at(provider.base_url) as models:
        assert failure(await collect(models)).retry_after_ms == 7000


async def test_an_endless_error_body_is_read_in_part_only(autojump_clock: MockClock):
    endless = status(500, "x" * 200_000)
    stuck = stream(raw("{"), hold())
    stuck.status = 503
    async with open_provider(endless, stuck) as provider, models_at(provider.base_url) as models:
        failed = failure(await collect(models)).failure
        assert failed.type == "provider.internal"
        assert len(str(failed.fields)) < 20_000
        assert failure(await collect(models)).retryable
        await stuck.disconnected.wait()


# --- the way there ----------------------------------------------------------------------------------------------------


async def test_a_proxy_of_the_environment_is_used_unless_the_environment_is_not_to_be_trusted(monkeypatch: pytest.MonkeyPatch):
    async with open_provider(check=False) as proxy, open_provider() as provider:
        monkeypatch.setenv("HTTP_PROXY", proxy.base_url.removesuffix("/v1"))
        async with models_at(provider.base_url) as models:
            # The stand-in knows no proxy requests: its refusal shows that it was asked.
            assert failure(await collect(models)).failure.type == "provider.invalid-request"
        assert provider.requests == []
        configuration = Configuration(providers={"scripted": Provider(protocol="openai-chat", base_url=provider.base_url)})
        async with Models(configuration, {}, trust_env=False) as models:
            assert said(await collect(models)) == "Done."


async def test_an_authority_of_the_environment_is_trusted_and_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    authority = trustme.CA()
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    leaf: Any = authority.issue_cert("127.0.0.1")  # its methods also take pyOpenSSL's contexts, whose types are not here
    leaf.configure_cert(server)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    body = b'data: {"choices":[{"index":0,"delta":{"content":"private"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'

    async def serve(connection: trio.SSLStream[trio.SocketStream]) -> None:
        try:
            await connection.receive_some()
            await connection.send_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + body)
            await connection.aclose()
        except trio.BrokenResourceError:
            pass  # the client did not trust it

    async with trio.open_nursery() as nursery:
        (plain,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = plain.socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, serve, [trio.SSLListener(plain, server, https_compatible=True)])
        for trusted in (False, True):
            monkeypatch.delenv("SSL_CERT_DIR", raising=False)
            monkeypatch.delenv("SSL_CERT_FILE", raising=False)
            if trusted:
                monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
            async with models_at(f"https://127.0.0.1:{port}/v1") as models:
                events = await collect(models)
            if trusted:
                assert said(events) == "private"
            else:
                assert "certificate" in failure(events).failure.message
                assert not failure(events).retryable
        nursery.cancel_scope.cancel()


def test_the_http_client_is_not_loaded_before_a_provider_is_asked():
    program = (
        "import sys, trio\n"
        "from steerway.actors.configuration import Configuration\n"
        "from steerway.actors.models import Models\n"
        "models = Models(Configuration(), {})\n"
        "models.resolve(models.parse('demo/demo'))\n"
        "trio.run(models.aclose)\n"
        "print([name for name in sys.modules if name.partition('.')[0] in ('httpx2', 'httpcore2')])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# --- secrets ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def everything_logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.DEBUG):
        yield caplog


async def test_the_key_stands_in_no_failure_log_line_or_representation(everything_logged: pytest.LogCaptureFixture):
    header = "header-0123456789"
    quoted = f"Wrong key {KEY} and header {header}."

    async def shown(provider: ScriptedProvider) -> str:
        fields: dict[str, Any] = {"api_key_env": "K", "headers": {"X-Org-Pass": f"Custom {header}"}}
        async with models_at(provider.base_url, environ={"K": KEY}, **fields) as models:
            info = small(models)
            events = [*await collect(models), *await collect(models), *await collect(models)]
            return f"{events!r} {events!s} {info!r} {info.api_key!r} {models!r} {vars(models)!r}"

    async with open_provider(
        status(400, quoted),
        status(401, {"error": {"message": quoted, "code": KEY}}),
        stream(raw(f'data: {{"error": {{"message": "{quoted}"}}}}\n\n')),
    ) as provider:
        text = await shown(provider)
        assert provider.requests[0].headers["authorization"].endswith(KEY)
    assert "[redacted]" in text
    for secret in (KEY, header):
        assert secret not in text
        assert secret not in everything_logged.text


async def test_a_secret_at_the_edge_of_a_cut_body_leaves_no_half():
    script = status(400, "x" * (16 * 1024 - 8) + KEY)
    async with (
        open_provider(script) as provider,
        models_at(provider.base_url, environ={"K": KEY}, api_key_env="K") as models,
    ):
        assert KEY[:6] not in str(await collect(models))


@pytest.mark.parametrize(
    "said",
    [
        'data: {"error": {"message": "' + "a" * 488 + KEY + '"}}\n\n',
        "data: " + "a" * 108 + KEY + "\n\n",
        "<" + "a" * 108 + KEY,
    ],
)
async def test_a_secret_that_a_message_was_cut_in_leaves_no_half(said: str):
    async with (
        open_provider(stream(raw(said))) as provider,
        models_at(provider.base_url, environ={"K": KEY}, api_key_env="K") as models,
    ):
        told = failure(await collect(models)).failure.message
    assert "aaaa" in told
    assert KEY[:6] not in told


# --- the other protocols ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["openai-responses", "anthropic-messages"])
async def test_every_protocol_asks_in_its_own_words_and_carries_its_key(protocol: Any) -> None:
    async with open_provider(answer(text("Hello!")), api_key=KEY) as scripted:
        models = Models(
            Configuration(
                providers={
                    "scripted": Provider(
                        protocol=protocol,
                        base_url=scripted.base_url,
                        api_key_env="KEY",
                        models={"small": Model(output=777)},
                    )
                }
            ),
            {"KEY": KEY},
        )
        async with models:
            events = await collect(models)
        assert said(events) == "Hello!"
        assert isinstance(events[-1], Finished)
        request = scripted.requests[0]
        assert request.path == {"openai-responses": "/v1/responses", "anthropic-messages": "/v1/messages"}[protocol]
        # Only a protocol that cannot do without an output limit is told the model's.
        assert request.json.get("max_tokens") == (777 if protocol == "anthropic-messages" else None)
        if protocol == "anthropic-messages":
            assert request.headers["anthropic-version"] == "2023-06-01"


@pytest.mark.parametrize("protocol", ["openai-responses", "anthropic-messages"])
async def test_a_wrong_key_is_an_authentication_failure_in_every_protocol(protocol: Any) -> None:
    async with open_provider(api_key="another") as scripted:
        provider = Provider(protocol=protocol, base_url=scripted.base_url, api_key_env="KEY")
        async with Models(Configuration(providers={"scripted": provider}), {"KEY": KEY}) as models:
            (failed,) = await collect(models)
    assert isinstance(failed, ProviderFailed)
    assert (failed.failure.type, failed.retryable) == ("provider.auth", False)
    assert KEY not in repr(failed)
