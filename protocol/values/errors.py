"""Every error an operation can answer with, in one table: name, code, whether asking again can help.

Rules:
- A declared error is a tagged value on the wire (`data._tag` and its fields beside it); the class is a convenience. A
  client that meets a tag it does not know raises `DeclaredError` itself, with tag and fields kept.
- `ClientError` is the one infrastructure error of a client; it never crosses the wire.
- Errors are sorted by blame: the caller's, the provider's, the world's, ours. Messages say what to do. No traceback and
  no secret ever stands in one.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

JSONRPC_PARSE_ERROR = -32700
JSONRPC_INVALID_REQUEST = -32600
JSONRPC_METHOD_NOT_FOUND = -32601
JSONRPC_INVALID_PARAMS = -32602
JSONRPC_INTERNAL_ERROR = -32603


class SteerwayError(Exception):
    """Everything this package raises on purpose."""


class DeclaredError(SteerwayError):
    """A declared failure of an operation: `tag`, `message`, and further `fields` (JSON values).

    Subclasses fix `code` (the JSON-RPC error code) and `retryable` (whether the same request may work later).
    """

    code: ClassVar[int] = -32000
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, tag: str | None = None, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.tag = tag or type(self).__name__
        self.fields: dict[str, Any] = fields

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.tag, self.fields))


def _rebuild(kind: type[DeclaredError], message: str, tag: str, fields: dict[str, Any]) -> DeclaredError:
    return kind(message, tag=tag, **fields)


# --- the caller's -------------------------------------------------------------------------------------------------


class InvalidRequestError(DeclaredError):
    """The request cannot mean anything; `field` names the part that is wrong, where one is."""

    code = JSONRPC_INVALID_PARAMS


class MethodNotFoundError(DeclaredError):
    """No operation has that name; `method` repeats it."""

    code = JSONRPC_METHOD_NOT_FOUND


class UnauthorizedError(DeclaredError):
    """No token, or a wrong one."""

    code = -32001


class SessionNotFoundError(DeclaredError):
    """No session has that `session_id`."""

    code = -32010


class MessageNotFoundError(DeclaredError):
    """The session has no message with that `message_id`; also said of another session's message."""

    code = -32011


class PromptNotFoundError(DeclaredError):
    """The session's inbox never held a prompt with that `message_id`."""

    code = -32012


class PermissionNotFoundError(DeclaredError):
    """No permission request has that `request_id`."""

    code = -32013


class QuestionNotFoundError(DeclaredError):
    """No question has that `request_id`."""

    code = -32014


class AgentNotFoundError(DeclaredError):
    """No agent has that name."""

    code = -32015


class ConflictError(DeclaredError):
    """The id is taken by something different; nothing was changed."""

    code = -32020


class InvalidCursorError(DeclaredError):
    """The page cursor is malformed, or belongs to another query."""

    code = -32021


class CursorExpiredError(DeclaredError):
    """The durable position is not in this store's history (`generation`, `head`); start again from `sessions.get`."""

    code = -32022


class InboxFullError(DeclaredError):
    """The session holds as many pending inputs as it may (`limit`); nothing was admitted."""

    code = -32023
    retryable = True


class RequestCancelledError(DeclaredError):
    """The request was cancelled by its caller. Whether it took effect is unknown: ask again with the same id."""

    code = -32024


class SubscriberOverflowError(DeclaredError):
    """This live subscriber fell too far behind; read the state anew and subscribe again."""

    code = -32025
    retryable = True


class ModelUnavailableError(DeclaredError):
    """The catalog has no such model. No other model is taken in its place."""

    code = -32030


class VariantUnavailableError(ModelUnavailableError):
    """The model is there, but has no such variant; no other one is taken in its place."""

    code = -32032


class ModelNotSelectedError(DeclaredError):
    """Neither the session nor the configuration names a model."""

    code = -32031


# --- the world's --------------------------------------------------------------------------------------------------


class OverloadedError(DeclaredError):
    """A bounded queue is full; ask again a little later."""

    code = -32040
    retryable = True


class StorageUnavailableError(DeclaredError):
    """The store could not commit, or could not be read; nothing of the request was recorded."""

    code = -32041
    retryable = True


class ServiceUnavailableError(DeclaredError):
    """The runtime is stopping."""

    code = -32042
    retryable = True


class ActorStopped(DeclaredError):
    """The actor ended before it took the letter; nothing of it was done."""

    code = -32043
    retryable = True


class StoreInUseError(DeclaredError):
    """Another process owns the store; `pid` and `host` name it."""

    code = -32044


class StoreVersionError(DeclaredError):
    """The store, or the SQLite library, has a version this program refuses."""

    code = -32045


class StoreUnsuitableError(DeclaredError):
    """The store cannot be opened as asked: a network file system, a wrong mode, a file that is no store."""

    code = -32046


class ContextUnavailableError(DeclaredError):
    """The first baseline would be incomplete: `keys` of the System Context cannot be observed now. Input stays pending."""

    code = -32047
    retryable = True


# --- ours ---------------------------------------------------------------------------------------------------------


class InternalError(DeclaredError):
    """A defect of ours; `reference` also stands in the log beside the traceback."""

    code = JSONRPC_INTERNAL_ERROR


ERROR_TYPES: dict[str, type[DeclaredError]] = {
    error.__name__: error
    for error in (
        InvalidRequestError,
        MethodNotFoundError,
        UnauthorizedError,
        SessionNotFoundError,
        MessageNotFoundError,
        PromptNotFoundError,
        PermissionNotFoundError,
        QuestionNotFoundError,
        AgentNotFoundError,
        ConflictError,
        InvalidCursorError,
        CursorExpiredError,
        InboxFullError,
        RequestCancelledError,
        SubscriberOverflowError,
        ModelUnavailableError,
        VariantUnavailableError,
        ModelNotSelectedError,
        OverloadedError,
        StorageUnavailableError,
        ServiceUnavailableError,
        ActorStopped,
        StoreInUseError,
        StoreVersionError,
        StoreUnsuitableError,
        ContextUnavailableError,
        InternalError,
    )
}
"""Every declared error by its tag."""


def declared_error(tag: str, message: str, fields: dict[str, Any]) -> DeclaredError:
    """The error a tagged wire value stands for; an unknown tag gives a plain `DeclaredError`."""
    kept = {name: value for name, value in fields.items() if name not in ("message", "tag")}
    return ERROR_TYPES.get(tag, DeclaredError)(message, tag=tag, **kept)


ClientFailure = Literal["transport", "closed", "timeout", "malformed", "refused", "unsupported_subprotocol"]


class ClientError(SteerwayError):
    """The client could not get an answer. `reason` says why; `status` is the handshake's, when it was refused."""

    def __init__(self, reason: ClientFailure, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.status = status


class RuntimeFailedError(SteerwayError):
    """A part of the runtime failed in the background and ended it; `__cause__` is the reason (ruling D1)."""
