"""The router: every operation of the contract has one handler, and every caller comes through here.

Rules:
- Dispatch is synchronous. Decoding, checking and putting the letter happen at once, so that requests reach their actor in
  the order of their frames (ruling A11); only reads get a task of the connection's nursery.
- Nothing is raised at a connection: an unknown method, wrong params or a refused letter is a failed answer.
- Guards come from the contract. A session's existence is checked by its actor, or by the read itself.
- Start-up fails when handlers and contract differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ...protocol.codec import Codec
from ...protocol.operations import CONTRACT
from ...protocol.values.errors import (
    DeclaredError,
    InvalidRequestError,
    MethodNotFoundError,
    ServiceUnavailableError,
    UnauthorizedError,
)
from ..mailbox import Answer, refused
from .handling import Handler, Opened, Peer, check_id

__all__ = ["Opened", "Peer", "Router"]


class Router:
    """Maps the contract to handlers, given by wire method. Raises `ValueError` when they are not the contract's."""

    def __init__(self, *handlers: Mapping[str, Handler]) -> None:
        self._handlers: dict[str, Handler] = {}
        for group in handlers:
            self._handlers.update(group)
        CONTRACT.check_handlers(self._handlers)
        self._stopping = False

    def stop(self) -> None:
        """From now on every request is answered `ServiceUnavailableError`."""
        self._stopping = True

    def dispatch(self, method: str, params: dict[str, Any], codec: Codec, peer: Peer) -> Answer[Any]:
        """Start an operation; its answer resolves with a value to encode, or with `Opened`."""
        operation = CONTRACT.operations.get(method)
        if operation is None:
            return refused(MethodNotFoundError(f"There is no operation {method!r}.", method=method))
        if self._stopping:
            return refused(ServiceUnavailableError("The runtime is stopping."))
        if "authenticated" in operation.guards and not peer.authenticated:
            return refused(UnauthorizedError("Say `rpc.authenticate` with the token first."))
        try:
            typed = codec.convert(params, operation.params)
            if "session" in operation.guards:
                check_id(typed.session_id, "ses_", "session_id")
            return self._handlers[method](typed, peer)
        except msgspec.ValidationError as error:
            return refused(_invalid_params(error))
        except DeclaredError as error:
            return refused(error)


def _invalid_params(error: msgspec.ValidationError) -> InvalidRequestError:
    message = str(error)
    field = message.rsplit("`$.", 1)[1].rstrip("`") if "`$." in message else None
    if field is None and "unknown field" in message:
        field = message.rsplit("`", 2)[-2]
    fields = {"field": field[:200]} if field else {}
    return InvalidRequestError(f"The params are not right: {message[:1000]}.", **fields)
