"""What users of such runtimes reported, each as a test of this one, named by its hazard, with the report's id.

Long, because the reports are one list.

ADM-01 is in the kill matrix. Of a report that speaks of what this program does not have, the part that applies is here: logs
are never cut short, so the only history that is gone is another store's (EVT-02); a child session stands for a sub-agent
(SUB-01). There is no importer, so nothing of DB-09 applies.
"""

from __future__ import annotations

import os
import random
import socket
import struct
import subprocess
import sys
import unicodedata
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
import trio
from trio.testing import MockClock

from steerway import Client, connect
from steerway.actors.blocking import Threads
from steerway.actors.configuration import Agent, Configuration, PermissionRule, Store
from steerway.actors.configuration import Provider as ProviderSettings
from steerway.actors.subscriber import HIGH_WATER, LIVE_BUDGET_BYTES
from steerway.protocol.values import (
    STORAGE_UNAVAILABLE,
    TOOL_INVALID_INPUT,
    CompletedOutcome,
    Event,
    FailedOutcome,
    Generation,
    Interrupted,
    ModelRef,
    PermissionAsked,
    PermissionReplied,
    Synced,
    ToolFailed,
    ToolProgress,
    ToolSucceeded,
    TurnCompleted,
    TurnInterrupted,
    UserMessage,
)
from steerway.protocol.values.errors import (
    ClientError,
    ConflictError,
    CursorExpiredError,
    InvalidRequestError,
    PermissionNotFoundError,
)
from support import anthropic_messages
from support.answers import answer, hold, reasoning, text, tool_call
from support.gateway import RawPeer, call, request_head, upgrade_request
from support.house import OpenHouse, configuration, open_house, read_events, said, scripted_house
from support.matrix import Witness, at_rest, goes_on
from support.provider import open_provider
from support.site import BUSY, WRITE, open_site
from support.tools import HeldTool, ScriptedTool, printing_tool

COMMANDS_ALLOWED = Agent(permissions=(PermissionRule(action="shell", resource="*", effect="allow"),))


def users(house: OpenHouse) -> list[list[str]]:
    """What users said in each request."""
    return [[line for role, line in said(request) if role == "user"] for request in house.provider.requests]


# --- input --------------------------------------------------------------------------------------------------------


async def test_a_steer_overtakes_what_is_queued_and_takes_nothing_along(tmp_path: Path, autojump_clock: MockClock) -> None:
    """ADM-09: the next call of the drain has the steer and not the queued prompt, which waits until the session would rest."""
    tool = HeldTool("look")
    script = (answer(tool_call("look")), answer(text("Looked")), answer(text("Queued too")))
    async with scripted_house(tmp_path, *script, tools=[tool.tool]) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Begin")
        await tool.wait_started()
        queued = await house.sessions.prompt(session, "Q1", delivery="queue")
        await house.sessions.prompt(session, "S1")
        tool.release()
        await house.provider.wait_request(2)
        assert await house.pending(session) == [queued.id]
        await house.sessions.wait(session)
        assert users(house) == [["Begin"], ["Begin", "S1"], ["Begin", "S1", "Q1"]]


# --- interrupts ---------------------------------------------------------------------------------------------------


async def test_a_command_that_traps_signals_is_gone_soon_after_an_interrupt(tmp_path: Path) -> None:
    """INT-01: TERM, then KILL, to the whole group; the call is settled as interrupted and the session rests."""
    command = "trap '' TERM INT; echo $$ > group; (trap '' TERM INT; sleep 60) & while :; do date; sleep 0.2; done"
    async with open_provider(answer(tool_call("shell", {"command": command}))) as provider:
        usual = configuration(provider)
        settings = msgspec.structs.replace(usual, agents={"build": COMMANDS_ALLOWED})
        async with open_house(provider, tmp_path, settings=settings, blocking=Threads()) as house:
            watch = await house.watch()
            session = await house.session()
            await house.sessions.prompt(session, "Loop")
            await watch.until(ToolProgress)
            group = int((tmp_path / "group").read_text())
            with trio.fail_after(5):
                await house.sessions.interrupt(session)
                await house.sessions.wait(session)
            assert living(group) == []
            (failed,) = await house.data(session, ToolFailed)
            assert failed.error.type == "aborted"
            await goes_on(house.runtime, session, provider)


