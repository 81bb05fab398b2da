"""The arguments of a tool call, as the model wrote them: one strict reading for all provider protocols.

Rules:
- Nothing at all is the empty object: providers send it for calls without parameters. Everything else has to be a JSON object.
- What can be read in two ways is not executed: duplicate keys at any depth, raw control characters inside strings, NaN and
  infinities, text around the object. Such a call keeps its raw text, and the turn settles it as failed, so that the model
  can read what was wrong.
- What is read can be stored and sent on by both codecs (ruling B14): integers of 64 bits, bounded nesting, strings without
  lone surrogates. Beyond that the input is refused, never changed.
"""

from __future__ import annotations

import json
from typing import Any, Final, cast

from .unicode import is_within, well_formed

MAX_ARGUMENT_DEPTH: Final = 40
"""Nesting of an input: what the wire allows (64), less the envelope, page and message that will stand around it."""


class _RefusedError(ValueError):
    """The text is JSON, or nearly, but says nothing that could be executed."""


def parse_arguments(raw: str) -> dict[str, Any] | None:
    """The input object that `raw` stands for, or None when it stands for none."""
    if not raw or raw.isspace():
        return {}
    try:
        value: object = json.loads(
            raw, object_pairs_hook=_object, parse_int=_integer, parse_float=_number, parse_constant=_refuse
        )
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    found = cast("dict[str, Any]", value)
    return found if is_within(found, MAX_ARGUMENT_DEPTH) else None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = {well_formed(key): _text(value) for key, value in pairs}
    if len(found) != len(pairs):
        raise _RefusedError("a key stands twice")
    return found


def _text(value: Any) -> Any:
    match value:
        case str():
            return well_formed(value)
        case list():
            return [_text(item) for item in cast("list[object]", value)]
        case _:
            return value


def _integer(digits: str) -> int:
    value = int(digits)
    if not -(2**63) <= value < 2**64:
        raise _RefusedError("an integer of more than 64 bits")
    return value


def _number(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise _RefusedError("a number out of range")
    return value


def _refuse(name: str) -> float:
    raise _RefusedError(f"{name} is no JSON")
