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


def table(headings: list[str], rows: list[list[str]]) -> None:
    """Columns for people; nothing is cut when it does not go to a terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 10_000)
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for place, heading in enumerate(headings):
        shown.add_column(heading, no_wrap=place == 0, overflow="fold")
    for row in rows:
        shown.add_row(*(Text(plain(cell)) for cell in row))
    console.print(shown)