def living(group: int) -> list[str]:
    """What of a process group still runs; the dead that nobody has reaped do not count."""
    found: list[str] = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, pgrp = entry.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue  # it has just ended
        if int(pgrp) == group and state != "Z":
            found.append(entry.parent.name)
    return found


async def test_a_replacement_starts_as_soon_as_the_interrupted_turn_is_settled(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """INT-04: the approval that was waited for is closed as cancelled, the old turn has its end, and the new prompt runs."""
    async with scripted_house(tmp_path, answer(tool_call(*WRITE))) as house:
        watch = await house.watch()
        session = await house.session()
        await house.sessions.prompt(session, "First")
        asked = await watch.until(PermissionAsked)
        began = trio.current_time()
        stopped = house.task(lambda: house.sessions.interrupt(session))
        await house.sessions.prompt(session, "Second")
        assert (await house.provider.wait_request(2)).at - began <= 1
        assert await stopped.result() == Interrupted(interrupted=True)
        await house.sessions.wait(session)
        (replied,) = await house.data(session, PermissionReplied)
        assert (replied.request_id, replied.reply) == (asked.request_id, "cancelled")
        ends = await house.data(session, TurnInterrupted, TurnCompleted)
        assert [type(end) for end in ends] == [TurnInterrupted, TurnCompleted]
        assert users(house)[1] == ["First", "Second"]


# --- restarts -----------------------------------------------------------------------------------------------------


async def test_a_call_cut_by_a_kill_has_one_result_in_the_next_request(tmp_path: Path) -> None:
    """REC-01: its call is followed by one interrupted result, and the request is valid for a strict checker."""
    async with open_site(tmp_path) as site:
        site.plans.plan("Run", lambda _: answer(text("On it"), tool_call(*BUSY)))
        async with site.serving() as (serving, client), trio.open_nursery() as nursery:
            witness = await watching(client, nursery)
            session = (await client.sessions.create()).id
            await client.sessions.prompt(session, "Run")
            await witness.until(session, ToolProgress)
            serving.process.kill()
            serving.process.wait()
            nursery.cancel_scope.cancel()
        site.plans.forget()
        async with site.serving() as (_, client):
            await goes_on(client, session, site.provider)
        lines = said(site.provider.requests[-1])
        assert [role for role, _ in lines] == ["user", "assistant", "tool", "user"]
        assert "interrupted" in lines[2][1]


async def test_nothing_says_that_a_session_runs_after_a_kill(tmp_path: Path) -> None:
    """REC-02: nobody is active, there is nothing to interrupt, and a prompt simply runs."""
    async with open_site(tmp_path) as site:
        held = hold()
        site.plans.plan("Talk", lambda _: answer(text("Half"), held))
        async with site.serving() as (serving, client):
            session = (await client.sessions.create()).id
            await client.sessions.prompt(session, "Talk")
            await held.reached.wait()
            assert set(await client.sessions.active()) == {session}
            serving.process.kill()
            serving.process.wait()
        site.plans.forget()
        async with site.serving() as (_, client):
            assert await client.sessions.active() == {}
            assert await client.sessions.interrupt(session) == Interrupted(interrupted=False)
            assert not (await client.sessions.attach(session)).active
            await goes_on(client, session, site.provider)


async def watching(client: Client, nursery: trio.Nursery) -> Witness:
    witness = Witness()
    nursery.start_soon(witness.follow, client)
    await witness.opened.wait()
    return witness


# --- events -------------------------------------------------------------------------------------------------------


class Relay:
    """A TCP connection's way to a server, which can be cut."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: list[trio.SocketStream] = []

    async def serve(self, near: trio.SocketStream) -> None:
        far = await trio.open_tcp_stream("127.0.0.1", self._port)
        self._streams += [near, far]
        async with near, far, trio.open_nursery() as nursery:
            nursery.start_soon(self._pump, near, far)
            nursery.start_soon(self._pump, far, near)

    async def _pump(self, source: trio.SocketStream, target: trio.SocketStream) -> None:
        try:
            while data := await source.receive_some(65_536):
                await target.send_all(data)
            await target.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            await target.aclose()

    async def cut(self) -> None:
        """Reset everything."""
        streams, self._streams = self._streams, []
        for stream in streams:
            if stream.socket.fileno() >= 0:
                stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await stream.aclose()


@asynccontextmanager
async def open_relay(url: str) -> AsyncGenerator[tuple[Relay, str]]:
    relay = Relay(urlsplit(url).port or 0)
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, relay.serve, [listener])
        yield relay, f"ws://127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


async def to_its_end(stream: AsyncIterator[Event]) -> None:
    async for _ in stream:
        pass


async def test_a_gap_in_the_connection_is_no_gap_in_the_events(tmp_path: Path) -> None:
    """EVT-01: what was committed while the connection was cut comes once each, in order, and the live ones follow."""
    async with scripted_house(tmp_path) as house:
        listening = await house.runtime.listen(host="127.0.0.1", port=0, token="secret")
        session = await house.session()
        for number in range(39):
            await house.admit(session, f"Before {number}")
        async with open_relay(listening.url) as (relay, url):
            async with connect(url, token="secret") as client, client.sessions.events(session) as stream:
                seen = [(await anext(stream)).seq for _ in range(40)]
                await relay.cut()
                with pytest.raises(ClientError):
                    await to_its_end(stream)
            for number in range(200):
                await house.admit(session, f"Meanwhile {number}")
            async with connect(url, token="secret") as client, client.sessions.events(session, after=40) as stream:
                missed = [(await anext(stream)).seq for _ in range(200)]
                assert isinstance((await anext(stream)).data, Synced)
                await house.admit(session, "Live")
                live = await anext(stream)
        assert [*seen, *missed, live.seq] == list(range(1, 242))


async def test_a_cursor_that_cannot_be_followed_is_its_own_error_and_gives_no_events(tmp_path: Path) -> None:
    """EVT-02: a position that was never reached, no position at all, and one of another store's history."""
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        bad: list[tuple[type[Exception], dict[str, Any]]] = [
            (CursorExpiredError, {"after": 10**9}),
            (InvalidRequestError, {"after": "x"}),
            (InvalidRequestError, {"after": -1}),
            (CursorExpiredError, {"after": 0, "generation": Generation("gen_other")}),
        ]
        for error, position in bad:
            seen: list[Event] = []
            with pytest.raises(error):
                async with house.sessions.events(session, **position) as stream:
                    seen += [event async for event in stream]
            assert seen == []
        assert len(await house.events(session)) == 1


async def test_subscribers_that_stop_reading_cost_their_budget_and_lose_their_subscription(tmp_path: Path) -> None:
    """BPR-01, scaled down: eight of them and 96 MiB of events. They share bytes, so even one budget each is more than it takes.

    Ours lose the subscription, not the connection.
    """
    peers: list[RawPeer] = []
    async with scripted_house(tmp_path) as house:
        listening = await house.runtime.listen(host="127.0.0.1", port=0, token="secret")
        try:
            for _ in range(8):
                stream = await trio.open_tcp_stream("127.0.0.1", listening.port)
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
                peer = RawPeer(stream)
                peers.append(peer)
                await peer.send(upgrade_request(Authorization="Bearer secret"))
                assert (await peer.head())[0] == 101
                await peer.ask(1, "events.subscribe")
            session = await house.session()
            before = resident()
            for _ in range(96):
                receipt = await house.sessions.prompt(session, "x" * 1024 * 1024, resume=False)
                await house.sessions.withdraw(session, receipt.id)  # the inbox has a bound of its own
            assert resident() - before < len(peers) * (LIVE_BUDGET_BYTES + HIGH_WATER) + 16 * 1024 * 1024
            assert (await house.sessions.get(session)).head == 193
            for peer in peers:
                while (message := await peer.message())["method"] != "end":
                    pass
                assert message["params"]["error"]["data"]["_tag"] == "SubscriberOverflowError"
        finally:
            for peer in peers:
                await trio.aclose_forcefully(peer.stream)


def resident() -> int:
    """The memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_clients_of_one_session_see_one_stream_of_events(tmp_path: Path) -> None:
    """MUL-01: two clients that prompt in turn, one attached while the other's answer streams; there is one session."""
    held = hold()
    async with scripted_house(tmp_path, answer(text("Half"), held)) as house:
        listening = await house.runtime.listen(host="127.0.0.1", port=0, token="secret")
        async with connect(listening.url, token="secret") as one, connect(listening.url, token="secret") as two:
            session = (await one.sessions.create()).id
            await one.sessions.prompt(session, "One 0")
            await held.reached.wait()
            attached = await two.sessions.attach(session)
            assert (attached.session.id, attached.active) == (session, True)
            for number in range(1, 4):
                await two.sessions.prompt(session, f"Two {number}", delivery="queue")
                await one.sessions.prompt(session, f"One {number}", delivery="queue")
            held.release()
            for client in (one, two):
                await client.sessions.wait(session)
            seen = [await read_events(client, session) for client in (one, two)]
            later = await read_events(two, session, after=attached.seq)
            assert seen[0] == seen[1]
            assert seen[0][attached.seq :] == later
            assert [item.id for item in (await one.sessions.list()).items] == [session]
        said_by_users = [message for message in await house.history(session) if isinstance(message, UserMessage)]
        assert [message.text for message in said_by_users][:3] == ["One 0", "Two 1", "One 1"]
        assert len(said_by_users) == 7


# --- the store ----------------------------------------------------------------------------------------------------

LOCKER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=20)
for line in sys.stdin:
    connection.execute({"hold": "BEGIN IMMEDIATE", "leave": "ROLLBACK"}[line.strip()])
    print(line, end="", flush=True)
