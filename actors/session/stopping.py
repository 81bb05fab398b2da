"""Why a drain is being stopped; set before it is cancelled, read when it settles."""

from __future__ import annotations

from typing import Literal


class StopReason:
    """`user` unless the runtime is shutting down."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: Literal["user", "shutdown"] = "user"
