"""What a provider protocol has to offer, sans-IO: request out, bytes in, canonical events out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from .events import LLMEvent, ProviderFailed
from .request import HttpRequest, LLMRequest, RequestMessage


class Conversation(Protocol):
    """The messages of requests that grow, written once: a request costs what is new in it, and a copy of the bytes.

    One for each conversation, model and adapter; not for two tasks at once. What surrounds the messages may differ from
    request to request.
    """

    def extend(self, messages: Sequence[RequestMessage]) -> None:
        """Write what is new. `messages` are all of them, as `invariants` allows them.

        They begin with those of every earlier call, which is told by their number and by the identity of the last one
        that is known; anything else begins anew.
        """
        ...

    def write(self, request: LLMRequest) -> HttpRequest:
        """`extend` by the request's messages, then the whole request around them.

        The bytes are those of `Adapter.encode`, in however many steps they came. The same request gives the same bytes.
        """
        ...


class Decoder(Protocol):
    """Decodes one response body, fed in pieces of any size. Never raises on what a provider sends.

    `steps` grows with what brings the answer on without an event; signs of life alone leave it as it is.
    """

    @property
    def steps(self) -> int: ...

    def feed(self, data: bytes) -> list[LLMEvent]:
        """The events that `data` completes, in order."""
        ...

    def close(self) -> list[LLMEvent]:
        """The body ended: open fragments are ended, and a missing explicit end becomes `ProviderFailed` (incomplete)."""
        ...


class Reception(Protocol):
    """What a written request still takes of its protocol: its credentials, and the reading of its answer."""

    @property
    def protocol(self) -> str: ...

    def decoder(self) -> Decoder:
        """A fresh decoder for one answer."""
        ...

    def authorization(self, api_key: str) -> Mapping[str, str]:
        """The headers that carry a key."""
        ...

    def classify(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderFailed:
        """What an answer other than 200 means. Header names are lower-case; bodies are cut and secrets redacted."""
        ...


class Adapter(Reception, Protocol):
    """One provider protocol. Stateless; `protocol` is its name in configuration."""

    def encode(self, request: LLMRequest) -> HttpRequest:
        """The request in the protocol's own shape: `conversation().write(request)`."""
        ...

    def conversation(self) -> Conversation:
        """What writes the requests of one conversation."""
        ...
