"""Mid-Conversation System Messages where a protocol has no role for them.

Rules:
- The fallback is a user message of its own with the text inside a `system-update` tag, so that what was sent before it
  stays as it is (ruling B10). `&`, `<` and `>` are escaped: no text can close the tag.
"""

from __future__ import annotations


def wrapped(text: str) -> str:
    """The text of an update as a user message says it."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return f"<system-update>\n{escaped}\n</system-update>"
