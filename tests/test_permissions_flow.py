"""Permission requests from the call that asks to the answer and what it changes, through the public surface.

Long, because all flows share the same agents, rules and tools.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from trio.testing import wait_all_tasks_blocked

from steerway import connect
from steerway.actors.blocking import Threads
from steerway.actors.configuration import Agent, PermissionRule, Permissions
from steerway.actors.tools.tool import Tool, ToolContext, tool
from steerway.protocol.values import (
    CompletedOutcome,
    InterruptedOutcome,
    Location,
    RequestId,
    SessionId,
    ToolFailed,
    ToolSucceeded,
    TurnInterrupted,
)
from steerway.protocol.values.errors import ConflictError, InvalidRequestError, PermissionNotFoundError, SessionNotFoundError
from steerway.protocol.values.event import PermissionAsked, PermissionReplied
from steerway.protocol.values.failure import PERMISSION_DENIED, PERMISSION_REJECTED
from steerway.protocol.values.permission import Effect, PermissionRequest
from support.answers import Answer, answer, hold, text, tool_call
from support.house import OpenHouse, Ticks, Watch, configuration, open_house, said
from support.provider import open_provider

ASK = PermissionRule(action="touch", resource="*", effect="ask")


class Touched:
    """A tool that asks for the one resource it is told to touch, and what it touched."""

    def __init__(self) -> None:
        self.values: list[str] = []

    def tool(self) -> Tool:
        @tool(name="touch", asks_itself=True)
        async def touch(context: ToolContext, value: str) -> str:
            """Touch something."""
            await context.session.authorize("touch", (value,), save=(f"{value[0]}*",), metadata={"value": value})
            self.values.append(value)
            return f"touched {value}"

        return touch


def touch(*values: str) -> Answer:
    """An answer that calls the tool with each of these."""
    return answer(*[tool_call("touch", {"value": value}) for value in values])


@asynccontextmanager
async def asking_house(
    folder: Path,
    touched: Touched,
    *answers: Answer,
    rules: Sequence[PermissionRule] = (ASK,),
    agents: dict[str, Agent] | None = None,
    policy: Effect = "ask",
    **fields: Any,
) -> AsyncGenerator[OpenHouse]:
    async with open_provider(*answers) as provider:
        settings = configuration(provider, permissions=Permissions(policy=policy))
        settings.agents.update({"build": Agent(permissions=tuple(rules)), **(agents or {})})
        async with open_house(provider, folder, settings=settings, tools=[touched.tool()], **fields) as house:
            yield house


async def asked(house: OpenHouse, session: SessionId, count: int = 1) -> list[PermissionRequest]:
    """The session's open requests, once there are so many."""
    seen = 0
    async with house.sessions.events(session) as stream:
        async for event in stream:
            seen += isinstance(event.data, PermissionAsked)
            if seen == count:
                break
    return list(await house.runtime.permissions.list(session_id=session))


# --- what the rules and the policy say ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "policy", "ran"),
    [
        ([PermissionRule(action="touch", resource="*", effect="allow")], "ask", True),
        ([PermissionRule(action="touch", resource="*", effect="allow")], "deny", True),
        ([PermissionRule(action="touch", resource="b*", effect="deny")], "ask", True),
        ([PermissionRule(action="touch", resource="a*", effect="deny")], "ask", False),
        ([PermissionRule(action="touch", resource="a*", effect="deny")], "allow", False),
        ([ASK], "allow", True),
        ([ASK], "deny", False),
    ],
)
async def test_what_is_decided_at_once_asks_nobody(
    tmp_path: Path, rules: list[PermissionRule], policy: Effect, ran: bool
) -> None:
    """Scenario 145, with the policy for unattended runs. A denial is for the model to read, and the drain goes on."""
    touched = Touched()
    async with asking_house(tmp_path, touched, touch("a"), rules=rules, policy=policy) as house:
        session = await house.session()
        assert await house.ask(session, "Touch it") == CompletedOutcome()
        assert await house.data(session, PermissionAsked) == []
        assert touched.values == (["a"] if ran else [])
        assert len(house.provider.requests) == 2
        if not ran:
            (failed,) = await house.data(session, ToolFailed)
            assert failed.error.type == PERMISSION_DENIED
            assert "not permitted" in said(house.provider.requests[1])[-1][1]


