"""What went wrong inside a session, as a durable value.

`Failure` is data in events and messages; the errors that an operation answers with are in `errors`.
"""

from __future__ import annotations

from typing import Any, Final

from .value import Value


class Failure(Value):
    """`type` is one of the open list of the reference (`provider.rate-limit`, `tool.execution`, `aborted`, ...).

    Readers treat a type they do not know like `unknown`. `message` is one sentence for people. `fields` holds what else
    is known (retry delays, unavailable keys), never secrets.
    """

    type: str
    message: str
    fields: dict[str, Any] | None = None


ABORTED: Final = "aborted"
PROVIDER_RATE_LIMIT: Final = "provider.rate-limit"
PROVIDER_AUTH: Final = "provider.auth"
PROVIDER_QUOTA: Final = "provider.quota"
PROVIDER_OVERLOADED: Final = "provider.overloaded"
PROVIDER_CONTENT_FILTER: Final = "provider.content-filter"
PROVIDER_TRANSPORT: Final = "provider.transport"
PROVIDER_INTERNAL: Final = "provider.internal"
PROVIDER_INVALID_OUTPUT: Final = "provider.invalid-output"
PROVIDER_INVALID_REQUEST: Final = "provider.invalid-request"
PROVIDER_CONTEXT_OVERFLOW: Final = "provider.context-overflow"
PROVIDER_INCOMPLETE: Final = "provider.incomplete"
PROVIDER_NO_ROUTE: Final = "provider.no-route"
PROVIDER_UNKNOWN: Final = "provider.unknown"
MODEL_NOT_SELECTED: Final = "model.not-selected"
MODEL_UNAVAILABLE: Final = "model.unavailable"
AGENT_UNKNOWN: Final = "agent.unknown"
LOCATION_UNAVAILABLE: Final = "location.unavailable"
CONTEXT_UNAVAILABLE: Final = "context.unavailable"
CONTEXT_INVALID: Final = "context.invalid"
COMPACTION_UNAVAILABLE: Final = "compaction.unavailable"
COMPACTION_FAILED: Final = "compaction.failed"
STORAGE_UNAVAILABLE: Final = "storage.unavailable"
BUDGET_EXCEEDED: Final = "budget.exceeded"
PERMISSION_DENIED: Final = "permission.denied"
PERMISSION_REJECTED: Final = "permission.rejected"
QUESTION_REJECTED: Final = "question.rejected"
TOOL_EXECUTION: Final = "tool.execution"
TOOL_UNKNOWN: Final = "tool.unknown"
TOOL_INVALID_INPUT: Final = "tool.invalid-input"
TOOL_RESULT_MISSING: Final = "tool.result-missing"
TOOL_DISABLED: Final = "tool.disabled"
SUPERSEDED: Final = "superseded"
INTERNAL: Final = "internal"
