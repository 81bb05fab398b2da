"""The environment of child processes: the runtime's own, without anything that looks like a credential.

Rules:
- Dropped are the variables that hold a configured provider's key, every other variable with the same value, names that speak
  of keys, tokens, secrets or passwords, and values that are URLs with a password.
- Programs are told that there is no terminal and nobody to ask: no pager, no colours, no prompt.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from typing import Final

_TELLING: Final = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|APIKEY|COOKIE|AUTHORIZATION|(?:^|_)(?:KEYS?|PASS|PAT|AUTH)(?:_|$)", re.IGNORECASE
)
_URL_WITH_PASSWORD: Final = re.compile(r"://[^/@\s:]*:[^/@\s]+@")
_MIN_SECRET: Final = 8
"""A shorter value is a stand-in that may equal anything."""
_FORCED: Final = {"TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0", "NO_COLOR": "1"}
_KEPT: Final = frozenset({"SSH_AUTH_SOCK"})
"""A way to an agent that signs and never tells a key."""


def child_environment(environ: Mapping[str, str], secret_names: Collection[str] = ()) -> dict[str, str]:
    """What a child process gets. `secret_names` are the variables that providers' keys are read from."""
    secret_values = {environ[name] for name in secret_names if len(environ.get(name, "")) >= _MIN_SECRET}
    kept = {
        name: value
        for name, value in environ.items()
        if name in _KEPT
        or not (
            name in secret_names
            or value in secret_values
            or _TELLING.search(name) is not None
            or _URL_WITH_PASSWORD.search(value) is not None
        )
    }
    return {"PATH": os.defpath, **kept, **_FORCED}
