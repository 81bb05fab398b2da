"""The runtime as a whole: how it starts, how it ends, and what leaves its block."""

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import apsw
import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from steerway import connect, open_runtime
from steerway.actors.blocking import Threads
from steerway.actors.session import passage as passage_module
from steerway.protocol.values import (
    AssistantMessage,
    FailedOutcome,
    InterruptedOutcome,
    ModelRef,
    ServerDisposed,
    SessionId,
    TextDelta,
    TextEnded,
    ToolFailed,
    TurnInterrupted,
    UserMessage,
)
from steerway.protocol.values.errors import (
    ClientError,
    RuntimeFailedError,
    SessionNotFoundError,
    StoreInUseError,
)
from support.answers import answer, hold, text, tool_call
from support.house import (
    LingeringTool,
    Ticks,
    configuration,
    crash_image,
    open_house,
    said,
    scripted_house,
    stored_sessions,
)
from support.provider import Provider, open_provider
from support.tools import HeldTool

UNKNOWN = SessionId("ses_unknown")


# --- what leaves the block ----------------------------------------------------------------------------------------


async def test_an_error_of_the_block_leaves_it_unwrapped(tmp_path: Path) -> None:
    """Ruling D1, over two nested blocks."""

    async def fail(provider: Provider) -> None:
        async with open_runtime(tmp_path / "sessions.db", configuration=configuration(provider)) as runtime:
            listening = await runtime.listen(host="127.0.0.1", port=0, token="secret")
            async with connect(listening.url, token="secret") as client:
                await client.sessions.get(UNKNOWN)

    async with open_provider() as provider:
        with pytest.raises(SessionNotFoundError):
            await fail(provider)


def test_a_program_of_another_event_loop_is_told_so(tmp_path: Path) -> None:
    async def main(opened: AbstractAsyncContextManager[object]) -> None:
        async with opened:
            pass

    for opened in (open_runtime(tmp_path / "store.db"), connect("ws://127.0.0.1:1")):
        with pytest.raises(RuntimeError, match="Steerway runs on trio"):
            asyncio.run(main(opened))


