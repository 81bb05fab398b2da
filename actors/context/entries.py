"""API-managed entries: what clients tell the model about one session, a Context Source for each.

Rules (reference 7.3):
- An entry is a client's key and any JSON value, null included; its source is `api/<key>`. Key, size and number are bounded
  when an entry is put, before it is stored.
- Removing an entry removes its source. The removal text stands in the snapshot since the entry was told, so that nothing has
  to be kept of what is removed; an entry that was never told leaves without a word.
- What is stored is the whole of it: entries are read from the store for each boundary, together with the session.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

from ...protocol.values.errors import InvalidRequestError
from .algebra import SystemContext
from .source import Codec, ContextSource, is_segment

MAX_ENTRY_BYTES: Final = 8 * 1024
"""Of one value, as UTF-8 JSON."""
MAX_KEY: Final = 100
"""Characters of a client's key."""
MAX_ENTRIES: Final = 100
"""Of one session."""


def checked_entry(key: str, value: Any, existing: Collection[str] = ()) -> Any:
    """The value to store under a client's key. `existing` are the keys that the session has.

    Raises `InvalidRequestError` naming the field, for a key that cannot be part of a context key, a value that is no JSON or
    larger than `MAX_ENTRY_BYTES`, and for one entry too many.
    """
    if len(key) > MAX_KEY or not is_segment(key):
        raise InvalidRequestError(
            f"A context entry's key has 1 to {MAX_KEY} of a-z, 0-9, '.', '_' and '-', and begins with a letter or digit.",
            field="key",
        )
    try:
        stored = _CODEC.stored(value)
        size = len(msgspec.json.encode(stored))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequestError(f"The value of a context entry has to be JSON: {error}", field="value") from error
    if size > MAX_ENTRY_BYTES:
        raise InvalidRequestError(
            f"The value of a context entry has at most {MAX_ENTRY_BYTES} bytes as JSON; this one has {size}.", field="value"
        )
    if key not in existing and len(existing) >= MAX_ENTRIES:
        raise InvalidRequestError(f"A session has at most {MAX_ENTRIES} context entries; remove one first.", field="key")
    return stored


def entries_context(entries: Mapping[str, Any]) -> SystemContext:
    """The sources of a session's entries as they are stored, in the order of their keys."""
    return SystemContext.combine(*(SystemContext.make(_source(key, entries[key])) for key in sorted(entries)))


def _source(key: str, value: Any) -> ContextSource[Any]:
    async def load() -> Any:
        return value

    return ContextSource(
        key=f"api/{key}",
        codec=_CODEC,
        load=load,
        baseline=lambda current: f"Context '{key}', set by the program that runs this session:\n{_shown(current)}",
        update=lambda _, current: f"Context '{key}' has changed. It is now:\n{_shown(current)}",
        removed=lambda _: f"Context '{key}' was removed. What it said no longer applies.",
    )


def _as_it_is(value: Any) -> Any:
    return value


_CODEC: Final[Codec[Any]] = Codec(_as_it_is, _as_it_is)


def _shown(value: Any) -> str:
    """Text as it is; everything else as JSON, keys in order, so that equal values read alike."""
    match value:
        case str() if value.strip():
            return value
        case _:
            return msgspec.json.encode(value, order="sorted").decode()
