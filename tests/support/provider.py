"""The scripted provider: a real HTTP/1.1 server on 127.0.0.1 that answers model calls as a test says.

Rules:
- It runs in the test's own loop and uses no thread, so that mock clocks and autojump hold for it as well.
- Answers come from the script (first in, first out), else from `respond`, else they are a short text.
- Each request is recorded with its raw bytes before it is answered. A request that breaks the protocol's rules is
  answered 400, uses up no scripted answer, and fails the test when the provider is closed.
- Sockets and connections are real: a held answer holds a connection, a cut one resets it.
"""

import json
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NoReturn, Protocol, TypeAlias, cast
from urllib.parse import unquote

import h11
import msgspec
import trio

from support import anthropic_messages, gemini, openai_chat, openai_responses
from support.answers import Answer, Part, Raw, Step, answer, status, text
from support.provider_connection import Connection, Playing

__all__ = ["Provider", "Request", "Responder", "open_provider"]

_LONGEST_WAIT = 3600.0  # seconds; under autojump a wait for a request that never comes fails at once


class Wire(Protocol):
    """What a wire module (`openai_chat`) offers."""

    @property
    def PATH(self) -> str: ...  # noqa: N802  (a module's constant)

    def violations(self, body: Mapping[str, Any], /) -> list[str]: ...
    def usage_asked(self, body: Mapping[str, Any], /) -> bool: ...
    def render(self, parts: Iterable[Part], *, number: int, model: str, with_usage: bool) -> Iterator[bytes | Step]: ...
    def error_body(self, status: int, message: str) -> bytes: ...


_WIRES: Mapping[str, Wire] = {
    openai_chat.PATH: openai_chat,
    anthropic_messages.PATH: anthropic_messages,
    openai_responses.PATH: openai_responses,
}


class Request(msgspec.Struct, frozen=True):
    """One recorded model call. `number` counts from 1 in order of arrival, `at` is trio's clock when it was complete."""

    number: int
    path: str
    headers: Mapping[str, str]  # names in lower case
    body: bytes
    json: Mapping[str, Any]  # empty when the body is no JSON object
    at: float

    @property
    def model(self) -> str:
        return self.json["model"] if "model" in self.json else _model_in(self.path)

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]:
        return self.json["messages"]

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        return self.json.get("tools", ())


Responder: TypeAlias = Callable[[Request], Answer]


