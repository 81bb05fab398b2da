"""Session History as the requests to one model have it, kept from turn to turn so that a turn costs what is new in it.

Rules (semantics, "Request invariants"; ruling B10):
- Lowering is prefix-stable, so what was lowered, checked, measured and written once stays as it is; a turn adds the messages
  behind its `mark`. Another origin (compaction, a new epoch) or another model begins anew.
- What a provider refused may be left out from then on (`Concession`): its own continuation metadata, which it may not know
  any more, then media, which it may not be able to read. So no history can poison a session.
- It is never more than a copy of what is stored: it may be dropped at any time, and is whenever that is in doubt.
- Between drains `Histories` keeps the long ones of sessions that work, within a bound of memory; short ones are read again.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ...protocol.llm.invariants import Checker
from ...protocol.llm.lowering import Lowering
from ...protocol.llm.request import AssistantMessage, Call, Reasoning, RequestMessage, Text
from ...protocol.llm.transcript import Size, measure
from ...protocol.values.ids import MessageId, SessionId
from ...protocol.values.message import Message
from ...protocol.values.model import ModelRef
from ...storage.history import Mark, Stretch
from ..models.catalog import ModelInfo
from ..models.models import Models

LONG_MESSAGES: Final = 500
LONG_BYTES: Final = 1024 * 1024
KEPT_MESSAGES: Final = 32
"""Request messages from which on a history is worth its memory while the session rests."""
KEPT_BYTES: Final = 64 * 1024 * 1024
"""What all resting histories may take together, about."""

_PER_MESSAGE: Final = 1_000
_PER_BYTE: Final = 3
"""A stored byte stands here as text and as the protocol's JSON, media in base64."""

CONCESSIONS: Final = 10_000
"""Sessions of which it is remembered what a provider refused."""


class Concession(NamedTuple):
    """What requests to a model leave out of the messages up to `until`: continuation metadata, and with `media` media too."""

    model: ModelRef
    until: MessageId
    media: bool


def is_long(stretch: Stretch) -> bool:
    """Whether it is better taken up outside the loop: that takes many milliseconds, in which nobody is served."""
    return len(stretch.messages) > LONG_MESSAGES or stretch.size > LONG_BYTES


class History:
    """What one session's requests to one model have in common. `mark` is None until something was taken up, and again when
    nothing here may be relied on any more.
    """

    def __init__(self, models: Models, model: ModelInfo, concession: Concession | None = None) -> None:
        self._model = model.ref
        self._concession = concession if concession is not None and concession.model == model.ref else None
        self._media = model.media
        self.conversation = models.conversation(model)
        """The adapter's own memory of what it has written; None where nothing is written."""
        self._begin()

    def _begin(self) -> None:
        self.mark: Mark | None = None
        self.size = Size()
        self.weight = 0
        """About the bytes of memory that it takes."""
        self._messages: list[RequestMessage] = []
        self._lowering = Lowering(self._model, self._media)
        self._last: MessageId | None = None
        self._metadata = False
        """Whether any continuation metadata are sent."""
        self._checker = Checker()

    def serves(self, model: ModelInfo) -> bool:
        """Whether it was made for that model."""
        return self._model == model.ref

    def follows(self, stretch: Stretch) -> bool:
        """Whether that stretch can be taken up: it is the whole, or begins where this one stands."""
        return stretch.since is None or stretch.since == self.mark

    def extend(self, stretch: Stretch) -> None:
        """Take up a stretch that it follows. Raises `RequestInvariantError`; then it begins anew with the next whole one."""
        if stretch.since is None:
            self._begin()
        self.mark = None
        new = self._lowered(stretch)
        self._checker.extend(new)
        self._messages += new
        self.size += measure(new)
        self.weight += stretch.size * _PER_BYTE + len(new) * _PER_MESSAGE
        if self.conversation is not None and is_long(stretch):
            self.conversation.extend(self._messages)  # or the loop would, with the request
        self.mark = stretch.mark if stretch.settled else None

    def _lowered(self, stretch: Stretch) -> list[RequestMessage]:
        messages, lowering, concession = stretch.messages, self._lowering, self._concession
        new: list[RequestMessage] = []
        if concession is not None and stretch.since is None:
            conceded = _upto(messages, concession.until)
            lowering.metadata, lowering.media = False, () if concession.media else self._media
            new = lowering.extend(messages[:conceded])
            lowering.metadata, lowering.media = True, self._media
            messages = messages[conceded:]
        native = lowering.extend(messages)
        self._metadata = self._metadata or any(map(_has_metadata, native))
        if stretch.messages:
            self._last = stretch.messages[-1].id
        return new + native

    def concession(self) -> Concession | None:
        """What may be left out next because the provider refused the request; None when nothing more can be."""
        if self._last is None or not (self._metadata or self.size.media):
            return None
        media = not self._metadata or (self._concession is not None and self._concession.media)
        return Concession(self._model, self._last, media=media)

    def messages(self) -> tuple[RequestMessage, ...]:
        """The request messages. Raises `RequestInvariantError` where a call has no result."""
        self._checker.finish()
        return tuple(self._messages)

    @property
    def assistant_had_the_last_word(self) -> bool:
        """Whether nothing follows what the model said last, or nothing was ever said."""
        return not self._messages or isinstance(self._messages[-1], AssistantMessage)

    def __len__(self) -> int:
        return len(self._messages)


class Histories:
    """Histories of sessions at rest, the ones used last. A drain takes its session's out, and puts it back before it
    gives up ownership."""

    def __init__(self, limit: int = KEPT_BYTES) -> None:
        self._limit = limit
        self._weight = 0
        self._resting: dict[SessionId, History] = {}
        self._concessions: dict[SessionId, Concession] = {}

    def take(self, session_id: SessionId) -> History | None:
        """The session's history, which is the caller's now, or None."""
        history = self._resting.pop(session_id, None)
        if history is not None:
            self._weight -= history.weight
        return history

    def put(self, session_id: SessionId, history: History) -> None:
        """Keep a history if it may be of use; the ones that rested longest go for it."""
        self.take(session_id)
        if history.mark is None or len(history) < KEPT_MESSAGES or history.weight > self._limit:
            return
        self._resting[session_id] = history
        self._weight += history.weight
        while self._weight > self._limit:
            self.take(next(iter(self._resting)))

    def concede(self, session_id: SessionId, concession: Concession) -> None:
        """Remember what was refused, for as long as this process lives; the oldest go for it."""
        self._concessions.pop(session_id, None)
        self._concessions[session_id] = concession
        if len(self._concessions) > CONCESSIONS:
            del self._concessions[next(iter(self._concessions))]

    def conceded(self, session_id: SessionId) -> Concession | None:
        """What was refused last, if anything was."""
        return self._concessions.get(session_id)

    def forget(self, session_id: SessionId) -> None:
        """The session leaves memory, or its history is in doubt."""
        self.take(session_id)


def _upto(messages: tuple[Message, ...], last: MessageId) -> int:
    """How many messages there are up to that one; none once it has been compacted away."""
    return next((count for count, message in enumerate(messages, 1) if message.id == last), 0)


def _has_metadata(message: RequestMessage) -> bool:
    if not isinstance(message, AssistantMessage):
        return False
    return any(_metadata_of(part) for part in message.content)


def _metadata_of(part: Text | Reasoning | Call) -> bool:
    match part:
        case Call(metadata=metadata, result_metadata=result):
            return bool(metadata or result)
        case Text(metadata=metadata) | Reasoning(metadata=metadata):
            return bool(metadata)
