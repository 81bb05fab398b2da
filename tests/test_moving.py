"""Moving a Session: an item of the inbox that changes the location and ends the Context Epoch."""

import shutil
from pathlib import Path

import pytest
from trio.testing import wait_all_tasks_blocked

from steerway import InvalidRequestError, Location, SessionNotFoundError
from steerway.protocol.values import (
    CompletedOutcome,
    ContextUpdated,
    ControlAdmitted,
    ControlWithdrawn,
    EpochStarted,
    MoveControl,
    PromptPromoted,
    SessionId,
    SessionMoved,
)
from support.answers import answer, hold, text, tool_call
from support.house import baseline, said, scripted_house


def make_place(folder: Path, name: str) -> Location:
    """A directory of its own with instructions that name it."""
    place = folder / name
    place.mkdir()
    (place / "AGENTS.md").write_text(f"Rules of {name}.", encoding="utf-8")
    return Location(directory=str(place))


def make_part(place: Location) -> None:
    """A folder of a place with a file, and instructions beside it."""
    folder = Path(place.directory, "part")
    folder.mkdir()
    (folder / "AGENTS.md").write_text("Rules near the file.", encoding="utf-8")
    (folder / "notes.txt").write_text("A note.", encoding="utf-8")


async def test_a_moved_session_begins_a_complete_epoch_where_it_went(tmp_path: Path) -> None:
    here, there = make_place(tmp_path, "here"), make_place(tmp_path, "there")
    async with scripted_house(tmp_path) as house:
        session = await house.session(location=here)
        await house.ask(session, "one")
        item = await house.sessions.move(session, there)
        assert isinstance(item, MoveControl)
        await house.sessions.wait(session)
        assert (await house.sessions.get(session)).location == there
        assert await house.data(session, SessionMoved) == [SessionMoved(message_id=item.id, location=there, previous=here)]
        await house.ask(session, "two")
        first, second = house.provider.requests
        assert "Rules of here." in baseline(first)
        assert "Rules of there." in baseline(second)
        assert "Rules of here." not in baseline(second)
        assert [line for _, line in said(second)] == ["one", "Done.", "two"]
        assert len(await house.data(session, EpochStarted)) == 2
        assert await house.data(session, ContextUpdated) == []


async def test_input_behind_a_move_waits_for_it_and_input_before_does_not(tmp_path: Path) -> None:
    here, there = make_place(tmp_path, "here"), make_place(tmp_path, "there")
    held = hold()
    async with scripted_house(tmp_path, answer(held, tool_call("date", {}))) as house:
        session = await house.session(location=here)
        await house.sessions.prompt(session, "one")
        await held.reached.wait()
        await house.sessions.prompt(session, "before")
        item = await house.sessions.move(session, there)
        await house.sessions.prompt(session, "behind")
        assert [type(one) for one in await house.sessions.pending(session)][1] is MoveControl
        held.release()
        await house.sessions.wait(session)
        order = await house.data(session, PromptPromoted, SessionMoved)
        told = [data.prompt.text if isinstance(data, PromptPromoted) else data.message_id for data in order]
        assert told == ["one", "before", item.id, "behind"]
        assert "Rules of there." in baseline(house.provider.requests[-1])


async def test_a_move_leaves_a_place_that_is_gone(tmp_path: Path) -> None:
    here, there = make_place(tmp_path, "here"), make_place(tmp_path, "there")
    async with scripted_house(tmp_path) as house:
        session = await house.session(location=here)
        shutil.rmtree(here.directory)
        await house.sessions.move(session, there)
        await house.sessions.wait(session)
        assert await house.ask(session, "one") == CompletedOutcome()