async def test_what_is_asked_says_whose_call_it_is_and_waits(tmp_path: Path) -> None:
    touched = Touched()
    async with asking_house(tmp_path, touched, touch("a")) as house:
        session = await house.session()
        watch = await house.watch()
        await house.sessions.prompt(session, "Touch it")
        (request,) = await asked(house, session)
        event = await watch.until(PermissionAsked)
        assert (request.action, request.resources, request.save) == ("touch", ("a",), ("a*",))
        assert (request.session_id, request.id, request.metadata) == (session, event.request_id, {"value": "a"})
        assert (request.call_id, request.assistant_message_id) == (event.call_id, event.assistant_message_id)
        await wait_all_tasks_blocked()
        assert touched.values == []
        assert len(house.provider.requests) == 1
        assert session in await house.sessions.active()
        assert await house.runtime.permissions.list() == (request,)
        await house.runtime.permissions.reply(request.id, "once")
        await house.sessions.wait(session)
        assert touched.values == ["a"]


# --- the answers --------------------------------------------------------------------------------------------------


async def test_once_lets_this_call_through_and_the_next_one_asks_again(tmp_path: Path) -> None:
    touched = Touched()
    async with asking_house(tmp_path, touched, touch("a"), touch("a")) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Touch it")
        for count in (1, 2):
            (request,) = await asked(house, session, count)
            reply = await house.runtime.permissions.reply(request.id, "once")
            assert (reply.request_id, reply.reply) == (request.id, "once")
        await house.sessions.wait(session)
        assert touched.values == ["a", "a"]
        assert await house.runtime.permissions.saved() == ()


async def test_always_is_kept_and_answers_the_requests_of_other_sessions_too(tmp_path: Path) -> None:
    """Scenario 148: those that match, in this directory; others go on waiting."""
    touched = Touched()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    script = [touch("abc"), touch("axe"), touch("bee"), touch("air")]
    async with asking_house(tmp_path, touched, *script) as house:
        sessions = [await house.session() for _ in range(3)]
        sessions.append(await house.session(location=Location(directory=str(elsewhere))))
        requests: list[PermissionRequest] = []
        for session in sessions:
            await house.sessions.prompt(session, "Touch it")
            requests += await asked(house, session)
        await house.runtime.permissions.reply(requests[0].id, "always")
        for session in sessions[:2]:
            await house.sessions.wait(session)
        await wait_all_tasks_blocked()
        assert sorted(touched.values) == ["abc", "axe"]
        assert {request.id for request in await house.runtime.permissions.list()} == {requests[2].id, requests[3].id}
        replies = [(await house.data(session, PermissionReplied))[0].reply for session in sessions[:2]]
        assert replies == ["always", "once"]
        (saved,) = await house.runtime.permissions.saved(directory=str(tmp_path))
        assert (saved.action, saved.resource) == ("touch", "a*")
        house.provider.script(touch("again"))
        assert await house.ask(sessions[0], "Again") == CompletedOutcome()
        assert touched.values[-1] == "again"


async def test_what_was_kept_is_forgotten_on_request(tmp_path: Path) -> None:
    touched = Touched()
    async with asking_house(tmp_path, touched, touch("a"), answer(text("Done.")), touch("a")) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Touch it")
        (request,) = await asked(house, session)
        await house.runtime.permissions.reply(request.id, "always")
        await house.sessions.wait(session)
        (saved,) = await house.runtime.permissions.saved()
        await house.runtime.permissions.forget(saved.id)
        await house.runtime.permissions.forget(saved.id)
        assert await house.runtime.permissions.saved() == ()
        await house.sessions.prompt(session, "Again")
        assert len(await asked(house, session, 2)) == 1


