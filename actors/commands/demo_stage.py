"""How the demo speaks: acts, what is said and by whom, and claims that were checked.

Rules:
- A claim is printed only together with the check of it; one that does not hold ends the demo.
- Words are wrapped here as they come, so that a stream reads the same on a terminal and in a file.
"""

from __future__ import annotations

import sys
from typing import TextIO

from .failures import Refusal
from .output import plain

_INDENT = "     "


class Stage:
    """Prints to `file`, as wide as it is, at most 100 columns."""

    def __init__(self, file: TextIO | None = None) -> None:
        from rich.console import Console

        self._console = Console(file=file or sys.stdout, highlight=False)
        self._width = min(self._console.width, 100)
        self._column = 0
        self._tick = "✓" if self._console.encoding.startswith("utf") else "ok:"
        self.claims = 0
        """How many have held."""

    def act(self, number: int, title: str, text: str) -> None:
        """Open an act with what it is about."""
        self._end_line()
        self._console.print()
        self._print(f"{number}. {title}", "bold cyan", indent="")
        self._print(text, "", indent="   ")

    def tell(self, text: str) -> None:
        """What the narrator does."""
        self._print(text, "", indent="   ")

    def you(self, text: str, how: str = "you") -> None:
        """Something the user sends."""
        self._print(f"{how} > {text}", "bold yellow", indent="   ")

    def word(self, text: str) -> None:
        """A piece of the model's answer, as it arrives."""
        room = self._width - len(_INDENT)
        pieces = [word[at : at + room] for word in plain(text).split(" ") for at in range(0, len(word), room)]
        for piece in pieces:
            if self._column == 0 or self._column + 1 + len(piece) > self._width:
                self._end_line()
                self._put(_INDENT + piece)
            else:
                self._put(f" {piece}")

    def aside(self, text: str) -> None:
        """Something the runtime does meanwhile."""
        self._print(text, "magenta", indent=_INDENT)

    def command(self, text: str) -> None:
        """A command to type: on one line, however long, so that it can be copied."""
        self._end_line()
        self._console.out(_INDENT + text, style="magenta", highlight=False)

    def claim(self, holds: bool, text: str) -> None:
        """Say that `text` is so. Raises `Refusal` when it is not."""
        if not holds:
            raise Refusal(f"The demo claims something that did not happen: {text} Please report it.")
        self.claims += 1
        self._print(f"{self._tick} {text}", "green", indent="   ")

    def _put(self, text: str) -> None:
        self._console.out(text, end="", highlight=False)
        self._console.file.flush()
        self._column += len(text)

    def _end_line(self) -> None:
        if self._column:
            self._column = 0
            self._console.out("")

    def _print(self, text: str, style: str, indent: str) -> None:
        from textwrap import wrap

        self._end_line()
        for line in wrap(text, self._width, initial_indent=indent, subsequent_indent=indent):
            self._console.out(line, style=style or None, highlight=False)
        self._console.file.flush()
