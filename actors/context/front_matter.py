"""The head of a `SKILL.md`: keys and texts between two lines of `---`, and the body behind it.

Rules:
- What is understood is what such heads are written in: `key: text`, quoted text, text that goes on in indented lines, and the
  block forms `>` (joined lines) and `|` (lines as they are). Nested values are passed over, comments too.
- This is not YAML, and never runs, links or builds anything. Whatever it does not understand is no error; the key is missing.
- A text without such a head is all body.
"""

from __future__ import annotations

import json
import re
from typing import Final, NamedTuple

_FENCE: Final = "---"
_PAIR: Final = re.compile(r"([A-Za-z0-9_-]+):(?:[ \t]+(.*))?")
_COMMENT: Final = re.compile(r"(?:^|\s+)#.*")
_BLOCK: Final = re.compile(r"([|>])[-+0-9]*")


class FrontMatter(NamedTuple):
    """The pairs of the head, as texts, and the body behind it."""

    pairs: dict[str, str]
    body: str


def parse_front_matter(text: str) -> FrontMatter:
    """Split a text into head and body. Never fails."""
    lines = text.splitlines()
    if not lines or lines[0].rstrip() != _FENCE:
        return FrontMatter({}, text)
    end = next((number for number, line in enumerate(lines[1:], 1) if line.rstrip() == _FENCE), None)
    if end is None:
        return FrontMatter({}, text)
    pairs: dict[str, str] = {}
    number = 1
    while number < end:
        start = _PAIR.fullmatch(lines[number].rstrip())
        number += 1
        more: list[str] = []
        while number < end and (not lines[number].strip() or lines[number][0] in " \t"):
            more.append(lines[number])
            number += 1
        if start is not None:
            value = _value((start[2] or "").strip(), more)
            if value is not None:
                pairs[start[1]] = value
    return FrontMatter(pairs, "\n".join(lines[end + 1 :]).strip("\n"))


def _value(first: str, more: list[str]) -> str | None:
    """The text that begins on a pair's line and goes on in indented ones; None for what is no text."""
    inner = [line.strip() for line in more]
    block = _BLOCK.fullmatch(first)
    if block is not None:
        return ("\n" if block[1] == "|" else " ").join(inner).strip()
    if not first:
        return None if any(_PAIR.fullmatch(line) or line.startswith("- ") for line in inner) else " ".join(inner).strip()
    if first[0] in "[{&*!":
        return None
    if first[0] in "\"'":
        return _quoted(" ".join((first, *inner)).strip())
    return " ".join(part for part in (_COMMENT.sub("", first), *inner) if part)


def _quoted(text: str) -> str | None:
    if len(text) < 2 or text[-1] != text[0]:
        return None
    if text[0] == "'":
        return text[1:-1].replace("''", "'")
    try:
        value = json.loads(text)
    except ValueError:
        return text[1:-1]
    return value if isinstance(value, str) else None
