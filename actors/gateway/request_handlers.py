"""`permissions.*` and `questions.*`: what waits for people, and their answers.

An answer names only its request; the store knows the session, whose actor takes the answer as a letter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ...protocol import operations as op
from ...protocol.values.errors import InvalidRequestError, PermissionNotFoundError, QuestionNotFoundError
from ...protocol.values.ids import RequestId
from ...storage.reader import Reader
from ..mailbox import Answer
from ..session.letters import ReplyPermission, ReplyQuestion, SessionLetter
from ..session.registry import SessionRegistry
from ..session.services import Services
from .handling import Handler, Peer, check_id, in_task, reply_to

MAX_ANSWERS = 65_536
"""Characters of all answers to one request."""


class RequestHandlers:
    """Everything about permissions and questions."""

    def __init__(self, services: Services, sessions: SessionRegistry) -> None:
        self._services = services
        self._sessions = sessions

    def handlers(self) -> Mapping[str, Handler]:
        """By wire method."""
        return {
            "permissions.list": self._list_permissions,
            "permissions.reply": self._reply_permission,
            "permissions.saved": self._saved,
            "permissions.forget": self._forget,
            "questions.list": self._list_questions,
            "questions.reply": self._reply_question,
            "questions.reject": self._reject_question,
        }

    def _list_permissions(self, params: op.ListRequests, peer: Peer) -> Answer[Any]:
        return in_task(
            peer,
            partial(self._services.storage.read, lambda reader: tuple(reader.permission_requests(_checked(params)))),
        )

    def _list_questions(self, params: op.ListRequests, peer: Peer) -> Answer[Any]:
        return in_task(
            peer,
            partial(self._services.storage.read, lambda reader: tuple(reader.question_requests(_checked(params)))),
        )

    def _reply_permission(self, params: op.PermissionAnswer, peer: Peer) -> Answer[Any]:
        if params.message is not None and params.reply != "reject":
            raise InvalidRequestError("A message goes only with the reply `reject`.", field="message")
        unknown = PermissionNotFoundError(f"There is no permission request {params.request_id}.", request_id=params.request_id)
        letter = partial(ReplyPermission, params.request_id, params.reply, params.message)
        return self._to_session(params.request_id, letter, unknown, peer)

    def _reply_question(self, params: op.QuestionAnswer, peer: Peer) -> Answer[Any]:
        if sum(len(text) for answer in params.answers for text in answer) > MAX_ANSWERS:
            raise InvalidRequestError(f"The answers have more than {MAX_ANSWERS} characters.", field="answers")

        async def reply() -> Any:
            await self._services.storage.read(partial(_check_answers, params))
            return await reply_to(self._to_question(params.request_id, params.answers, peer))

        return in_task(peer, reply)

    def _reject_question(self, params: op.QuestionParams, peer: Peer) -> Answer[Any]:
        return self._to_question(params.request_id, None, peer)

    def _to_question(self, request_id: RequestId, answers: tuple[tuple[str, ...], ...] | None, peer: Peer) -> Answer[Any]:
        unknown = QuestionNotFoundError(f"There is no question {request_id}.", request_id=request_id)
        return self._to_session(request_id, partial(ReplyQuestion, request_id, answers), unknown, peer)

    def _to_session(
        self,
        request_id: RequestId,
        make_letter: Callable[[], SessionLetter],
        unknown: PermissionNotFoundError | QuestionNotFoundError,
        peer: Peer,
    ) -> Answer[Any]:
        async def send() -> Any:
            found = await self._services.storage.read(lambda reader: reader.find_request(request_id))
            if found is None:
                raise unknown
            letter = make_letter()
            self._sessions.post(found.session_id, letter)
            return await reply_to(letter.answer)

        return in_task(peer, send)

    def _saved(self, params: op.ListSavedPermissions, peer: Peer) -> Answer[Any]:
        return in_task(
            peer,
            partial(self._services.storage.read, lambda reader: tuple(reader.saved_permissions(params.directory))),
        )

    def _forget(self, params: op.ForgetPermission, peer: Peer) -> Answer[Any]:
        async def forget() -> None:
            await self._services.storage.commit(lambda transaction: transaction.forget_permission(params.id))

        return in_task(peer, forget)


def _check_answers(params: op.QuestionAnswer, reader: Reader) -> None:
    """One answer for each question of an open request. What has ended, or is unknown, is for the session to say."""
    found = reader.find_request(params.request_id)
    waiting = [] if found is None else reader.question_requests(found.session_id)
    for request in waiting:
        if request.id == params.request_id and len(request.questions) != len(params.answers):
            raise InvalidRequestError(
                f"There are {len(request.questions)} questions, and {len(params.answers)} answers to them.", field="answers"
            )


def _checked(params: op.ListRequests) -> Any:
    if params.session_id is not None:
        check_id(params.session_id, "ses_", "session_id")
    return params.session_id
