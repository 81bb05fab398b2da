"""How much of a bare batching thread is left when 256 callers admit prompts durably at the same time? (ruling E1)

Rules:
- All variants commit with `synchronous=FULL` in groups, from 256 tasks that each wait for their receipt before the next
  prompt. None is woken before its rows are on the disk.
- The raw limit is one thread that drains a queue, writes the same three rows (event, inbox, session) with bytes that were made
  before, commits once a batch and wakes the batch's callers at once: no values, no checks, no encoding, no savepoints, no feed.
- Through the wire the client is another process with 256 requests in flight on one WebSocket.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import trio
from measure import Finding, at_least, beside, interleave, report, scratch_folder
from peers import Peers, running_peers
from stack import TOKEN, Stack, open_database, open_stack

from steerway.actors.session.letters import Admit
from steerway.protocol.values.event import PromptAdmitted
from steerway.protocol.values.ids import SessionId
from steerway.protocol.values.prompt import Admission, Prompt
from steerway.storage.connections import connect_writer
from steerway.storage.journal import Transaction

CALLERS = 256
SECONDS = 0.7
WIRE_COUNT = 6_000
PROMPT = Prompt(text="Say in one sentence what this is for.")
BODY = bytes(300)
"""As long as the encoded event of such an admission."""
MAX_GROUP = 1_000


class BareThread:
    """The raw limit: a queue, a thread, one commit a batch."""

    def __init__(self, path: Path) -> None:
        open_database(path).close()  # for its tables
        self._connection = connect_writer(path, "full")
        insert = "INSERT INTO session (id, title, directory, created, updated, head, revision, cost, input, output, reasoning,"
        for number in range(CALLERS):
            self._connection.execute(
                f"{insert} cache_read, cache_write, compacted_seq) VALUES (?, '', '/', 0, 0, 0, 1, 0.0, 0, 0, 0, 0, 0, 0)",
                (f"ses_{number}",),
            )
        self._heads = [0] * (CALLERS + 1)
        self._admitted = 0
        self._queue: queue.SimpleQueue[tuple[int, trio.Event] | None] = queue.SimpleQueue()

    def start(self) -> None:
        """Begin to serve this run's callers."""
        threading.Thread(target=self._serve, args=(trio.lowlevel.current_trio_token(),), daemon=True).start()

    def close(self) -> None:
        """End when nothing is left to do."""
        self._queue.put(None)

    async def admit(self, caller: int) -> None:
        """Have one admission committed."""
        done = trio.Event()
        self._queue.put((caller + 1, done))
        await done.wait()

    def _serve(self, token: trio.lowlevel.TrioToken) -> None:
        waiting, execute = self._queue, self._connection.cursor().execute
        while True:
            batch = [waiting.get()]
            while len(batch) < MAX_GROUP and not waiting.empty():
                batch.append(waiting.get())
            execute("BEGIN IMMEDIATE")
            callers: list[trio.Event] = []
            for item in batch:
                if item is None:
                    execute("COMMIT")
                    self._connection.close()
                    return
                session, done = item
                self._heads[session] = seq = self._heads[session] + 1
                self._admitted += 1
                execute(
                    "INSERT INTO event (session, seq, type, created, body) VALUES (?, ?, ?, ?, ?)",
                    (session, seq, "session.prompt.admitted", 1_700_000_000_000, BODY),
                )
                execute(
                    "INSERT INTO inbox (id, session, kind, delivery, admitted_seq) VALUES (?, ?, 'prompt', ?, ?)",
                    (f"msg_{self._admitted:026}", session, "steer", seq),
                )
                execute("UPDATE session SET head = ?, updated = ? WHERE key = ?", (seq, 1_700_000_000_000, session))
                callers.append(done)
            execute("COMMIT")
            token.run_sync_soon(_wake, callers)


def _wake(callers: list[trio.Event]) -> None:
    for done in callers:
        done.set()


async def rate(admit: Callable[[int], Awaitable[Any]]) -> float:
    """Admissions per second of all callers together."""
    admitted = 0
    begun = trio.current_time()
    end = begun + SECONDS

    async def caller(number: int) -> None:
        nonlocal admitted
        while trio.current_time() < end:
            await admit(number)
            admitted += 1

    async with trio.open_nursery() as nursery:
        for number in range(CALLERS):
            nursery.start_soon(caller, number)
    return admitted / (trio.current_time() - begun)


def admission(stack: Stack, session_id: SessionId) -> Callable[[Transaction], Admission]:
    """The transaction of an admission, as the session actor posts it."""
    services = stack.services
    message_id = services.ids.message()
    event = services.new_event(PromptAdmitted(message_id=message_id, prompt=PROMPT, delivery="steer"))

    def work(transaction: Transaction) -> Admission:
        (stored,) = transaction.append(session_id, [event])
        return Admission(
            id=message_id,
            session_id=session_id,
            prompt=PROMPT,
            delivery="steer",
            admitted_seq=stored.seq,
            created=event.created,
        )

    return work


async def through_storage(stack: Stack, sessions: list[SessionId], caller: int) -> None:
    """One admission, asked of the storage actor."""
    await stack.storage.post(admission(stack, sessions[caller % len(sessions)])).wait()


async def through_session(stack: Stack, sessions: list[SessionId], caller: int) -> None:
    """One admission, asked of the session actor."""
    letter = Admit(PROMPT, id=None, delivery="steer", metadata=None, resume=False)
    stack.sessions.post(sessions[caller % len(sessions)], letter)
    await letter.answer.wait()


async def through_one_session(stack: Stack) -> float:
    """Admissions per second of a session of its own: what waits in an inbox is bounded, and nothing is promoted here."""
    return await rate(partial(through_session, stack, await stack.create_sessions(1)))


async def through_wire(peers: Peers, port: int, sessions: list[SessionId]) -> float:
    """Admissions per second over one WebSocket."""
    answer = await peers.ask(do="admit", port=port, token=TOKEN, sessions=sessions, count=WIRE_COUNT, in_flight=CALLERS)
    return WIRE_COUNT / answer["seconds"]


async def measure() -> list[Finding]:
    """All variants, interleaved."""
    with scratch_folder() as folder, running_peers() as peers:
        bare = BareThread(folder / "bare.db")
        bare.start()
        async with open_stack(folder) as stack:
            sessions = await stack.create_sessions(CALLERS)
            port = (await stack.listen()).port
            found = await interleave(
                {
                    "bare": partial(rate, bare.admit),
                    "storage": partial(rate, partial(through_storage, stack, sessions)),
                    "sessions": partial(rate, partial(through_session, stack, sessions)),
                    "one session": partial(through_one_session, stack),
                    "wire": partial(through_wire, peers, port, sessions),
                }
            )
            statistics = stack.storage.statistics()
            group = statistics.members / statistics.groups
        bare.close()
    raw, unit = found["bare"], "/s"

    def compared(what: str, name: str, target: float) -> Finding:
        return at_least(what, ours=found[name], raw=raw, unit=unit, target=target, ratio=found.ratio(name, "bare"))

    return [
        compared("storage actor, 256 callers in 256 sessions", "storage", 0.50),
        compared("session actors, 256 callers in 256 sessions", "sessions", 0.35),
        compared("session actor, 256 callers in one session", "one session", 0.35),
        beside(
            "through the wire, 256 in flight on one WebSocket",
            ours=f"{found['wire']:,.0f} /s",
            raw=f"{raw:,.0f} /s",
            ratio=found.ratio("wire", "bare"),
        ),
        beside("members of a group commit, on average", ours=f"{group:.0f}"),
    ]


if __name__ == "__main__":
    report(measure)
