"""Who contributes to the System Context, where, in which order, and for how long."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from steerway.actors.context.algebra import Blocked, Initialized, SystemContext, Unchanged, Updated
from steerway.actors.context.observing import Observing, SourceDefect
from steerway.actors.context.registry import SystemContextRegistry
from steerway.actors.context.source import ContextKeyError, ContextSource, codec_of
from steerway.protocol.values import Location

HERE = Location(directory="/here")
THERE = Location(directory="/there")
OBSERVING = Observing()


def source(key: str, value: str = "1") -> ContextSource[str]:
    async def load() -> str:
        return value

    return ContextSource(
        key=key,
        codec=codec_of(str),
        load=load,
        baseline=lambda current: f"{key} is {current}",
        update=lambda _, current: f"{key} is now {current}",
        removed=lambda _: f"{key} is gone",
    )


async def begin(registry: SystemContextRegistry, location: Location = HERE) -> Initialized:
    outcome = await (await registry.load(location, OBSERVING)).initialize(OBSERVING)
    assert isinstance(outcome, Initialized)
    return outcome


async def test_contributions_are_combined_by_key_whatever_the_order_of_registration_and_of_answers(
    autojump_clock: MockClock,
) -> None:
    registry = SystemContextRegistry()

    def slowly(key: str, seconds: float) -> Callable[[Location], Awaitable[SystemContext]]:
        async def produce(_: Location) -> SystemContext:
            await trio.sleep(seconds)
            return SystemContext.combine(SystemContext.make(source(f"{key}/b")), SystemContext.make(source(f"{key}/a")))

        return produce

    registry.produce("m/z", slowly("z", 1))
    registry.register(source("m/c"))
    registry.produce("m/a", slowly("y", 3))
    registry.produce("m/b", slowly("x", 2))
    assert (await registry.load(HERE, OBSERVING)).keys == ("y/b", "y/a", "x/b", "x/a", "m/c", "z/b", "z/a")
    assert trio.current_time() == pytest.approx(3.0)  # all at the same time


async def test_what_a_session_adds_of_its_own_follows_in_the_order_given() -> None:
    registry = SystemContextRegistry()
    registry.register(source("z/z"))

    def own(key: str) -> tuple[str, Callable[[], Awaitable[SystemContext]]]:
        async def produce() -> SystemContext:
            return SystemContext.make(source(key))

        return key, produce

    context = await registry.load(HERE, OBSERVING, own=[own("c/c"), own("a/a")])
    assert context.keys == ("z/z", "c/c", "a/a")


async def test_a_contribution_of_a_location_counts_there_alone() -> None:
    registry = SystemContextRegistry()
    registry.register(source("a/all"))
    registry.register(source("a/here"), location="/here/")
    assert (await registry.load(HERE, OBSERVING)).keys == ("a/all", "a/here")
    assert (await registry.load(THERE, OBSERVING)).keys == ("a/all",)


async def test_a_producer_is_told_the_location() -> None:
    registry = SystemContextRegistry()
    asked: list[Location] = []

    async def produce(location: Location) -> SystemContext:
        asked.append(location)
        return SystemContext.empty

    registry.produce("a/x", produce)
    await registry.load(THERE, OBSERVING)
    assert asked == [THERE]


def test_a_key_that_is_taken_in_an_overlapping_scope_is_refused() -> None:
    registry = SystemContextRegistry()
    registry.register(source("a/all"))
    registry.register(source("a/local"), location="/here")
    registry.register(source("a/local"), location="/there")
    for key, location in (("a/all", None), ("a/all", "/here"), ("a/local", None), ("a/local", "/here/.")):
        with pytest.raises(ContextKeyError, match="registered already"):
            registry.register(source(key), location=location)
    assert registry.statistics() == {"context_contributions": 3}


def test_a_contribution_key_without_a_namespace_is_refused() -> None:
    async def produce(_: Location) -> SystemContext:
        return SystemContext.empty

    with pytest.raises(ContextKeyError, match="not namespaced"):
        SystemContextRegistry().produce("date", produce)


@pytest.mark.parametrize("key", ["core/date", "core/anything", "api/entries", "api/ticket"])
async def test_the_runtimes_own_namespaces_are_refused_to_others(key: str) -> None:
    registry = SystemContextRegistry()

    async def produce(_: Location) -> SystemContext:
        return SystemContext.make(source(key))

    with pytest.raises(ContextKeyError, match=f"'{key}' is reserved"):
        registry.register(source(key), location="/here")
    with pytest.raises(ContextKeyError, match="reserved"):
        registry.produce(key, produce)
    assert registry.statistics() == {"context_contributions": 0}
    with registry.produce("a/innocent", produce), pytest.raises(ContextKeyError, match="reserved"):
        await registry.load(HERE, OBSERVING)
    registry.reserve(key, produce)
    assert (await registry.load(HERE, OBSERVING)).keys == (key,)


async def test_a_producer_that_gives_no_context_counts_as_unavailable() -> None:
    registry = SystemContextRegistry()

    async def produce(_: Location) -> Any:
        return None

    registry.produce("a/x", produce)
    with capture_logs():
        context = await registry.load(HERE, OBSERVING)
    assert await context.initialize(OBSERVING) == Blocked(
        reasons={"a/x": "TypeError: the producer gave NoneType, no SystemContext"}
    )


async def test_one_source_named_by_two_producers_fails_composition() -> None:
    registry = SystemContextRegistry()

    async def produce(_: Location) -> SystemContext:
        return SystemContext.make(source("a/x"))

    registry.produce("b/one", produce)
    registry.produce("b/two", produce)
    with pytest.raises(ContextKeyError, match="'a/x'"):
        await registry.load(HERE, OBSERVING)


async def test_closing_a_contribution_removes_its_source_and_frees_its_key() -> None:
    registry = SystemContextRegistry()
    registry.register(source("a/stays"))
    with registry.register(source("a/goes")):
        begun = await begin(registry)
    gone = await (await registry.load(HERE, OBSERVING)).reconcile(begun.snapshot, OBSERVING)
    assert isinstance(gone, Updated)
    assert (gone.text, gone.dropped) == ("a/goes is gone", ("a/goes",))
    again = registry.register(source("a/goes", "2"))
    back = await (await registry.load(HERE, OBSERVING)).reconcile(gone.snapshot, OBSERVING)
    assert isinstance(back, Updated)
    assert back.text == "a/goes is 2"
    again.close()
    again.close()
    assert registry.statistics() == {"context_contributions": 1}


async def test_a_producer_that_fails_or_hangs_takes_nothing_back(autojump_clock: MockClock) -> None:
    registry = SystemContextRegistry()
    trouble: list[str] = []

    async def flaky(_: Location) -> SystemContext:
        if "raise" in trouble:
            raise OSError("broken")
        if "hang" in trouble:
            await trio.sleep_forever()
        return SystemContext.make(source("p/inner"))

    registry.register(source("a/x"))
    registry.produce("p/flaky", flaky)
    begun = await begin(registry)
    for kind, problem in (("raise", "OSError: broken"), ("hang", "there was no answer within 5 s")):
        trouble[:] = [kind]
        told: list[SourceDefect] = []
        with capture_logs():
            context = await registry.load(HERE, Observing(diagnose=told.append))
        assert told == [SourceDefect(key="p/flaky", problem=problem)]
        assert await context.reconcile(begun.snapshot, OBSERVING) == Unchanged()
        assert await context.initialize(OBSERVING) == Blocked(reasons={"p/flaky": problem})
    trouble.clear()
    assert await (await registry.load(HERE, OBSERVING)).reconcile(begun.snapshot, OBSERVING) == Unchanged()


async def test_registering_while_a_boundary_loads_counts_from_the_next_one() -> None:
    registry = SystemContextRegistry()

    async def produce(_: Location) -> SystemContext:
        if registry.statistics()["context_contributions"] == 1:
            registry.register(source("a/late"))
        return SystemContext.make(source("a/early"))

    registry.produce("p/x", produce)
    assert (await registry.load(HERE, OBSERVING)).keys == ("a/early",)
    assert (await registry.load(HERE, OBSERVING)).keys == ("a/late", "a/early")
