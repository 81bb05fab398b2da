"""The budget of a session: what it may cost, in US dollars.

Rules:
- It is looked at before each provider turn. Where it is used up the boundary cannot be passed: the drain fails with
  `budget.exceeded`, and input stays pending. Raising the budget lets the next wake or resume go on.
- What counts is the session's own cost. A turn that has begun is seen through, so the last one may go beyond the budget.
- What models cost that nobody knows the prices of does not count. A fork begins without a budget, as it begins without a cost.
"""

from __future__ import annotations

from ...protocol.values.failure import BUDGET_EXCEEDED, Failure
from ...protocol.values.session import Session


def over_budget(session: Session) -> Failure | None:
    """Why no further provider call may be made; None while one may."""
    budget = session.budget
    if budget is None or session.cost < budget:
        return None
    message = f"The session has cost ${session.cost:.4f} of its budget of ${budget:.4f}; raise the budget and resume."
    return Failure(type=BUDGET_EXCEEDED, message=message, fields={"cost": session.cost, "budget": budget})
