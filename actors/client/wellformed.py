"""What a caller's parameters need before both codecs can carry them.

Rules:
- What cannot be carried alike (integers beyond 64 bits, NaN, keys that are no strings, too much depth) is found before it is
  sent: a server could not even tell which request it came with (ruling B14).
- Lone surrogates are made well-formed where they enter (ruling B13): halves that stand together are joined, others replaced.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ...protocol.codec import MalformedFrameError, check_plain


def unfit(params: msgspec.Struct) -> tuple[str, str] | None:
    """`(field, reason)` of the first parameter that cannot be sent."""
    for field in params.__struct_fields__:
        match getattr(params, field):
            case None | str() | bool() | msgspec.UnsetType():
                pass
            case value:
                try:
                    plain = _well_formed(msgspec.to_builtins(value, builtin_types=(bytes,)))
                    check_plain({"params": {field: plain}})  # as deep as it will lie in the message
                except (MalformedFrameError, TypeError, ValueError, OverflowError, RecursionError) as error:
                    return field, str(error)
    return None


def repaired(params: msgspec.Struct) -> Any:
    """The parameters as plain values whose strings are well-formed."""
    return _well_formed(msgspec.to_builtins(params, builtin_types=(bytes,)))


def _well_formed(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        case dict():
            return {_well_formed(key): _well_formed(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
        case list() | tuple():
            return [_well_formed(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value
