"""The scripted provider does on the wire what its script says, and notices what a strict provider would refuse.

Long, because each word of the script is tried on each wire.

Rules:
- The clients are httpx2 and bare sockets; nothing here knows Steerway's own provider code.
- Where a piece must have arrived before the next is sent, a hold separates them.
"""

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
import trio
import trio.testing

from support.answers import (
    Answer,
    CutHow,
    Options,
    answer,
    cut,
    delay,
    done,
    event,
    finish,
    hold,
    interleave,
    raw,
    reasoning,
    status,
    stream,
    text,
    tool_call,
    usage,
)
from support.bare_reader import measure, open_client, read_stream, read_stream_with
from support.openai_chat import chunk
from support.openai_chat_rules import violations
from support.provider import Provider, Request, Responder, open_provider
from support.serve_provider import running_provider

USER = {"role": "user", "content": "hello"}


def call_entry(id: str, name: str = "date", arguments: object = "{}") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calls(*ids: str) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [call_entry(id) for id in ids]}


def result(id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": "42"}


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}


def request_body(*messages: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    return {"model": "m", "stream": True, "messages": list(messages or (USER,))} | fields


def events_of(body: bytes) -> list[Any]:
    """Decode a stream's events; the end mark stays a string."""
    lines = [line.removeprefix("data: ") for line in body.decode().split("\n\n") if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def deltas_of(body: bytes) -> list[dict[str, Any]]:
    return [item["choices"][0]["delta"] for item in events_of(body) if item != "[DONE]" and item["choices"]]


def contents_of(body: bytes) -> list[str]:
    return [delta["content"] for delta in deltas_of(body) if delta.get("content")]


class Caller:
    """One httpx2 client and the provider it calls."""

    def __init__(self, provider: Provider, client: httpx2.AsyncClient) -> None:
        self.provider = provider
        self.client = client
        self.url = f"{provider.base_url}/chat/completions"

    async def post(self, body: object = None) -> httpx2.Response:
        return await self.client.post(self.url, json=body or request_body())


@asynccontextmanager
async def calling(
    *script: Answer | Responder,
    respond: Responder | None = None,
    check: bool = True,
    api_key: str | None = None,
    models: Sequence[str] = ("scripted",),
) -> AsyncGenerator[Caller]:
    async with (
        open_client() as client,
        open_provider(*script, respond=respond, check=check, api_key=api_key, models=models) as provider,
    ):
        yield Caller(provider, client)


async def read_until_closed(caller: Caller) -> tuple[bytes, bool]:
    """Post over a bare socket; return what came, and whether the connection was reset."""
    parts = urlsplit(caller.url)
    body = json.dumps(request_body()).encode()
    head = f"POST {parts.path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    received = b""
    async with await trio.open_tcp_stream(parts.hostname or "", parts.port or 0) as connection:
        await connection.send_all(head.encode() + body)
        try:
            async for data in connection:
                received += data
        except trio.BrokenResourceError:
            return received, True
    return received, False


def dechunked(received: bytes) -> bytes:
    """The body of a chunked answer that may end anywhere between two chunks."""
    rest = received.partition(b"\r\n\r\n")[2]
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return body


# What is streamed


async def test_an_answer_without_a_script_is_a_short_whole_stream():
    async with calling() as caller:
        response = await caller.post()
    events = events_of(response.content)
    assert response.headers["content-type"] == "text/event-stream"
    assert deltas_of(response.content) == [
        {"role": "assistant", "content": ""},
        {"content": "Done."},
        {},
    ]
    assert events[-2]["choices"][0]["finish_reason"] == "stop"
    assert events[-1] == "[DONE]"
    assert {item["model"] for item in events[:-1]} == {"m"}


async def test_text_is_split_into_as_many_deltas_as_asked():
    content = "".join(chr(0x100 + n) for n in range(103))
    async with calling(answer(text(content, deltas=50), text(["x", "yz"]))) as caller:
        pieces = contents_of((await caller.post()).content)
    assert len(pieces) == 52
    assert "".join(pieces) == content + "xyz"
    assert pieces[-2:] == ["x", "yz"]
    with pytest.raises(ValueError, match="do not fill 50 deltas"):
        text("hello", deltas=50)


async def test_interleaved_calls_keep_their_ids_and_indexes():
    script = answer(
        reasoning("hmm", field="reasoning"),
        interleave(
            tool_call("read", {"path": "a"}, id="one", deltas=3),
            tool_call("date", ["{", "}"]),
            tool_call("odd", '{"cut', id="one", index=7, deltas=0),
        ),
    )
    async with calling(script) as caller:
        content = (await caller.post()).content
    deltas = deltas_of(content)
    assert deltas[1] == {"reasoning": "hmm"}
    entries = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert [entry["index"] for entry in entries] == [0, 1, 7, 0, 1, 0, 1, 0]
    assert [entry["id"] for entry in entries[:3]] == ["one", entries[1]["id"], "one"]
    assert entries[1]["id"] not in ("", "one", None)
    assert "".join(entry["function"]["arguments"] for entry in entries if entry["index"] == 0) == '{"path": "a"}'
    assert entries[2]["function"] == {"name": "odd", "arguments": '{"cut'}
    assert events_of(content)[-2]["choices"][0]["finish_reason"] == "tool_calls"


async def test_usage_is_sent_when_asked_for_or_scripted():
    async with calling(answer(), answer(), answer(usage(7, 5, cached=3, reasoning=2))) as caller:
        without = events_of((await caller.post()).content)
        asked = await caller.post(request_body(stream_options={"include_usage": True}))
        scripted = events_of((await caller.post()).content)
    assert all("usage" not in item for item in without)
    assert events_of(asked.content)[-2]["usage"]["total_tokens"] == 15
    (usages,) = [item["usage"] for item in scripted if "usage" in item]
    assert usages["prompt_tokens"] == 7
    assert usages["prompt_tokens_details"] == {"cached_tokens": 3}
    assert usages["completion_tokens_details"] == {"reasoning_tokens": 2}


async def test_a_stream_has_exactly_the_scripted_parts():
    parts = (raw(": ping\n\n"), event({"error": {"message": "no"}}), raw(b"data: {\xff\n\n"), chunk({"content": "x"}))
    async with calling(stream(*parts), stream(finish("length"), done()), stream()) as caller:
        bodies = [(await caller.post()).content for _ in range(3)]
    assert bodies[0].startswith(b': ping\n\ndata: {"error": {"message": "no"}}\n\ndata: {\xff\n\n')
    assert contents_of(bodies[0].partition(b"\xff\n\n")[2]) == ["x"]
    assert events_of(bodies[1])[-2]["choices"][0]["finish_reason"] == "length"
    assert bodies[2] == b""


async def test_scripted_answers_come_in_order_and_functions_see_their_request():
    def echo(request: Request) -> Answer:
        return answer(text(f"{request.number} {request.model} {request.messages[-1]['content']}"))

    async with calling(answer(text("first")), echo, respond=lambda request: answer(text("last"))) as caller:
        assert caller.provider.unplayed == 2
        said = [contents_of((await caller.post()).content) for _ in range(3)]
        assert caller.provider.unplayed == 0
    assert said == [["first"], ["2 m hello"], ["last"]]


async def test_requests_are_recorded_with_their_bytes_before_they_are_answered():
    pause = hold()
    async with calling(answer(before=[pause])) as caller, trio.open_nursery() as nursery:
        nursery.start_soon(caller.post, request_body(tools=[tool("date")]))
        request = await caller.provider.wait_request(1)
        await pause.reached.wait()
        assert json.loads(request.body) == request.json
        assert request.headers["content-type"] == "application/json"
        assert request.tools[0]["function"]["name"] == "date"
        assert request.at <= trio.current_time()
        assert not caller.provider.answers[0].finished.is_set()
        pause.release()
    assert caller.provider.answers[0].finished.is_set()
    assert not caller.provider.answers[0].disconnected.is_set()


async def test_one_connection_serves_many_requests():
    async with calling() as caller:
        for _ in range(3):
            await caller.post()
            assert caller.provider.open_connections == 1
        await caller.client.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert caller.provider.open_connections == 0


# When it is streamed


async def test_a_hold_gives_what_is_before_it_and_nothing_behind():
    pause = hold()
    async with (
        calling(answer(text("before"), pause, text("behind"))) as caller,
        caller.client.stream("POST", caller.url, json=request_body()) as response,
    ):
        chunks = response.aiter_raw()
        received = b""
        await pause.reached.wait()
        while b"before" not in received:
            received += await anext(chunks)
        await trio.testing.wait_all_tasks_blocked()
        assert b"behind" not in received
        pause.release()
        async for data in chunks:
            received += data
    assert contents_of(received) == ["before", "behind"]


async def test_a_hold_before_the_first_byte_keeps_the_head_back():
    pause = hold()
    async with calling(answer(before=[pause])) as caller, trio.open_nursery() as nursery:
        got_head = trio.Event()

        async def call() -> None:
            async with caller.client.stream("POST", caller.url, json=request_body()):
                got_head.set()

        nursery.start_soon(call)
        await pause.reached.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert not got_head.is_set()
        pause.release()
        await got_head.wait()


async def test_paced_deltas_take_virtual_time_only(autojump_clock: trio.testing.MockClock):
    async with calling(answer(text("x" * 50, deltas=50, every=20), delay(20), before=[delay(100)])) as caller:
        begun = trio.current_time()
        response = await caller.post()
        assert trio.current_time() - begun == 100 + 49 * 20 + 20
        await caller.post()
        assert [request.at - begun for request in caller.provider.requests] == [0, 1_100]
    assert contents_of(response.content) == ["x"] * 50


async def test_many_paced_streams_share_the_virtual_clock(autojump_clock: trio.testing.MockClock):
    bodies: list[bytes] = []
    async with calling(respond=lambda request: answer(text("ab" * 10, deltas=20, every=1))) as caller:

        async def call() -> None:
            bodies.append((await caller.post()).content)

        begun = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(30):
                nursery.start_soon(call)
        assert trio.current_time() - begun == 19
    assert len(bodies) == 30
    assert all("".join(contents_of(body)) == "ab" * 10 for body in bodies)


async def test_a_slow_head_comes_line_by_line(autojump_clock: trio.testing.MockClock):
    begun = trio.current_time()
    async with (
        calling(answer(head_pace=10, headers={"x-a": "1"})) as caller,
        caller.client.stream("POST", caller.url, json=request_body()) as response,
    ):
        lines = 5  # status, content-type, transfer-encoding, x-a, empty
        assert trio.current_time() - begun == (lines - 1) * 10
        assert response.headers["x-a"] == "1"


async def test_a_request_that_never_comes_fails_under_autojump(autojump_clock: trio.testing.MockClock):
    async with calling() as caller:
        with pytest.raises(trio.TooSlowError):
            await caller.provider.wait_request(1)


async def test_writes_are_one_for_each_delta_or_one_for_all_or_of_a_given_size(monkeypatch: pytest.MonkeyPatch):
    writes: list[int] = []
    send_all = trio.SocketStream.send_all

    async def counting(self: trio.SocketStream, data: bytes) -> None:
        if data.startswith(b"POST") is False and self.socket.getsockname()[1] == caller_port:
            writes.append(len(data))
        await send_all(self, data)

    monkeypatch.setattr(trio.SocketStream, "send_all", counting)
    body = text("abc", deltas=3)
    async with calling(answer(body), answer(body, one_piece=True), answer(body, piece_bytes=1)) as caller:
        caller_port = urlsplit(caller.url).port
        bodies: list[bytes] = []
        counts: list[int] = []
        for _ in range(3):
            writes.clear()
            bodies.append((await caller.post()).content)
            counts.append(len(writes))
    assert counts[:2] == [8, 1]  # head, role, three deltas, finish, end mark, end of body; all at once
    assert counts[2] == 1 + len(bodies[2]) + 1
    assert len({"".join(contents_of(body)) for body in bodies}) == 1


# How it ends


async def test_an_answer_cut_at_byte_n_gives_exactly_n_bytes_of_its_body():
    async with calling(respond=lambda request: answer(text("abc", deltas=3), usage())) as caller:
        whole = (await caller.post()).content

        ways: tuple[tuple[CutHow, bool], ...] = (("reset", True), ("fin", False))
        for how, was_reset in ways:
            for n in [*range(0, len(whole), 97), len(whole)]:
                options: Options = {"cut_at": n, "cut_how": how, "one_piece": n % 2 == 0}
                caller.provider.script(answer(text("abc", deltas=3), usage(), **options))
                received, reset = await read_until_closed(caller)
                assert len(dechunked(received)) == n
                assert reset is was_reset
                assert caller.provider.answers[-1].finished.is_set()


async def test_a_cut_stream_is_an_error_for_a_client_in_the_middle_of_it():
    scripted = (
        (answer(text("a"), cut()), httpx2.ReadError),
        (answer(text("a"), cut("fin")), httpx2.RemoteProtocolError),
        (answer(before=[cut()]), httpx2.ReadError),
        (answer(before=[cut("fin")]), httpx2.RemoteProtocolError),
        (status(500, {"error": "long"}, cut_at=3, cut_how="fin"), httpx2.RemoteProtocolError),
    )
    async with calling() as caller:
        for scripted_answer, expected in scripted:
            caller.provider.script(scripted_answer)
            with pytest.raises(expected):
                await caller.post()
        assert (await caller.post()).status_code == 200


async def test_a_client_that_leaves_in_the_middle_is_noticed_and_ends_the_answer():
    pause = hold()
    script = answer(text("a"), pause, text("never"))
    async with calling(script) as caller:
        async with caller.client.stream("POST", caller.url, json=request_body()):
            await pause.reached.wait()
            assert not script.disconnected.is_set()
        await script.disconnected.wait()
        assert not script.finished.is_set()
        await trio.testing.wait_all_tasks_blocked()
        assert caller.provider.open_connections == 0
        assert (await caller.post()).status_code == 200


async def test_a_client_that_is_cancelled_before_the_first_byte_is_noticed():
    pause = hold()
    script = answer(before=[pause])
    async with calling(script) as caller:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(caller.post)
                await pause.reached.wait()
                scope.cancel()
        await script.disconnected.wait()


async def test_a_client_that_stops_reading_and_leaves_is_noticed():
    script = answer(raw(b":" + b"x" * 20_000_000 + b"\n\n"))
    async with calling(script) as caller:
        async with caller.client.stream("POST", caller.url, json=request_body()):
            await trio.testing.wait_all_tasks_blocked()
        await script.disconnected.wait()
        assert not script.finished.is_set()


async def test_any_status_is_answered_with_its_headers_and_body():
    html = status(200, "<html>", content_type="text/html")
    limited = status(429, {"error": {"message": "slow down"}}, headers={"retry-after": "2"}, close=True)
    async with calling(limited, html, status(503)) as caller:
        first = await caller.post()
        second = await caller.post()
        third = await caller.post()
    assert (first.status_code, first.headers["retry-after"], first.headers["connection"]) == (429, "2", "close")
    assert first.json() == {"error": {"message": "slow down"}}
    assert (second.status_code, second.headers["content-type"], second.text) == (200, "text/html", "<html>")
    assert third.status_code == 503
    assert third.json()["error"]["type"] == "server_error"


async def test_models_are_listed_keys_checked_and_other_paths_unknown():
    async with calling(api_key="k", models=["a", "b"]) as caller:
        base, headers = caller.provider.base_url, {"authorization": "Bearer k"}
        listed = await caller.client.get(f"{base}/models", headers=headers)
        assert [entry["id"] for entry in listed.json()["data"]] == ["a", "b"]
        assert (await caller.post()).status_code == 401
        assert (await caller.client.get(caller.url, headers=headers)).status_code == 404
        assert (await caller.client.post(f"{base}/else", headers=headers)).status_code == 404
        assert (await caller.client.post(caller.url, headers=headers, json=request_body())).status_code == 200
        assert len(caller.provider.requests) == 1


# What is refused


async def test_a_refused_request_is_answered_400_uses_no_answer_and_fails_the_test():
    async def break_a_rule() -> None:
        async with calling(answer(text("kept"))) as caller:
            refused = await caller.post(request_body(USER, calls("a"), USER))
            assert refused.status_code == 400
            assert refused.json()["error"]["type"] == "invalid_request_error"
            assert "no result" in refused.json()["error"]["message"]
            assert contents_of((await caller.post()).content) == ["kept"]
            assert [item.status for item in caller.provider.answers] == [400, 200]

    with pytest.raises(AssertionError, match=r"request 1: messages\[1\].*no result"):
        await break_a_rule()


async def test_a_test_that_breaks_the_rules_on_purpose_clears_the_list():
    async with calling() as caller:
        await caller.post(request_body(model=""))
        assert caller.provider.violations == ["request 1: model: must be a non-empty string"]
        caller.provider.violations.clear()
    async with calling(check=False) as caller:
        assert (await caller.post({"messages": []})).status_code == 200


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b'{"model": "\xff"}', "no UTF-8 JSON"),
        (json.dumps(request_body()).encode("utf-16"), "no UTF-8 JSON"),
        (b'{"model": NaN}', "NaN is no JSON"),
        (b"{", "no UTF-8 JSON"),
        (b"[]", "must be an object"),
    ],
)
async def test_a_body_that_is_no_json_object_is_refused(content: bytes, complaint: str):
    async with calling() as caller:
        response = await caller.client.post(caller.url, content=content, headers={"content-type": "application/json"})
        assert response.status_code == 400
        assert complaint in caller.provider.violations.pop()
        assert caller.provider.requests[0].body == content


