"""The catalog: which models there are, and what a request to one of them takes.

Rules:
- `demo/demo` is always there. A provider without listed models takes any id; the others only theirs (ruling C7).
- There is no silent fallback: what is not there is `ModelUnavailableError`; nothing selected is `ModelNotSelectedError`.
  Fallbacks are those that were named for it, and only an overloaded model is replaced by one.
- Durable records name models by their catalog id (`ref`); only the provider hears `api_model`.
- Options, headers, body and Generation Controls are partitioned (`ingestion`), then merged provider, model, variant, each in
  its own domain.
- What the configuration does not say of a model's context and prices, `prices` may know; what nobody knows costs nothing.
- A key is held as a `Secret`: it comes out only in the transport, on the way into a header.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct, structs

from ...protocol.llm.request import Generation
from ...protocol.values.errors import (
    InvalidRequestError,
    ModelNotSelectedError,
    ModelUnavailableError,
    VariantUnavailableError,
)
from ...protocol.values.model import CatalogModel, ModelRef, Prices, Tokens
from ..configuration import Configuration, ConfigurationError, Model, Overlay, Provider, Timeouts
from . import prices
from .ingestion import merged, merged_generation, partition
from .secret import NoKey, Secret, key_from_file, key_from_variable

DEMO_PROTOCOL: Final = "demo"
DEMO_MODEL: Final = ModelRef(provider="demo", id="demo")

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

    def cost(self, tokens: Tokens | None) -> float:
        """US dollars for what a turn used; 0 where the prices are not known."""
        return self.prices.cost(tokens) if self.prices is not None and tokens is not None else 0.0

    def __repr__(self) -> str:  # headers may be credentials too
        return f"<ModelInfo {self.ref} by {self.protocol}>"


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
        provider = self._providers.get(ref.provider)
        if provider is None:
            raise self._unavailable(ref, f"there is no provider {ref.provider}; there are {_names(self._providers)}")
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
                except ModelUnavailableError:
                    continue
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
        try:
            return self.parse(text)
        except InvalidRequestError as error:
            raise ConfigurationError(error.message, source="configuration", key=key) from None

    def list(self) -> tuple[ModelInfo, ...]:
        """All listed models that can be asked now, by provider and id, without their variants."""
        return tuple(self._available())

    def describe(self) -> tuple[CatalogModel, ...]:
        """The same models, as a client is told of them."""
        default = None if self._default is None else self.parse(self._default)
        return tuple(self._described(info, default) for info in self._available())

    def _described(self, info: ModelInfo, default: ModelRef | None) -> CatalogModel:
        model = self._providers[info.ref.provider].models[info.ref.id]
        return CatalogModel(
            provider=info.ref.provider,
            id=info.ref.id,
            protocol=info.protocol,
            name=model.name,
            context=info.context,
            output=info.output,
            prices=info.prices,
            variants=tuple(sorted(model.variants)),
            capabilities=model.capabilities,
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
        api_model = model.id or ref.id
        known = prices.UNKNOWN
        if provider.protocol != DEMO_PROTOCOL and (model.cost is None or model.context is None):
            known = prices.look_up(provider.base_url, api_model)
        return ModelInfo(
            ref=ref,
            protocol=provider.protocol,
            api_model=api_model,
            base_url=provider.base_url,
            context=model.context or known.context,
            output=model.output,
            generation=generation,
            options=options,
            headers=headers,
            body=body,
            api_key=self._key(ref, provider),
            timeouts=provider.timeouts,
            prices=model.cost or known.prices,
        )

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


def _names(known: Mapping[str, object]) -> str:
    return ", ".join(sorted(known))
