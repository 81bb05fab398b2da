"""What the calls of a session ask of people: permissions and questions, and who waits for the answer.

Rules (semantics, "Permissions and questions"):
- The agent of the turn that issued the call decides, whatever is selected later. A configured deny is final: no approval beats
  it, nobody is asked. Otherwise the agent's rules with the saved approvals behind them decide; what they leave to ask becomes
  a durable request, unless the policy for unattended runs allows or denies it at once.
- A request is durable before anybody waits. It ends once: by the first answer, or as `cancelled` in the settlement of its call
  (ruling A16). Nothing is lost when no client is connected.
- A plain rejection, and a dismissed question, stop the drain (`DeclinedError`); a correction and a deny are for the model to
  read.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ...protocol.values.event import (
    PermissionAsked,
    PermissionReplied,
    QuestionAsked,
    QuestionRejected,
    QuestionReplied,
    ToolProgress,
)
from ...protocol.values.ids import CallId, MessageId, RequestId
from ...protocol.values.location import Location
from ...protocol.values.permission import SavedPermission
from ...protocol.values.question import Question
from ...storage.reader import Reader
from ..agents import Agent
from ..mailbox import Answer
from ..tools.permissions import decide
from ..tools.tool import DeclinedError, PermissionCorrectedError, PermissionDeniedError
from .journal import SessionJournal
from .services import Services

Reply = PermissionReplied | QuestionReplied | QuestionRejected


class _Open:
    """A request that waits, in memory: whose call, what it needs, and the answer to come."""

    __slots__ = ("action", "agent", "answer", "call_id", "directory", "resources")

    def __init__(
        self,
        call_id: CallId,
        *,
        action: str = "",
        resources: tuple[str, ...] = (),
        agent: Agent | None = None,
        directory: str = "",
    ) -> None:
        self.call_id = call_id
        self.action = action
        self.resources = resources
        self.agent = agent
        self.directory = directory
        self.answer: Answer[Reply] = Answer()


class Requests:
    """The open requests of one session in this process. The store has them all; this is who waits for them."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._open: dict[RequestId, _Open] = {}

    def of_call(self, call_id: CallId) -> tuple[RequestId, ...]:
        """The requests a call still waits for, as it is settled. They end with it, and are not waited for any more."""
        found = tuple(request_id for request_id, request in self._open.items() if request.call_id == call_id)
        for request_id in found:
            del self._open[request_id]
        return found

    def ended(self, reply: Reply) -> None:
        """A request has its durable end; whoever waits for it goes on."""
        request = self._open.pop(reply.request_id, None)
        if request is not None:
            request.answer.resolve(reply)

    def allowed_now(self, saved: Sequence[SavedPermission], directory: str) -> tuple[RequestId, ...]:
        """The open permission requests of `directory` that need no answer any more, now that `saved` is kept."""
        return tuple(
            request_id
            for request_id, request in self._open.items()
            if request.agent is not None
            and request.directory == directory
            and decide(request.agent.rules, saved, request.action, request.resources) == "allow"
        )

    def owner(
        self, journal: SessionJournal, assistant: MessageId, call_id: CallId, agent: Agent, location: Location
    ) -> AskingCall:
        """What one call's tool may ask of the session."""
        return AskingCall(self, self._services, journal, assistant, call_id, agent, location)

    async def wait(self, request_id: RequestId, request: _Open, posted: Answer[None]) -> Reply:
        """Wait for the end of a request that was just posted. Cancelled, it is left to the settlement of its call."""
        self._open[request_id] = request
        try:
            await posted.wait()
        except Exception:
            self._open.pop(request_id, None)
            raise
        return await request.answer.wait()


class AskingCall:
    """One call's way to its session: the `CallOwner` its tool is given."""

    def __init__(
        self,
        requests: Requests,
        services: Services,
        journal: SessionJournal,
        assistant: MessageId,
        call_id: CallId,
        agent: Agent,
        location: Location,
    ) -> None:
        self._requests = requests
        self._services = services
        self._journal = journal
        self._assistant = assistant
        self._call_id = call_id
        self._agent = agent
        self._location = location

    async def authorize(
        self,
        action: str,
        resources: Sequence[str],
        *,
        save: Sequence[str] = (),
        metadata: dict[str, Any] | None = None,
    ) -> None:
        """Return when the call may go on; raise what it has to be told otherwise."""
        wanted = tuple(resources)
        saved = await self._services.storage.read(partial(_saved, directory=self._location.directory))
        effect = decide(self._agent.rules, saved, action, wanted)
        if effect == "ask":
            effect = self._services.policy
            if effect == "deny":
                raise PermissionDeniedError(action, wanted, "nobody is there who could allow it")
        if effect == "deny":
            raise PermissionDeniedError(action, wanted)
        if effect == "allow":
            return
        request_id = self._services.ids.permission()
        posted = self._journal.append(
            [
                PermissionAsked(
                    request_id=request_id,
                    assistant_message_id=self._assistant,
                    call_id=self._call_id,
                    action=action,
                    resources=wanted,
                    save=tuple(save),
                    metadata=metadata,
                )
            ]
        )
        request = _Open(self._call_id, action=action, resources=wanted, agent=self._agent, directory=self._location.directory)
        match await self._requests.wait(request_id, request, posted):
            case PermissionReplied(reply="reject", message=str() as message):
                raise PermissionCorrectedError(action, wanted, message)
            case PermissionReplied(reply="reject" | "cancelled"):
                raise DeclinedError.of_permission(action, wanted)
            case _:
                return

    async def ask(self, questions: tuple[Question, ...]) -> tuple[tuple[str, ...], ...]:
        """The user's answers, one list for each question; raises `DeclinedError` when dismissed."""
        request_id = self._services.ids.question()
        posted = self._journal.append(
            [
                QuestionAsked(
                    request_id=request_id,
                    assistant_message_id=self._assistant,
                    call_id=self._call_id,
                    questions=questions,
                )
            ]
        )
        match await self._requests.wait(request_id, _Open(self._call_id), posted):
            case QuestionReplied(answers=answers):
                return answers
            case _:
                raise DeclinedError.of_question()

    def progress(self, text: str) -> None:
        """Show what the call is doing, live only."""
        self._journal.publish(ToolProgress(assistant_message_id=self._assistant, call_id=self._call_id, text=text))


def _saved(reader: Reader, directory: str) -> list[SavedPermission]:
    return reader.saved_permissions(directory)
