"""A runtime on a store of its own against the scripted provider, and what tests look at in it.

Long, because what tests look at in a runtime is asked for in one place.

Rules:
- Everything goes through the public surface: the embedded client, `runtime.listen` and `connect` for sockets.
- Clock and ids come from `Ticks`, so that runs repeat; whoever opens the same folder again passes the same one.
- Blocking work runs in the loop unless a test asks for threads: only then may its clock be a mock one (ruling E5).
- When the block is left, every session in the store must be orderly: `disorder` finds nothing, no turn is open, and the doctor
  finds nothing either.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

import trio

from steerway import Client
from steerway.actors.blocking import Blocking, Inline
from steerway.actors.configuration import Agent, Configuration, ModelSelection, Provider, Store
from steerway.actors.runtime import Runtime, open_runtime
from steerway.actors.tools.tool import Tool
from steerway.protocol.operations import ListSessions
from steerway.protocol.values import (
    Admission,
    Event,
    EventData,
    Message,
    MessageId,
    ModelRef,
    Outcome,
    PromptAdmitted,
    PromptPromoted,
    PromptWithdrawn,
    ReasoningEnded,
    ReasoningStarted,
    SessionId,
    Synced,
    TextEnded,
    TextStarted,
    ToolCalled,
    ToolFailed,
    ToolInputStarted,
    ToolSucceeded,
    TurnCompleted,
    TurnFailed,
    TurnInterrupted,
    TurnStarted,
    decode_event,
)
from steerway.storage.database import open_reader
from support.answers import Answer
from support.doctor import assert_healthy
from support.provider import Provider as ScriptedProvider
from support.provider import Request, Responder, open_provider
from support.tools import HeldTool

T = TypeVar("T")
DataT = TypeVar("DataT", bound=EventData)

SCRIPTED = ModelRef(provider="scripted", id="scripted")
OTHER = ModelRef(provider="scripted", id="other")
BASELINE = "Today's date is"
QUIET = ("epoch.started",)
TERMINAL = (TurnCompleted, TurnFailed, TurnInterrupted)


class Ticks:
    """Time and randomness that only go forward: every look is a millisecond later than the last."""

    def __init__(self) -> None:
        self._ms = 1_700_000_000_000
        self._bytes = 0

    def now_ms(self) -> int:
        self._ms += 1
        return self._ms

    def random_bytes(self, size: int) -> bytes:
        self._bytes += 1
        return self._bytes.to_bytes(size, "little")


class Task(Generic[T]):
    """A call in a task of its own, whose result is asked for later."""

    def __init__(self, nursery: trio.Nursery, call: Callable[[], Awaitable[T]]) -> None:
        self.scope = trio.CancelScope()
        self._done = trio.Event()
        self._values: list[T] = []
        self._error: Exception | None = None
        nursery.start_soon(self._run, call)

    async def _run(self, call: Callable[[], Awaitable[T]]) -> None:
        try:
            with self.scope:
                self._values.append(await call())
        except Exception as error:
            self._error = error
        finally:
            self._done.set()

    @property
    def done(self) -> bool:
        return self._done.is_set()

    async def result(self) -> T:
        """The call's value once it is there, or its error raised."""
        await self._done.wait()
        if self._error is not None:
            raise self._error
        return self._values[0]


class LingeringTool(HeldTool):
    """A held tool whose cleanup, once it is cancelled (which `cancelled` tells), takes until `let_go` is set."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.cancelled = trio.Event()
        self.let_go = trio.Event()

    async def act(self) -> None:
        try:
            await super().act()
        finally:
            self.cancelled.set()
            with trio.CancelScope(shield=True):
                await self.let_go.wait()


class Watch:
    """Everything a live subscriber was sent, in order."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.error: Exception | None = None
        self.opened = trio.Event()
        self._arrivals = trio.lowlevel.ParkingLot()

    async def follow(self, client: Client) -> None:
        try:
            async with client.events.subscribe() as stream:
                async for event in stream:
                    self.events.append(event)
                    self.opened.set()
                    self._arrivals.unpark_all()
        except Exception as error:
            self.error = error
        finally:
            self.opened.set()
            self._arrivals.unpark_all()

    def of(self, kind: type[DataT]) -> list[DataT]:
        """The data of one type so far."""
        return [event.data for event in self.events if isinstance(event.data, kind)]

    async def until(self, kind: type[DataT], count: int = 1) -> DataT:
        """Wait until so many events of a type have come, and give that one."""
        while len(self.of(kind)) < count:
            if self.error is not None:
                raise AssertionError(f"the stream ended before {kind.type}") from self.error
            await self._arrivals.park()
        return self.of(kind)[count - 1]