"""


class Locker:
    """Another process, which takes and leaves the store's write lock."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", LOCKER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    async def __call__(self, what: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        assert await trio.to_thread.run_sync(self.process.stdout.readline) == f"{what}\n"

    def close(self) -> None:
        self.process.communicate()


@asynccontextmanager
async def open_locker(path: Path) -> AsyncGenerator[Locker]:
    locker = Locker(path)
    try:
        yield locker
    finally:
        locker.close()


async def test_sessions_go_on_while_another_process_takes_the_write_lock_now_and_then(tmp_path: Path) -> None:
    """DB-01: eight tool loops, and none of them fails."""
    tool = ScriptedTool("look")
    async with open_provider() as provider:
        provider.respond = lambda request: answer(tool_call("look")) if len(request.messages) < 9 else answer(text("Done."))
        async with open_house(provider, tmp_path, tools=[tool.tool], blocking=Threads()) as house:
            async with open_locker(house.path) as locker:
                sessions = [await house.session() for _ in range(8)]
                tasks = [house.task(lambda session=session: house.ask(session, "Look")) for session in sessions]
                for _ in range(3):
                    await locker("hold")
                    await trio.sleep(0.5)
                    await locker("leave")
                assert [await task.result() for task in tasks] == [CompletedOutcome()] * 8
            assert tool.executions == 8 * 4


