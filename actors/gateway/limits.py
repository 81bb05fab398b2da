"""The named limits of the gateway, and what is used of those that count for all connections together."""

from __future__ import annotations

from ...protocol.values.value import Value


class Limits(Value):
    """Counts, bytes and seconds; the defaults are the contract's (wire contract, "Who may speak"; ruling D4)."""

    connections: int = 1_024
    requests: int = 1_024
    """In flight on one connection."""
    requests_in_all: int = 16_384
    subscriptions: int = 256
    """Open on one connection."""
    subscriptions_in_all: int = 16_384
    unsent_bytes: int = 32 * 1024 * 1024
    handshake_seconds: float = 10.0
    """For TLS and the request head together."""
    authenticate_seconds: float = 10.0
    unauthenticated_bytes: int = 64 * 1024
    """Sent by a peer before it has proved the token, so that strangers cannot make us hold large messages."""
    ping_seconds: float = 20.0
    missed_pings: int = 2


class Usage:
    """What all connections of one gateway use together."""

    __slots__ = ("connections", "requests", "subscriptions")

    def __init__(self) -> None:
        self.connections = 0
        self.requests = 0
        self.subscriptions = 0
