"""Keys of the configuration: one layer checked against the values it is for, key by key.

Rules:
- The Structs in `configuration` are the schema; nothing is said twice. What is inside `options` and `body` is free, but has
  to be JSON.
- Every error names source and key; an unknown key names the nearest known one.
- A header is secret, and so is a free key whose name says so: such values are checked like all others, and never shown.
"""

from __future__ import annotations

import datetime
import difflib
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal, NoReturn, cast, get_args, get_origin
from urllib.parse import urlsplit

import msgspec

from ..protocol.values.model import Prices
from .configuration import Configuration, ConfigurationError, Provider, unusable_name

Key = tuple[str, ...]
"""A key's names from the outermost table inwards."""

_NO_CHOICE: Final = re.compile(r"Invalid enum value ('.*')")
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_SECRET: Final = re.compile(
    r"(?:api|access|secret|private|auth)[_-]?key|token$|secret|password|authorization|cookie|credential", re.IGNORECASE
)
_NAMED: Final = {"providers": "provider", "models": "model"}
"""Tables whose keys are what their values are called."""
_FREE: Final = ("options", "body")
"""Tables whose keys are the provider's: their names may say that a value is a credential."""
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def dotted(key: Key) -> str:
    """The key as TOML spells it: `providers.local.models."gpt-4.1".context`."""
    return ".".join(name if _BARE.fullmatch(name) else f'"{name}"' for name in key)


def nearest(name: str, known: Iterable[str]) -> str:
    """A clause that names the nearest of the known names, or all of them when none is near."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else f"; known are {', '.join(names)}"


def is_secret(key: Key) -> bool:
    """Whether the value of this key may be a credential: a header, or a free key whose name says so."""
    if "headers" in key[:-1]:
        return True
    free = next((place for place, name in enumerate(key) if name in _FREE), len(key))
    return any(_SECRET.search(name) for name in key[free + 1 :])


def leaves(table: dict[str, Any], at: Key = ()) -> Iterator[tuple[Key, Any]]:
    """Every value that is no table, with its key; an empty table counts as nothing."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from leaves(cast("dict[str, Any]", value), (*at, name))
        else:
            yield (*at, name), value


def check(table: dict[str, Any], source: str) -> None:
    """Raise `ConfigurationError` for the first key of this layer that is unknown or has a wrong value."""
    _Check(source).value(table, Configuration, ())


class _Check:
    def __init__(self, source: str) -> None:
        self._source = source

    def value(self, value: object, kind: Any, at: Key) -> None:
        kind = next((one for one in get_args(kind) if one is Prices), kind)  # a table that need not be there
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            self._struct(self._table(value, at), kind, at)
        elif get_origin(kind) is dict and get_args(kind)[1] is not Any:
            for name, inner in self._table(value, at).items():
                if (word := _NAMED.get(at[-1])) and len(at) in (1, 3) and (complaint := unusable_name(word, name)):
                    raise ConfigurationError(f"{self._source}: {complaint}", source=self._source, key=dotted((*at, name)))
                self.value(inner, get_args(kind)[1], (*at, name))
                if at[-1] == "headers":
                    self._header(name, cast("str", inner), (*at, name))
        else:
            try:
                msgspec.convert(value, cast("type[Any]", kind))
            except msgspec.ValidationError as error:
                self._refuse(at, _complaint(error, kind))
            if _is_model(at):
                self._model(value, at)
            self._json(value, at)

    def _struct(self, table: dict[str, Any], kind: type[msgspec.Struct], at: Key) -> None:
        fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
        for name, value in table.items():
            if name not in fields:
                where = f"in [{dotted(at)}]" if at else "at the top"
                self._refuse((*at, name), f"there is no such key {where}{nearest(name, fields)}")
            self.value(value, fields[name].type, (*at, name))
        if kind is Prices:
            self._prices(table, at)
        if kind is Provider and "base_url" in table:
            self._base_url(table["base_url"], (*at, "base_url"))

    def _prices(self, table: dict[str, Any], at: Key) -> None:
        """No price is below nothing: it would make a budget grow."""
        for tier in (table, *table.get("tiers", ())):
            for name, value in tier.items():
                if isinstance(value, int | float) and value < 0:
                    self._refuse((*at, name) if tier is table else (*at, "tiers", name), "expected a number of 0 or more")

    def _table(self, value: object, at: Key) -> dict[str, Any]:
        if not isinstance(value, dict):
            self._refuse(at, "expected a table")
        return cast("dict[str, Any]", value)

    def _header(self, name: str, value: str, at: Key) -> None:
        if not _HEADER_NAME.fullmatch(name) or not (value.isascii() and value.isprintable()):
            self._refuse(at, "an HTTP header takes a plain name, and printable ASCII as its value")

    def _base_url(self, url: str, at: Key) -> None:
        try:
            parts = urlsplit(url)
            is_web = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # brackets that do not match, a port that is no number
            raise self._error(at, "expected an http or https URL") from None
        if not is_web or not url.isascii() or not url.isprintable() or " " in url:
            self._refuse(at, "expected an http or https URL")
        if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
            self._refuse(at, "credentials and queries cannot stand in the URL; use api_key_env or headers")

    def _model(self, value: object, at: Key) -> None:
        """`provider/model`, or several of them. Whether it is there is for the catalog to know."""
        for name in cast("list[object]", value) if isinstance(value, list) else [value]:
            if not all(cast("str", name).partition("/")):
                self._refuse(at, f"a model is written provider/model, like demo/demo; this is {name!r}")

    def _json(self, value: object, at: Key) -> None:
        match value:
            case dict():
                for name, inner in cast("dict[str, object]", value).items():
                    self._json(inner, (*at, name))
            case list():
                for inner in cast("list[object]", value):
                    self._json(inner, at)
            case datetime.date() | datetime.time():
                self._refuse(at, "dates and times have to be strings")
            case float() if not math.isfinite(value):
                self._refuse(at, "infinity and NaN cannot be sent")
            case _:
                pass

    def _refuse(self, at: Key, complaint: str) -> NoReturn:
        raise self._error(at, complaint)

    def _error(self, at: Key, complaint: str) -> ConfigurationError:
        end = "" if complaint.endswith("?") else "."
        return ConfigurationError(f"{self._source}: {dotted(at)}: {complaint}{end}", source=self._source, key=dotted(at))


def _is_model(at: Key) -> bool:
    match at:
        case ("models", "default" | "fallback") | ("agents", _, "model"):
            return True
        case _:
            return False


def _complaint(error: msgspec.ValidationError, kind: Any) -> str:
    message = str(error).replace("`", "")
    if (wrong := _NO_CHOICE.match(message)) is not None:
        return f"{wrong[1]} is none of {', '.join(_choices(kind))}"
    return message[:1].lower() + message[1:]


def _choices(kind: Any) -> Iterator[str]:
    """The words that stand somewhere in a type."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        for field in msgspec.structs.fields(kind):
            yield from _choices(field.type)
    elif get_origin(kind) is Literal:
        yield from get_args(kind)
    else:
        for part in get_args(kind):
            yield from _choices(part)
