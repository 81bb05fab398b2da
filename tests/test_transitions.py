"""The session's table: complete where something can happen, closed where it cannot, and no wake lost."""

from collections import deque
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steerway.actors.session.transitions import TABLE, Effect, IllegalTransition, Input, State, step, working

LETTERS = (Input.WAKE, Input.RESUME, Input.INTERRUPT, Input.WAIT, Input.CLOSE)
REPORTS = (Input.LOOKED, Input.AT_REST, Input.FAILED, Input.STOPPED)
STARTS = (Effect.START, Effect.START_FORCED)
ANSWERS = {
    Input.RESUME: {Effect.JOIN, Effect.JOIN_NEXT, Effect.REFUSE},
    Input.INTERRUPT: {Effect.AWAIT_STOP, Effect.ANSWER_NOTHING_RUNS},
    Input.WAIT: {Effect.AWAIT_IDLE},
}
PAIRS = list(product(State, Input))


@pytest.mark.parametrize(("state", "given_"), PAIRS, ids=lambda value: value.name)
def test_an_input_has_a_row_or_is_refused_without_a_change(state: State, given_: Input) -> None:
    before = dict(TABLE)
    if (state, given_) in TABLE:
        assert step(state, given_) is TABLE[state, given_]
    else:
        with pytest.raises(IllegalTransition, match="cannot happen") as caught:
            step(state, given_)
        assert (caught.value.state, caught.value.given) == (state, given_)
    assert before == TABLE


@pytest.mark.parametrize("state", State)
def test_every_letter_has_a_row_in_every_state(state: State) -> None:
    assert all((state, letter) in TABLE for letter in LETTERS)


@pytest.mark.parametrize("state", State)
def test_a_drain_reports_exactly_where_one_owns_the_session(state: State) -> None:
    assert all(((state, report) in TABLE) == working(state) for report in REPORTS)


@pytest.mark.parametrize(("state", "given_"), [pair for pair in TABLE if pair[1] in ANSWERS], ids=lambda value: value.name)
def test_every_asking_letter_gets_exactly_one_answer(state: State, given_: Input) -> None:
    effects = [effect for effect in TABLE[state, given_].effects if any(effect in answers for answers in ANSWERS.values())]
    assert len(effects) == 1
    assert effects[0] in ANSWERS[given_]


def test_every_state_can_be_reached() -> None:
    seen = {State.IDLE}
    todo = deque(seen)
    while todo:
        state = todo.popleft()
        for given_ in Input:
            row = TABLE.get((state, given_))
            if row is not None and row.state not in seen:
                seen.add(row.state)
                todo.append(row.state)
    assert seen == set(State)


def test_a_drain_starts_only_where_none_owns_the_session_any_more() -> None:
    for (state, given_), row in TABLE.items():
        started = any(effect in STARTS for effect in row.effects)
        ends = given_ in (Input.AT_REST, Input.FAILED, Input.STOPPED)
        if started:
            assert not working(state) or ends
            assert working(row.state)
        elif working(row.state) and not working(state):
            pytest.fail(f"{state} and {given_} make an owner without a drain")


def test_a_drain_that_ends_is_settled_before_a_successor_starts() -> None:
    for (state, given_), row in TABLE.items():
        if given_ not in (Input.AT_REST, Input.FAILED, Input.STOPPED):
            assert Effect.SETTLE not in row.effects
            continue
        if Effect.CONTINUE in row.effects:
            assert (state, given_) == (State.RUNG, Input.AT_REST)
            assert row.effects == (Effect.CONTINUE,)
            continue
        assert row.effects[0] is Effect.SETTLE
        assert (Effect.ANSWER_IDLE in row.effects) == (not working(row.state))


def test_closed_is_final() -> None:
    assert all(row.state is State.CLOSED for (state, _), row in TABLE.items() if state is State.CLOSED)
    closing = {row.state for (state, _), row in TABLE.items() if state is State.CLOSING}
    assert closing == {State.CLOSING, State.CLOSED}


@given(st.lists(st.sampled_from([given_ for given_ in Input if given_ is not Input.CLOSE]), max_size=40))
def test_no_wake_is_lost_and_none_survives_an_interrupt(script: list[Input]) -> None:
    """What has to happen next, counted beside the table: 'wanted' is a wake or resume that no drain has seen yet."""
    state, wanted, forced = State.IDLE, False, False
    for given_ in script:
        if (state, given_) not in TABLE:
            continue
        stopping = state in (State.STOPPING, State.STOPPING_RUNG, State.STOPPING_FORCED)
        row = step(state, given_)
        match given_:
            case Input.WAKE:
                wanted = True
            case Input.RESUME:
                forced = forced or stopping or state is State.IDLE
            case Input.INTERRUPT:
                wanted = forced = False
            case Input.LOOKED if not stopping:
                wanted = False
            case _:
                pass
        if given_ in (Input.AT_REST, Input.FAILED, Input.STOPPED):
            assert working(row.state) == (wanted or forced)
        started = [effect for effect in row.effects if effect in STARTS]
        if started:
            assert started == [Effect.START_FORCED if forced else Effect.START]
        if started or Effect.CONTINUE in row.effects:
            wanted = forced = False
        state = row.state
    assert working(state) or not (wanted or forced)