async def test_what_was_kept_survives_the_process_and_never_beats_a_configured_deny(tmp_path: Path) -> None:
    touched, ticks = Touched(), Ticks()
    async with asking_house(tmp_path, touched, touch("a"), ticks=ticks) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Touch it")
        (request,) = await asked(house, session)
        await house.runtime.permissions.reply(request.id, "always")
        await house.sessions.wait(session)
    async with asking_house(tmp_path, touched, touch("a"), ticks=ticks) as house:
        assert await house.ask(session, "Again") == CompletedOutcome()
        assert touched.values == ["a", "a"]
    deny = PermissionRule(action="touch", resource="a", effect="deny")
    async with asking_house(tmp_path, touched, touch("a"), rules=[ASK, deny], ticks=ticks) as house:
        assert await house.ask(session, "Again") == CompletedOutcome()
        assert touched.values == ["a", "a"]
        assert (await house.data(session, ToolFailed))[-1].error.type == PERMISSION_DENIED


async def test_always_leaves_a_request_alone_whose_agent_denies_it(tmp_path: Path) -> None:
    """An agent's deny is consulted first; its own request for something else goes on waiting."""
    touched = Touched()
    deny = PermissionRule(action="touch", resource="ax*", effect="deny")
    agents = {"careful": Agent(permissions=(ASK, deny))}
    async with asking_house(tmp_path, touched, touch("abc"), touch("b"), agents=agents) as house:
        first = await house.session()
        second = await house.session(agent="careful")
        for session in (first, second):
            await house.sessions.prompt(session, "Touch it")
            await asked(house, session)
        (request,) = await house.runtime.permissions.list(session_id=first)
        await house.runtime.permissions.reply(request.id, "always")
        await house.sessions.wait(first)
        await wait_all_tasks_blocked()
        assert len(await house.runtime.permissions.list(session_id=second)) == 1
        assert touched.values == ["abc"]


async def test_a_rejection_fails_the_call_rejects_the_sessions_other_requests_and_stops_the_drain(tmp_path: Path) -> None:
    touched = Touched()
    async with asking_house(tmp_path, touched, touch("a", "b"), touch("c")) as house:
        first, other = await house.session(), await house.session()
        joined = house.task(lambda: house.ask(first, "Touch them"))
        requests = await asked(house, first, 2)
        await house.sessions.prompt(other, "Touch it")
        await asked(house, other)
        await house.runtime.permissions.reply(requests[0].id, "reject")
        assert await joined.result() == InterruptedOutcome(reason="user")
        assert touched.values == []
        assert [reply.reply for reply in await house.data(first, PermissionReplied)] == ["reject", "reject"]
        failures = await house.data(first, ToolFailed)
        assert PERMISSION_REJECTED in [failed.error.type for failed in failures]
        assert len(failures) == 2
        assert len(await house.data(first, TurnInterrupted)) == 1
        await house.sessions.wait(first)
        assert len(await house.runtime.permissions.list(session_id=other)) == 1
        assert len(house.provider.requests) == 2
        assert await house.ask(first, "Then leave it") == CompletedOutcome()
        assert [role for role, _ in said(house.provider.requests[-1])] == ["user", "assistant", "tool", "tool", "user"]


async def test_a_correction_is_read_by_the_model_and_the_drain_goes_on(tmp_path: Path) -> None:
    touched = Touched()
    async with asking_house(tmp_path, touched, touch("a", "b")) as house:
        session = await house.session()
        joined = house.task(lambda: house.ask(session, "Touch them"))
        first, second = sorted(await asked(house, session, 2), key=lambda request: request.resources)
        await house.runtime.permissions.reply(first.id, "reject", message="use gloves")
        assert [request.id for request in await house.runtime.permissions.list()] == [second.id]
        await house.runtime.permissions.reply(second.id, "once")
        assert await joined.result() == CompletedOutcome()
        assert touched.values == ["b"]
        assert "use gloves" in " ".join(content for _, content in said(house.provider.requests[1]))