class OpenHouse:
    """The runtime, and short ways to what tests ask for most."""

    def __init__(self, runtime: Runtime, provider: ScriptedProvider, folder: Path, nursery: trio.Nursery) -> None:
        self.runtime = runtime
        self.sessions = runtime.sessions
        self.provider = provider
        self.folder = folder
        self.path = folder / "sessions.db"
        self._nursery = nursery

    async def session(self, **fields: Any) -> SessionId:
        """A new session."""
        return (await self.sessions.create(**fields)).id

    async def admit(self, session_id: SessionId, text: str, **fields: Any) -> Admission:
        """A prompt that wakes nobody."""
        return await self.sessions.prompt(session_id, text, resume=False, **fields)

    async def ask(self, session_id: SessionId, text: str, **fields: Any) -> Outcome:
        """A prompt, and the end of the work that it caused."""
        await self.admit(session_id, text, **fields)
        return await self.sessions.resume(session_id)

    def task(self, call: Callable[[], Awaitable[T]]) -> Task[T]:
        """Run a call beside the test."""
        return Task(self._nursery, call)

    async def watch(self) -> Watch:
        """A live subscription from now on."""
        watch = Watch()
        self._nursery.start_soon(watch.follow, self.runtime)
        await watch.opened.wait()
        return watch

    async def events(self, session_id: SessionId, after: int = 0) -> list[Event]:
        """The durable events up to the head."""
        return await read_events(self.runtime, session_id, after)

    async def data(self, session_id: SessionId, *kinds: type[EventData]) -> list[Any]:
        """The data of the durable events, of these types if any are named."""
        found = [event.data for event in await self.events(session_id)]
        return [data for data in found if isinstance(data, kinds)] if kinds else found

    async def types(self, session_id: SessionId) -> list[str]:
        """The types of the durable events, without their `session.` prefix, and without the beginning of epochs."""
        return [name for event in await self.events(session_id) if (name := event.type.removeprefix("session.")) not in QUIET]

    async def history(self, session_id: SessionId) -> tuple[Message, ...]:
        """All messages, oldest first."""
        page = await self.sessions.messages(session_id, order="asc", limit=200)
        assert page.next is None
        return page.items

    async def pending(self, session_id: SessionId) -> list[MessageId]:
        """The ids of the prompts that wait, in order."""
        return [admission.id for admission in await self.sessions.pending(session_id)]


async def read_events(client: Client, session_id: SessionId, after: int = 0) -> list[Event]:
    """The durable events of a session up to its head, over any client."""
    found: list[Event] = []
    async with client.sessions.events(session_id, after=after) as stream:
        async for event in stream:
            if isinstance(event.data, Synced):
                break
            found.append(event)
    return found


def configuration(provider: ScriptedProvider | None, **fields: Any) -> Configuration:
    """The scripted provider as the only one, its model as the default, and agents `build` and `plain` without a text."""
    providers = {} if provider is None else {"scripted": Provider(protocol="openai-chat", base_url=provider.base_url)}
    return Configuration(
        store=Store(synchronous="normal"),
        providers=providers,
        models=ModelSelection(default=None if provider is None else str(SCRIPTED)),
        agents={"plain": Agent()},
        **fields,
    )


@asynccontextmanager
async def open_house(
    provider: ScriptedProvider,
    folder: Path,
    *,
    ticks: Ticks | None = None,
    tools: Sequence[Tool] = (),
    blocking: Blocking | None = None,
    settings: Configuration | None = None,
    check: bool = True,
) -> AsyncGenerator[OpenHouse]:
    """Open the store in `folder`, which is also the location of its sessions.

    `check=False` leaves out the look at the store after the end.
    """
    ticks = ticks or Ticks()
    raised: BaseException | None = None
    async with open_runtime(
        folder / "sessions.db",
        configuration=settings or configuration(provider),
        directory=folder,
        tools=tools,
        environ={},
        blocking=blocking or Inline(),
        now_ms=ticks.now_ms,
        random_bytes=ticks.random_bytes,
        config_folder=folder / "config",
    ) as runtime:
        async with trio.open_nursery() as nursery:
            try:
                yield OpenHouse(runtime, provider, folder, nursery)
            except BaseException as error:  # raised again below, outside the nursery, which would wrap it
                raised = error
            nursery.cancel_scope.cancel()
        if raised is not None:
            raise raised
    if check:
        for session_id, events in stored_sessions(folder / "sessions.db").items():
            found = disorder(events, ended=True)
            assert not found, f"{session_id}: " + "; ".join(found)
        assert_healthy(folder / "sessions.db")


