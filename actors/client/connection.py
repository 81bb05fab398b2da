"""One connection to a server, seen by its callers: calls that wait for answers, and the intakes of streams.

Rules:
- One task reads and never waits for a caller or a consumer (ruling A15), so answers and other streams always pass.
- A frame is handed to the transport in one step, after waiting for room; a cancelled caller has sent its frame whole or not
  at all. It then sends `rpc.cancel` and its late answer is dropped (wire contract, "Client").
- A stream's opening answer is looked at by the reader, so that its first item finds the intake.
- The first failure ends the connection for good: every call and every stream learns it, and nothing reconnects.
"""

from __future__ import annotations

import math
from typing import Any, Protocol, TypeVar, cast

import msgspec
import trio

from ...protocol.codec import MAX_MESSAGE_BYTES, Codec, MalformedFrameError
from ...protocol.rpc import ClientEnd, End, Failed, Item, Result
from ...protocol.values.errors import ClientError, ClientFailure, DeclaredError, InvalidRequestError
from .intake import Intake
from .transport import Transport
from .wellformed import repaired, unfit

T = TypeVar("T")

CLOSE_SECONDS = 1.0
"""How long an orderly close may take before the connection is dropped."""


class _Opening(Protocol):
    """The answer of every operation that opens a stream has at least this."""

    subscription: int


class _Call:
    __slots__ = ("answer", "answered", "intake", "kind", "opening")

    def __init__(self, kind: Any, intake: Intake | None) -> None:
        self.kind = kind
        self.intake = intake
        self.answered = trio.Event()
        self.answer: Result | Failed | ClientError | None = None
        self.opening: Any = None

    def settle(self, answer: Result | Failed | ClientError) -> None:
        self.answer = answer
        self.answered.set()


