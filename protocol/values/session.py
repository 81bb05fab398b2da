"""The public projection of a Session, what it is doing, and how its work ended."""

from __future__ import annotations

from typing import Any, Literal

from .failure import Failure
from .ids import SessionId
from .location import Location
from .message import AssistantMessage
from .model import ModelRef, Tokens
from .permission import PermissionRequest
from .prompt import PendingItem
from .question import QuestionRequest
from .value import Value


class IdleOutcome(Value, tag_field="type", tag="idle"):
    """What `sessions.wait` answers: nothing runs any more (ruling C3)."""


class CompletedOutcome(Value, tag_field="type", tag="completed"):
    """The work ended well, or there was none to do."""


class FailedOutcome(Value, tag_field="type", tag="failed"):
    """A turn or its boundary failed; pending input stays pending."""

    error: Failure


class InterruptedOutcome(Value, tag_field="type", tag="interrupted"):
    """Stopped by a user, a shutdown, or found unfinished by recovery."""

    reason: Literal["user", "shutdown", "recovery"] | None = None


Outcome = CompletedOutcome | FailedOutcome | InterruptedOutcome
"""How a Session Drain ended. Derived from terminal turn events, never stored as an execution."""


class WithdrawnOutcome(Value, tag_field="type", tag="withdrawn"):
    """The prompt was withdrawn before it was promoted; the answer of `withdraw` when the withdrawal won."""


class PromotedOutcome(Value, tag_field="type", tag="promoted"):
    """The answer of `withdraw` when promotion won: the prompt is in history."""

    promoted_seq: int


WithdrawOutcome = WithdrawnOutcome | PromotedOutcome

PromptOutcome = CompletedOutcome | FailedOutcome | InterruptedOutcome | WithdrawnOutcome
"""What became of a prompt: the first terminal turn after its promotion that needs no continuation (ruling C3)."""


class Interrupted(Value):
    """Whether `sessions.interrupt` stopped something."""

    interrupted: bool


class Running(Value, tag_field="type", tag="running"):
    """What this process is doing for a session right now."""


class Attachment(Value):
    """What a client needs to join a session that is already going, of one moment (ruling A12).

    `seq` is the head it stands for: `sessions.events` goes on from there. `turn` is the assistant message of the running
    turn, its open fragments filled with the text so far; a client that watches already drops the part of a delta below it.
    """

    session: Session
    pending: tuple[PendingItem, ...]
    permissions: tuple[PermissionRequest, ...]
    questions: tuple[QuestionRequest, ...]
    seq: int
    active: bool
    turn: AssistantMessage | None = None


class Session(Value):
    """A conversation with its selections and totals. `head` is the sequence of its last durable event.

    Times are epoch milliseconds. `cost` is in US dollars, and so is `budget`: once `cost` has reached it, no further provider
    call is made. `last_outcome` is the end of the last Session Drain of this
    process, and absent after a restart (ruling B15).
    """

    id: SessionId
    title: str
    location: Location
    created: int
    updated: int
    head: int
    cost: float
    tokens: Tokens
    parent_id: SessionId | None = None
    agent: str | None = None
    model: ModelRef | None = None
    metadata: dict[str, Any] | None = None
    budget: float | None = None
    last_outcome: Outcome | None = None