async def test_a_second_runtime_on_the_same_store_is_refused(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        with pytest.raises(StoreInUseError):
            async with open_runtime(tmp_path / "sessions.db", configuration=configuration(house.provider)):
                pytest.fail("opened twice")
        assert (await house.sessions.get(session)).id == session
    async with scripted_house(tmp_path) as house:
        assert len((await house.sessions.list()).items) == 1


async def test_a_runtime_whose_store_was_taken_over_ends(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"

    async def lose_it(provider: Provider) -> None:
        async with open_runtime(path, configuration=configuration(provider)) as runtime:
            session = await runtime.sessions.create()
            taker: Any = apsw.Connection(str(path))
            taker.execute("UPDATE store SET fence = fence + 1")
            taker.close()
            with pytest.raises((StoreInUseError, ClientError)):
                await runtime.sessions.prompt(session.id, "Hello")
            await trio.sleep_forever()

    async with open_provider() as provider:
        with trio.fail_after(10), pytest.raises(RuntimeFailedError) as caught:
            await lose_it(provider)
    assert isinstance(caught.value.__cause__, StoreInUseError)


async def test_the_client_of_a_runtime_that_ended_is_closed(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        runtime = house.runtime
    with pytest.raises(ClientError) as caught:
        await runtime.sessions.list()
    assert caught.value.reason == "closed"


async def test_a_listener_without_a_token_is_refused(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        with pytest.raises(ValueError, match="token"):
            await house.runtime.listen(host="127.0.0.1", port=0, token="")
        assert (await house.runtime.server.health()).healthy


# --- the end ------------------------------------------------------------------------------------------------------


async def test_leaving_settles_what_runs_with_the_reason_shutdown(tmp_path: Path) -> None:
    held, tool = hold(), HeldTool("look")
    script = (answer(text("Half"), held), answer(tool_call("look")))
    async with scripted_house(tmp_path, *script, tools=[tool.tool]) as house:
        one, two = await house.session(), await house.session()
        watch = await house.watch()
        await house.sessions.prompt(one, "Hello")
        await watch.until(TextDelta)
        await house.sessions.prompt(two, "Look")
        await tool.wait_started()
        waiting = await house.admit(one, "Later", delivery="queue")
    logs = stored_sessions(house.path)
    for session in (one, two):
        (end,) = [event.data for event in logs[session] if isinstance(event.data, TurnInterrupted)]
        assert end.reason == "shutdown"
    assert [event.data.text for event in logs[one] if isinstance(event.data, TextEnded)] == ["Half"]
    assert len([event for event in logs[two] if isinstance(event.data, ToolFailed)]) == 1
    async with scripted_house(tmp_path, ticks=LaterTicks()) as house:
        assert await house.pending(one) == [waiting.id]


class LaterTicks(Ticks):
    """For a second opening in another provider's block."""

    def __init__(self) -> None:
        super().__init__()
        self._ms += 1_000_000
        self._bytes += 1_000_000


async def test_the_cancellation_of_the_embedding_nursery_settles_too(tmp_path: Path) -> None:
    """Ruling A8: with threads, as in production; nothing but the cancellation leaves."""
    held = hold()
    session = UNKNOWN
    async with open_provider(answer(text("Half"), held)) as provider:
        async with trio.open_nursery() as nursery:

            async def embed() -> None:
                async with open_house(provider, tmp_path, blocking=Threads()) as house:
                    watch = await house.watch()
                    await house.sessions.create(id=session)
                    await house.sessions.prompt(session, "Hello")
                    await watch.until(TextDelta)
                    nursery.cancel_scope.cancel()
                    await trio.sleep_forever()

            nursery.start_soon(embed)
        assert nursery.cancel_scope.cancelled_caught
        await provider.answers[0].disconnected.wait()
    (end,) = [event.data for event in stored_sessions(tmp_path / "sessions.db")[session][-1:]]
    assert isinstance(end, TurnInterrupted)
    assert end.reason == "shutdown"


@pytest.mark.parametrize("checkpoints", [0, 1, 2, 4, 8, 16])
async def test_a_start_that_is_cancelled_ends_and_frees_the_store(tmp_path: Path, checkpoints: int) -> None:
    async def cancel(scope: trio.CancelScope) -> None:
        for _ in range(checkpoints):
            await trio.lowlevel.checkpoint()
        scope.cancel()

    async with open_provider() as provider:
        settings = configuration(provider)
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cancel, nursery.cancel_scope)
                async with open_runtime(tmp_path / "sessions.db", configuration=settings):
                    await trio.sleep_forever()
            async with open_runtime(tmp_path / "sessions.db", configuration=settings) as runtime:
                assert (await runtime.sessions.list()).items == ()


async def test_the_settlement_comes_before_the_disposal_and_that_before_the_close(tmp_path: Path) -> None:
    """Ruling D3, seen by a client on a socket."""
    held = hold()
    kinds: list[type[Any]] = []
    failures: list[ClientError] = []

    async def follow(url: str, opened: trio.Event) -> None:
        async with connect(url, token="secret") as client, client.events.subscribe() as stream:
            try:
                async for event in stream:
                    kinds.append(type(event.data))
                    opened.set()
            except ClientError as error:
                failures.append(error)

    async with trio.open_nursery() as nursery, scripted_house(tmp_path, answer(text("Half"), held)) as house:
        listening = await house.runtime.listen(host="127.0.0.1", port=0, token="secret")
        opened = trio.Event()
        nursery.start_soon(follow, listening.url, opened)
        await opened.wait()
        session = await house.session()
        await house.sessions.prompt(session, "Hello")
        await held.reached.wait()
    assert kinds[-1] is ServerDisposed
    assert TurnInterrupted in kinds
    assert [error.reason for error in failures] == ["closed"]


async def test_a_tool_that_will_not_end_holds_up_the_end_by_a_bounded_time(tmp_path: Path, autojump_clock: MockClock) -> None:
    """What it leaves is settled by the next process."""
    tool, ticks = LingeringTool("linger"), Ticks()

    async def let_go_later() -> None:
        await tool.cancelled.wait()
        await trio.sleep(100)
        tool.let_go.set()

    async with open_provider(answer(tool_call("linger"))) as provider, trio.open_nursery() as nursery:
        nursery.start_soon(let_go_later)
        async with open_house(provider, tmp_path, ticks=ticks, tools=[tool.tool], check=False) as house:
            session = await house.session()
            await house.sessions.prompt(session, "Look")
            await tool.wait_started()
        async with open_house(provider, tmp_path, ticks=ticks) as house:
            assert len(await house.data(session, TurnInterrupted)) == 1
            assert len(await house.data(session, ToolFailed)) == 1


async def test_a_call_in_flight_at_the_end_is_answered_with_what_became_of_the_work(tmp_path: Path) -> None:
    held = hold()
    outcomes: list[Any] = []

    async def join(url: str, session: SessionId) -> None:
        async with connect(url, token="secret") as client:
            outcomes.append(await client.sessions.resume(session))

    async with trio.open_nursery() as nursery, scripted_house(tmp_path, answer(text("Half"), held)) as house:
        listening = await house.runtime.listen(host="127.0.0.1", port=0, token="secret")
        session = await house.session()
        await house.sessions.prompt(session, "Hello")
        await held.reached.wait()
        nursery.start_soon(join, listening.url, session)
        await wait_all_tasks_blocked()
    assert outcomes == [InterruptedOutcome(reason="shutdown")]


# --- the beginning ------------------------------------------------------------------------------------------------


async def test_a_restart_keeps_everything(tmp_path: Path) -> None:
    ticks = Ticks()
    async with open_provider() as provider:
        async with open_house(provider, tmp_path, ticks=ticks) as house:
            session = await house.session(title="Kept", metadata={"a": 1})
            await house.ask(session, "Hello")
            before = (await house.history(session), await house.events(session), await house.sessions.get(session))
            info = await house.runtime.server.info()
        async with open_house(provider, tmp_path, ticks=ticks) as house:
            after = (await house.history(session), await house.events(session), await house.sessions.get(session))
            assert after[:2] == before[:2]
            assert after[2].last_outcome is None
            assert (after[2].title, after[2].head, after[2].tokens) == (before[2].title, before[2].head, before[2].tokens)
            assert (await house.runtime.server.info()).generation == info.generation
            await house.ask(session, "And?")
            assert said(provider.requests[1])[:2] == [("user", "Hello"), ("assistant", "Done.")]


async def test_what_a_dead_process_left_is_settled_at_the_start_without_a_request(tmp_path: Path) -> None:
    """Recovery: fragments end, the turn is interrupted, the same a second time, and nobody is asked."""
    ticks, held = Ticks(), hold()
    async with open_provider(answer(text("Half"), held)) as provider:
        async with open_house(provider, tmp_path, ticks=ticks) as house:
            session = await house.session()
            watch = await house.watch()
            await house.sessions.prompt(session, "Hello")
            await watch.until(TextDelta)
            image = crash_image(house, tmp_path / "next")
        for _ in range(2):
            async with open_house(provider, image, ticks=ticks) as house:
                assert (await house.types(session))[-3:] == ["text.started", "text.ended", "turn.interrupted"]
                (end,) = await house.data(session, TurnInterrupted)
                assert end.reason == "recovery"
                assert [type(message) for message in await house.history(session)] == [UserMessage, AssistantMessage]
        assert len(provider.requests) == 1


# --- defects ------------------------------------------------------------------------------------------------------


async def test_a_defect_in_a_drain_is_one_failed_drain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("a secret of the inside")

    async with scripted_house(tmp_path) as house:
        session = await house.session()
        with monkeypatch.context() as patch:
            patch.setattr(passage_module.Passage, "through", broken)
            with capture_logs() as logs:
                outcome = await house.ask(session, "Hello")
        assert isinstance(outcome, FailedOutcome)
        assert "secret" not in outcome.error.message
        assert "reference" in outcome.error.message
        assert await house.sessions.resume(session) != outcome
        assert len(house.provider.requests) == 1
    assert [type(line["exc_info"]) for line in logs if line["event"] == "drain crashed"] == [ZeroDivisionError]


async def test_the_demo_model_needs_no_network(tmp_path: Path) -> None:
    demo = ModelRef(provider="demo", id="demo")
    async with scripted_house(tmp_path) as house:
        session = await house.session(model=demo)
        await house.ask(session, "Hello")
        message = (await house.history(session))[1]
        assert isinstance(message, AssistantMessage)
        assert message.error is None
        assert message.model == demo
        assert house.provider.requests == []
