"""The catalog: which models there are, and what a request to one of them takes.

Rules:
- `demo/demo` is always there. A provider without listed models takes any id; the others only theirs (ruling C7). Clients are
  told of its well-known ones, where `prices` knows them.
- There is no silent fallback: what is not there is `ModelUnavailableError`; nothing selected is `ModelNotSelectedError`.
  Fallbacks are those that were named for it, and only an overloaded model is replaced by one. One that is not there is
  refused at the start, or logged once where it may be there another time.
- Durable records name models by their catalog id (`ref`); only the provider hears `api_model`.
- Options, headers, body and Generation Controls are partitioned (`ingestion`), then merged provider, model, variant, each in
  its own domain.
- What the configuration does not say of a model's context and prices, `prices` may know; what nobody knows costs nothing.
- Which media a model takes is what its configuration says, or its provider's. Where neither does, images go everywhere, and
  PDFs where the protocol has them; OpenAI's Chat Completions are spoken by many servers, of which only OpenAI's own has.
  Types that the protocol itself does not take never go.
- A key is held as a `Secret`: it comes out only in the transport, on the way into a header.
- What was merged for a model is kept, since the configuration never changes; its key and its prices are looked up each time.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct, structs

from ...protocol.llm.invariants import IMAGE_TYPES, PDF_TYPE
from ...protocol.llm.request import Generation
from ...protocol.values.errors import (
    InvalidRequestError,
    ModelNotSelectedError,
    ModelUnavailableError,
    VariantUnavailableError,
)
from ...protocol.values.model import CatalogModel, ModelRef, Prices, Tokens
from ..configuration import Configuration, ConfigurationError, Model, Overlay, Provider, Timeouts, unusable_name
from ..logs import Logger
from . import prices
from .ingestion import merged, merged_generation, partition
from .secret import NoKey, Secret, key_from_file, key_from_variable

DEMO_PROTOCOL: Final = "demo"
DEMO_MODEL: Final = ModelRef(provider="demo", id="demo")

_READ_PDF: Final = ("anthropic-messages", "openai-responses", "gemini")
_OPENAI_HOST: Final = re.compile(r"(?:.+\.)?api\.openai\.com")
_NOT_TAKEN: Final[Mapping[str, frozenset[str]]] = {"gemini": frozenset(("image/gif",))}
"""Types of the kinds below that a protocol does not take."""
_MEDIA_OF_KIND: Final[Mapping[str, frozenset[str]]] = {"image": IMAGE_TYPES, "pdf": frozenset((PDF_TYPE,))}

KEY_VARIABLES: Final[Mapping[str, str]] = {
    "openai": "OPENAI_API_KEY",
    "anthropic": "ANTHROPIC_API_KEY",
    "google": "GEMINI_API_KEY",
}
"""The variables whose keys make a provider without a configuration, as `settings` reads them."""
_MAX_KEPT: Final = 1000
"""Merged models that are kept; a provider that takes any id could be asked for any number."""

_log = Logger("steerway.models")

_DEMO_PROVIDER: Final = Provider(
    protocol="demo",
    models={"demo": Model(context=32_000, output=4_000, variants={"thinking": Overlay(options={"reasoning": True})})},
)
_NO_MODEL: Final = Model()


class ModelInfo(Struct, frozen=True, kw_only=True):
    """A model that can be asked, with everything a request to it takes. Limits are in tokens, None where unknown."""

    ref: ModelRef
    protocol: str
    api_model: str
    base_url: str
    context: int | None
    output: int | None
    generation: Generation
    options: Mapping[str, Any]
    headers: Mapping[str, str]
    body: Mapping[str, Any]
    api_key: Secret | None
    timeouts: Timeouts
    prices: Prices | None = None
    media: frozenset[str] = IMAGE_TYPES
    """MIME types that go to the model as they are."""

    def cost(self, tokens: Tokens | None) -> float:
        """US dollars for what a turn used; 0 where the prices are not known."""
        return self.prices.cost(tokens) if self.prices is not None and tokens is not None else 0.0

    def __repr__(self) -> str:  # headers may be credentials too
        return f"<ModelInfo {self.ref} by {self.protocol}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:  # what structlog's console shows of locals
        return [("ref", str(self.ref)), ("protocol", self.protocol)]


class Catalog:
    """The models of one configuration. `environ` is where keys are read from, at each resolution."""

    def __init__(self, configuration: Configuration, environ: Mapping[str, str]) -> None:
        self._default = configuration.models.default
        self._environ = environ
        self._providers: dict[str, Provider] = dict(configuration.providers)
        demo = self._providers.get(DEMO_MODEL.provider, _DEMO_PROVIDER)
        if demo.protocol != DEMO_PROTOCOL:
            raise ConfigurationError(
                f"The provider {DEMO_MODEL.provider} is built in, with the protocol {DEMO_PROTOCOL}; give yours another name.",
                source="configuration",
                key=f"providers.{DEMO_MODEL.provider}.protocol",
            )
        models = {**_DEMO_PROVIDER.models, **demo.models}
        self._providers[DEMO_MODEL.provider] = structs.replace(demo, models=models)
        for name, provider in self._providers.items():
            if complaint := unusable_name("provider", name) or next(
                (said for id in provider.models if (said := unusable_name("model", id))), None
            ):
                raise ConfigurationError(complaint, source="configuration", key=f"providers.{name}")
        self._resolved: dict[ModelRef, ModelInfo] = {}
        self._skipped: set[ModelRef] = set()
        self._fallback = tuple(self._named(text, "models.fallback") for text in configuration.models.fallback)

    def resolve(self, ref: ModelRef | None) -> ModelInfo:
        """The model that `ref` names, or the configured default when it is None.

        Raises `ModelNotSelectedError`, `ModelUnavailableError` (also where the key is missing), `VariantUnavailableError`.
        """
        if ref is None:
            if self._default is None:
                raise ModelNotSelectedError(
                    f"No model is selected: name one, or set models.default. {DEMO_MODEL} needs no key and no network."
                )
            ref = self.parse(self._default)
        kept = self._resolved.get(ref)
        info = self._current(kept or self._found(ref))
        if info is not kept:
            if len(self._resolved) >= _MAX_KEPT:
                self._resolved.clear()
            self._resolved[ref] = info
        return info

    def _found(self, ref: ModelRef) -> ModelInfo:
        provider = self._providers.get(ref.provider)
        if provider is None:
            raise self._unavailable(ref, self._no_provider(ref.provider))
        model = provider.models.get(ref.id)
        if model is None and provider.models:
            raise self._unavailable(ref, f"{ref.provider} has no model {ref.id}; it has {_names(provider.models)}")
        model = model or _NO_MODEL
        variant: Overlay | None = None
        if ref.variant is not None:
            variant = model.variants.get(ref.variant)
            if variant is None:
                there = f"it has {_names(model.variants)}" if model.variants else "it has none"
                raise VariantUnavailableError(
                    f"The model {ref} is not available: the model has no variant {ref.variant}; {there}.",
                    provider=ref.provider,
                    id=ref.id,
                    variant=ref.variant,
                )
        return self._info(ref, provider, model, variant)

    def fallback(self, tried: Collection[ModelRef]) -> ModelRef | None:
        """The first configured fallback that was not tried and can be asked; None when there is none."""
        for ref in self._fallback:
            if ref not in tried:
                try:
                    return self.resolve(ref).ref
                except ModelUnavailableError as error:
                    if ref not in self._skipped:
                        self._skipped.add(ref)
                        _log.warning("fallback model skipped", model=str(ref), reason=error.message)
        return None

    def parse(self, text: str) -> ModelRef:
        """The reference that `provider/model` or `provider/model:variant` stands for.

        Model ids may hold slashes and colons; only behind a listed model is what follows a colon a variant. Raises
        `InvalidRequestError` when there is no slash.
        """
        provider, slash, id = text.partition("/")
        if not (provider and slash and id):
            raise InvalidRequestError(f"A model is written provider/model, like {DEMO_MODEL}; this is {text!r}.", field="model")
        listed = self._providers[provider].models if provider in self._providers else {}
        base, colon, variant = id.rpartition(":")
        if id not in listed and colon and base in listed and variant:
            return ModelRef(provider=provider, id=base, variant=variant)
        return ModelRef(provider=provider, id=id)

    def _named(self, text: str, key: str) -> ModelRef:
        """The model that the configuration names. A vendor's provider, or a key, may be there another time; others not."""
        try:
            ref = self.parse(text)
            if ref.provider in self._providers or ref.provider not in KEY_VARIABLES:
                self._found(ref)
        except (InvalidRequestError, ModelUnavailableError) as error:
            raise ConfigurationError(f"{key}: {error.message}", source="configuration", key=key) from None
        return ref

    def _no_provider(self, name: str) -> str:
        names = _names(self._providers)
        there = f"there are {names}" if len(self._providers) > 1 else f"there is only {names}"
        variable = KEY_VARIABLES.get(name)
        if variable is None:
            return f"there is no provider {name}; {there}"
        if len(self._providers) == 1 and not self._environ.get(variable):
            return f"there is no provider {name}, since {variable} is not set in the environment; {there}"
        return f'there is no provider {name}; configure it with api_key_env = "{variable}"; {there}'

    def list(self) -> tuple[ModelInfo, ...]:
        """All listed models that can be asked now, by provider and id, without their variants."""
        return tuple(self._available())

    def describe(self) -> tuple[CatalogModel, ...]:
        """The same models, as a client is told of them, and the well-known ones of providers without a list."""
        default = None if self._default is None else self.parse(self._default)
        described = [self._described(info, default) for info in self._available()]
        for name, provider in self._providers.items():
            if not provider.models:
                described += self._well_known(name, provider, default)
        return tuple(sorted(described, key=lambda model: (model.provider, model.id)))

    def _well_known(self, name: str, provider: Provider, default: ModelRef | None) -> Iterator[CatalogModel]:
        try:
            self._key(ModelRef(provider=name, id=""), provider)
        except ModelUnavailableError:
            return
        for model in prices.well_known(provider.base_url):
            yield CatalogModel(
                provider=name,
                id=model.id,
                protocol=provider.protocol,
                name=model.name,
                context=model.known.context,
                prices=model.known.prices,
                capabilities=structs.replace(_NO_MODEL.capabilities, input=provider.input),
                default=default is not None and (default.provider, default.id) == (name, model.id),
            )

    def _described(self, info: ModelInfo, default: ModelRef | None) -> CatalogModel:
        provider = self._providers[info.ref.provider]
        model = provider.models[info.ref.id]
        return CatalogModel(
            provider=info.ref.provider,
            id=info.ref.id,
            protocol=info.protocol,
            name=model.name,
            context=info.context,
            output=info.output,
            prices=info.prices,
            variants=tuple(sorted(model.variants)),
            capabilities=structs.replace(model.capabilities, input=model.capabilities.input or _said_input(model, provider)),
            default=default is not None and (default.provider, default.id) == (info.ref.provider, info.ref.id),
        )

    def _available(self) -> Iterator[ModelInfo]:
        for name, provider in sorted(self._providers.items()):
            for id in sorted(provider.models):
                try:
                    yield self.resolve(ModelRef(provider=name, id=id))
                except ModelUnavailableError:
                    continue

    def _info(self, ref: ModelRef, provider: Provider, model: Model, variant: Overlay | None) -> ModelInfo:
        overlays = (provider, model, variant or Overlay())
        generation, options, headers, body = Generation(), dict[str, Any](), dict[str, str](), dict[str, Any]()
        for overlay in (partition(provider.protocol, overlay) for overlay in overlays):
            generation = merged_generation(generation, overlay.generation)
            options = merged(options, overlay.options)
            headers.update({name.lower(): value for name, value in overlay.headers.items()})
            body = merged(body, overlay.body)
        return ModelInfo(
            ref=ref,
            protocol=provider.protocol,
            api_model=model.id or ref.id,
            base_url=provider.base_url,
            context=model.context,
            output=model.output,
            generation=generation,
            options=options,
            headers=headers,
            body=body,
            api_key=None,
            timeouts=provider.timeouts,
            prices=model.cost,
            media=_media(provider, model),
        )

    def _current(self, info: ModelInfo) -> ModelInfo:
        """With today's prices and the key that is there now; the same value where they are the same."""
        ref = info.ref
        provider = self._providers[ref.provider]
        key = self._key(ref, provider)
        model = provider.models.get(ref.id, _NO_MODEL)
        known = prices.UNKNOWN
        if provider.protocol != DEMO_PROTOCOL and (model.cost is None or model.context is None):
            known = prices.look_up(provider.base_url, info.api_model)
        context, cost = model.context or known.context, model.cost or known.prices
        if key == info.api_key and context == info.context and (cost is info.prices or cost == info.prices):
            return info
        return structs.replace(info, api_key=key, context=context, prices=cost)

    def _key(self, ref: ModelRef, provider: Provider) -> Secret | None:
        try:
            if provider.api_key_file is not None:
                return key_from_file(provider.api_key_file)
            if provider.api_key_env is not None:
                return key_from_variable(self._environ, provider.api_key_env)
        except NoKey as error:
            raise self._unavailable(ref, str(error)) from None
        return None

    def _unavailable(self, ref: ModelRef, why: str) -> ModelUnavailableError:
        return ModelUnavailableError(f"The model {ref} is not available: {why}.", provider=ref.provider, id=ref.id)


def _said_input(model: Model, provider: Provider) -> tuple[str, ...] | None:
    return provider.input if model.input is None else model.input


def _media(provider: Provider, model: Model) -> frozenset[str]:
    kinds = _said_input(model, provider)
    if kinds is None:
        of_openai = _OPENAI_HOST.fullmatch(urlsplit(provider.base_url).hostname or "") is not None
        reads_pdf = provider.protocol in _READ_PDF or (provider.protocol == "openai-chat" and of_openai)
        kinds = ("image", "pdf") if reads_pdf else ("image",)
    media = frozenset[str]().union(*(_MEDIA_OF_KIND.get(kind, ()) for kind in kinds))
    return media - _NOT_TAKEN.get(provider.protocol, frozenset())


def _names(known: Mapping[str, object]) -> str:
    return ", ".join(sorted(known))
