"""The way to HTTP providers: one shared client, every time-out ours, every failure an event.

Rules:
- One client for all requests (`network`), made when the first one is sent, without a limit of connections (ruling E3).
  Proxies and certificate authorities come from the environment, as httpx2 reads it. Cookies are not kept, redirects not
  followed: neither may carry a credential to a place that nobody named.
- A body is read as it arrives, and each piece is decoded at once. Compression is not asked for; gzip is undone where a
  server insists on it (not by httpx2: its decoding iterator leaves generators behind when a body is no gzip).
- What goes wrong at the provider or on the way is the last event of the stream. Only cancellation passes; it closes the
  connection at once. So does a consumer that leaves early.
- A body has to bring the answer on: signs of life alone (comments, pings, empty deltas) keep it up for `stalled` seconds.
  What counts is the time that is spent waiting, not what a slow consumer takes.
- After the explicit end the rest of the body is read for a moment, so that the connection can be used again. Nobody is
  interrupted by that any more: an answer that has ended stays whole.
- The key, and what else of the headers may be a credential, is removed from everything a failure says. Texts of
  exceptions are not repeated where they could quote a header. A defect takes no locals along: some loggers show them.
"""

from __future__ import annotations

import math
import ssl
import traceback
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import trio
from msgspec import structs

from ...protocol.llm.adapter import Decoder, Reception
from ...protocol.llm.events import Finished, LLMEvent, ProviderFailed
from ...protocol.llm.request import HttpRequest
from ...protocol.values.failure import PROVIDER_INVALID_OUTPUT, PROVIDER_NO_ROUTE, PROVIDER_TRANSPORT, Failure
from .catalog import ModelInfo

if TYPE_CHECKING:
    from .network import Answer, Network

MAX_ERROR_BODY: Final = 64 * 1024
"""Bytes that are read of an answer which is an error."""
ERROR_SECONDS: Final = 10.0
"""How long the rest of an answer that is an error is waited for: its status says most of it."""
DRAIN_SECONDS: Final = 0.1
"""How long the end of a body is waited for once the protocol's own end has come: about what a new connection would cost."""
MAX_INFLATED: Final = 16 * 1024 * 1024
"""Bytes that one piece of a compressed body may become."""

_REDIRECTS: Final = (301, 302, 303, 307, 308)
_ZIPPED: Final = ("gzip", "x-gzip", "deflate")
_ANY_HEADER: Final = 32 + zlib.MAX_WBITS
_MIN_SECRET: Final = 6
"""Shorter values are words of the language rather than credentials; replacing them would only garble sentences."""
_REDACTED: Final = "[redacted]"


class Transport:
    """Sends requests for all models of a runtime. `trust_env`: take proxies and authorities from the environment."""

    def __init__(self, *, trust_env: bool = True) -> None:
        self._trust_env = trust_env
        self._network: Network | None = None

    @asynccontextmanager
    async def open(
        self, info: ModelInfo, adapter: Reception, request: HttpRequest
    ) -> AsyncGenerator[AsyncIterator[list[LLMEvent]]]:
        """The events of one answer, in batches as they arrive. The request leaves when the first batch is asked for."""
        exchange = _Exchange(self._shared(), info, adapter, request)
        try:
            yield exchange
        finally:
            await exchange.aclose()

    async def aclose(self) -> None:
        """Close all connections. A later request opens new ones."""
        network, self._network = self._network, None
        if network is not None:
            await network.aclose()

    def _shared(self) -> Network:
        if self._network is None:
            # Here, because a runtime that asks no provider needs none of their memory.
            from .network import open_network

            self._network = open_network(trust_env=self._trust_env)
        return self._network