class Connection:
    """Owns the transport from now on; its reader runs in `nursery` and lets no failure of the connection into it."""

    def __init__(self, transport: Transport, codec: Codec, nursery: trio.Nursery) -> None:
        self.codec = codec
        self.failure: ClientError | None = None
        self.token = trio.lowlevel.current_trio_token()
        self._transport = transport
        self._end = ClientEnd(codec)
        self._calls: dict[Any, _Call] = {}
        self._intakes: dict[int, Intake] = {}
        self._abandoned: dict[Any, Any] = {}
        """Stream openings whose caller is gone, with the type of their answer: what they open is closed again."""
        self._reading = trio.CancelScope()
        self.closed = False
        """Whether our side wanted the end."""
        nursery.start_soon(self._read)

    # --- calls ----------------------------------------------------------------------------------------------------

    async def call(self, method: str, params: msgspec.Struct, kind: Any, *, timeout: float | None = None) -> Any:
        """The answer to one request, as a `kind`. `timeout` is in seconds.

        Raises the `DeclaredError` of the answer, `InvalidRequestError` for what cannot be sent, else `ClientError`. Cancelled
        or timed out, whether the request took effect is unknown (ruling A5).
        """
        call = await self._request(method, params, kind, None, timeout)
        match call.answer:
            case Result(raw=raw):
                try:
                    return self._end.value(raw, kind)
                except MalformedFrameError as error:
                    raise ClientError("malformed", f"The answer to {method} cannot be read: {error}.") from error
            case _:
                raise _raised(call.answer)

    async def open(self, method: str, params: msgspec.Struct, kind: Any, intake: Intake) -> Any:
        """Open a stream whose items go to `intake`; its opening answer, as a `kind`. Errors as with `call`."""
        call = await self._request(method, params, kind, intake, None)
        if call.opening is None:
            raise _raised(call.answer)
        return call.opening

    async def _request(
        self, method: str, params: msgspec.Struct, kind: Any, intake: Intake | None, timeout: float | None
    ) -> _Call:
        call = _Call(kind, intake)
        with trio.CancelScope(deadline=math.inf if timeout is None else trio.current_time() + timeout) as scope:
            await self._transport.wait_writable()
            if self.failure is not None:
                raise again(self.failure)
            request_id, frame = self._encode(method, params)
            self._transport.send(frame)
            self._calls[request_id] = call
            try:
                await call.answered.wait()
            finally:
                if call.answer is None:
                    del self._calls[request_id]
                    if intake is not None:
                        self._abandoned[request_id] = kind
                    self.post("rpc.cancel", {"id": request_id})
        if scope.cancelled_caught:
            raise ClientError("timeout", f"No answer to {method} within {timeout} s; whether it took effect is unknown.")
        return call

    def _encode(self, method: str, params: msgspec.Struct) -> tuple[int, bytes]:
        problem = unfit(params)
        if problem is not None:
            field, what = problem
            raise InvalidRequestError(f"`{field}` cannot be sent: {what}.", field=field)
        try:
            try:
                request_id, frame = self._end.call(method, params)
            except UnicodeEncodeError:
                request_id, frame = self._end.call(method, repaired(params))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InvalidRequestError(f"The parameters of {method} cannot be sent: {error}.") from error
        if len(frame) > MAX_MESSAGE_BYTES:
            raise InvalidRequestError(f"The request is {len(frame)} bytes long; at most {MAX_MESSAGE_BYTES} can be sent.")
        return request_id, frame

    def post(self, method: str, params: dict[str, Any]) -> None:
        """Send a notification, at once; nothing happens on a connection that has ended."""
        if self.failure is None:
            try:
                self._transport.send(self._end.notify(method, params))
            except ClientError:
                pass  # the transport is gone, which the reader is about to learn

    # --- streams --------------------------------------------------------------------------------------------------

    def leave(self, intake: Intake) -> None:
        """Let no more items into `intake`, and tell the server. Never waits, and may be called at any time."""
        if intake.subscription is not None and self._intakes.pop(intake.subscription, None) is not None:
            self.post("rpc.unsubscribe", {"subscription": intake.subscription})

    # --- the reader -----------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        failure = ClientError("closed", "The client is closed.")
        with self._reading:
            try:
                while True:
                    self._receive(await self._frame())
            except MalformedFrameError as error:
                failure = ClientError("malformed", f"The server sent a message that cannot be read: {error}.")
            except ClientError as error:
                failure = error
            finally:
                self._fail(failure)
                await self._close_transport()

    async def _frame(self) -> bytes:
        try:
            return await self._transport.receive()
        except ClientError:
            raise
        except Exception as error:
            raise ClientError("transport", f"The transport failed: {error!r}.") from error

    def _receive(self, frame: bytes) -> None:
        match self._end.receive(frame):
            case Item(subscription=subscription, raw=item):
                intake = self._intakes.get(subscription)
                if intake is not None and not intake.put(item):
                    self.leave(intake)
                    intake.end(IntakeFull())
            case Result(id=request_id) as result:
                self._answered(request_id, result)
            case Failed(id=None, error=error):
                raise ClientError("malformed", f"The server could not read a message of this client: {error.message}")
            case Failed(id=request_id) as failed:
                self._abandoned.pop(request_id, None)
                call = self._calls.pop(request_id, None)
                if call is not None:
                    call.settle(failed)
            case End(subscription=subscription, error=error):
                intake = self._intakes.pop(subscription, None)
                if intake is not None:
                    intake.end(error)
            case None:
                pass

    def _answered(self, request_id: Any, result: Result) -> None:
        call = self._calls.pop(request_id, None)
        if call is None:
            kind = self._abandoned.pop(request_id, None)
            if kind is not None:
                self.post("rpc.unsubscribe", {"subscription": self._opened(result, kind).subscription})
            return
        if call.intake is not None:
            try:
                call.opening = self._opened(result, call.kind)
            except MalformedFrameError as error:
                call.settle(ClientError("malformed", f"The answer that opens the stream cannot be read: {error}."))
                return
            call.intake.subscription = call.opening.subscription
            self._intakes[call.opening.subscription] = call.intake
        call.settle(result)

    def _opened(self, result: Result, kind: type[_Opening]) -> _Opening:
        return self._end.value(result.raw, kind)

    # --- the end --------------------------------------------------------------------------------------------------

    def _fail(self, failure: ClientError) -> None:
        if self.failure is not None:
            return
        self.failure = failure
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.settle(failure)
        intakes, self._intakes = self._intakes, {}
        for intake in intakes.values():
            intake.end(again(failure))

    async def aclose(self) -> None:
        """End every call and stream with `ClientError` `closed`, and close the transport: within a second, at once when
        cancelled. Raises nothing and is idempotent."""
        self.closed = True
        self._fail(ClientError("closed", "The client is closed."))
        await self._close_transport()
        self._reading.cancel()

    def drop(self) -> None:
        """Like `aclose`, without waiting and without saying goodbye."""
        self.closed = True
        self._fail(ClientError("closed", "The client is closed."))
        self._reading.cancel()

    async def _close_transport(self) -> None:
        patience = 0.0 if trio.current_effective_deadline() == -math.inf else CLOSE_SECONDS
        with trio.move_on_after(patience, shield=True):
            await self._transport.aclose()


class IntakeFull(Exception):
    """The consumer of a stream fell behind its intake's bounds; what to do about it is the stream's business."""


def again(error: ClientError) -> ClientError:
    """The same failure for another caller, with a traceback of its own."""
    copy = ClientError(cast(ClientFailure, error.reason), error.message, status=error.status)
    copy.__cause__ = error.__cause__
    return copy


def _raised(answer: Result | Failed | ClientError | None) -> DeclaredError | ClientError:
    match answer:
        case Failed(error=error):
            return error
        case ClientError():
            return again(answer)
        case _:
            raise AssertionError("a call was settled without an answer")
