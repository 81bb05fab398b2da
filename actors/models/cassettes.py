"""Cassettes: provider traffic kept in files, and played again without a network.

Rules:
- `STEERWAY_RECORD=folder` keeps each exchange whose answer began as one JSON file: the request (path, headers, body), the
  status, and the body of the answer in the pieces it arrived in. `STEERWAY_REPLAY=folder` answers from such files and sends
  nothing.
- What carries a credential is not kept at all: the headers of key and configuration never come here. Where a credential is
  repeated in a body, on either way, as many asterisks take its place, so that the pieces stay as long as they were. Prompts
  and answers are kept as they are; files are their owner's alone.
- Recording stands outside the transport, around the protocol's adapter, and never disturbs a turn: a file that cannot be
  written is a line in the log. Files are small and written where the exchange ends, also when it is cancelled.
- A cassette answers one request, the one with the same path and body; of several like it, in the order of their recording.
  The prompt cache key is not compared: it stands for a session, and every run makes new ones. A request that no cassette
  answers fails without a route.
- Pauses between pieces are not kept. A recorded body without an explicit end was cut, and is so again.
"""

from __future__ import annotations

import os
import re
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Final, Protocol, cast

import msgspec
import trio
from msgspec import Struct

from ...protocol.llm.adapter import Decoder, Reception
from ...protocol.llm.events import Finished, LLMEvent, ProviderFailed
from ...protocol.llm.request import HttpRequest
from ...protocol.values.failure import PROVIDER_NO_ROUTE, Failure
from ..configuration import ConfigurationError
from ..logs import Logger
from .catalog import ModelInfo
from .transport import credentials

RECORD: Final = "STEERWAY_RECORD"
REPLAY: Final = "STEERWAY_REPLAY"

_KEPT_HEADERS: Final = re.compile(r"content-type|retry-after(-ms)?|x-should-retry|(x|anthropic)-ratelimit-.*")
"""Headers of a refusal that say what it means; others may tell who was refused."""
_UNCOMPARED: Final = ("prompt_cache_key",)

_log = Logger("steerway.cassettes")


class Sent(Struct, frozen=True):
    """The request, without what the transport adds to it. `body` is JSON."""

    path: str
    headers: dict[str, str]
    body: Any


class Received(Struct, frozen=True):
    """The answer. A piece is its text, or `{base64}` where it is cut inside a character."""

    status: int
    headers: dict[str, str]
    pieces: list[str | dict[str, str]]


class Cassette(Struct, frozen=True):
    """One exchange, as it stands in its file."""

    protocol: str
    model: str
    request: Sent
    response: Received


class Opener(Protocol):
    """The transport, or what stands in its place."""

    def open(
        self, info: ModelInfo, adapter: Reception, request: HttpRequest
    ) -> AbstractAsyncContextManager[AsyncIterator[list[LLMEvent]]]: ...

    async def aclose(self) -> None: ...


# --- recording --------------------------------------------------------------------------------------------------------


class Recorder:
    """A transport that keeps what passes through another one in a folder, which is made when it is first needed."""

    def __init__(self, transport: Opener, folder: Path) -> None:
        self._transport = transport
        self._folder = folder

    @asynccontextmanager
    async def open(
        self, info: ModelInfo, adapter: Reception, request: HttpRequest
    ) -> AsyncGenerator[AsyncIterator[list[LLMEvent]]]:
        """As the transport does."""
        tape = _Tape(adapter, request)
        try:
            async with self._transport.open(info, tape, request) as batches:
                yield batches
        finally:
            if (cassette := tape.cassette(info)) is not None:
                self._keep(cassette, f"{info.ref.provider}-{info.ref.id}")

    async def aclose(self) -> None:
        """Close the transport."""
        await self._transport.aclose()

    def _keep(self, cassette: Cassette, name: str) -> None:
        content = msgspec.json.format(msgspec.json.encode(cassette), indent=1) + b"\n"
        name = re.sub(r"[^A-Za-z0-9.-]+", "-", name)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            number = 1 + max((_number(path) for path in self._folder.glob("*.json")), default=0)
            while True:
                path = self._folder / f"{number:04d}-{name}.json"
                try:
                    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                    break
                except FileExistsError:  # another process records here too
                    number += 1
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
        except OSError as error:
            _log.warning("an exchange could not be recorded", folder=str(self._folder), reason=error.strerror)


