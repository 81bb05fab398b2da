"""The Context Source: one independently observed typed value, and how the model is told about it.

Rules (seed, "Context Source"):
- Keys are stable and namespaced: lower-case segments with a slash between them.
- A value is compared and stored in encoded form. A codec has to read back what it wrote; one that does not is a defect of
  the source, found when its value is observed and not by epochs that are replaced for nothing.
- Renderers are pure, and called only for text that the model will see. A renderer that raises, and text without anything
  visible in it or too large to be kept, are programming errors: `RenderingError` names the source, the log has its cause.
- Values and texts are bounded, so that what an epoch stores always fits a frame. A value that is too large counts as one that
  cannot be observed.
- `core/` and `api/` are namespaces of the runtime: nobody else contributes there.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, cast

import msgspec

from ...protocol.codec import MAX_DEPTH, MalformedFrameError, check_plain
from ...protocol.llm.unicode import well_formed, well_formed_value
from ..logs import Logger
from .observing import Unavailable

T = TypeVar("T")

_SEGMENT: Final = r"[a-z0-9][a-z0-9._-]*"
_KEY: Final = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})+")
_SEGMENT_ONLY: Final = re.compile(_SEGMENT)
_RESERVED: Final = ("core/", "api/")

MAX_NESTING: Final = MAX_DEPTH - 16
"""Of a stored value: what the wire allows, less the event, page and message around it."""
MAX_SOURCE_BYTES: Final = 1024 * 1024
"""Of one source: its value as JSON, and each of its texts as UTF-8."""

_log = Logger("steerway.context")


class ContextKeyError(ValueError):
    """A key is not namespaced, reserved, or used twice; the message names it."""


class RenderingError(Exception):
    """A renderer failed, or what it gave cannot be used. An error of the program that owns the source, which is named."""


class EmptyRenderingError(RenderingError):
    """A renderer gave nothing to read."""


class OversizedRenderingError(RenderingError):
    """A renderer gave more than can be kept."""


def check_key(key: str) -> None:
    """Raises `ContextKeyError` unless `key` is namespaced (`acme/build-status`)."""
    if _KEY.fullmatch(key) is None:
        raise ContextKeyError(f"The context key {key!r} is not namespaced; write it like 'acme/build-status'.")


def check_contributed(key: str) -> None:
    """Raises `ContextKeyError` for the key of a contribution that is not namespaced, or in a namespace of the runtime."""
    check_key(key)
    if is_reserved(key):
        raise ContextKeyError(f"The context key {key!r} is reserved: `core/` and `api/` are the runtime's own.")


def is_reserved(key: str) -> bool:
    """Whether only the runtime itself may contribute under this key."""
    return key.startswith(_RESERVED)


def is_segment(text: str) -> bool:
    """Whether the text can be one segment of a key."""
    return _SEGMENT_ONLY.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Codec(Generic[T]):
    """`encode` gives what msgspec can turn into JSON; `decode` takes plain JSON values and raises whatever it cannot read."""

    encode: Callable[[T], Any]
    decode: Callable[[Any], T]

    def stored(self, value: T) -> Any:
        """The plain JSON value to store. Raises ValueError for a value that both wire codecs would not carry alike."""
        plain = _listed(msgspec.to_builtins(self.encode(value), order="deterministic"), 0)
        try:
            check_plain(plain)  # before the repair, which would make text of a number that is too large
        except MalformedFrameError as error:
            raise ValueError(f"the value cannot be stored: {error}") from error
        return well_formed_value(plain)


def _listed(value: Any, depth: int) -> Any:
    """The value with lists for its tuples, as it comes back from the store. Raises ValueError when it is nested too deeply."""
    if depth > MAX_NESTING:
        raise ValueError(f"the value cannot be stored: it is nested deeper than {MAX_NESTING} levels")
    match value:
        case str():
            return value
        case list() | tuple():
            return [_listed(item, depth + 1) for item in cast("list[Any]", value)]
        case dict():
            return {key: _listed(item, depth + 1) for key, item in cast("dict[Any, Any]", value).items()}
        case _:
            return value


def codec_of(kind: type[T]) -> Codec[T]:
    """The codec of a type that msgspec knows: structs, dates, `str`, ..."""

    def decode(stored: Any) -> T:
        return msgspec.convert(stored, kind)

    return Codec(lambda value: value, decode)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSource(Generic[T]):
    """`load` gives one coherent value, or `Unavailable`; it is called once for a boundary and may be cancelled.

    `baseline(value)` introduces the value. `update(previous, current)` states the newly effective one. `removed(value)` says
    that it no longer applies; it is rendered while the source is there and kept until it is gone. Raises `ContextKeyError`.
    """

    key: str
    codec: Codec[T]
    load: Callable[[], Awaitable[T | Unavailable]]
    baseline: Callable[[T], str]
    update: Callable[[T, T], str]
    removed: Callable[[T], str] | None = None

    def __post_init__(self) -> None:
        check_key(self.key)

    def rendered(self, what: str, render: Callable[[], str]) -> str:
        """The text of a renderer, fit to be stored and sent. Raises `RenderingError`."""
        try:
            text = well_formed(render())
        except Exception as error:
            _log.error("a context source cannot be rendered", key=self.key, what=what, exc_info=error)
            problem = f"{type(error).__name__}: {error}".removesuffix(": ")
            raise RenderingError(f"The context source {self.key!r} cannot render its {what} text ({problem}).") from error
        if not text.strip():
            raise EmptyRenderingError(f"The context source {self.key!r} rendered an empty {what} text.")
        if (size := len(text.encode())) > MAX_SOURCE_BYTES:
            raise OversizedRenderingError(
                f"The context source {self.key!r} rendered a {what} text of {size} bytes; at most {MAX_SOURCE_BYTES} are kept."
            )
        return text


def canonical(stored: Any) -> bytes:
    """What two stored values are compared by: key order does not count, and 1, 1.0 and true differ."""
    return msgspec.json.encode(stored, order="sorted")
