"""The transport against odd and hostile providers: signs of life without an answer, compression, heads, ends, and log lines.

Long, because all odd servers share one script.
"""

import gzip
import logging
import traceback
import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from steerway.actors.configuration import Configuration, Model, Provider, Timeouts
from steerway.actors.models import Models
from steerway.actors.models.transport import DRAIN_SECONDS, ERROR_SECONDS, MAX_ERROR_BODY, MAX_INFLATED, Transport
from steerway.protocol.llm.events import Finished, LLMEvent, ProviderFailed, TextDelta, TextEnd, TextStart
from steerway.protocol.llm.openai_chat import OpenAIChatAdapter
from steerway.protocol.llm.request import Generation, LLMRequest, Text, UserMessage
from steerway.protocol.values.model import ModelRef
from support.answers import Answer, Part, answer, delay, event, hold, raw, status, stream, text
from support.provider import open_provider

KEY = "key-0123456789abcdef"
ASK = LLMRequest(
    model="unset",
    system=(),
    messages=(UserMessage(content=(Text(text="Hello"),)),),
    tools=(),
    tool_choice="auto",
    generation=Generation(),
    options={},
    body={},
)


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def models_at(base_url: str, protocol: Any = "openai-chat", environ: Mapping[str, str] | None = None, **fields: Any) -> Models:
    provider = Provider(protocol=protocol, base_url=base_url, models={"small": Model(output=100)}, **fields)
    return Models(Configuration(providers={"scripted": provider}), environ or {})


async def collect(models: Models) -> list[LLMEvent]:
    events: list[LLMEvent] = []
    async with models.stream(models.resolve(ModelRef(provider="scripted", id="small")), ASK) as batches:
        async for batch in batches:
            events += batch
    return events


async def answered(*script: Answer, **fields: Any) -> list[LLMEvent]:
    """The events of the last of these answers."""
    events: list[LLMEvent] = []
    async with open_provider(*script) as provider, models_at(provider.base_url, **fields) as models:
        for _ in script:
            events = await collect(models)
    return events


def failure(events: list[LLMEvent]) -> ProviderFailed:
    last = events[-1]
    assert isinstance(last, ProviderFailed), events
    return last


