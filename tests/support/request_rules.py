"""What every strict provider asks of a request body, whatever its protocol: looking into shapes, names, Unicode.

Rules:
- Complaints are sentences that name their place. Broken shapes never raise.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def is_object(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def is_text(value: object) -> TypeGuard[str]:
    """Tell whether the value is a string that is not blank."""
    return isinstance(value, str) and bool(value.strip())


def is_name(value: object) -> TypeGuard[str]:
    """Tell whether the value can name a tool."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def is_object_text(value: object) -> bool:
    """Tell whether the value is a string that holds a JSON object."""
    if not isinstance(value, str):
        return False
    try:
        return isinstance(json.loads(value), dict)
    except (ValueError, RecursionError):
        return False


def unknown_fields(value: Mapping[str, Any], known: frozenset[str], at: str) -> Iterator[str]:
    """Complain about fields that the protocol does not have: strict servers refuse them."""
    for name in value:
        if name not in known:
            yield f"{at}.{name}: there is no such field"


def frame(body: Mapping[str, Any]) -> Iterator[str]:
    """The fields without which no provider answers with a stream."""
    if not is_text(body.get("model")):
        yield "model: must be a non-empty string"
    if body.get("stream") is not True:
        yield "stream: must be true, this provider only streams"


def surrogates(value: object, at: str) -> Iterator[str]:
    """Find strings (and keys) that are no well-formed Unicode: JSON can spell them, UTF-8 cannot carry them."""
    if isinstance(value, str):
        if any("\ud800" <= char <= "\udfff" for char in value):
            yield f"{at}: holds a lone surrogate"
    elif is_list(value):
        for index, item in enumerate(value):
            yield from surrogates(item, f"{at}[{index}]")
    elif is_object(value):
        for key, item in value.items():
            yield from surrogates(key, f"{at} key")
            yield from surrogates(item, f"{at}.{key}")
