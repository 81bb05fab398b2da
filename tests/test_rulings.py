"""Documents that sources refer to by number have a line for each number."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LISTED = re.compile(r"^\| ([A-F]\d+) \| .{20,} \|$", re.MULTILINE)
CITED = re.compile(r"\brulings?\s+([A-F]\d+(?:(?:,|,? and| to)\s+[A-F]\d+)*)")
RECORD = re.compile(r"\b(?:decision(?: record)?|decisions/)\s*(0\d{3})\b")


def texts() -> Iterator[tuple[str, str]]:
    for folder in (".", "actors", "protocol", "storage", "tests", "bench", "docs"):
        pattern = "*" if folder == "." else "**/*"
        for path in sorted((ROOT / folder).glob(pattern)):
            if path.suffix in (".py", ".md", ".toml") and path.is_file():
                yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def test_every_ruling_that_is_cited_has_its_line() -> None:
    listed = LISTED.findall((ROOT / "docs" / "rulings.md").read_text(encoding="utf-8"))
    assert len(listed) == len(set(listed)) > 50
    cited = {
        ruling: name for name, text in texts() for group in CITED.findall(text) for ruling in re.findall(r"[A-F]\d+", group)
    }
    assert len(cited) > 40
    assert {ruling: name for ruling, name in cited.items() if ruling not in listed} == {}


def test_every_decision_record_that_is_cited_is_there() -> None:
    there = {path.name[:4] for path in (ROOT / "docs" / "decisions").glob("0*.md")}
    cited = {number: name for name, text in texts() for number in RECORD.findall(text)}
    assert {number: name for number, name in cited.items() if number not in there} == {}
