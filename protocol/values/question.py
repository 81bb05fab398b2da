"""Questions a model asks its user, durable until answered or dismissed."""

from __future__ import annotations

from .ids import CallId, MessageId, RequestId, SessionId
from .value import Value


class QuestionOption(Value):
    """One answer to choose."""

    label: str
    description: str


class Question(Value):
    """`multiple`: several options may be chosen. `custom`: an answer of the user's own words is welcome."""

    question: str
    header: str
    options: tuple[QuestionOption, ...]
    multiple: bool | None = None
    custom: bool | None = None


class QuestionRequest(Value):
    """Questions that wait. The answer is one list of strings for each."""

    id: RequestId
    session_id: SessionId
    assistant_message_id: MessageId
    call_id: CallId
    questions: tuple[Question, ...]
    created: int