async def test_a_store_that_stays_locked_is_a_visible_failure(tmp_path: Path) -> None:
    """DB-01, the other half: a typed storage error when the busy timeout is over, and work again when the lock is gone."""
    tool = HeldTool("look")
    async with scripted_house(tmp_path, answer(tool_call("look")), tools=[tool.tool], blocking=Threads()) as house:
        session = await house.session()
        await house.sessions.prompt(session, "Look")
        await tool.wait_started()
        joined = house.task(lambda: house.sessions.resume(session))
        async with open_locker(house.path) as locker:
            await locker("hold")
            tool.release()
            outcome = await joined.result()
            await locker("leave")
        assert isinstance(outcome, FailedOutcome)
        assert outcome.error.type == STORAGE_UNAVAILABLE
        await goes_on(house.runtime, session, house.provider)


# --- tools and their output ---------------------------------------------------------------------------------------


async def test_a_binary_in_one_line_is_bounded_and_kept_whole_in_a_file(tmp_path: Path) -> None:
    """OUT-01: five megabytes of chance; the model sees well-formed text within the limit that names the file."""
    printed = random.Random(1).randbytes(5_000_000).replace(b"\n", b"?")
    tool = printing_tool("dump", printed)
    async with scripted_house(tmp_path, answer(tool_call("dump")), tools=[tool.tool]) as house:
        session = await house.session()
        assert await house.ask(session, "Dump") == CompletedOutcome()
        (succeeded,) = await house.data(session, ToolSucceeded)
        (managed,) = succeeded.managed_outputs
        role, line = said(house.provider.requests[1])[2]
        assert role == "tool"
        assert len(line.encode()) <= 51_200
        assert managed.path in line
        kept = await trio.Path(managed.path).read_bytes()
        assert len(kept) == managed.bytes > 1_000_000
        assert {letter for letter in kept.decode() if unicodedata.category(letter) == "Cc"} <= set("\t\r\n")


