"""The transaction of a Safe Provider-Turn Boundary: what enters Session History before the request is made.

Rules (semantics, "Safe Provider-Turn Boundary", c; rulings A14, B2):
- It expects the session and the Context Epoch that were sampled; if either moved on, it changes nothing and answers None.
- Of the inbox only what stands before the first control item is eligible: all pending steers, else one queued prompt.
- With nothing to promote, nothing to continue and no forced turn, it changes nothing at all.
- Order: the first epoch; a synthetic instruction; promoted input; nearby instructions; the combined system message or the
  replaced epoch; the instruction of the last step.
- It answers with the messages that are new to the request, as they stand in this transaction, unless that would mean to read a
  long history here, where all sessions write.
- With them it records the first attempt, if the request surely fits: then a prompt costs one commit less, and nothing can come
  between what was sampled and the attempt (ruling A14). A request that may be too large is measured first, outside, and one to
  which much is added is written there.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from ...protocol.llm.transcript import CHARACTERS_PER_TOKEN, PDF_PAGE_TOKENS
from ...protocol.values.context import ContextEpoch
from ...protocol.values.event import ContextUpdated, EpochStarted, EventData, PromptPromoted, SyntheticAdded, TurnStarted
from ...protocol.values.ids import MessageId, SessionId
from ...protocol.values.message import AssistantMessage, Message, ToolPart, UserMessage
from ...protocol.values.prompt import Admission, PendingItem
from ...protocol.values.tool import FileContent
from ...storage.history import Limit, Mark, Stretch
from ...storage.journal import Transaction
from ..context.algebra import Initialized, ReplacementReady, Updated
from ..context.instructions import Instruction, render_nearby
from .history import LONG_BYTES, is_long
from .services import Services

CONTINUE_INSTRUCTION = "Continue."
"""What a forced turn says when the last word in history is the assistant's own (ruling C9)."""
CUT_INSTRUCTION = "Your last answer was cut off. Continue exactly where it stopped, without repeating what is there."
LAST_STEP_INSTRUCTION = (
    "This is the last step of this run: tools cannot be used any more. Answer in text only. Say briefly what was done, what"
    " remains, and what should happen next."
)

SHORT = Limit(events=256, bytes=LONG_BYTES)
"""A history that may be read from its beginning inside the transaction."""
_MARGIN = 64
"""Tokens by which a message may be larger in a request than what is stored of it."""

Admitted = Initialized | Updated | ReplacementReady | None
"""What a boundary does about the System Context; None leaves it as it is."""


def eligible(pending: Sequence[PendingItem], *, continuing: bool) -> list[Admission]:
    """The prompts that a boundary promotes: nothing behind a control item; steers first, else one queued prompt."""
    prompts = [item for item in takewhile(lambda item: isinstance(item, Admission), pending) if isinstance(item, Admission)]
    chosen = [prompt for prompt in prompts if prompt.delivery == "steer"]
    if not chosen and not continuing:
        return prompts[:1]
    return chosen


