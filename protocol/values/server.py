"""What a server says of itself."""

from __future__ import annotations

from .ids import Generation
from .value import Value


class Health(Value):
    """It answers, so it is healthy."""

    healthy: bool


class ServerLimits(Value):
    """The named limits of the wire, in bytes, counts and milliseconds."""

    max_message_bytes: int
    max_depth: int
    max_id_length: int
    max_prompt_bytes: int
    max_requests_in_flight: int
    max_subscriptions: int


class ServerInfo(Value):
    """Name and version of the program, and the identity of the store's history."""

    name: str
    version: str
    generation: Generation
    limits: ServerLimits
