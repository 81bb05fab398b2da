"""The way to providers where the environment names a proxy: httpx2's client and its pools.

Rules:
- Which requests take which proxy, and how, is httpx2's. No limit of connections (ruling E3), no time-outs of its own, no
  cookies, no redirects.
- The libraries' loggers tell the steps of an exchange, and nothing that a peer said or that a proxy is told: either may be
  a credential, or repeat one.
"""

from __future__ import annotations

import logging
import re
import ssl
from collections.abc import Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Final

import httpx2
import trio

from .network import DEFAULT_HEADERS, KEEPALIVE_CONNECTIONS, KEEPALIVE_SECONDS, Answer, Place

_LOGGERS: Final = (
    "httpcore2.connection",
    "httpcore2.http11",
    "httpcore2.http2",
    "httpcore2.proxy",
    "httpcore2.socks",
    "httpx2",
)
_TOLD: Final = re.compile(r"(?:host|port)=\S+")


class ProxiedNetwork:
    """Sends requests as the environment wants them sent."""

    def __init__(self, authorities: ssl.SSLContext) -> None:
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(_discreet)  # the same one again changes nothing
        self._client = httpx2.AsyncClient(
            verify=authorities,
            headers=DEFAULT_HEADERS,
            limits=httpx2.Limits(
                max_connections=None,
                max_keepalive_connections=KEEPALIVE_CONNECTIONS,
                keepalive_expiry=KEEPALIVE_SECONDS,
            ),
            timeout=httpx2.Timeout(None),
            follow_redirects=False,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
            trust_env=True,
        )

    async def post(self, place: Place, headers: Mapping[str, str], body: bytes, *, connect: float) -> Answer:
        """See `Network.post`."""
        outgoing = self._client.build_request("POST", place.url, headers=headers, content=body)
        outgoing.extensions["timeout"] = {"connect": connect}
        return _ProxiedAnswer(await self._client.send(outgoing, stream=True))

    async def aclose(self) -> None:
        """See `Network.aclose`."""
        await self._client.aclose()


class _ProxiedAnswer:
    """One answer as httpx2 has it."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response
        self._pieces = response.aiter_raw()
        self.status = response.status_code
        self.headers = {name.lower(): value for name, value in response.headers.items()}

    async def read(self) -> bytes:
        """See `Answer.read`."""
        async for piece in self._pieces:
            if piece:
                return piece
        return b""

    async def aclose(self) -> None:
        """See `Answer.aclose`."""
        with trio.CancelScope(shield=True):
            # Reading under a passed deadline is cancelled inside, and that unwinds the generators of the layers below.
            with trio.move_on_after(0):
                try:
                    async for _ in self._pieces:
                        pass
                except (httpx2.HTTPError, httpx2.StreamError):
                    pass  # the connection is gone, and nothing was left to hear
            await self._pieces.aclose()
            await self._response.aclose()


def _discreet(record: logging.LogRecord) -> bool:
    """Cut a line of the libraries to what they did themselves, and with whom."""
    if record.name == "httpx2":
        if isinstance(record.args, tuple) and len(record.args) == 5:  # method, URL, version, status, and the peer's words
            record.args = (*record.args[:4], "")
    else:
        step, _, details = record.getMessage().partition(" ")
        record.msg, record.args = " ".join([step, *_TOLD.findall(details.partition(" return_value=")[0])]), None
        record.exc_info = None
    return True
