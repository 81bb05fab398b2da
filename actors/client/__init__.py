"""The other end of the wire, by socket or in memory: it may use the protocol, never the runtime or the store."""

from .client import Client
from .follow import Following
from .memory import MemoryPeer, MemoryTransport, memory_pair
from .opening import connect
from .scope import Background
from .stream import EventStream
from .transport import Opener, Transport

__all__ = [
    "Background",
    "Client",
    "EventStream",
    "Following",
    "MemoryPeer",
    "MemoryTransport",
    "Opener",
    "Transport",
    "connect",
    "memory_pair",
]