@asynccontextmanager
async def scripted_house(folder: Path, *answers: Answer | Responder, **fields: Any) -> AsyncGenerator[OpenHouse]:
    """A provider with this script, and a house in `folder` that asks it."""
    async with open_provider(*answers) as provider, open_house(provider, folder, **fields) as house:
        yield house


def crash_image(house: OpenHouse, folder: Path) -> Path:
    """The store as a process that dies now would leave it, in a folder of its own, which is returned."""
    folder.mkdir()
    for name in (house.path.name, f"{house.path.name}-wal"):
        shutil.copyfile(house.folder / name, folder / name)
    return folder


def stored_sessions(path: Path) -> dict[SessionId, list[Event]]:
    """Every session of a store with its whole log, read without owning the store."""
    reader = open_reader(path)
    try:
        return {
            session.id: [decode_event(body) for _, body in reader.events_page(session.id, 0, 100_000, 1 << 40)]
            for session in reader.sessions_page(ListSessions(limit=200)).items
        }
    finally:
        reader.close()


def disorder(events: Sequence[Event], *, ended: bool) -> list[str]:
    """What is wrong with a session's log, as sentences. `ended`: nothing runs, so nothing may be open either."""
    found: list[str] = []
    if [event.seq for event in events] != list(range(1, len(events) + 1)):
        found.append(f"the sequences are {[event.seq for event in events]}")
    fates: Counter[MessageId] = Counter()
    open_turns: set[MessageId] = set()
    closed_turns: set[MessageId] = set()
    open_parts: set[str] = set()
    closed_parts: set[str] = set()
    recorded: set[str] = set()
    for event in events:
        at = f"at {event.seq} {event.type}"
        match event.data:
            case PromptAdmitted(message_id=id):
                if id in fates:
                    found.append(f"{at}: {id} is admitted again")
                fates[id] = 0
            case PromptPromoted(message_id=id) | PromptWithdrawn(message_id=id):
                fates[id] += 1
                if fates[id] != 1:
                    found.append(f"{at}: {id} has another fate")
            case TurnStarted(assistant_message_id=id, attempt=attempt):
                if open_turns != ({id} if attempt > 1 else set()):
                    found.append(f"{at}: attempt {attempt} of {id} finds {open_turns or 'nothing'} open")
                open_turns.add(id)
            case TurnCompleted(assistant_message_id=id) | TurnFailed(assistant_message_id=id):
                found += _end(at, id, open_turns, closed_turns, open_parts)
            case TurnInterrupted(assistant_message_id=id):
                found += _end(at, id, open_turns, closed_turns, open_parts)
            case TextStarted(part_id=id) | ReasoningStarted(part_id=id) | ToolInputStarted(call_id=id):
                if id in open_parts or id in closed_parts:
                    found.append(f"{at}: {id} is started again")
                open_parts.add(id)
            case ToolCalled(call_id=id):
                if id not in open_parts:
                    found.append(f"{at}: {id} is called before its input or after its settlement")
                recorded.add(id)
            case TextEnded(part_id=id) | ReasoningEnded(part_id=id) | ToolSucceeded(call_id=id) | ToolFailed(call_id=id):
                if id not in open_parts:
                    found.append(f"{at}: {id} is not open")
                if isinstance(event.data, ToolSucceeded) and id not in recorded:
                    found.append(f"{at}: {id} succeeded without a record of its call")
                open_parts.discard(id)
                closed_parts.add(id)
            case _:
                pass
    if ended and open_turns:
        found.append(f"{open_turns} never ended")
    return found


def _end(at: str, id: MessageId, opened: set[MessageId], closed: set[MessageId], parts: set[str]) -> list[str]:
    found: list[str] = []
    if id in closed:
        found.append(f"{at}: the turn {id} ends again")
    elif id not in opened:
        found.append(f"{at}: the turn {id} was never started")
    if parts:
        found.append(f"{at}: {parts} is still open")
    opened.discard(id)
    closed.add(id)
    return found


def said(request: Request) -> list[tuple[str, str]]:
    """Role and text of each message of a recorded request but its baseline; a call is its name, a result its text."""
    lines: list[tuple[str, str]] = []
    for message in request.messages:
        content = message.get("content")
        text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content or ())
        calls = [call["function"]["name"] for call in message.get("tool_calls", ())]
        lines.append((message["role"], " ".join([text, *calls]).strip()))
    return lines[1:] if lines and lines[0][0] == "system" and BASELINE in lines[0][1] else lines


def baseline(request: Request) -> str:
    """The first system message of a recorded request, exactly as it was sent."""
    first = request.messages[0]
    assert first["role"] == "system"
    return first["content"]
