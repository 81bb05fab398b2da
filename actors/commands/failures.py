"""Errors as people meet them: one sentence with what to do about it, and an exit code.

Rules:
- 2 is for what another command line would have avoided; 1 for work that failed; 130 for interruptions.
- What nobody foresaw is told in one sentence too; `steerway --traceback ...` shows where it came from.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from typing import IO, Any, Final

import click

FAILED: Final = 1
WRONG_USE: Final = 2
INTERRUPTED: Final = 130

_WRONG_USE: Final = frozenset(
    ("InvalidRequestError", "InvalidCursorError", "ModelNotSelectedError", "ModelUnavailableError", "MethodNotFoundError")
)
_TOKEN_FILE: Final = "Name the server's token file with --token-file."
_ADVICE: Final = {
    "ModelNotSelectedError": "Say `--model demo/demo` to try it.",
    "SessionNotFoundError": "`steerway sessions list` shows those there are.",
    "UnauthorizedError": _TOKEN_FILE,
    "StoreInUseError": "{server} --take-over (of serve and run) goes past an owner that does not answer.",
    "ServiceUnavailableError": "Try again when the server is up again.",
    "SubscriberOverflowError": "Run the command again.",
}


class Refusal(click.ClickException):
    """Ends the program with a sentence on standard error."""

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self._code = exit_code

    @property
    def exit_code(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]  # click declares a default
        return self._code

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"steerway: {self.message}", file=file or sys.stderr)


def told(error: BaseException) -> Refusal | None:
    """The sentence and exit code for an error; None for what is not an error (`SystemExit`, a reader that left)."""
    from ...protocol.values.errors import ClientError, DeclaredError, SteerwayError
    from ..configuration import ConfigurationError

    match error:
        case BaseExceptionGroup():
            group: BaseExceptionGroup[BaseException] = error  # pyright: ignore[reportUnknownVariableType]
            return told(min(group.exceptions, key=_weight))
        case KeyboardInterrupt():
            return Refusal("Interrupted.", INTERRUPTED)
        case OSError() if error.errno == errno.EPIPE:
            return None
        case ConfigurationError():
            return Refusal(error.message, WRONG_USE)
        case ClientError(reason="refused", status=401):
            return Refusal("The server refused the token, or wants one; it says where that is when it starts. " + _TOKEN_FILE)
        case DeclaredError():
            return Refusal(advised(error.tag, error.message), WRONG_USE if error.tag in _WRONG_USE else FAILED)
        case SteerwayError():
            return Refusal(str(error))
        case OSError():
            where = f"{error.filename}: " if error.filename else ""
            return Refusal(f"{where}{str(error.strerror or error).rstrip('.')}.")
        case Exception():
            kind = type(error).__name__
            return Refusal(f"Something unforeseen went wrong ({kind}: {error}); `steerway --traceback ...` shows where.")
        case _:
            return None


def advised(tag: str, message: str) -> str:
    """The message of a declared error, with what to do about it on this command line."""
    advice = _ADVICE.get(tag)
    if advice is None:
        return message
    return f"{message} {advice.format(server=_local_server()) if '{' in advice else advice}"


def _local_server() -> str:
    """How the server of this machine is asked, if one is known."""
    from ...protocol.values.errors import ClientError
    from ..client.local import read_local

    try:
        url, _ = read_local()
    except ClientError:
        return "If it is a server, --url asks it."
    return f"If it is the server of this machine, `--url {url}` asks it."


def _weight(error: BaseException) -> int:
    """Which of several errors is told: an interruption before an error."""
    order: tuple[Callable[[BaseException], bool], ...] = (
        lambda error: isinstance(error, KeyboardInterrupt),
        lambda error: isinstance(error, Exception),
    )
    return next((place for place, fits in enumerate(order) if fits(error)), len(order))
