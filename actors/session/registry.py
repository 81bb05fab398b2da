"""The Sessions in memory: one dictionary, changed without awaiting (ruling A10).

Rules:
- A letter for a session that is not here makes its actor at once; the actor loads itself and answers all its letters
  `SessionNotFoundError` if there is no such session.
- Actors are started by the registry's own task, from an empty context, so that no request's log fields live on in one.
- An idle actor leaves after `idle_seconds`: it goes out of the dictionary and ends in one step. Of what it knew only how its
  last drain ended is kept, for the `MAX_OUTCOMES` sessions that left last (ruling B15).
"""

from __future__ import annotations

import contextlib
import contextvars
import os
from collections.abc import Callable, Sequence

import trio

from ...protocol.values.errors import ServiceUnavailableError, SessionNotFoundError
from ...protocol.values.ids import SessionId
from ...protocol.values.permission import SavedPermission
from ...protocol.values.session import CompletedOutcome, Outcome, Running
from ...storage.journal import Transaction
from ...storage.removal import grave
from .actor import SessionActor
from .letters import SessionLetter
from .services import Services

IDLE_SECONDS = 300.0
SETTLE_SECONDS = 5.0
MAX_OUTCOMES = 10_000
"""An entry takes about 200 bytes, and the message of a failure."""

_COMPLETED = CompletedOutcome()


class SessionRegistry:
    """Finds, starts and dismisses session actors."""

    def __init__(
        self,
        services: Services,
        *,
        removed: Callable[[SessionId, SessionNotFoundError], None],
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        """`removed(session_id, error)` is told of every session that is gone, after the commit."""
        self._services = services
        self._removed = removed
        self._idle_seconds = idle_seconds
        self._actors: dict[SessionId, tuple[SessionActor, trio.CancelScope]] = {}
        self._outcomes: dict[SessionId, Outcome] = {}
        """Of sessions that are not in memory."""
        self._nursery: trio.Nursery | None = None
        self._stopping = False

    def __len__(self) -> int:
        """How many sessions are in memory."""
        return len(self._actors)

    def post(self, session_id: SessionId, letter: SessionLetter) -> None:
        """Hand a letter to a session, now and in order. What goes wrong is the letter's answer."""
        if self._stopping or self._nursery is None:
            letter.answer.fail(ServiceUnavailableError("The runtime is stopping."))
            return
        entry = self._actors.get(session_id)
        if entry is None:
            entry = self._start(session_id, self._nursery)
        entry[0].post(letter)

    def active(self) -> dict[str, Running]:
        """The sessions that are draining right now."""
        return {session_id: Running() for session_id, (actor, _) in self._actors.items() if actor.working}

    def last_outcome(self, session_id: SessionId) -> Outcome | None:
        """How the session's last drain in this process ended, while it is still known."""
        entry = self._actors.get(session_id)
        return entry[0].last_outcome if entry is not None else self._outcomes.get(session_id)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the actors until cancelled; dismiss those that have been idle for long."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                while True:
                    await trio.sleep(self._idle_seconds / 4)
                    self.dismiss_idle()
            finally:
                self._nursery = None

    def dismiss_idle(self) -> int:
        """Let the actors go that have been idle for `idle_seconds`; says how many."""
        limit = trio.current_time() - self._idle_seconds
        gone = [entry for entry in self._actors.values() if entry[0].may_leave and entry[0].idle_since <= limit]
        for actor, scope in gone:
            self._forget(actor)
            actor.mailbox.close()
            scope.cancel(reason="idle")
        return len(gone)

    async def remove(self, session_id: SessionId) -> None:
        """Interrupt a session and its descendants, then delete all that is stored of them (ruling B4).

        Raises `SessionNotFoundError`, or `StorageUnavailableError`, which leaves everything as it is. Their letters, waiters
        and durable streams end with `SessionNotFoundError` too. A caller that is cancelled does not stop it halfway.

        They are gone for everybody with one short transaction; their rows go afterwards, between the commits of others.
        """
        storage, sweeper = self._services.storage, self._services.sweeper
        family = await storage.read(lambda reader: reader.family(session_id))
        gone: set[SessionId] = set()
        outputs: tuple[str, ...] = ()

        def work(transaction: Transaction) -> tuple[SessionId, ...]:
            nonlocal outputs
            outputs = transaction.managed_outputs(session_id)
            return transaction.remove(session_id)

        with trio.CancelScope(shield=True):
            try:
                for member in family:
                    entry = self._actors.get(member)
                    if entry is not None:
                        entry[0].close()
                        with trio.move_on_after(SETTLE_SECONDS):
                            await entry[0].wait_settled()
                gone.update(await storage.commit(work))
            finally:
                # An actor that was closed never works again: whether the session is gone or not, the next letter finds
                # another, which looks into the store.
                for member in {*family, *gone}:
                    self._dismiss(member, removed=member in gone)
            await self._services.blocking.run(lambda: _delete(outputs))
        names = [grave(member) for member in gone]
        with sweeper.owning(names):
            swept = await sweeper.sweep(names)
        if swept:
            await sweeper.sweep_unowned()

    def _dismiss(self, session_id: SessionId, *, removed: bool) -> None:
        error = SessionNotFoundError(f"The session {session_id} was removed.", session_id=session_id)
        entry = self._actors.get(session_id)
        if entry is not None:
            self._forget(entry[0])
            entry[0].dismiss(error if removed else None)
            entry[1].cancel(reason="removed")
        if removed:
            self._outcomes.pop(session_id, None)
            self._removed(session_id, error)

    async def stop(self) -> None:
        """Interrupt every drain with reason `shutdown` and wait, at most `SETTLE_SECONDS`, until they are settled."""
        self._stopping = True
        for actor, _ in tuple(self._actors.values()):
            actor.close()
        with trio.move_on_after(SETTLE_SECONDS):
            for actor, _ in tuple(self._actors.values()):
                await actor.wait_settled()

    def _start(self, session_id: SessionId, nursery: trio.Nursery) -> tuple[SessionActor, trio.CancelScope]:
        actor = SessionActor(
            session_id,
            self._services,
            leave=self._forget,
            approved=self._approved,
            last_outcome=self._outcomes.pop(session_id, None),
        )
        scope = trio.CancelScope()
        self._actors[session_id] = (actor, scope)

        async def live() -> None:
            with scope:
                await actor.run()

        contextvars.Context().run(nursery.start_soon, live, name=f"session {session_id}")
        return self._actors[session_id]

    def _approved(self, directory: str, saved: Sequence[SavedPermission]) -> None:
        for actor, _ in tuple(self._actors.values()):
            actor.approvals_changed(directory, saved)

    def _forget(self, actor: SessionActor) -> None:
        entry = self._actors.get(actor.session_id)
        if entry is not None and entry[0] is actor:
            del self._actors[actor.session_id]
            if actor.last_outcome is not None:
                self._remember(actor.session_id, actor.last_outcome)

    def _remember(self, session_id: SessionId, outcome: Outcome) -> None:
        if len(self._outcomes) >= MAX_OUTCOMES:
            del self._outcomes[next(iter(self._outcomes))]
        self._outcomes[session_id] = _COMPLETED if outcome == _COMPLETED else outcome


def _delete(paths: Sequence[str]) -> None:
    for path in paths:
        # It may have expired, and what cannot be deleted now expires.
        with contextlib.suppress(OSError):
            os.unlink(path)