class _Tape:
    """An adapter that remembers what passes through another one, beside the request it answers. Used once."""

    def __init__(self, adapter: Reception, request: HttpRequest) -> None:
        self._adapter = adapter
        self._request = request
        self._status = 0
        self._headers: dict[str, str] = {}
        self._pieces: list[bytes] = []

    @property
    def protocol(self) -> str:
        return self._adapter.protocol

    def decoder(self) -> Decoder:
        return _TapedDecoder(self._adapter.decoder(), self)

    def authorization(self, api_key: str) -> Mapping[str, str]:
        return self._adapter.authorization(api_key)

    def classify(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderFailed:
        self._status, self._pieces = status, [body]
        self._headers = {name: value for name, value in headers.items() if _KEPT_HEADERS.fullmatch(name)}
        return self._adapter.classify(status, headers, body)

    def heard(self, piece: bytes) -> None:
        """A piece of an answer that is no refusal."""
        self._status = 200
        self._pieces.append(bytes(piece))

    def cassette(self, info: ModelInfo) -> Cassette | None:
        """What was heard; None when no answer began."""
        if not self._status:
            return None
        secrets = tuple(credentials(info))
        pieces = _without(self._pieces, secrets)
        (body,) = _without([self._request.body], secrets)
        return Cassette(
            protocol=self.protocol,
            model=info.api_model,
            request=Sent(self._request.path, dict(self._request.headers), msgspec.json.decode(body)),
            response=Received(self._status, self._headers, [_written(piece) for piece in pieces]),
        )


class _TapedDecoder:
    def __init__(self, decoder: Decoder, tape: _Tape) -> None:
        self._decoder = decoder
        self._tape = tape

    @property
    def steps(self) -> int:
        return self._decoder.steps

    def feed(self, data: bytes) -> list[LLMEvent]:
        self._tape.heard(data)
        return self._decoder.feed(data)

    def close(self) -> list[LLMEvent]:
        return self._decoder.close()


def _number(path: Path) -> int:
    number = path.name.partition("-")[0]
    return int(number) if number.isascii() and number.isdigit() else 0


def _without(pieces: Iterable[bytes], secrets: Iterable[str]) -> list[bytes]:
    """The pieces with asterisks for every secret, also for one that a cut divides.

    A secret of digits alone gives way to digits, because it may be a number of the JSON that it stands in.
    """
    pieces = list(pieces)
    whole = b"".join(pieces)
    for secret in secrets:
        for spelling in (secret.encode(), msgspec.json.encode(secret)[1:-1]):
            whole = whole.replace(spelling, (b"1" if spelling.isdigit() else b"*") * len(spelling))
    clean: list[bytes] = []
    begin = 0
    for piece in pieces:
        clean.append(whole[begin : begin + len(piece)])
        begin += len(piece)
    return clean


def _written(piece: bytes) -> str | dict[str, str]:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(piece).decode()}


# --- playing ----------------------------------------------------------------------------------------------------------


class Player:
    """A transport that answers from the cassettes of a folder, each of them once. Raises `ConfigurationError` when one
    cannot be read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._left = [_read(path) for path in sorted(folder.glob("*.json"), key=lambda path: (_number(path), path.name))]

    @property
    def unplayed(self) -> int:
        """How many cassettes answered nothing yet."""
        return len(self._left)

    @asynccontextmanager
    async def open(
        self, info: ModelInfo, adapter: Reception, request: HttpRequest
    ) -> AsyncGenerator[AsyncIterator[list[LLMEvent]]]:
        """The events of the recorded answer, in batches as it arrived then."""
        playing = self._play(info, adapter, request)
        try:
            yield playing
        finally:
            await playing.aclose()

    async def aclose(self) -> None:
        """Nothing is open."""

    async def _play(self, info: ModelInfo, adapter: Reception, request: HttpRequest) -> AsyncGenerator[list[LLMEvent], None]:
        await trio.lowlevel.checkpoint()
        (body,) = _without([request.body], credentials(info))
        cassette = self._take(adapter.protocol, request.path, _compared(msgspec.json.decode(body)))
        if cassette is None:
            message = f"No cassette in {self._folder} answers this request to {info.ref}."
            yield [ProviderFailed(failure=Failure(type=PROVIDER_NO_ROUTE, message=message))]
            return
        received = cassette.response
        pieces = [piece.encode() if isinstance(piece, str) else b64decode(piece["base64"]) for piece in received.pieces]
        if received.status != 200:
            yield [adapter.classify(received.status, received.headers, b"".join(pieces))]
            return
        decoder = adapter.decoder()
        for piece in pieces:
            if events := decoder.feed(piece):
                yield events
                if isinstance(events[-1], Finished | ProviderFailed):
                    return
            await trio.lowlevel.checkpoint()
        if events := decoder.close():
            yield events

    def _take(self, protocol: str, path: str, body: Any) -> Cassette | None:
        for place, cassette in enumerate(self._left):
            asked = cassette.request
            if (cassette.protocol, asked.path, _compared(asked.body)) == (protocol, path, body):
                return self._left.pop(place)
        return None


def _read(path: Path) -> Cassette:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Cassette)
    except (OSError, msgspec.DecodeError) as error:
        message = f"{path} cannot be played: {error}."
        raise ConfigurationError(message, source=f"environment {REPLAY}", key=REPLAY) from None


def _compared(body: Any) -> Any:
    if not isinstance(body, dict):
        return body
    return {name: value for name, value in cast("dict[str, Any]", body).items() if name not in _UNCOMPARED}
