"""Sessions under everything at once, against what is stored: no request differs from what a fresh process would send.

Long, because the random program, its faults and its judge belong together.

Rules:
- A run is named by its seed, which chooses every step. Under the virtual clock, with everything in the loop, it replays
  exactly: `STEERWAY_SEEDS=17` runs that seed alone, `STEERWAY_SEEDS=0-99` so many.
- Whatever a request says of history is compared, when it arrives, with the stored history, read and put into words anew.
- Whenever all is at rest, the doctor looks and the inbox holds what was not promoted. Now and then the runtime is opened anew.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from steerway.actors.blocking import Blocking, Inline, Threads
from steerway.actors.configuration import Agent, Compaction, Configuration, Model, ModelSelection, PermissionRule, Store
from steerway.actors.configuration import Provider as ProviderSettings
from steerway.actors.models.catalog import Catalog, ModelInfo
from steerway.protocol.llm.lowering import lower
from steerway.protocol.llm.openai_chat import OpenAIChatAdapter
from steerway.protocol.llm.request import Generation, LLMRequest
from steerway.protocol.values import (
    AssistantMessage,
    CacheTokens,
    EventData,
    Location,
    MessageId,
    ModelRef,
    PartId,
    Prompt,
    PromptAdmitted,
    PromptPromoted,
    SessionCreated,
    SessionId,
    TextEnded,
    TextStarted,
    Tokens,
    TurnCompleted,
    TurnStarted,
)
from steerway.protocol.values.errors import ConflictError, DeclaredError
from steerway.storage.database import open_reader
from steerway.storage.reader import Reader
from support.answers import Answer, answer, cut, delay, finish, status, text, tool_call
from support.doctor import assert_healthy
from support.house import OpenHouse, Ticks, disorder, open_house, read_events
from support.matrix import unpromoted
from support.provider import Provider, Request, open_provider
from support.stores import append, open_store
from support.tools import ScriptedTool

ANSWER = "What was said before. " * 4
WORDS = "Ünï <&> \U0001f600 "
TOO_LARGE = {"error": {"message": "This model's maximum context length is 6000 tokens."}}


def seeds(few: int) -> list[int]:
    """The seeds of a run: a few, or those that the environment names."""
    named = os.environ.get("STEERWAY_SEEDS")
    if named is None:
        return list(range(few))
    first, _, last = named.partition("-")
    return list(range(int(first), int(last or first) + 1))


def settings(provider: Provider, sessions: int, context: int) -> Configuration:
    """Two models for each session, so that a request tells whose it is."""
    names = [f"s{number}-{kind}" for number in range(sessions) for kind in "ab"] + [f"f{number}-a" for number in range(100)]
    models = {name: Model(context=context if name.endswith("a") else context - 1_000, output=500) for name in names}
    made = ProviderSettings(protocol="openai-chat", base_url=provider.base_url, models=models)
    allowed = (PermissionRule(action="*", resource="*", effect="allow"),)
    return Configuration(
        store=Store(synchronous="normal"),
        providers={"p": made},
        models=ModelSelection(default="p/s0-a"),
        agents={"build": Agent(permissions=allowed), "short": Agent(system="Be short.", steps=2, permissions=allowed)},
        compaction=Compaction(keep_tokens=400, buffer=1_000),
    )


class Oracle:
    """What each request should have said, from the store alone."""

    def __init__(self, path: Path, provider: Provider) -> None:
        self._path = path
        self._provider = provider
        self._adapter = OpenAIChatAdapter()
        self.owners: dict[str, SessionId] = {}
        self.catalog: Catalog | None = None
        self.complaints: list[str] = []
        self.compared = 0

    def check(self, request: Request) -> None:
        """Complain when the request is none that the stored history gives."""
        session = self.owners[request.model.split("-")[0]]
        assert self.catalog is not None
        model = self.catalog.resolve(ModelRef(provider="p", id=request.model))
        reader = open_reader(self._path)
        try:
            if self._fits(request, reader, session, model):
                self.compared += 1
            else:
                self.complaints.append(f"request {request.number} of {session} is not what history says")
        finally:
            reader.close()

    def _fits(self, request: Request, reader: Reader, session: SessionId, model: ModelInfo) -> bool:
        stretch = reader.stretch(session, None)
        epoch = reader.epoch(session)
        turns = [place for place, message in enumerate(stretch.messages) if isinstance(message, AssistantMessage)]
        sent = json.dumps(request.json["messages"])
        for end in reversed(turns[-4:]):  # one that was interrupted on its way may arrive late
            messages = lower(stretch.messages[:end], model.ref, media=model.media)
            for system in ("", "Be short."):
                made = LLMRequest(
                    model=model.api_model,
                    system=tuple(filter(None, ("" if epoch is None else epoch.epoch.baseline, system))),
                    messages=messages,
                    tools=(),
                    tool_choice="auto",
                    generation=Generation(),
                    options={},
                    body={},
                    cache_key=None,
                )
                if json.dumps(json.loads(self._adapter.encode(made).body)["messages"]) == sent:
                    return True
        return False


def is_summary(request: Request) -> bool:
    return "You write the memory of a conversation" in str(request.messages[-1]["content"])


class Storm:
    """One random program over some sessions of one store."""

    def __init__(self, seed: int, folder: Path, provider: Provider, *, sessions: int, turns: int, real: bool) -> None:
        self.random = random.Random(seed)
        self.turns = turns
        self.folder = folder
        self.provider = provider
        self.real = real
        self.oracle = Oracle(folder / "sessions.db", provider)
        self.context = 6_000 + 2 * turns * (len(ANSWER) // 4 + 30) * self.random.choice((1, 1, 2))
        self.configuration = settings(provider, sessions, self.context)
        self.oracle.catalog = Catalog(self.configuration, {})
        self.ticks = Ticks()
        self.ids = [SessionId(f"ses_{number}") for number in range(sessions)]
        self.oracle.owners = {f"s{number}": id for number, id in enumerate(self.ids)}
        self.count = 0
        self.forks = 0
        self.summaries = 0
        self.log: list[str] = []
        self.admitted: dict[SessionId, set[MessageId]] = {id: set() for id in self.ids}
        provider.respond = self.respond
        for place in ("a", "b"):
            (folder / place).mkdir()
            (folder / place / "notes.txt").write_text("Notes.\n" * 50)
            (folder / place / "sub").mkdir()
            (folder / place / "sub" / "AGENTS.md").write_text("Near.")
            (folder / place / "sub" / "deep.txt").write_text("Deep.\n")

    # --- the provider ---

    def respond(self, request: Request) -> Answer:
        choose = self.random
        if is_summary(request):
            self.summaries += 1
            kinds = ["fine"] * 6 + ["empty", "refused", "slow"]
            match choose.choice(kinds):
                case "empty":
                    return answer(text(" "))
                case "refused":
                    return status(400)
                case "slow":
                    return answer(text(["Sum", "mary ", f"{request.number}"], every=0.01))
                case _:
                    return answer(text(f"Summary {request.number}."))
        self.oracle.check(request)
        kinds = ["text"] * 6 + ["echo", "echo", "read", "near", "large", "two", "refused", "cut", "late", "overflow", "filter"]
        kinds += [] if self.real else ["busy", "empty"]
        match choose.choice(kinds):
            case "echo":
                return answer(
                    text("Well"), tool_call("echo", {"value": f"{WORDS}{request.number}"}, id=f"c{choose.randrange(4)}")
                )
            case "read":
                return answer(tool_call("read", {"path": "notes.txt"}))
            case "near":
                return answer(tool_call("read", {"path": "sub/deep.txt"}))
            case "large":
                return answer(tool_call("large", {"value": "x"}), tool_call("large", {"value": "y"}))
            case "two":
                return answer(text("Two"), tool_call("echo", {"value": "a"}), tool_call("nothing", {"value": "b"}))
            case "refused":
                return status(400)
            case "busy":
                return status(429, headers={"retry-after": "1"})
            case "empty":
                return answer()
            case "overflow":
                return status(400, TOO_LARGE)
            case "cut" if not self.real:
                return answer(text("Half an"), cut())
            case "late":
                return answer(delay(0.005), text(["One ", "two"], every=0.005), tool_call("echo", {"value": "late"}))
            case "filter":
                return answer(text("Half"), tool_call("echo"), finish("content_filter"))
            case _:
                return answer(text(f"Answer {request.number} {WORDS}" * choose.choice((1, 1, 20))))

    # --- steps ---

    async def step(self, house: OpenHouse, id: SessionId) -> None:
        """One thing that happens to a session."""
        sessions, choose = house.sessions, self.random
        number = self.ids.index(id)
        what = choose.choice(
            ["steer"] * 6 + ["queue"] * 3 + ["silent", "interrupt", "interrupt", "twice", "both", "model", "model", "agent"]
            + ["compact", "move", "fork", "put", "drop", "instructions", "withdraw", "redeliver", "resume", "update", "look"]
        )  # fmt: skip
        self.log.append(f"{what} {id}")
        self.count += 1
        words = f"{self.count} {WORDS * choose.choice((1, 1, 1, 40))}"
        fresh = MessageId(f"msg_{self.count}")
        match what:
            case "steer" | "queue" | "silent":
                delivery = "queue" if what == "queue" else "steer"
                await sessions.prompt(id, words, id=fresh, delivery=delivery, resume=what != "silent")
                self.admitted[id].add(fresh)
            case "interrupt":
                await sessions.interrupt(id)
            case "twice":
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(sessions.interrupt, id)
                    nursery.start_soon(sessions.interrupt, id)
            case "both":
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(sessions.interrupt, id)
                    nursery.start_soon(partial(sessions.prompt, id, words, id=fresh))
                self.admitted[id].add(fresh)
            case "model":
                await sessions.switch_model(id, ModelRef(provider="p", id=f"s{number}-{choose.choice('ab')}"))
            case "agent":
                await sessions.switch_agent(id, choose.choice(("build", "short")))
            case "compact":
                await sessions.compact(id)
            case "move":
                await sessions.move(id, Location(directory=str(self.folder / choose.choice("ab"))))
            case "fork":
                await self._fork(house, id)
            case "put":
                await house.runtime.context.put(id, choose.choice(("ticket", "build")), {"value": self.count})
            case "drop":
                try:
                    await house.runtime.context.remove(id, choose.choice(("ticket", "build")))
                except DeclaredError:
                    pass
            case "instructions":
                path = self.folder / choose.choice("ab") / "AGENTS.md"
                if choose.random() < 0.2:
                    path.unlink(missing_ok=True)
                else:
                    path.write_text(f"Rule {self.count}.")
            case "withdraw" | "redeliver":
                pending = await house.sessions.pending(id)
                if pending:
                    one = choose.choice(pending)
                    try:
                        if what == "withdraw":
                            await sessions.withdraw(id, one.id)
                        else:
                            await sessions.redeliver(id, one.id, choose.choice(("steer", "queue")))
                    except (ConflictError, DeclaredError):
                        pass
            case "resume":
                with trio.move_on_after(0.5):
                    await sessions.resume(id)
            case "update":
                await sessions.update(id, title=words[:40])
            case _:
                await sessions.attach(id)
                await sessions.provider_context(id)

    async def _fork(self, house: OpenHouse, id: SessionId) -> None:
        """A fork, which is asked something, looked at, and removed."""
        fork = await house.sessions.fork(id)
        name = f"f{self.forks}"
        self.forks += 1
        if self.random.random() < 0.5:
            self.oracle.owners[name] = fork.id
            await house.sessions.switch_model(fork.id, ModelRef(provider="p", id=f"{name}-a"))
            for words in ("Fork", "and more"):
                await house.sessions.prompt(fork.id, words)
                if self.random.random() < 0.7:
                    await house.sessions.wait(fork.id)
        if self.random.random() < 0.7:
            await house.sessions.remove(fork.id)

    # --- the run ---

    def fill(self) -> None:
        """Sessions with that many turns, through the writer."""
        database = open_store(self.folder / "sessions.db")
        tokens = Tokens(input=20, output=90, reasoning=0, cache=CacheTokens(read=0, write=0))
        for number, id in enumerate(self.ids):
            model = ModelRef(provider="p", id=f"s{number}-a")
            append(database, id, SessionCreated(title="Old", location=Location(directory=str(self.folder / "a")), model=model))
            data: list[EventData] = []
            for turn in range(self.turns):
                user, assistant, part = (f"{kind}_old_{number}_{turn}" for kind in ("msg_u", "msg_a", "prt"))
                user, assistant, part = MessageId(user), MessageId(assistant), PartId(part)
                prompt = Prompt(text=f"Old prompt {turn}")
                data += [
                    PromptAdmitted(message_id=user, prompt=prompt, delivery="steer"),
                    PromptPromoted(message_id=user, prompt=prompt, delivery="steer", admitted=1_000),
                    TurnStarted(assistant_message_id=assistant, agent="build", model=model, attempt=1),
                    TextStarted(assistant_message_id=assistant, part_id=part),
                    TextEnded(assistant_message_id=assistant, part_id=part, text=f"{turn} {ANSWER}"),
                    TurnCompleted(assistant_message_id=assistant, finish="stop", tokens=tokens, cost=0.0, continues=False),
                ]
            append(database, id, *data)
        database.close()

    async def run(self, rounds: int, *, blocking: Callable[[], Blocking]) -> None:
        self.fill()
        left = rounds
        tools = [ScriptedTool("echo"), ScriptedTool("large", lambda value: f"{value} " * 4_000)]
        while left > 0:
            async with open_house(
                self.provider,
                self.folder,
                ticks=self.ticks,
                tools=[tool.tool for tool in tools],
                settings=self.configuration,
                blocking=blocking(),
                check=False,
            ) as house:
                while left > 0:
                    left -= 1
                    await self._round(house)
                    if self.random.random() < 0.15:
                        break
            assert_healthy(self.folder / "sessions.db")
        assert self.provider.violations == []

    async def _round(self, house: OpenHouse) -> None:
        self.log.append("--")
        async with trio.open_nursery() as nursery:
            for _ in range(self.random.randrange(1, 7)):
                nursery.start_soon(self.step, house, self.random.choice(self.ids))
                for _ in range(self.random.choice((0, 0, 3, 10, 30, 100))):
                    await trio.lowlevel.checkpoint()
                if self.real and self.random.random() < 0.5:
                    await trio.sleep(self.random.random() * 0.01)
        if self.random.random() < 0.5:
            await self._rest(house)

    async def _rest(self, house: OpenHouse) -> None:
        with trio.fail_after(3_600 if not self.real else 20):
            for id in self.ids:
                await house.sessions.wait(id)
        for id in self.ids:
            events = await read_events(house.runtime, id)
            assert disorder(events, ended=True) == []
            pending = [item.id for item in await house.sessions.pending(id) if hasattr(item, "prompt")]
            assert sorted(pending) == sorted(unpromoted(events))
        assert self.oracle.complaints == []


async def _storm(seed: int, folder: Path, rounds: int, *, sessions: int, turns: int, real: bool) -> Storm:
    async with open_provider() as provider:
        storm = Storm(seed, folder, provider, sessions=sessions, turns=turns, real=real)
        try:
            await storm.run(rounds, blocking=Threads if real else Inline)
        except BaseException:
            print(f"seed {seed}, after:", *storm.log[-40:], sep="\n")
            raise
        assert storm.oracle.complaints == []
        return storm


@pytest.mark.parametrize("seed", seeds(3))
async def test_whatever_happens_a_request_is_what_the_stored_history_says(
    seed: int, tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING", True)
    monkeypatch.setattr("trio._core._run._r", random.Random(seed))
    storm = await _storm(seed, tmp_path, 25, sessions=2, turns=seed % 2 * 40, real=False)
    assert storm.oracle.compared > 10


@pytest.mark.parametrize("seed", seeds(1))
async def test_so_it_does_with_threads(seed: int, tmp_path: Path) -> None:
    storm = await _storm(seed, tmp_path, 20, sessions=3, turns=20, real=True)
    assert storm.oracle.compared > 5
