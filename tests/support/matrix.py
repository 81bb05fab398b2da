"""What the interrupt matrix and the kill matrix share: the turn that is broken off, and what has to be true afterwards.

Rules:
- The turn has a thought, an answer and a tool call; it can be held in every gap between its parts, and inside its bytes.
- `disorder` reads a log that has come to rest: whatever was begun in it has its one end.
- `goes_on` is the other half: nothing runs, nobody is asked anything, and the next prompt gets its answer. That its request
  is valid is for the provider's strict rules to say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeVar

import trio

from steerway import Client
from steerway.protocol.values import (
    CompletedOutcome,
    Event,
    EventData,
    MessageId,
    PermissionAsked,
    PermissionReplied,
    PromptAdmitted,
    PromptPromoted,
    PromptWithdrawn,
    QuestionAsked,
    QuestionRejected,
    QuestionReplied,
    ReasoningEnded,
    ReasoningStarted,
    SessionId,
    TextEnded,
    TextStarted,
    ToolCalled,
    ToolFailed,
    ToolInputEnded,
    ToolInputStarted,
    ToolSucceeded,
    TurnCompleted,
    TurnFailed,
    TurnInterrupted,
    TurnStarted,
)
from support import openai_chat
from support.answers import (
    Answer,
    Block,
    CallDelta,
    CallStart,
    Delay,
    Hold,
    Part,
    Reasoning,
    Text,
    answer,
    raw,
    reasoning,
    stream,
    text,
    tool_call,
)
from support.house import read_events, said
from support.provider import Provider

DataT = TypeVar("DataT", bound=EventData)

NEXT = "And now?"


# --- the turn -----------------------------------------------------------------------------------------------------


LOOK = ("look", '{"value": "up"}')
"""A call of the scripted tool of that name."""


def whole_turn(call: tuple[str, str] = LOOK) -> Block:
    """A thought, an answer and a call, each in pieces, with their finish, usage and end mark."""
    return answer(reasoning(["Let me ", "think"]), text(["One ", "two ", "three"]), tool_call(*call, deltas=3)).parts


def gaps() -> list[str]:
    """The names of the places where `held_turn` can stop, in order."""
    names: dict[type[Part], str] = {Text: "text", Reasoning: "thought", CallStart: "call start", CallDelta: "tool input"}
    seen: Counter[str] = Counter()
    found = ["before all parts"]
    for part in whole_turn():
        name = names.get(type(part), type(part).__name__.lower())
        seen[name] += 1
        found.append(f"behind {name} {seen[name]}")
    return found


def held_turn(gap: int, held: Hold, call: tuple[str, str] = LOOK) -> Answer:
    """The turn, which waits in its gap of this number."""
    parts = whole_turn(call)
    return stream(*parts[:gap], held, *parts[gap:])


def cut_turn(share: float, held: Hold, call: tuple[str, str] = LOOK) -> Answer:
    """The turn as bytes, which waits after this share of them, wherever that is; 1 is right inside the end mark."""
    rendered = openai_chat.render(whole_turn(call), number=1, model="scripted", with_usage=True)
    body = b"".join(piece for piece in rendered if isinstance(piece, bytes))
    at = body.index(b"[DONE]") + 2 if share == 1 else int(len(body) * share)
    return stream(raw(body[:at]), held, raw(body[at:]))


def pace(parts: Sequence[Part], seconds: float) -> Block:
    """The parts with a pause before each."""
    return tuple(item for part in parts for item in (Delay(seconds), part))


# --- who watches --------------------------------------------------------------------------------------------------


class Witness:
    """Everything a live subscriber was sent, by session, until its connection ended."""

    def __init__(self) -> None:
        self.opened = trio.Event()
        self.events: list[Event] = []
        self._over = False
        self._arrivals = trio.lowlevel.ParkingLot()

    async def follow(self, client: Client) -> None:
        try:
            async with client.events.subscribe() as stream:
                async for event in stream:
                    self.events.append(event)
                    self.opened.set()
                    self._arrivals.unpark_all()
        except Exception:  # its server was killed; whoever waits for more is told below
            pass
        finally:
            self._over = True
            self.opened.set()
            self._arrivals.unpark_all()

    def of(self, session: SessionId, kind: type[DataT]) -> list[DataT]:
        return [event.data for event in self.events if event.session_id == session and isinstance(event.data, kind)]

    async def until(self, session: SessionId, kind: type[DataT], count: int = 1) -> DataT:
        """Wait until the session has had so many events of a type, and give that one."""
        while len(found := self.of(session, kind)) < count:
            assert not self._over, f"the stream ended before {kind.type} of {session}"
            await self._arrivals.park()
        return found[count - 1]


# --- what has to be true afterwards -------------------------------------------------------------------------------

_ENDS: Sequence[tuple[str, type[EventData] | tuple[type[EventData], ...], tuple[type[EventData], ...]]] = (
    ("turn", TurnStarted, (TurnCompleted, TurnFailed, TurnInterrupted)),
    ("part", (TextStarted, ReasoningStarted), (TextEnded, ReasoningEnded)),
    ("input", ToolInputStarted, (ToolInputEnded,)),
    ("call", ToolInputStarted, (ToolSucceeded, ToolFailed)),
    ("permission", PermissionAsked, (PermissionReplied,)),
    ("question", QuestionAsked, (QuestionReplied, QuestionRejected)),
)
_IDS = {"turn": "assistant_message_id", "part": "part_id", "input": "call_id", "call": "call_id"}


def disorder(events: Sequence[Event]) -> list[str]:
    """What is wrong with the log of a session in which nothing runs, as sentences."""
    found: list[str] = []
    if [event.seq for event in events] != list(range(1, len(events) + 1)):
        found.append("the sequences have gaps")
    for what, begins, ends in _ENDS:
        field = _IDS.get(what, "request_id")
        begun = {getattr(event.data, field) for event in events if isinstance(event.data, begins)}
        ended = Counter(getattr(event.data, field) for event in events if isinstance(event.data, ends))
        found += [f"the {what} {id} has {ended[id]} ends" for id in begun | set(ended) if ended[id] != 1 or id not in begun]
    fates = Counter(event.data.message_id for event in events if isinstance(event.data, PromptPromoted | PromptWithdrawn))
    admitted = Counter(event.data.message_id for event in events if isinstance(event.data, PromptAdmitted))
    found += [f"the prompt {id} was admitted {count} times" for id, count in admitted.items() if count != 1]
    found += [f"the prompt {id} has {count} fates" for id, count in fates.items() if count != 1 or id not in admitted]
    return [*found, *_misplaced(events)]


def _misplaced(events: Sequence[Event]) -> Iterator[str]:
    """Whatever stands outside the turn it belongs to, and turns that overlap."""
    running: MessageId | None = None
    for event in events:
        match event.data:
            case TurnStarted(assistant_message_id=id):
                if running not in (None, id):
                    yield f"at {event.seq}: {id} starts inside {running}"
                running = id
            case TurnCompleted() | TurnFailed() | TurnInterrupted():
                running = None
            case TextStarted() | ReasoningStarted() | ToolInputStarted() | ToolCalled() | ToolSucceeded() | ToolFailed():
                if running != event.data.assistant_message_id:
                    yield f"at {event.seq}: {event.type} outside its turn"
            case _:
                pass


def unpromoted(events: Sequence[Event]) -> list[MessageId]:
    """The prompts that have to be in the inbox, in admission order."""
    gone = {event.data.message_id for event in events if isinstance(event.data, PromptPromoted | PromptWithdrawn)}
    admitted = [event.data.message_id for event in events if isinstance(event.data, PromptAdmitted)]
    return [id for id in admitted if id not in gone]


async def at_rest(client: Client, session: SessionId) -> list[Event]:
    """Nothing runs in the session, nothing is open, and its inbox holds what was not promoted; gives the log."""
    assert session not in await client.sessions.active()
    events = await read_events(client, session)
    assert disorder(events) == []
    assert await client.permissions.list(session_id=session) == ()
    assert await client.questions.list(session_id=session) == ()
    assert [admission.id for admission in await client.sessions.pending(session)] == unpromoted(events)
    return events


async def goes_on(client: Client, session: SessionId, provider: Provider) -> None:
    """The next prompt is answered, whatever else waited is too, and all requests were as a strict provider wants them."""
    before = len(provider.requests)
    receipt = await client.sessions.prompt(session, NEXT)
    assert await client.sessions.wait_prompt(session, receipt.id) == CompletedOutcome()
    await client.sessions.wait(session)
    assert unpromoted(await at_rest(client, session)) == []
    asked = [line for request in provider.requests[before:] for line in said(request)]
    assert ("user", NEXT) in asked
    assert provider.violations == []