class Promotion:
    """Answers True when there is a turn to run, False when there is nothing to answer, and None when the sample is stale.

    `promoted` are the prompts that left the inbox, `step` the number of the turn within its allowance. `hold`: the same step
    once more, and no input; the boundary of a request that had to be made smaller.

    `known` is where the caller's history stands, `room` how many tokens may be added to it, None without a limit; `stretch` is
    then what is behind `known`, or None when it was not read, and `begun` says whether `started` was recorded.
    """

    def __init__(
        self,
        services: Services,
        session_id: SessionId,
        *,
        revision: int,
        epoch: ContextEpoch | None,
        admitted: Admitted,
        nearby: Sequence[Instruction],
        forced: bool,
        continuing: bool,
        hold: bool,
        instruction: str | None,
        step: int,
        steps: int | None,
        known: Mark | None,
        room: int | None,
        started: TurnStarted,
    ) -> None:
        self._services = services
        self._session_id = session_id
        self._revision = revision
        self._epoch = epoch
        self._admitted = admitted
        self._nearby = nearby
        self._forced = forced
        self._continuing = continuing
        self._hold = hold
        self._instruction = instruction
        self._steps = steps
        self._known = known
        self._room = room
        self._started = started
        self.step = step
        self.promoted: tuple[MessageId, ...] = ()
        self.stretch: Stretch | None = None
        self.begun = False

    @property
    def last_step(self) -> bool:
        """Whether the allowance ends with this turn."""
        return self._steps is not None and self.step >= self._steps

    def __call__(self, transaction: Transaction) -> bool | None:
        if self._stale(transaction):
            return None
        chosen = [] if self._hold else eligible(transaction.front(self._session_id), continuing=self._continuing)
        if not chosen and not self._continuing and not self._forced:
            return False
        data: list[EventData] = []
        head = transaction.head(self._session_id)
        match self._admitted:
            case Initialized(baseline=baseline, snapshot=snapshot):
                data.append(EpochStarted(baseline=baseline, snapshot=snapshot, baseline_seq=head, reason="initial"))
            case _:
                pass
        if self._instruction is not None and (self._continuing or not chosen):
            data.append(self._say(self._instruction))
        data += [
            PromptPromoted(
                message_id=prompt.id,
                prompt=prompt.prompt,
                delivery=prompt.delivery,
                admitted=prompt.created,
                metadata=prompt.metadata,
            )
            for prompt in chosen
        ]
        data += self._near(transaction)
        match self._admitted:
            case Updated(text=text, entries=entries, dropped=dropped):
                message_id = self._services.ids.message()
                data.append(ContextUpdated(message_id=message_id, text=text, entries=entries, dropped=dropped))
            case ReplacementReady(baseline=baseline, snapshot=snapshot):
                reason = "compaction" if self._epoch is not None and self._epoch.stale else "transition"
                covered = head + len(data)
                data.append(EpochStarted(baseline=baseline, snapshot=snapshot, baseline_seq=covered, reason=reason))
            case _:
                pass
        if not self._hold:
            self.step = 1 if chosen else self.step + 1
            if self.last_step:
                data.append(self._say(LAST_STEP_INSTRUCTION))
        if data:
            transaction.append(self._session_id, [self._services.new_event(item) for item in data])
        self.promoted = tuple(prompt.id for prompt in chosen)
        self._begin(transaction)
        return True

    def _begin(self, transaction: Transaction) -> None:
        self.stretch = transaction.stretch(self._session_id, self._known, SHORT)
        if self.stretch is not None and not is_long(self.stretch) and self._surely_fits(self.stretch):
            transaction.append(self._session_id, [self._services.new_event(self._started)])
            self.begun = True

    def _surely_fits(self, stretch: Stretch) -> bool:
        if self._room is None:
            return True
        # Bytes are no fewer than characters, and base64 makes four of three.
        tokens = stretch.size * 4 // (3 * CHARACTERS_PER_TOKEN) + len(stretch.messages) * _MARGIN
        return tokens + sum(map(_files, stretch.messages)) * PDF_PAGE_TOKENS <= self._room

    def _stale(self, transaction: Transaction) -> bool:
        if transaction.session(self._session_id).revision != self._revision:
            return True
        found = transaction.epoch(self._session_id)
        return (None if found is None else found.epoch) != self._epoch

    def _near(self, transaction: Transaction) -> list[EventData]:
        if not self._nearby:
            return []
        told = transaction.told_paths(self._session_id, [one.path for one in self._nearby])
        fresh = [one for one in self._nearby if one.path not in told]
        if not fresh:
            return []
        paths = tuple(one.path for one in fresh)
        return [SyntheticAdded(message_id=self._services.ids.message(), text=render_nearby(fresh), paths=paths)]

    def _say(self, text: str) -> SyntheticAdded:
        return SyntheticAdded(message_id=self._services.ids.message(), text=text)


def _files(message: Message) -> int:
    """How many files the message carries; an image, or a page, counts for more than its bytes where these are few."""
    match message:
        case UserMessage(files=files):
            return len(files or ())
        case AssistantMessage(content=content):
            results = (getattr(part.state, "content", None) or () for part in content if isinstance(part, ToolPart))
            return sum(isinstance(item, FileContent) for result in results for item in result)
        case _:
            return 0
