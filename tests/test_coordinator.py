"""Who waits for a session's state to change, and how long they are remembered."""

import gc
import weakref
from typing import Any

import pytest
import trio

from steerway.actors.mailbox import Answer
from steerway.actors.session.coordinator import Coordinator
from steerway.actors.session.transitions import Input
from steerway.protocol.values import CompletedOutcome, Interrupted, Outcome


class Work:
    """A drain that never ends by itself."""

    def start(self, *, forced: bool) -> None:
        pass

    def cancel(self) -> None:
        pass

    def ended(self) -> Outcome:
        return CompletedOutcome()

    def soon(self, answer: Answer[Interrupted]) -> None:
        pass


class Remembered(Answer[Any]):
    __slots__ = ("__weakref__",)


@pytest.mark.parametrize(
    ("before", "given"),
    [
        ((Input.WAKE,), Input.WAIT),
        ((Input.WAKE,), Input.RESUME),
        ((Input.WAKE, Input.INTERRUPT), Input.RESUME),
        ((Input.WAKE,), Input.INTERRUPT),
    ],
    ids=["wait", "join", "join the next", "interrupt"],
)
async def test_whoever_has_given_up_is_forgotten_and_the_others_are_answered(before: tuple[Input, ...], given: Input) -> None:
    await trio.lowlevel.checkpoint()
    coordinator = Coordinator(Work())
    for step in before:
        coordinator.take(step, Answer())
    seen = weakref.WeakSet[Remembered]()
    for _ in range(50):
        impatient = Remembered()
        seen.add(impatient)
        coordinator.take(given, impatient)
        impatient.abandon()
        del impatient
    patient: Answer[Any] = Answer()
    coordinator.take(given, patient)
    gc.collect()
    assert len(seen) == 0
    coordinator.take(Input.AT_REST)
    if coordinator.working:
        coordinator.take(Input.AT_REST)
    assert patient.done
    assert patient.error is None
