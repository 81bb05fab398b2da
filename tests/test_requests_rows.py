"""Permissions and questions as rows, approvals, and what else a session is told: names, agents, deliveries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from steerway.protocol.operations import ListSessions
from steerway.protocol.values import Admission, CallId, Failure, MessageId, SessionId, ToolCalled, ToolFailed
from steerway.protocol.values.errors import (
    ConflictError,
    MessageNotFoundError,
    PermissionNotFoundError,
    SessionNotFoundError,
)
from steerway.protocol.values.event import (
    AgentSwitched,
    PermissionAsked,
    PermissionReplied,
    PromptRedelivered,
    QuestionAsked,
    QuestionRejected,
    QuestionReplied,
    SessionUpdated,
)
from steerway.protocol.values.ids import RequestId
from steerway.protocol.values.message import AgentSwitchedMessage
from steerway.protocol.values.permission import PermissionRequest, SavedPermission
from steerway.protocol.values.question import Question, QuestionRequest
from steerway.storage.database import Database
from steerway.storage.projectors import IllegalEventError
from steerway.storage.reader import Reader
from steerway.storage.rebuild import rebuild_check
from steerway.storage.requests import RequestState
from steerway.storage.writer import Committed, Member
from support.stores import admitted, append, appending, commit, open_store, promoted, session_created, started

S, CHILD, GRANDCHILD, OTHER = (SessionId(f"ses_{name}") for name in ("1", "child", "grandchild", "other"))
ASKED = MessageId("msg_asked")
CALL = CallId("call_1")
PERMISSION = RequestId("per_1")
QUESTION = RequestId("que_1")
QUESTIONS = (Question(question="Which?", header="Choice", options=()),)


def answer_of(session_id: SessionId) -> MessageId:
    return MessageId(f"msg_{session_id}")


def running(session_id: SessionId) -> list[Any]:
    """A turn with a call that runs."""
    message = answer_of(session_id)
    called = ToolCalled(
        assistant_message_id=message, call_id=CALL, provider_call_id="x", tool="shell", input={}, executed=False
    )
    return [started(message), called]


def asks(request_id: RequestId, session_id: SessionId = S, call_id: CallId = CALL) -> PermissionAsked:
    return PermissionAsked(
        request_id=request_id,
        assistant_message_id=answer_of(session_id),
        call_id=call_id,
        action="shell",
        resources=("ls",),
        save=("ls *",),
        metadata={"why": "to look"},
    )


def questions(request_id: RequestId, session_id: SessionId = S) -> QuestionAsked:
    return QuestionAsked(request_id=request_id, assistant_message_id=answer_of(session_id), call_id=CALL, questions=QUESTIONS)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Database]:
    database = open_store(tmp_path / "store.db")
    append(database, S, session_created(), *running(S))
    yield database
    database.close()
    assert rebuild_check(tmp_path / "store.db") == []


@pytest.fixture
def reader(store: Database) -> Iterator[Reader]:
    reader = store.open_reader()
    yield reader
    reader.close()


# --- requests -----------------------------------------------------------------------------------------------------


def test_an_open_permission_request_is_found_by_anybody(store: Database, reader: Reader) -> None:
    append(store, S, asks(PERMISSION), created=7_000)
    expected = PermissionRequest(
        id=PERMISSION,
        session_id=S,
        assistant_message_id=answer_of(S),
        call_id=CALL,
        action="shell",
        resources=("ls",),
        save=("ls *",),
        created=7_000,
        metadata={"why": "to look"},
    )
    assert reader.permission_requests() == reader.permission_requests(S) == [expected]
    assert commit(store, lambda transaction: transaction.open_permissions(S)) == [expected]
    assert commit(store, lambda transaction: transaction.permission(PERMISSION)) == expected
    assert reader.find_request(PERMISSION) == RequestState(PERMISSION, S, "permission", None)
    assert left_open(store) == (RequestState(PERMISSION, S, "permission", None),)


def left_open(database: Database) -> tuple[RequestState, ...]:
    return commit(database, lambda transaction: transaction.unfinished(S)).requests


def test_an_open_question_is_found_by_anybody(store: Database, reader: Reader) -> None:
    append(store, S, questions(QUESTION), created=7_000)
    expected = QuestionRequest(
        id=QUESTION, session_id=S, assistant_message_id=answer_of(S), call_id=CALL, questions=QUESTIONS, created=7_000
    )
    assert reader.question_requests() == reader.question_requests(S) == [expected]
    assert commit(store, lambda transaction: transaction.open_questions(S)) == [expected]
    assert left_open(store) == (RequestState(QUESTION, S, "question", None),)


@pytest.mark.parametrize(
    ("asked", "end", "reply"),
    [
        (asks(PERMISSION), PermissionReplied(request_id=PERMISSION, reply="once"), "once"),
        (asks(PERMISSION), PermissionReplied(request_id=PERMISSION, reply="always"), "always"),
        (asks(PERMISSION), PermissionReplied(request_id=PERMISSION, reply="reject", message="No."), "reject"),
        (asks(PERMISSION), PermissionReplied(request_id=PERMISSION, reply="cancelled"), "cancelled"),
        (questions(QUESTION), QuestionReplied(request_id=QUESTION, answers=(("Yes",),)), "replied"),
        (questions(QUESTION), QuestionRejected(request_id=QUESTION, reason="user"), "rejected"),
        (questions(QUESTION), QuestionRejected(request_id=QUESTION, reason="cancelled"), "cancelled"),
    ],
)
def test_a_request_has_one_end(store: Database, reader: Reader, asked: Any, end: Any, reply: str) -> None:
    append(store, S, asked)
    append(store, S, end)
    state = commit(store, lambda transaction: transaction.request(asked.request_id))
    assert state == reader.find_request(asked.request_id)
    assert state.end == reply
    assert (reader.permission_requests(), reader.question_requests(), left_open(store)) == ([], [], ())
    with pytest.raises(IllegalEventError):
        append(store, S, end)


def test_only_a_running_call_asks(store: Database) -> None:
    with pytest.raises(IllegalEventError):
        append(store, S, asks(PERMISSION, call_id=CallId("call_never")))
    append(store, S, ToolFailed(assistant_message_id=answer_of(S), call_id=CALL, error=Failure(type="aborted", message="")))
    with pytest.raises(IllegalEventError):
        append(store, S, questions(QUESTION))


def test_a_request_id_is_used_once(store: Database) -> None:
    append(store, S, asks(PERMISSION))
    with pytest.raises(ConflictError):
        append(store, S, asks(PERMISSION))


def test_a_request_is_answered_in_its_own_session_only(store: Database) -> None:
    append(store, S, asks(PERMISSION))
    append(store, OTHER, session_created())
    with pytest.raises(IllegalEventError):
        append(store, OTHER, PermissionReplied(request_id=PERMISSION, reply="once"))


def test_an_unknown_request_is_no_request(store: Database, reader: Reader) -> None:
    append(store, S, questions(QUESTION))
    assert reader.find_request(PERMISSION) is None
    for request_id in (PERMISSION, QUESTION):
        with pytest.raises(PermissionNotFoundError):
            commit(store, lambda transaction, id=request_id: transaction.permission(id))


def test_a_parent_sees_what_its_descendants_ask(store: Database, reader: Reader) -> None:
    append(store, CHILD, session_created(parent_id=S), *running(CHILD), asks(RequestId("per_child"), CHILD))
    append(store, GRANDCHILD, session_created(parent_id=CHILD), *running(GRANDCHILD))
    append(store, GRANDCHILD, questions(QUESTION, GRANDCHILD), asks(RequestId("per_grandchild"), GRANDCHILD))
    append(store, OTHER, session_created(), *running(OTHER), asks(RequestId("per_other"), OTHER))
    append(store, S, asks(PERMISSION))

    def seen(session_id: SessionId | None) -> list[str]:
        return [request.id for request in reader.permission_requests(session_id)]

    assert seen(S) == ["per_child", "per_grandchild", PERMISSION]
    assert seen(CHILD) == ["per_child", "per_grandchild"]
    assert seen(OTHER) == ["per_other"]
    assert seen(None) == ["per_child", "per_grandchild", "per_other", PERMISSION]
    assert [request.session_id for request in reader.question_requests(S)] == [GRANDCHILD]
    assert [request.id for request in commit(store, lambda transaction: transaction.open_permissions(CHILD))] == ["per_child"]
    assert reader.family(S) == (GRANDCHILD, CHILD, S)
    for call in (reader.permission_requests, reader.question_requests, reader.family):
        with pytest.raises(SessionNotFoundError):
            call(SessionId("ses_never"))


def test_a_request_without_an_open_turn_still_needs_recovery(store: Database, reader: Reader) -> None:
    append(store, S, asks(PERMISSION))
    assert reader.unfinished_sessions() == [S]


# --- approvals ----------------------------------------------------------------------------------------------------


def save(database: Database, id: str, directory: str = "/work", resource: str = "ls *") -> None:
    commit(
        database,
        lambda transaction: transaction.save_permission(
            id=id, directory=directory, action="shell", resource=resource, created=5
        ),
    )


def saved(id: str, directory: str = "/work", resource: str = "ls *") -> SavedPermission:
    return SavedPermission(id=id, directory=directory, action="shell", resource=resource, created=5)


def test_an_approval_is_kept_once_for_its_directory(store: Database, reader: Reader) -> None:
    save(store, "psv_1")
    save(store, "psv_2")
    save(store, "psv_3", resource="cat *")
    save(store, "psv_4", directory="/else")
    assert reader.saved_permissions("/work") == [saved("psv_1"), saved("psv_3", resource="cat *")]
    assert reader.saved_permissions("/nowhere") == []
    assert len(reader.saved_permissions()) == 3
    assert commit(store, lambda transaction: transaction.saved_permissions("/else")) == [saved("psv_4", "/else")]


def test_an_approval_is_forgotten_by_its_id(store: Database, reader: Reader) -> None:
    save(store, "psv_1")
    assert commit(store, lambda transaction: transaction.forget_permission("psv_1")) is True
    assert commit(store, lambda transaction: transaction.forget_permission("psv_1")) is False
    assert reader.saved_permissions() == []


def test_an_approval_stands_when_a_later_member_of_its_group_fails(store: Database, reader: Reader) -> None:
    def fail(transaction: Any) -> None:
        appending(OTHER, session_created())(transaction)
        raise RuntimeError

    def keep(transaction: Any) -> None:
        transaction.save_permission(id="psv_1", directory="/work", action="shell", resource="ls *", created=5)

    answers = store.writer.commit([Member(keep), Member(fail)])
    assert [type(answer) is Committed for answer in answers] == [True, False]
    assert reader.saved_permissions() == [saved("psv_1")]


# --- names, agents, deliveries ------------------------------------------------------------------------------------


def titles(reader: Reader, search: str) -> list[str]:
    return [session.title for session in reader.sessions_page(ListSessions(search=search)).items]


def test_a_new_title_is_found_and_the_old_one_is_not(store: Database, reader: Reader) -> None:
    append(store, S, SessionUpdated(title="Budget of the year"))
    assert (titles(reader, "budget"), titles(reader, "session")) == (["Budget of the year"], [])
    append(store, S, SessionUpdated(metadata={"colour": "red"}))
    session = reader.session(S)
    assert (session.title, session.metadata) == ("Budget of the year", {"colour": "red"})


def test_an_agent_switch_is_a_marker_and_a_new_revision(store: Database, reader: Reader) -> None:
    before = reader.record(S).revision
    append(store, S, AgentSwitched(message_id=ASKED, agent="plan", previous="build"))
    record = reader.record(S)
    assert (record.session.agent, record.revision) == ("plan", before + 1)
    marker = AgentSwitchedMessage(id=ASKED, created=1_000, agent="plan", previous="build")
    assert reader.message(S, ASKED) == reader.context(S)[-1] == marker


def test_a_pending_prompt_changes_its_delivery_and_keeps_its_place(store: Database, reader: Reader) -> None:
    append(store, S, admitted(ASKED), admitted(MessageId("msg_later")))
    append(store, S, PromptRedelivered(message_id=ASKED, delivery="queue"))
    waiting = [item for item in reader.pending(S) if isinstance(item, Admission)]
    assert [(prompt.id, prompt.delivery) for prompt in waiting] == [(ASKED, "queue"), ("msg_later", "steer")]
    append(store, S, promoted(ASKED))
    with pytest.raises(IllegalEventError):
        append(store, S, PromptRedelivered(message_id=ASKED, delivery="steer"))


def test_a_message_of_another_session_is_not_found(store: Database, reader: Reader) -> None:
    append(store, OTHER, session_created())
    for session_id, message_id in ((OTHER, answer_of(S)), (S, MessageId("msg_never"))):
        with pytest.raises(MessageNotFoundError):
            reader.message(session_id, message_id)
    with pytest.raises(SessionNotFoundError):
        reader.message(SessionId("ses_never"), answer_of(S))
