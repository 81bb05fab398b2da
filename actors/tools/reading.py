"""`read`: a page of a text file, an image or a PDF, or the entries of a directory.

Rules:
- A file is read in small pieces, and never further than the page needs. Of a long line only its beginning is held.
- A page fits the output limits, with its line numbers and the note on how to go on, so that it is never bounded again.
- What is not text is refused, except images and PDFs, which become media. A model that takes no such media learns of it where
  history is lowered.
- Permission is asked for the file that a path really leads to, and that one is opened.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Annotated, Final

from msgspec import Meta

from ...protocol.llm.invariants import IMAGE_TYPES
from ...protocol.values import FileContent, TextContent
from .capture import OutputLimits, clean
from .confinement import Confinement, Opened, Place
from .lines import MAX_LINE, SAMPLE, Lines, Pieces, is_binary
from .stopping import Stop, run_stoppable
from .tool import Tool, ToolContext, ToolFailure, ToolOutput, tool
from .walking import MAX_ENTRIES, list_directory

MAX_MEDIA_BYTES: Final = 8 * 1024 * 1024
"""As much as fits the frame of a `next` item in both codecs."""
MAX_SCAN_BYTES: Final = 256 * 1024 * 1024
"""How much of a text file one call looks at, lines before the page included."""

_NOTE_LINES: Final = 2
_NOTE_BYTES: Final = 200
_MEDIA: Final = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "image/webp"),
    (re.compile(rb"%PDF-"), "application/pdf"),
)


def read_tool(confine: Callable[[str], Confinement], limits: OutputLimits) -> Tool:
    """The tool. `confine(directory)` says what a session at that location may read."""

    @tool(name="read", asks_itself=True)
    async def read(
        context: ToolContext,
        path: Annotated[
            str, Meta(description="A file or directory: relative to the working directory, or absolute inside it.")
        ],
        offset: Annotated[int, Meta(ge=1, description="The first line (or entry) to show, counted from 1.")] = 1,
        limit: Annotated[int, Meta(ge=1, description="How many lines (or entries) to show at most.")] = 2_000,
    ) -> ToolOutput:
        """Read a file inside the working directory, or list a directory.

        Text comes in pages with line numbers; the end of a page says how to go on. Images and PDFs are shown as they are. Other
        binary files are refused.
        """
        confinement = confine(context.location.directory)
        place, shown = await run_stoppable(context, lambda _: _found(confinement, path))
        await context.session.authorize("read", (shown,), save=("*",))
        page = _Page(offset, limit, limits)
        return await run_stoppable(context, lambda stop: _read(confinement, place, shown, page, stop))

    return read


class _Page:
    """What fits: lines from `offset` on, as many as asked for and as the output limits allow. One line always does."""

    def __init__(self, offset: int, limit: int, limits: OutputLimits) -> None:
        self.offset = offset
        self._lines_left = max(min(limit, limits.max_lines - _NOTE_LINES), 1)
        self._bytes_left = limits.max_bytes - _NOTE_BYTES
        self._lines: list[str] = []

    @property
    def empty(self) -> bool:
        return not self._lines

    def add(self, line: str) -> bool:
        """Take a line, or say that the page is full."""
        size = len(line.encode()) + 1
        if self._lines and (self._lines_left == 0 or size > self._bytes_left):
            return False
        self._lines.append(line)
        self._lines_left -= 1
        self._bytes_left -= size
        return True

    def output(self, note: str = "") -> ToolOutput:
        text = "\n".join(self._lines) + (f"\n\n({note})" if note else "")
        return ToolOutput((TextContent(text=text),))


def _found(confinement: Confinement, path: str) -> tuple[Place, str]:
    place = confinement.resolve(path)
    return place, confinement.shown(place)


def _read(confinement: Confinement, place: Place, shown: str, page: _Page, stop: Stop) -> ToolOutput:
    with confinement.open(place) as opened:
        if opened.is_directory:
            return _directory(opened, shown, page, stop)
        sample = os.read(opened.fd, SAMPLE)
        for magic, mime in _MEDIA:
            if magic.match(sample):
                return _medium(opened, sample, shown, mime, stop)
        if is_binary(sample):
            raise ToolFailure(f"`{shown}` is a binary file of {opened.status.st_size} bytes; it cannot be shown as text.")
        return _text(opened, sample, shown, page, stop)


def _text(opened: Opened, sample: bytes, shown: str, page: _Page, stop: Stop) -> ToolOutput:
    if not sample:
        return ToolOutput((TextContent(text="(empty file)"),))
    pieces = Pieces(opened.fd, sample, MAX_SCAN_BYTES, stop)
    lines = Lines(pieces, page.offset)
    for number, line in lines:
        ending = "… (the line goes on)" if len(line) > MAX_LINE else ""
        if not page.add(f"{number}: {clean(line[:MAX_LINE])}{ending}"):
            return page.output(f"more lines follow: go on with offset {number}")
    if pieces.cut_short:
        if page.empty:
            raise ToolFailure(
                f"Line {page.offset} of `{shown}` is not within the first {pieces.taken} bytes; use grep instead."
            )
        return page.output(f"only the first {pieces.taken} bytes of the file were looked at")
    if page.empty:
        raise ToolFailure(f"Line {page.offset} is past the end: `{shown}` has {lines.count} lines.")
    return page.output()


def _medium(opened: Opened, sample: bytes, shown: str, mime: str, stop: Stop) -> ToolOutput:
    pieces = Pieces(opened.fd, sample, MAX_MEDIA_BYTES + 1, stop)
    data = b"".join(pieces)
    if len(data) > MAX_MEDIA_BYTES:
        what = "an image" if mime in IMAGE_TYPES else "a PDF"
        raise ToolFailure(f"`{shown}` is {what} of more than {MAX_MEDIA_BYTES // 1024 // 1024} MiB.")
    return ToolOutput((FileContent(data=data, mime=mime, name=os.path.basename(shown)),))


def _directory(opened: Opened, shown: str, page: _Page, stop: Stop) -> ToolOutput:
    entries, more = list_directory(opened.fd, stop)
    if not entries:
        return ToolOutput((TextContent(text="(empty directory)"),))
    if page.offset > len(entries):
        raise ToolFailure(f"Entry {page.offset} is past the end: `{shown}` has {len(entries)} entries.")
    for index, entry in enumerate(entries[page.offset - 1 :], page.offset):
        if not page.add(clean(entry.shown)):
            return page.output(f"more entries follow: go on with offset {index}")
    return page.output(f"only {MAX_ENTRIES} entries were looked at" if more else "")
