"""Which model answers, and what a turn used of it."""

from __future__ import annotations

from .value import Value


class ModelRef(Value):
    """A model of the catalog: provider id, the model's id there, and optionally one of its variants."""

    provider: str
    id: str
    variant: str | None = None

    def __str__(self) -> str:
        return f"{self.provider}/{self.id}" + (f":{self.variant}" if self.variant else "")


class CacheTokens(Value):
    """Input tokens that a provider's prompt cache served (`read`) or stored (`write`)."""

    read: int
    write: int


class Tokens(Value):
    """Token counts in parts that do not overlap: `input` is without cache, `output` is without reasoning."""

    input: int
    output: int
    reasoning: int
    cache: CacheTokens

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(
            input=self.input + other.input,
            output=self.output + other.output,
            reasoning=self.reasoning + other.reasoning,
            cache=CacheTokens(read=self.cache.read + other.cache.read, write=self.cache.write + other.cache.write),
        )


class PriceTier(Value):
    """Prices of requests whose whole input, cache included, is more than `above` tokens."""

    above: int
    input: float = 0.0
    output: float = 0.0
    cache_read: float | None = None
    cache_write: float | None = None


class Prices(Value):
    """US dollars for a million tokens. Where a cache price is None, cached tokens cost what `input` does.

    Reasoning is billed as output.
    """

    input: float = 0.0
    output: float = 0.0
    cache_read: float | None = None
    cache_write: float | None = None
    tiers: tuple[PriceTier, ...] = ()

    def cost(self, tokens: Tokens) -> float:
        """US dollars for these tokens, by the largest tier that their input exceeds."""
        whole = tokens.input + tokens.cache.read + tokens.cache.write
        rates: Prices | PriceTier = max(
            (tier for tier in self.tiers if whole > tier.above), key=lambda tier: tier.above, default=self
        )
        read = rates.input if rates.cache_read is None else rates.cache_read
        write = rates.input if rates.cache_write is None else rates.cache_write
        dollars = (
            tokens.input * rates.input
            + (tokens.output + tokens.reasoning) * rates.output
            + tokens.cache.read * read
            + tokens.cache.write * write
        )
        return dollars / 1e6


class Capabilities(Value):
    """What a model can do, as far as it was said. `input` and `output` are kinds like `text`, `image`, `audio`, `pdf`."""

    tools: bool | None = None
    reasoning: bool | None = None
    input: tuple[str, ...] | None = None
    output: tuple[str, ...] | None = None


class CatalogModel(Value):
    """A model that can be selected now. Limits are in tokens; what is None is not known.

    `variants` are names for `ModelRef.variant`; `default` is true for the model of sessions that select none.
    """

    provider: str
    id: str
    protocol: str
    name: str | None = None
    context: int | None = None
    output: int | None = None
    prices: Prices | None = None
    variants: tuple[str, ...] = ()
    capabilities: Capabilities = Capabilities()
    default: bool = False


NO_TOKENS = Tokens(input=0, output=0, reasoning=0, cache=CacheTokens(read=0, write=0))
