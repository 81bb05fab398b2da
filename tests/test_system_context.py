"""The algebra of System Context: composition, the four outcomes, and what never changes them.

Long, because examples and properties share one set of sources.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, Literal, TypeVar

import msgspec
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from trio.testing import MockClock

from steerway.actors.context.algebra import (
    Blocked,
    Initialized,
    ReplacementBlocked,
    ReplacementReady,
    SystemContext,
    Unchanged,
    Updated,
)
from steerway.actors.context.observing import Observing, SourceDefect, Unavailable
from steerway.actors.context.snapshot import InvalidSnapshotError, SnapshotEntry, advance, decode_snapshot
from steerway.actors.context.source import (
    MAX_SOURCE_BYTES,
    Codec,
    ContextKeyError,
    ContextSource,
    EmptyRenderingError,
    OversizedRenderingError,
    RenderingError,
    codec_of,
)

T = TypeVar("T")
OBSERVING = Observing()


async def unavailable() -> Unavailable:
    return Unavailable("not now")


def made(
    key: str,
    value: str | Unavailable,
    *,
    removable: bool = True,
    load: Callable[[], Awaitable[str | Unavailable]] | None = None,
) -> SystemContext:
    async def give() -> str | Unavailable:
        return value

    return SystemContext.make(
        ContextSource(
            key=key,
            codec=codec_of(str),
            load=load or give,
            baseline=lambda current: f"{key} is {current}",
            update=lambda previous, current: f"{key} went from {previous} to {current}",
            removed=(lambda last: f"{key} is gone, it was {last}") if removable else None,
        )
    )


def entry(value: Any, removed: str | None = None) -> SnapshotEntry:
    return SnapshotEntry(value=value, removed=removed)


async def begin(*contexts: SystemContext) -> Initialized:
    outcome = await SystemContext.combine(*contexts).initialize(OBSERVING)
    assert isinstance(outcome, Initialized)
    return outcome


# --- composition --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key", ["date", "Core/date", "core/", "/date", "core//date", "core/da te", "-core/date", "", "core/date\n"]
)
def test_a_key_without_a_namespace_is_refused(key: str) -> None:
    with pytest.raises(ContextKeyError, match="not namespaced"):
        made(key, "x")


def test_a_key_used_twice_fails_composition() -> None:
    with pytest.raises(ContextKeyError, match="'a/x'"):
        SystemContext.combine(made("a/x", "1"), SystemContext.combine(made("b/x", "1"), made("a/x", "2")))


async def test_combining_keeps_the_order_of_its_arguments_and_nothing_changes_nothing() -> None:
    one, two, three = made("c/x", "1"), made("a/x", "2"), made("b/x", "3")
    nested = SystemContext.combine(one, SystemContext.combine(two, SystemContext.empty), three)
    flat = SystemContext.combine(SystemContext.empty, one, two, three)
    assert nested.keys == flat.keys == ("c/x", "a/x", "b/x")
    assert (await begin(nested)).baseline == "c/x is 1\n\na/x is 2\n\nb/x is 3"


async def test_no_sources_make_an_empty_baseline() -> None:
    assert await begin() == Initialized(baseline="", snapshot={})
    assert await SystemContext.empty.reconcile({}, OBSERVING) == Unchanged()


# --- initialising -------------------------------------------------------------------------------------------------


async def test_the_first_baseline_holds_every_source_and_the_snapshot_their_removal_texts() -> None:
    begun = await begin(made("b/x", "2"), made("a/x", "1", removable=False))
    assert begun.baseline == "b/x is 2\n\na/x is 1"
    assert begun.snapshot == {"a/x": entry("1"), "b/x": entry("2", "b/x is gone, it was 2")}


async def test_anything_unavailable_blocks_the_first_baseline_and_is_named() -> None:
    context = SystemContext.combine(made("c/x", Unavailable("no disk")), made("b/x", "2"), made("a/x", Unavailable("no net")))
    blocked = await context.initialize(OBSERVING)
    assert blocked == Blocked(reasons={"c/x": "no disk", "a/x": "no net"})
    assert isinstance(blocked, Blocked)
    assert blocked.keys == ("c/x", "a/x")


# --- reconciling --------------------------------------------------------------------------------------------------


async def test_unchanged_sources_tell_nothing() -> None:
    contexts = made("a/x", "1"), made("b/x", "2")
    begun = await begin(*contexts)
    assert await SystemContext.combine(*contexts).reconcile(begun.snapshot, OBSERVING) == Unchanged()


async def test_changes_of_one_boundary_are_one_text_in_composition_order_then_removals_by_key() -> None:
    begun = await begin(made("z/x", "1"), made("y/x", "1"), made("m/x", "1"), made("b/x", "1"), made("a/x", "1"))
    now = SystemContext.combine(made("z/x", "2"), made("n/x", "new"), made("y/x", "1"), made("m/x", "2"))
    assert await now.reconcile(begun.snapshot, OBSERVING) == Updated(
        text=("z/x went from 1 to 2\n\nn/x is new\n\nm/x went from 1 to 2\n\na/x is gone, it was 1\n\nb/x is gone, it was 1"),
        snapshot={
            "m/x": entry("2", "m/x is gone, it was 2"),
            "n/x": entry("new", "n/x is gone, it was new"),
            "y/x": entry("1", "y/x is gone, it was 1"),
            "z/x": entry("2", "z/x is gone, it was 2"),
        },
        entries={
            "z/x": entry("2", "z/x is gone, it was 2"),
            "n/x": entry("new", "n/x is gone, it was new"),
            "m/x": entry("2", "m/x is gone, it was 2"),
        },
        dropped=("a/x", "b/x"),
    )


async def test_an_unavailable_source_keeps_what_was_told_and_a_new_one_is_told_when_it_first_answers() -> None:
    begun = await begin(made("a/x", "1"), made("b/x", "1"))
    silent = SystemContext.combine(made("a/x", Unavailable()), made("b/x", "2"), made("c/x", Unavailable()))
    first = await silent.reconcile(begun.snapshot, OBSERVING)
    assert isinstance(first, Updated)
    assert first.text == "b/x went from 1 to 2"
    assert first.snapshot["a/x"] == begun.snapshot["a/x"]
    assert "c/x" not in first.snapshot
    second = await SystemContext.combine(made("a/x", "1"), made("b/x", "2"), made("c/x", "1")).reconcile(
        first.snapshot, OBSERVING
    )
    assert isinstance(second, Updated)
    assert second.text == "c/x is 1"


async def test_a_removed_source_is_told_once() -> None:
    begun = await begin(made("a/x", "1"), made("b/x", "1"))
    first = await made("a/x", "1").reconcile(begun.snapshot, OBSERVING)
    assert isinstance(first, Updated)
    assert (first.text, first.dropped) == ("b/x is gone, it was 1", ("b/x",))
    assert await made("a/x", "1").reconcile(first.snapshot, OBSERVING) == Unchanged()


async def test_a_source_gone_without_a_removal_text_needs_a_fresh_baseline_and_no_update_is_rendered_for_it() -> None:
    begun = await begin(made("a/x", "1"), made("b/x", "1", removable=False))

    def never(_: str, __: str) -> str:
        raise AssertionError("an update was rendered")

    async def load() -> str:
        return "2"

    changed = ContextSource(key="a/x", codec=codec_of(str), load=load, baseline=lambda now: f"fresh {now}", update=never)
    assert await SystemContext.make(changed).reconcile(begun.snapshot, OBSERVING) == ReplacementReady(
        baseline="fresh 2", snapshot={"a/x": entry("2")}
    )


async def test_a_stored_value_that_does_not_decode_any_more_needs_a_fresh_baseline() -> None:
    stored = {"a/x": entry(17), "b/x": entry("1")}
    context = SystemContext.combine(made("a/x", "1"), made("b/x", "1"), made("c/x", Unavailable()))
    assert await context.reconcile(stored, OBSERVING) == ReplacementReady(
        baseline="a/x is 1\n\nb/x is 1",
        snapshot={"a/x": entry("1", "a/x is gone, it was 1"), "b/x": entry("1", "b/x is gone, it was 1")},
    )


async def test_a_needed_replacement_waits_while_admitted_context_is_unavailable() -> None:
    stored = {"a/x": entry(17), "b/x": entry("1")}
    context = SystemContext.combine(made("a/x", "1"), made("b/x", Unavailable("slow")), made("c/x", Unavailable()))
    blocked = await context.reconcile(stored, OBSERVING)
    assert blocked == ReplacementBlocked(reasons={"b/x": "slow"})
    assert isinstance(blocked, ReplacementBlocked)
    assert blocked.keys == ("b/x",)


async def test_replacing_restates_everything_that_is_there_and_omits_what_was_never_admitted() -> None:
    context = SystemContext.combine(made("a/x", "2"), made("c/x", Unavailable()))
    ready = await context.replace({"a/x": entry("1"), "gone/x": entry("1")}, OBSERVING)
    assert ready == ReplacementReady(baseline="a/x is 2", snapshot={"a/x": entry("2", "a/x is gone, it was 2")})
    blocked = await context.replace({"c/x": entry("1")}, OBSERVING)
    assert isinstance(blocked, ReplacementBlocked)
    assert blocked.reasons == {"c/x": "it cannot be observed now"}


async def test_a_blocked_replacement_tells_meanwhile_what_can_be_told() -> None:
    stored = {"a/x": entry("1"), "b/x": entry("1"), "d/x": entry("1"), "gone/x": entry("1", "gone/x is gone")}
    slow = made("b/x", Unavailable("slow"))
    context = SystemContext.combine(made("a/x", "2"), slow, made("c/x", "new"), made("d/x", "1"))
    blocked = await context.replace(stored, OBSERVING)
    assert isinstance(blocked, ReplacementBlocked)
    assert blocked.keys == ("b/x",)
    meanwhile = blocked.meanwhile
    assert meanwhile is not None
    assert meanwhile.text == "a/x went from 1 to 2\n\nc/x is new\n\ngone/x is gone"
    assert (set(meanwhile.entries), meanwhile.dropped) == ({"a/x", "c/x"}, ("gone/x",))
    assert meanwhile.snapshot["b/x"] == entry("1")
    assert await context.replace(meanwhile.snapshot, OBSERVING) == ReplacementBlocked(reasons={"b/x": "slow"})


async def test_what_needs_a_fresh_baseline_is_not_told_meanwhile_and_still_due_afterwards() -> None:
    stored = {"a/x": entry(17), "b/x": entry("1"), "c/x": entry("1"), "mute/x": entry("1")}
    blocking = SystemContext.combine(made("a/x", "1"), made("b/x", Unavailable("slow")), made("c/x", "2"))
    blocked = await blocking.reconcile(stored, OBSERVING)
    assert isinstance(blocked, ReplacementBlocked)
    assert blocked.meanwhile is not None
    assert (blocked.meanwhile.text, blocked.meanwhile.dropped) == ("c/x went from 1 to 2", ())
    told = blocked.meanwhile.snapshot
    assert (told["a/x"], told["mute/x"]) == (entry(17), entry("1"))
    able = SystemContext.combine(made("a/x", "1"), made("b/x", "1"), made("c/x", "2"))
    ready = await able.reconcile(told, OBSERVING)
    assert isinstance(ready, ReplacementReady)
    assert ready.baseline == "a/x is 1\n\nb/x is 1\n\nc/x is 2"


# --- a producer that could not answer -------------------------------------------------------------------------------


async def test_while_a_producer_is_unavailable_nothing_absent_is_taken_for_gone() -> None:
    lost = SystemContext.unavailable("p/all", "it hangs")
    here = made("a/x", "2")
    context = SystemContext.combine(here, lost)
    assert await context.initialize(OBSERVING) == Blocked(reasons={"p/all": "it hangs"})
    updated = await context.reconcile({"a/x": entry("1"), "p/one": entry("1", "gone")}, OBSERVING)
    assert isinstance(updated, Updated)
    assert (updated.text, updated.dropped, "p/one" in updated.snapshot) == ("a/x went from 1 to 2", (), True)
    assert await context.reconcile({"a/x": entry(17), "p/one": entry("1")}, OBSERVING) == ReplacementBlocked(
        reasons={"p/all": "it hangs"}
    )
    assert isinstance(await context.replace({"a/x": entry("1")}, OBSERVING), ReplacementReady)


# --- values and texts ---------------------------------------------------------------------------------------------


async def test_values_are_compared_as_the_codec_of_today_reads_them() -> None:
    class Build(msgspec.Struct):
        number: int
        branch: str = "main"

    async def load() -> Build:
        return Build(7)

    source = ContextSource(
        key="a/build",
        codec=codec_of(Build),
        load=load,
        baseline=lambda _: "b",
        update=lambda old, new: f"{old.number}>{new.number}",
    )
    context = SystemContext.make(source)
    assert await context.reconcile({"a/build": entry({"number": 7})}, OBSERVING) == Unchanged()
    assert await context.reconcile({"a/build": entry({"branch": "main", "number": 7, "later": 1})}, OBSERVING) == Unchanged()
    updated = await context.reconcile({"a/build": entry({"number": 6})}, OBSERVING)
    assert isinstance(updated, Updated)
    assert updated.text == "6>7"


@pytest.mark.parametrize(("before", "after"), [(1, True), (1, 1.0), (0, False), (None, "null"), ([], {})])
async def test_values_that_python_or_a_reader_might_confuse_are_different(before: Any, after: Any) -> None:
    async def load() -> Any:
        return after

    codec: Codec[Any] = Codec(lambda value: value, lambda value: value)
    source = ContextSource(key="a/x", codec=codec, load=load, baseline=lambda _: "b", update=lambda _, __: "changed")
    assert isinstance(await SystemContext.make(source).reconcile({"a/x": entry(before)}, OBSERVING), Updated)


async def test_lone_surrogates_are_repaired_in_values_and_texts() -> None:
    begun = await begin(made("a/x", "cut \ud83d"))
    assert begun.baseline == "a/x is cut \ufffd"
    assert begun.snapshot["a/x"] == entry("cut \ufffd", "a/x is gone, it was cut \ufffd")
    assert await made("a/x", "cut \ud83d").reconcile(begun.snapshot, OBSERVING) == Unchanged()


@pytest.mark.parametrize("which", ["baseline", "update", "removed"])
async def test_a_rendering_without_anything_to_read_is_an_error(which: str) -> None:
    async def load() -> str:
        return "2"

    texts = {"baseline": "b", "update": "u", "removed": "r"} | {which: " \n"}
    context = SystemContext.make(
        ContextSource(
            key="a/x",
            codec=codec_of(str),
            load=load,
            baseline=lambda _: texts["baseline"],
            update=lambda _, __: texts["update"],
            removed=lambda _: texts["removed"],
        )
    )
    with pytest.raises(EmptyRenderingError, match="'a/x'"):
        await (context.reconcile({"a/x": entry("1")}, OBSERVING) if which == "update" else context.initialize(OBSERVING))


def rendering(key: str, value: str, **texts: Callable[[], Any]) -> SystemContext:
    async def load() -> str:
        return value

    def text(which: str) -> Any:
        return texts.get(which, lambda: which)()

    return SystemContext.make(
        ContextSource(
            key=key,
            codec=codec_of(str),
            load=load,
            baseline=lambda _: text("baseline"),
            update=lambda _, __: text("update"),
            removed=lambda _: text("removal"),
        )
    )


@pytest.mark.parametrize("which", ["baseline", "update", "removal"])
@pytest.mark.parametrize(("gives", "said"), [(lambda: 1 // 0, "ZeroDivisionError"), (lambda: None, "AttributeError|TypeError")])
async def test_a_renderer_that_fails_is_an_error_that_names_its_source_and_is_logged(
    which: str, gives: Callable[[], Any], said: str
) -> None:
    context = SystemContext.combine(made("b/x", "1"), rendering("a/x", "2", **{which: gives}))
    with capture_logs() as logs, pytest.raises(RenderingError, match=rf"'a/x' cannot render its {which} text \(({said})"):
        await (context.reconcile({"a/x": entry("1")}, OBSERVING) if which == "update" else context.initialize(OBSERVING))
    assert [(line["event"], line["key"], line["what"]) for line in logs] == [
        ("a context source cannot be rendered", "a/x", which)
    ]


async def test_a_text_that_is_too_large_is_an_error_and_a_value_that_is_too_large_cannot_be_observed() -> None:
    fits = await rendering("a/x", "x", baseline=lambda: "é" * (MAX_SOURCE_BYTES // 2)).initialize(OBSERVING)
    assert isinstance(fits, Initialized)
    with pytest.raises(OversizedRenderingError, match="'a/x'"):
        await rendering("a/x", "x", baseline=lambda: "é" * (MAX_SOURCE_BYTES // 2) + "x").initialize(OBSERVING)
    assert isinstance(await rendering("a/x", "x" * (MAX_SOURCE_BYTES - 2)).initialize(OBSERVING), Initialized)
    with capture_logs():
        blocked = await rendering("a/x", "x" * (MAX_SOURCE_BYTES - 1)).initialize(OBSERVING)
    assert isinstance(blocked, Blocked)
    assert "at most 1048576 are kept" in blocked.reasons["a/x"]


async def test_all_sources_together_stay_within_what_one_event_can_carry() -> None:
    def all_of(number: int, **texts: Callable[[], str]) -> SystemContext:
        return SystemContext.combine(*(rendering(f"a/{index}", "x", **texts) for index in range(number)))

    def large() -> str:
        return "x" * (MAX_SOURCE_BYTES - 100)

    assert isinstance(await all_of(4, baseline=large).initialize(OBSERVING), Initialized)
    with pytest.raises(OversizedRenderingError, match="its text has"):
        await all_of(5, baseline=large).initialize(OBSERVING)
    with pytest.raises(OversizedRenderingError, match="its snapshot has"):
        await all_of(5, removal=large).initialize(OBSERVING)
    before = {f"a/{index}": entry("1") for index in range(5)}
    with pytest.raises(OversizedRenderingError, match="its text has"):
        await all_of(5, update=large).reconcile(before, OBSERVING)


def test_a_stored_snapshot_that_is_none_is_a_typed_failure() -> None:
    assert decode_snapshot({"a/x": {"value": None}}) == {"a/x": entry(None)}
    shapes: tuple[Any, ...] = ([], {"a/x": 1}, {"a/x": {}}, {"a/x": {"value": 1, "removed": 2}}, None)
    for broken in shapes:
        with pytest.raises(InvalidSnapshotError):
            decode_snapshot(broken)


# --- defects of sources -------------------------------------------------------------------------------------------


async def expect_defect(load: Callable[[], Awaitable[Any]], problem: str, codec: Codec[Any] | None = None) -> None:
    """An observation that fails is Unavailable for this boundary, logged, and told to whoever takes diagnostics."""
    told: list[SourceDefect] = []
    source = ContextSource(key="a/x", codec=codec or codec_of(str), load=load, baseline=lambda _: "b", update=lambda _, __: "u")
    context = SystemContext.combine(SystemContext.make(source), made("b/x", "2"))
    with capture_logs() as logs:
        updated = await context.reconcile({"a/x": entry("1"), "b/x": entry("1")}, Observing(diagnose=told.append))
    assert isinstance(updated, Updated)
    assert (updated.text, updated.snapshot["a/x"]) == ("b/x went from 1 to 2", entry("1"))
    assert told == [SourceDefect(key="a/x", problem=problem)]
    assert [(line["log_level"], line["key"], line["problem"]) for line in logs] == [("error", "a/x", problem)]


async def test_a_loader_that_raises_counts_as_unavailable() -> None:
    async def load() -> str:
        raise OSError("no such host")

    await expect_defect(load, "OSError: no such host")


async def test_a_loader_that_raises_a_group_counts_as_unavailable() -> None:
    async def load() -> str:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
        return "never"

    async def fail() -> None:
        raise ValueError("inside")

    await expect_defect(load, "ExceptionGroup: Exceptions from Trio nursery (1 sub-exception)")


async def test_a_loader_that_gives_no_answer_for_five_seconds_counts_as_unavailable(autojump_clock: MockClock) -> None:
    async def load() -> str:
        await trio.sleep_forever()
        return "never"

    began = trio.current_time()
    await expect_defect(load, "there was no answer within 5 s")
    assert trio.current_time() - began == pytest.approx(5.0)


async def test_a_loader_that_fails_while_it_is_given_up_counts_as_unavailable(autojump_clock: MockClock) -> None:
    async def load() -> str:
        try:
            await trio.sleep_forever()
        finally:
            raise RuntimeError("while closing")
        return "never"

    await expect_defect(load, "RuntimeError: while closing")


async def test_an_answer_just_in_time_counts(autojump_clock: MockClock) -> None:
    async def load() -> str:
        await trio.sleep(4.9)
        return "late"

    assert (await begin(made("a/x", "", load=load))).baseline == "a/x is late"


async def test_a_value_that_the_wire_cannot_carry_counts_as_unavailable() -> None:
    async def load() -> Any:
        return {"big": float("inf")}

    anything: Codec[Any] = Codec(lambda value: value, lambda value: value)
    await expect_defect(load, "ValueError: the value cannot be stored: it holds a number that is not finite", anything)


async def test_a_codec_that_reads_back_another_value_counts_as_unavailable() -> None:
    async def load() -> str:
        return "2"

    forgetful: Codec[Any] = Codec(lambda value: value, lambda _: "something else")
    await expect_defect(load, "ValueError: the codec reads back another value than it wrote", forgetful)


async def test_a_defect_blocks_the_first_baseline_with_its_reason() -> None:
    async def load() -> str:
        raise LookupError

    with capture_logs():
        assert await made("a/x", "", load=load).initialize(OBSERVING) == Blocked(reasons={"a/x": "LookupError"})


async def test_an_expected_unavailability_is_no_defect() -> None:
    told: list[SourceDefect] = []
    with capture_logs() as logs:
        await made("a/x", "", load=unavailable).initialize(Observing(diagnose=told.append))
    assert (told, logs) == ([], [])


async def test_sources_are_observed_at_the_same_time() -> None:
    here, there = trio.Event(), trio.Event()

    async def one() -> str:
        here.set()
        await there.wait()
        return "1"

    async def two() -> str:
        there.set()
        await here.wait()
        return "2"

    with trio.fail_after(2):
        assert (await begin(made("a/x", "", load=one), made("b/x", "", load=two))).baseline == "a/x is 1\n\nb/x is 2"


async def test_a_cancelled_boundary_cancels_its_loaders() -> None:
    ended: list[str] = []

    async def load() -> str:
        try:
            await trio.sleep_forever()
        finally:
            ended.append("cancelled")
        return "never"

    async with trio.open_nursery() as nursery:
        nursery.start_soon(made("a/x", "", load=load).initialize, OBSERVING)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert ended == ["cancelled"]


# --- properties ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Situation:
    """One key at a boundary: what is stored, what its source (if there is one) answers, and after how long."""

    key: str
    stored: int | None
    decodable: bool
    farewell: bool
    answer: int | Literal["unavailable", "raises", "silent", "absent"]
    removable: bool
    delay: int

    @property
    def entry(self) -> SnapshotEntry | None:
        if self.stored is None:
            return None
        return entry(self.stored if self.decodable else "?", f"bye {self.key}" if self.farewell else None)


KEYS = ("e/one", "d/two", "c/three", "b/four", "a/five")

ANSWERS = (0, 0, 1, 1, "unavailable", "raises", "silent", "absent")


def situation(key: str) -> st.SearchStrategy[Situation]:
    return st.builds(
        Situation,
        key=st.just(key),
        stored=st.sampled_from((None, 0, 1)),
        decodable=st.sampled_from((True, True, True, True, False)),
        farewell=st.sampled_from((True, True, True, False)),
        answer=st.sampled_from(ANSWERS),
        removable=st.booleans(),
        delay=st.integers(0, 4),
    )


situations = st.tuples(st.tuples(*map(situation, KEYS)), st.permutations(range(len(KEYS)))).map(
    lambda drawn: tuple(drawn[0][index] for index in drawn[1])
)
"""Each key in one situation, in any order of composition."""


class World:
    """The sources of some situations, and how often each was observed."""

    def __init__(self, situations: Sequence[Situation]) -> None:
        self.observed: dict[str, int] = {}
        self.context = SystemContext.combine(
            *(SystemContext.make(self._source(one)) for one in situations if one.answer != "absent")
        )
        self.stored = {one.key: one.entry for one in situations if one.entry is not None}

    def _source(self, one: Situation) -> ContextSource[int]:
        async def load() -> int | Unavailable:
            self.observed[one.key] = self.observed.get(one.key, 0) + 1
            await trio.sleep(one.delay)
            match one.answer:
                case "unavailable":
                    return Unavailable()
                case "raises":
                    raise OSError("broken")
                case "silent":
                    await trio.sleep_forever()
                case "absent":
                    raise AssertionError("there is no such source")
                case int():
                    return one.answer
            raise AssertionError("nobody comes back from forever")

        return ContextSource(
            key=one.key,
            codec=codec_of(int),
            load=load,
            baseline=lambda value: f"{one.key}={value}",
            update=lambda old, new: f"{one.key}:{old}>{new}",
            removed=(lambda _: f"bye {one.key}") if one.removable else None,
        )


def under_virtual_time(work: Callable[[], Awaitable[T]]) -> T:
    async def main() -> T:
        with capture_logs():
            return await work()

    return trio.run(main, clock=MockClock(autojump_threshold=0))


def expected(situations: Sequence[Situation]) -> str:
    """The outcome by the rules, in words: what kind, and the exact text or the keys that block."""
    sources = [one for one in situations if one.answer != "absent"]
    answered = [one for one in sources if isinstance(one.answer, int)]
    gone = sorted((one for one in situations if one.answer == "absent" and one.stored is not None), key=lambda one: one.key)
    undecodable = [one for one in answered if one.stored is not None and not one.decodable]
    if undecodable or any(not one.farewell for one in gone):
        missing = [one.key for one in sources if not isinstance(one.answer, int) and one.stored is not None]
        if missing:
            return f"blocked {missing}"
        return f"ready {[f'{one.key}={one.answer}' for one in answered]}"
    texts = [
        f"{one.key}={one.answer}" if one.stored is None else f"{one.key}:{one.stored}>{one.answer}"
        for one in answered
        if one.stored != one.answer
    ]
    texts += [f"bye {one.key}" for one in gone]
    return f"updated {texts}" if texts else "unchanged"


def in_words(outcome: object) -> str:
    match outcome:
        case Unchanged():
            return "unchanged"
        case Updated(text=text):
            return f"updated {text.split(chr(10) * 2)}"
        case ReplacementReady(baseline=baseline):
            return f"ready {baseline.split(chr(10) * 2) if baseline else []}"
        case ReplacementBlocked() as blocked:
            return f"blocked {list(blocked.keys)}"
        case _:
            raise AssertionError(f"a fifth outcome: {outcome!r}")


@settings(deadline=None, max_examples=60)
@given(situations)
def test_every_outcome_is_exactly_the_one_that_the_rules_name(situations: tuple[Situation, ...]) -> None:
    world = World(situations)
    outcome = under_virtual_time(lambda: world.context.reconcile(world.stored, OBSERVING))
    assert in_words(outcome) == expected(situations)


@settings(deadline=None, max_examples=60)
@given(situations)
def test_each_source_is_observed_exactly_once_by_every_interpreter(situations: tuple[Situation, ...]) -> None:
    once = {one.key: 1 for one in situations if one.answer != "absent"}
    interpreters: list[Callable[[World], Awaitable[object]]] = [
        lambda world: world.context.initialize(OBSERVING),
        lambda world: world.context.reconcile(world.stored, OBSERVING),
        lambda world: world.context.replace(world.stored, OBSERVING),
    ]
    for interpret in interpreters:
        world = World(situations)
        under_virtual_time(lambda interpret=interpret, world=world: interpret(world))
        assert world.observed == once


@settings(deadline=None, max_examples=60)
@given(situations, st.tuples(*(st.integers(0, 4) for _ in KEYS)))
def test_who_answers_first_changes_nothing(situations: tuple[Situation, ...], delays: tuple[int, ...]) -> None:
    other = tuple(replace(one, delay=delay) for one, delay in zip(situations, delays, strict=True))
    first, second = World(situations), World(other)
    for name in ("initialize", "reconcile", "replace"):
        outcomes = [under_virtual_time(lambda world=world, name=name: _interpret(world, name)) for world in (first, second)]
        assert msgspec.json.encode(outcomes[0]) == msgspec.json.encode(outcomes[1])


@settings(deadline=None, max_examples=60)
@given(situations)
def test_reconciling_again_is_unchanged(situations: tuple[Situation, ...]) -> None:
    async def twice() -> None:
        world = World(situations)
        match await world.context.reconcile(world.stored, OBSERVING):
            case Updated(snapshot=snapshot) | ReplacementReady(snapshot=snapshot):
                assert await world.context.reconcile(snapshot, OBSERVING) == Unchanged()
            case Unchanged():
                assert await world.context.reconcile(world.stored, OBSERVING) == Unchanged()
            case ReplacementBlocked(reasons=reasons, meanwhile=told):
                snapshot = world.stored if told is None else told.snapshot
                assert await world.context.reconcile(snapshot, OBSERVING) == ReplacementBlocked(reasons=reasons)

    under_virtual_time(twice)


@settings(deadline=None, max_examples=60)
@given(situations)
def test_a_snapshot_survives_both_codecs_and_advances_by_what_changed(situations: tuple[Situation, ...]) -> None:
    world = World(situations)
    outcome = under_virtual_time(lambda: world.context.reconcile(world.stored, OBSERVING))
    snapshot: Mapping[str, SnapshotEntry] = world.stored
    match outcome:
        case Updated() as updated:
            assert advance(world.stored, updated.entries, updated.dropped) == updated.snapshot
            snapshot = updated.snapshot
        case ReplacementReady(snapshot=fresh):
            snapshot = fresh
        case _:
            pass
    assert decode_snapshot(msgspec.json.decode(msgspec.json.encode(snapshot))) == snapshot
    assert decode_snapshot(msgspec.msgpack.decode(msgspec.msgpack.encode(snapshot))) == snapshot


@given(st.dates())
def test_what_a_codec_stores_it_reads_back(day: date) -> None:
    codec = codec_of(date)
    assert codec.stored(day) == day.isoformat()
    assert codec.decode(codec.stored(day)) == day


async def _interpret(world: World, name: str) -> object:
    match name:
        case "initialize":
            return await world.context.initialize(OBSERVING)
        case "reconcile":
            return await world.context.reconcile(world.stored, OBSERVING)
        case _:
            return await world.context.replace(world.stored, OBSERVING)
