"""The session's states as a document, drawn from the transition table; `docs/session-states.md` is what it prints.

PYTHONPATH=tests python tests/support/state_diagram.py > docs/session-states.md
"""

from collections.abc import Iterator

from steerway.actors.session.transitions import TABLE, Input, Row, State, working

_HEAD = """# The states of a session

Drawn from the transition table of `actors/session/transitions.py` by `tests/support/state_diagram.py`; a test compares them.
All of this lives in memory: nothing durable says that a session is running. A session is active (`sessions.active`) in every
state but {resting}.

What moves a session is
- a letter of a client: {letters} (an admitted prompt and one that becomes a steer wake it; other letters only change what is
  stored);
- the end of the runtime, or of the session: {close};
- a report of its drain: {reports}.

An input without a row cannot happen: it raises `IllegalTransition` and changes nothing.
"""
_LETTERS = (Input.WAKE, Input.RESUME, Input.INTERRUPT, Input.WAIT)


def document() -> str:
    """The whole document."""
    return "\n".join((_head(), "## Where they lead", "", *_diagram(), "", "## What is done on the way", "", *_rows()))


def _head() -> str:
    reports = [given for given in Input if given not in (*_LETTERS, Input.CLOSE)]
    return _HEAD.format(
        resting=" and ".join(f"*{state.value}*" for state in State if not working(state)),
        letters=", ".join(given.value for given in _LETTERS),
        close=Input.CLOSE.value,
        reports="; ".join(given.value for given in reports),
    )


def _diagram() -> Iterator[str]:
    """The moves from one state to another; what leaves the state as it is stands in the rows only."""
    yield "```mermaid"
    yield "stateDiagram-v2"
    for state in State:
        yield f'    state "{state.value}" as {state.name.lower()}'
    yield f"    [*] --> {State.IDLE.name.lower()}"
    for state in State:
        for target in State:
            inputs = [given.value for given in Input if _leads(TABLE.get((state, given)), target)]
            if inputs and target is not state:
                yield f"    {state.name.lower()} --> {target.name.lower()}: {', '.join(inputs)}"
    yield f"    {State.CLOSED.name.lower()} --> [*]"
    yield "```"


def _leads(row: Row | None, target: State) -> bool:
    return row is not None and row.state is target


def _rows() -> Iterator[str]:
    for state in State:
        yield f"### {state.value[0].upper()}{state.value[1:]}"
        yield ""
        yield "| input | then | effects |"
        yield "| --- | --- | --- |"
        for given in Input:
            row = TABLE.get((state, given))
            if row is not None:
                effects = "; ".join(effect.value for effect in row.effects) or "-"
                yield f"| {given.value} | {row.state.value} | {effects} |"
        yield ""


if __name__ == "__main__":
    print(document(), end="")