async def test_another_content_type_and_malformed_http_are_refused():
    async with calling() as caller:
        response = await caller.client.post(caller.url, content=json.dumps(request_body()))
        assert response.status_code == 400
        assert "content-type" in caller.provider.violations.pop()
        parts = urlsplit(caller.url)
        async with await trio.open_tcp_stream(parts.hostname or "", parts.port or 0) as connection:
            await connection.send_all(b"no http at all\r\n\r\n")
            assert (await connection.receive_some()).startswith(b"HTTP/1.1 400")
        assert caller.provider.violations.pop().startswith("malformed HTTP")


async def test_the_blocks_own_exception_passes_unwrapped():
    with pytest.raises(KeyError):
        async with open_provider():
            raise KeyError("mine")


async def test_an_answer_that_is_used_twice_is_a_plain_mistake():
    async def use_twice() -> None:
        once = answer()
        async with calling(once, once) as caller:
            await caller.post()
            await caller.post()

    with pytest.raises(ExceptionGroup) as caught:
        await use_twice()
    assert caught.group_contains(RuntimeError, match="played once", depth=None)


@pytest.mark.parametrize(
    "body",
    [
        request_body(),
        request_body({"role": "system", "content": "s"}, USER, {"role": "assistant", "content": "a"}, USER),
        request_body(USER, calls("a", "b"), result("b"), result("a"), USER),
        request_body(USER, calls("a"), result("a"), calls("b"), result("b")),
        request_body(USER, calls("a") | {"content": "say"}, result("a"), tools=[tool("date")], tool_choice="none"),
        request_body({"role": "user", "content": [{"type": "text", "text": "\U0001f600"}]}, tools=[tool("a"), tool("b")]),
        request_body(tools=[tool("date")], tool_choice={"type": "function", "function": {"name": "date"}}),
    ],
)
def test_valid_requests_break_no_rule(body: dict[str, Any]):
    assert violations(body) == []