BROKEN = {
    "truncated": '{"path": "a',
    "an array": '["path"]',
    "empty": "",
    "raw control characters": '{"path": "a\nb\x01"}',
    "not JSON": "path=a",
    "a key twice": '{"path": "notes.txt", "path": "other.txt"}',
    "of the wrong type": '{"path": 7}',
}


@pytest.mark.parametrize("arguments", BROKEN.values(), ids=BROKEN.keys())
async def test_arguments_that_are_broken_run_nothing_and_poison_nothing(
    tmp_path: Path, autojump_clock: MockClock, arguments: str
) -> None:
    """PRV-02: an error for the model to read, and a history that the provider accepts (it checks every request)."""
    async with scripted_house(tmp_path, answer(tool_call("read", arguments, deltas=0)), answer(text("Sorry"))) as house:
        session = await house.session()
        assert await house.ask(session, "Read") == CompletedOutcome()
        (failed,) = await house.data(session, ToolFailed)
        assert failed.error.type == TOOL_INVALID_INPUT
        assert said(house.provider.requests[1])[2][0] == "tool"
        await goes_on(house.runtime, session, house.provider)


async def test_signed_reasoning_goes_back_to_the_model_that_signed_it_and_to_no_other(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """PRV-01: model A, then B, then A; each request is as a strict provider wants it."""
    first, second = (ModelRef(provider="signing", id=name) for name in ("model-a", "model-b"))
    async with open_provider(*[answer(reasoning(f"Thought {n}"), text(f"Answer {n}")) for n in range(3)]) as provider:
        settings = Configuration(
            store=Store(synchronous="normal"),
            providers={"signing": ProviderSettings(protocol="anthropic-messages", base_url=provider.base_url)},
        )
        async with open_house(provider, tmp_path, settings=settings) as house:
            session = await house.session(model=first)
            assert await house.ask(session, "One") == CompletedOutcome()
            await house.sessions.switch_model(session, second)
            assert await house.ask(session, "Two") == CompletedOutcome()
            await house.sessions.switch_model(session, first)
            assert await house.ask(session, "Three") == CompletedOutcome()
        bodies = [request.body.decode() for request in provider.requests]
    assert [body.count(anthropic_messages.SIGNATURE) for body in bodies] == [0, 0, 1]
    assert "Thought 0" in bodies[1]  # as text
    assert "Thought 1" in bodies[2]


# --- people -------------------------------------------------------------------------------------------------------


async def test_a_pending_approval_is_seen_by_whoever_comes_later_and_closed_by_a_restart(tmp_path: Path) -> None:
    """PRM-01: asked while nobody was there; a later client answers one, and the other ends with its process."""
    async with open_site(tmp_path) as site:
        for opening in ("Write this", "Write that"):
            file = {"path": f"{opening[6:]}.txt", "content": "new"}
            site.plans.plan(opening, once(tool_call("write", file)))
        async with site.serving() as (serving, client):
            sessions = [(await client.sessions.create()).id for _ in range(2)]
            async with trio.open_nursery() as nursery:
                witness = await watching(client, nursery)
                for session, opening in zip(sessions, ("Write this", "Write that"), strict=True):
                    await client.sessions.prompt(session, opening)
                    await witness.until(session, PermissionAsked)
                nursery.cancel_scope.cancel()
            await client.aclose()
            async with connect(serving.url, token=serving.token) as late:
                asked = [(await late.sessions.attach(session)).permissions for session in sessions]
                assert [len(requests) for requests in asked] == [1, 1]
                assert await late.permissions.list() == (*asked[0], *asked[1])
                await late.permissions.reply(asked[0][0].id, "once")
                await late.sessions.wait(sessions[0])
                assert (site.home.work / "this.txt").read_text() == "new"
            serving.process.kill()
            serving.process.wait()
        site.plans.forget()
        async with site.serving() as (_, client):
            events = await at_rest(client, sessions[1])
            assert [event.data.reply for event in events if isinstance(event.data, PermissionReplied)] == ["cancelled"]
            with pytest.raises(ConflictError) as refused:
                await client.permissions.reply(asked[1][0].id, "once")
            assert refused.value.fields["reply"] == "cancelled"
            with pytest.raises(PermissionNotFoundError):
                await client.permissions.reply(type(asked[1][0].id)("per_unknown"), "once")
            assert not (site.home.work / "that.txt").exists()
            await goes_on(client, sessions[1], site.provider)


def once(*parts: Any) -> Callable[[Any], Any]:
    """These parts first, and afterwards a short text."""
    return lambda request: answer(text("Done.")) if said(request)[-1][0] == "tool" else answer(*parts)


async def test_an_unattended_run_decides_for_every_session_and_ends(tmp_path: Path) -> None:
    """SUB-01: nobody is asked in a child session either; the model reads the denial, and the program ends with 0."""
    async with open_site(tmp_path, extra='[permissions]\npolicy = "deny"') as site:
        site.plans.plan("Write", once(tool_call(*WRITE)))
        async with site.serving() as (serving, client):
            root = (await client.sessions.create()).id
            child = (await client.sessions.create(parent_id=root)).id
            receipt = await client.sessions.prompt(child, "Write")
            assert await client.sessions.wait_prompt(child, receipt.id) == CompletedOutcome()
            events = await at_rest(client, child)
            assert not [event for event in events if isinstance(event.data, PermissionAsked)]
            assert [event.data.error.type for event in events if isinstance(event.data, ToolFailed)] == ["permission.denied"]
            serving.stop()
        done = await trio.to_thread.run_sync(lambda: site.home.call("run", "Write", *site.arguments))
        assert done.code == 0, done
        assert "Done." in done.output
        assert not (site.home.work / "new.txt").exists()


async def test_a_permission_that_nobody_gives_holds_up_no_other_session(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A find of the kill matrix: two sessions that want to write the same file are both heard."""
    async with scripted_house(tmp_path, answer(tool_call(*WRITE)), answer(tool_call(*WRITE))) as house:
        watch = await house.watch()
        waiting, other = await house.session(), await house.session()
        await house.sessions.prompt(waiting, "Write")
        await watch.until(PermissionAsked)
        await house.sessions.prompt(other, "Write")
        with trio.fail_after(5):
            asked = await watch.until(PermissionAsked, 2)
        await house.runtime.permissions.reply(asked.request_id, "once")
        await house.sessions.wait(other)
        assert (tmp_path / "new.txt").read_text() == "new"
        await house.sessions.interrupt(waiting)


# --- who may speak ------------------------------------------------------------------------------------------------


async def test_a_server_refuses_who_has_no_token_or_comes_from_elsewhere(tmp_path: Path) -> None:
    """SEC-01: the default start; refused before any handler runs, and nothing is created."""
    async with open_site(tmp_path) as site, site.serving() as (serving, client):
        port = urlsplit(serving.url).port or 0
        foreign = {"Origin": "https://evil.example", "Authorization": f"Bearer {serving.token}"}
        for head in (
            request_head("/metrics"),
            request_head("/openrpc.json", Authorization="Bearer wrong"),
            upgrade_request(Authorization="Bearer wrong"),
            upgrade_request(**foreign),
            upgrade_request(Authorization=f"Bearer {serving.token}", Host="evil.example"),
        ):
            peer = RawPeer(await trio.open_tcp_stream("127.0.0.1", port))
            await peer.send(head)
            status, lines, _ = await peer.http()
            assert status in (401, 403, 404, 421), lines
            assert "access-control-allow-origin" not in lines.lower()
            await peer.aclose()
        peer = RawPeer(await trio.open_tcp_stream("127.0.0.1", port))
        await peer.send(upgrade_request(Authorization=None) + call(1, "sessions.create", {}))
        assert (await peer.head())[0] == 101
        assert (await peer.message())["error"]["data"]["_tag"] == "UnauthorizedError"
        assert await peer.close_code() == 1008
        await peer.aclose()
        with pytest.raises(ClientError):
            async with connect(serving.url, token="wrong"):
                pass
        assert (await client.sessions.list()).items == ()
