"""`glob` and `grep`: finding files by name and by content, without any external program.

Rules:
- Confined and bounded like `read`: results, entries and bytes looked at have limits, and reaching one is said.
- Files come in a fixed order. Links are not followed, `.git` is skipped, binary files are not searched.
- Permission is asked for the place where a search begins. Beyond that a rule counts for every file: what is denied for `glob`
  or `grep` is left out, and `grep` shows nothing of a file that `read` is denied for. Where reading has to be asked for, it is
  asked once for all files that something was found in, before anything of them is shown. That files were left out is said.
- A regular expression of a model may take for ever. Each line has a time limit that the engine itself keeps, and matching
  releases the interpreter, so that nothing else waits. (The standard library's engine does neither.)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from importlib import import_module
from typing import Annotated, Any, Final, Protocol, cast

from msgspec import Meta

from ...protocol.values.permission import Rule
from .capture import clean
from .confinement import Confinement, Opened, Place
from .lines import MAX_LINE, SAMPLE, Lines, Pieces, is_binary
from .path_rules import PathRules
from .patterns import MAX_PATTERN, PathPattern
from .stopping import Stop, run_stoppable
from .tool import PermissionDeniedError, Tool, ToolContext, ToolFailure, tool
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

    @tool(name="glob", asks_itself=True)
    async def glob(
        context: ToolContext,
        pattern: Annotated[str, Meta(description="Such as `**/*.py` or `src/**/test_*.{js,ts}`; relative to `path`.")],
        path: _Where = ".",
        limit: _Limit = 200,
    ) -> str:
        """Find files by their names. `**` stands for any number of directories; links are not followed."""
        confinement = confine(context.location.directory)
        wanted = PathPattern(pattern)
        start = await _begin(context, confinement, "glob", path, {"pattern": pattern})
        rules = PathRules(context.rules, "glob")
        return await run_stoppable(context, lambda stop: _glob(confinement, wanted, start, limit, rules, stop))

    return glob


def grep_tool(confine: Callable[[str], Confinement]) -> Tool:
    """The tool. `confine(directory)` says what a session at that location may read."""

    @tool(name="grep", asks_itself=True)
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
        search = _Search(pattern, include, ignore_case, limit, context.rules)
        start = await _begin(context, confinement, "grep", path, {"pattern": pattern, "include": include})
        await run_stoppable(context, lambda stop: search.run(confinement, start, stop))
        if to_ask := search.to_ask():
            try:
                await context.session.authorize("read", to_ask, save=("*",), metadata={"grep": pattern})
            except PermissionDeniedError:
                search.leave_out(to_ask)
        return search.result()

    return grep


async def _begin(context: ToolContext, confinement: Confinement, action: str, path: str, metadata: dict[str, Any]) -> Place:
    """The place where a search begins, once it is permitted to."""

    def resolve() -> tuple[Place, str]:
        place = confinement.resolve(path)
        return place, confinement.shown(place)

    start, shown = await run_stoppable(context, lambda _: resolve())
    await context.session.authorize(action, (shown,), save=("*",), metadata={"path": shown, **metadata})
    return start


def _glob(confinement: Confinement, wanted: PathPattern, start: Place, limit: int, rules: PathRules, stop: Stop) -> str:
    walk = Walk(confinement, start, stop)
    found: list[str] = []
    left_out = 0
    for place, entry, parts in walk:
        if entry.kind in ("file", "link") and wanted.matches(parts):
            shown = confinement.shown(place)
            if rules.denies(shown):
                left_out += 1
                continue
            if len(found) == limit:
                return _listed(found, f"only the first {limit} results are shown", _not_permitted(left_out))
            found.append(clean(shown))
    note = "there are too many files, not all were looked at" if walk.cut_short else ""
    return _listed(found, note, _not_permitted(left_out))


def _listed(found: list[str], *notes: str) -> str:
    text = "\n".join(found) if found else "(nothing found)"
    note = "; ".join(filter(None, notes))
    return f"{text}\n\n({note})" if note else text


def _not_permitted(count: int) -> str:
    if count == 0:
        return ""
    were, them = ("was", "it") if count == 1 else ("were", "them")
    return f"{count} file{'s' * (count > 1)} {were} left out: the permission rules keep {them} closed"


class _Search:
    """One `grep`: what is looked for, and what was found so far."""

    def __init__(self, pattern: str, include: str | None, ignore_case: bool, limit: int, rules: Sequence[Rule]) -> None:
        self._reading = PathRules(rules, "read")
        self._searching = PathRules(rules, "grep")
        self._left_out = 0
        self._too_many = False
        self._expression = _compiled(pattern, ignore_case)
        self._include = None if include is None else PathPattern(include if "/" in include else f"**/{include}")
        self._limit = limit
        self._left = MAX_SEARCH_BYTES
        self._found: list[tuple[str, str]] = []

    def run(self, confinement: Confinement, start: Place, stop: Stop) -> None:
        """Search. Raises ToolFailure."""
        with confinement.open(start) as opened:
            if not opened.is_directory:
                shown = confinement.shown(start)
                if self._reading.denies(shown):
                    raise PermissionDeniedError("read", (shown,))
                self._file(opened, shown, stop)
                return
        walk = Walk(confinement, start, stop)
        for place, entry, parts in walk:
            if self._wants(entry, parts):
                self._place(confinement, place, stop)
                if len(self._found) > self._limit or self._left <= 0:
                    break
        self._too_many = walk.cut_short

    def to_ask(self) -> tuple[str, ...]:
        """The files that something was found in, and that may only be read when somebody allows it."""
        files = dict.fromkeys(shown for shown, _ in self._found[: self._limit])
        return tuple(shown for shown in files if self._reading.effect(shown) == "ask")

    def leave_out(self, files: Collection[str]) -> None:
        """Show nothing of these files."""
        self._left_out += len(files)
        self._found = [(shown, line) for shown, line in self._found if shown not in files]

    def _wants(self, entry: Entry, parts: tuple[str, ...]) -> bool:
        return entry.kind == "file" and (self._include is None or self._include.matches(parts))

    def _place(self, confinement: Confinement, place: Place, stop: Stop) -> None:
        shown = confinement.shown(place)
        if self._reading.denies(shown) or self._searching.denies(shown):
            self._left_out += 1
            return
        try:
            with confinement.open(place) as opened:
                self._file(opened, shown, stop)
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
                text = f"{clean(line[:MAX_SHOWN])}{'…' if len(line) > MAX_SHOWN else ''}"
                self._found.append((shown, f"{clean(shown)}:{number}: {text}"))
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

    def result(self) -> str:
        """What was found, for the model."""
        note = ""
        if len(self._found) > self._limit:
            note = f"only the first {self._limit} results are shown"
        elif self._left <= 0:
            note = f"only the first {MAX_SEARCH_BYTES} bytes were searched"
        elif self._too_many:
            note = "there are too many files, not all were searched"
        return _listed([line for _, line in self._found[: self._limit]], note, _not_permitted(self._left_out))


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
