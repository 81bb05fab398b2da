"""JSON-RPC 2.0 in both directions, sans-IO: frames in, typed happenings out, and the other way round.

Rules:
- Params are always an object. A batch array is an invalid request. An id is a string of at most 200 characters or an
  integer; one that is in flight twice is an invalid request (ruling B14).
- A call without an id is a notification: only `rpc.*` ones mean something, any other is counted and ignored.
- A fault of content is answered with its error, under the id where one can be read and under null where not; the
  connection goes on. Faults of framing are not seen here.
- Neither end ever raises on what a peer sends, except the client: a server that breaks the envelope is `MalformedFrameError`.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from .codec import Codec, MalformedFrameError
from .values.errors import (
    JSONRPC_INVALID_REQUEST,
    JSONRPC_PARSE_ERROR,
    DeclaredError,
    InvalidRequestError,
    OverloadedError,
    declared_error,
)
from .values.ids import MAX_ID_LENGTH
from .values.value import Value

RequestId = int | str

MAX_METHOD_LENGTH = 200

T = TypeVar("T")


# --- what the server end makes of a frame -------------------------------------------------------------------------


class Request(Value):
    """A call that wants an answer; its id is in flight until `result` or `error` is made for it."""

    id: RequestId
    method: str
    params: dict[str, Any]


class Notification(Value):
    """An `rpc.*` call without an id."""

    method: str
    params: dict[str, Any]


class Reply(Value):
    """The frame was no usable call; `frame` is the answer to send back."""

    frame: bytes


class Ignored(Value):
    """A notification that means nothing here."""


class ServerEnd:
    """The answering end of one connection."""

    def __init__(self, codec: Codec, *, max_in_flight: int) -> None:
        self.codec = codec
        self.ignored = 0
        self._max_in_flight = max_in_flight
        self._in_flight: set[RequestId] = set()

    @property
    def in_flight(self) -> frozenset[RequestId]:
        """The ids that still wait for their answer."""
        return frozenset(self._in_flight)

    def receive(self, frame: bytes) -> Request | Notification | Reply | Ignored:
        """What a frame asks for. Never raises."""
        try:
            message = self.codec.unpack(frame)
        except MalformedFrameError as error:
            return self._fault(None, JSONRPC_PARSE_ERROR, f"The message cannot be read: {error}.")
        if not isinstance(message, dict):
            what = "a batch" if isinstance(message, list) else "not an object"
            return self._fault(None, JSONRPC_INVALID_REQUEST, f"The message is {what}; send one request object a frame.")
        envelope: dict[str, Any] = message  # pyright: ignore[reportUnknownVariableType]
        request_id = envelope.get("id")
        if "id" in envelope and not _is_request_id(request_id):
            return self._fault(
                None,
                JSONRPC_INVALID_REQUEST,
                f"`id` must be an integer or a string of 1 to {MAX_ID_LENGTH} characters.",
            )
        if envelope.get("jsonrpc") != "2.0":
            return self._fault(request_id, JSONRPC_INVALID_REQUEST, '`jsonrpc` must be "2.0".')
        method = envelope.get("method")
        if not isinstance(method, str) or not 1 <= len(method) <= MAX_METHOD_LENGTH:
            return self._fault(request_id, JSONRPC_INVALID_REQUEST, "`method` must name an operation.")
        params = envelope.get("params", {})
        if not isinstance(params, dict):
            return self._fault(request_id, JSONRPC_INVALID_REQUEST, "`params` must be an object.")
        typed_params: dict[str, Any] = params  # pyright: ignore[reportUnknownVariableType]
        if request_id is None:
            if method.startswith("rpc."):
                return Notification(method=method, params=typed_params)
            self.ignored += 1
            return Ignored()
        if request_id in self._in_flight:
            return self._fault(None, JSONRPC_INVALID_REQUEST, f"The id {request_id!r} is already in flight.")
        if len(self._in_flight) >= self._max_in_flight:
            busy = OverloadedError(f"At most {self._max_in_flight} requests may be in flight on one connection.")
            return Reply(frame=self._error_frame(request_id, busy))
        self._in_flight.add(request_id)
        return Request(id=request_id, method=method, params=typed_params)

    def result(self, request_id: RequestId, value: Any) -> bytes:
        """The frame that answers a request in flight with a value, which settles the id."""
        self._in_flight.discard(request_id)
        return self.codec.encode({"jsonrpc": "2.0", "id": request_id, "result": value})

    def error(self, request_id: RequestId, error: DeclaredError) -> bytes:
        """The frame that answers a request in flight with a declared error, which settles the id."""
        self._in_flight.discard(request_id)
        return self._error_frame(request_id, error)

    def end(self, subscription: int, error: DeclaredError | None) -> bytes:
        """The `end` notification of a stream."""
        params: dict[str, Any] = {"subscription": subscription}
        if error is not None:
            params["error"] = _error_object(error)
        return self.codec.encode({"jsonrpc": "2.0", "method": "end", "params": params})

    def _error_frame(self, request_id: RequestId, error: DeclaredError) -> bytes:
        return self.codec.encode({"jsonrpc": "2.0", "id": request_id, "error": _error_object(error)})

    def _fault(self, request_id: RequestId | None, code: int, message: str) -> Reply:
        error = {"code": code, "message": message, "data": {"_tag": "InvalidRequestError"}}
        return Reply(frame=self.codec.encode({"jsonrpc": "2.0", "id": request_id, "error": error}))


# --- what the client end makes of a frame -------------------------------------------------------------------------


class Result(Value):
    """The answer to a call; `raw` is decoded once the operation is known."""

    id: RequestId
    raw: msgspec.Raw


class Failed(Value):
    """A call failed. `id` is None when the server could not tell which (a defect of the sender)."""

    id: RequestId | None
    error: DeclaredError


class Item(Value):
    """One event of a stream; `raw` are its encoded bytes."""

    subscription: int
    raw: msgspec.Raw


class End(Value):
    """A stream is over; `error` says why, unless it was asked for."""

    subscription: int
    error: DeclaredError | None


class _WireError(Value):
    code: int
    message: str
    data: dict[str, Any] | None = None


class _WireParams(Value):
    subscription: int
    event: msgspec.Raw = msgspec.Raw(b"")
    error: _WireError | None = None


class _WireMessage(Value):
    jsonrpc: str
    id: RequestId | None = None
    method: str | None = None
    params: _WireParams | None = None
    result: msgspec.Raw = msgspec.Raw(b"")
    error: _WireError | None = None


class ClientEnd:
    """The asking end of one connection. Ids are integers counted from 1."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self._last_id = 0

    def call(self, method: str, params: Any) -> tuple[int, bytes]:
        """A request and its id. `params` is a Struct or an object of plain values."""
        self._last_id += 1
        message = {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params}
        return self._last_id, self.codec.encode(message)

    def notify(self, method: str, params: Any) -> bytes:
        """A call without an answer."""
        return self.codec.encode({"jsonrpc": "2.0", "method": method, "params": params})

    def receive(self, frame: bytes) -> Result | Failed | Item | End | None:
        """What the server says; None for a notification of a kind this client does not know.

        Raises `MalformedFrameError` when the frame is not an envelope.
        """
        try:
            message = self.codec.decode(frame, _WireMessage)
        except msgspec.DecodeError as error:
            raise MalformedFrameError(f"it is not an envelope ({error})") from error
        params = message.params
        match message.method:
            case "next" if params is not None and len(params.event):
                return Item(subscription=params.subscription, raw=params.event)
            case "end" if params is not None:
                return End(subscription=params.subscription, error=_declared(params.error) if params.error else None)
            case None if message.error is not None:
                return Failed(id=message.id, error=_declared(message.error))
            case None if message.id is not None and len(message.result):
                return Result(id=message.id, raw=message.result)
            case None:
                raise MalformedFrameError("it is neither an answer nor a notification")
            case _:
                return None

    def value(self, raw: msgspec.Raw, kind: type[T]) -> T:
        """The typed result of an answer. Raises `MalformedFrameError` when it does not have the declared shape."""
        try:
            return self.codec.decode(raw, kind)
        except msgspec.DecodeError as error:
            raise MalformedFrameError(f"its result does not have the declared shape ({error})") from error


def _is_request_id(value: Any) -> bool:
    match value:
        case bool() | None:
            return False
        case int():
            return True
        case str():
            return 1 <= len(value) <= MAX_ID_LENGTH
        case _:
            return False


def _error_object(error: DeclaredError) -> dict[str, Any]:
    data: dict[str, Any] = {**error.fields, "_tag": error.tag}
    if error.retryable:
        data["retryable"] = True
    return {"code": error.code, "message": error.message, "data": data}


def _declared(wire: _WireError) -> DeclaredError:
    data = dict(wire.data or {})
    tag = data.pop("_tag", None)
    data.pop("retryable", None)
    if not isinstance(tag, str):
        return InvalidRequestError(wire.message, tag="InvalidRequestError", code=wire.code, **_kept(data))
    return declared_error(tag, wire.message, data)


def _kept(data: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name not in ("message", "tag", "code")}
