"""What a client is given to join a session in the middle (ruling A12)."""

from __future__ import annotations

import msgspec

from ...protocol.values.message import AssistantContent, ReasoningPart, TextPart, ToolPart, ToolPending
from ...protocol.values.session import Attachment, Outcome
from .turn import Turn


def attachment(stored: Attachment, turn: Turn | None, *, active: bool, outcome: Outcome | None) -> Attachment:
    """The stored view completed with what only memory knows: the text so far of the running turn's open fragments."""
    session = msgspec.structs.replace(stored.session, last_outcome=outcome) if outcome is not None else stored.session
    message = stored.turn
    if message is not None and turn is not None and turn.assistant == message.id:
        texts = turn.texts()
        content = tuple(_filled(part, texts.get(part.id)) for part in message.content)
        message = msgspec.structs.replace(message, content=content)
    return msgspec.structs.replace(stored, session=session, active=active, turn=message)


def _filled(part: AssistantContent, text: str | None) -> AssistantContent:
    if text is None:
        return part
    match part:
        case TextPart() | ReasoningPart():
            return msgspec.structs.replace(part, text=text)
        case ToolPart(state=ToolPending()):
            return msgspec.structs.replace(part, state=ToolPending(input=text))
        case _:
            return part
