"""`write` and `edit`: whole files, and exact replacements within a file.

Rules:
- What would be changed is worked out first, so that input that cannot work asks nobody; then permission is asked for, then
  the file is replaced (see `replacing`).
- Changes of one session to one file wait for one another, permission included: two edits of one turn both happen. Sessions
  wait for one another only while a file is replaced: a permission that nobody gives holds up no other session.
- `edit` replaces text that is there exactly once, or everywhere if asked to. A file whose lines all end in CRLF keeps them,
  whichever ending the model uses; a file that is not UTF-8 is left alone.
- Cancelled: the call leaves at once. The file is then replaced or not, but never in part.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any
from weakref import WeakValueDictionary

import trio
from msgspec import Meta

from ...protocol.llm.unicode import well_formed
from ...protocol.values.ids import SessionId
from ...protocol.values.tool import TextContent
from .confinement import Confinement
from .replacing import MAX_CONTENT_BYTES, Seen, look, replace
from .stopping import run_stoppable
from .tool import Tool, ToolContext, ToolFailure, ToolOutput, tool

MAX_SHOWN = 4_000
"""Characters of a text that whoever is asked for permission sees."""

_Path = Annotated[str, Meta(min_length=1, description="The file: relative to the working directory, or absolute inside it.")]


class Turns:
    """Who changes which file now."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[tuple[str, SessionId | None], trio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def take(self, path: str, session_id: SessionId | None = None) -> AsyncGenerator[None]:
        """Wait until no other call (of the session, if one is named) has the file, and keep it for a block."""
        lock = self._locks.get((path, session_id))
        if lock is None:
            lock = self._locks[path, session_id] = trio.Lock()
        async with lock:
            yield


def write_tool(confine: Callable[[str], Confinement], turns: Turns) -> Tool:
    """The tool. `confine(directory)` says where a session at that location may write."""

    @tool(name="write", asks_itself=True)
    async def write(
        context: ToolContext,
        path: _Path,
        content: Annotated[str, Meta(description="The whole new content of the file.")],
    ) -> ToolOutput:
        """Write a file inside the working directory: make it, with its directories, or replace its whole content."""
        data = _encoded(content)
        confinement = confine(context.location.directory)
        real = await _real_path(context, confinement, path)
        async with turns.take(real, context.session_id):
            seen = await run_stoppable(context, lambda _: look(confinement, path))
            created = seen.status is None
            shown = {"path": seen.shown, "created": created, "bytes": len(data), "content": _excerpt(content)}
            await context.session.authorize("write", (seen.shown,), save=("*",), metadata=shown)
            async with turns.take(real):
                await run_stoppable(context, lambda stop: replace(seen, data, stop))
        what = "Created" if created else "Replaced the content of"
        return _said(f"{what} `{seen.shown}`: {len(data)} bytes.", {"path": seen.shown, "bytes": len(data), "created": created})

    return write


def edit_tool(confine: Callable[[str], Confinement], turns: Turns) -> Tool:
    """The tool. `confine(directory)` says where a session at that location may write."""

    @tool(name="edit", asks_itself=True)
    async def edit(
        context: ToolContext,
        path: _Path,
        old_string: Annotated[str, Meta(min_length=1, description="The exact text to replace, without line numbers.")],
        new_string: Annotated[str, Meta(description="What takes its place.")],
        replace_all: Annotated[bool, Meta(description="Replace every occurrence instead of exactly one.")] = False,
    ) -> ToolOutput:
        """Replace text in a file inside the working directory.

        `old_string` has to be in the file exactly once, spaces and line breaks included, unless `replace_all` is set.
        """
        if old_string == new_string:
            raise ToolFailure("`old_string` and `new_string` are the same; there is nothing to replace.")
        old, new = well_formed(old_string), well_formed(new_string)
        confinement = confine(context.location.directory)
        real = await _real_path(context, confinement, path)
        async with turns.take(real, context.session_id):
            seen, data, count = await run_stoppable(context, lambda _: _edited(confinement, path, old, new, replace_all))
            shown = {"path": seen.shown, "old": _excerpt(old), "new": _excerpt(new), "replacements": count}
            await context.session.authorize("edit", (seen.shown,), save=("*",), metadata=shown)
            async with turns.take(real):
                await run_stoppable(context, lambda stop: replace(seen, data, stop))
        times = "once" if count == 1 else f"{count} times"
        return _said(f"Replaced the text {times} in `{seen.shown}`.", {"path": seen.shown, "replacements": count})

    return edit


async def _real_path(context: ToolContext, confinement: Confinement, path: str) -> str:
    return await run_stoppable(context, lambda _: confinement.resolve(path).path)


def _edited(confinement: Confinement, path: str, old: str, new: str, everywhere: bool) -> tuple[Seen, bytes, int]:
    seen = look(confinement, path)
    if seen.status is None:
        raise ToolFailure(f"`{seen.shown}` does not exist; use write to make it.")
    if seen.content is None:
        raise ToolFailure(f"`{seen.shown}` is larger than {MAX_CONTENT_BYTES} bytes; it cannot be edited.")
    try:
        text = seen.content.decode()
    except UnicodeDecodeError:
        raise ToolFailure(f"`{seen.shown}` is not UTF-8 text; it cannot be edited.") from None
    old, new = _with_endings_of(text, old), _with_endings_of(text, new)
    count = text.count(old)
    if count == 0:
        raise ToolFailure(f"`old_string` is not in `{seen.shown}`. It has to be exact, spaces and line breaks included.")
    if count > 1 and not everywhere:
        raise ToolFailure(
            f"`old_string` is in `{seen.shown}` {count} times. Give more of the text around it, or set replace_all."
        )
    return seen, _encoded(text.replace(old, new)), count


def _with_endings_of(text: str, piece: str) -> str:
    """The piece with the line ending that all lines of the text have; as it is where they differ."""
    crlf = text.count("\r\n")
    if crlf == 0:
        return piece.replace("\r\n", "\n")
    if crlf == text.count("\n"):
        return piece.replace("\r\n", "\n").replace("\n", "\r\n")
    return piece


def _encoded(text: str) -> bytes:
    data = well_formed(text).encode()
    if len(data) > MAX_CONTENT_BYTES:
        raise ToolFailure(f"The content would be {len(data)} bytes; at most {MAX_CONTENT_BYTES} are written.")
    return data


def _excerpt(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def _said(text: str, structured: dict[str, Any]) -> ToolOutput:
    return ToolOutput((TextContent(text=text),), structured)
