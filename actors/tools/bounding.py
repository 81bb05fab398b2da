"""Model Tool Output: the bounded projection of a tool's result that history keeps.

Rules (seed, "Model Tool Output"; reference 6.3):
- One aggregate limit for all text of a settlement. On excess all text becomes one preview, before the media; media and the
  structured value are never counted nor changed. Structured-only output is shown as JSON, bounded like text.
- The complete text goes to a Managed Tool Output File. If that fails, or takes too long, the output is bounded all the same,
  lossy and without a path; the call stays successful, and operators get a log line, a count and a diagnostic.
- Nothing here raises for what a tool gave. `bound` is half of the completion region: the turn shields it together with the
  commit that follows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from ...protocol.llm.unicode import well_formed
from ...protocol.values import Failure, FileContent, ManagedOutput, TextContent, ToolContent
from ...storage.outputs import OutputFile, OutputFiles
from ..logs import Logger
from .capture import Captured, OutputLimits, TextCapture, clean
from .settlement import MAX_MESSAGE, Failed, RawResult, Settlement, Succeeded
from .tool import ToolContext, ToolOutput

if TYPE_CHECKING:
    from ..blocking import Blocking

NO_OUTPUT: Final = "(no output)"
"""Stands for empty output: providers refuse an empty result."""
RETENTION_SECONDS: Final = 3.0
"""How long keeping the whole text may hold up a settlement."""

OnLost = Callable[[ToolContext, str], None]
"""Told in the loop, synchronously, that a complete output could not be kept, and why."""

_log = Logger("steerway.tools")


class OutputBounds:
    """Bounds what tools give.

    `files` is where complete texts go; `blocking` should not be the one that tools run on, so that hung tools cannot
    hold up settlements. `on_lost` must not raise.
    """

    def __init__(
        self,
        files: OutputFiles,
        blocking: Blocking,
        *,
        limits: OutputLimits | None = None,
        on_lost: OnLost | None = None,
        seconds: float = RETENTION_SECONDS,
    ) -> None:
        self._files = files
        self._blocking = blocking
        self._limits = limits or OutputLimits()
        self._on_lost = on_lost
        self._seconds = seconds
        self._kept = 0
        self._lost = 0

    def statistics(self) -> dict[str, int]:
        """Outputs whose whole text went to a file, and outputs that are lossy."""
        return {"outputs_kept": self._kept, "outputs_lost": self._lost}

    async def bound(self, result: RawResult, context: ToolContext) -> Settlement:
        """The settlement to store.

        Takes a few seconds at most. Run it shielded, with the commit of the settlement in the same shield. Cancelled
        without a shield it raises Cancelled, and the file it was writing is removed.
        """
        match result:
            case ToolOutput():
                return await self._succeeded(result, context)
            case Failed():
                return await self._failed(result, context)

    async def _succeeded(self, output: ToolOutput, context: ToolContext) -> Succeeded:
        texts = [item.text for item in output.content if isinstance(item, TextContent)]
        if not output.content and output.structured is not None:
            texts = [msgspec.json.format(msgspec.json.encode(output.structured), indent=2).decode()]
        captured = await self._capture(texts, context)
        managed = output.managed_outputs
        if captured is None:
            content = tuple(_cleaned(item) for item in output.content) or (TextContent(text=clean("".join(texts))),)
            lossy = output.lossy
        else:
            content = (TextContent(text=captured.text), *[_cleaned(item) for item in output.content if _is_media(item)])
            managed = (*managed, captured.managed) if captured.managed else managed
            lossy = output.lossy or captured.managed is None
        content = tuple(item for item in content if not isinstance(item, TextContent) or item.text)
        return Succeeded(
            content=content or (TextContent(text=NO_OUTPUT),),
            structured=output.structured,
            managed_outputs=tuple(map(_named, managed)) or None,
            lossy=lossy or None,
        )

    async def _failed(self, failed: Failed, context: ToolContext) -> Failed:
        message = clean(failed.error.message)
        if len(message) <= MAX_MESSAGE:
            return Failed(Failure(type=failed.error.type, message=message, fields=failed.error.fields))
        captured = await self._capture([message], context)
        text = message if captured is None else captured.text
        short = f"{message[:MAX_MESSAGE]}…"
        return Failed(Failure(type=failed.error.type, message=short, fields=failed.error.fields), (TextContent(text=text),))

    async def _capture(self, texts: list[str], context: ToolContext) -> Captured | None:
        """The bounded text, or None when the texts are within the limits as they are."""
        if self._fit(texts):
            return None
        captured = await self._retained(texts)
        if not captured.bounded:
            return None
        if captured.managed is None:
            self._lost += 1
            reason = str(captured.problem)
            _log.warning(
                "a complete tool output could not be kept",
                session_id=context.session_id,
                call_id=context.call_id,
                reason=reason,
            )
            if self._on_lost is not None:
                self._on_lost(context, reason)
        else:
            self._kept += 1
        return captured

    def _fit(self, texts: list[str]) -> bool:
        limits = self._limits
        if sum(map(len, texts)) > limits.max_bytes:
            return False  # for the thread to find out: cleaning may still make it fit
        cleaned = "".join(map(clean, texts))
        lines = cleaned.count("\n") + (0 if cleaned.endswith("\n") or not cleaned else 1)
        return lines <= limits.max_lines and len(cleaned.encode()) <= limits.max_bytes

    async def _retained(self, texts: list[str]) -> Captured:
        job = _Retention(texts, self._limits, self._files)
        try:
            with trio.move_on_after(self._seconds):
                return await self._blocking.run(job.run, abandon_on_cancel=True)
        finally:
            job.wanted = False
        lossy = TextCapture(self._limits, None)
        for text in texts:
            lossy.write(text)
        captured = lossy.finish()
        return Captured(captured.text, captured.bounded, problem=OSError(f"it took more than {self._seconds:g} s"))


class _Retention:
    """The work of a thread: capture texts into a file, unless nobody wants it any more."""

    def __init__(self, texts: list[str], limits: OutputLimits, files: OutputFiles) -> None:
        self._texts = texts
        self._limits = limits
        self._files = files
        self.wanted = True

    def run(self) -> Captured:
        file: OutputFile | None = None

        def create() -> OutputFile:
            nonlocal file
            file = self._files.create()
            return file

        capture = TextCapture(self._limits, create)
        for text in self._texts:
            if self.wanted:
                capture.write(text)
        captured = capture.finish()
        if not self.wanted and file is not None:
            file.discard()
        return captured


def _is_media(item: ToolContent) -> bool:
    return isinstance(item, FileContent)


def _cleaned(item: ToolContent) -> ToolContent:
    match item:
        case TextContent():
            return TextContent(text=clean(item.text))
        case FileContent():
            name = None if item.name is None else clean(item.name)
            return FileContent(data=item.data, mime=clean(item.mime), name=name)


def _named(output: ManagedOutput) -> ManagedOutput:
    return ManagedOutput(path=well_formed(output.path), bytes=output.bytes, lines=output.lines, complete=output.complete)
