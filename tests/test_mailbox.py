"""Mailboxes and answers: bounded, never waiting, and nobody left without an answer."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from steerway.actors.mailbox import Answer, Letter, Mailbox, refused, settled
from steerway.protocol.values.errors import ActorStopped, OverloadedError, SessionNotFoundError


class Ask(Letter[int]):
    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def box(capacity: int = 3) -> Mailbox[Ask]:
    return Mailbox(capacity, "the box")


async def test_letters_are_taken_in_the_order_they_were_posted() -> None:
    mailbox = box()
    for number in range(3):
        mailbox.post(Ask(number))
    assert [(await mailbox.take()).number for _ in range(3)] == [0, 1, 2]
    assert mailbox.take_nowait() is None


def test_a_full_mailbox_refuses_and_keeps_what_it_has() -> None:
    mailbox = box(2)
    letters = [Ask(0), Ask(1)]
    for letter in letters:
        mailbox.post(letter)
    with pytest.raises(OverloadedError, match="2 letters waiting"):
        mailbox.post(Ask(2))
    assert [mailbox.take_nowait() for _ in range(3)] == [*letters, None]
    mailbox.post(Ask(3))
    found = mailbox.statistics()
    assert (found.waiting, found.capacity, found.peak) == (1, 2, 2)


def test_closing_answers_all_that_wait_and_refuses_the_rest() -> None:
    mailbox = box()
    waiting = [Ask(0), Ask(1)]
    for letter in waiting:
        mailbox.post(letter)
    mailbox.close()
    for letter in waiting:
        with pytest.raises(ActorStopped):
            letter.answer.result()
    with pytest.raises(ActorStopped, match="the box has ended"):
        mailbox.post(Ask(2))


def test_closing_with_a_reason_gives_that_to_everybody_and_the_first_reason_stands() -> None:
    mailbox = box()
    letter = Ask(0)
    mailbox.post(letter)
    mailbox.close(SessionNotFoundError("not here"))
    mailbox.close()
    with pytest.raises(SessionNotFoundError):
        letter.answer.result()
    with pytest.raises(SessionNotFoundError):
        mailbox.post(Ask(1))


async def test_an_abandoned_letter_is_not_taken() -> None:
    """Ruling A5: withdrawn only while it is still in the mailbox."""
    mailbox = box()
    gone, taken, wanted = Ask(0), Ask(1), Ask(2)
    mailbox.post(taken)
    assert (await mailbox.take()) is taken
    taken.answer.abandon()
    taken.answer.resolve(1)
    assert taken.answer.result() == 1
    mailbox.post(gone)
    mailbox.post(wanted)
    gone.answer.abandon()
    assert (await mailbox.take()) is wanted


async def test_a_cancelled_taker_loses_no_letter() -> None:
    mailbox = box()
    with trio.move_on_after(0):
        await mailbox.take()
    async with trio.open_nursery() as nursery:
        taken: list[Ask] = []

        async def take() -> None:
            taken.append(await mailbox.take())

        nursery.start_soon(take)
        await wait_all_tasks_blocked()
        letter = Ask(7)
        mailbox.post(letter)
    assert taken == [letter]


def test_the_first_settlement_of_an_answer_wins() -> None:
    answer: Answer[int] = Answer()
    answer.resolve(1)
    answer.resolve(2)
    answer.fail(ValueError("late"))
    assert answer.result() == 1
    assert answer.error is None
    failed: Answer[int] = Answer()
    failed.fail(ValueError("first"))
    failed.resolve(1)
    with pytest.raises(ValueError, match="first"):
        failed.result()


def test_callbacks_run_once_in_order_and_at_once_when_late() -> None:
    answer: Answer[int] = Answer()
    calls: list[str] = []
    answer.when_done(lambda done: calls.append(f"one {done.result()}"))
    answer.when_done(lambda done: calls.append(f"two {done.result()}"))
    assert calls == []
    answer.resolve(5)
    answer.resolve(6)
    answer.when_done(lambda done: calls.append(f"three {done.result()}"))
    assert calls == ["one 5", "two 5", "three 5"]


def test_an_answer_that_is_not_there_has_no_result() -> None:
    with pytest.raises(RuntimeError, match="not there yet"):
        Answer[int]().result()
    assert settled(3).result() == 3
    with pytest.raises(ValueError, match="no"):
        refused(ValueError("no")).result()


async def test_cancelling_a_wait_cancels_nothing_else() -> None:
    answer: Answer[int] = Answer()
    got: list[int] = []

    async def wait() -> None:
        got.append(await answer.wait())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        with trio.move_on_after(0):
            await answer.wait()
        await wait_all_tasks_blocked()
        answer.resolve(9)
    assert got == [9]
    assert not answer.abandoned
