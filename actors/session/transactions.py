"""What a session writes, one callable for each kind of transaction.

Each runs in the storage thread, sees the session as it stands in commit order, and appends all it decides or nothing. None of
them waits, and none touches the actor; the actor learns the result when it is committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from ...protocol.values.errors import (
    ConflictError,
    InboxFullError,
    PermissionNotFoundError,
    PromptNotFoundError,
    QuestionNotFoundError,
)
from ...protocol.values.event import (
    AgentSwitched,
    ControlWithdrawn,
    EventData,
    ModelSwitched,
    PermissionReplied,
    PromptAdmitted,
    PromptRedelivered,
    PromptWithdrawn,
    QuestionRejected,
    QuestionReplied,
    TurnInterrupted,
    TurnStarted,
)
from ...protocol.values.ids import MessageId, RequestId, SessionId
from ...protocol.values.model import ModelRef
from ...protocol.values.permission import PermissionReply, SavedPermission
from ...protocol.values.prompt import Admission, CompactControl, Delivery, MoveControl
from ...protocol.values.session import PromotedOutcome, Session, WithdrawnOutcome, WithdrawOutcome
from ...storage.journal import Transaction
from .letters import Admit, Create
from .services import Services


class Creation:
    """Brings a session into being; a child that names no location works where its parent does."""

    def __init__(self, services: Services, session_id: SessionId, letter: Create) -> None:
        self._services = services
        self._session_id = session_id
        self._letter = letter

    def __call__(self, transaction: Transaction) -> Session:
        created = self._letter.created
        if created.parent_id is not None:
            parent = transaction.session(created.parent_id).session  # raises SessionNotFoundError
            if not self._letter.located:
                created = msgspec.structs.replace(created, location=parent.location)
        transaction.append(self._session_id, [self._services.new_event(created)])
        return transaction.session(self._session_id).session


class AdmissionOf:
    """Admits a prompt; an exact retry gets the stored receipt, anything else under its id is a conflict."""

    def __init__(self, services: Services, session_id: SessionId, letter: Admit, *, full: InboxFullError | None) -> None:
        self._services = services
        self._session_id = session_id
        self._letter = letter
        self._full = full
        self.message_id = letter.id or services.ids.message()
        self._event = services.new_event(
            PromptAdmitted(message_id=self.message_id, prompt=letter.prompt, delivery=letter.delivery, metadata=letter.metadata)
        )

    def __call__(self, transaction: Transaction) -> Admission:
        letter = self._letter
        if letter.id is not None:
            known = transaction.find_prompt(letter.id)
            if known is not None:
                return self._again(transaction, known)
            if transaction.find_item(letter.id) is not None or transaction.message_owner(letter.id) is not None:
                raise ConflictError(f"The id {letter.id} belongs to another message.", message_id=letter.id)
        if self._full is not None:
            raise self._full
        (stored,) = transaction.append(self._session_id, [self._event])
        return Admission(
            id=self.message_id,
            session_id=self._session_id,
            prompt=letter.prompt,
            delivery=letter.delivery,
            admitted_seq=stored.seq,
            created=stored.created,
            metadata=letter.metadata,
        )

    def _again(self, transaction: Transaction, known: Admission) -> Admission:
        """The receipt as it stands. It is asked for with what was admitted, also where the delivery was changed since."""
        letter = self._letter
        delivery = transaction.admitted_delivery(known.id)
        same = (self._session_id, letter.prompt, letter.delivery, letter.metadata)
        if (known.session_id, known.prompt, delivery, known.metadata) != same:
            raise ConflictError(f"The id {known.id} was used for a different prompt.", message_id=known.id)
        return known


class Withdrawal:
    """Takes a pending prompt or control item back, unless promotion was faster."""

    def __init__(self, services: Services, session_id: SessionId, message_id: MessageId) -> None:
        self._services = services
        self._session_id = session_id
        self._message_id = message_id

    def __call__(self, transaction: Transaction) -> WithdrawOutcome:
        known = transaction.find_item(self._message_id)
        if known is None or known.session_id != self._session_id:
            raise _unknown(self._message_id)
        data: EventData
        match known:
            case Admission(promoted_seq=gone):
                data = PromptWithdrawn(message_id=self._message_id)
            case CompactControl(delivered_seq=gone) | MoveControl(delivered_seq=gone):
                data = ControlWithdrawn(message_id=self._message_id)
        if gone is not None:
            return PromotedOutcome(promoted_seq=gone)
        if known.withdrawn_seq is None:
            transaction.append(self._session_id, [self._services.new_event(data)])
        return WithdrawnOutcome()


class Redelivery:
    """Changes the delivery of a pending prompt. One that left the inbox, or has that delivery already, is a conflict."""

    def __init__(self, services: Services, session_id: SessionId, message_id: MessageId, delivery: Delivery) -> None:
        self._session_id = session_id
        self._message_id = message_id
        self._delivery: Delivery = delivery
        self._event = services.new_event(PromptRedelivered(message_id=message_id, delivery=delivery))

    def __call__(self, transaction: Transaction) -> Admission:
        known = _own_prompt(transaction, self._session_id, self._message_id)
        if known.promoted_seq is not None or known.withdrawn_seq is not None:
            fate = "promoted" if known.promoted_seq is not None else "withdrawn"
            raise ConflictError(f"The prompt {known.id} is not pending any more; it was {fate}.", message_id=known.id)
        if known.delivery == self._delivery:
            raise ConflictError(f"The prompt {known.id} has that delivery already.", message_id=known.id)
        transaction.append(self._session_id, [self._event])
        return msgspec.structs.replace(known, delivery=self._delivery)


class Switch:
    """Selects agent or model for the next Provider Turn; selecting what is selected changes nothing."""

    def __init__(
        self, services: Services, session_id: SessionId, *, agent: str | None = None, model: ModelRef | None = None
    ) -> None:
        self._services = services
        self._session_id = session_id
        self._agent = agent
        self._model = model
        self._message_id = services.ids.message()
        self.changed = False
        """Whether it made a difference."""

    def __call__(self, transaction: Transaction) -> Session:
        before = transaction.session(self._session_id).session
        data: EventData | None = None
        if self._model is not None and before.model != self._model:
            data = ModelSwitched(message_id=self._message_id, model=self._model, previous=before.model)
        if self._agent is not None and before.agent != self._agent:
            data = AgentSwitched(message_id=self._message_id, agent=self._agent, previous=before.agent)
        if data is None:
            return before
        transaction.append(self._session_id, [self._services.new_event(data)])
        self.changed = True
        return transaction.session(self._session_id).session


class InterruptMark:
    """Puts a user's interrupt into the log where no turn was open to carry it: promoted input that nobody will answer, or
    settled calls whose continuation was stopped (ruling B5). Without anything unanswered it does nothing.
    """

    def __init__(self, services: Services, session_id: SessionId, agent: str, model: ModelRef) -> None:
        message_id = services.ids.message()
        self._session_id = session_id
        self._events = [
            services.new_event(TurnStarted(assistant_message_id=message_id, agent=agent, model=model, attempt=1)),
            services.new_event(TurnInterrupted(assistant_message_id=message_id, reason="user")),
        ]

    def __call__(self, transaction: Transaction) -> None:
        if transaction.session(self._session_id).unanswered_seq is not None:
            transaction.append(self._session_id, self._events)


class Settlement:
    """Appends the ends of calls and of a turn, and closes as cancelled what they were still waiting for (ruling A16)."""

    def __init__(
        self, services: Services, session_id: SessionId, data: Sequence[EventData], requests: Sequence[RequestId]
    ) -> None:
        self._services = services
        self._session_id = session_id
        self._data = data
        self._requests = requests

    def __call__(self, transaction: Transaction) -> None:
        data: list[EventData] = []
        for request_id in self._requests:
            request = transaction.request(request_id)
            if request is not None and request.end is None:
                data.append(cancelled(request_id, request.kind))
        data += self._data
        transaction.append(self._session_id, [self._services.new_event(item) for item in data])


class PermissionAnswer:
    """Somebody's answer to a permission request; the first one wins.

    A rejection without a message rejects every other open permission request of the session too: `ends` are all that ended.
    `always` keeps what the request asked to save: `saved` are then all approvals of the `directory`.
    """

    def __init__(
        self, services: Services, session_id: SessionId, request_id: RequestId, reply: PermissionReply, message: str | None
    ) -> None:
        self._services = services
        self._session_id = session_id
        self._request_id = request_id
        self._reply: PermissionReply = reply
        self._message = message
        self.ends: tuple[PermissionReplied, ...] = ()
        self.directory = ""
        self.saved: tuple[SavedPermission, ...] = ()

    def __call__(self, transaction: Transaction) -> PermissionReplied:
        request = transaction.request(self._request_id)
        if request is None or request.kind != "permission" or request.session_id != self._session_id:
            raise PermissionNotFoundError(f"There is no permission request {self._request_id}.", request_id=self._request_id)
        if request.end is not None:
            raise ConflictError(
                f"The request was answered already ({request.end}).", request_id=self._request_id, reply=request.end
            )
        end = PermissionReplied(request_id=self._request_id, reply=self._reply, message=self._message)
        ends = [end]
        if self._reply == "reject" and self._message is None:
            ends += [
                PermissionReplied(request_id=other.id, reply="reject")
                for other in transaction.open_permissions(self._session_id)
                if other.id != self._request_id
            ]
        if self._reply == "always":
            asked = transaction.permission(self._request_id)
            self.directory = transaction.session(self._session_id).session.location.directory
            for resource in asked.save:
                transaction.save_permission(
                    id=f"psv_{self._services.ids.event().removeprefix('evt_')}",
                    directory=self.directory,
                    action=asked.action,
                    resource=resource,
                    created=self._services.now_ms(),
                )
            self.saved = tuple(transaction.saved_permissions(self.directory))
        transaction.append(self._session_id, [self._services.new_event(item) for item in ends])
        self.ends = tuple(ends)
        return end


class QuestionAnswer:
    """Answers or dismisses a question; the first one wins."""

    def __init__(
        self,
        services: Services,
        session_id: SessionId,
        request_id: RequestId,
        answers: tuple[tuple[str, ...], ...] | None,
    ) -> None:
        self._services = services
        self._session_id = session_id
        self._request_id = request_id
        self._answers = answers

    def __call__(self, transaction: Transaction) -> QuestionReplied | QuestionRejected:
        request = transaction.request(self._request_id)
        if request is None or request.kind != "question" or request.session_id != self._session_id:
            raise QuestionNotFoundError(f"There is no question {self._request_id}.", request_id=self._request_id)
        if request.end is not None:
            raise ConflictError(
                f"The question was answered already ({request.end}).", request_id=self._request_id, reply=request.end
            )
        end: QuestionReplied | QuestionRejected
        if self._answers is None:
            end = QuestionRejected(request_id=self._request_id, reason="user")
        else:
            end = QuestionReplied(request_id=self._request_id, answers=self._answers)
        transaction.append(self._session_id, [self._services.new_event(end)])
        return end


def cancelled(request_id: RequestId, kind: Literal["permission", "question"]) -> EventData:
    """The end of a request whose call ended first."""
    if kind == "permission":
        return PermissionReplied(request_id=request_id, reply="cancelled")
    return QuestionRejected(request_id=request_id, reason="cancelled")


def _own_prompt(transaction: Transaction, session_id: SessionId, message_id: MessageId) -> Admission:
    known = transaction.find_prompt(message_id)
    if known is None or known.session_id != session_id:
        raise _unknown(message_id)
    return known


def _unknown(message_id: MessageId) -> PromptNotFoundError:
    return PromptNotFoundError(f"The session never had a prompt {message_id}.", message_id=message_id)
