"""Permissions: rules, requests that wait for somebody's answer, approvals that were kept.

A request is durable state of its session: any client sees it, also one that connects later, and the first answer wins.
"""

from __future__ import annotations

from typing import Any, Literal

from .ids import CallId, MessageId, RequestId, SessionId
from .value import Value

Effect = Literal["allow", "ask", "deny"]
PermissionReply = Literal["once", "always", "reject"]
PermissionEnd = Literal["once", "always", "reject", "cancelled"]
"""How a request ended: a reply, or `cancelled` with its call."""


class Rule(Value):
    """`action` and `resource` are patterns (`*`, `?`, anchored); of the rules that match, the last one decides."""

    action: str
    resource: str
    effect: Effect


class PermissionRequest(Value):
    """A call that may not go on until somebody answers. `save` is what `always` would keep."""

    id: RequestId
    session_id: SessionId
    assistant_message_id: MessageId
    call_id: CallId
    action: str
    resources: tuple[str, ...]
    save: tuple[str, ...]
    created: int
    metadata: dict[str, Any] | None = None


class SavedPermission(Value):
    """An approval kept by `always`, for every session of that directory. It never beats a configured deny."""

    id: str
    directory: str
    action: str
    resource: str
    created: int