async def test_a_message_goes_only_with_a_rejection(tmp_path: Path) -> None:
    touched = Touched()
    async with asking_house(tmp_path, touched, touch("a")) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Touch it")
        (request,) = await asked(house, session)
        with pytest.raises(InvalidRequestError):
            await house.runtime.permissions.reply(request.id, "once", message="but")
        assert await house.runtime.permissions.list() == (request,)


# --- who answers --------------------------------------------------------------------------------------------------


async def test_a_client_that_comes_later_sees_the_request_and_may_answer_it(tmp_path: Path) -> None:
    touched = Touched()
    async with asking_house(tmp_path, touched, touch("a"), blocking=Threads()) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Touch it")
        (request,) = await asked(house, session)
        listening = await house.runtime.listen(host="127.0.0.1", port=0, token="secret")
        async with connect(listening.url, token="secret") as other:
            view = await other.sessions.attach(session)
            assert view.permissions == (request,)
            assert view.active
            await other.permissions.reply(request.id, "once")
            await other.sessions.wait(session)
        assert touched.values == ["a"]


async def test_the_first_answer_wins_and_later_ones_are_told_of_it(tmp_path: Path) -> None:
    """Ruling A16."""
    touched = Touched()
    async with asking_house(tmp_path, touched, touch("a")) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Touch it")
        (request,) = await asked(house, session)
        tasks = [
            house.task(lambda reply=reply: house.runtime.permissions.reply(request.id, reply)) for reply in ("once", "always")
        ]
        answers: list[str] = []
        for task in tasks:
            try:
                answers.append((await task.result()).reply)
            except ConflictError as error:
                answers.append(f"told of {error.fields['reply']}")
        won = next(one for one in answers if not one.startswith("told"))
        assert sorted(answers) == sorted([won, f"told of {won}"])
        await house.sessions.wait(session)
        with pytest.raises(ConflictError) as caught:
            await house.runtime.permissions.reply(request.id, "reject")
        assert caught.value.fields["reply"] == won
        assert len(await house.data(session, PermissionReplied)) == 1
        assert touched.values == ["a"]


async def test_an_unknown_request_or_session_is_not_found(tmp_path: Path) -> None:
    async with asking_house(tmp_path, Touched()) as house:
        with pytest.raises(PermissionNotFoundError):
            await house.runtime.permissions.reply(RequestId("per_unknown"), "once")
        with pytest.raises(SessionNotFoundError):
            await house.runtime.permissions.list(session_id=SessionId("ses_unknown"))


async def test_a_childs_request_is_seen_at_its_parent(tmp_path: Path) -> None:
    touched = Touched()
    async with asking_house(tmp_path, touched, touch("a")) as house:
        parent, stranger = await house.session(), await house.session()
        child = await house.session(parent_id=parent)
        await house.sessions.prompt(child, "Touch it")
        (request,) = await asked(house, child)
        assert await house.runtime.permissions.list(session_id=parent) == (request,)
        assert await house.runtime.permissions.list(session_id=stranger) == ()
        await house.runtime.permissions.reply(request.id, "once")
        await house.sessions.wait(child)
        assert touched.values == ["a"]


# --- ends without an answer ---------------------------------------------------------------------------------------


