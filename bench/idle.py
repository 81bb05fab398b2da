"""What does a session cost in memory while it rests, and after it has left?

Rules:
- Resident: each of 10,000 stored sessions was asked something, so that it has its mailbox, its task and its view; then nothing.
- The figure is the growth of the process's resident memory between 1,000 sessions (which pay for caches and arenas) and all.
- After they have left, as many other sessions are loaded: what memory grows by then is what the first ones left behind.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path

import trio
from measure import Finding, at_most, beside, report, scratch_folder
from stack import Stack, open_stack
from stored import fill

from steerway.actors.session.letters import Wait
from steerway.actors.session.registry import SessionRegistry
from steerway.protocol.values.ids import SessionId

FIRST = 1_000
SESSIONS = 10_000
IDLE_SECONDS = 20.0
AT_ONCE = 200


def resident() -> float:
    """This process's resident memory in bytes."""
    gc.collect()
    return 1024 * int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0])


async def ask_all(sessions: SessionRegistry, ids: Sequence[SessionId]) -> None:
    """Make every one of the sessions resident."""
    for begin in range(0, len(ids), AT_ONCE):
        letters = [Wait() for _ in ids[begin : begin + AT_ONCE]]
        for session_id, letter in zip(ids[begin : begin + AT_ONCE], letters, strict=True):
            sessions.post(session_id, letter)
        for letter in letters:
            await letter.answer.wait()


async def growth(stack: Stack, ids: Sequence[SessionId]) -> tuple[float, float]:
    """Bytes a resident session, and bytes that each one leaves behind."""
    sessions = SessionRegistry(stack.services, removed=stack.feed.end_session, idle_seconds=IDLE_SECONDS)
    await stack.nursery.start(sessions.run)
    await ask_all(sessions, ids[:FIRST])
    few = resident()
    await ask_all(sessions, ids[FIRST:SESSIONS])
    if len(sessions) != SESSIONS:
        raise AssertionError(f"only {len(sessions)} sessions are resident: this machine is too slow for {IDLE_SECONDS} s")
    many = resident()
    while len(sessions):  # noqa: ASYNC110 - the registry says nothing when a session leaves, and need not
        await trio.sleep(IDLE_SECONDS / 4)
    await ask_all(sessions, ids[SESSIONS:])
    again = resident()
    return (many - few) / (SESSIONS - FIRST), (again - many) / SESSIONS


async def measure() -> list[Finding]:
    """Load, let leave, load others."""
    with scratch_folder() as folder:
        ids = fill(folder / "sessions.db", [1] * (2 * SESSIONS))
        async with open_stack(folder) as stack:
            held, left = await growth(stack, ids)
    return [
        at_most("an idle resident session", ours=held / 1024, unit="KB", target=8),
        beside("what one leaves behind when it has left", ours=f"{max(left, 0) / 1024:.2f} KB"),
    ]


if __name__ == "__main__":
    report(measure)
