"""A bounded ordered result with links to its neighbours."""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

from .ids import PageCursor
from .value import Value

T = TypeVar("T")

Order = Literal["asc", "desc"]

DEFAULT_LIMIT = 50
MAX_LIMIT = 200


class Page(Value, Generic[T]):
    """`items` in the order asked for; a link is there only where there is more (wire contract)."""

    items: tuple[T, ...]
    previous: PageCursor | None = None
    next: PageCursor | None = None
