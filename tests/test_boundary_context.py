"""The System Context at Safe Provider-Turn Boundaries: epochs, updates, what blocks, and what is sent byte for byte.

Long, because every way through a boundary is told with the same sources.
"""

import dataclasses
import json
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import apsw
import pytest
import trio

from steerway import ContextSource, Location, SystemContext, Unavailable, codec_of
from steerway.actors.blocking import Threads
from steerway.actors.configuration import Agent, PermissionRule
from steerway.actors.context.source import ContextKeyError
from steerway.actors.session.history import History
from steerway.protocol.values import (
    CONTEXT_INVALID,
    CONTEXT_UNAVAILABLE,
    CompletedOutcome,
    ContextUpdated,
    EpochStarted,
    FailedOutcome,
    PromptPromoted,
    ServerDiagnostic,
    SyntheticMessage,
    SystemMessage,
    ToolSucceeded,
)
from steerway.storage.history import Stretch
from support.answers import answer, status, text, tool_call
from support.house import OTHER, Ticks, baseline, configuration, open_house, said, scripted_house
from support.provider import open_provider
from support.tools import HeldTool


class Fact:
    """A Context Source whose value the test sets; None is unavailable, an exception is raised."""

    def __init__(self, key: str = "acme/fact", value: Any = "one", *, removable: bool = True) -> None:
        self.value = value
        self.loads = 0
        removed: Callable[[str], str] | None = (lambda _: f"{key} is gone") if removable else None
        self.source = ContextSource(
            key=key,
            codec=codec_of(str),
            load=self._load,
            baseline=lambda value: f"{key} is {value}",
            update=lambda _, value: f"{key} is now {value}",
            removed=removed,
        )

    async def _load(self) -> str | Unavailable:
        self.loads += 1
        if isinstance(self.value, Exception):
            raise self.value
        return Unavailable("not now") if self.value is None else self.value


def same_prefix(requests: Any) -> bool:
    """Whether each request's messages begin with those of the one before it, as they were sent."""
    sent = [json.dumps(list(request.messages))[:-1] for request in requests]
    return all(later.startswith(earlier) for earlier, later in pairwise(sent))


