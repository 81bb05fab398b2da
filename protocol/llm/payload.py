"""The body of a request, as every protocol puts it together.

Rules:
- The same request gives the same bytes: keys keep the order in which they were put.
- `body` fields are merged over everything else, deeply and last; a null there removes a field.
- Whatever strings a request holds, what leaves is well-formed UTF-8 (ruling B13).
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from .request import LLMRequest, Media
from .unicode import well_formed_value

MAX_CACHE_KEY: Final = 64
"""Characters of a prompt cache key that OpenAI's protocols take."""


def encoded(payload: Mapping[str, Any]) -> bytes:
    """The body's bytes."""
    try:
        return msgspec.json.encode(payload)
    except (TypeError, ValueError, RecursionError):
        return msgspec.json.encode(well_formed_value(dict(payload)))


def json_text(value: Any) -> str:
    """A JSON value as text inside a body."""
    return msgspec.json.encode(well_formed_value(value)).decode()


def data_url(medium: Media) -> str:
    """The medium as OpenAI's protocols take it."""
    return f"data:{medium.mime};base64,{b64encode(medium.data).decode('ascii')}"


def pdf_name(medium: Media) -> str:
    """The name of a PDF, with the ending by which OpenAI's protocols know one."""
    name = medium.name or "unnamed"
    return name if name.lower().endswith(".pdf") else f"{name}.pdf"


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid over `under`, at any depth; a null in `over` removes the field."""
    result = dict(under)
    for name, value in over.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, dict):
            mapping = cast("dict[str, Any]", value)
            standing = result.get(name)
            result[name] = merged(cast("dict[str, Any]", standing) if isinstance(standing, dict) else {}, mapping)
        else:
            result[name] = value
    return result


def option(options: Mapping[str, Any], camel: str, snake: str) -> Any:
    """An option under either of its spellings; None when it is not there."""
    return options.get(camel, options.get(snake))


def cache_key(request: LLMRequest) -> str | None:
    """The prompt cache key of the request. One that is longer than what is taken is replaced by its hash."""
    key = request.options.get("promptCacheKey", request.options.get("prompt_cache_key", request.cache_key))
    if not isinstance(key, str) or not key:
        return None
    return key if len(key) <= MAX_CACHE_KEY else hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()


def metadata_of(metadata: Mapping[str, Any] | None, protocol: str) -> dict[str, Any]:
    """What of Native Continuation Metadata is this protocol's own; empty when nothing is."""
    found = metadata.get(protocol) if metadata is not None else None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}
