"""What commands print: lines for people, JSON for programs.

Rules:
- Stored text may hold anything. Where it goes to people it carries no control characters, so that it cannot steer a terminal.
- Standard output is flushed line by line, so that a program at its other end sees what has happened.
"""

from __future__ import annotations

import re
import sys
from datetime import datetime
from typing import Any, Final

_LEAST_COLUMN: Final = 10
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def plain(text: str) -> str:
    """`text` with its control characters made visible; line ends and tabs stay."""
    return _CONTROL.sub("\ufffd", text.replace("\r\n", "\n"))


def brief(text: str, length: int) -> str:
    """`text` on one line of at most `length` characters."""
    line = " ".join(plain(text).split())
    return line if len(line) <= length else f"{line[: length - 1]}…"


def say(text: str = "") -> None:
    """One line on standard output."""
    print(text, flush=True)


def remark(text: str) -> None:
    """One line on standard error."""
    print(text, file=sys.stderr, flush=True)


def say_json(value: Any) -> None:
    """`value` as one line of JSON."""
    import msgspec

    say(value.decode() if isinstance(value, bytes) else msgspec.json.encode(value).decode())


def moment(epoch_ms: int) -> str:
    """A time in this machine's zone."""
    return datetime.fromtimestamp(epoch_ms / 1_000).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def table(headings: list[str], rows: list[list[str]], *, cut: bool = False) -> None:
    """Columns for people. On a terminal that is too narrow the last one is `cut` to what is left, and all others stay as they
    are; or else all but the first are folded. What does not go to a terminal is neither."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    widest = [max(len(row[place]) for row in [headings, *rows]) for place in range(len(headings))]
    gaps = 2 * (len(headings) - 1)
    if not sys.stdout.isatty():
        console.width = 10_000
    elif cut:
        room = max(console.width - sum(widest[:-1]) - gaps, _LEAST_COLUMN)
        rows = [[*row[:-1], brief(row[-1], room)] for row in rows]
        console.width = sum(widest) + gaps
    else:
        console.width = max(console.width, widest[0] + gaps + _LEAST_COLUMN * (len(headings) - 1))
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for place, heading in enumerate(headings):
        kept = place == 0 or cut
        shown.add_column(
            heading, no_wrap=kept, overflow="fold", min_width=widest[0] if place == 0 else _LEAST_COLUMN * (not cut)
        )
    for row in rows:
        shown.add_row(*(Text(plain(cell)) for cell in row))
    console.print(shown)
