"""The models of a runtime: what can be asked, and the asking itself.

Rules:
- A stream is a context manager: leaving it, or being cancelled in it, lets go of the provider at once.
- Whatever a provider or the way to it does wrong arrives as `ProviderFailed`, the last event; the iterator raises nothing
  but cancellation. Retrying is the turn's decision.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from pathlib import Path
from typing import Final

from ...protocol.llm.adapter import Adapter, Conversation
from ...protocol.llm.anthropic_messages import AnthropicMessagesAdapter
from ...protocol.llm.events import LLMEvent
from ...protocol.llm.gemini import GeminiAdapter
from ...protocol.llm.openai_chat import OpenAIChatAdapter
from ...protocol.llm.openai_responses import OpenAIResponsesAdapter
from ...protocol.llm.request import LLMRequest
from ...protocol.values.model import CatalogModel, ModelRef
from ..configuration import Configuration
from . import prices
from .cassettes import RECORD, REPLAY, Opener, Player, Recorder
from .catalog import DEMO_PROTOCOL, Catalog, ModelInfo
from .demo import play
from .request import prepare
from .transport import Transport

Batches = AsyncIterator[list[LLMEvent]]
"""Canonical events in order, in non-empty batches as they arrive."""

_ADAPTERS: Final[tuple[Adapter, ...]] = (
    OpenAIChatAdapter(),
    OpenAIResponsesAdapter(),
    AnthropicMessagesAdapter(),
    GeminiAdapter(),
)


class Models:
    """Resolves models and asks them, all through one shared HTTP client. Close it when no stream is open any more.

    `environ` holds the keys that the configuration names, and may name folders of cassettes. `trust_env`: proxies and
    certificate authorities come from the process's environment. Raises `ConfigurationError`.
    """

    def __init__(self, configuration: Configuration, environ: Mapping[str, str], *, trust_env: bool = True) -> None:
        self._catalog = Catalog(configuration, environ)
        for provider in configuration.providers.values():
            prices.load(provider.base_url)
        self._transport = _transport(environ, trust_env=trust_env)
        self._adapters = {adapter.protocol: adapter for adapter in _ADAPTERS}

    def resolve(self, ref: ModelRef | None) -> ModelInfo:
        """As `Catalog.resolve`: the named model or the default, or a typed error."""
        return self._catalog.resolve(ref)

    def fallback(self, tried: Collection[ModelRef]) -> ModelRef | None:
        """As `Catalog.fallback`: the next model to ask instead of overloaded ones."""
        return self._catalog.fallback(tried)

    def parse(self, text: str) -> ModelRef:
        """As `Catalog.parse`: the reference that `provider/model[:variant]` stands for."""
        return self._catalog.parse(text)

    def list(self) -> tuple[ModelInfo, ...]:
        """All listed models that can be asked now."""
        return self._catalog.list()

    def describe(self) -> tuple[CatalogModel, ...]:
        """The same models, as a client is told of them."""
        return self._catalog.describe()

    def conversation(self, info: ModelInfo) -> Conversation | None:
        """What writes the requests of one conversation with the model, each message once; None where nothing is sent."""
        return None if info.protocol == DEMO_PROTOCOL else self._adapters[info.protocol].conversation()

    def stream(
        self, info: ModelInfo, request: LLMRequest, conversation: Conversation | None = None
    ) -> AbstractAsyncContextManager[Batches]:
        """The answer to one request. It is written here, and leaves when the first batch is asked for, never before.

        `conversation`: one made for this model, which has written the beginning of the request's messages already.
        """
        prepared = prepare(info, request)
        if info.protocol == DEMO_PROTOCOL:
            return aclosing(play(prepared))
        adapter = self._adapters[info.protocol]
        return self._transport.open(info, adapter, (conversation or adapter.conversation()).write(prepared))

    async def aclose(self) -> None:
        """Close the provider connections."""
        await self._transport.aclose()

    async def __aenter__(self) -> Models:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


def _transport(environ: Mapping[str, str], *, trust_env: bool) -> Opener:
    """The network, unless cassettes are played; their folders are taken from the environment."""
    if replay := environ.get(REPLAY):
        return Player(Path(replay))
    network = Transport(trust_env=trust_env)
    if record := environ.get(RECORD):
        return Recorder(network, Path(record))
    return network
