"""A shell command as the resources that permission rules judge.

Rules:
- A rule is about one simple command: an approval of `ls *` must not let `ls; rm -rf ~` through. The resources are the whole
  command and, where it has more than one part, every part: each of them has to be allowed, and any of them can be denied.
- Quotes are respected only where the command is plain enough for that to be certain. Otherwise it is cut wherever a shell could
  cut it: too many parts ask once too often, too few would not ask at all.
- A redirection is a part of its own, `> file`, unless it only joins or drops the command's own output.
- What `always` keeps is the first word of each part with anything behind it. A part whose first word is no plain word (an
  assignment, something quoted, a pattern), or is a way to run anything (`sudo`, `env`, `then`), has nothing to keep.
"""

from __future__ import annotations

import re
from typing import Final

_HARMLESS: Final = re.compile(r"(?:(?<!\S)\d)?(?:>&\s*\d|>>?\s*/dev/null)(?![^\s;&|)])")
_UNCERTAIN: Final = re.compile(r"`|\$[(\"'{]|[<>]\(|<<|#")
_PLAIN_WORD: Final = re.compile(r"[A-Za-z0-9_./+-]+")
_SEPARATORS: Final = ";&|\n()`"
_RUNS_ANYTHING: Final = re.compile(
    r"(?:.*/)?(?:\.|bash|busybox|builtin|case|command|dash|do|doas|else|env|eval|exec|find|for|if|nice|nohup|sh|source|sudo|then"
    r"|time|timeout|until|while|xargs|zsh)"
)


def resources(command: str) -> tuple[str, ...]:
    """The whole command, then its parts if there are several."""
    parts = _parts(command)
    return (command, *parts) if len(parts) > 1 else (command,)


def patterns_to_save(command: str) -> tuple[str, ...]:
    """The patterns that an answer `always` would keep. They need not be enough for all of the command."""
    first_words = [part.split(maxsplit=1)[0] for part in _parts(command)]
    return tuple(dict.fromkeys(f"{word} *" for word in first_words if _keeps(word)))


def _keeps(word: str) -> bool:
    return _PLAIN_WORD.fullmatch(word) is not None and _RUNS_ANYTHING.fullmatch(word) is None


def _parts(command: str) -> list[str]:
    text = _HARMLESS.sub(" ", command)
    quoting = _UNCERTAIN.search(text) is None
    parts: list[str] = []
    part: list[str] = []
    quote = ""
    letters = iter(text)
    for letter in letters:
        if quote:
            quote = "" if letter == quote else quote
            if quote == '"' and letter == "\\":
                letter += next(letters, "")
        elif quoting and letter == "\\":
            letter += next(letters, "")
        elif quoting and letter in "'\"":
            quote = letter
        elif letter in _SEPARATORS or letter in "<>":
            parts.append("".join(part))
            part = []
            if letter in _SEPARATORS:
                continue
        part.append(letter)
    parts.append("".join(part))
    shown = (part.strip().rstrip("$").rstrip() for part in parts)
    return [part for part in shown if part and part not in "<>"]
