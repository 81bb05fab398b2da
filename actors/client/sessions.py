"""`client.sessions`: create sessions, prompt them, watch them.

Rules:
- Methods and keyword arguments are those of the contract; a test compares them. Required ones may be given by position.
- Every method takes `timeout` in seconds. Cancelling `prompt` never withdraws the prompt (wire contract, "Client").
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ...protocol.operations import (
    SESSIONS_ACTIVE,
    SESSIONS_ATTACH,
    SESSIONS_COMPACT,
    SESSIONS_CONTEXT,
    SESSIONS_CREATE,
    SESSIONS_EVENTS,
    SESSIONS_FORK,
    SESSIONS_GET,
    SESSIONS_INTERRUPT,
    SESSIONS_LIST,
    SESSIONS_MESSAGE,
    SESSIONS_MESSAGES,
    SESSIONS_MOVE,
    SESSIONS_PENDING,
    SESSIONS_PROMPT,
    SESSIONS_PROVIDER_CONTEXT,
    SESSIONS_REDELIVER,
    SESSIONS_REMOVE,
    SESSIONS_RESUME,
    SESSIONS_SWITCH_AGENT,
    SESSIONS_SWITCH_MODEL,
    SESSIONS_UPDATE,
    SESSIONS_WAIT,
    SESSIONS_WAIT_PROMPT,
    SESSIONS_WITHDRAW,
    CreateSession,
    ForkSession,
    ListMessages,
    ListSessions,
    MessageParams,
    MoveSession,
    NoParams,
    PromptParams,
    RedeliverPrompt,
    SendPrompt,
    SessionParams,
    SessionStream,
    SwitchAgent,
    SwitchModel,
    UpdateSession,
    WatchSession,
)
from ...protocol.provider_context import ProviderContext
from ...protocol.values.ids import Generation, MessageId, PageCursor, SessionId
from ...protocol.values.location import Location
from ...protocol.values.message import Message
from ...protocol.values.model import ModelRef
from ...protocol.values.page import Order, Page
from ...protocol.values.prompt import Admission, CompactControl, Delivery, MoveControl, PendingItem, PromptFileInput
from ...protocol.values.session import (
    Attachment,
    IdleOutcome,
    Interrupted,
    Outcome,
    PromptOutcome,
    Running,
    Session,
    WithdrawOutcome,
)
from .calls import Calls
from .follow import Following
from .stream import EventStream


class Sessions:
    """Operations on sessions, named as in the contract."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def create(
        self,
        *,
        id: SessionId | None = None,
        location: Location | None = None,
        parent_id: SessionId | None = None,
        title: str | None = None,
        agent: str | None = None,
        model: ModelRef | None = None,
        metadata: dict[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Session:
        """A new session, or the one that has this `id` already, unchanged."""
        params = CreateSession(
            id=id, location=location, parent_id=parent_id, title=title, agent=agent, model=model, metadata=metadata
        )
        return await self._calls.call(SESSIONS_CREATE, params, timeout=timeout)

    async def get(self, session_id: SessionId, *, timeout: float | None = None) -> Session:
        """One session as it stands."""
        return await self._calls.call(SESSIONS_GET, SessionParams(session_id=session_id), timeout=timeout)

    async def list(
        self,
        *,
        directory: str | None = None,
        parent_id: SessionId | None = None,
        search: str | None = None,
        order: Order | None = None,
        limit: int | None = None,
        cursor: PageCursor | None = None,
        timeout: float | None = None,
    ) -> Page[Session]:
        """Sessions by creation time, newest first unless `order` says otherwise. A continuation takes only its `cursor`."""
        params = ListSessions(directory=directory, parent_id=parent_id, search=search, order=order, limit=limit, cursor=cursor)
        return await self._calls.call(SESSIONS_LIST, params, timeout=timeout)

    async def prompt(
        self,
        session_id: SessionId,
        text: str,
        *,
        files: Sequence[PromptFileInput] | None = None,
        id: MessageId | None = None,
        delivery: Delivery | None = None,
        metadata: dict[str, Any] | None = None,
        resume: bool | None = None,
        timeout: float | None = None,
    ) -> Admission:
        """Admit a prompt durably; the receipt means that it is committed. Wakes the session unless `resume` is False.

        Asked again with the same `id` it answers with the same receipt, so a lost answer is no reason to fear a second prompt.
        """
        params = SendPrompt(
            session_id=session_id,
            text=text,
            files=None if files is None else tuple(files),
            id=id,
            delivery=delivery,
            metadata=metadata,
            resume=resume,
        )
        return await self._calls.call(SESSIONS_PROMPT, params, timeout=timeout)

    async def pending(self, session_id: SessionId, *, timeout: float | None = None) -> tuple[PendingItem, ...]:
        """What waits in the inbox, in admission order: Admitted Prompts and control items."""
        return await self._calls.call(SESSIONS_PENDING, SessionParams(session_id=session_id), timeout=timeout)

    async def withdraw(
        self,
        session_id: SessionId,
        id: MessageId,
        *,
        timeout: float | None = None,
    ) -> WithdrawOutcome:
        """Take a pending prompt or control item back; the answer says whether promotion was faster."""
        params = PromptParams(session_id=session_id, id=id)
        return await self._calls.call(SESSIONS_WITHDRAW, params, timeout=timeout)

    async def redeliver(
        self, session_id: SessionId, id: MessageId, delivery: Delivery, *, timeout: float | None = None
    ) -> Admission:
        """Change the delivery of a pending prompt; one that becomes a steer wakes the session."""
        params = RedeliverPrompt(session_id=session_id, id=id, delivery=delivery)
        return await self._calls.call(SESSIONS_REDELIVER, params, timeout=timeout)

    async def interrupt(self, session_id: SessionId, *, timeout: float | None = None) -> Interrupted:
        """Stop what runs in the session; nothing happens when it is idle."""
        return await self._calls.call(SESSIONS_INTERRUPT, SessionParams(session_id=session_id), timeout=timeout)

    async def resume(self, session_id: SessionId, *, timeout: float | None = None) -> Outcome:
        """Run at least one provider turn if idle, else join what runs; answers with its outcome."""
        return await self._calls.call(SESSIONS_RESUME, SessionParams(session_id=session_id), timeout=timeout)

    async def wait(self, session_id: SessionId, *, timeout: float | None = None) -> IdleOutcome:
        """Answered when the session is idle; starts nothing."""
        return await self._calls.call(SESSIONS_WAIT, SessionParams(session_id=session_id), timeout=timeout)

    async def wait_prompt(self, session_id: SessionId, id: MessageId, *, timeout: float | None = None) -> PromptOutcome:
        """Answered when the prompt's turn is terminal, or the prompt is withdrawn; starts nothing."""
        return await self._calls.call(SESSIONS_WAIT_PROMPT, PromptParams(session_id=session_id, id=id), timeout=timeout)

    async def update(
        self,
        session_id: SessionId,
        *,
        title: str | None = None,
        metadata: dict[str, Any] | None = None,
        budget: float | msgspec.UnsetType | None = msgspec.UNSET,
        timeout: float | None = None,
    ) -> Session:
        """Set title, metadata or budget (US dollars); what is left out stays as it is.

        Once a session has cost its budget it makes no further provider call: a drain ends as failed with
        `budget.exceeded`, input stays pending, and `resume` goes on after the budget was raised. `budget=None` takes it away.
        """
        params = UpdateSession(session_id=session_id, title=title, metadata=metadata, budget=budget)
        return await self._calls.call(SESSIONS_UPDATE, params, timeout=timeout)

    async def remove(self, session_id: SessionId, *, timeout: float | None = None) -> None:
        """Interrupt the session and delete it, its log and its children. Its id cannot be used again."""
        await self._calls.call(SESSIONS_REMOVE, SessionParams(session_id=session_id), timeout=timeout)

    async def fork(self, session_id: SessionId, *, before: MessageId | None = None, timeout: float | None = None) -> Session:
        """A new session with the settled history of this one, or with what stands before a message."""
        return await self._calls.call(SESSIONS_FORK, ForkSession(session_id=session_id, before=before), timeout=timeout)

    async def attach(self, session_id: SessionId, *, timeout: float | None = None) -> Attachment:
        """What it takes to join the session in the middle; `events(after=seq)` goes on from there."""
        return await self._calls.call(SESSIONS_ATTACH, SessionParams(session_id=session_id), timeout=timeout)

    async def message(self, session_id: SessionId, message_id: MessageId, *, timeout: float | None = None) -> Message:
        """One message of the session."""
        params = MessageParams(session_id=session_id, message_id=message_id)
        return await self._calls.call(SESSIONS_MESSAGE, params, timeout=timeout)

    async def context(self, session_id: SessionId, *, timeout: float | None = None) -> tuple[Message, ...]:
        """The messages selected as Session History for the next turn."""
        return await self._calls.call(SESSIONS_CONTEXT, SessionParams(session_id=session_id), timeout=timeout)

    async def provider_context(self, session_id: SessionId, *, timeout: float | None = None) -> ProviderContext:
        """What the provider would be sent now: Context Epoch, sources, the request of the next turn. Changes nothing."""
        return await self._calls.call(SESSIONS_PROVIDER_CONTEXT, SessionParams(session_id=session_id), timeout=timeout)

    async def compact(self, session_id: SessionId, *, timeout: float | None = None) -> CompactControl:
        """Ask for a compaction: an item of the inbox, behind which input waits. Asked again, the one that waits is answered."""
        return await self._calls.call(SESSIONS_COMPACT, SessionParams(session_id=session_id), timeout=timeout)

    async def move(self, session_id: SessionId, location: Location, *, timeout: float | None = None) -> MoveControl:
        """Move the session to another location: an item of the inbox, like a compaction. Its Context Epoch ends with it."""
        params = MoveSession(session_id=session_id, location=location)
        return await self._calls.call(SESSIONS_MOVE, params, timeout=timeout)

    async def switch_agent(self, session_id: SessionId, agent: str, *, timeout: float | None = None) -> Session:
        """Select the agent of the next Provider Turn."""
        params = SwitchAgent(session_id=session_id, agent=agent)
        return await self._calls.call(SESSIONS_SWITCH_AGENT, params, timeout=timeout)

    async def active(self, *, timeout: float | None = None) -> dict[str, Running]:
        """The sessions that the server is working on right now."""
        return await self._calls.call(SESSIONS_ACTIVE, NoParams(), timeout=timeout)

    async def messages(
        self,
        session_id: SessionId,
        *,
        order: Order | None = None,
        limit: int | None = None,
        cursor: PageCursor | None = None,
        timeout: float | None = None,
    ) -> Page[Message]:
        """A session's messages, newest first unless `order` says otherwise. A continuation takes only its `cursor`."""
        params = ListMessages(session_id=session_id, order=order, limit=limit, cursor=cursor)
        return await self._calls.call(SESSIONS_MESSAGES, params, timeout=timeout)

    async def switch_model(self, session_id: SessionId, model: ModelRef, *, timeout: float | None = None) -> Session:
        """Select the model of the next Provider Turn."""
        params = SwitchModel(session_id=session_id, model=model)
        return await self._calls.call(SESSIONS_SWITCH_MODEL, params, timeout=timeout)

    def events(
        self, session_id: SessionId, *, after: int | None = None, generation: Generation | None = None
    ) -> EventStream[SessionStream]:
        """Everything durable after the sequence `after`, then new commits: no gap, no duplicate, in order.

        `generation` (from an earlier opening answer) makes sure that `after` belongs to this store's history. The stream ends
        with `ClientError` when the connection ends; `follow` is the helper that resumes.
        """
        params = WatchSession(session_id=session_id, after=after, generation=generation)
        return self._calls.stream(SESSIONS_EVENTS, params)

    def follow(
        self,
        session_id: SessionId,
        *,
        after: int = 0,
        generation: Generation | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> Following:
        """The same events as `events`, each once and in order, over as many connections as it takes.

        Reconnects with jittered back-off (`jitter` gives numbers from 0 to 1), without limit: bound it with a cancel scope.
        Ends with the errors that another attempt cannot mend, `CursorExpiredError` among them.
        """
        return Following(self._calls, session_id, after, generation, jitter)