async def test_an_interrupt_closes_the_request_as_cancelled_with_its_call(tmp_path: Path) -> None:
    """Ruling A16: in one settlement, and a later answer is told so."""
    touched = Touched()
    async with asking_house(tmp_path, touched, touch("a")) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Touch it")
        (request,) = await asked(house, session)
        await house.sessions.interrupt(session)
        assert (await house.types(session))[-3:] == ["permission.replied", "tool.failed", "turn.interrupted"]
        (reply,) = await house.data(session, PermissionReplied)
        assert reply.reply == "cancelled"
        assert await house.runtime.permissions.list() == ()
        with pytest.raises(ConflictError) as caught:
            await house.runtime.permissions.reply(request.id, "once")
        assert caught.value.fields["reply"] == "cancelled"
        assert touched.values == []
        assert await house.ask(session, "Leave it") == CompletedOutcome()


async def test_a_stop_of_the_runtime_closes_the_request_as_cancelled(tmp_path: Path) -> None:
    touched, ticks = Touched(), Ticks()
    async with asking_house(tmp_path, touched, touch("a"), ticks=ticks) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Touch it")
        await asked(house, session)
    async with asking_house(tmp_path, touched, ticks=ticks) as house:
        (reply,) = await house.data(session, PermissionReplied)
        assert reply.reply == "cancelled"
        (interrupted,) = await house.data(session, TurnInterrupted)
        assert interrupted.reason == "shutdown"
    assert touched.values == []


@pytest.mark.parametrize("order", ["reply first", "interrupt first"])
async def test_a_reply_and_an_interrupt_at_once_leave_one_end(tmp_path: Path, order: str) -> None:
    touched = Touched()
    async with asking_house(tmp_path, touched, touch("a")) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Touch it")
        (request,) = await asked(house, session)
        calls = [lambda: house.runtime.permissions.reply(request.id, "once"), lambda: house.sessions.interrupt(session)]
        if order == "interrupt first":
            calls.reverse()
        tasks = [house.task(call) for call in calls]  # type: ignore[arg-type]
        standing: list[str] = []
        for task in tasks:
            try:
                await task.result()
            except ConflictError as error:
                standing.append(error.fields["reply"])
        assert standing in ([], ["cancelled"])
        await house.sessions.wait(session)
        (reply,) = await house.data(session, PermissionReplied)
        settled = await house.data(session, ToolFailed, ToolSucceeded)
        assert len(settled) == 1
        assert reply.reply == "once" or touched.values == []


# --- whose rules --------------------------------------------------------------------------------------------------


async def test_the_agent_that_issued_the_call_decides_after_a_switch(tmp_path: Path) -> None:
    """Scenario 146: the rules are those of the turn, whoever is selected while the call waits."""
    touched = Touched()
    agents = {"free": Agent(permissions=(PermissionRule(action="touch", resource="*", effect="allow"),))}
    held = hold()
    first = answer(held, *tool_call("touch", {"value": "a"}))
    async with asking_house(tmp_path, touched, first, touch("b"), agents=agents) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Touch it")
        await held.reached.wait()
        await house.sessions.switch_agent(session, "free")
        held.release()
        (request,) = await asked(house, session)
        assert touched.values == []
        await house.runtime.permissions.reply(request.id, "once")
        await house.sessions.wait(session)
        assert touched.values == ["a", "b"]
        assert len(await house.data(session, PermissionAsked)) == 1


async def test_a_tool_that_does_not_ask_itself_is_asked_for_by_name(tmp_path: Path) -> None:
    """The built-in rules: `write` asks (ruling C6), and its file is there only after the answer."""
    touched = Touched()
    call = answer(tool_call("write", {"path": "new.txt", "content": "hello"}))
    async with asking_house(tmp_path, touched, call) as house:
        session = await house.session()
        watch: Watch = await house.watch()
        await house.sessions.prompt(session, "Write it")
        request = await watch.until(PermissionAsked)
        assert request.action == "write"
        assert not (tmp_path / "new.txt").exists()
        await house.runtime.permissions.reply(request.request_id, "once")
        await house.sessions.wait(session)
        assert (tmp_path / "new.txt").read_text() == "hello"
