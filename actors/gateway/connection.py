"""The connection actor: one peer's requests, answers and subscriptions, over any transport.

Rules:
- The reader awaits nothing but the next message. A request is decoded, checked and handed to its actor there, in the order of
  the frames, and answered when ready, through a callback that does not await (ruling A11).
- The answer that opens a stream is queued before the stream may send its first item (ruling A13).
- `rpc.cancel` answers the request with `RequestCancelledError` and drops what comes later. A peer that is gone wants no
  answers. Either way letters that were not taken yet are withdrawn, and tasks cancelled (ruling A5).
- Before it has proved the token a peer may say nothing but `rpc.authenticate`, once, within a time limit (ruling B6).
- A peer with too much unsent is closed with 1013 (ruling D4).
- Nothing that fails in here reaches anybody else: a handler's defect is answered `InternalError` with a reference that also
  stands in the log, a defect of the connection closes this connection with 1011.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import trio

from ...protocol.codec import MAX_MESSAGE_BYTES, Codec
from ...protocol.rpc import Ignored, Notification, Reply, Request, RequestId, ServerEnd
from ...protocol.values.errors import (
    DeclaredError,
    InternalError,
    InvalidRequestError,
    OverloadedError,
    RequestCancelledError,
    UnauthorizedError,
)
from ..logs import Logger
from ..mailbox import Answer, refused
from ..published import Outbound
from ..subscriber import Subscription
from .frames import CLOSE_GOING_AWAY, CLOSE_INTERNAL, CLOSE_POLICY, CLOSE_TRY_LATER
from .limits import Limits, Usage
from .router import Opened

log = Logger("steerway.gateway")


class TransportClosed(Exception):
    """The peer's side of the transport has ended; nothing more can be received."""


class Transport(Protocol):
    """One peer, as whole messages."""

    @property
    def outbound(self) -> Outbound:
        """The way out: synchronous, bounded by whoever sends."""
        ...

    async def receive(self) -> bytes:
        """The next message. Raises `TransportClosed` at the end. Cancelling it loses none."""
        ...

    async def aclose(self, code: int, reason: str) -> None:
        """Say goodbye with a close code, unless the peer or the transport ended it before; bounded in time."""
        ...


class Dispatcher(Protocol):
    """What a connection needs of the router."""

    def dispatch(self, method: str, params: dict[str, Any], codec: Codec, peer: Connection) -> Answer[Any]:
        """Check a request and put its letter, now. The answer may be there already, and may be an `Opened` stream."""
        ...


def new_reference() -> str:
    """What connects an `InternalError` on the wire with its traceback in the log."""
    return secrets.token_hex(6)


