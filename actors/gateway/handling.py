"""What all handlers share: what they are told of the caller, what they answer with, and how a read becomes a task."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec
import trio

from ...protocol.codec import Codec
from ...protocol.values.errors import DeclaredError, InvalidRequestError, ServiceUnavailableError
from ...protocol.values.ids import MAX_ID_LENGTH, is_well_formed
from ...protocol.values.model import ModelRef
from ...protocol.values.value import Value
from ..mailbox import Answer
from ..published import Outbound
from ..subscriber import Subscription


class Peer(Protocol):
    """The connection a request came from."""

    @property
    def outbound(self) -> Outbound: ...

    @property
    def codec(self) -> Codec:
        """How answers to it are encoded."""
        ...

    @property
    def nursery(self) -> trio.Nursery: ...

    @property
    def authenticated(self) -> bool: ...

    def next_subscription(self) -> int:
        """A number for a subscription that is about to open; counted per connection from 1."""
        ...

    def subscription_ended(self, subscription: int, error: DeclaredError | None) -> None:
        """A subscription ended by itself."""
        ...


Handler = Callable[[Any, Peer], Answer[Any]]
"""Takes the typed params, now; answers when it can. It may raise a `DeclaredError` at once."""


class Opened:
    """The answer of a stream operation: queue the answer frame, keep the subscription, then start it."""

    __slots__ = ("number", "result", "subscription")

    def __init__(self, result: Value, number: int, subscription: Subscription) -> None:
        self.result = result
        self.number = number
        self.subscription = subscription


class _TaskAnswer(Answer[Any]):
    """The answer of a task; abandoning it cancels the task."""

    __slots__ = ("scope",)

    def __init__(self) -> None:
        super().__init__()
        self.scope = trio.CancelScope()

    def abandon(self) -> None:
        super().abandon()
        self.scope.cancel(reason="nobody wants the answer any more")


def in_task(peer: Peer, work: Callable[[], Awaitable[Any]]) -> Answer[Any]:
    """Run `work` in a task of the connection; a defect in it is the answer's, never the connection's.

    When nobody wants the answer any more the task is cancelled: a letter that it waits for is withdrawn while that can be
    (`reply_to`), and what was posted to the store runs all the same (ruling A5).
    """
    answer = _TaskAnswer()

    async def run() -> None:
        try:
            with answer.scope:
                answer.resolve(await work())
        except Exception as error:
            answer.fail(error)
        finally:
            answer.fail(ServiceUnavailableError("The connection ended."))

    peer.nursery.start_soon(run)
    return answer


async def reply_to(letter: Answer[Any]) -> Any:
    """Wait for the answer to a letter. Cancelled, it withdraws the letter, unless that was taken already (ruling A5)."""
    try:
        return await letter.wait()
    except trio.Cancelled:
        letter.abandon()
        raise


MAX_METADATA_BYTES = 64 * 1024
"""Of one session or prompt, in MessagePack: a whole page of sessions fits into one message."""

_NAME = 200


def check_metadata(metadata: dict[str, Any] | None) -> None:
    """Raise `InvalidRequestError` when there is too much of it."""
    if metadata is not None and len(msgspec.msgpack.encode(metadata)) > MAX_METADATA_BYTES:
        raise InvalidRequestError(f"metadata takes at most {MAX_METADATA_BYTES} bytes.", field="metadata")


def check_model(model: ModelRef | None) -> None:
    """Raise `InvalidRequestError` unless its names are of a length that names have."""
    if model is not None and any(len(name) > _NAME for name in (model.provider, model.id, model.variant or "")):
        raise InvalidRequestError(f"The names of a model have at most {_NAME} characters.", field="model")


def check_id(text: str, prefix: str, field: str) -> None:
    """Raise `InvalidRequestError` unless `text` may be an id of that kind (ruling C1)."""
    if not is_well_formed(text, prefix):
        raise InvalidRequestError(
            f"{field} must begin with {prefix!r} and have 1 to {MAX_ID_LENGTH} characters of A-Z a-z 0-9 _ -.", field=field
        )
