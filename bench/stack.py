"""The actors of a runtime, opened by hand: what `open_runtime` assembles, with every actor within reach.

Rules:
- Same parts, same threads, same settings as the real runtime; only the bound on pending prompts is lifted, because a
  benchmark admits more than anybody would.
- The gateway is the real listener with the real router.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import trio

from steerway.actors.agents import Agents
from steerway.actors.blocking import Threads
from steerway.actors.configuration import Compaction, Configuration
from steerway.actors.context.instructions import Instructions
from steerway.actors.context.registry import SystemContextRegistry
from steerway.actors.context.skills import Skills
from steerway.actors.feed import Feed
from steerway.actors.gateway.context_handlers import ContextHandlers
from steerway.actors.gateway.instance_handlers import InstanceHandlers
from steerway.actors.gateway.limits import Limits
from steerway.actors.gateway.listener import Listening, serve
from steerway.actors.gateway.request_handlers import RequestHandlers
from steerway.actors.gateway.router import Router
from steerway.actors.gateway.session_handlers import SessionHandlers
from steerway.actors.models.models import Models
from steerway.actors.session.history import Histories
from steerway.actors.session.letters import Create
from steerway.actors.session.registry import SessionRegistry
from steerway.actors.session.services import Services
from steerway.actors.session.sweeping import Sweeper
from steerway.actors.storage import StorageActor
from steerway.actors.tools.bounding import OutputBounds
from steerway.actors.tools.registry import ToolRegistry
from steerway.protocol.values.event import SessionCreated
from steerway.protocol.values.ids import IdSource, SessionId
from steerway.protocol.values.location import Location
from steerway.storage.database import Database, Owner
from steerway.storage.outputs import OutputFiles

TOKEN = "the-token-of-the-benchmarks"


def now_ms() -> int:
    """Epoch milliseconds."""
    return time.time_ns() // 1_000_000


def open_database(path: Path) -> Database:
    """A store that this process owns, committing with `synchronous=FULL`."""
    return Database.open(
        path,
        owner=Owner(id="bench", pid=os.getpid(), host="bench"),
        now_ms=now_ms,
        new_generation=lambda: f"gen_{os.urandom(12).hex()}",
    )


@dataclass(frozen=True, slots=True)
class Stack:
    """Running actors. Made by `open_stack`."""

    storage: StorageActor
    feed: Feed
    services: Services
    sessions: SessionRegistry
    router: Router
    nursery: trio.Nursery

    async def create_sessions(self, count: int) -> list[SessionId]:
        """So many new sessions, resident."""
        made = [self.services.ids.session() for _ in range(count)]
        created = SessionCreated(title="bench", location=Location(directory="/"))
        letters = [Create(created, located=False, check=lambda: None) for _ in made]
        for session_id, letter in zip(made, letters, strict=True):
            self.sessions.post(session_id, letter)
        for letter in letters:
            await letter.answer.wait()
        return made

    async def listen(self) -> Listening:
        """Open the gateway on a free port of the loopback; it closes with the stack."""

        async def live(*, task_status: trio.TaskStatus[Listening]) -> None:
            await serve(self.router, host="127.0.0.1", port=0, token=TOKEN, limits=Limits(), task_status=task_status)

        return await self.nursery.start(live)


@asynccontextmanager
async def open_stack(folder: Path, configuration: Configuration | None = None) -> AsyncGenerator[Stack]:
    """The actors over a store in `folder`, for a block."""
    database = open_database(folder / "sessions.db")
    feed, blocking = Feed(now_ms), Threads()
    storage = StorageActor(database, feed, blocking)
    models = Models(configuration or Configuration(), {})
    outputs = OutputFiles(folder / "outputs", now_ms=now_ms, random_bytes=os.urandom)
    services = Services(
        storage=storage,
        models=models,
        tools=ToolRegistry(OutputBounds(outputs, blocking)),
        agents=Agents(),
        ids=IdSource(now_ms, os.urandom, Lock()),
        now_ms=now_ms,
        blocking=blocking,
        max_pending=1 << 40,
        policy="ask",
        random=random.random,
        context=SystemContextRegistry(),
        skills=Skills(blocking, config_folder=str(folder)),
        instructions=Instructions(blocking, config_folder=str(folder)),
        diagnose=lambda _: None,
        compaction=Compaction(),
        histories=Histories(),
        sweeper=Sweeper(storage),
    )
    sessions = SessionRegistry(services, removed=feed.end_session)
    router = Router(
        SessionHandlers(services, sessions, default_directory="/").handlers(),
        RequestHandlers(services, sessions).handlers(),
        ContextHandlers(services, sessions).handlers(),
        InstanceHandlers(services, feed, version="bench", limits=Limits()).handlers(),
    )
    try:
        async with trio.open_nursery() as floor:
            await floor.start(storage.run)
            await floor.start(feed.run, storage.read)
            try:
                async with trio.open_nursery() as nursery:
                    await nursery.start(sessions.run)
                    yield Stack(storage, feed, services, sessions, router, nursery)
                    await sessions.stop()
                    nursery.cancel_scope.cancel()
            finally:
                feed.close()
                storage.close()
    finally:
        await models.aclose()
        database.close()
