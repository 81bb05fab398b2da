"""When a Session works, stops, and rests: one table, no surprises.

The two rules of the table:
1. A drain is the only worker, and there is at most one. It starts only through `START` or `START_FORCED`, and the session is
   idle only when it has ended and nothing was asked for meanwhile.
2. The doorbell is part of the state. `RUNG` means: somebody woke the session after the drain last read the inbox. The drain
   reads it (`LOOKED`) before it gives up ownership, so no wake is lost at the idle edge; a failed drain starts a successor only
   for a doorbell rung since (ruling A9). An interrupt drops the wakes before it; a wake during cleanup starts a successor.

An input that has no row in the table raises `IllegalTransition` and changes nothing.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class State(Enum):
    """What a session is doing. All of it is process-local; nothing durable says "running"."""

    IDLE = "idle"
    DRAINING = "draining"
    RUNG = "draining, doorbell rung"
    STOPPING = "stopping"
    STOPPING_RUNG = "stopping, doorbell rung"
    STOPPING_FORCED = "stopping, fresh run asked for"
    CLOSING = "closing"
    CLOSED = "closed"


class Input(Enum):
    """What can happen: letters (wake, resume, interrupt, wait, close) and what the drain reports."""

    WAKE = "wake"
    RESUME = "resume"
    INTERRUPT = "interrupt"
    WAIT = "wait"
    CLOSE = "close"
    LOOKED = "drain looked at the inbox"
    AT_REST = "drain found nothing to do"
    FAILED = "drain failed"
    STOPPED = "drain was interrupted"


class Effect(Enum):
    """What the actor does about it, in this order, without awaiting."""

    CONTINUE = "the drain looks again"
    CANCEL = "cancel the drain"
    SETTLE = "answer joiners and interrupters with the drain's outcome"
    START = "start a drain"
    START_FORCED = "start a drain that makes at least one provider turn"
    JOIN = "answer with the running drain's outcome"
    JOIN_NEXT = "answer with the next drain's outcome"
    DROP_NEXT = "those who wait for the next drain wait for this one"
    AWAIT_STOP = "answer once the drain is settled"
    AWAIT_IDLE = "answer once idle"
    ANSWER_NOTHING_RUNS = "answer that nothing was interrupted"
    ANSWER_IDLE = "answer those who wait for idleness"
    REFUSE = "answer that the runtime is stopping"


class Row(NamedTuple):
    """Where an input leads, and what is done on the way."""

    state: State
    effects: tuple[Effect, ...] = ()


class IllegalTransition(Exception):
    """The input cannot happen in this state; nothing was changed."""

    def __init__(self, state: State, given: Input) -> None:
        super().__init__(f"{given.value!r} cannot happen while {state.value}")
        self.state = state
        self.given = given


_E, _S = Effect, State

TABLE: dict[tuple[State, Input], Row] = {
    (State.IDLE, Input.WAKE): Row(_S.DRAINING, (_E.START,)),
    (State.IDLE, Input.RESUME): Row(_S.DRAINING, (_E.START_FORCED, _E.JOIN)),
    (State.IDLE, Input.INTERRUPT): Row(_S.IDLE, (_E.ANSWER_NOTHING_RUNS,)),
    (State.IDLE, Input.WAIT): Row(_S.IDLE, (_E.AWAIT_IDLE, _E.ANSWER_IDLE)),
    (State.IDLE, Input.CLOSE): Row(_S.CLOSED),
    (State.DRAINING, Input.WAKE): Row(_S.RUNG),
    (State.DRAINING, Input.RESUME): Row(_S.DRAINING, (_E.JOIN,)),
    (State.DRAINING, Input.INTERRUPT): Row(_S.STOPPING, (_E.AWAIT_STOP, _E.CANCEL)),
    (State.DRAINING, Input.WAIT): Row(_S.DRAINING, (_E.AWAIT_IDLE,)),
    (State.DRAINING, Input.CLOSE): Row(_S.CLOSING, (_E.CANCEL,)),
    (State.DRAINING, Input.LOOKED): Row(_S.DRAINING),
    (State.DRAINING, Input.AT_REST): Row(_S.IDLE, (_E.SETTLE, _E.ANSWER_IDLE)),
    (State.DRAINING, Input.FAILED): Row(_S.IDLE, (_E.SETTLE, _E.ANSWER_IDLE)),
    (State.DRAINING, Input.STOPPED): Row(_S.IDLE, (_E.SETTLE, _E.ANSWER_IDLE)),
    (State.RUNG, Input.WAKE): Row(_S.RUNG),
    (State.RUNG, Input.RESUME): Row(_S.RUNG, (_E.JOIN,)),
    (State.RUNG, Input.INTERRUPT): Row(_S.STOPPING, (_E.AWAIT_STOP, _E.CANCEL)),
    (State.RUNG, Input.WAIT): Row(_S.RUNG, (_E.AWAIT_IDLE,)),
    (State.RUNG, Input.CLOSE): Row(_S.CLOSING, (_E.CANCEL,)),
    (State.RUNG, Input.LOOKED): Row(_S.DRAINING),
    (State.RUNG, Input.AT_REST): Row(_S.DRAINING, (_E.CONTINUE,)),
    (State.RUNG, Input.FAILED): Row(_S.DRAINING, (_E.SETTLE, _E.START)),
    (State.RUNG, Input.STOPPED): Row(_S.DRAINING, (_E.SETTLE, _E.START)),
    (State.STOPPING, Input.WAKE): Row(_S.STOPPING_RUNG),
    (State.STOPPING, Input.RESUME): Row(_S.STOPPING_FORCED, (_E.JOIN_NEXT,)),
    (State.STOPPING, Input.INTERRUPT): Row(_S.STOPPING, (_E.AWAIT_STOP,)),
    (State.STOPPING, Input.WAIT): Row(_S.STOPPING, (_E.AWAIT_IDLE,)),
    (State.STOPPING, Input.CLOSE): Row(_S.CLOSING),
    (State.STOPPING, Input.LOOKED): Row(_S.STOPPING),
    (State.STOPPING, Input.AT_REST): Row(_S.IDLE, (_E.SETTLE, _E.ANSWER_IDLE)),
    (State.STOPPING, Input.FAILED): Row(_S.IDLE, (_E.SETTLE, _E.ANSWER_IDLE)),
    (State.STOPPING, Input.STOPPED): Row(_S.IDLE, (_E.SETTLE, _E.ANSWER_IDLE)),
    (State.STOPPING_RUNG, Input.WAKE): Row(_S.STOPPING_RUNG),
    (State.STOPPING_RUNG, Input.RESUME): Row(_S.STOPPING_FORCED, (_E.JOIN_NEXT,)),
    (State.STOPPING_RUNG, Input.INTERRUPT): Row(_S.STOPPING, (_E.AWAIT_STOP,)),
    (State.STOPPING_RUNG, Input.WAIT): Row(_S.STOPPING_RUNG, (_E.AWAIT_IDLE,)),
    (State.STOPPING_RUNG, Input.CLOSE): Row(_S.CLOSING),
    (State.STOPPING_RUNG, Input.LOOKED): Row(_S.STOPPING_RUNG),
    (State.STOPPING_RUNG, Input.AT_REST): Row(_S.DRAINING, (_E.SETTLE, _E.START)),
    (State.STOPPING_RUNG, Input.FAILED): Row(_S.DRAINING, (_E.SETTLE, _E.START)),
    (State.STOPPING_RUNG, Input.STOPPED): Row(_S.DRAINING, (_E.SETTLE, _E.START)),
    (State.STOPPING_FORCED, Input.WAKE): Row(_S.STOPPING_FORCED),
    (State.STOPPING_FORCED, Input.RESUME): Row(_S.STOPPING_FORCED, (_E.JOIN_NEXT,)),
    (State.STOPPING_FORCED, Input.INTERRUPT): Row(_S.STOPPING, (_E.DROP_NEXT, _E.AWAIT_STOP)),
    (State.STOPPING_FORCED, Input.WAIT): Row(_S.STOPPING_FORCED, (_E.AWAIT_IDLE,)),
    (State.STOPPING_FORCED, Input.CLOSE): Row(_S.CLOSING, (_E.DROP_NEXT,)),
    (State.STOPPING_FORCED, Input.LOOKED): Row(_S.STOPPING_FORCED),
    (State.STOPPING_FORCED, Input.AT_REST): Row(_S.DRAINING, (_E.SETTLE, _E.START_FORCED)),
    (State.STOPPING_FORCED, Input.FAILED): Row(_S.DRAINING, (_E.SETTLE, _E.START_FORCED)),
    (State.STOPPING_FORCED, Input.STOPPED): Row(_S.DRAINING, (_E.SETTLE, _E.START_FORCED)),
    (State.CLOSING, Input.WAKE): Row(_S.CLOSING),
    (State.CLOSING, Input.RESUME): Row(_S.CLOSING, (_E.REFUSE,)),
    (State.CLOSING, Input.INTERRUPT): Row(_S.CLOSING, (_E.AWAIT_STOP,)),
    (State.CLOSING, Input.WAIT): Row(_S.CLOSING, (_E.AWAIT_IDLE,)),
    (State.CLOSING, Input.CLOSE): Row(_S.CLOSING),
    (State.CLOSING, Input.LOOKED): Row(_S.CLOSING),
    (State.CLOSING, Input.AT_REST): Row(_S.CLOSED, (_E.SETTLE, _E.ANSWER_IDLE)),
    (State.CLOSING, Input.FAILED): Row(_S.CLOSED, (_E.SETTLE, _E.ANSWER_IDLE)),
    (State.CLOSING, Input.STOPPED): Row(_S.CLOSED, (_E.SETTLE, _E.ANSWER_IDLE)),
    # A prompt may be admitted while its session closes; its wake comes after. The prompt stays pending.
    (State.CLOSED, Input.WAKE): Row(_S.CLOSED),
    (State.CLOSED, Input.RESUME): Row(_S.CLOSED, (_E.REFUSE,)),
    (State.CLOSED, Input.INTERRUPT): Row(_S.CLOSED, (_E.ANSWER_NOTHING_RUNS,)),
    (State.CLOSED, Input.WAIT): Row(_S.CLOSED, (_E.AWAIT_IDLE, _E.ANSWER_IDLE)),
    (State.CLOSED, Input.CLOSE): Row(_S.CLOSED),
}


def step(state: State, given: Input) -> Row:
    """The row for an input. Raises `IllegalTransition` when there is none."""
    row = TABLE.get((state, given))
    if row is None:
        raise IllegalTransition(state, given)
    return row


def working(state: State) -> bool:
    """Whether a drain owns the session: what `sessions.active` shows."""
    return state not in (State.IDLE, State.CLOSED)
