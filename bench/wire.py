"""The cheapest possible peers: blocking sockets that speak just enough WebSocket, so that the peer costs next to nothing.

Rules:
- A client must mask its frames; a mask of zeros is a mask, and leaves the bytes as they are.
- Frames of the server are counted or cut out, and never decoded here.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from typing import Any

import msgspec

SUBPROTOCOL = "steerway.v1.msgpack"
MASK_BYTES = 4


def client_frame(payload: bytes) -> bytes:
    """One whole binary frame with a mask of zeros."""
    size = len(payload)
    if size < 126:
        head = struct.pack("!BB", 0x82, 0x80 | size)
    else:
        head = struct.pack("!BBH", 0x82, 0x80 | 126, size)
    return head + bytes(MASK_BYTES) + payload


def call(request_id: int, method: str, params: Mapping[str, Any]) -> bytes:
    """The frame of a request."""
    message = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
    return client_frame(msgspec.msgpack.encode(message))


def upgrade(port: int, token: str) -> tuple[socket.socket, bytes]:
    """A connected WebSocket, and what the server sent behind its handshake."""
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    head = [
        "GET / HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Protocol: {SUBPROTOCOL}",
        f"Authorization: Bearer {token}",
    ]
    sock.sendall(("\r\n".join(head) + "\r\n\r\n").encode())
    received = b""
    while b"\r\n\r\n" not in received:
        data = sock.recv(65_536)
        if not data:
            raise ConnectionError(f"refused: {received!r}")
        received += data
    answer, _, rest = received.partition(b"\r\n\r\n")
    if not answer.startswith(b"HTTP/1.1 101"):
        raise ConnectionError(f"refused: {answer!r}")
    return sock, rest


def cut_frames(received: bytearray) -> list[bytes]:
    """The payloads of all whole frames at the front, which are removed."""
    payloads: list[bytes] = []
    start = 0
    while len(received) - start >= 2:
        size, head = received[start + 1] & 0x7F, 2
        if size == 126:
            size, head = int.from_bytes(received[start + 2 : start + 4], "big"), 4
        elif size == 127:
            size, head = int.from_bytes(received[start + 2 : start + 10], "big"), 10
        end = start + head + size
        if end > len(received):
            break
        payloads.append(bytes(received[start + head : end]))
        start = end
    del received[:start]
    return payloads
