"""Mid-Conversation System Messages where a protocol has no role for them, and where one that has may use it.

Rules:
- The fallback is a user message of its own with the text inside a `system-update` tag, so that what was sent before it
  stays as it is (ruling B10). `&`, `<` and `>` are escaped: no text can close the tag.
- A native system role is taken only directly behind a user message, a tool result or a call that the provider executed,
  and only where the model speaks next or the request ends. Two updates in a row are both wrapped.
"""

from __future__ import annotations

from collections.abc import Sequence

from .request import AssistantMessage, Call, RequestMessage, SystemUpdate, ToolMessage, UserMessage


def wrapped(text: str) -> str:
    """The text of an update as a user message says it."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return f"<system-update>\n{escaped}\n</system-update>"


def may_be_native(messages: Sequence[RequestMessage], index: int) -> bool:
    """Whether the update at `index` stands where a native system role is taken."""
    if not isinstance(messages[index], SystemUpdate) or index == 0:
        return False
    if index + 1 < len(messages) and not isinstance(messages[index + 1], AssistantMessage):
        return False
    match messages[index - 1]:
        case UserMessage() | ToolMessage():
            return True
        case AssistantMessage(content=(*_, Call(executed=True))):
            return True
        case _:
            return False