async def test_the_first_turn_starts_an_epoch_before_it_promotes(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("Say please.", encoding="utf-8")
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        await house.ask(session, "Hello")
        (epoch,) = await house.data(session, EpochStarted)
        types = [event.type for event in await house.events(session)]
        assert types.index(EpochStarted.type) < types.index(PromptPromoted.type)
        assert epoch.reason == "initial"
        assert baseline(house.provider.requests[0]) == epoch.baseline
        assert epoch.baseline.index("Today's date is") < epoch.baseline.index("You work in this environment")
        assert "Say please." in epoch.baseline
        assert sorted(epoch.snapshot) == ["core/date", "core/environment", "core/instructions", "core/skill-guidance"]


async def test_the_agents_text_follows_the_baseline_as_its_own_part(tmp_path: Path) -> None:
    async with open_provider() as provider:
        settings = configuration(provider)
        settings.agents["build"] = Agent(system="Be brief.")
        async with open_house(provider, tmp_path, settings=settings) as house:
            session = await house.session()
            await house.ask(session, "Hello")
            shown = await house.sessions.provider_context(session)
            assert shown.request is not None
            assert shown.epoch is not None
            assert shown.request.system == (shown.epoch.baseline, "Be brief.")


async def test_a_changed_source_is_told_once_behind_the_promoted_message(tmp_path: Path) -> None:
    instructions = tmp_path / "AGENTS.md"
    instructions.write_text("Say please.", encoding="utf-8")
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        await house.ask(session, "one")
        instructions.write_text("Say thanks.", encoding="utf-8")
        await house.ask(session, "two")
        await house.ask(session, "three")
        first, second, third = house.provider.requests
        assert baseline(first) == baseline(second) == baseline(third)
        told = [text for _, text in said(second) if "<system-update>" in text]
        assert len(told) == 1
        assert "Say thanks." in told[0]
        assert [line for _, line in said(second)][-2:] == ["two", told[0]]
        assert [text for _, text in said(third) if "<system-update>" in text] == told
        assert same_prefix(house.provider.requests)
        (message,) = [message for message in await house.history(session) if isinstance(message, SystemMessage)]
        (updated,) = await house.data(session, ContextUpdated)
        assert message.text == updated.text
        assert list(updated.entries) == ["core/instructions"]


async def test_changes_of_several_sources_are_one_message(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        one, other = Fact("acme/one"), Fact("acme/other")
        house.runtime.context.register(other.source)
        house.runtime.context.register(one.source)
        session = await house.session()
        await house.ask(session, "Hello")
        one.value = other.value = "two"
        await house.ask(session, "Again")
        (updated,) = await house.data(session, ContextUpdated)
        assert updated.text == "acme/one is now two\n\nacme/other is now two"
        assert one.loads == other.loads == 2


async def test_an_unavailable_source_blocks_the_first_turn_and_keeps_the_input(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        fact = Fact(value=None)
        house.runtime.context.register(fact.source)
        session = await house.session()
        receipt = await house.sessions.prompt(session, "Hello")
        await house.sessions.wait(session)
        outcome = (await house.sessions.get(session)).last_outcome
        assert isinstance(outcome, FailedOutcome)
        assert outcome.error.type == CONTEXT_UNAVAILABLE
        assert outcome.error.fields == {"keys": ["acme/fact"]}
        assert await house.pending(session) == [receipt.id]
        assert await house.data(session, EpochStarted) == []
        assert house.provider.requests == []
        shown = await house.sessions.provider_context(session)
        assert shown.unavailable == ("acme/fact",)
        assert shown.error is not None
        assert shown.error.type == CONTEXT_UNAVAILABLE
        fact.value = "one"
        assert await house.sessions.resume(session) == CompletedOutcome()
        assert "acme/fact is one" in baseline(house.provider.requests[0])
        assert await house.pending(session) == []


async def test_a_source_that_raises_is_unavailable_and_operators_hear_of_it(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        fact = Fact()
        house.runtime.context.register(fact.source)
        session = await house.session()
        await house.ask(session, "Hello")
        watch = await house.watch()
        fact.value = RuntimeError("broken pipe")
        assert await house.ask(session, "Again") == CompletedOutcome()
        diagnostic = await watch.until(ServerDiagnostic)
        assert diagnostic.name == "context-unavailable"
        assert "acme/fact" in diagnostic.message
        assert await house.data(session, ContextUpdated) == []


async def test_a_new_source_is_introduced_once_and_a_closed_one_is_told_to_be_gone(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        await house.ask(session, "one")
        contribution = house.runtime.context.register(Fact().source)
        await house.ask(session, "two")
        await house.ask(session, "three")
        contribution.close()
        await house.ask(session, "four")
        await house.ask(session, "five")
        updates = await house.data(session, ContextUpdated)
        assert [updated.text for updated in updates] == ["acme/fact is one", "acme/fact is gone"]
        assert updates[1].dropped == ("acme/fact",)


async def test_a_source_gone_without_a_removal_text_begins_a_new_epoch(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        fact, other = Fact(removable=False), Fact("acme/other")
        contribution = house.runtime.context.register(fact.source)
        house.runtime.context.register(other.source)
        session = await house.session()
        await house.ask(session, "one")
        other.value = "two"
        await house.ask(session, "two")
        contribution.close()
        await house.ask(session, "three")
        epochs = await house.data(session, EpochStarted)
        assert [epoch.reason for epoch in epochs] == ["initial", "transition"]
        last = house.provider.requests[-1]
        assert baseline(last) == epochs[1].baseline
        assert "acme/other is two" in epochs[1].baseline
        assert not [text for _, text in said(last) if "<system-update>" in text]


async def test_a_replacement_waits_while_admitted_context_is_unavailable(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        fact, other = Fact(removable=False), Fact("acme/other")
        third = Fact("acme/third")
        contribution = house.runtime.context.register(fact.source)
        house.runtime.context.register(other.source)
        house.runtime.context.register(third.source)
        session = await house.session()
        await house.ask(session, "one")
        contribution.close()
        other.value = None
        third.value = "two"
        assert await house.ask(session, "two") == CompletedOutcome()
        first, second = house.provider.requests
        assert baseline(first) == baseline(second)
        assert len(await house.data(session, EpochStarted)) == 1
        assert [update.text for update in await house.data(session, ContextUpdated)] == ["acme/third is now two"]
        assert same_prefix(house.provider.requests)
        other.value = "one"
        await house.ask(session, "three")
        assert len(await house.data(session, EpochStarted)) == 2


async def test_a_stale_epoch_that_cannot_be_replaced_yet_still_gets_the_updates(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        lost, other = Fact(), Fact("acme/other")
        house.runtime.context.register(lost.source)
        house.runtime.context.register(other.source)
        session = await house.session()
        await house.ask(session, "one")
        await house.sessions.compact(session)
        await house.sessions.wait(session)
        lost.value, other.value = None, "two"
        assert await house.ask(session, "two") == CompletedOutcome()
        first, blocked = house.provider.requests[0], house.provider.requests[-1]
        assert baseline(first) == baseline(blocked)
        assert "acme/other is now two" in said(blocked)[-1][1]
        lost.value = "one"
        assert await house.ask(session, "three") == CompletedOutcome()
        epochs = await house.data(session, EpochStarted)
        assert [epoch.reason for epoch in epochs] == ["initial", "compaction"]
        assert baseline(house.provider.requests[-1]) == epochs[1].baseline
        assert "acme/other is two" in epochs[1].baseline
        assert not [text for _, text in said(house.provider.requests[-1]) if "is now" in text]


async def test_an_update_survives_a_failing_provider_and_is_sent_again_unchanged(tmp_path: Path) -> None:
    async with scripted_house(tmp_path, answer(text("one")), status(400), answer(text("three"))) as house:
        fact = Fact()
        house.runtime.context.register(fact.source)
        session = await house.session()
        await house.ask(session, "one")
        fact.value = "two"
        assert isinstance(await house.ask(session, "two"), FailedOutcome)
        await house.ask(session, "three")
        assert len(await house.data(session, ContextUpdated)) == 1
        assert same_prefix(house.provider.requests)


async def test_the_baseline_is_the_stored_one_after_a_restart(tmp_path: Path) -> None:
    ticks = Ticks()
    async with open_provider() as provider:
        async with open_house(provider, tmp_path, ticks=ticks) as house:
            session = await house.session()
            house.runtime.context.register(Fact().source)
            await house.ask(session, "one")
        async with open_house(provider, tmp_path, ticks=ticks) as house:
            house.runtime.context.register(Fact(value="two").source)
            await house.ask(session, "two")
            assert len(await house.data(session, EpochStarted)) == 1
        first, second = provider.requests
        assert baseline(first) == baseline(second)
        assert "acme/fact is now two" in said(second)[-1][1]


async def test_the_prefix_is_the_same_bytes_over_turns_restarts_switches_and_changes(tmp_path: Path) -> None:
    ticks, fact = Ticks(), Fact()
    async with open_provider() as provider:
        session: Any = None
        epochs: list[Any] = []
        for run in range(2):
            async with open_house(provider, tmp_path, ticks=ticks) as house:
                house.runtime.context.register(fact.source)
                session = session or await house.session()
                for turn in range(25):
                    if turn == 10:
                        await house.sessions.switch_model(session, OTHER)
                    if turn % 6 == 5:
                        fact.value = f"{run}.{turn}"
                    await house.ask(session, f"turn {run}.{turn}")
                epochs = await house.data(session, EpochStarted)
        assert len(provider.requests) == 50
        assert same_prefix(provider.requests)
        assert len(epochs) == 1
        start = provider.requests[0].body.split(b'"messages":', 1)[1].split(b'"role":"user"', 1)[0]
        assert all(request.body.split(b'"messages":', 1)[1].startswith(start) for request in provider.requests)


async def test_an_agent_switch_keeps_the_baseline_and_tells_the_new_skills(tmp_path: Path) -> None:
    for name in ("baking", "brewing"):
        folder = tmp_path / ".steerway" / "skills" / name
        folder.mkdir(parents=True)
        folder.joinpath("SKILL.md").write_text(f"---\nname: {name}\ndescription: About {name}.\n---\nThe way of {name}.")
    async with open_provider(
        answer(text("one")), answer(tool_call("skill", {"name": "baking"})), answer(text("two"))
    ) as provider:
        settings = configuration(provider)
        settings.agents["baker"] = Agent(permissions=(PermissionRule(action="skill", resource="brewing", effect="deny"),))
        async with open_house(provider, tmp_path, settings=settings) as house:
            session = await house.session()
            await house.ask(session, "one")
            await house.sessions.switch_agent(session, "baker")
            await house.ask(session, "two")
            first, second, third = provider.requests
            assert baseline(first) == baseline(second)
            assert "brewing" in baseline(first)
            (update,) = [text for _, text in said(second) if "<system-update>" in text]
            assert "baking" in update
            assert "brewing" not in update
            assert "The way of baking." in said(third)[-1][1]
            assert "The way of" not in baseline(first)


async def test_nearby_instructions_are_told_once_behind_the_results_that_found_them(tmp_path: Path) -> None:
    place = tmp_path / "place"
    deep = place / "lib" / "deep"
    deep.mkdir(parents=True)
    (place / "lib" / "AGENTS.md").write_text("Lib rules.", encoding="utf-8")
    (place / "AGENTS.md").write_text("Root rules.", encoding="utf-8")
    (deep / "code.py").write_text("pass", encoding="utf-8")
    read = answer(tool_call("read", {"path": "lib/deep/code.py"}))
    ticks = Ticks()
    again = answer(tool_call("read", {"path": "lib/deep/code.py"}))
    async with open_provider(read, answer(text("done")), again, answer(text("done"))) as provider:
        async with open_house(provider, tmp_path, ticks=ticks) as house:
            fact = Fact()
            house.runtime.context.register(fact.source)
            session = await house.session(location=Location(directory=str(place)))
            await house.admit(session, "Look")
            await house.sessions.resume(session)
            roles = said(provider.requests[1])
            assert [role for role, _ in roles] == ["user", "assistant", "tool", "user"]
            assert "Lib rules." in roles[-1][1]
            assert "Root rules." not in roles[-1][1]
        async with open_house(provider, tmp_path, ticks=ticks) as house:
            house.runtime.context.register(Fact(value="two").source)
            await house.ask(session, "Once more")
            found = [one for one in await house.history(session) if isinstance(one, SyntheticMessage)]
            assert [one.paths for one in found] == [(str(place / "lib" / "AGENTS.md"),)]
        assert same_prefix(provider.requests)


async def test_a_stored_snapshot_that_is_none_fails_the_boundary_and_sends_nothing(tmp_path: Path) -> None:
    ticks = Ticks()
    async with open_provider() as provider:
        async with open_house(provider, tmp_path, ticks=ticks) as house:
            session = await house.session()
            await house.ask(session, "one")
        spoil(tmp_path / "sessions.db", """UPDATE context_epoch SET snapshot = '["nonsense"]'""")
        async with open_house(provider, tmp_path, ticks=ticks, check=False) as house:
            outcome = await house.ask(session, "two")
            assert isinstance(outcome, FailedOutcome)
            assert outcome.error.type == CONTEXT_INVALID
            assert len(provider.requests) == 1
            assert len(await house.pending(session)) == 1


async def test_a_key_of_two_sources_and_an_empty_text_fail_the_boundary_by_name(tmp_path: Path) -> None:
    fact = Fact("acme/twice")
    blank = Fact("acme/blank", value=" ")
    blank.source = dataclasses.replace(blank.source, baseline=str)

    def failing(value: str) -> str:
        return value[10]

    broken = Fact("acme/broken")
    broken.source = dataclasses.replace(broken.source, baseline=failing)

    async def again(_: Location) -> SystemContext:
        await trio.lowlevel.checkpoint()
        return SystemContext.make(fact.source) if twice else SystemContext.empty

    twice = True
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        house.runtime.context.produce("acme/again", again)
        for source in (fact.source, blank.source, broken.source):
            twice = source is fact.source
            with house.runtime.context.register(source):
                outcome = await house.ask(session, "Hello")
                assert isinstance(outcome, FailedOutcome)
                assert outcome.error.type == CONTEXT_INVALID
                assert source.key in outcome.error.message
                assert (await house.sessions.provider_context(session)).error == outcome.error
        assert house.provider.requests == []
        assert await house.ask(session, "Hello again") == CompletedOutcome()
        assert len(said(house.provider.requests[-1])) == 4


async def test_a_source_of_the_runtimes_own_is_refused_at_registration_and_by_name_at_the_boundary(tmp_path: Path) -> None:
    async def produce(_: Location) -> SystemContext:
        await trio.lowlevel.checkpoint()
        return SystemContext.make(Fact("api/branch").source)

    async with scripted_house(tmp_path) as house:
        with pytest.raises(ContextKeyError, match="reserved"):
            house.runtime.context.register(Fact("core/date").source)
        session = await house.session()
        with house.runtime.context.produce("acme/all", produce):
            outcome = await house.ask(session, "Hello")
            assert isinstance(outcome, FailedOutcome)
            assert (outcome.error.type, "'api/branch' is reserved" in outcome.error.message) == (CONTEXT_INVALID, True)


async def test_a_value_that_cannot_be_decoded_any_more_begins_a_new_epoch(tmp_path: Path) -> None:
    ticks = Ticks()
    async with open_provider() as provider:
        async with open_house(provider, tmp_path, ticks=ticks) as house:
            house.runtime.context.register(Fact().source)
            session = await house.session()
            await house.ask(session, "one")
        spoil(tmp_path / "sessions.db", """UPDATE context_epoch SET snapshot = replace(snapshot, '"one"', '[1]')""")
        async with open_house(provider, tmp_path, ticks=ticks) as house:
            house.runtime.context.register(Fact().source)
            shown = await house.sessions.provider_context(session)
            assert [one.state for one in shown.sources if one.key == "acme/fact"] == ["broken"]
            await house.ask(session, "two")
            assert [epoch.reason for epoch in await house.data(session, EpochStarted)] == ["initial", "transition"]


async def test_a_fork_keeps_its_origins_baseline(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        fact = Fact()
        house.runtime.context.register(fact.source)
        session = await house.session()
        await house.ask(session, "one")
        fact.value = "two"
        await house.ask(session, "two")
        child = (await house.sessions.fork(session)).id
        await house.ask(child, "three")
        first, second, third = house.provider.requests
        assert baseline(first) == baseline(third)
        assert same_prefix((first, second, third))


async def test_context_entries_are_told_changed_and_removed(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        await house.runtime.context.put(session, "ticket", {"id": 7})
        await house.ask(session, "one")
        assert "Context 'ticket', set by the program that runs this session:\n{\"id\":7}" in baseline(
            house.provider.requests[0]
        )
        await house.runtime.context.put(session, "ticket", None)
        (entry,) = await house.runtime.context.list(session)
        assert (entry.key, entry.value) == ("ticket", None)
        await house.ask(session, "two")
        await house.runtime.context.remove(session, "ticket")
        await house.runtime.context.remove(session, "ticket")
        await house.ask(session, "three")
        assert [updated.text for updated in await house.data(session, ContextUpdated)] == [
            "Context 'ticket' has changed. It is now:\nnull",
            "Context 'ticket' was removed. What it said no longer applies.",
        ]
        assert await house.runtime.context.list(session) == ()


async def test_provider_context_shows_the_request_of_the_next_turn_and_changes_nothing(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        fact = Fact()
        house.runtime.context.register(fact.source)
        session = await house.session()
        await house.ask(session, "one")
        fact.value = "two"
        await house.admit(session, "two")
        head = (await house.sessions.get(session)).head
        shown = await house.sessions.provider_context(session)
        assert (await house.sessions.get(session)).head == head
        assert [(one.key, one.state) for one in shown.sources if one.state != "unchanged"] == [("acme/fact", "changed")]
        assert shown.request is not None
        await house.sessions.resume(session)
        after = await house.sessions.provider_context(session)
        assert after.request is not None
        assert shown.request.system == after.request.system
        assert after.request.messages[: len(shown.request.messages)] == shown.request.messages
        assert len(after.request.messages) == len(shown.request.messages) + 1


@pytest.mark.parametrize("asked", ["nothing", "waiting", "answered"])
async def test_provider_context_of_much_is_made_outside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    """Nobody else is served while megabytes are made into a request, whether they are history or wait to become it."""
    places: list[bool] = []
    extend = History.extend

    def noted(history: History, stretch: Stretch) -> None:
        places.append(threading.current_thread() is threading.main_thread())
        extend(history, stretch)

    async with open_provider() as provider, open_house(provider, tmp_path, blocking=Threads()) as house:
        session = await house.session()
        if asked == "waiting":
            await house.admit(session, "x" * 2_000_000)
        elif asked == "answered":
            await house.ask(session, "x" * 2_000_000)
        monkeypatch.setattr(History, "extend", noted)
        shown = await house.sessions.provider_context(session)
        assert shown.request is not None
    assert places == [asked == "nothing"]


async def test_provider_context_does_not_tell_what_was_told_before_a_compaction(tmp_path: Path) -> None:
    """Nor does the boundary."""
    deep = tmp_path / "lib"
    deep.mkdir()
    (deep / "AGENTS.md").write_text("Lib rules.", encoding="utf-8")
    (deep / "code.py").write_text("pass", encoding="utf-8")
    read = tool_call("read", {"path": "lib/code.py"})
    tool = HeldTool("hold")
    script = (answer(read), answer(text("done")), answer(text("Summary.")), answer(read, tool_call("hold", {"value": "x"})))
    async with scripted_house(tmp_path, *script, tools=[tool.tool]) as house:
        session = await house.session()
        await house.ask(session, "Look")
        await house.sessions.compact(session)
        await house.sessions.wait(session)
        watch = await house.watch()
        await house.sessions.prompt(session, "Look again")
        await tool.wait_started()
        await watch.until(ToolSucceeded)
        shown = await house.sessions.provider_context(session)
        assert shown.request is not None
        assert "Lib rules." not in str(shown.request.messages)
        tool.release()
        await house.sessions.wait(session)
        found = [one for one in await house.history(session) if isinstance(one, SyntheticMessage) and one.paths]
        assert len(found) == 1


def spoil(path: Path, statement: str) -> None:
    """Change a store behind its runtime's back."""
    connection: Any = apsw.Connection(str(path))
    connection.execute(statement)
    connection.close()
