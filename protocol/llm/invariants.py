"""What must hold of every list of request messages, whatever history it came from; checked before every provider call.

Rules (semantics, "Request invariants"):
- Every local call has exactly one result, directly after its assistant message, in the order of the calls; a call the
  provider executed carries its result itself. A result without its call is refused.
- No message is empty, and an assistant message has something beside blank text.
- A system update says something, and never stands between a call and its result.
- Call ids are unique and short, tool names are what every protocol takes: 1 to 64 of `[A-Za-z0-9_-]`, of which the first is a
  letter or `_`. Inputs are JSON objects.
- Every string is well-formed Unicode, and media are of a kind that providers take.

Lowering establishes all of this; the check is the second lock, so that a defect becomes an error of ours and not a session
that a provider refuses for good.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from ..values.errors import SteerwayError
from .request import AssistantMessage, Call, Media, Reasoning, RequestMessage, SystemUpdate, Text, ToolMessage, UserMessage
from .unicode import is_encodable, is_object, is_well_formed

IMAGE_TYPES: Final = frozenset(("image/png", "image/jpeg", "image/gif", "image/webp"))
"""The media that every provider protocol with images takes."""
PDF_TYPE: Final = "application/pdf"
MEDIA_TYPES: Final = IMAGE_TYPES | {PDF_TYPE}
"""All media that there can be in a request. What one target takes of them is for lowering to know."""

MAX_NAME_LENGTH: Final = 64
MAX_CALL_ID_LENGTH: Final = 64

VALID_TOOL_NAME: Final = re.compile(rf"[A-Za-z_][A-Za-z0-9_-]{{0,{MAX_NAME_LENGTH - 1}}}")
VALID_CALL_ID: Final = re.compile(rf"[A-Za-z0-9_.:-]{{1,{MAX_CALL_ID_LENGTH}}}")


class RequestInvariantError(SteerwayError):
    """The message at `index` breaks a rule: a defect of ours, and nothing was sent. `reason` says which rule."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(f"request message {index}: {reason}")
        self.index = index
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.index, self.reason))


def check(messages: Iterable[RequestMessage]) -> None:
    """Raises `RequestInvariantError` at the first violation."""
    checker = Checker()
    checker.extend(messages)
    checker.finish()


class Checker:
    """`check` for messages that come in steps. After an error it is of no more use."""

    def __init__(self) -> None:
        self._awaited: list[Call] = []
        self._ids: set[str] = set()
        self._count = 0

    def extend(self, messages: Iterable[RequestMessage]) -> None:
        """Check the messages that follow those of earlier calls. Raises `RequestInvariantError`, whose index counts all."""
        for message in messages:
            reason = _misplaced(message, self._awaited) or _malformed(message)
            if reason is None and isinstance(message, AssistantMessage):
                calls = [part for part in message.content if isinstance(part, Call)]
                reason = _repeated(calls, self._ids)
                self._awaited = [call for call in calls if not call.executed]
            if reason is not None:
                raise RequestInvariantError(self._count, reason)
            self._count += 1

    def finish(self) -> None:
        """A request may end here: raises `RequestInvariantError` where a call still waits for its result. More may follow."""
        if self._awaited:
            raise RequestInvariantError(self._count - 1, f"the call {self._awaited[0].id} has no result")


def _misplaced(message: RequestMessage, awaited: list[Call]) -> str | None:
    """Takes the result that is due from `awaited`."""
    match message:
        case ToolMessage(call_id=call_id, name=name):
            if not awaited:
                return f"the result of {call_id} follows no call"
            call = awaited.pop(0)
            if (call.id, call.name) != (call_id, name):
                return f"the result of {call_id} stands where that of {call.id} is due"
            return None
        case _:
            return f"the call {awaited[0].id} has no result" if awaited else None


def _repeated(calls: list[Call], ids: set[str]) -> str | None:
    for call in calls:
        if call.id in ids:
            return f"the call id {call.id} is used twice"
        ids.add(call.id)
    return None


def _malformed(message: RequestMessage) -> str | None:
    match message:
        case UserMessage(content=content):
            if not content or not any(_says_something(part) for part in content):
                return "the user message is empty"
        case AssistantMessage(content=content):
            if not any(_says_something(part) for part in content):
                return "the assistant message is empty"
        case SystemUpdate(text=text):
            if not text.strip():
                return "the system update is empty"
            content = (Text(text=text),)
        case ToolMessage(content=content):
            pass
    return next((reason for part in content if (reason := _malformed_part(part))), None)


def _says_something(part: Text | Media | Reasoning | Call) -> bool:
    match part:
        case Text(text=text):
            return bool(text.strip())
        case Reasoning(text=text, metadata=metadata):
            return bool(text.strip() or metadata)
        case Media() | Call():
            return True


def _malformed_part(part: Text | Media | Reasoning | Call) -> str | None:
    match part:
        case Text(text=text, metadata=metadata):
            return None if is_well_formed(text) and is_encodable(metadata) else "a text is not well-formed"
        case Reasoning(text=text, metadata=metadata):
            return None if is_well_formed(text) and is_encodable(metadata) else "reasoning is not well-formed"
        case Media(data=data, mime=mime, name=name):
            if not data or mime not in MEDIA_TYPES:
                return "a medium is empty, or of a kind that is not taken"
            return None if is_well_formed(name or "") else "the name of a medium is not well-formed"
        case Call():
            return _malformed_call(part)


def _malformed_call(call: Call) -> str | None:
    if VALID_CALL_ID.fullmatch(call.id) is None:
        return "a call id is not valid"
    if VALID_TOOL_NAME.fullmatch(call.name) is None:
        return f"the tool name of {call.id} is not valid"
    if not is_object(call.input):
        return f"the input of {call.id} is no JSON object"
    if call.executed and call.result is None:
        return f"the executed call {call.id} has no result"
    rest = (call.result, call.metadata, call.result_metadata)
    return None if is_encodable(rest) else f"the result or metadata of {call.id} cannot be sent"