class Connection:
    """The state of one peer; also what the router sees of it (its `Peer`)."""

    def __init__(
        self,
        outbound: Outbound,
        router: Dispatcher,
        *,
        request_nursery: trio.Nursery,
        codec: Codec,
        authenticated: bool,
        authenticate: Callable[[str], bool],
        limits: Limits,
        usage: Usage,
        reference: Callable[[], str],
    ) -> None:
        self.outbound = outbound
        self.authenticated = authenticated
        self.nursery = request_nursery
        self.reading = trio.CancelScope()
        """Ends the reader when the connection decides to close."""
        self.closing: tuple[int, str] | None = None
        self._router = router
        self.codec = codec
        self._authenticate = authenticate
        self._limits = limits
        self._usage = usage
        self._reference = reference
        self._end = ServerEnd(codec, max_in_flight=limits.requests)
        self._requests: dict[RequestId, Answer[Any]] = {}
        self._subscriptions: dict[int, Subscription] = {}
        self._last_subscription = 0
        self._ended = False

    # --- what the router sees ----------------------------------------------------------------------------------------

    def next_subscription(self) -> int:
        """A small integer, counted from 1 on each connection, so that most subscribers share frames (ruling B16)."""
        self._last_subscription += 1
        return self._last_subscription

    def subscription_ended(self, subscription: int, error: DeclaredError | None) -> None:
        """A stream ended by itself: say so to the peer."""
        if self._forget(subscription) is not None:
            self._send(self._end.end(subscription, error))

    # --- the way in --------------------------------------------------------------------------------------------------

    def receive(self, frame: bytes) -> None:
        """Take one message. Never awaits, never raises on what a peer sends."""
        received = self._end.receive(frame)
        if not self.authenticated:
            self._first_words(received)
            return
        match received:
            case Request():
                self._request(received)
            case Notification():
                self._told(received.method, received.params)
            case Reply():
                self._send(received.frame)
            case Ignored():
                pass

    def close(self, code: int, reason: str) -> None:
        """Stop reading and close with this code; the first call decides."""
        if self.closing is None:
            self.closing = (code, reason)
            self.reading.cancel()

    async def expire(self) -> None:
        """Close the connection unless it is authenticated in time."""
        await trio.sleep(self._limits.authenticate_seconds)
        if not self.authenticated:
            self.close(CLOSE_POLICY, "Not authenticated in time.")

    def end(self) -> None:
        """The peer is gone: end its subscriptions, and want no answers any more."""
        self._ended = True
        for subscription in tuple(self._subscriptions):
            self._unsubscribe(subscription)
        for request_id in tuple(self._requests):
            self._settle(request_id).abandon()

    def _first_words(self, received: Request | Notification | Reply | Ignored) -> None:
        match received:
            case Request(method="rpc.authenticate") | Notification(method="rpc.authenticate"):
                token = received.params.get("token")
                self.authenticated = isinstance(token, str) and self._authenticate(token)
                if self.authenticated:
                    if isinstance(received, Request):
                        self._send(self._end.result(received.id, None))
                    return
            case Reply():
                self._send(received.frame)
            case _:
                pass
        if isinstance(received, Request):
            error = UnauthorizedError("Send the right token with `rpc.authenticate` before anything else.")
            self._send(self._end.error(received.id, error))
        self.close(CLOSE_POLICY, "Not authenticated.")

    def _request(self, request: Request) -> None:
        if request.method in ("rpc.authenticate", "rpc.cancel", "rpc.unsubscribe"):
            self._told(request.method, request.params)
            self._send(self._end.result(request.id, None))
            return
        if self._usage.requests >= self._limits.requests_in_all:
            error = OverloadedError("The server has as many requests in flight as it takes; ask again a little later.")
            self._send(self._end.error(request.id, error))
            return
        try:
            answer = self._router.dispatch(request.method, request.params, self.codec, self)
        except Exception as error:
            answer = refused(error)
        self._requests[request.id] = answer
        self._usage.requests += 1
        answer.when_done(partial(self._answered, request.id, request.method))

    def _told(self, method: str, params: dict[str, Any]) -> None:
        """A call that needs no answer. What it names may be over already: then it means nothing."""
        match method, params:
            case ("rpc.cancel", {"id": bool()}) | ("rpc.unsubscribe", {"subscription": bool()}):
                pass  # `true` is no 1
            case "rpc.cancel", {"id": int() | str() as request_id} if request_id in self._requests:
                self._settle(request_id).abandon()
                error = RequestCancelledError("Cancelled; whether it took effect is unknown. Ask again with the same id.")
                self._send(self._end.error(request_id, error))
            case "rpc.unsubscribe", {"subscription": int() as subscription} if subscription in self._subscriptions:
                self._unsubscribe(subscription)
                self._send(self._end.end(subscription, None))
            case _:
                pass

    # --- the way out -------------------------------------------------------------------------------------------------

    def _answered(self, request_id: RequestId, method: str, answer: Answer[Any]) -> None:
        """An answer is there. Runs in the task of whoever settled it, so nothing may escape."""
        try:
            if self._requests.get(request_id) is not answer:
                self._dropped(answer)
                return
            self._settle(request_id)
            self._send(self._answer_frame(request_id, method, answer))
            value = None if answer.error is not None else answer.result()
            if isinstance(value, Opened) and value.number in self._subscriptions:
                value.subscription.start()
        except Exception:
            reference = self._reference()
            log.exception("connection_failed", reference=reference, method=method)
            self.close(CLOSE_INTERNAL, f"A defect of the server; its log says more under {reference}.")

    def _answer_frame(self, request_id: RequestId, method: str, answer: Answer[Any]) -> bytes:
        error = answer.error
        if error is None:
            value = answer.result()
            try:
                frame = self._end.result(request_id, self._open(value) if isinstance(value, Opened) else value)
                if len(frame) <= MAX_MESSAGE_BYTES:
                    return frame
                error = InvalidRequestError("The answer would be larger than a message may be; ask for less at once.")
            except Exception as failure:
                error = failure
        if not isinstance(error, DeclaredError):
            reference = self._reference()
            log.error("request_failed", reference=reference, method=method, exc_info=error)
            error = InternalError("A defect of the server; its log says more under this reference.", reference=reference)
        return self._end.error(request_id, error)

    def _open(self, opened: Opened) -> Any:
        """Take a new subscription in, if there is room; the result that says so."""
        if len(self._subscriptions) >= self._limits.subscriptions or (
            self._usage.subscriptions >= self._limits.subscriptions_in_all
        ):
            opened.subscription.close()
            raise OverloadedError(f"At most {self._limits.subscriptions} streams may be open on one connection; end one first.")
        self._subscriptions[opened.number] = opened.subscription
        self._usage.subscriptions += 1
        return opened.result

    def _dropped(self, answer: Answer[Any]) -> None:
        """Nobody waits for this answer any more: a stream that it opened must not stay open."""
        if answer.error is None and isinstance(opened := answer.result(), Opened):
            opened.subscription.close()

    def _send(self, payload: bytes) -> None:
        if not self._ended:
            queued = self.outbound.try_send(self.outbound.frame(payload))
            if queued < 0 or queued > self._limits.unsent_bytes:
                # Gone, given up, or about to be: nothing more of this peer is handed over.
                self.close(CLOSE_TRY_LATER, "Too much is unsent.")

    def _settle(self, request_id: RequestId) -> Answer[Any]:
        self._usage.requests -= 1
        return self._requests.pop(request_id)

    def _forget(self, subscription: int) -> Subscription | None:
        found = self._subscriptions.pop(subscription, None)
        if found is not None:
            self._usage.subscriptions -= 1
        return found

    def _unsubscribe(self, subscription: int) -> None:
        found = self._forget(subscription)
        if found is not None:
            found.close()


