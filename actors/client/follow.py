"""One session's durable events over as many connections as it takes: the explicit resuming helper.

Rules:
- Events come once each and in order: a new subscription starts after the last event that was handed out, and names the
  generation of the first one, so that another history is `CursorExpiredError` and not a wrong continuation.
- It stands on the client it was asked of while that lives. Further connections are its own, and end with it.
- Between attempts it sleeps a random part of a doubling time; an event that arrives sets that time back.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

import trio

from ...protocol.operations import SESSIONS_EVENTS, SessionStream, WatchSession
from ...protocol.values.errors import ClientError, DeclaredError
from ...protocol.values.event import Event, Synced
from ...protocol.values.ids import Generation, SessionId
from .calls import Calls, ClosableCalls
from .stream import EventStream

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
"""Seconds; a pause lies between half of it and the whole."""


class Following:
    """An asynchronous iterator of `Event`. Use it as `async with`, since it may own a connection."""

    def __init__(
        self,
        calls: Calls,
        session_id: SessionId,
        after: int,
        generation: Generation | None,
        jitter: Callable[[], float],
    ) -> None:
        self.after = after
        """The sequence of the last event handed out."""
        self.generation = generation
        """The history that sequence belongs to; known once a subscription was answered."""
        self._session_id = session_id
        self._jitter = jitter
        self._first = calls
        self._calls: Calls | None = calls
        self._own: ClosableCalls | None = None
        self._stream: EventStream[SessionStream] | None = None
        self._synced = False
        self._failures = 0
        self._over = False
        self._token = trio.lowlevel.current_trio_token()

    def __aiter__(self) -> Following:
        return self

    async def __anext__(self) -> Event:
        while not self._over:
            try:
                event = await self._next()
            except StopAsyncIteration:
                self._failures += 1  # a session's events have no end of their own: the server is leaving
                self._stream = None
            except (ClientError, DeclaredError) as error:
                await self._missed(error)
            else:
                self._failures = 0
                if event.seq is not None:
                    self.after = event.seq
                if not isinstance(event.data, Synced):
                    return event
                if not self._synced:
                    self._synced = True
                    return event
        raise StopAsyncIteration

    async def _next(self) -> Event:
        if self._stream is None:
            if self._failures:
                await trio.sleep(self._pause())
            if self._calls is None:
                self._calls = self._own = await self._reopened()
            params = WatchSession(session_id=self._session_id, after=self.after, generation=self.generation)
            self._stream = self._calls.stream(SESSIONS_EVENTS, params)
        event = await self._stream.__anext__()
        if self.generation is None and self._stream.opening is not None:
            self.generation = self._stream.opening.generation
        return event

    def _pause(self) -> float:
        longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self._failures - 1, 16))
        return longest * (0.5 + 0.5 * self._jitter())

    async def _reopened(self) -> ClosableCalls:
        reopen = self._first.another()
        if reopen is None:
            raise ClientError("closed", "The client is closed.")
        return await reopen()

    async def _missed(self, error: ClientError | DeclaredError) -> None:
        """Make ready for another attempt, or end with `error` when none can help."""
        self._failures += 1
        self._stream = None
        match error:
            case DeclaredError(retryable=True):
                return
            case ClientError() if _mendable(error) and self._first.another() is not None:
                self._calls = None
                await self._close_own()
            case _:
                await self.aclose()
                raise error

    async def _close_own(self) -> None:
        own, self._own = self._own, None
        if own is not None:
            await own.aclose()

    async def aclose(self) -> None:
        """Leave the stream, and close the connection that was opened for it, if any."""
        self._over = True
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.aclose()
        await self._close_own()

    async def __aenter__(self) -> Following:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        own = getattr(self, "_own", None)
        if own is not None:
            try:
                self._token.run_sync_soon(own.drop)  # the stream on it warns
            except trio.RunFinishedError:
                pass


def _mendable(error: ClientError) -> bool:
    match error.reason:
        case "transport" | "closed" | "timeout":
            return True
        case "refused":
            return error.status is not None and (error.status >= 500 or error.status == 429)
        case _:
            return False
