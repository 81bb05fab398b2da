"""Strings made well-formed where they enter (ruling B13), and JSON that may hold ill-formed ones.

Rules:
- Providers cut an emoji between two deltas, and then each half is a lone surrogate: no UTF-8, MessagePack or msgspec will
  have it. Halves that meet are joined; a high half at the end of a delta waits for the next; what stays alone is U+FFFD.
- A string that is well-formed already is handed back as it is, and costs next to nothing.
- JSON is decoded by msgspec; only what it refuses is given to the standard library, and repaired.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final, cast

import msgspec

MAX_DEPTH: Final = 64
"""Nesting that JSON values keep; deeper ones are replaced by null when they have to be repaired."""

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_MIN_INTEGER: Final = -(2**63)
_MAX_INTEGER: Final = 2**64 - 1


def is_well_formed(text: str) -> bool:
    """Whether the text can be encoded as UTF-8."""
    return text.isascii() or _SURROGATE.search(text) is None


def well_formed(text: str) -> str:
    """The text with surrogate pairs joined and lone surrogates replaced by U+FFFD."""
    if is_well_formed(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class SurrogateJoiner:
    """Makes the deltas of one fragment well-formed, one after the other."""

    def __init__(self) -> None:
        self._high = ""

    def feed(self, delta: str) -> str:
        """What can be shown after this delta; empty while the half of a pair waits for the other."""
        if not self._high and delta.isascii():
            return delta
        text = self._high + delta
        if "\ud800" <= text[-1:] <= "\udbff":
            self._high = text[-1]
            text = text[:-1]
        else:
            self._high = ""
        return well_formed(text)

    def close(self) -> str:
        """The replacement of a half that waited in vain, or nothing."""
        waiting, self._high = self._high, ""
        return "\ufffd" if waiting else ""


def is_encodable(value: Any) -> bool:
    """Whether both codecs can carry a JSON value as it is: well-formed strings, keys that are strings, bounded nesting,
    integers of 64 bits (ruling B14).
    """
    try:
        msgspec.json.encode(value)
        msgspec.msgpack.encode(value)
    except (TypeError, ValueError, RecursionError, OverflowError):  # UnicodeEncodeError is a ValueError
        return False
    return True


def is_within(value: Any, depth: int) -> bool:
    """Whether lists and objects of a JSON value are nested at most this deep."""
    match value:
        case dict():
            return depth > 0 and all(is_within(item, depth - 1) for item in cast("dict[str, object]", value).values())
        case list():
            return depth > 0 and all(is_within(item, depth - 1) for item in cast("list[object]", value))
        case _:
            return True


def is_object(value: Any) -> bool:
    """Whether the value is a JSON object that can be sent as it is."""
    return isinstance(value, dict) and is_encodable(cast("object", value))


def well_formed_value(value: Any) -> Any:
    """The JSON value with all its strings and keys well-formed; the value itself when there is nothing to repair.

    Of keys that become equal the last one wins. What JSON cannot say becomes text, nesting beyond `MAX_DEPTH` null.
    """
    return value if is_encodable(value) else _repaired(value, MAX_DEPTH)


def bounded_value(value: Any, depth: int) -> Any:
    """As `well_formed_value`, and with null in place of what is nested deeper; the value itself where that changes nothing."""
    return value if is_encodable(value) and is_within(value, depth) else _repaired(value, depth)


def _repaired(value: Any, depth: int) -> Any:
    match value:
        case str():
            return well_formed(value)
        case None | bool() | float():
            return value
        case int():
            return value if _MIN_INTEGER <= value <= _MAX_INTEGER else well_formed(hex(value))
        case _ if depth == 0:
            return None
        case dict():
            items = cast("dict[object, object]", value).items()
            return {well_formed(str(key)): _repaired(item, depth - 1) for key, item in items}
        case list() | tuple():
            return [_repaired(item, depth - 1) for item in cast("list[object]", value)]
        case _:
            return value if is_encodable(value) else well_formed(str(value))


def decode_json(data: bytes) -> Any:
    """The JSON value in `data`, untyped. Raises ValueError, whatever is wrong with it.

    More is let pass than the standard allows, since it is harmless here: a byte order mark, bytes that are no UTF-8 and
    control characters inside strings. NaN and numbers out of range are null, since neither can be sent on.
    Strings of the answer may hold surrogates: they are halves of a pair that a caller has to join first, by
    `SurrogateJoiner` or `well_formed`. Integers may have any size; `well_formed_value` repairs those too.
    """
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        return json.loads(
            data.decode("utf-8", "replace").removeprefix("\ufeff"), strict=False, parse_float=_finite, parse_constant=_nothing
        )
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def _finite(digits: str) -> float | None:
    value = float(digits)
    return value if math.isfinite(value) else None


def _nothing(_: str) -> None:
    return None