async def serve_connection(
    transport: Transport,
    router: Dispatcher,
    *,
    codec: Codec,
    authenticated: bool,
    authenticate: Callable[[str], bool],
    limits: Limits | None = None,
    usage: Usage | None = None,
    reference: Callable[[], str] = new_reference,
) -> None:
    """The whole life of one connection: returns when the peer is gone or was closed. Raises nothing but cancellation.

    Cancelling it closes the transport with 1001, bounded by the transport's goodbye. `usage` counts for all connections that
    share it. `authenticate` says whether a token is right.
    """
    farewell = (CLOSE_GOING_AWAY, "The server is stopping.")
    try:
        try:
            async with trio.open_nursery() as request_nursery:
                connection = Connection(
                    transport.outbound,
                    router,
                    request_nursery=request_nursery,
                    codec=codec,
                    authenticated=authenticated,
                    authenticate=authenticate,
                    limits=limits or Limits(),
                    usage=usage or Usage(),
                    reference=reference,
                )
                try:
                    if not authenticated:
                        request_nursery.start_soon(connection.expire)
                    with connection.reading:
                        while connection.closing is None:
                            connection.receive(await transport.receive())
                except TransportClosed:
                    pass
                finally:
                    connection.end()
                    request_nursery.cancel_scope.cancel()
                farewell = connection.closing or farewell
        except* Exception:
            told = reference()
            log.exception("connection_failed", reference=told)
            farewell = (CLOSE_INTERNAL, f"A defect of the server; its log says more under {told}.")
    finally:
        with trio.CancelScope(shield=True):
            await transport.aclose(*farewell)
