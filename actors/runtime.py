"""`open_runtime`: the nursery tree that owns all other actors, and the order in which they start and stop.

Long, because the order in which everything starts and stops has to be read in one place.

Rules:
- Start: store, storage actor, feed, settlement of what an earlier process left, sessions, under policy `continue` the work that
  was left, then the first request.
- Stop (ruling A8), also when the embedding nursery is cancelled: no new connections and no new requests; drains are interrupted
  with reason `shutdown` and settled (5 s); `server.disposed`, then connections close with 1001; feed; storage; store. All of
  it runs shielded and is bounded in time.
- The embedded client goes through the same encoding, router and decoding as a networked one; only the transport differs.
- No exception group leaves the block (ruling D1): its own exception passes unwrapped, and a failure of the runtime itself is
  one `RuntimeFailedError` with its cause.
"""

from __future__ import annotations

import os
import secrets
import socket
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

import trio

from ..protocol.codec import MSGPACK
from ..protocol.values.errors import SessionNotFoundError
from ..protocol.values.event import Event, ServerDiagnostic, SessionRemoved
from ..protocol.values.ids import Generation, IdSource, SessionId
from ..protocol.values.permission import Rule
from ..storage.database import Database, Owner
from ..storage.outputs import OutputFiles
from .agents import Agent, Agents
from .blocking import Blocking, Threads
from .client.calls import Calls
from .client.client import Client
from .client.context import ContextEntries
from .client.memory import memory_pair
from .client.scope import Background
from .client.transport import Transport
from .configuration import Configuration
from .context.built_in import register_built_in
from .context.instructions import Instructions
from .context.observing import SourceDefect
from .context.project import project_config_enabled
from .context.registry import Contribution, Producer, SystemContextRegistry
from .context.skills import Skills
from .context.source import ContextSource
from .feed import Feed
from .gateway.connection import TransportClosed, serve_connection
from .gateway.context_handlers import ContextHandlers
from .gateway.instance_handlers import InstanceHandlers
from .gateway.limits import Limits
from .gateway.request_handlers import RequestHandlers
from .gateway.router import Router
from .gateway.session_handlers import SessionHandlers
from .logs import Logger
from .models.models import Models
from .session import recovery
from .session.history import Histories
from .session.letters import Resume
from .session.registry import SessionRegistry
from .session.services import Services
from .session.sweeping import Sweeper
from .settings import Surroundings, load_settings
from .storage import StorageActor
from .tools.bounding import OutputBounds
from .tools.built_in import built_in_tools
from .tools.capture import OutputLimits
from .tools.registry import ToolRegistry
from .tools.skill import skill_tool
from .tools.tool import Tool, ToolContext

if TYPE_CHECKING:
    from .gateway.listener import Listening

T = TypeVar("T")

MAX_PENDING = 1_000
"""Pending inputs of one session."""
SWEEP_SECONDS = 3_600
OUTPUTS_FOLDER = "tool-output"

_log = Logger("steerway.runtime")


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class Runtime(Client):
    """A client of the runtime in this process, with what only the same process can do."""

    def __init__(self, house: House, transport: Transport, nursery: trio.Nursery) -> None:
        super().__init__(transport, MSGPACK, nursery)
        self._house = house
        self.tools = house.tools
        """Where tools are registered: `runtime.tools.register(tool)` until the registration is closed."""
        self.context: EmbeddedContext = EmbeddedContext(self, house.context)
        """The clients' entries, and where Context Sources are registered: `runtime.context.register(source)`."""

    async def listen(
        self,
        *,
        host: str,
        port: int,
        token: str,
        hosts: Sequence[str] = (),
        origins: Sequence[str] = (),
        ssl_context: ssl.SSLContext | None = None,
    ) -> Listening:
        """Open the gateway; returns once it accepts connections. It closes with the runtime.

        `port` 0 takes a free one. Raises `OSError` when the address cannot be bound, `ValueError` for an empty token.
        """
        return await self._house.listen(
            host=host, port=port, token=token, hosts=hosts, origins=origins, ssl_context=ssl_context
        )


