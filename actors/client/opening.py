"""`connect`: a client of a server, for the length of a block.

Rules:
- The block's own exception passes unwrapped, however many of these are nested; no exception group comes out (ruling D1).
- Nothing reconnects by itself. Without a url, every opening asks the state folder anew where the local server is.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import trio

from ...protocol.codec import MSGPACK
from .client import Client
from .local import read_local
from .scope import Background
from .transport import Opener, Transport


@asynccontextmanager
async def connect(
    url: str | None = None,
    *,
    token: str | None = None,
    transport: Opener | None = None,
    subprotocol: str = MSGPACK.subprotocol,
    ssl_context: ssl.SSLContext | None = None,
) -> AsyncGenerator[Client]:
    """A client of the server at `url` (`ws://` or `wss://`), or of the local one, whose address the state folder holds.

    `transport` opens the connection in place of the WebSocket, for recording, proxies and tests. Raises `ClientError`:
    `transport`, `timeout` (10 s), `refused` with `status` and the server's sentence, `unsupported_subprotocol`; and
    `ValueError` for a url that cannot be one. When the block ends, open calls and streams end with `ClientError` `closed`.
    """
    if transport is not None:
        opener = transport
    elif url is not None:
        opener = _websocket_opener(url, token, subprotocol, ssl_context)
    else:
        opener = _local_opener(token, subprotocol, ssl_context)
    async with Background() as nursery:
        opened = await opener(nursery)
        client = Client(opened, opened.codec, nursery, opener=opener)
        try:
            yield client
        finally:
            await client.aclose()


def _local_opener(token: str | None, subprotocol: str, ssl_context: ssl.SSLContext | None) -> Opener:
    async def open_local(nursery: trio.Nursery) -> Transport:
        url, found = await trio.to_thread.run_sync(read_local)
        opener = _websocket_opener(url, token or found, subprotocol, ssl_context)
        return await opener(nursery)

    return open_local


def _websocket_opener(url: str, token: str | None, subprotocol: str, ssl_context: ssl.SSLContext | None) -> Opener:
    # Here, because the runtime is a client too, and needs no WebSocket to talk to itself.
    from .websocket import websocket_opener

    return websocket_opener(url, token=token, subprotocol=subprotocol, ssl_context=ssl_context)
