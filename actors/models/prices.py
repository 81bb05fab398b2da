"""What is known of well-known models without being configured: which there are, context and prices, by genai-prices.

Rules:
- The package is an optional extra (`steerway[prices]`); without it nothing is known, and nothing fails.
- A price belongs to an endpoint: what decides is the provider's base URL, never the name it was given here. So a proxy or a
  local server that serves a model of a famous name costs nothing, until `cost` says what it does.
- Only the data inside the installed package are used; nothing is fetched.
- Those that a list shows are the ones that may hold a conversation, by their names: the package has many that only speak,
  draw or embed, and patterns of fine-tuned ones. What is not in the list can be asked all the same.
- It takes a sixth of a second and, with what it needs, 15 MB. So it is imported only where a provider is a public HTTPS
  endpoint, and then when the models are made, not in the middle of somebody's turn.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from ...protocol.values.model import Prices, PriceTier

if TYPE_CHECKING:
    from genai_prices.data_snapshot import DataSnapshot
    from genai_prices.types import ModelInfo, ModelPrice, Provider, TieredPrices

    Price = Decimal | TieredPrices | None

_FIELDS: Final = ("input", "output", "cache_read", "cache_write")


class Known(Struct, frozen=True):
    """What is known of one model: the size of its context in tokens, and its prices."""

    context: int | None
    prices: Prices | None


UNKNOWN: Final = Known(None, None)


class Listed(Struct, frozen=True):
    """A well-known model of an endpoint: the id it has there, its name for people, and what is known of it."""

    id: str
    name: str | None
    known: Known


_NO_CONVERSATION: Final = re.compile(
    r"embed|image|audio|realtime|\blive\b|\btts\b|whisper|transcri|translate|moderation|guard|dall-e|rerank|banana|robotics"
    r"|\b(?:ada|babbage|curie|davinci)\b|^ft:|-$"
)
_converted_prices: dict[int, tuple[ModelPrice, Prices | None]] = {}
"""By the identity of the package's own values, of which there is one for each price and each time that it is valid."""
_MAX_MISSING: Final = 1000
_missing: set[tuple[int, str, str]] = set()
"""Models that were looked for in vain, by the data, the provider and the id: the search is dear."""


def load(base_url: str) -> None:
    """Import the package, if there is one and this endpoint may be in it."""
    look_up(base_url, "")


def look_up(base_url: str, model: str) -> Known:
    """What is known of the model that the endpoint calls `model`, at today's prices. Never fails."""
    found = _provider(base_url)
    if found is None:
        return UNKNOWN
    snapshot, provider = found
    missing = (id(snapshot), provider.id, model)
    if missing in _missing:
        return UNKNOWN
    try:
        _, info = snapshot.find_provider_model(model, provider, None, None)
    except LookupError:
        if len(_missing) >= _MAX_MISSING:
            _missing.clear()
        _missing.add(missing)
        return UNKNOWN
    return _known(info, datetime.now(UTC))


def _provider(base_url: str) -> tuple[DataSnapshot, Provider] | None:
    """The package's data, and who of them it is that answers at this URL."""
    if not base_url.startswith("https://"):
        return None
    try:
        from genai_prices.data_snapshot import get_snapshot
    except ImportError:
        return None
    snapshot = get_snapshot()
    try:
        return snapshot, snapshot.find_provider(None, None, base_url)
    except LookupError:
        return None


def well_known(base_url: str) -> Iterator[Listed]:
    """The models of the endpoint that may hold a conversation, by id. Never fails; nothing where nothing is known."""
    found = _provider(base_url)
    if found is None:
        return
    _, provider = found
    now = datetime.now(UTC)
    for info in sorted(provider.models, key=lambda model: model.id):
        # What the package knows of Google are the models of two services; this one has only Google's own.
        elsewhere = provider.id == "google" and not info.id.startswith("gem")
        if elsewhere or info.deprecated or _NO_CONVERSATION.search(info.id) or not info.is_match(info.id):
            continue
        known = _known(info, now)
        if known.prices is not None:
            yield Listed(info.id, info.name, known)


def _known(info: ModelInfo, now: datetime) -> Known:
    price = info.get_prices(now)
    found = _converted_prices.get(id(price))
    if found is None or found[0] is not price:
        found = _converted_prices[id(price)] = (price, _converted(price))
    return Known(info.context_window, found[1])


def _converted(price: ModelPrice) -> Prices | None:
    """The prices of tokens; None where there are none, as for models that are paid for otherwise."""
    rates: dict[str, Price] = {name: getattr(price, f"{name}_mtok") for name in _FIELDS}
    if rates["input"] is None or rates["output"] is None:
        return None
    starts = {
        tier.start for rate in rates.values() if rate is not None and not isinstance(rate, Decimal) for tier in rate.tiers
    }
    tiers = (PriceTier(above=start, **_rates(rates, start)) for start in sorted(starts))
    return Prices(**_rates(rates, 0), tiers=tuple(tiers))


def _rates(rates: dict[str, Price], whole: int) -> dict[str, float]:
    """Each price of requests with more than `whole` tokens of input."""
    return {name: _rate(rate, whole) for name, rate in rates.items() if rate is not None}


def _rate(rate: Decimal | TieredPrices, whole: int) -> float:
    if isinstance(rate, Decimal):
        return float(rate)
    reached = [tier for tier in rate.tiers if tier.start <= whole]
    return float(max(reached, key=lambda tier: tier.start).price if reached else rate.base)
