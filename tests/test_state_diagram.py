"""The document of the session's states says what the table says."""

from pathlib import Path

from steerway.actors.session.transitions import TABLE, Input, State
from support.state_diagram import document

FILE = Path(__file__).parent.parent / "docs" / "session-states.md"


def test_the_document_is_drawn_from_the_table() -> None:
    assert FILE.read_text(encoding="utf-8") == document()


def test_the_document_has_every_row() -> None:
    lines = document().splitlines()
    assert sum(line.startswith("| ") for line in lines) == len(TABLE) + 2 * len(State)
    assert all(f'"{state.value}" as {state.name.lower()}' in "\n".join(lines) for state in State)
    assert all(any(line.startswith(f"| {given.value} |") for line in lines) for given in Input)