class Provider:
    """What a test holds of the running server.

    `requests[i]` was answered with `answers[i]` (a refusal included); `violations` are sentences about requests that
    broke the rules: a test that breaks them on purpose clears the list. `open_connections` counts accepted sockets.
    """

    def __init__(self, base_url: str, *, check: bool, api_key: str | None, models: Sequence[str]) -> None:
        self.base_url = base_url
        self.requests: list[Request] = []
        self.answers: list[Answer] = []
        self.violations: list[str] = []
        self.respond: Responder = lambda request: answer(text("Done."))
        self.open_connections = 0
        self._script: deque[Answer | Responder] = deque()
        self._played: set[int] = set()
        self._check = check
        self._api_key = api_key
        self._models = models
        self._arrivals = trio.lowlevel.ParkingLot()

    @property
    def unplayed(self) -> int:
        """The number of scripted answers that no request has taken yet."""
        return len(self._script)

    def script(self, *answers: Answer | Responder) -> None:
        """Append answers, or functions from a request to its answer, to the script."""
        self._script.extend(answers)

    async def wait_request(self, number: int = 1) -> Request:
        """Wait until so many model calls have arrived, and return that one (counted from 1)."""
        with trio.fail_after(_LONGEST_WAIT):
            while len(self.requests) < number:
                await self._arrivals.park()
        return self.requests[number - 1]

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve one connection until either side closes it."""
        self.open_connections += 1
        try:
            await Connection(stream, self._handle, self._malformed).run()
        finally:
            self.open_connections -= 1

    def _malformed(self, complaint: str) -> None:
        self.violations.append(f"malformed HTTP: {complaint}")

    def _handle(self, head: h11.Request, body: bytes) -> Playing:
        method, path = head.method.decode(), head.target.decode().partition("?")[0]
        headers = {name.decode(): value.decode("latin-1") for name, value in head.headers}
        wire = _WIRES.get(path) or (gemini if path.startswith("/v1/models/") and path.endswith(gemini.METHOD) else None)
        if self._api_key is not None and self._api_key != _key(headers):
            return _plain(status(401), wire or openai_chat, "the key is wrong or missing")
        if method == "GET" and path == "/v1/models":
            entries = [{"id": model, "object": "model", "created": 1, "owned_by": "script"} for model in self._models]
            return _plain(status(200, {"object": "list", "data": entries}), openai_chat, "")
        if method != "POST" or wire is None:
            return _plain(status(404), openai_chat, f"nothing at {method} {path}")
        return self._call(wire, path, headers, body)

    def _call(self, wire: Wire, path: str, headers: Mapping[str, str], body: bytes) -> Playing:
        """Record a model call, then find its answer."""
        decoded, complaints = _decode(body)
        if not headers.get("content-type", "").startswith("application/json"):
            complaints.append("content-type: must be application/json")
        request = Request(len(self.requests) + 1, path, headers, body, decoded, trio.current_time())
        if self._check and not complaints:
            complaints = list(wire.violations(decoded))
        self.requests.append(request)
        if self._check and complaints:
            self.violations.extend(f"request {request.number}: {complaint}" for complaint in complaints)
            chosen, message = status(400), "; ".join(complaints)
        else:
            chosen, message = self._next(request), "scripted"
        if id(chosen) in self._played:
            raise RuntimeError("an answer is played once: make a new one for each request")
        self._played.add(id(chosen))
        self.answers.append(chosen)
        self._arrivals.unpark_all()
        if chosen.plain:
            return _plain(chosen, wire, message)
        model = _model_in(path) if wire is gemini else decoded.get("model")
        steps = wire.render(
            chosen.parts,
            number=request.number,
            model=model if isinstance(model, str) else "unnamed",
            with_usage=wire.usage_asked(decoded),
        )
        return Playing(chosen, steps)

    def _next(self, request: Request) -> Answer:
        chosen = self._script.popleft() if self._script else self.respond
        return chosen if isinstance(chosen, Answer) else chosen(request)


def _model_in(path: str) -> str:
    """The model that a path names, as Gemini has it."""
    return unquote(path.removeprefix("/v1/models/").removesuffix(gemini.METHOD))


def _key(headers: Mapping[str, str]) -> str | None:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key if scheme == "Bearer" else headers.get("x-api-key", headers.get("x-goog-api-key"))


def _plain(chosen: Answer, wire: Wire, message: str) -> Playing:
    """The bytes of an answer without a stream; an error without a scripted body gets the protocol's error object."""
    body = b"".join(part.data for part in chosen.parts if isinstance(part, Raw))
    if not chosen.parts:
        body = wire.error_body(chosen.status, message)
    return Playing(chosen, iter([body]), len(body))


def _decode(body: bytes) -> tuple[dict[str, Any], list[str]]:
    """Decode a request's body strictly: UTF-8, JSON without NaN, an object."""
    try:
        decoded = json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        return {}, [f"body: no UTF-8 JSON ({error})"]
    if not isinstance(decoded, dict):
        return {}, ["body: must be an object"]
    return cast(dict[str, Any], decoded), []


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


@asynccontextmanager
async def open_provider(
    *script: Answer | Responder,
    respond: Responder | None = None,
    check: bool = True,
    api_key: str | None = None,
    models: Sequence[str] = ("scripted",),
) -> AsyncGenerator[Provider]:
    """Run a provider on a port of its own until the block is left; then its connections are reset.

    `check=False` lets requests of any shape through; with `api_key` others are answered 401. Leaving the block without
    an exception raises AssertionError when a request broke the protocol's rules. The block's own exceptions pass
    unwrapped; an error in the server itself (or in a responder) cancels the block and arrives as an ExceptionGroup.
    """
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    provider = Provider(f"http://127.0.0.1:{port}/v1", check=check, api_key=api_key, models=models)
    provider.script(*script)
    if respond is not None:
        provider.respond = respond
    raised: BaseException | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, provider.serve, [listener])
        try:
            yield provider
        except BaseException as error:  # (raised again below, outside the nursery, which would wrap it)
            raised = error
        nursery.cancel_scope.cancel()
    if raised is not None:
        raise raised
    assert not provider.violations, "requests broke the provider's rules:\n" + "\n".join(provider.violations)
