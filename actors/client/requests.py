"""`client.permissions` and `client.questions`: what waits for people, and their answers."""

from __future__ import annotations

from ...protocol.operations import (
    PERMISSIONS_FORGET,
    PERMISSIONS_LIST,
    PERMISSIONS_REPLY,
    PERMISSIONS_SAVED,
    QUESTIONS_LIST,
    QUESTIONS_REJECT,
    QUESTIONS_REPLY,
    ForgetPermission,
    ListRequests,
    ListSavedPermissions,
    PermissionAnswer,
    QuestionAnswer,
    QuestionParams,
)
from ...protocol.values.event import PermissionReplied, QuestionRejected, QuestionReplied
from ...protocol.values.ids import RequestId, SessionId
from ...protocol.values.permission import PermissionReply, PermissionRequest, SavedPermission
from ...protocol.values.question import QuestionRequest
from .calls import Calls


class Permissions:
    """Operations on permission requests and kept approvals, named as in the contract."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def list(self, *, session_id: SessionId | None = None, timeout: float | None = None) -> tuple[PermissionRequest, ...]:
        """Requests that wait: of one session and its descendants, or of all."""
        return await self._calls.call(PERMISSIONS_LIST, ListRequests(session_id=session_id), timeout=timeout)

    async def reply(
        self,
        request_id: RequestId,
        reply: PermissionReply,
        *,
        message: str | None = None,
        timeout: float | None = None,
    ) -> PermissionReplied:
        """Answer a request. `reject` with a `message` lets the model read it and go on; without one the drain stops."""
        params = PermissionAnswer(request_id=request_id, reply=reply, message=message)
        return await self._calls.call(PERMISSIONS_REPLY, params, timeout=timeout)

    async def saved(self, *, directory: str | None = None, timeout: float | None = None) -> tuple[SavedPermission, ...]:
        """Approvals that were kept by `always`, of one directory or of all."""
        return await self._calls.call(PERMISSIONS_SAVED, ListSavedPermissions(directory=directory), timeout=timeout)

    async def forget(self, id: str, *, timeout: float | None = None) -> None:
        """Forget a kept approval."""
        await self._calls.call(PERMISSIONS_FORGET, ForgetPermission(id=id), timeout=timeout)


class Questions:
    """Operations on questions, named as in the contract."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def list(self, *, session_id: SessionId | None = None, timeout: float | None = None) -> tuple[QuestionRequest, ...]:
        """Questions that wait: of one session and its descendants, or of all."""
        return await self._calls.call(QUESTIONS_LIST, ListRequests(session_id=session_id), timeout=timeout)

    async def reply(
        self, request_id: RequestId, answers: tuple[tuple[str, ...], ...], *, timeout: float | None = None
    ) -> QuestionReplied:
        """Answer: one list of strings for each question."""
        params = QuestionAnswer(request_id=request_id, answers=answers)
        return await self._calls.call(QUESTIONS_REPLY, params, timeout=timeout)

    async def reject(self, request_id: RequestId, *, timeout: float | None = None) -> QuestionRejected:
        """Dismiss the question, which stops the drain that asked it."""
        return await self._calls.call(QUESTIONS_REJECT, QuestionParams(request_id=request_id), timeout=timeout)
