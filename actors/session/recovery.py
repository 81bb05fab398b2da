"""Settlement of what an ended process, or a failed commit, left unfinished.

Rules (semantics, "Recovery"):
- One transaction a session, idempotent, without a provider call and without running a tool.
- Open requests are closed as cancelled; open fragments end with their last checkpoint; calls without settlement fail as
  interrupted, on their own assistant message; an unfinished turn gets its one terminal event, `interrupted`; an unfinished
  compaction fails.
- It runs at start-up for the sessions that the partial indexes name, and before a drain whose session may have leftovers.
- Under policy `continue` a start then goes on with what is unanswered: each time is counted, and the model told, in one
  transaction before anything is asked of a provider. What was interrupted is then not the outcome of its prompt any more:
  whoever waits for that waits for the turn that goes on. After `MAX_CONTINUATIONS` times without an answer it is left alone.
"""

from __future__ import annotations

from ...protocol.values.event import SyntheticAdded
from ...protocol.values.ids import SessionId
from ...storage.journal import Transaction
from ...storage.leftovers import settlement
from .services import Services

MAX_CONTINUATIONS = 10
CONTINUATION_NOTE = (
    "The runtime was stopped before this work was finished, and has been started again. Calls that were running then have"
    " failed, and may have taken effect all the same. Look at how things stand, then go on."
)


async def settle(services: Services, session_id: SessionId) -> bool:
    """Settle one session; True when there was something to settle. Raises `StorageUnavailableError`."""

    def work(transaction: Transaction) -> bool:
        data = settlement(transaction.unfinished(session_id))
        if data:
            transaction.append(session_id, [services.new_event(item) for item in data])
        return bool(data)

    return await services.storage.commit(work)


async def continue_once(services: Services, session_id: SessionId) -> bool:
    """Count another try at the session's unanswered work, and say so in its history; False when there were enough.

    Whoever is told True resumes the session. Raises `StorageUnavailableError`.
    """
    note = services.new_event(SyntheticAdded(message_id=services.ids.message(), text=CONTINUATION_NOTE, continues=True))

    def work(transaction: Transaction) -> bool:
        if transaction.continuations(session_id) >= MAX_CONTINUATIONS:
            return False
        transaction.count_continuation(session_id)
        transaction.append(session_id, [note])
        return True

    return await services.storage.commit(work)