def said(events: list[LLMEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def again(*parts: Part, times: int, every: float) -> tuple[Part, ...]:
    return tuple(part for _ in range(times) for part in (delay(every), *parts))


# --- signs of life ----------------------------------------------------------------------------------------------------

PING = event({"type": "ping"}, "ping")
EMPTY_DELTA = event({"choices": [{"index": 0, "delta": {"content": "", "role": "assistant"}, "finish_reason": None}]})
COMMENT = raw(": ping\n\n")
IN_PROGRESS = event({"type": "response.in_progress", "response": {"id": "r", "status": "in_progress", "output": []}})


@pytest.mark.parametrize(
    ("protocol", "sign"),
    [
        ("openai-chat", COMMENT),
        ("openai-chat", EMPTY_DELTA),
        ("anthropic-messages", PING),
        ("openai-responses", COMMENT),
        ("openai-responses", IN_PROGRESS),
    ],
)
async def test_signs_of_life_alone_keep_an_answer_up_for_so_long_only(
    autojump_clock: MockClock, protocol: Any, sign: Part
) -> None:
    script = stream(sign, *again(sign, times=1000, every=10))
    async with open_provider(script) as provider, models_at(provider.base_url, protocol) as models:
        started = trio.current_time()
        failed = failure(await collect(models))
        assert trio.current_time() - started == pytest.approx(300)
        assert (failed.failure.type, failed.retryable) == ("provider.transport", True)
        assert "300 s" in failed.failure.message
        await script.disconnected.wait()


async def test_an_answer_that_stalls_in_the_middle_keeps_what_it_said(autojump_clock: MockClock) -> None:
    script = answer(text("half"), *again(COMMENT, times=100, every=4))
    timeouts = Timeouts(idle=5, stalled=21)
    async with open_provider(script) as provider, models_at(provider.base_url, timeouts=timeouts) as models:
        started = trio.current_time()
        events = await collect(models)
        assert trio.current_time() - started == pytest.approx(21)
    assert [type(event) for event in events] == [TextStart, TextDelta, TextEnd, ProviderFailed]
    assert "21 s" in failure(events).failure.message


async def test_long_silent_reasoning_with_signs_of_life_lives_on(autojump_clock: MockClock) -> None:
    waits = again(COMMENT, times=29, every=10)
    events = await answered(answer(*waits, text("a")[0], *waits, text("b")[0], *waits))
    assert said(events) == "ab"
    assert isinstance(events[-1], Finished)


async def test_the_beginning_of_an_item_brings_an_answer_on_before_it_shows_itself(autojump_clock: MockClock) -> None:
    item: dict[str, Any] = {"type": "reasoning", "id": "rs_1", "summary": []}
    waits = again(IN_PROGRESS, times=29, every=10)
    script = stream(
        event({"type": "response.created", "response": {"id": "r"}}),
        *waits,
        event({"type": "response.output_item.added", "output_index": 0, "item": item}),
        *waits,
        event({"type": "response.output_item.done", "output_index": 0, "item": item}),
        *waits,
        event({"type": "response.output_text.delta", "output_index": 1, "content_index": 0, "delta": "Done."}),
        event({"type": "response.completed", "response": {"id": "r", "status": "completed", "output": []}}),
    )
    events = await answered(script, protocol="openai-responses")
    assert said(events) == "Done."
    assert isinstance(events[-1], Finished)


async def test_a_slow_reader_does_not_make_an_answer_stall(autojump_clock: MockClock) -> None:
    script = answer(text("abcd", deltas=4, every=4))
    timeouts = Timeouts(idle=5, stalled=6)
    async with open_provider(script) as provider, models_at(provider.base_url, timeouts=timeouts) as models:
        events: list[LLMEvent] = []
        async with models.stream(models.resolve(ModelRef(provider="scripted", id="small")), ASK) as batches:
            async for batch in batches:
                events += batch
                await trio.sleep(50)
    assert said(events) == "abcd"


async def test_one_byte_at_a_time_without_an_event_is_no_progress(autojump_clock: MockClock) -> None:
    script = stream(*again(raw(b"x"), times=1000, every=30))
    async with open_provider(script) as provider, models_at(provider.base_url) as models:
        started = trio.current_time()
        assert "300 s" in failure(await collect(models)).failure.message
        assert trio.current_time() - started == pytest.approx(330)  # the first byte, then the limit


# --- the end ----------------------------------------------------------------------------------------------------------


async def test_an_answer_that_has_ended_is_not_interrupted_any_more(
    autojump_clock: MockClock,
) -> None:
    script = answer(text("all"))
    script.parts += (hold(),)
    async with open_provider(script) as provider, models_at(provider.base_url) as models:
        events: list[LLMEvent] = []
        started = trio.current_time()
        with trio.CancelScope(deadline=started + DRAIN_SECONDS / 2) as scope:
            events = await collect(models)
        assert isinstance(events[-1], Finished)
        assert not scope.cancelled_caught
        assert trio.current_time() - started == pytest.approx(DRAIN_SECONDS)
        await script.disconnected.wait()


async def test_where_an_interrupt_waits_already_the_rest_of_the_body_is_not_waited_for(autojump_clock: MockClock) -> None:
    script = answer(text("all"))
    script.parts += (hold(),)
    async with open_provider(script) as provider, models_at(provider.base_url) as models:
        started = trio.current_time()
        with trio.CancelScope() as scope:
            async with models.stream(models.resolve(ModelRef(provider="scripted", id="small")), ASK) as batches:
                async for batch in batches:
                    if isinstance(batch[-1], Finished):
                        scope.cancel()
                        break
        assert not scope.cancelled_caught
        await script.disconnected.wait()
        assert trio.current_time() == started


async def test_an_end_of_the_body_that_comes_a_moment_late_still_leaves_the_connection_for_the_next(
    autojump_clock: MockClock,
) -> None:
    def late() -> Answer:
        made = answer(text("all"))
        made.parts += (delay(DRAIN_SECONDS / 2),)
        return made

    async with open_provider(late(), late(), late()) as provider, models_at(provider.base_url) as models:
        for _ in range(3):
            assert isinstance((await collect(models))[-1], Finished)
            assert provider.open_connections == 1


# --- compression ------------------------------------------------------------------------------------------------------

CHUNK = b'data: {"choices":[{"index":0,"delta":{"content":"packed"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
GZIP = {"content-encoding": "gzip"}


@pytest.mark.parametrize(
    "body",
    [
        b"this is no gzip",
        gzip.compress(CHUNK)[:12] + b"\xff" * 40,
        gzip.compress(b": " + b"x" * (MAX_INFLATED + 1)),
        gzip.compress(b": x\n") + gzip.compress(b": " + b"x" * MAX_INFLATED),
    ],
    ids=["none", "broken", "bomb", "bomb in its second member"],
)
async def test_a_body_that_cannot_be_decompressed_is_invalid_output_and_not_tried_again(body: bytes) -> None:
    failed = failure(await answered(stream(raw(body), headers=GZIP)))
    assert (failed.failure.type, failed.retryable) == ("provider.invalid-output", False)


async def test_what_breaks_after_some_text_ends_the_text(autojump_clock: MockClock) -> None:
    first = b'data: {"choices":[{"index":0,"delta":{"content":"packed"}}]}\n\n'
    packer = zlib.compressobj(wbits=31)
    body = packer.compress(first) + packer.flush(zlib.Z_SYNC_FLUSH)
    events = await answered(stream(raw(body), delay(1), raw(b"\xff" * 40), headers=GZIP))
    assert [type(event) for event in events] == [TextStart, TextDelta, TextEnd, ProviderFailed]
    assert failure(events).failure.type == "provider.invalid-output"


async def test_a_body_of_several_members_is_read_whole() -> None:
    body = b"".join(gzip.compress(CHUNK[at : at + 20]) for at in range(0, len(CHUNK), 20)) + b"\0" * 8
    assert said(await answered(stream(raw(body), headers=GZIP))) == "packed"


async def test_a_compressed_body_that_breaks_off_is_incomplete_and_may_be_tried_again() -> None:
    failed = failure(await answered(stream(raw(gzip.compress(CHUNK)[:-30]), headers=GZIP)))
    assert (failed.failure.type, failed.retryable) == ("provider.incomplete", True)


async def test_an_unknown_compression_hides_an_answer_but_not_a_status() -> None:
    unknown = {"content-encoding": "br" + "x" * 5000}
    failed = failure(await answered(stream(raw(b"abc"), headers=unknown)))
    assert failed.failure.type == "provider.invalid-output"
    assert "brx" in failed.failure.message
    assert len(failed.failure.message) < 200
    refused = failure(await answered(status(429, b"abc", headers=unknown)))
    assert (refused.failure.type, refused.retryable) == ("provider.rate-limit", True)


async def test_an_error_body_that_is_a_bomb_is_no_more_than_an_error() -> None:
    packed = status(503, gzip.compress(b"x" * 10 * MAX_ERROR_BODY), headers=GZIP)
    failed = failure(await answered(packed))
    assert (failed.failure.type, failed.retryable) == ("provider.overloaded", True)
    assert len(str(failed.failure.fields)) < 20_000


async def test_an_error_body_that_does_not_end_is_not_waited_for_as_long_as_an_answer(autojump_clock: MockClock) -> None:
    stuck = stream(raw('{"error": {"message": "Overloaded"}'), hold())
    stuck.status = 529
    async with open_provider(stuck) as provider, models_at(provider.base_url) as models:
        started = trio.current_time()
        assert failure(await collect(models)).failure.type == "provider.overloaded"
        assert trio.current_time() - started == pytest.approx(ERROR_SECONDS)
        await stuck.disconnected.wait()


# --- heads ------------------------------------------------------------------------------------------------------------

Serve = Callable[[trio.SocketStream], Awaitable[None]]


async def answered_by(head: bytes, base_url: str | None = None) -> list[LLMEvent]:
    """The events of an answer that is these bytes and then nothing."""

    async def serve(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        try:
            await stream.send_all(head)
        except trio.BrokenResourceError:
            pass

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        port = listener.socket.getsockname()[1]
        async with models_at(base_url or f"http://127.0.0.1:{port}/v1") as models:
            events = await collect(models)
        nursery.cancel_scope.cancel()
    return events


@pytest.mark.parametrize(
    ("head", "kind", "retryable"),
    [
        (b"HTTP/1.1 200 OK\r\n" + b"x-a: " + b"y" * 1_000_000 + b"\r\n\r\n", "provider.transport", True),
        (b"HTTP/1.1 200 OK\r\n" + b"x-a: y\r\n" * 100_000 + b"\r\n", "provider.transport", True),
        (b"SSH-2.0-something\r\n", "provider.transport", True),
        (b"HTTP/1.1 304 Not Modified\r\n\r\n", "provider.invalid-output", False),
        (b"HTTP/1.1 300 Multiple Choices\r\ncontent-length: 0\r\n\r\n", "provider.invalid-output", False),
        (b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\nabc", "provider.transport", True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "provider.incomplete", True),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", "provider.incomplete", True),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\ncontent-length: 20\r\n\r\nx", "provider.transport", True),
        (b"HTTP/1.1 302 Found\r\nlocation: http://elsewhere.example/\r\ncontent-length: 0\r\n\r\n", "provider.no-route", False),
    ],
)
async def test_an_odd_head_is_a_failure_that_says_what_it_is(head: bytes, kind: str, retryable: bool) -> None:
    (failed,) = await answered_by(head)
    assert (failure([failed]).failure.type, failure([failed]).retryable) == (kind, retryable)
    assert len(failure([failed]).failure.message) < 500
    if b"304" in head:
        assert "redirect" not in failure([failed]).failure.message


@pytest.mark.parametrize(
    ("base_url", "kind"),
    [
        (f"http://{'a' * 70}.example/v1", "provider.transport"),
        (f"http://127.0.0.1/{'a' * 70_000}", "provider.no-route"),
        ("http://127.0.0.1:1/\u00e9\u0000", "provider.no-route"),
    ],
)
async def test_an_address_that_leads_nowhere_is_a_failure_and_no_defect(base_url: str, kind: str) -> None:
    assert failure(await answered_by(b"", base_url)).failure.type == kind


async def test_a_header_that_is_no_header_is_a_failure_and_no_defect() -> None:
    for value in ("gr\u00fc\u00dfe", "two\nlines"):
        failed = failure(await answered(answer(text("Hello")), headers={"x-custom": value}))
        assert failed.failure.type == "provider.no-route"
        assert value not in failed.failure.message


# --- log lines --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("proxied", [False, True])
async def test_a_head_that_repeats_the_key_reaches_no_logger(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, proxied: bool
) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        echo = f"HTTP/1.1 400 Wrong {KEY}\r\nx-echo: {KEY}\r\nset-cookie: k={KEY}\r\ncontent-length: 0\r\n\r\n"
        await stream.send_all(echo.encode())

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        if proxied:
            monkeypatch.setenv("HTTP_PROXY", url)
        fields: dict[str, Any] = {"environ": {"K": KEY}, "api_key_env": "K", "headers": {"x-more": "more-0123456789"}}
        with caplog.at_level(logging.DEBUG):
            async with models_at(f"{url}/v1", **fields) as models:
                failed = failure(await collect(models))
        nursery.cancel_scope.cancel()
    assert failed.failure.type == "provider.invalid-request"
    assert ("receive_response_headers.complete" if proxied else "connecting to http://127.0.0.1") in caplog.text
    assert "HTTP/1.1 400" in caplog.text
    for secret in (KEY, "more-0123456789"):
        assert secret not in caplog.text


class DefectiveAdapter(OpenAIChatAdapter):
    """One that fails where nothing should, while the key is at hand."""

    def classify(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderFailed:
        try:
            raise KeyError("first")
        except KeyError:
            raise RuntimeError("then") from ExceptionGroup("and", [ValueError("both")])


async def test_a_defect_takes_no_key_along_for_a_logger_that_shows_locals() -> None:
    async with (
        open_provider(status(400)) as provider,
        models_at(provider.base_url, environ={"K": KEY}, api_key_env="K", headers={"x-more": "more-0123456789"}) as models,
    ):
        info = models.resolve(ModelRef(provider="scripted", id="small"))
        adapter, transport = DefectiveAdapter(), Transport()
        async with transport.open(info, adapter, adapter.encode(ASK)) as batches:
            with pytest.raises(RuntimeError) as raised:
                await anext(batches)
        await transport.aclose()
        assert provider.requests[0].headers["authorization"].endswith(KEY)
    below = [frame.f_locals for frame, _ in traceback.walk_tb(raised.tb) if frame.f_code.co_filename != __file__]
    assert len(below) >= 3
    assert below[-1] == {}
    for secret in (KEY, "more-0123456789"):
        assert secret not in repr(below)
        assert secret not in repr(info.__rich_repr__())
