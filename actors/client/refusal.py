"""How a WebSocket that did not open, or came to its end, is told as a `ClientError`."""

from __future__ import annotations

import trio_websocket

from ...protocol.codec import Codec
from ...protocol.values.errors import ClientError

MAX_SENTENCE = 2000
"""Characters of a refusal's body that are kept."""


def refusal(address: str, status: int, body: bytes) -> ClientError:
    sentence = body.decode("utf-8", "replace").strip()[:MAX_SENTENCE]
    return ClientError("refused", sentence or f"{address} refused the connection with status {status}.", status=status)


def unsupported(address: str, codec: Codec) -> ClientError:
    return ClientError("unsupported_subprotocol", f"{address} does not speak {codec.subprotocol}.")


def unfinished(address: str, codec: Codec, seen: bytes) -> ClientError:
    """Why a handshake ended without an answer that the WebSocket library accepts, from what the server said."""
    head, _, body = seen.partition(b"\r\n\r\n")
    status = head.split(b" ", 2)[1:2] if head.startswith(b"HTTP/1.") else []
    match status:
        case [b"101"] if b"sec-websocket-protocol" in head.lower():
            return unsupported(address, codec)
        case [digits] if digits.isdigit() and digits != b"101":
            return refusal(address, int(digits), body)
        case _:
            return ClientError("transport", f"{address} ended the handshake without a usable answer; is it one of our servers?")


def ending(address: str, reason: trio_websocket.CloseReason | None) -> ClientError:
    if reason is None or reason.code == 1006:
        return ClientError("transport", f"The connection to {address} was lost.")
    sentence = f": {reason.reason}" if reason.reason else ""
    return ClientError("closed", f"{address} closed the connection ({reason.code}{sentence}).")
