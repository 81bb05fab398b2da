"""What a provider protocol has to offer, sans-IO: request out, bytes in, canonical events out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from .events import LLMEvent, ProviderFailed
from .request import HttpRequest, LLMRequest


class Decoder(Protocol):
    """Decodes one response body, fed in pieces of any size. Never raises on what a provider sends."""

    def feed(self, data: bytes) -> list[LLMEvent]:
        """The events that `data` completes, in order."""
        ...

    def close(self) -> list[LLMEvent]:
        """The body ended: open fragments are ended, and a missing explicit end becomes `ProviderFailed` (incomplete)."""
        ...


class Adapter(Protocol):
    """One provider protocol. Stateless; `protocol` is its name in configuration."""

    @property
    def protocol(self) -> str: ...

    def encode(self, request: LLMRequest) -> HttpRequest:
        """The request in the protocol's own shape."""
        ...

    def decoder(self) -> Decoder:
        """A fresh decoder for one answer."""
        ...

    def authorization(self, api_key: str) -> Mapping[str, str]:
        """The headers that carry a key."""
        ...

    def classify(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderFailed:
        """What an answer other than 200 means. Header names are lower-case; bodies are cut and secrets redacted."""
        ...
