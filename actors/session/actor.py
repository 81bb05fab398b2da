"""One Session: a mailbox, one task that takes letters from it, and at most one drain that it owns.

Rules:
- The letter loop never awaits anything but the next letter. A letter that needs a commit posts it and goes on; the outcome
  comes back as a synchronous call, after publication (rulings A1, A2).
- What the session does about wakes, resumes, interrupts and the drain's reports says one table (`transitions`).
- Receipt and wake are one step: whoever has the receipt finds the session already working on it (ruling C3).
- A session that is not in memory gets its mailbox at once and loads itself; an actor leaves in one step, only while idle, with
  nothing outstanding (ruling A10). Nothing durable is held only here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

import structlog
import trio

from ...protocol.values.errors import (
    ConflictError,
    DeclaredError,
    InboxFullError,
    InternalError,
    InvalidRequestError,
    PromptNotFoundError,
    ServiceUnavailableError,
    SessionNotFoundError,
)
from ...protocol.values.event import Activity, ModelSwitched, PromptAdmitted, PromptWithdrawn
from ...protocol.values.ids import MessageId, SessionId
from ...protocol.values.prompt import Admission
from ...protocol.values.session import (
    CompletedOutcome,
    FailedOutcome,
    IdleOutcome,
    Interrupted,
    InterruptedOutcome,
    Outcome,
    PromotedOutcome,
    Session,
    WithdrawnOutcome,
    WithdrawOutcome,
)
from ...storage.journal import Transaction
from ...storage.reader import Reader
from ..mailbox import Answer, Mailbox
from ..storage import Chain
from .drain import Drain
from .letters import Admit, Create, Interrupt, Resume, SessionLetter, SwitchModel, Wait, Withdraw
from .services import Services
from .transitions import Effect, Input, State, step, working

MAILBOX_LETTERS = 1_024
INTERRUPT_SECONDS = 5
"""An interrupt is answered after this long, while cleanup goes on."""

_log = structlog.get_logger("steerway.session")


class SessionActor:
    """`run` is its life; `post` is the only way in."""

    def __init__(self, session_id: SessionId, services: Services, *, leave: Callable[[SessionActor], None]) -> None:
        self.session_id = session_id
        self._services = services
        self._leave = leave
        self.mailbox: Mailbox[SessionLetter] = Mailbox(MAILBOX_LETTERS, f"session {session_id}")
        self._state = State.IDLE
        self._loaded = False
        self._outstanding = 0
        self._pending: set[MessageId] = set()
        self._admitting = 0
        self._drain: Drain | None = None
        self._unsettled = True
        self._shutting_down = False
        self._nursery: trio.Nursery | None = None
        self._quiet = Chain()
        self._rest = trio.Event()
        self._joiners: list[Answer[Outcome]] = []
        self._next_joiners: list[Answer[Outcome]] = []
        self._stoppers: list[Answer[Interrupted]] = []
        self._waiters: list[Answer[IdleOutcome]] = []
        self.last_outcome: Outcome | None = None
        self.idle_since = trio.current_time()

    # --- what others see ---------------------------------------------------------------------------------------------

    @property
    def working(self) -> bool:
        """Whether a drain owns the session."""
        return working(self._state)

    @property
    def may_leave(self) -> bool:
        """Whether leaving memory now would lose nothing."""
        return self._loaded and not self.working and not self._outstanding and not len(self.mailbox) and not self._waiters

    def post(self, letter: SessionLetter) -> None:
        """Put a letter into the mailbox. A refusal is the letter's answer."""
        try:
            self.mailbox.post(letter)
        except DeclaredError as error:
            letter.answer.fail(error)

    def close(self) -> None:
        """The runtime stops: cancel the drain with reason `shutdown`; no successor follows."""
        self._shutting_down = True
        self._input(Input.CLOSE)

    async def wait_settled(self) -> None:
        """Until no drain owns the session. For shutdown; clients wait with a letter."""
        while self.working:
            self._rest = trio.Event()
            await self._rest.wait()

    # --- life --------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Load, then take letters until cancelled. A crash is this session's alone."""
        try:
            if not await self._load():
                return
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                while True:
                    self._take(await self.mailbox.take())
        except DeclaredError as error:
            self._leave(self)
            self.mailbox.close(error)
        except Exception as error:
            reference = self._services.ids.event()
            _log.error("session crashed", session_id=self.session_id, reference=reference, exc_info=error)
            self._leave(self)
            self.mailbox.close(InternalError("The session's actor failed.", reference=reference))
        finally:
            self._nursery = None
            self._leave(self)
            self.mailbox.close()
            self._answer_everybody()

    async def _load(self) -> bool:
        """Find the session, or create it if that is what the first letter asks. False: there is none, and nobody asked."""

        def pending(reader: Reader) -> set[MessageId]:
            return {prompt.id for prompt in reader.pending(self.session_id)}

        while True:
            try:
                self._pending = await self._services.storage.read(pending)
            except SessionNotFoundError as error:
                # No await lies between the empty mailbox and the end, so no letter can fall between them (ruling A10).
                letter = self.mailbox.take_nowait()
                if letter is None:
                    self._leave(self)
                    self.mailbox.close(error)
                    return False
                if isinstance(letter, Create):
                    await self._create(letter)
                else:
                    letter.answer.fail(error)
            else:
                self._loaded = True
                return True

    async def _create(self, letter: Create) -> None:
        services, session_id, created = self._services, self.session_id, letter.created
        directory = created.location.directory
        if letter.check_directory and not await services.blocking.run(lambda: _is_directory(directory)):
            letter.answer.fail(
                InvalidRequestError(
                    f"location.directory must be an existing absolute directory, not {directory!r}.",
                    field="location.directory",
                )
            )
            return

        def work(transaction: Transaction) -> Session:
            if created.parent_id is not None:
                transaction.session(created.parent_id)
            transaction.append(session_id, [services.new_event(created)])
            return transaction.session(session_id).session

        posted = services.storage.post(work)
        posted.when_done(lambda done: _copy(done, letter.answer))
        with contextlib.suppress(DeclaredError):  # it is the letter's answer
            await posted.wait()

    def _exists(self, letter: Create) -> None:
        session_id = self.session_id
        self._post(
            lambda transaction: transaction.session(session_id).session,
            None,
            lambda posted: self._forward(posted, letter.answer),
        )

    def _answer_everybody(self) -> None:
        error = ServiceUnavailableError("The runtime is stopping.")
        for answer in (*self._joiners, *self._next_joiners, *self._waiters, *self._stoppers):
            answer.fail(error)

    def _take(self, letter: SessionLetter) -> None:
        match letter:
            case Create():
                self._exists(letter)
            case Admit():
                self._admit(letter)
            case Withdraw():
                self._withdraw(letter)
            case SwitchModel():
                self._switch_model(letter)
            case Resume():
                self._input(Input.RESUME, letter.answer)
            case Interrupt():
                self._input(Input.INTERRUPT, letter.answer)
            case Wait():
                self._input(Input.WAIT, letter.answer)

    # --- letters that need a commit ----------------------------------------------------------------------------------

    def _admit(self, letter: Admit) -> None:
        services, session_id = self._services, self.session_id
        message_id = letter.id or services.ids.message()
        full = len(self._pending) + self._admitting >= services.max_pending
        event = services.new_event(
            PromptAdmitted(message_id=message_id, prompt=letter.prompt, delivery=letter.delivery, metadata=letter.metadata)
        )

        def work(transaction: Transaction) -> Admission:
            if letter.id is not None:
                known = transaction.find_prompt(message_id)
                if known is not None:
                    return _same(known, session_id, letter)
                if transaction.message_owner(message_id) is not None:
                    raise ConflictError(f"The id {message_id} belongs to another message.", message_id=message_id)
            if full:
                raise InboxFullError(
                    f"The session has {services.max_pending} pending inputs, as many as it may.", limit=services.max_pending
                )
            (stored,) = transaction.append(session_id, [event])
            return Admission(
                id=message_id,
                session_id=session_id,
                prompt=letter.prompt,
                delivery=letter.delivery,
                admitted_seq=stored.seq,
                created=event.created,
                metadata=letter.metadata,
            )

        def committed(result: Admission | BaseException) -> None:
            self._admitting -= 1
            if isinstance(result, Admission) and result.promoted_seq is None and result.withdrawn_seq is None:
                self._pending.add(result.id)

        def answered(posted: Answer[Admission]) -> None:
            if posted.error is None and letter.resume:
                self._input(Input.WAKE)
            self._forward(posted, letter.answer)

        self._admitting += 1
        self._post(work, committed, answered)

    def _withdraw(self, letter: Withdraw) -> None:
        services, session_id = self._services, self.session_id
        event = services.new_event(PromptWithdrawn(message_id=letter.id))

        def work(transaction: Transaction) -> WithdrawOutcome:
            known = transaction.find_prompt(letter.id)
            if known is None or known.session_id != session_id:
                raise PromptNotFoundError(f"The session never had a prompt {letter.id}.", message_id=letter.id)
            if known.promoted_seq is not None:
                return PromotedOutcome(promoted_seq=known.promoted_seq)
            if known.withdrawn_seq is None:
                transaction.append(session_id, [event])
            return WithdrawnOutcome()

        def committed(result: WithdrawOutcome | BaseException) -> None:
            if isinstance(result, WithdrawnOutcome):
                self._pending.discard(letter.id)

        self._post(work, committed, lambda posted: self._forward(posted, letter.answer))

    def _switch_model(self, letter: SwitchModel) -> None:
        services, session_id = self._services, self.session_id
        message_id = services.ids.message()

        def work(transaction: Transaction) -> Session:
            before = transaction.session(session_id).session
            if before.model == letter.model:
                return before
            switched = ModelSwitched(message_id=message_id, model=letter.model, previous=before.model)
            transaction.append(session_id, [services.new_event(switched)])
            return transaction.session(session_id).session

        self._post(work, None, lambda posted: self._forward(posted, letter.answer))

    def _post(
        self,
        work: Callable[[Transaction], Any],
        committed: Callable[[Any], None] | None,
        answered: Callable[[Answer[Any]], None],
    ) -> None:
        self._outstanding += 1
        self._services.storage.post(work, then=committed).when_done(answered)

    def _forward(self, posted: Answer[Any], answer: Answer[Any]) -> None:
        self._outstanding -= 1
        _copy(posted, answer)

    # --- the table ---------------------------------------------------------------------------------------------------

    def _input(self, given: Input, answer: Answer[Any] | None = None) -> bool:
        """Take the table's step; True when the drain is to look again."""
        row = step(self._state, given)
        self._state = row.state
        for effect in row.effects:
            self._perform(effect, answer)
        if not self.working:
            self.idle_since = trio.current_time()
            self._rest.set()
        return Effect.CONTINUE in row.effects

    def _perform(self, effect: Effect, answer: Answer[Any] | None) -> None:
        match effect:
            case Effect.CONTINUE:
                pass
            case Effect.CANCEL:
                if self._drain is not None:
                    self._drain.cancel(shutdown=self._shutting_down)
            case Effect.SETTLE:
                self._settle()
            case Effect.START | Effect.START_FORCED:
                self._start(forced=effect is Effect.START_FORCED)
            case Effect.DROP_NEXT:
                self._joiners += self._next_joiners
                self._next_joiners = []
            case Effect.ANSWER_IDLE:
                waiters, self._waiters = self._waiters, []
                for waiter in waiters:
                    waiter.resolve(IdleOutcome())
            case _:
                if answer is not None:
                    self._keep(effect, answer)

    def _keep(self, effect: Effect, answer: Answer[Any]) -> None:
        match effect:
            case Effect.JOIN:
                self._joiners.append(answer)
            case Effect.JOIN_NEXT:
                self._next_joiners.append(answer)
            case Effect.AWAIT_IDLE:
                self._waiters.append(answer)
            case Effect.AWAIT_STOP:
                self._stoppers.append(answer)
                if self._nursery is not None:
                    self._nursery.start_soon(self._answer_late, answer)
            case Effect.ANSWER_NOTHING_RUNS:
                answer.resolve(Interrupted(interrupted=False))
            case Effect.REFUSE:
                answer.fail(ServiceUnavailableError("The runtime is stopping."))
            case _:
                raise AssertionError(effect)

    def _start(self, *, forced: bool) -> None:
        self._joiners, self._next_joiners = self._joiners + self._next_joiners, []
        drain = Drain(self._services, self.session_id, self, forced=forced, unsettled=self._unsettled)
        self._drain = drain
        self._publish(Activity(state="running"), drain.chain)
        if self._nursery is None:
            raise RuntimeError("A drain needs a running actor.")
        self._nursery.start_soon(self._run_drain, drain)

    async def _run_drain(self, drain: Drain) -> None:
        outcome = await drain.run()
        self._unsettled = drain.unsettled
        if drain.rested:
            return
        self.last_outcome = outcome
        match outcome:
            case CompletedOutcome():
                raise AssertionError("a drain that completes gives up ownership itself")
            case FailedOutcome():
                self._input(Input.FAILED)
            case InterruptedOutcome():
                self._input(Input.STOPPED)

    async def _answer_late(self, answer: Answer[Interrupted]) -> None:
        await trio.sleep(INTERRUPT_SECONDS)
        answer.resolve(Interrupted(interrupted=True))

    def _settle(self) -> None:
        outcome = self.last_outcome
        if outcome is None:
            raise AssertionError("a drain that ends has an outcome")
        chain = self._drain.chain if self._drain is not None else self._quiet
        self._drain = None
        self._publish(Activity(state="idle", outcome=outcome), chain)
        joiners, self._joiners = self._joiners, []
        for joiner in joiners:
            joiner.resolve(outcome)
        stoppers, self._stoppers = self._stoppers, []
        for stopper in stoppers:
            stopper.resolve(Interrupted(interrupted=True))

    def _publish(self, activity: Activity, chain: Chain) -> None:
        self._services.storage.post_live(self._services.live_event(self.session_id, activity), chain)

    # --- what the drain asks of its owner (DrainOwner) ---------------------------------------------------------------

    @property
    def has_pending(self) -> bool:
        """Whether any input waits in the inbox."""
        return bool(self._pending)

    def looked(self) -> None:
        """The drain is about to read the inbox."""
        self._input(Input.LOOKED)

    def at_rest(self) -> bool:
        """The drain has nothing left to do; True when it has to look again."""
        self.last_outcome = CompletedOutcome()
        return self._input(Input.AT_REST)

    def promoted(self, ids: tuple[MessageId, ...]) -> None:
        """These prompts left the inbox."""
        self._pending.difference_update(ids)


def _copy(posted: Answer[Any], answer: Answer[Any]) -> None:
    if posted.error is not None:
        answer.fail(posted.error)
    else:
        answer.resolve(posted.result())


def _is_directory(path: str) -> bool:
    return os.path.isabs(path) and "\0" not in path and os.path.isdir(path)


def _same(known: Admission, session_id: SessionId, letter: Admit) -> Admission:
    if (
        known.session_id != session_id
        or known.prompt != letter.prompt
        or known.delivery != letter.delivery
        or known.metadata != letter.metadata
    ):
        raise ConflictError(f"The id {known.id} was used for a different prompt.", message_id=known.id)
    return known