def assistant_with(entry: object) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [entry]}


@pytest.mark.parametrize(
    ("body", "complaints"),
    [
        ({"stream": True, "messages": [USER]}, ["model: must be"]),
        (request_body(stream=False), ["stream: must be true"]),
        ({"model": "m", "stream": True, "messages": []}, ["messages: must be a list with at least one"]),
        ({"model": "m", "stream": True, "messages": ["x"]}, ["messages[0]: must be an object"]),
        (request_body({"role": "robot", "content": "x"}), ["messages[0].role: 'robot'"]),
        (request_body({"role": "user", "content": None}), ["messages[0].content: is missing"]),
        (request_body({"role": "user", "content": []}), ["messages[0].content: an empty list"]),
        (request_body({"role": "user", "content": 5}), ["messages[0].content: must be a string"]),
        (request_body({"role": "user", "content": [{"type": "odd"}]}), ["messages[0].content[0]: not a known part"]),
        (request_body({"role": "user", "content": [{"type": "text"}]}), ["messages[0].content[0].text: must be"]),
        (request_body(USER, {"role": "assistant", "content": ""}), ["messages[1]: an assistant message with neither"]),
        (request_body(USER, {"role": "assistant", "content": None}), ["messages[1]: an assistant message with neither"]),
        (request_body(USER | calls("a") | {"role": "user", "content": "x"}), ["messages[0].tool_calls: only an"]),
        (request_body({"role": "user", "content": "\ud83d"}), ["body.messages[0].content: holds a lone surrogate"]),
        # calls and results
        (request_body(USER, calls("a")), ["messages[1].tool_calls[0]: call 'a' has no result"]),
        (request_body(calls("a"), USER, result("a")), ["messages[0].tool_calls[0]: call 'a'", "messages[2]: a second or"]),
        (request_body(calls("a", "b"), result("a")), ["messages[0].tool_calls[1]: call 'b' has no result"]),
        (request_body(calls("a"), result("a"), result("a")), ["messages[2]: a second or late result for 'a'"]),
        (request_body(USER, result("x")), ["messages[1]: a result without a call for 'x'"]),
        (request_body(USER, {"role": "tool", "content": "x"}), ["messages[1]: a result without a call for None"]),
        (
            request_body(calls("a"), result("a"), calls("a"), result("a")),
            ["messages[2].tool_calls[0].id: 'a' is used twice"],
        ),
        (request_body(calls("a", "a"), result("a")), ["messages[0].tool_calls[1].id: 'a' is used twice"]),
        (request_body(calls() | {"tool_calls": []}), ["messages[0].tool_calls: must be a list with at least one"]),
        (request_body(assistant_with("x")), ["messages[0].tool_calls[0]: must be a call"]),
        (request_body(assistant_with(call_entry(""))), ["messages[0].tool_calls[0].id: must be"]),
        (request_body(assistant_with(call_entry("a", name="a b")), result("a")), ["messages[0].tool_calls[0].function.name"]),
        (
            request_body(assistant_with(call_entry("a", name="n" * 65)), result("a")),
            ["messages[0].tool_calls[0].function.name"],
        ),
        *(
            (
                request_body(assistant_with(call_entry("a", arguments=broken)), result("a")),
                ["messages[0].tool_calls[0].function.arguments: must be a string that holds a JSON object"],
            )
            for broken in ("", "[]", '{"a', "null", 5)
        ),
        # tools
        (request_body(tools=[]), ["tools: must be a list with at least one"]),
        (request_body(tools=[tool("a"), tool("a")]), ["tools[1].function.name: 'a' is used twice"]),
        (request_body(tools=[tool("ä")]), ["tools[0].function.name: 'ä' is no valid name"]),
        (request_body(tools=["x"]), ["tools[0]: must be a tool"]),
        (
            request_body(tools=[{"type": "function", "function": {"name": "a", "parameters": {"type": "array"}}}]),
            ["tools[0].function.parameters: must be"],
        ),
        (request_body(tool_choice="auto"), ["tool_choice: is only allowed with tools"]),
        (request_body(tools=[tool("a")], tool_choice="any"), ["tool_choice: 'any' is unknown"]),
        (
            request_body(tools=[tool("a")], tool_choice={"type": "function", "function": {"name": "b"}}),
            ["tool_choice: names no offered tool"],
        ),
    ],
)
def test_each_broken_rule_is_named_with_its_place(body: dict[str, Any], complaints: list[str]):
    found = violations(body)
    assert len(found) == len(complaints), found
    for sentence, beginning in zip(found, complaints, strict=True):
        assert sentence.startswith(beginning)


