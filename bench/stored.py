"""Stores that were filled before anybody looks: sessions with settled turns, written through the real writer.

Rules:
- A turn here is a prompt of a sentence and an answer of a paragraph, with the events that a plain turn leaves behind.
- Filling commits in large groups and does not wait for the disk; whoever measures opens the store anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from stack import now_ms

from steerway.protocol.values.event import (
    EventData,
    PromptAdmitted,
    PromptPromoted,
    SessionCreated,
    TextEnded,
    TextStarted,
    TurnCompleted,
    TurnStarted,
)
from steerway.protocol.values.ids import Generation, IdSource, SessionId
from steerway.protocol.values.location import Location
from steerway.protocol.values.model import CacheTokens, ModelRef, Tokens
from steerway.protocol.values.prompt import Prompt
from steerway.storage.database import Database, Owner
from steerway.storage.journal import NewEvent, Transaction
from steerway.storage.writer import Member, Refused

QUESTION = "Say in one sentence what this is for."
ANSWER = "It keeps what was said, so that whoever comes back finds all of it again and can go on from there. " * 4
MODEL = ModelRef(provider="local", id="scripted")
GROUP = 2_000


def settled_turn(ids: IdSource) -> list[EventData]:
    """The events of one prompt and its answer."""
    prompt, message, assistant, part = Prompt(text=QUESTION), ids.message(), ids.message(), ids.part()
    tokens = Tokens(input=20, output=90, reasoning=0, cache=CacheTokens(read=0, write=0))
    return [
        PromptAdmitted(message_id=message, prompt=prompt, delivery="steer"),
        PromptPromoted(message_id=message, prompt=prompt, delivery="steer", admitted=now_ms()),
        TurnStarted(assistant_message_id=assistant, agent="build", model=MODEL, attempt=1),
        TextStarted(assistant_message_id=assistant, part_id=part),
        TextEnded(assistant_message_id=assistant, part_id=part, text=ANSWER),
        TurnCompleted(assistant_message_id=assistant, finish="stop", tokens=tokens, cost=0.0, continues=False),
    ]


def fill(path: Path, turns: Sequence[int]) -> list[SessionId]:
    """A new store at `path` with a session for each number, which says how many settled turns it has; their ids."""
    database = Database.open(
        path,
        owner=Owner(id="bench", pid=os.getpid(), host="bench"),
        now_ms=now_ms,
        new_generation=lambda: Generation("gen_bench"),
        synchronous="normal",
    )
    ids = IdSource(now_ms, os.urandom)
    created = SessionCreated(title="bench", location=Location(directory="/"))
    made: list[SessionId] = []
    members: list[Member] = []
    for count in turns:
        made.append(session_id := ids.session())
        members.append(_appending(ids, session_id, lambda: [created]))
        members += [_appending(ids, session_id, lambda: settled_turn(ids)) for _ in range(count)]
    for begin in range(0, len(members), GROUP):
        for answer in database.writer.commit(members[begin : begin + GROUP]):
            if isinstance(answer, Refused):
                raise answer.error
    database.close()
    return made


def _appending(ids: IdSource, session_id: SessionId, make: Callable[[], Sequence[EventData]]) -> Member:
    def work(transaction: Transaction) -> None:
        transaction.append(session_id, [NewEvent(ids.event(), now_ms(), each) for each in make()])

    return Member(work)
