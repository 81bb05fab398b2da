"""Providers and models as models.dev and the AI SDK spell them, put into the spelling of `configuration`.

Rules:
- A file may describe a provider either way, or half and half; where both say something, our own spelling wins.
- `npm` names the protocol, `api` and `options.baseURL` the base URL, `env` the variable of the key. A key itself is refused;
  `{env:NAME}` and `{file:PATH}` in its place say where it is.
- `limit` and `cost` of a model become its limits and prices, `modalities.input` its `input`; what else models.dev tells of a
  model becomes `capabilities`, or is left out where nothing here depends on it.
- Options and Generation Controls may stand directly in a variant, a model or a provider; they are put under its `options`,
  which the catalog partitions. Any other key stays, so that a typing error is found where keys are checked.
- What is no table where there should be one is left for the same check.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast, get_args

from msgspec import structs

from .configuration import ConfigurationError, InputKind, Model, Overlay, Provider
from .models.ingestion import CONTROLS, OPTIONS, snake

Table = dict[str, Any]

_PROTOCOLS: Final[Mapping[str, str]] = {
    "@ai-sdk/openai": "openai-responses",
    "@ai-sdk/openai-compatible": "openai-chat",
    "@ai-sdk/anthropic": "anthropic-messages",
    "@ai-sdk/google": "gemini",
}
_TOLD: Final = (
    "attachment",
    "doc",
    "family",
    "interleaved",
    "knowledge",
    "last_updated",
    "open_weights",
    "release_date",
    "status",
    "structured_output",
)
"""What models.dev tells and nothing here depends on."""
_FLAT: Final = frozenset(CONTROLS) | {
    spelling for names in OPTIONS.values() for name in names for spelling in (name, snake(name))
}
_PRICES: Final = ("input", "output", "cache_read", "cache_write")
_BIG_CONTEXT: Final = 200_000
_REFERENCE: Final = re.compile(r"\{(env|file):(.+)\}")


def respelled(table: Table, source: str) -> Table:
    """The layer in our own spelling. Raises `ConfigurationError` for a key that stands in the file, and for an `npm` package
    whose protocol is not spoken here."""
    providers = table.get("providers")
    if not isinstance(providers, dict):
        return table
    new = {name: _provider(provider, f"providers.{name}", source) for name, provider in cast("Table", providers).items()}
    return {**table, "providers": new}


def _provider(given: object, at: str, source: str) -> Any:
    if not isinstance(given, dict):
        return given
    new = _overlay(cast("Table", given), Provider, at, source)
    for name in ("name", "id", *_TOLD):
        new.pop(name, None)
    if (package := new.pop("npm", None)) is not None:
        if package not in _PROTOCOLS:
            message = f"{source}: {at}.npm: no protocol here is that of {package}; known are {', '.join(_PROTOCOLS)}."
            raise ConfigurationError(message, source=source, key=f"{at}.npm")
        new.setdefault("protocol", _PROTOCOLS[package])
    if (url := new.pop("api", None)) is not None:
        new.setdefault("base_url", url)
    if isinstance(variables := new.pop("env", None), list) and variables and "api_key_file" not in new:
        new.setdefault("api_key_env", cast("list[object]", variables)[0])
    if isinstance(models := new.get("models"), dict):
        named = cast("Table", models).items()
        new["models"] = {name: _model(model, f"{at}.models.{name}", source) for name, model in named}
    return new


def _model(given: object, at: str, source: str) -> Any:
    if not isinstance(given, dict):
        return given
    new = dict(cast("Table", given))
    capabilities: Table = {}
    if isinstance(new.get("temperature"), bool):
        del new["temperature"]  # whether it may be set at all
    for name, ours in (("tool_call", "tools"), ("reasoning", "reasoning")):
        if name in new:
            capabilities[ours] = new.pop(name)
    if isinstance(modalities := new.get("modalities"), dict):
        del new["modalities"]
        capabilities |= {name: kinds for name, kinds in cast("Table", modalities).items() if name in ("input", "output")}
        if isinstance(kinds := capabilities.get("input"), list):
            new.setdefault("input", [kind for kind in cast("list[object]", kinds) if kind in get_args(InputKind)])
    new = _overlay(new, Model, at, source)
    for name in _TOLD:
        new.pop(name, None)
    if capabilities:
        said = new.get("capabilities")
        new["capabilities"] = capabilities | cast("Table", said) if isinstance(said, dict) else capabilities
    if isinstance(limit := new.get("limit"), dict):
        del new["limit"]
        for name in ("context", "output"):
            if name in limit:
                new.setdefault(name, cast("Table", limit)[name])
    if isinstance(cost := new.get("cost"), dict):
        new["cost"] = _cost(cast("Table", cost))
    if isinstance(variants := new.get("variants"), dict):
        named = cast("Table", variants).items()
        new["variants"] = {name: _variant(variant, f"{at}.variants.{name}", source) for name, variant in named}
    return new


def _variant(given: object, at: str, source: str) -> Any:
    return _overlay(cast("Table", given), Overlay, at, source) if isinstance(given, dict) else given


def _overlay(given: Table, kind: type[Overlay], at: str, source: str) -> Table:
    """The table with flat options under `options`, and without what the AI SDK hides in there."""
    fields = structs.fields(kind)
    own = {field.encode_name for field in fields}
    flat = {name: value for name, value in given.items() if name in _FLAT and name not in own}
    new = {name: value for name, value in given.items() if name not in flat}
    options = new.get("options", {})
    if not isinstance(options, dict):
        return given
    options = flat | cast("Table", options)
    if isinstance(headers := options.pop("headers", None), dict):
        said = new.get("headers")
        new["headers"] = {**cast("Table", headers), **(cast("Table", said) if isinstance(said, dict) else {})}
    for name, ours in (("baseURL", "base_url"), ("apiKey", "key")):
        if name in options and kind is Provider:
            value = options.pop(name)
            if ours == "base_url":
                new.setdefault(ours, value)
            else:
                new.update(_key(value, at, source))
    if options:
        new["options"] = options
    else:
        new.pop("options", None)
    return new


def _key(value: object, at: str, source: str) -> Table:
    """Where the key is; a key itself may not stand in a file that is shown around."""
    reference = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    if reference is None:
        at = f"{at}.options.apiKey"
        message = f"{source}: {at}: a key does not stand in a configuration; name its place with api_key_env or api_key_file."
        raise ConfigurationError(message, source=source, key=at)
    return {f"api_key_{reference[1]}": reference[2]}


def _cost(given: Table) -> Table:
    """Prices of tokens. Those of reasoning are the output's; those of other media are not counted."""
    new = {name: value for name, value in given.items() if name not in ("reasoning", "input_audio", "output_audio")}
    if isinstance(over := new.pop("context_over_200k", None), dict):
        prices = {name: value for name, value in cast("Table", over).items() if name in _PRICES}
        new.setdefault("tiers", [{"above": _BIG_CONTEXT, **prices}])
    return new
