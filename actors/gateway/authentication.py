"""Who may speak: token, Host and Origin (wire contract, "Who may speak"; ruling B6).

Rules:
- A token is always required. It comes as `Authorization: Bearer` or in `rpc.authenticate`, never in a URL, and is compared
  in constant time.
- The Host must be a name or address the server is bound to, or a listed one; an Origin, if sent, must be the server's own or
  a listed one. So a page of another site, or a name that was bent to our address, cannot speak through a browser.
- A wrong Host is 421, a wrong Origin 403, a wrong token 401, each with a sentence that says what to configure.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Sequence

from .head import Head, HttpAnswer, sentence


class Doorkeeper:
    """Knows the token, the names of this server and the origins it serves."""

    def __init__(
        self, token: str, *, bound: Sequence[str], hosts: Sequence[str] = (), origins: Sequence[str] = (), secure: bool = False
    ) -> None:
        """`bound` are the names and addresses the server is bound to, `hosts` and `origins` the listed ones.

        Raises `ValueError` when the token is empty.
        """
        if not token:
            raise ValueError("A gateway needs a token, on loopback too.")
        self._token = _digest(token)
        self._names = {_name(host) for host in (*bound, *hosts)}
        if any(_is_loopback(name) for name in self._names):
            self._names.add("localhost")
        self._origins = {_origin(origin) for origin in origins}
        self._scheme = "https" if secure else "http"

    def accepts(self, token: str) -> bool:
        """Whether this is the token. Takes the same time for every wrong one."""
        return hmac.compare_digest(_digest(token), self._token)

    def refusal(self, head: Head, local: str) -> HttpAnswer | None:
        """What is wrong with the Host or the Origin of a head that came in at the address `local`, if anything."""
        hosts = head.values("host")
        names = {*self._names, _name(local)} | ({"localhost"} if _is_loopback(_name(local)) else set[str]())
        if len(hosts) != 1 or not hosts[0].isascii() or _name(hosts[0]) not in names:
            return sentence(
                421, "This server is not known by the name in the Host header; add it to [gateway] hosts to be reached by it."
            )
        origins = head.values("origin")
        own = _origin(f"{self._scheme}://{hosts[0]}")
        if any(_origin(origin) not in (own, *self._origins) for origin in origins):
            return sentence(403, "Pages of this Origin may not speak here; add it to [gateway] origins to let them.")
        return None

    def credentials(self, head: Head) -> bool | None:
        """Whether the head proves the token; None when it does not try to."""
        given = head.values("authorization")
        if not given:
            return None
        scheme, _, token = given[0].strip().partition(" ")
        return len(given) == 1 and scheme.lower() == "bearer" and self.accepts(token.strip())


def unauthorized() -> HttpAnswer:
    """The refusal of a missing or wrong token."""
    return sentence(
        401,
        "Send the token of this server as `Authorization: Bearer ...`; it is in the server's token file.",
        ("WWW-Authenticate", 'Bearer realm="steerway"'),
    )


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()


def _name(host: str) -> str:
    """A Host header or address without its port, brackets and zone, in lower case."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0].partition("%")[0]
    if host.count(":") == 1:
        host = host.partition(":")[0]
    return host.partition("%")[0].removesuffix(".")


def _origin(origin: str) -> str:
    """An origin without the default port, in lower case."""
    origin = origin.strip().lower().rstrip("/")
    match origin.partition("://"):
        case ("http", _, rest):
            return f"http://{rest.removesuffix(':80')}"
        case ("https", _, rest):
            return f"https://{rest.removesuffix(':443')}"
        case _:
            return origin


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"
