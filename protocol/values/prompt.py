"""User input on its way into history: prompt, delivery, admission receipt."""

from __future__ import annotations

from typing import Any, Literal

from .ids import MessageId, SessionId
from .location import Location
from .value import Value

Delivery = Literal["steer", "queue"]
"""`steer` promotes at the next Safe Provider-Turn Boundary, `queue` one at a time when the session would go idle."""

MAX_PROMPT_BYTES = 8 * 1024 * 1024
"""Text and files of one prompt together, in bytes of UTF-8 and of file data (ruling B8)."""

MAX_PROMPT_JSON_BYTES = 12 * 1024 * 1024
"""The same as JSON, where a control character takes six bytes and a file four thirds: so its event fits into one message."""


class PromptFileInput(Value):
    """A file as a caller gives it: its bytes, or a `data:` URL in `uri`. Exactly one of the two.

    The declared `mime` is a hint; what is stored is sniffed from the content (ruling B9).
    """

    data: bytes | None = None
    uri: str | None = None
    mime: str | None = None
    name: str | None = None


class PromptFile(Value):
    """A file as it was admitted: complete, sniffed and bounded, so that a request is built from durable state alone."""

    data: bytes
    mime: str
    name: str | None = None


class Prompt(Value):
    """What the user said."""

    text: str
    files: tuple[PromptFile, ...] | None = None


class Admission(Value, tag_field="kind", tag="prompt"):
    """The durable receipt of an Admitted Prompt; the same for every exact retry, with its fate once it has one.

    `admitted_seq` is the sequence of its admission. Exactly one of `promoted_seq` and `withdrawn_seq` comes later.
    """

    id: MessageId
    session_id: SessionId
    prompt: Prompt
    delivery: Delivery
    admitted_seq: int
    created: int
    metadata: dict[str, Any] | None = None
    promoted_seq: int | None = None
    withdrawn_seq: int | None = None


class CompactControl(Value, tag_field="kind", tag="compact"):
    """A request for compaction in the inbox. It is no prompt: input behind it waits until it was delivered."""

    id: MessageId
    session_id: SessionId
    admitted_seq: int
    created: int
    delivered_seq: int | None = None
    withdrawn_seq: int | None = None


class MoveControl(Value, tag_field="kind", tag="move"):
    """A request to move the session to another location, in the inbox like `CompactControl`."""

    id: MessageId
    session_id: SessionId
    location: Location
    admitted_seq: int
    created: int
    delivered_seq: int | None = None
    withdrawn_seq: int | None = None


ControlItem = CompactControl | MoveControl
PendingItem = Admission | CompactControl | MoveControl
"""What can wait in an inbox, in one order."""
ControlKind = Literal["compact", "move"]
