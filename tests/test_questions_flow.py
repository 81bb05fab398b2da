"""Questions of a model to its user, from the call to the answer, through the public surface."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trio.testing import wait_all_tasks_blocked

from steerway import connect
from steerway.actors.blocking import Threads
from steerway.protocol.values import (
    CompletedOutcome,
    InterruptedOutcome,
    RequestId,
    SessionId,
    ToolFailed,
    ToolSucceeded,
    TurnInterrupted,
)
from steerway.protocol.values.errors import ConflictError, InvalidRequestError, QuestionNotFoundError
from steerway.protocol.values.event import QuestionAsked, QuestionRejected, QuestionReplied
from steerway.protocol.values.failure import QUESTION_REJECTED
from steerway.protocol.values.question import QuestionRequest
from support.answers import Answer, answer, tool_call
from support.house import OpenHouse, said, scripted_house

COLOUR: dict[str, Any] = {
    "question": "Which colour?",
    "header": "Colour",
    "options": [{"label": "red", "description": "like a rose"}, {"label": "blue"}],
}
SIZE: dict[str, Any] = {"question": "How large?", "header": "Size"}


def asking(*questions: dict[str, Any]) -> Answer:
    return answer(tool_call("question", {"questions": list(questions)}))


async def asked(house: OpenHouse, session: SessionId, count: int = 1) -> QuestionRequest:
    """The session's last open question, once so many were asked."""
    seen = 0
    async with house.sessions.events(session) as stream:
        async for event in stream:
            seen += isinstance(event.data, QuestionAsked)
            if seen == count:
                break
    return (await house.runtime.questions.list(session_id=session))[-1]


async def test_the_answers_go_back_to_the_model(tmp_path: Path) -> None:
    async with scripted_house(tmp_path, asking(COLOUR, SIZE)) as house:
        session = await house.session()
        joined = house.task(lambda: house.ask(session, "Paint it"))
        request = await asked(house, session)
        assert [question.header for question in request.questions] == ["Colour", "Size"]
        assert [option.label for option in request.questions[0].options] == ["red", "blue"]
        await wait_all_tasks_blocked()
        assert len(house.provider.requests) == 1
        reply = await house.runtime.questions.reply(request.id, (("red",), ("two metres",)))
        assert reply.answers == (("red",), ("two metres",))
        assert await joined.result() == CompletedOutcome()
        role, content = said(house.provider.requests[1])[-1]
        assert role == "tool"
        assert "red" in content
        assert "two metres" in content
        assert await house.runtime.questions.list() == ()
        assert len(await house.data(session, ToolSucceeded)) == 1


async def test_a_dismissed_question_fails_the_call_and_stops_the_drain(tmp_path: Path) -> None:
    """Scenario 151: one request only."""
    async with scripted_house(tmp_path, asking(COLOUR)) as house:
        session = await house.session()
        joined = house.task(lambda: house.ask(session, "Paint it"))
        request = await asked(house, session)
        rejected = await house.runtime.questions.reject(request.id)
        assert (rejected.request_id, rejected.reason) == (request.id, "user")
        assert await joined.result() == InterruptedOutcome(reason="user")
        (failed,) = await house.data(session, ToolFailed)
        assert failed.error.type == QUESTION_REJECTED
        assert len(await house.data(session, TurnInterrupted)) == 1
        await house.sessions.wait(session)
        assert len(house.provider.requests) == 1
        assert await house.ask(session, "Blue, then") == CompletedOutcome()


async def test_a_client_that_comes_later_sees_the_question_and_may_answer_it(tmp_path: Path) -> None:
    async with scripted_house(tmp_path, asking(COLOUR), blocking=Threads()) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Paint it")
        request = await asked(house, session)
        listening = await house.runtime.listen(host="127.0.0.1", port=0, token="secret")
        async with connect(listening.url, token="secret") as other:
            assert (await other.sessions.attach(session)).questions == (request,)
            await other.questions.reply(request.id, (("blue",),))
            await other.sessions.wait(session)
        assert len(await house.data(session, QuestionReplied)) == 1


async def test_the_first_answer_wins_and_later_ones_are_told_of_it(tmp_path: Path) -> None:
    async with scripted_house(tmp_path, asking(COLOUR)) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Paint it")
        request = await asked(house, session)
        await house.runtime.questions.reply(request.id, (("blue",),))
        await house.sessions.wait(session)
        for late in (
            lambda: house.runtime.questions.reply(request.id, (("red",),)),
            lambda: house.runtime.questions.reject(request.id),
        ):
            with pytest.raises(ConflictError) as caught:
                await late()
            assert caught.value.fields["reply"] == "replied"
        assert len(await house.data(session, QuestionReplied, QuestionRejected)) == 1


async def test_an_unknown_question_is_not_found(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        with pytest.raises(QuestionNotFoundError):
            await house.runtime.questions.reply(RequestId("que_unknown"), (("red",),))
        with pytest.raises(QuestionNotFoundError):
            await house.runtime.questions.reject(RequestId("que_unknown"))


async def test_an_interrupt_closes_the_question_as_cancelled_with_its_call(tmp_path: Path) -> None:
    """Ruling A16."""
    async with scripted_house(tmp_path, asking(COLOUR)) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Paint it")
        request = await asked(house, session)
        await house.sessions.interrupt(session)
        assert (await house.types(session))[-3:] == ["question.rejected", "tool.failed", "turn.interrupted"]
        (rejected,) = await house.data(session, QuestionRejected)
        assert rejected.reason == "cancelled"
        assert await house.runtime.questions.list() == ()
        with pytest.raises(ConflictError) as caught:
            await house.runtime.questions.reply(request.id, (("red",),))
        assert caught.value.fields["reply"] == "cancelled"


async def test_a_childs_question_is_seen_at_its_parent(tmp_path: Path) -> None:
    async with scripted_house(tmp_path, asking(COLOUR)) as house:
        parent = await house.session()
        child = await house.session(parent_id=parent)
        await house.sessions.prompt(child, "Paint it")
        request = await asked(house, child)
        assert await house.runtime.questions.list(session_id=parent) == (request,)
        await house.runtime.questions.reply(request.id, (("red",),))
        await house.sessions.wait(child)


@pytest.mark.parametrize("answers", [(), (("red",), ("blue",))], ids=["none", "too many"])
async def test_answers_that_do_not_fit_are_refused_and_the_question_stays(
    tmp_path: Path, answers: tuple[tuple[str, ...], ...]
) -> None:
    """One list for each question; what does not fit must not end the question, nor crash its tool."""
    async with scripted_house(tmp_path, asking(COLOUR)) as house:
        session = await house.session()
        joined = house.task(lambda: house.ask(session, "Paint it"))
        request = await asked(house, session)
        with pytest.raises(InvalidRequestError):
            await house.runtime.questions.reply(request.id, answers)
        assert await house.runtime.questions.list() == (request,)
        await house.runtime.questions.reply(request.id, (("red",),))
        assert await joined.result() == CompletedOutcome()