class _Exchange:
    """One request and its answer."""

    def __init__(self, network: Network, info: ModelInfo, adapter: Reception, request: HttpRequest) -> None:
        self._network = network
        self._info = info
        self._adapter = adapter
        self._request = request
        self._origin = info.base_url
        self._secrets = tuple(credentials(info))
        self._decoder: Decoder = adapter.decoder()
        self._answer: Answer | None = None
        self._plain: Callable[[bytes], bytes] = bytes
        self._begun = False
        self._quiet = 0.0
        """Seconds that were waited, within the body, since the answer last went on."""
        self._steps: int = 0
        self._deadline = float("inf")
        self._over = False
        self._complete = False

    def __aiter__(self) -> _Exchange:
        return self

    async def __anext__(self) -> list[LLMEvent]:
        while not self._over:
            events = await self._advance()
            if events:
                match events[-1]:
                    case Finished():
                        self._over = self._complete = True
                    case ProviderFailed() as failed:
                        self._over = True
                        events[-1] = self._redacted(failed)
                    case _:
                        pass
                return events
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Give the connection back: after the protocol's end by reading the body's, else by closing it at once.

        After the end it is not cancelled any more; where it was already, nothing is waited for.
        """
        waits = self._complete and trio.current_effective_deadline() != -math.inf
        with trio.CancelScope(shield=self._complete):
            if self._answer is None:
                return
            if waits:
                import httpx2

                with trio.move_on_after(DRAIN_SECONDS):
                    try:
                        while await self._answer.read():
                            pass
                    except (httpx2.HTTPError, httpx2.StreamError):
                        pass  # the connection is gone, and nothing was left to hear
            await self._answer.aclose()

    async def _advance(self) -> list[LLMEvent]:
        """Send, or read the next piece: what that gave."""
        import httpx2

        timeouts, now = self._info.timeouts, trio.current_time()
        if self._answer is None:
            self._deadline = now + timeouts.first_byte
        elif self._begun:
            self._deadline = now + min(timeouts.idle, timeouts.stalled - self._quiet)
        try:
            with trio.CancelScope(deadline=self._deadline) as scope:
                if self._answer is None:
                    return await self._send()
                if piece := await self._answer.read():
                    events = self._decoder.feed(self._plain(piece))
                    if events or self._decoder.steps != self._steps:
                        self._quiet, self._steps = 0.0, self._decoder.steps
                    elif self._begun:
                        self._quiet += trio.current_time() - now
                    self._begun = True
                    return events
        except zlib.error:
            return self._ended_by(_failed(PROVIDER_INVALID_OUTPUT, f"{self._origin} sent what cannot be decompressed."))
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            self._over = True
            return [self._unreached(error)] if self._answer is None else self._decoder.close()
        except Exception as defect:
            _forget_locals(defect)
            raise
        self._over = True
        return self._ended_by(self._silence()) if scope.cancelled_caught else self._decoder.close()

    async def _send(self) -> list[LLMEvent]:
        """Send the request. Nothing when a stream has begun, else the failure."""
        import httpx2

        from .network import locate

        http = self._request
        headers = {"accept-encoding": "identity"}
        headers.update({name.lower(): value for name, value in http.headers.items()})
        if self._info.api_key is not None:
            authorization = self._adapter.authorization(self._info.api_key.reveal())
            headers.update({name.lower(): value for name, value in authorization.items()})
        headers.update(self._info.headers)
        url = f"{self._info.base_url.rstrip('/')}/{http.path.lstrip('/')}"
        try:
            place = locate(url)
            self._origin = place.origin
            answer = await self._network.post(place, headers, http.body, connect=self._info.timeouts.connect)
        except (httpx2.InvalidURL, UnicodeError):
            return [self._no_http()]
        self._answer = answer
        encoding = answer.headers.get("content-encoding", "identity").strip().lower()
        if encoding in _ZIPPED:
            self._plain = _inflater()
        elif encoding not in ("", "identity"):
            if _is_success(answer):
                message = f"{self._origin} compresses its answer as {encoding[:40]}, which was not asked for."
                return [_failed(PROVIDER_INVALID_OUTPUT, message)]
            self._plain = lambda _: b""  # the status has to say it all
        if _is_success(answer):
            return []
        if answer.status in _REDIRECTS and "location" in answer.headers:
            message = f"{self._origin} redirects (HTTP {answer.status}); set base_url to where it leads."
            return [_failed(PROVIDER_NO_ROUTE, message)]
        return [await self._refused(answer)]

    async def _refused(self, answer: Answer) -> ProviderFailed:
        """What an answer that is an error means, with as much of its body as arrives in time."""
        import httpx2

        body = bytearray()
        with trio.move_on_at(min(self._deadline, trio.current_time() + ERROR_SECONDS)):
            try:
                while piece := await answer.read():
                    body += self._plain(piece)
                    if len(body) >= MAX_ERROR_BODY:
                        break
            except (httpx2.HTTPError, zlib.error):
                pass  # the status says most of it
        said = bytes(body)
        for secret in self._secrets:  # before anything is cut, so that no half of one stays
            said = said.replace(secret.encode(), _REDACTED.encode())
        said = said[:MAX_ERROR_BODY]
        return self._adapter.classify(answer.status, answer.headers, said)

    def _silence(self) -> ProviderFailed:
        """A time-out passed: which."""
        timeouts = self._info.timeouts
        if not self._begun:
            message = f"{self._origin} began no answer within {timeouts.first_byte:g} s."
        elif timeouts.stalled - self._quiet <= timeouts.idle:
            message = f"{self._origin} was there for {timeouts.stalled:g} s, but did not go on with its answer."
        else:
            message = f"{self._origin} sent nothing for {timeouts.idle:g} s in the middle of its answer."
        return _failed(PROVIDER_TRANSPORT, message, retryable=True)

    def _ended_by(self, failed: ProviderFailed) -> list[LLMEvent]:
        """What had begun is ended by the decoder, for this reason unless it was complete."""
        self._over = True
        if self._answer is None:
            return [failed]
        events = self._decoder.close()
        if events and isinstance(last := events[-1], ProviderFailed):
            events[-1] = structs.replace(failed, tokens=last.tokens)
        return events

    def _unreached(self, error: Exception) -> ProviderFailed:
        import httpx2

        origin = self._origin
        match error:
            case httpx2.ConnectTimeout():
                message = f"No connection to {origin} within {self._info.timeouts.connect:g} s."
            case httpx2.ConnectError() if (refused := _cause(error, ssl.SSLCertVerificationError)) is not None:
                message = f"The certificate of {origin} is not trusted: {refused.verify_message}."
                return _failed(PROVIDER_TRANSPORT, message)
            case httpx2.ConnectError():
                reason = _cause(error, OSError)
                message = f"No connection to {origin}: {(reason and reason.strerror) or 'it could not be reached'}."
            case httpx2.ProxyError():
                message = f"The proxy gave no connection to {origin}."
            case httpx2.UnsupportedProtocol() | httpx2.LocalProtocolError():
                return self._no_http()
            case _:
                message = f"The connection to {origin} broke before an answer."
        return _failed(PROVIDER_TRANSPORT, message, retryable=True)

    def _no_http(self) -> ProviderFailed:
        message = f"The request to {self._origin} is no valid HTTP; look at base_url, headers and key."
        return _failed(PROVIDER_NO_ROUTE, message)

    def _redacted(self, event: ProviderFailed) -> ProviderFailed:
        failure = event.failure
        clean = Failure(type=failure.type, message=self._clean(failure.message), fields=self._clean(failure.fields))
        return structs.replace(event, failure=clean)

    def _clean(self, value: Any) -> Any:
        match value:
            case str():
                for secret in self._secrets:
                    value = _without_beginning(value.replace(secret, _REDACTED), secret)
                return value
            case dict():
                return {name: self._clean(inner) for name, inner in cast("dict[str, Any]", value).items()}
            case list() | tuple():
                return [self._clean(inner) for inner in cast("list[Any]", value)]
            case _:
                return value


def _is_success(answer: Answer) -> bool:
    return 200 <= answer.status < 300


def _inflater() -> Callable[[bytes], bytes]:
    """Undoes the compression of one body, piece by piece, of however many members it is. Raises zlib.error."""
    inflater = zlib.decompressobj(_ANY_HEADER)

    def inflate(piece: bytes) -> bytes:
        nonlocal inflater
        plain = b""
        while piece:
            if inflater.eof:
                piece = piece.lstrip(b"\0")  # padding behind the last member
                inflater = zlib.decompressobj(_ANY_HEADER)
                if not piece:
                    break
            plain += inflater.decompress(piece, MAX_INFLATED - len(plain) + 1)
            if len(plain) > MAX_INFLATED:
                raise zlib.error("a piece of the body inflates beyond all measure")
            piece = inflater.unused_data
        return plain

    return inflate


def _forget_locals(defect: BaseException) -> None:
    """Empty the frames that an exception has left behind, and those of the exceptions behind it."""
    waiting: list[BaseException | None] = [defect]
    seen = set[int]()
    while waiting:
        error = waiting.pop()
        if error is not None and id(error) not in seen:
            seen.add(id(error))
            traceback.clear_frames(error.__traceback__)
            waiting += (error.__cause__, error.__context__)
            if isinstance(error, BaseExceptionGroup):
                waiting += cast("BaseExceptionGroup[BaseException]", error).exceptions


def _without_beginning(text: str, secret: str) -> str:
    """The text without the beginning of a secret that it was cut in, if it ends in one."""
    stem = text.removesuffix("…")
    for length in range(len(secret) - 1, _MIN_SECRET - 1, -1):
        if stem.endswith(secret[:length]):
            return f"{stem[:-length]}{_REDACTED}"
    return text


def credentials(info: ModelInfo) -> Iterator[str]:
    """What no failure may repeat: the key, and header values whole and without their scheme."""
    key = () if info.api_key is None else (info.api_key.reveal(),)
    for value in (*key, *info.headers.values()):
        for part in (value, value.rpartition(" ")[2]):
            if len(part) >= _MIN_SECRET:
                yield part


def _failed(type: str, message: str, *, retryable: bool = False) -> ProviderFailed:
    return ProviderFailed(failure=Failure(type=type, message=message), retryable=retryable)


E = TypeVar("E", bound=BaseException)


def _cause(error: BaseException | None, kind: type[E]) -> E | None:
    """The first of the errors behind this one that is of the kind."""
    while error is not None and not isinstance(error, kind):
        error = error.__cause__ or error.__context__
    return error
