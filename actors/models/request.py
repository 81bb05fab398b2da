"""The request of a turn, fitted to the model it goes to.

Rules:
- The turn speaks of the catalog's model; the provider hears its own id for it.
- What the model's configuration says lies under what the turn says, in each domain by itself: Generation Controls, options
  of the provider's semantics, compatibility body fields. Wire names are the adapter's matter alone.
- A model's output limit bounds the context arithmetic; it is sent where `generation.max_tokens` says so, and by protocols
  that cannot do without one.
"""

from __future__ import annotations

from typing import Final

from msgspec import structs

from ...protocol.llm.request import LLMRequest
from .catalog import ModelInfo
from .ingestion import merged, merged_generation

_NEEDS_LIMIT: Final = ("anthropic-messages",)
"""Protocols whose requests have to name an output limit."""


def prepare(info: ModelInfo, request: LLMRequest) -> LLMRequest:
    """The request with the model's own id, and the model's configuration under the request's values."""
    generation = merged_generation(info.generation, request.generation)
    if generation.max_tokens is None and info.protocol in _NEEDS_LIMIT:
        generation = structs.replace(generation, max_tokens=info.output)
    return structs.replace(
        request,
        model=info.api_model,
        generation=generation,
        options=merged(info.options, request.options),
        body=merged(info.body, request.body),
    )
