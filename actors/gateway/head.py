"""The request head, read once, and the plain HTTP answers of the port.

Rules (wire contract, "HTTP side"; rulings B6, F1):
- One request a connection. Its head is at most `MAX_HEAD_BYTES` and must be complete within the listener's time limit.
- A head that asks for a WebSocket is checked here; what the library above reads is a head made anew from the checked
  fields, so that nothing strange in the others ever reaches it.
- Every refusal carries one sentence that says what to do.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

import h11
import trio

from ...protocol.codec import CODECS, JSON, Codec
from ...protocol.values.value import Value

MAX_HEAD_BYTES = 16 * 1024


class HttpAnswer(Value):
    """A whole HTTP answer; the connection closes behind it."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()

    def encode(self, *, with_body: bool = True) -> bytes:
        """The bytes to send; `with_body` is false for HEAD."""
        lines = [
            f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(self.body)}",
            "Cache-Control: no-store",
            "X-Content-Type-Options: nosniff",
            "Connection: close",
            *(f"{name}: {value}" for name, value in self.headers),
        ]
        return "\r\n".join([*lines, "", ""]).encode("ascii") + (self.body if with_body else b"")


class HttpRoute(Value):
    """One readable path: what it answers, and whether only to the holder of the token (ruling B6)."""

    answer: Callable[[], HttpAnswer]
    token: bool = True


def sentence(status: int, text: str, *headers: tuple[str, str]) -> HttpAnswer:
    """An answer of one sentence."""
    return HttpAnswer(status=status, body=f"{text}\n".encode(), headers=headers)


class RefusedHeadError(Exception):
    """The head cannot be served; `answer` says why."""

    def __init__(self, answer: HttpAnswer) -> None:
        super().__init__(answer.status)
        self.answer = answer


class Head(Value):
    """A request head. Header names are lower case; `rest` is what the peer sent behind it."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    rest: bytes

    def values(self, name: str) -> list[str]:
        """All values of a header, in order."""
        return [value for key, value in self.headers if key == name]

    def tokens(self, name: str) -> list[str]:
        """The members of a comma-separated header, as they are written."""
        return [part.strip() for value in self.values(name) for part in value.split(",") if part.strip()]

    @property
    def wants_upgrade(self) -> bool:
        """Whether it asks for a WebSocket."""
        return "websocket" in map(str.lower, self.tokens("upgrade")) and "upgrade" in map(str.lower, self.tokens("connection"))


async def read_head(stream: trio.abc.ReceiveStream) -> Head | None:
    """The head of the next request; None when the peer left before it was complete.

    Raises `RefusedHeadError` for what is no HTTP/1 head, and what the stream raises. The caller bounds the time.
    """
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
    received = 0
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError as error:
            status = error.error_status_hint if error.error_status_hint in (400, 431, 501) else 400
            raise RefusedHeadError(sentence(status, f"The request head cannot be read: {error}.")) from None
        match event:
            case h11.Request():
                rest = bytes(connection.trailing_data[0])
                if received - len(rest) > MAX_HEAD_BYTES:
                    raise RefusedHeadError(sentence(431, f"A request head is at most {MAX_HEAD_BYTES} bytes."))
                return _head(event, rest)
            case h11.NEED_DATA:
                data = await stream.receive_some(MAX_HEAD_BYTES)
                if not data:
                    return None
                received += len(data)
                connection.receive_data(bytes(data))
            case _:
                return None


def _head(request: h11.Request, rest: bytes) -> Head:
    path = request.target.decode("ascii").partition("?")[0]
    headers = tuple((name.decode("ascii"), value.decode("latin-1")) for name, value in request.headers)
    return Head(method=request.method.decode("ascii"), path=path, headers=headers, rest=rest)


def choose_codec(head: Head) -> tuple[Codec, str | None]:
    """The codec of an upgrade and the subprotocol to confirm. None offered: JSON; only unknown ones: refused."""
    offered = head.tokens("sec-websocket-protocol")
    if not offered:
        return JSON, None
    for name in offered:
        if name in CODECS:
            return CODECS[name], name
    known = " and ".join(CODECS)
    raise RefusedHeadError(sentence(400, f"None of the offered WebSocket subprotocols is known here; offer {known}, or none."))


def upgrade_head(head: Head, subprotocol: str | None) -> bytes:
    """The head of a checked upgrade, written anew. Raises `RefusedHeadError` when the handshake is not one of version 13."""
    keys, versions, hosts = head.values("sec-websocket-key"), head.values("sec-websocket-version"), head.values("host")
    if versions != ["13"]:
        raise RefusedHeadError(sentence(426, "Use WebSocket version 13.", ("Sec-WebSocket-Version", "13")))
    if len(keys) != 1 or not keys[0].isascii() or not keys[0].strip():
        raise RefusedHeadError(sentence(400, "The WebSocket handshake needs one Sec-WebSocket-Key header."))
    lines = [
        "GET / HTTP/1.1",
        f"Host: {hosts[0]}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {keys[0]}",
        "Sec-WebSocket-Version: 13",
        *([] if subprotocol is None else [f"Sec-WebSocket-Protocol: {subprotocol}"]),
    ]
    return "\r\n".join([*lines, "", ""]).encode("ascii")
