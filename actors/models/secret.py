"""A provider's key: what holds it, and where it comes from.

Rules:
- A key comes from an environment variable or a file, and is read anew whenever a model is resolved, so that it can be changed
  while the runtime runs. It goes nowhere but into the header that carries it.
- A key file is a regular file of this user, or of root, that nobody else may read or write: any mode wider than 0600 is
  refused, whatever it holds.
- No complaint repeats anything of what was read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import Final

MAX_KEY_BYTES: Final = 16 * 1024
_WIDER_THAN_OWNER: Final = 0o177
"""The bits that mode 0600 leaves out."""


class Secret:
    """A credential that no representation, log line or encoder shows."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The credential itself, for the header that carries it."""
        return self._value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __repr__(self) -> str:
        return "Secret(...)"


class NoKey(Exception):
    """There is no usable key; the message is a clause that says what to do."""


def key_from_variable(environ: Mapping[str, str], name: str) -> Secret:
    """The key in an environment variable. Raises `NoKey`."""
    return _secret(environ.get(name, ""), f"the environment variable {name}")


def key_from_file(path: str) -> Secret:
    """The key in a file, without the white space around it. Raises `NoKey`."""
    try:
        # Without waiting for the other end of what may be a pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise NoKey(f"its key file {path} cannot be opened ({_reason(error)})") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise NoKey(f"its key file {path} is no regular file")
        if status.st_mode & _WIDER_THAN_OWNER:
            mode = f"{stat.S_IMODE(status.st_mode):04o}"
            raise NoKey(f"its key file {path} has the mode {mode}; make it its owner's alone with chmod 600")
        if status.st_uid not in (os.geteuid(), 0):
            raise NoKey(f"its key file {path} belongs to another user")
        content = os.read(descriptor, MAX_KEY_BYTES + 1)
        if len(content) > MAX_KEY_BYTES:
            raise NoKey(f"its key file {path} holds more than {MAX_KEY_BYTES} bytes, which is no key")
    except OSError as error:
        raise NoKey(f"its key file {path} cannot be read ({_reason(error)})") from None
    finally:
        os.close(descriptor)
    return _secret(content.decode("utf-8", "replace"), f"the key file {path}")


def _secret(text: str, place: str) -> Secret:
    key = text.strip()
    if not key:
        raise NoKey(f"its key is missing; set {place}")
    if not (key.isascii() and key.isprintable()):
        raise NoKey(f"the value of {place} is no key: it is not printable ASCII")
    return Secret(key)


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or "it is no path"
