"""The document that says which test holds which statement names tests that are there, and leaves no row open."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROWS = [
    line.strip("|").rsplit("|", 1)[1].strip()
    for line in (ROOT / "docs" / "seed-coverage.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| ---") and "| held by |" not in line
]


def test_every_named_test_is_there() -> None:
    there = {
        name
        for path in (ROOT / "tests").glob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    named = {name for row in ROWS for name in re.findall(r"`(test_\w+)`", row)}
    assert named - there == set()


def test_every_row_names_a_test_or_says_why_not() -> None:
    assert len(ROWS) > 120
    assert [row for row in ROWS if "`test_" not in row and not re.match(r"(later|not applicable): [\w`]", row)] == []
