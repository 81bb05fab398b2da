"""What a call comes to: the one settlement of a tool call, and how everything that can happen in a tool maps to one.

Rules (reference 0.2 row 12, 6.1):
- A tool that does not exist here, input that does not fit, a `ToolFailure`, a defect and output that does not fit are all
  failed calls that the model sees; the turn goes on.
- A failure says what helps the model and nothing of our inside: no traceback, no paths, no names of tools not offered.
- Cancellation passes through, also out of a group of exceptions: nothing else may come along with it. So does what the user
  declined (`DeclinedError`), unless the call is cancelled as well.
- Input is decoded first, then the call is authorized, then the tool runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, cast

import trio

from ...protocol.values import (
    TOOL_EXECUTION,
    TOOL_INVALID_INPUT,
    TOOL_UNKNOWN,
    Failure,
    ManagedOutput,
    ToolContent,
)
from ..logs import Logger
from .capture import clean
from .tool import DeclinedError, InvalidInput, InvalidOutput, Tool, ToolContext, ToolFailure, ToolOutput

MAX_MESSAGE: Final = 2_000
"""Characters of a failure's message; a longer one stands bounded in the failure's content."""

_RAW_EXCERPT: Final = 200

_log = Logger("steerway.tools")


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The fields of `session.tool.succeeded`, bounded and ready to be stored."""

    content: tuple[ToolContent, ...]
    structured: Any = None
    managed_outputs: tuple[ManagedOutput, ...] | None = None
    lossy: bool | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The fields of `session.tool.failed`."""

    error: Failure
    content: tuple[ToolContent, ...] | None = None


Settlement = Succeeded | Failed

RawResult = ToolOutput | Failed
"""What running a call gave, not bounded yet: never publish it, always pass it to `bound`."""


def unknown_tool(name: str, offered: tuple[str, ...]) -> Failed:
    """There is no such tool in the offered set. Only what was offered anyway is named."""
    known = f" The tools here are: {', '.join(offered)}." if offered else " No tools are offered."
    return _failed(TOOL_UNKNOWN, f"There is no tool `{_excerpt(name, 64)}`.{known}")


def malformed_input(name: str, raw: str) -> Failed:
    """The arguments were not one JSON object. The model sees how they began, since history shows an empty object."""
    return _failed(
        TOOL_INVALID_INPUT,
        f"`{name}` was not run: its arguments must be one valid JSON object. They were {len(raw)} characters, "
        f"beginning with: {_excerpt(raw, _RAW_EXCERPT)}",
    )


async def run_tool(tool: Tool, arguments: dict[str, Any], context: ToolContext) -> RawResult:
    """Decode the input, have the call authorized, and run the tool. Returns without a checkpoint after the tool, so that a
    success is never lost to a cancellation that came later. Raises only trio.Cancelled, DeclinedError and KeyboardInterrupt.
    """
    try:
        decoded = tool.decode(arguments)
    except InvalidInput as error:
        return _failed(TOOL_INVALID_INPUT, f"`{tool.name}` was not run: {error}")
    except Exception as error:
        _log_defect(tool, context, error)
        return _failed(TOOL_INVALID_INPUT, f"`{tool.name}` was not run: its input could not be read.")
    try:
        if not tool.asks_itself:
            await context.session.authorize(tool.name, ("*",), save=("*",))
        return await tool.invoke(decoded, context)
    except DeclinedError:
        raise
    except ToolFailure as failure:
        return _failed(failure.type, _message(failure))
    except InvalidOutput as error:
        _log_defect(tool, context, error)
        return _failed(TOOL_EXECUTION, f"`{tool.name}` ran, but what it gave is not a valid output.")
    except BaseExceptionGroup as group:
        return _from_group(tool, context, group)
    except (Exception, SystemExit) as error:  # a tool's sys.exit() must not end the runtime
        return _defect(tool, context, error)


def _from_group(tool: Tool, context: ToolContext, group: BaseExceptionGroup[BaseException]) -> Failed:
    cancelled, rest = group.split(trio.Cancelled)
    _, foreign = group.split((Exception, SystemExit, trio.Cancelled))
    if foreign is not None:
        raise group  # an interrupt from the keyboard is not the tool's
    if cancelled is not None:
        if rest is not None:
            _log_defect(tool, context, rest)
        raise cancelled
    declined, rest = group.split(DeclinedError)
    if declined is not None:
        if rest is not None:
            _log_defect(tool, context, rest)
        raise _leaves(declined)[0]
    failures, others = group.split(ToolFailure)
    if failures is not None and others is None:
        leaves = _leaves(failures)
        kinds = {failure.type for failure in leaves if isinstance(failure, ToolFailure)}
        kind = kinds.pop() if len(kinds) == 1 else TOOL_EXECUTION
        return _failed(kind, "\n".join(_message(failure) for failure in leaves))
    return _defect(tool, context, group)


def _leaves(group: BaseExceptionGroup[Any]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found.extend(_leaves(cast("BaseExceptionGroup[Any]", error)) if isinstance(error, BaseExceptionGroup) else [error])
    return found


def _defect(tool: Tool, context: ToolContext, error: BaseException) -> Failed:
    _log_defect(tool, context, error)
    return _failed(TOOL_EXECUTION, f"`{tool.name}` failed because of an error inside the tool.")


def _log_defect(tool: Tool, context: ToolContext, error: BaseException) -> None:
    _log.error(
        "a tool has a defect",
        tool=tool.name,
        session_id=context.session_id,
        call_id=context.call_id,
        exc_info=error,
    )


def _message(failure: BaseException) -> str:
    return str(failure) or "The tool failed and gave no reason."


def _failed(kind: str, message: str) -> Failed:
    return Failed(Failure(type=kind, message=message))


def _excerpt(text: str, size: int) -> str:
    return clean(text if len(text) <= size else f"{text[:size]}…")
