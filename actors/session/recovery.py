"""Settlement of what an ended process, or a failed commit, left unfinished.

Rules (semantics, "Recovery"):
- One transaction a session, idempotent, without a provider call and without running a tool.
- Open requests are closed as cancelled; open fragments end with their last checkpoint; calls without settlement fail as
  interrupted, on their own assistant message; an unfinished turn gets its one terminal event, `interrupted`; an unfinished
  compaction fails.
- It runs at start-up for the sessions that the partial indexes name, and before a drain whose session may have leftovers.
"""

from __future__ import annotations

from ...protocol.values.ids import SessionId
from ...storage.journal import Transaction
from ...storage.leftovers import settlement
from .services import Services


async def settle(services: Services, session_id: SessionId) -> bool:
    """Settle one session; True when there was something to settle. Raises `StorageUnavailableError`."""

    def work(transaction: Transaction) -> bool:
        data = settlement(transaction.unfinished(session_id))
        if data:
            transaction.append(session_id, [services.new_event(item) for item in data])
        return bool(data)

    return await services.storage.commit(work)
