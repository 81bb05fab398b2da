"""`sessions.attach`: one view of one moment, from which live deltas and durable events lead to exactly the final message."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from steerway.protocol.values import (
    Activity,
    AssistantMessage,
    Attachment,
    CompletedOutcome,
    Event,
    FailedOutcome,
    MessageId,
    PromptAdmitted,
    PromptPromoted,
    PromptWithdrawn,
    ReasoningDelta,
    ReasoningEnded,
    ReasoningPart,
    ReasoningStarted,
    SessionId,
    TextDelta,
    TextEnded,
    TextPart,
    TextStarted,
    ToolCalled,
    ToolInputDelta,
    ToolInputEnded,
    ToolInputStarted,
    ToolPart,
    ToolPending,
    ToolRunning,
    TurnStarted,
)
from steerway.protocol.values.event import PermissionAsked, QuestionAsked, RetryScheduled
from support.answers import Answer, Block, answer, hold, interleave, reasoning, status, text, tool_call
from support.house import TERMINAL, OpenHouse, Ticks, open_house, scripted_house
from support.provider import open_provider
from support.tools import HeldTool, ScriptedTool


class Mirror:
    """A client that joined in the middle: the view it was given, and what it hears afterwards.

    It has heard the live stream since before it attached. What the view covers is dropped: durable events up to its
    sequence, and of a delta the part below the text it has.
    """

    def __init__(self, view: Attachment) -> None:
        self.seq = view.seq
        self.turns: dict[MessageId, dict[str, str]] = {}
        if view.turn is not None:
            self.turns[view.turn.id] = {part.id: _text(part) for part in view.turn.content}
        self._ended = {
            part.id
            for part in (view.turn.content if view.turn is not None else ())
            if isinstance(part, ToolPart) and not isinstance(part.state, ToolPending)
        }

    def hear(self, event: Event) -> None:
        if event.seq is not None:
            if event.seq <= self.seq:
                return
            assert event.seq == self.seq + 1, "the live stream has a gap"
            self.seq = event.seq
        match event.data:
            case TurnStarted(assistant_message_id=id):
                self.turns.setdefault(id, {})
            case TextStarted(assistant_message_id=id, part_id=part) | ReasoningStarted(assistant_message_id=id, part_id=part):
                self.turns[id][part] = ""
            case ToolInputStarted(assistant_message_id=id, call_id=part):
                self.turns[id][part] = ""
            case TextDelta(assistant_message_id=id, part_id=part, offset=offset, delta=delta):
                self._grow(id, part, offset, delta)
            case ReasoningDelta(assistant_message_id=id, part_id=part, offset=offset, delta=delta):
                self._grow(id, part, offset, delta)
            case ToolInputDelta(assistant_message_id=id, call_id=part, offset=offset, delta=delta):
                self._grow(id, part, offset, delta)
            case TextEnded(assistant_message_id=id, part_id=part, text=whole):
                assert self.turns[id][part] == whole
            case ReasoningEnded(assistant_message_id=id, part_id=part, text=whole):
                assert self.turns[id][part] == whole
            case ToolInputEnded(assistant_message_id=id, call_id=part, text=whole):
                assert self.turns[id][part] == whole
            case _:
                pass

    def _grow(self, turn: MessageId, part: str, offset: int, delta: str) -> None:
        parts = self.turns.get(turn, {})
        if part not in parts or part in self._ended:
            return  # of an earlier turn, or an input that was complete
        known = len(parts[part])
        assert offset <= known, "text is missing"
        parts[part] += delta[known - offset :]


def _text(part: Any) -> str:
    match part:
        case TextPart(text=said) | ReasoningPart(text=said):
            return said
        case ToolPart(state=ToolPending(input=said)):
            return said
        case _:
            return ""


def check_view(view: Attachment, log: list[Event]) -> None:
    """The view is what the log says up to its sequence, no more and no less."""
    known = [event for event in log if event.seq is not None and event.seq <= view.seq]
    assert len(known) == view.seq == view.session.head
    pending: dict[MessageId, None] = {}
    turn: MessageId | None = None
    parts: list[str] = []
    for event in known:
        match event.data:
            case PromptAdmitted(message_id=id):
                pending[id] = None
            case PromptPromoted(message_id=id) | PromptWithdrawn(message_id=id):
                del pending[id]
            case TurnStarted(assistant_message_id=id, attempt=1):
                turn, parts = id, []
            case TextStarted(part_id=part) | ReasoningStarted(part_id=part) | ToolInputStarted(call_id=part):
                parts.append(part)
            case data if isinstance(data, TERMINAL):
                turn = None
            case _:
                pass
    assert [admission.id for admission in view.pending] == list(pending)
    assert (view.turn.id if view.turn is not None else None) == turn
    if view.turn is not None:
        assert [part.id for part in view.turn.content] == parts
        assert view.turn.completed is None


async def check_end(house: OpenHouse, session: SessionId, mirror: Mirror) -> None:
    """What the mirror has of each turn is what the session shows."""
    for turn, parts in mirror.turns.items():
        message = await house.sessions.message(session, turn)
        assert isinstance(message, AssistantMessage)
        assert [part.id for part in message.content] == list(parts)
        for part in message.content:
            if isinstance(part, TextPart | ReasoningPart):
                assert parts[part.id] == part.text


async def join(house: OpenHouse, session: SessionId, go: trio.Event, steps: int) -> None:
    """Watch, attach so many turns of the loop after `go`, and follow to the end of the work; everything is checked."""
    heard: list[Event] = []
    attached: list[Attachment] = []

    async def attach() -> None:
        await go.wait()
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        attached.append(await house.sessions.attach(session))

    async with trio.open_nursery() as nursery, house.runtime.events.subscribe() as stream:
        nursery.start_soon(attach)
        async for event in stream:
            if event.session_id == session:
                heard.append(event)
            if isinstance(event.data, Activity) and event.data.state == "idle":
                break
    (view,) = attached
    mirror = Mirror(view)
    for event in heard:
        mirror.hear(event)
    log = await house.events(session)
    check_view(view, log)
    assert mirror.seq == len(log)
    assert await house.events(session, after=view.seq) == log[view.seq :]
    await check_end(house, session, mirror)


# --- at any moment ------------------------------------------------------------------------------------------------

PIECES = st.lists(st.text("ab 😀é\u3042", min_size=1, max_size=6), min_size=1, max_size=6)
BLOCKS = st.one_of(
    PIECES.map(text),
    PIECES.map(reasoning),
    st.tuples(PIECES, PIECES).map(lambda both: interleave(text(both[0]), reasoning(both[1]))),
)
ANSWERS = st.lists(BLOCKS, min_size=1, max_size=3)


@given(
    first=ANSWERS,
    last=ANSWERS,
    value=st.text("ab😀", max_size=12),
    moments=st.lists(st.integers(0, 120), min_size=3, max_size=6),
)
@settings(max_examples=12, deadline=None)
async def test_whoever_attaches_at_any_moment_ends_with_the_final_messages(
    first: list[Block], last: list[Block], value: str, moments: list[int]
) -> None:
    """Two turns with a tool between them, joined by several at once."""
    tool = ScriptedTool("look")
    call = tool_call("look", {"value": value}, deltas=3)
    script = [answer(*first, call), answer(*last)]
    with tempfile.TemporaryDirectory() as folder:
        async with scripted_house(Path(folder), *script, tools=[tool.tool]) as house:
            session = await house.session()
            go = trio.Event()
            joined = [house.task(lambda steps=steps: join(house, session, go, steps)) for steps in moments]
            await wait_all_tasks_blocked()
            go.set()
            await house.sessions.prompt(session, "Look")
            await house.sessions.prompt(session, "Closely", delivery="queue")
            for task in joined:
                await task.result()


# --- at chosen moments --------------------------------------------------------------------------------------------


async def test_a_session_at_rest_shows_what_waits_and_how_its_last_run_ended(tmp_path: Path) -> None:
    ticks = Ticks()
    async with open_provider(status(400)) as provider:
        async with open_house(provider, tmp_path, ticks=ticks) as house:
            session = await house.session()
            outcome = await house.ask(session, "Hello")
            first = await house.admit(session, "One", delivery="queue")
            second = await house.admit(session, "Two")
            view = await house.sessions.attach(session)
            assert view.pending == (first, second)
            assert (view.turn, view.active, view.permissions, view.questions) == (None, False, (), ())
            assert isinstance(outcome, FailedOutcome)
            assert view.session.last_outcome == outcome
            check_view(view, await house.events(session))
        async with open_house(provider, tmp_path, ticks=ticks) as house:
            again = await house.sessions.attach(session)
            assert (again.pending, again.seq) == (view.pending, view.seq)
            assert again.session.last_outcome is None


async def test_an_open_text_is_shown_as_far_as_it_came(tmp_path: Path) -> None:
    """In code points, whatever the text."""
    held = hold()
    script = answer(reasoning("Hm. 🤔"), text("Here 😀"), held, text(" it is 😀."))
    async with scripted_house(tmp_path, script) as house:
        session = await house.session()
        watch = await house.watch()
        await house.sessions.prompt(session, "Hello")
        await held.reached.wait()
        await watch.until(TextDelta)
        view = await house.sessions.attach(session)
        assert view.active
        assert view.turn is not None
        thought, said = view.turn.content
        assert isinstance(thought, ReasoningPart)
        assert isinstance(said, TextPart)
        assert (thought.text, said.text) == ("Hm. 🤔", "Here 😀")
        stored = await house.sessions.message(session, view.turn.id)
        assert isinstance(stored, AssistantMessage)
        assert isinstance(stored.content[1], TextPart)
        assert stored.content[1].text == ""
        held.release()
        await house.sessions.wait(session)
        assert (await watch.until(TextDelta, 2)).offset == len("Here 😀")


async def test_an_open_input_is_shown_as_far_as_it_came(tmp_path: Path) -> None:
    held = hold()
    call = tool_call("look", ['{"val', 'ue": "x"}'])
    tool = HeldTool("look")
    async with scripted_house(tmp_path, answer(*call[:2], held, *call[2:]), tools=[tool.tool]) as house:
        session = await house.session()
        watch = await house.watch()
        await house.sessions.prompt(session, "Look")
        await held.reached.wait()
        await watch.until(ToolInputDelta)
        view = await house.sessions.attach(session)
        assert view.turn is not None
        (part,) = view.turn.content
        assert isinstance(part, ToolPart)
        assert part.state == ToolPending(input='{"val')
        held.release()
        await tool.wait_started()
        view = await house.sessions.attach(session)
        assert view.turn is not None
        (part,) = view.turn.content
        assert isinstance(part, ToolPart)
        assert part.state == ToolRunning(input={"value": "x"})
        tool.release()
        await house.sessions.wait(session)


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        (lambda: answer(before=[hold()]), TurnStarted),
        (lambda: answer(text("Half"), hold()), TextStarted),
        (lambda: status(429, headers={"Retry-After": "600"}), RetryScheduled),
        (lambda: answer(tool_call("look")), ToolCalled),
        (lambda: answer(tool_call("write", {"path": "a", "content": "b"})), PermissionAsked),
        (lambda: answer(tool_call("question", {"questions": [{"question": "?", "header": "Q"}]})), QuestionAsked),
    ],
    ids=["before the first byte", "in a text", "in back-off", "in a tool", "asking permission", "asking a question"],
)
async def test_a_turn_is_shown_at_each_of_its_stages(
    tmp_path: Path, mock_clock: MockClock, script: Callable[[], Answer], kind: Any
) -> None:
    tool = HeldTool("look")
    async with scripted_house(tmp_path, script(), tools=[tool.tool]) as house:
        session = await house.session()
        watch = await house.watch()
        await house.sessions.prompt(session, "Hello")
        await watch.until(kind)
        waiting = await house.admit(session, "Later", delivery="queue")
        view = await house.sessions.attach(session)
        check_view(view, await house.events(session))
        assert view.active
        assert view.turn is not None
        assert view.pending == (waiting,)
        assert (view.turn.retry is not None) == (kind is RetryScheduled)
        assert len(view.permissions) == (kind is PermissionAsked)
        assert len(view.questions) == (kind is QuestionAsked)
        await house.sessions.interrupt(session)
        view = await house.sessions.attach(session)
        check_view(view, await house.events(session))
        assert (view.active, view.turn, view.permissions, view.questions) == (False, None, (), ())


async def test_a_view_has_everything_that_was_answered_before_it_was_asked_for(tmp_path: Path) -> None:
    """Also while commits are still on their way: `attach` keeps its place among the letters."""
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        tasks: list[Any] = []
        views: list[Any] = []
        for number in range(10):
            tasks.append(house.task(lambda number=number: house.admit(session, f"Prompt {number}")))
            views.append(house.task(lambda: house.sessions.attach(session)))
        receipts = {(await task.result()).id for task in tasks}
        for task in views:
            view = await task.result()
            assert len(view.pending) == view.seq - 1
            assert {admission.id for admission in view.pending} <= receipts
        assert len((await house.sessions.attach(session)).pending) == 10


async def test_attaching_wakes_nobody(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        await house.admit(session, "Hello")
        await house.sessions.attach(session)
        await wait_all_tasks_blocked()
        assert house.provider.requests == []
        assert await house.sessions.resume(session) == CompletedOutcome()
