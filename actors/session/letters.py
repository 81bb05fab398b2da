"""What a Session can be asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ...protocol.values.event import PermissionReplied, QuestionRejected, QuestionReplied, SessionCreated
from ...protocol.values.ids import MessageId, RequestId
from ...protocol.values.location import Location
from ...protocol.values.model import ModelRef
from ...protocol.values.permission import PermissionReply
from ...protocol.values.prompt import Admission, ControlItem, Delivery, Prompt
from ...protocol.values.session import (
    Attachment,
    IdleOutcome,
    Interrupted,
    Outcome,
    PromptOutcome,
    Session,
    WithdrawOutcome,
)
from ..mailbox import Letter


class Admit(Letter[Admission]):
    """Accept a prompt into the inbox; unless `resume` is false, wake. `id` is None when the caller gave none."""

    __slots__ = ("delivery", "id", "metadata", "prompt", "resume")

    def __init__(
        self, prompt: Prompt, *, id: MessageId | None, delivery: Delivery, metadata: dict[str, Any] | None, resume: bool
    ) -> None:
        super().__init__()
        self.prompt = prompt
        self.id = id
        self.delivery: Delivery = delivery
        self.metadata = metadata
        self.resume = resume


class Create(Letter[Session]):
    """Bring the session into being; one that exists is answered as it stands, whatever else is asked."""

    __slots__ = ("check", "created", "located")

    def __init__(self, created: SessionCreated, *, located: bool, check: Callable[[], None]) -> None:
        super().__init__()
        self.created = created
        self.check = check
        """Raises the `DeclaredError` of what cannot be made so; called only if there is no such session."""
        self.located = located
        """Whether the caller named the location, which is then checked; a child that names none takes its parent's."""


class Control(Letter[ControlItem]):
    """Put a control item into the inbox and wake: compaction, or a move to `location`."""

    __slots__ = ("location",)

    def __init__(self, location: Location | None) -> None:
        super().__init__()
        self.location = location


class Withdraw(Letter[WithdrawOutcome]):
    """Take a pending prompt back."""

    __slots__ = ("id",)

    def __init__(self, id: MessageId) -> None:
        super().__init__()
        self.id = id


class Redeliver(Letter[Admission]):
    """Change the delivery of a pending prompt."""

    __slots__ = ("delivery", "id")

    def __init__(self, id: MessageId, delivery: Delivery) -> None:
        super().__init__()
        self.id = id
        self.delivery: Delivery = delivery


class Resume(Letter[Outcome]):
    """Run at least one Provider Turn if idle, else join."""

    __slots__ = ()


class Interrupt(Letter[Interrupted]):
    """Stop what runs."""

    __slots__ = ()


class Wait(Letter[IdleOutcome]):
    """Answered when idle."""

    __slots__ = ()


class WaitPrompt(Letter[PromptOutcome]):
    """Answered when the prompt's turn is terminal, or the prompt is withdrawn."""

    __slots__ = ("id",)

    def __init__(self, id: MessageId) -> None:
        super().__init__()
        self.id = id


class Attach(Letter[Attachment]):
    """What a client needs to join, of one moment."""

    __slots__ = ()


class Update(Letter[Session]):
    """Set title, metadata or budget; a budget of None is no budget any more."""

    __slots__ = ("budget", "metadata", "title")

    def __init__(self, *, title: str | None, metadata: dict[str, Any] | None, budget: float | msgspec.UnsetType | None) -> None:
        super().__init__()
        self.title = title
        self.metadata = metadata
        self.budget = budget


class SwitchAgent(Letter[Session]):
    """Select the agent of the next Provider Turn; it is known."""

    __slots__ = ("agent",)

    def __init__(self, agent: str) -> None:
        super().__init__()
        self.agent = agent


class ReplyPermission(Letter[PermissionReplied]):
    """Answer a permission request."""

    __slots__ = ("message", "reply", "request_id")

    def __init__(self, request_id: RequestId, reply: PermissionReply, message: str | None) -> None:
        super().__init__()
        self.request_id = request_id
        self.reply: PermissionReply = reply
        self.message = message


class ReplyQuestion(Letter[QuestionReplied | QuestionRejected]):
    """Answer a question; `answers` None dismisses it."""

    __slots__ = ("answers", "request_id")

    def __init__(self, request_id: RequestId, answers: tuple[tuple[str, ...], ...] | None) -> None:
        super().__init__()
        self.request_id = request_id
        self.answers = answers


class SwitchModel(Letter[Session]):
    """Select the model of the next Provider Turn; it was found in the catalog."""

    __slots__ = ("model",)

    def __init__(self, model: ModelRef) -> None:
        super().__init__()
        self.model = model


SessionLetter = (
    Create
    | Admit
    | Control
    | Withdraw
    | Redeliver
    | Resume
    | Interrupt
    | Wait
    | WaitPrompt
    | Attach
    | Update
    | SwitchAgent
    | SwitchModel
    | ReplyPermission
    | ReplyQuestion
)
