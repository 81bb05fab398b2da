"""WebSocket frames that the gateway makes itself (RFC 6455, 5.2), and the close codes it uses (ruling B7).

A server's frames are not masked, so the bytes of one serve every connection. A frame made here is whole: never fragmented.
"""

from __future__ import annotations

import struct

OPCODE_TEXT = 1
OPCODE_BINARY = 2
OPCODE_CLOSE = 8
OPCODE_PING = 9

CLOSE_GOING_AWAY = 1001
CLOSE_UNSUPPORTED = 1003
"""A text frame where the subprotocol is binary, or the other way round."""
CLOSE_POLICY = 1008
"""Not authenticated in time, or no sign of life."""
CLOSE_TOO_BIG = 1009
CLOSE_INTERNAL = 1011
CLOSE_TRY_LATER = 1013
"""The peer reads too slowly (ruling D4)."""

_REASON_BYTES = 123


def server_frame(payload: bytes, opcode: int) -> bytes:
    """One whole unmasked frame, as a server sends it."""
    size = len(payload)
    first = 0x80 | opcode
    if size < 126:
        return bytes((first, size)) + payload
    if size < 65_536:
        return struct.pack("!BBH", first, 126, size) + payload
    return struct.pack("!BBQ", first, 127, size) + payload


PING_FRAME = server_frame(b"", OPCODE_PING)


def close_frame(code: int, reason: str) -> bytes:
    """A whole close frame. The reason is cut to what a control frame holds."""
    text = reason.encode()[:_REASON_BYTES].decode(errors="ignore").encode()
    return server_frame(struct.pack("!H", code) + text, OPCODE_CLOSE)