class EmbeddedContext(ContextEntries):
    """`client.context` with what only the same process can do."""

    def __init__(self, calls: Calls, registry: SystemContextRegistry) -> None:
        super().__init__(calls)
        self._registry = registry

    def register(self, source: ContextSource[T], *, location: str | None = None) -> Contribution:
        """Contribute a Context Source, from the next boundary on, until the contribution is closed.

        `location` (an absolute directory) confines it to sessions there. Raises `ContextKeyError` when the key is taken.
        """
        return self._registry.register(source, location=location)

    def produce(self, key: str, producer: Producer, *, location: str | None = None) -> Contribution:
        """Contribute whatever sources `producer` names at each boundary. Raises `ContextKeyError` as `register` does."""
        return self._registry.produce(key, producer, location=location)


class House:
    """All actors of one runtime. `run` is its life, `stop` its orderly end."""

    def __init__(
        self,
        *,
        path: str | Path,
        configuration: Configuration,
        directory: str,
        environ: Mapping[str, str],
        blocking: Blocking,
        keeping: Blocking,
        observing: Blocking,
        now_ms: Callable[[], int],
        random_bytes: Callable[[int], bytes],
        take_over: bool,
        limits: Limits,
        config_folder: str,
        tools: Sequence[Tool],
    ) -> None:
        self._path = Path(path)
        self._configuration = configuration
        self._directory = directory
        self._environ = environ
        self._blocking = blocking
        self._now_ms = now_ms
        self._random_bytes = random_bytes
        self._take_over = take_over
        self._limits = limits
        self._given_tools = tools
        self._feed = Feed(now_ms)
        self._models = Models(configuration, environ)
        self._stop = trio.Event()
        self._actors: trio.Nursery | None = None
        self._listening: list[Listening] = []
        self._router: Router | None = None
        self._outputs = OutputFiles(self._path.absolute().parent / OUTPUTS_FOLDER, now_ms=now_ms, random_bytes=random_bytes)
        bounds = configuration.tool_output
        output_limits = OutputLimits(max_lines=bounds.max_lines, max_bytes=bounds.max_bytes)
        self.tools = ToolRegistry(OutputBounds(self._outputs, keeping, limits=output_limits, on_lost=self._output_lost))
        self._output_limits = output_limits
        projects = project_config_enabled(environ)
        self.context = SystemContextRegistry()
        self._instructions = Instructions(observing, config_folder=config_folder, projects=projects)
        self._skills = Skills(observing, config_folder=config_folder, projects=projects)
        register_built_in(self.context, blocking=observing, now_ms=now_ms, instructions=self._instructions)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Start everything, live until `stop`, and end everything in order. Shielded from the embedder's cancellation."""
        with trio.CancelScope(shield=True):
            database = await self._blocking.run(self._open)
            try:
                async with trio.open_nursery() as floor:
                    storage = StorageActor(database, self._feed, self._blocking)
                    try:
                        await floor.start(storage.run)
                        await floor.start(self._feed.run, storage.read)
                        await self._live(storage, task_status)
                    finally:
                        self._feed.close()
                        storage.close()
            finally:
                try:
                    await self._models.aclose()
                finally:
                    await self._blocking.run(database.close)

    def stop(self) -> None:
        """Ask for the orderly end."""
        self._stop.set()

    def serve_memory(self) -> Transport:
        """A connection inside the process: the client's half of it."""
        actors, router = self._alive()
        transport, peer = memory_pair(ended=TransportClosed, max_unsent=self._limits.unsent_bytes)

        async def live() -> None:
            await serve_connection(
                peer, router, codec=MSGPACK, authenticated=True, authenticate=lambda _: True, limits=self._limits
            )

        actors.start_soon(live)
        return transport

    async def listen(
        self,
        *,
        host: str,
        port: int,
        token: str,
        hosts: Sequence[str],
        origins: Sequence[str],
        ssl_context: ssl.SSLContext | None,
    ) -> Listening:
        """Open the gateway among the actors."""
        actors, router = self._alive()

        # Here, because a runtime that only its own program uses needs no WebSocket.
        from .gateway.listener import serve

        async def live(*, task_status: trio.TaskStatus[Listening]) -> None:
            await serve(
                router,
                host=host,
                port=port,
                token=token,
                hosts=hosts,
                origins=origins,
                ssl_context=ssl_context,
                limits=self._limits,
                task_status=task_status,
            )

        listening: Listening = await actors.start(live)
        self._listening.append(listening)
        return listening

    def _alive(self) -> tuple[trio.Nursery, Router]:
        if self._actors is None or self._router is None:
            raise RuntimeError("The runtime does not run.")
        return self._actors, self._router

    def _open(self) -> Database:
        return Database.open(
            self._path,
            owner=Owner(id=secrets.token_hex(8), pid=os.getpid(), host=socket.gethostname()),
            now_ms=self._now_ms,
            new_generation=lambda: Generation(f"gen_{self._random_bytes(12).hex()}"),
            synchronous=self._configuration.store.synchronous,
            take_over=self._take_over,
        )

    async def _live(self, storage: StorageActor, task_status: trio.TaskStatus[None]) -> None:
        services = self._services(storage)
        for session_id in await storage.read(lambda reader: reader.unfinished_sessions()):
            if await recovery.settle(services, session_id):
                _log.info("settled what an ended process left", session_id=session_id)
        sessions = SessionRegistry(services, removed=self._session_removed)
        router = Router(
            SessionHandlers(services, sessions, default_directory=self._directory).handlers(),
            RequestHandlers(services, sessions).handlers(),
            ContextHandlers(services, sessions).handlers(),
            InstanceHandlers(services, self._feed, version=_version(), limits=self._limits).handlers(),
        )
        self._router = router
        built_in = built_in_tools(
            now=lambda: datetime.fromtimestamp(self._now_ms() / 1_000).astimezone(),
            outputs_directory=self._outputs.directory,
            limits=self._output_limits,
            create_output=self._outputs.create,
            environ=self._environ,
            secret_names=[one.api_key_env for one in self._configuration.providers.values() if one.api_key_env],
        )
        for tool in (*built_in, *self._given_tools):
            self.tools.register(tool)
        self.tools.register(skill_tool(self._skills))
        async with trio.open_nursery() as actors:
            self._actors = actors
            await actors.start(sessions.run)
            if self._configuration.recovery.policy == "continue":
                await self._continue(services, sessions)
            actors.start_soon(self._sweep_outputs)
            task_status.started()
            await self._stop.wait()
            for listening in self._listening:
                listening.stop_accepting()
            router.stop()
            await sessions.stop()
            self._feed.dispose()
            self._actors = None
            actors.cancel_scope.cancel(reason="shutdown")

    async def _continue(self, services: Services, sessions: SessionRegistry) -> None:
        """Go on with what an ended process left unanswered (ruling B5), before the first request of a client."""
        for session_id in await services.storage.read(lambda reader: reader.unanswered_sessions()):
            if await recovery.continue_once(services, session_id):
                _log.info("going on with what an ended process left", session_id=session_id)
                sessions.post(session_id, Resume())
            else:
                _log.warning("left alone after too many starts without an answer", session_id=session_id)

    def _services(self, storage: StorageActor) -> Services:
        configured = [
            Agent(
                name=name,
                system=agent.system or "",
                model=self._models.parse(agent.model) if agent.model else None,
                steps=agent.steps,
                configured=tuple(
                    Rule(action=rule.action, resource=rule.resource, effect=rule.effect) for rule in agent.permissions
                ),
            )
            for name, agent in self._configuration.agents.items()
        ]
        return Services(
            storage=storage,
            models=self._models,
            tools=self.tools,
            agents=Agents(configured),
            ids=IdSource(self._now_ms, self._random_bytes, Lock()),
            now_ms=self._now_ms,
            blocking=self._blocking,
            max_pending=MAX_PENDING,
            policy=self._configuration.permissions.policy,
            random=self._random,
            context=self.context,
            skills=self._skills,
            instructions=self._instructions,
            diagnose=self._context_defect,
            compaction=self._configuration.compaction,
            histories=Histories(),
            sweeper=Sweeper(storage),
        )

    def _random(self) -> float:
        return int.from_bytes(self._random_bytes(4), "big") / (1 << 32)

    def _session_removed(self, session_id: SessionId, error: SessionNotFoundError) -> None:
        self._feed.end_session(session_id, error)
        removed = SessionRemoved()
        self._feed.publish_live(Event(type=removed.type, created=self._now_ms(), data=removed, session_id=session_id))

    async def _sweep_outputs(self) -> None:
        while True:
            try:
                await self._blocking.run(lambda: self._outputs.sweep(self._now_ms()))
            except OSError as error:
                _log.warning("old tool outputs could not be removed", error=str(error))
            await trio.sleep(SWEEP_SECONDS)

    def _context_defect(self, defect: SourceDefect) -> None:
        message = f"The context source {defect.key} cannot be observed: {defect.problem}"
        diagnostic = ServerDiagnostic(name="context-unavailable", message=message)
        self._feed.publish_live(Event(type=diagnostic.type, created=self._now_ms(), data=diagnostic))

    def _output_lost(self, context: ToolContext, error: str) -> None:
        message = f"A tool output of session {context.session_id} could not be kept whole: {error}"
        diagnostic = ServerDiagnostic(name="tool-output-lost", message=message)
        self._feed.publish_live(Event(type=diagnostic.type, created=self._now_ms(), data=diagnostic))


