"""The partition of a model's configuration into the three domains, when it enters the catalog.

Rules (seed: Generation Controls, Model Request Options; reference 8.3):
- What stands under `options` may be spelled as in models.dev and the AI SDK, where all three domains share one table. A
  well-typed Generation Control goes to `generation`; what the provider's protocol understands stays in `options`, in one
  spelling; everything else is a compatibility field of the body.
- What was said in its own table wins over what was found under `options`, key by key.
- Each overlay is partitioned by itself, before provider, model and variant are laid over each other. So a variant's
  `reasoning_effort` replaces a provider's `reasoningEffort`.
- The demo model's options are all its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from msgspec import structs

from ...protocol.llm.request import Generation
from ..configuration import Overlay

CONTROLS: Final[Mapping[str, str]] = {
    "maxOutputTokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "maxTokens": "max_tokens",
    "max_tokens": "max_tokens",
    "temperature": "temperature",
    "topP": "top_p",
    "top_p": "top_p",
    "topK": "top_k",
    "top_k": "top_k",
    "frequencyPenalty": "frequency_penalty",
    "frequency_penalty": "frequency_penalty",
    "presencePenalty": "presence_penalty",
    "presence_penalty": "presence_penalty",
    "seed": "seed",
    "stopSequences": "stop",
    "stop_sequences": "stop",
    "stop": "stop",
}
"""Generation Controls by the names they come under; of two names for one control the later one here wins."""

OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "openai-chat": (
        "store",
        "promptCacheKey",
        "reasoningEffort",
        "textVerbosity",
        "serviceTier",
        "parallelToolCalls",
        "maxTokensField",
    ),
    "openai-responses": (
        "store",
        "promptCacheKey",
        "reasoningEffort",
        "reasoningSummary",
        "include",
        "textVerbosity",
        "serviceTier",
        "parallelToolCalls",
    ),
    "anthropic-messages": ("thinking", "effort"),
    "gemini": ("thinkingConfig", "safetySettings"),
}
"""Model Request Options by the protocol that understands them."""

_INTEGERS: Final = ("max_tokens", "top_k", "seed")


def snake(name: str) -> str:
    """An option's other spelling: `reasoning_effort` for `reasoningEffort`."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def partition(protocol: str, overlay: Overlay) -> Overlay:
    """The overlay with every option in the domain it belongs to."""
    understood = OPTIONS.get(protocol)
    if understood is None:
        return overlay
    rest = dict(overlay.options)
    controls: dict[str, Any] = {}
    for name, control in CONTROLS.items():
        value = _typed(control, rest.get(name))
        if value is not None:
            controls[control] = value
            del rest[name]
    options: dict[str, Any] = {}
    for name in understood:
        for spelling in (snake(name), name):
            if spelling in rest:
                options[name] = rest.pop(spelling)
    return Overlay(
        generation=merged_generation(Generation(**controls), overlay.generation),
        options=options,
        headers=overlay.headers,
        body=merged(rest, overlay.body),
    )


def _typed(control: str, value: object) -> Any:
    """The value of a control; None when it is not of the control's type."""
    match value:
        case bool() | None:
            return None
        case str() if control == "stop":
            return (value,)
        case list() | tuple() if control == "stop":
            words = tuple(cast("list[object]", value))
            return words if all(isinstance(word, str) for word in words) else None
        case int() if control == "max_tokens":
            return value if value > 0 else None
        case int() if control != "stop":
            return value
        case float() if control not in _INTEGERS and control != "stop":
            return value
        case _:
            return None


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Both mappings, `over` winning key by key, at any depth."""
    result = dict(under)
    for name, value in over.items():
        standing = result.get(name)
        if isinstance(value, dict) and isinstance(standing, dict):
            result[name] = merged(cast("dict[str, Any]", standing), cast("dict[str, Any]", value))
        else:
            result[name] = value
    return result


def merged_generation(under: Generation, over: Generation) -> Generation:
    """Both controls, `over` winning where it says something."""
    return structs.replace(under, **{name: value for name, value in structs.asdict(over).items() if value is not None})