# The provider of benchmarks


async def test_the_bare_readers_count_the_bytes_of_the_body():
    async with calling(respond=lambda request: answer(text("abc", deltas=3), usage())) as caller:
        expected = len((await caller.post()).content)
        assert await read_stream(caller.url, request_body()) == expected
        assert await read_stream_with(caller.client, caller.url, request_body()) == expected


@pytest.mark.parametrize("one_piece", [True, False])
def test_the_provider_program_serves_valid_streams_until_it_is_stopped(one_piece: bool):
    with running_provider(deltas=20, one_piece=one_piece) as running:
        url = running.url
        with httpx2.Client(trust_env=False) as client:
            response = client.post(f"{url}/chat/completions", json=request_body())
            assert client.get(f"{url}/models").json()["data"][0]["id"] == "scripted"
        assert len(contents_of(response.content)) == 20
        assert events_of(response.content)[-2]["usage"]["completion_tokens"] == 20
        assert events_of(response.content)[-1] == "[DONE]"
        for reader in ("h11", "httpx2"):
            read = trio.run(lambda reader=reader: measure(url, streams=4, turns=8, reader=reader))
            assert read["bytes"] == 8 * len(response.content)
            assert read["turns"] == 8
    assert running.requests == 1 + 2 * 8
    assert running.cpu_seconds > 0
    with pytest.raises(httpx2.ConnectError), httpx2.Client(trust_env=False) as client:
        client.get(f"{url}/models")