async def test_the_same_move_twice_is_one_item_and_a_withdrawn_one_moves_nothing(tmp_path: Path) -> None:
    there = make_place(tmp_path, "there")
    held = hold()
    async with scripted_house(tmp_path, answer(held, text("Done."))) as house:
        session = await house.session()
        await house.sessions.prompt(session, "one")
        await held.reached.wait()
        item = await house.sessions.move(session, there)
        assert await house.sessions.move(session, there) == item
        await house.sessions.withdraw(session, item.id)
        held.release()
        await house.sessions.wait(session)
        assert (await house.sessions.get(session)).location.directory == str(tmp_path)
        assert len(await house.data(session, ControlAdmitted, ControlWithdrawn)) == 2
        assert await house.data(session, SessionMoved) == []


async def test_a_move_back_behind_another_one_is_an_item_of_its_own(tmp_path: Path) -> None:
    here, there = make_place(tmp_path, "here"), make_place(tmp_path, "there")
    held = hold()
    async with scripted_house(tmp_path, answer(held, text("Done."))) as house:
        session = await house.session()
        await house.sessions.prompt(session, "one")
        await held.reached.wait()
        items = [await house.sessions.move(session, place) for place in (here, there, here)]
        assert len({item.id for item in items}) == 3
        assert await house.sessions.move(session, here) == items[-1]
        held.release()
        await house.sessions.wait(session)
        assert (await house.sessions.get(session)).location == here


async def test_what_was_read_before_a_move_finds_no_instructions_in_the_new_place(tmp_path: Path) -> None:
    places = here, there = make_place(tmp_path, "here"), make_place(tmp_path, "there")
    for place in places:
        make_part(place)
    held = hold()
    async with scripted_house(tmp_path, answer(held, tool_call("read", {"path": "part/notes.txt"}))) as house:
        session = await house.session(location=here)
        await house.sessions.prompt(session, "one")
        await held.reached.wait()
        await house.sessions.move(session, there)
        held.release()
        await house.sessions.wait(session)
        assert [role for role, _ in said(house.provider.requests[-1])] == ["user", "assistant", "tool"]
        house.provider.script(answer(tool_call("read", {"path": "part/notes.txt"})))
        await house.ask(session, "two")
        assert "Rules near the file." in said(house.provider.requests[-1])[-1][1]


async def test_a_move_needs_a_session_and_an_existing_absolute_directory(tmp_path: Path) -> None:
    async with scripted_house(tmp_path) as house:
        session = await house.session()
        for directory in ("relative", str(tmp_path / "nowhere")):
            with pytest.raises(InvalidRequestError) as refused:
                await house.sessions.move(session, Location(directory=directory))
            assert refused.value.fields["field"] == "location.directory"
        with pytest.raises(SessionNotFoundError):
            await house.sessions.move(SessionId("ses_nobody"), Location(directory=str(tmp_path)))


async def test_a_move_that_waits_is_done_after_a_restart(tmp_path: Path) -> None:
    there = make_place(tmp_path, "there")
    held = hold()
    async with scripted_house(tmp_path, answer(held, text("Done."))) as house:
        session = await house.session()
        await house.sessions.prompt(session, "one")
        await held.reached.wait()
        await house.sessions.move(session, there)
        await wait_all_tasks_blocked()
        await house.sessions.interrupt(session)
        await house.sessions.wait(session)
        assert await house.data(session, SessionMoved) == []
        held.release()
    async with scripted_house(tmp_path) as house:
        assert [type(one) for one in await house.sessions.pending(session)] == [MoveControl]
        await house.ask(session, "two")
        assert (await house.sessions.get(session)).location == there
        assert "Rules of there." in baseline(house.provider.requests[-1])


async def test_a_fork_works_where_its_origin_worked_at_the_end_of_what_was_copied(tmp_path: Path) -> None:
    here, there = make_place(tmp_path, "here"), make_place(tmp_path, "there")
    async with scripted_house(tmp_path) as house:
        session = await house.session(location=here)
        await house.ask(session, "one")
        await house.sessions.move(session, there)
        await house.ask(session, "two")
        child = await house.sessions.fork(session)
        assert child.location == there
        await house.ask(child.id, "three")
        assert baseline(house.provider.requests[-1]) == baseline(house.provider.requests[-2])
