"""What is known of well-known models without being configured: context and prices, by the package genai-prices.

Rules:
- The package is an optional extra (`steerway[prices]`); without it nothing is known, and nothing fails.
- A price belongs to an endpoint: what decides is the provider's base URL, never the name it was given here. So a proxy or a
  local server that serves a model of a famous name costs nothing, until `cost` says what it does.
- Only the data inside the installed package are used; nothing is fetched.
- It takes a sixth of a second and, with what it needs, 15 MB. So it is imported only where a provider is a public HTTPS
  endpoint, and then when the models are made, not in the middle of somebody's turn.
"""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from ...protocol.values.model import Prices, PriceTier

if TYPE_CHECKING:
    from genai_prices.types import ModelPrice, TieredPrices

    Price = Decimal | TieredPrices | None

_FIELDS: Final = ("input", "output", "cache_read", "cache_write")


class Known(Struct, frozen=True):
    """What is known of one model: the size of its context in tokens, and its prices."""

    context: int | None
    prices: Prices | None


UNKNOWN: Final = Known(None, None)


def load(base_url: str) -> None:
    """Import the package, if there is one and this endpoint may be in it."""
    look_up(base_url, "")


def look_up(base_url: str, model: str) -> Known:
    """What is known of the model that the endpoint calls `model`, at today's prices. Never fails."""
    if not base_url.startswith("https://"):
        return UNKNOWN
    try:
        from genai_prices.data_snapshot import get_snapshot
    except ImportError:
        return UNKNOWN
    try:
        _, info = get_snapshot().find_provider_model(model, None, None, base_url)
    except LookupError:
        return UNKNOWN
    return Known(info.context_window, _converted(info.get_prices(datetime.now(UTC))))


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
