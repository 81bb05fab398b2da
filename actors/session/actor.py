"""One Session: a mailbox, one task that takes letters from it, and at most one drain that it owns.

Long, because every letter and every report of the drain is answered here; what each of them writes or decides is elsewhere.

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
from collections.abc import Callable, Sequence
from typing import Any

import trio

from ...protocol.values.errors import (
    DeclaredError,
    InternalError,
    InvalidRequestError,
    ServiceUnavailableError,
    SessionNotFoundError,
)
from ...protocol.values.event import Activity
from ...protocol.values.ids import MessageId, SessionId
from ...protocol.values.permission import SavedPermission
from ...protocol.values.prompt import Admission, ControlItem
from ...protocol.values.session import (
    Attachment,
    CompletedOutcome,
    FailedOutcome,
    Interrupted,
    InterruptedOutcome,
    Outcome,
    PromotedOutcome,
    WithdrawnOutcome,
)
from ...storage.journal import Transaction
from ..logs import Logger
from ..mailbox import Answer, Mailbox
from .attachment import attachment
from .controls import ControlAdmission
from .coordinator import Coordinator, answer_late
from .drain import Drain
from .inbox import ENVELOPE_BYTES, Inbox, weight
from .letters import (
    Admit,
    Attach,
    Control,
    Create,
    Interrupt,
    Redeliver,
    ReplyPermission,
    ReplyQuestion,
    Resume,
    SessionLetter,
    SwitchAgent,
    SwitchModel,
    Update,
    Wait,
    WaitPrompt,
    Withdraw,
)
from .prompts import PromptWaiters
from .requests import Requests
from .services import Services
from .transactions import (
    AdmissionOf,
    Creation,
    PermissionAnswer,
    QuestionAnswer,
    Redelivery,
    Switch,
    Withdrawal,
)
from .transitions import Input
from .updating import Update as UpdateOf

MAILBOX_LETTERS = 1_024

_log = Logger("steerway.session")


class SessionActor:
    """`run` is its life; `post` is the only way in.

    `leave(actor)` takes it out of the registry. `approved(directory, saved)` tells all sessions of new approvals.
    `last_outcome` is how its last drain ended, before it left memory.
    """

    def __init__(
        self,
        session_id: SessionId,
        services: Services,
        *,
        leave: Callable[[SessionActor], None],
        approved: Callable[[str, Sequence[SavedPermission]], None],
        last_outcome: Outcome | None = None,
    ) -> None:
        self.session_id = session_id
        self._services = services
        self._leave = leave
        self._approved = approved
        self.mailbox: Mailbox[SessionLetter] = Mailbox(MAILBOX_LETTERS, f"session {session_id}")
        self._coordinator = Coordinator(self)
        self._loaded = False
        self._outstanding = 0
        self._inbox = Inbox(services.max_pending)
        self._requests = Requests(services)
        self._prompts = PromptWaiters(session_id, services)
        self._drain: Drain | None = None
        self._unsettled = True
        self._shutting_down = False
        self._last_word: Exception = ServiceUnavailableError("The runtime is stopping.")
        self._nursery: trio.Nursery | None = None
        self.last_outcome = last_outcome

    # --- what others see ---------------------------------------------------------------------------------------------

    @property
    def working(self) -> bool:
        """Whether a drain owns the session."""
        return self._coordinator.working

    @property
    def idle_since(self) -> float:
        """When it came to rest, on trio's clock."""
        return self._coordinator.idle_since

    @property
    def may_leave(self) -> bool:
        """Whether leaving memory now would lose nothing."""
        busy = self.working or self._outstanding or len(self.mailbox) or self._coordinator.waited_for or self._prompts.waiting
        return self._loaded and not busy

    def post(self, letter: SessionLetter) -> None:
        """Put a letter into the mailbox. A refusal is the letter's answer."""
        try:
            self.mailbox.post(letter)
        except DeclaredError as error:
            letter.answer.fail(error)

    def close(self) -> None:
        """The runtime stops, or the session is removed: cancel the drain with reason `shutdown`; no successor follows."""
        self._shutting_down = True
        self._coordinator.take(Input.CLOSE)

    def dismiss(self, error: Exception | None) -> None:
        """Take no more letters. `error`, if given, is the answer to those that are there and to everybody who waits."""
        self._last_word = error or self._last_word
        self.mailbox.close(error)

    async def wait_settled(self) -> None:
        """Until no drain owns the session. For shutdown; clients wait with a letter."""
        await self._coordinator.wait_settled()

    def approvals_changed(self, directory: str, saved: Sequence[SavedPermission]) -> None:
        """Approvals were kept for `directory`; requests that need no answer any more are answered with them."""
        for request_id in self._requests.allowed_now(saved, directory):
            self.post(ReplyPermission(request_id, "once", None))

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
            self.dismiss(error)
        except Exception as error:
            reference = self._services.ids.event()
            _log.error("session crashed", session_id=self.session_id, reference=reference, exc_info=error)
            self._leave(self)
            self.dismiss(InternalError("The session's actor failed.", reference=reference))
        finally:
            self._nursery = None
            self._leave(self)
            self._services.histories.forget(self.session_id)
            self.mailbox.close()
            self._answer_everybody()

    async def _load(self) -> bool:
        """Find the session, or create it if that is what the first letter asks. False: there is none, and nobody asked."""
        while True:
            try:
                self._inbox.load(await self._services.storage.read(lambda reader: reader.pending(self.session_id)))
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
        try:
            letter.check()
        except DeclaredError as error:
            letter.answer.fail(error)
            return
        directory = letter.created.location.directory
        if letter.located and not await self._services.blocking.run(lambda: _is_directory(directory)):
            letter.answer.fail(
                InvalidRequestError(
                    f"location.directory must be an existing absolute directory, not {directory!r}.",
                    field="location.directory",
                )
            )
            return
        posted = self._services.storage.post(Creation(self._services, self.session_id, letter))
        posted.when_done(lambda done: _copy(done, letter.answer))
        with contextlib.suppress(DeclaredError):  # it is the letter's answer
            await posted.wait()

    def _answer_everybody(self) -> None:
        self._coordinator.close(self._last_word)
        self._prompts.close(self._last_word)

    # --- letters -----------------------------------------------------------------------------------------------------

    def _take(self, letter: SessionLetter) -> None:
        services, session_id = self._services, self.session_id
        match letter:
            case Create():
                self._commit(letter, lambda transaction: transaction.session(session_id).session)
            case Admit():
                self._admit(letter)
            case Control():
                self._control(letter)
            case Withdraw():
                self._commit(letter, Withdrawal(services, session_id, letter.id), then=self._withdrawn(letter.id))
            case Redeliver():
                work = Redelivery(services, session_id, letter.id, letter.delivery)
                self._commit(letter, work, then=self._redelivered, after=self._wake_for_steer)
            case Update():
                self._commit(letter, UpdateOf(services, session_id, letter))
            case SwitchAgent():
                self._commit(letter, Switch(services, session_id, agent=letter.agent))
            case SwitchModel():
                switch = Switch(services, session_id, model=letter.model)
                self._commit(letter, switch, after=lambda _: self._switched(switch))
            case ReplyPermission():
                answer = PermissionAnswer(services, session_id, letter.request_id, letter.reply, letter.message)
                self._commit(letter, answer, after=lambda _: self._permissions_ended(answer))
            case ReplyQuestion():
                question = QuestionAnswer(services, session_id, letter.request_id, letter.answers)
                self._commit(letter, question, after=self._requests.ended)
            case Attach():
                self._attach(letter)
            case WaitPrompt():
                self._prompts.add(letter)
                self._look_after_prompts()
            case Resume():
                self._coordinator.take(Input.RESUME, letter.answer)
            case Interrupt():
                self._coordinator.take(Input.INTERRUPT, letter.answer)
            case Wait():
                self._coordinator.take(Input.WAIT, letter.answer)

    def _commit(
        self,
        letter: SessionLetter,
        work: Callable[[Transaction], Any],
        *,
        then: Callable[[Any], None] | None = None,
        after: Callable[[Any], None] | None = None,
    ) -> None:
        """Post a transaction and answer the letter with its result.

        `then(result or error)` advances the view, before publication; `after(result)` follows publication of a success, in
        one step with the answer.
        """

        def answered(posted: Answer[Any]) -> None:
            self._outstanding -= 1
            if posted.error is None and after is not None:
                after(posted.result())
            _copy(posted, letter.answer)

        self._outstanding += 1
        self._services.storage.post(work, then=then).when_done(answered)

    def _admit(self, letter: Admit) -> None:
        bytes = weight(letter.prompt, letter.metadata)
        work = AdmissionOf(self._services, self.session_id, letter, full=self._inbox.expect(bytes))

        def committed(result: Admission | Exception) -> None:
            self._inbox.arrived(bytes)
            if isinstance(result, Admission) and result.promoted_seq is None and result.withdrawn_seq is None:
                self._inbox.add(result)

        def wake(_: Admission) -> None:
            if letter.resume:
                self._coordinator.take(Input.WAKE)

        self._commit(letter, work, then=committed, after=wake)

    def _control(self, letter: Control) -> None:
        full = self._inbox.expect(ENVELOPE_BYTES)

        def committed(result: ControlItem | Exception) -> None:
            self._inbox.arrived(ENVELOPE_BYTES)
            if not isinstance(result, Exception):
                self._inbox.add(result)

        def wake(_: ControlItem) -> None:
            self._coordinator.take(Input.WAKE)

        work = ControlAdmission(self._services, self.session_id, letter.location, full=full)
        self._commit(letter, work, then=committed, after=wake)

    def _withdrawn(self, message_id: MessageId) -> Callable[[Any], None]:
        def committed(result: WithdrawnOutcome | PromotedOutcome | Exception) -> None:
            if isinstance(result, WithdrawnOutcome):
                self._inbox.remove((message_id,))
                self._look_after_prompts()

        return committed

    def _redelivered(self, result: Admission | Exception) -> None:
        if isinstance(result, Admission):
            self._inbox.add(result)

    def _wake_for_steer(self, result: Admission) -> None:
        if result.delivery == "steer":
            self._coordinator.take(Input.WAKE)

    def _switched(self, switch: Switch) -> None:
        if switch.changed and self._drain is not None:
            self._drain.switched()

    def _permissions_ended(self, answer: PermissionAnswer) -> None:
        for reply in answer.ends:
            self._requests.ended(reply)
        if answer.saved:
            self._approved(answer.directory, answer.saved)

    def _attach(self, letter: Attach) -> None:
        found: list[Attachment] = []

        def committed(result: Attachment | Exception) -> None:
            # Here, between publication of what was committed before and after, memory and store are of one moment.
            if isinstance(result, Attachment):
                turn = self._drain.turn if self._drain is not None else None
                found.append(attachment(result, turn, active=self.working, outcome=self.last_outcome))

        def answered(posted: Answer[Attachment]) -> None:
            self._outstanding -= 1
            if posted.error is not None:
                letter.answer.fail(posted.error)
            else:
                letter.answer.resolve(found[0])

        def work(transaction: Transaction) -> Attachment:
            session = transaction.session(self.session_id).session
            return Attachment(
                session=session,
                pending=tuple(transaction.pending(self.session_id)),
                permissions=tuple(transaction.open_permissions(self.session_id)),
                questions=tuple(transaction.open_questions(self.session_id)),
                seq=session.head,
                active=False,
                turn=transaction.running_turn(self.session_id),
            )

        self._outstanding += 1
        self._services.storage.post(work, then=committed).when_done(answered)

    # --- the drain (Worker) ------------------------------------------------------------------------------------------

    def start(self, *, forced: bool) -> None:
        """Start a drain."""
        if self._nursery is None:
            raise RuntimeError("A drain needs a running actor.")
        drain = Drain(self._services, self.session_id, self, self._requests, forced=forced, unsettled=self._unsettled)
        self._drain = drain
        drain.journal.publish(Activity(state="running"))
        self._nursery.start_soon(self._run_drain, drain)

    def cancel(self) -> None:
        """Cancel the running drain."""
        if self._drain is not None:
            self._drain.cancel(shutdown=self._shutting_down)

    def ended(self) -> Outcome:
        """The drain gave up ownership."""
        outcome, drain = self.last_outcome, self._drain
        if outcome is None or drain is None:
            raise AssertionError("only a drain that ended with an outcome is settled")
        self._drain = None
        self._unsettled = drain.unsettled
        drain.journal.publish(Activity(state="idle", outcome=outcome))
        self._look_after_prompts()
        return outcome

    def soon(self, answer: Answer[Interrupted]) -> None:
        """An interrupt is answered late, if it comes to that."""
        if self._nursery is not None:
            self._nursery.start_soon(answer_late, answer)

    async def _run_drain(self, drain: Drain) -> None:
        outcome = await drain.run()
        if drain.rested:
            return
        self.last_outcome = outcome
        match outcome:
            case CompletedOutcome():
                raise AssertionError("a drain that completes gives up ownership itself")
            case FailedOutcome():
                self._coordinator.take(Input.FAILED)
            case InterruptedOutcome():
                self._coordinator.take(Input.STOPPED)

    def _look_after_prompts(self) -> None:
        self._prompts.look(lambda: self.working)

    # --- what the drain asks of its owner (DrainOwner) ---------------------------------------------------------------

    @property
    def has_pending(self) -> bool:
        """Whether any input waits in the inbox."""
        return bool(len(self._inbox))

    @property
    def steer_pending(self) -> bool:
        """Whether a steer waits in the inbox, in front of all control items."""
        return self._inbox.steer_first

    @property
    def control_first(self) -> bool:
        """Whether a control item is the first to wait."""
        return self._inbox.control_first

    def looked(self) -> None:
        """The drain is about to read the inbox."""
        self._coordinator.take(Input.LOOKED)

    def at_rest(self) -> bool:
        """The drain has nothing left to do; True when it has to look again."""
        self.last_outcome = CompletedOutcome()
        return self._coordinator.take(Input.AT_REST)

    def promoted(self, ids: tuple[MessageId, ...]) -> None:
        """These prompts left the inbox."""
        self._inbox.remove(ids)

    def turn_ended(self) -> None:
        """A turn has its terminal event."""
        self._look_after_prompts()


def _copy(posted: Answer[Any], answer: Answer[Any]) -> None:
    if posted.error is not None:
        answer.fail(posted.error)
    else:
        answer.resolve(posted.result())


def _is_directory(path: str) -> bool:
    return os.path.isabs(path) and "\0" not in path and os.path.isdir(path)
