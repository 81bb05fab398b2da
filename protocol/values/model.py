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


NO_TOKENS = Tokens(input=0, output=0, reasoning=0, cache=CacheTokens(read=0, write=0))
