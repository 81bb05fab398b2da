"""`glob` and `grep`: finding files by name and by content, without any external program.

Rules:
- Confined and bounded like `read`: results, entries and bytes looked at have limits, and reaching one is said.
- Files come in a fixed order. Links are not followed, `.git` is skipped, binary files are not searched.
- A regular expression of a model may take for ever. Each line has a time limit that the engine itself keeps, and matching
  releases the interpreter, so that nothing else waits. (The standard library's engine does neither.)
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any, Final, Protocol, cast

from msgspec import Meta

from .capture import clean
from .confinement import Confinement, Opened, Place
from .lines import MAX_LINE, SAMPLE, Lines, Pieces, is_binary
from .patterns import MAX_PATTERN, PathPattern
from .stopping import Stop, run_stoppable
from .tool import Tool, ToolContext, ToolFailure, tool
from .walking import Entry, Walk

MAX_RESULTS: Final = 1_000
MAX_SEARCH_BYTES: Final = 512 * 1024 * 1024
"""How much one `grep` reads."""
MAX_SHOWN: Final = 300
"""Characters shown of a line that matches."""
MATCH_SECONDS: Final = 0.5
"""How long matching one line may take."""

_Limit = Annotated[int, Meta(ge=1, le=MAX_RESULTS, description="How many results to show at most.")]
_Where = Annotated[str, Meta(description="Where to look: relative to the working directory, or absolute inside it.")]


class _Expression(Protocol):
    def search(self, text: str, *, timeout: float, concurrent: bool) -> object | None: ...


def glob_tool(confine: Callable[[str], Confinement]) -> Tool:
    """The tool. `confine(directory)` says what a session at that location may read."""

    @tool(name="glob")
    async def glob(
        context: ToolContext,
        pattern: Annotated[str, Meta(description="Such as `**/*.py` or `src/**/test_*.{js,ts}`; relative to `path`.")],
        path: _Where = ".",
        limit: _Limit = 200,
    ) -> str:
        """Find files by their names. `**` stands for any number of directories; links are not followed."""
        confinement = confine(context.location.directory)
        return await run_stoppable(context, lambda stop: _glob(confinement, pattern, path, limit, stop))

    return glob


def grep_tool(confine: Callable[[str], Confinement]) -> Tool:
    """The tool. `confine(directory)` says what a session at that location may read."""

    @tool(name="grep")
    async def grep(
        context: ToolContext,
        pattern: Annotated[str, Meta(description="A regular expression in Python's syntax; it is matched line by line.")],
        path: _Where = ".",
        include: Annotated[
            str | None, Meta(description="Only files whose name matches, such as `*.py` or `src/**/*.ts`.")
        ] = None,
        ignore_case: bool = False,
        limit: _Limit = 100,
    ) -> str:
        """Find lines in text files, below a directory or in one file. Results are `path:line: text`."""
        confinement = confine(context.location.directory)
        search = _Search(pattern, include, ignore_case, limit)
        return await run_stoppable(context, lambda stop: search.run(confinement, path, stop))

    return grep


def _glob(confinement: Confinement, pattern: str, path: str, limit: int, stop: Stop) -> str:
    wanted = PathPattern(pattern)
    start = confinement.resolve(path)
    walk = Walk(confinement, start, stop)
    found: list[str] = []
    for place, entry, parts in walk:
        if entry.kind in ("file", "link") and wanted.matches(parts):
            if len(found) == limit:
                return _listed(found, f"only the first {limit} results are shown")
            found.append(clean(confinement.shown(place)))
    return _listed(found, "there are too many files, not all were looked at" if walk.cut_short else "")


def _listed(found: list[str], note: str) -> str:
    text = "\n".join(found) if found else "(nothing found)"
    return f"{text}\n\n({note})" if note else text


class _Search:
    """One `grep`: what is looked for, and what was found so far."""

    def __init__(self, pattern: str, include: str | None, ignore_case: bool, limit: int) -> None:
        self._expression = _compiled(pattern, ignore_case)
        self._include = None if include is None else PathPattern(include if "/" in include else f"**/{include}")
        self._limit = limit
        self._left = MAX_SEARCH_BYTES
        self._found: list[str] = []

    def run(self, confinement: Confinement, path: str, stop: Stop) -> str:
        start = confinement.resolve(path)
        with confinement.open(start) as opened:
            if not opened.is_directory:
                self._file(opened, clean(confinement.shown(start)), stop)
                return self._result("")
        walk = Walk(confinement, start, stop)
        for place, entry, parts in walk:
            if self._wants(entry, parts):
                self._place(confinement, place, stop)
                if len(self._found) > self._limit or self._left <= 0:
                    break
        return self._result("there are too many files, not all were searched" if walk.cut_short else "")

    def _wants(self, entry: Entry, parts: tuple[str, ...]) -> bool:
        return entry.kind == "file" and (self._include is None or self._include.matches(parts))

    def _place(self, confinement: Confinement, place: Place, stop: Stop) -> None:
        try:
            with confinement.open(place) as opened:
                self._file(opened, clean(confinement.shown(place)), stop)
        except _TooSlow:
            raise
        except ToolFailure:
            pass  # removed meanwhile, or not readable: as if it were not there

    def _file(self, opened: Opened, shown: str, stop: Stop) -> None:
        sample = os.read(opened.fd, SAMPLE)
        if is_binary(sample):
            return
        pieces = Pieces(opened.fd, sample, self._left, stop)
        for number, line in Lines(pieces):
            if self._matches(line[:MAX_LINE]):
                self._found.append(f"{shown}:{number}: {clean(line[:MAX_SHOWN])}{'…' if len(line) > MAX_SHOWN else ''}")
                if len(self._found) > self._limit:
                    return
        self._left -= pieces.taken
        if pieces.cut_short:
            self._left = 0

    def _matches(self, line: str) -> bool:
        try:
            return self._expression.search(line, timeout=MATCH_SECONDS, concurrent=True) is not None
        except TimeoutError:
            raise _TooSlow("The regular expression takes too long; make it simpler (no nested repetitions).") from None

    def _result(self, note: str) -> str:
        if len(self._found) > self._limit:
            return _listed(self._found[: self._limit], f"only the first {self._limit} results are shown")
        if self._left <= 0:
            note = f"only the first {MAX_SEARCH_BYTES} bytes were searched"
        return _listed(self._found, note)


class _TooSlow(ToolFailure):
    """Not a fault of the file that was being searched."""


def _compiled(pattern: str, ignore_case: bool) -> _Expression:
    if len(pattern) > MAX_PATTERN:
        raise ToolFailure(f"The pattern is longer than {MAX_PATTERN} characters.")
    engine = cast("Any", import_module("regex"))  # it comes without types, and only this tool needs it
    try:
        return cast("_Expression", engine.compile(pattern, engine.IGNORECASE if ignore_case else 0))
    except engine.error as error:
        raise ToolFailure(f"The pattern is no regular expression: {error}") from None
