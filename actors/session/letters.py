"""What a Session can be asked."""

from __future__ import annotations

from typing import Any

from ...protocol.values.event import SessionCreated
from ...protocol.values.ids import MessageId
from ...protocol.values.model import ModelRef
from ...protocol.values.prompt import Admission, Delivery, Prompt
from ...protocol.values.session import IdleOutcome, Interrupted, Outcome, Session, WithdrawOutcome
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

    __slots__ = ("check_directory", "created")

    def __init__(self, created: SessionCreated, *, check_directory: bool) -> None:
        super().__init__()
        self.created = created
        self.check_directory = check_directory


class Withdraw(Letter[WithdrawOutcome]):
    """Take a pending prompt back."""

    __slots__ = ("id",)

    def __init__(self, id: MessageId) -> None:
        super().__init__()
        self.id = id


class Resume(Letter[Outcome]):
    """Run at least one Provider Turn if idle, else join."""

    __slots__ = ()


class Interrupt(Letter[Interrupted]):
    """Stop what runs."""

    __slots__ = ()


class Wait(Letter[IdleOutcome]):
    """Answered when idle."""

    __slots__ = ()


class SwitchModel(Letter[Session]):
    """Select the model of the next Provider Turn; it was found in the catalog."""

    __slots__ = ("model",)

    def __init__(self, model: ModelRef) -> None:
        super().__init__()
        self.model = model


SessionLetter = Create | Admit | Withdraw | Resume | Interrupt | Wait | SwitchModel