@asynccontextmanager
async def open_runtime(
    path: str | Path | None = None,
    *,
    configuration: Configuration | None = None,
    directory: str | Path | None = None,
    tools: Sequence[Tool] = (),
    environ: Mapping[str, str] | None = None,
    blocking: Blocking | None = None,
    now_ms: Callable[[], int] = _wall_clock_ms,
    random_bytes: Callable[[int], bytes] = os.urandom,
    take_over: bool = False,
    limits: Limits | None = None,
    config_folder: str | Path | None = None,
) -> AsyncGenerator[Runtime]:
    """Run a durable runtime for the length of a block, and be its client.

    `path` is the store's file; None takes the configuration's. `configuration` None reads the user's settings and the
    environment, as the command line does. `directory` is the location of sessions that name none (default: the working
    directory). `tools` are registered for all sessions. `config_folder` is where the user's `AGENTS.md` and skills lie
    (default: the platform's folder for this program). Clock, randomness, environment and the place for blocking work are
    parameters so that tests own them.

    Raises `StoreInUseError`, `StoreVersionError`, `StoreUnsuitableError` or `StorageUnavailableError` when the store cannot be
    opened. Leaving the block, also by cancellation, releases everything: tasks, database, files, connections. Cancelled
    while it starts, it first comes to the end of its start.
    """
    if configuration is None:
        configuration = load_settings(Surroundings.of_process()).configuration
    house = House(
        path=path if path is not None else configuration.store.path,
        configuration=configuration,
        directory=str(Path.cwd() / (directory or "")),
        environ=os.environ if environ is None else environ,
        blocking=blocking or Threads(),
        keeping=blocking or Threads(limit=4),  # apart, so that hung tools never hold up the keeping of outputs
        observing=blocking or Threads(),  # nor make Context Sources unavailable
        now_ms=now_ms,
        random_bytes=random_bytes,
        take_over=take_over,
        limits=limits or Limits(),
        config_folder=str(config_folder) if config_folder is not None else _config_folder(),
        tools=tools,
    )
    async with Background() as nursery:
        with trio.CancelScope(shield=True):  # a house that was given up halfway could not be told to stop
            await nursery.start(house.run)
        try:
            runtime = Runtime(house, house.serve_memory(), nursery)
            try:
                yield runtime
            finally:
                await runtime.aclose()
        finally:
            house.stop()


def _config_folder() -> str:
    import platformdirs

    return platformdirs.user_config_dir("steerway", appauthor=False)


def _version() -> str:
    from importlib.metadata import version

    return version("steerway")
