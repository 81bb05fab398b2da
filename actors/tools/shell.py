"""`shell`: a command line, its output bounded while it is read.

Rules (semantics, "Tools"):
- The command runs below the location with a filtered environment (see `environment`), as a session of its own with a sure end
  (see `processes`). It is not confined: that is what permission is asked for (see `commands`).
- Output is read as it comes into a capture, in a thread, whatever its size; no more than a pipe's worth waits meanwhile.
- When the command ends, whatever it left running is ended too, and what is in the pipe is still read. A daemon that holds the
  pipe open is not waited for.
- A time-out is an output like any other, with what was printed until then. Cancelled: everything is ended first, which takes
  some seconds at most; then Cancelled goes on and the output is dropped.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

import trio
from msgspec import Meta

from ...protocol.values.tool import TextContent
from .capture import Captured, OutputLimits, SpillFile, TextCapture, clean
from .commands import patterns_to_save, resources
from .confinement import Confinement
from .processes import Child
from .stopping import run_stoppable
from .tool import Tool, ToolContext, ToolFailure, ToolOutput, tool

DEFAULT_SECONDS: Final = 120.0
MAX_SECONDS: Final = 600.0
DRAIN_SECONDS: Final = 0.5
"""How long output is still read when nothing that could be ended is left."""
PROGRESS_SECONDS: Final = 1.0

_CHUNK: Final = 1 << 16
_SHOWN_BYTES: Final = 4_096
_NOTE_LINES: Final = 6
_NOTE_BYTES: Final = 400


def shell_tool(
    confine: Callable[[str], Confinement],
    environment: Mapping[str, str],
    limits: OutputLimits,
    create_output: Callable[[], SpillFile] | None,
) -> Tool:
    """The tool. `confine(directory)` says where commands may start, `environment` is what they get, `create_output` makes
    the file for an output that outgrows `limits`.
    """
    room = OutputLimits(max_lines=max(limits.max_lines - _NOTE_LINES, 1), max_bytes=max(limits.max_bytes - _NOTE_BYTES, 1))

    @tool(name="shell", asks_itself=True)
    async def shell(
        context: ToolContext,
        command: Annotated[str, Meta(min_length=1, description="What `sh -c` runs.")],
        workdir: Annotated[
            str, Meta(description="Where to run it: relative to the working directory, or absolute inside it.")
        ] = ".",
        timeout_seconds: Annotated[
            float, Meta(gt=0, le=MAX_SECONDS, description="Seconds after which the command is ended.")
        ] = DEFAULT_SECONDS,
    ) -> ToolOutput:
        """Run a shell command. There is no terminal and no input; stdout and stderr come back together, with the exit code.

        Each call starts afresh in the working directory. Everything that the command leaves running is ended with it.
        """
        confinement = confine(context.location.directory)
        directory, shown = await run_stoppable(context, lambda _: _workdir(confinement, workdir))
        if not command.strip():
            raise ToolFailure("The command is empty.")
        await context.session.authorize(
            "shell",
            resources(command),
            save=patterns_to_save(command),
            metadata={"command": command, "workdir": shown, "timeout_seconds": timeout_seconds},
        )
        try:
            child = await Child.start(
                ["/bin/sh", "-c", command], directory=directory, environment={**environment, "PWD": directory}
            )
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise ToolFailure(f"The command could not be started: {reason}.") from None
        return await _Run(child, context, TextCapture(room, create_output)).see_through(timeout_seconds)

    return shell


def _workdir(confinement: Confinement, path: str) -> tuple[str, str]:
    place = confinement.resolve(path)
    with confinement.open(place) as opened:
        if not opened.is_directory:
            raise ToolFailure(f"`{confinement.shown(place)}` is not a directory.")
    return place.path, confinement.shown(place)


class _Run:
    """One command from its start to its output."""

    def __init__(self, child: Child, context: ToolContext, capture: TextCapture) -> None:
        self._child = child
        self._context = context
        self._capture = capture
        self._capturing = threading.Lock()
        self._read_all = trio.Event()
        self._latest = b""
        self._unseen = False

    async def see_through(self, seconds: float) -> ToolOutput:
        finished = False
        try:
            async with trio.open_nursery() as readers:
                readers.start_soon(self._read)
                readers.start_soon(self._show)
                with trio.move_on_after(seconds) as limit:
                    await self._child.wait()
                await self._child.end()
                with trio.move_on_after(DRAIN_SECONDS):
                    await self._read_all.wait()
                readers.cancel_scope.cancel()
            captured = await self._in_thread(self._capture.finish)
            finished = True
            return self._output(captured, timed_out=limit.cancelled_caught, seconds=seconds)
        finally:
            with trio.CancelScope(shield=True):
                await self._child.end()
                self._child.output.close()
                if not finished:
                    with trio.move_on_after(DRAIN_SECONDS):  # in the thread it happens all the same
                        await self._in_thread(self._capture.abandon)

    async def _read(self) -> None:
        while piece := await self._child.output.receive_some(_CHUNK):
            self._latest = (self._latest + piece)[-_SHOWN_BYTES:]
            self._unseen = True
            await self._in_thread(lambda piece=piece: self._capture.write(piece))
        self._read_all.set()

    async def _show(self) -> None:
        while True:
            await trio.sleep(PROGRESS_SECONDS)
            if self._unseen:
                self._unseen = False
                self._context.session.progress(clean(self._latest.decode("utf-8", "replace")))

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        """Work on the capture, one piece after another, even where one was abandoned in the middle."""

        def alone() -> Any:
            with self._capturing:
                return work()

        return await self._context.blocking.run(alone, abandon_on_cancel=True)

    def _output(self, captured: Captured, *, timed_out: bool, seconds: float) -> ToolOutput:
        code = self._child.exit_code
        structured: dict[str, Any] = {"exit_code": code if code is not None and code >= 0 else None, "timed_out": timed_out}
        notes: list[str] = []
        if timed_out:
            notes.append(f"the command was ended: it ran longer than {seconds:g} s")
        elif code is not None and code < 0:
            structured["signal"] = _signal_name(-code)
            notes.append(f"the command was ended by {structured['signal']}")
        else:
            notes.append(f"exit code {code}")
        if not self._read_all.is_set():
            structured["left_running"] = True
            notes.append("something it started left its session, may still run, and holds the output open")
        text = captured.text.removesuffix("\n") or "(no output)"
        return ToolOutput(
            (TextContent(text=f"{text}\n\n[{'; '.join(notes)}]"),),
            structured,
            managed_outputs=(captured.managed,) if captured.managed else (),
            lossy=captured.bounded and captured.managed is None,
        )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
