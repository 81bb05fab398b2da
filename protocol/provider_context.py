"""What `sessions.provider_context` shows (the seed's open question): what a provider would be sent, and where it is from."""

from __future__ import annotations

from .llm.request import LLMRequest
from .values.context import ContextContribution, ContextEpoch
from .values.failure import Failure
from .values.ids import SessionId
from .values.value import Value


class ProviderContext(Value):
    """Observed and rendered, never committed.

    `epoch` is the active one as it is stored, absent before the first turn. `sources` are the contributions as they are found
    now, `unavailable` the keys among them that cannot be observed. `request` is what the next turn would send, with the input
    it would promote; absent when that turn would fail at its boundary, and then `error` says why.
    """

    session_id: SessionId
    sources: tuple[ContextContribution, ...]
    unavailable: tuple[str, ...]
    epoch: ContextEpoch | None = None
    request: LLMRequest | None = None
    error: Failure | None = None
