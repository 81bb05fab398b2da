"""The journal: sequences, projections, what a projector refuses, and a stateful machine against a simple model.

Long, because every event type has its rules here, and the machine at the end tests the same ones in any order.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from steerway.protocol.values import (
    ABORTED,
    Admission,
    AssistantMessage,
    CacheTokens,
    CallId,
    CompletedOutcome,
    EventData,
    FailedOutcome,
    Failure,
    InterruptedOutcome,
    MessageId,
    ModelRef,
    ModelSwitched,
    ModelSwitchedMessage,
    PartId,
    PromptOutcome,
    PromptWithdrawn,
    ReasoningEnded,
    ReasoningPart,
    ReasoningStarted,
    SessionId,
    SyntheticAdded,
    SyntheticMessage,
    TextContent,
    TextDelta,
    TextEnded,
    TextPart,
    TextStarted,
    Tokens,
    ToolCalled,
    ToolCompleted,
    ToolError,
    ToolFailed,
    ToolInputEnded,
    ToolInputStarted,
    ToolPart,
    ToolPending,
    ToolRunning,
    ToolSucceeded,
    TurnCompleted,
    TurnFailed,
    TurnInterrupted,
    UserMessage,
    WithdrawnOutcome,
    decode_event,
)
from steerway.protocol.values.errors import ConflictError, SessionNotFoundError
from steerway.storage.database import Database
from steerway.storage.leftovers import OpenCall, OpenFragment, Unfinished
from steerway.storage.projectors import PROJECTORS, IllegalEventError
from steerway.storage.rebuild import rebuild_check
from steerway.storage.writer import Committed, Member
from support.stores import (
    MODEL,
    admitted,
    append,
    appending,
    commit,
    event,
    open_store,
    promoted,
    raw,
    session_created,
    started,
    there,
)

S = SessionId("ses_1")
OTHER = SessionId("ses_2")
ASKED = MessageId("msg_asked")
ANSWER = MessageId("msg_answer")
PART = PartId("prt_1")
CALL = CallId("call_1")
TOKENS = Tokens(input=10, output=5, reasoning=2, cache=CacheTokens(read=3, write=1))
FAILURE = Failure(type="provider.overloaded", message="Too much to do.")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Database]:
    database = open_store(tmp_path / "store.db")
    append(database, S, session_created())
    yield database
    database.close()
    assert rebuild_check(tmp_path / "store.db") == []


def history(database: Database, session_id: SessionId = S) -> tuple[Any, ...]:
    reader = database.open_reader()
    try:
        return reader.history(session_id)
    finally:
        reader.close()


def answer(database: Database) -> AssistantMessage:
    message = history(database)[-1]
    assert isinstance(message, AssistantMessage)
    return message


def completed(continues: bool = False) -> TurnCompleted:
    return TurnCompleted(assistant_message_id=ANSWER, finish="stop", tokens=TOKENS, cost=0.5, continues=continues)


def called(executed: bool = False, **fields: Any) -> ToolCalled:
    return ToolCalled(
        assistant_message_id=ANSWER,
        call_id=CALL,
        provider_call_id="theirs",
        tool="date",
        input={"zone": "UTC"},
        executed=executed,
        **fields,
    )


def succeeded() -> ToolSucceeded:
    return ToolSucceeded(
        assistant_message_id=ANSWER,
        call_id=CALL,
        content=(TextContent(text="noon"),),
        structured={"hour": 12},
        metadata={"k": 1},
    )


def failed_call() -> ToolFailed:
    return ToolFailed(assistant_message_id=ANSWER, call_id=CALL, error=FAILURE)


def unanswered(database: Database) -> int | None:
    return commit(database, lambda transaction: transaction.session(S)).unanswered_seq


# --- the log ------------------------------------------------------------------------------------------------------


def test_sequences_are_gap_free_from_one_in_each_session(store: Database) -> None:
    assert append(store, OTHER, session_created()) == [1]
    assert append(store, S, admitted(ASKED), admitted(MessageId("msg_b"))) == [2, 3]
    assert append(store, OTHER, admitted(MessageId("msg_c"))) == [2]
    assert commit(store, lambda transaction: transaction.head(S)) == 3


def test_the_body_is_the_whole_event_with_its_sequence(store: Database) -> None:
    new = event(admitted(ASKED, metadata={"from": "test"}), created=77)
    (stored,) = commit(store, lambda transaction: transaction.append(S, [new]))
    decoded = decode_event(stored.body)
    assert (decoded.id, decoded.session_id, decoded.seq, decoded.version, decoded.created) == (new.id, S, 2, 1, 77)
    assert decoded.data == new.data
    reader = store.open_reader()
    assert reader.events_page(S, 1) == [(2, stored.body)]
    reader.close()


def test_the_first_event_makes_the_session_and_the_last_one_dates_it(store: Database) -> None:
    append(store, OTHER, session_created("Named", directory="/there", parent_id=S, agent="plan", model=MODEL), created=5)
    append(store, OTHER, admitted(ASKED), created=9)
    session = commit(store, lambda transaction: transaction.session(OTHER)).session
    assert (session.title, session.location.directory, session.parent_id) == ("Named", "/there", S)
    assert (session.agent, session.model) == ("plan", MODEL)
    assert (session.created, session.updated, session.head) == (5, 9, 2)


def test_a_session_that_was_never_created_takes_no_event(store: Database) -> None:
    with pytest.raises(SessionNotFoundError):
        append(store, OTHER, admitted(ASKED))
    assert not commit(store, there(OTHER))


def test_a_session_is_created_once(store: Database) -> None:
    with pytest.raises(ConflictError):
        append(store, S, session_created("Again"))
    assert commit(store, lambda transaction: transaction.session(S)).session.title == "A session"


def test_a_live_event_has_no_place_in_the_log(store: Database) -> None:
    with pytest.raises(ValueError, match="live only"):
        append(store, S, TextDelta(assistant_message_id=ANSWER, part_id=PART, offset=0, delta="x"))


def test_every_projector_belongs_to_a_durable_event_type() -> None:
    assert all(data.durable for data in PROJECTORS)


def test_an_event_of_an_unknown_type_is_kept_and_skipped(store: Database, tmp_path: Path) -> None:
    class FromTomorrow(EventData):
        type = "session.from.tomorrow"
        wish: str

    assert append(store, S, FromTomorrow(wish="none")) == [2]
    assert append(store, S, admitted(ASKED)) == [3]
    assert history(store) == ()
    reader = store.open_reader()
    kept = decode_event(reader.events_page(S, 1)[0][1])
    reader.close()
    assert kept.type == "session.from.tomorrow"
    assert rebuild_check(tmp_path / "store.db") == []


# --- the inbox ----------------------------------------------------------------------------------------------------


def test_a_receipt_keeps_the_prompt_through_its_whole_life(store: Database) -> None:
    append(store, S, admitted(ASKED, "Why?", delivery="queue", metadata={"a": 1}), created=3)
    receipt = commit(store, lambda transaction: transaction.find_prompt(ASKED))
    assert (receipt.prompt.text, receipt.delivery, receipt.metadata) == ("Why?", "queue", {"a": 1})
    assert (receipt.session_id, receipt.admitted_seq, receipt.created) == (S, 2, 3)
    assert (receipt.promoted_seq, receipt.withdrawn_seq) == (None, None)
    append(store, S, promoted(ASKED, "Why?", time=3), created=4)
    receipt = commit(store, lambda transaction: transaction.find_prompt(ASKED))
    assert (receipt.prompt.text, receipt.promoted_seq, receipt.withdrawn_seq) == ("Why?", 3, None)


def test_pending_prompts_come_in_admission_order(store: Database) -> None:
    names = [MessageId(f"msg_{letter}") for letter in "zya"]
    append(store, S, *(admitted(name) for name in names))
    assert [entry.id for entry in commit(store, lambda transaction: transaction.pending(S))] == names
    append(store, S, promoted(names[1]), PromptWithdrawn(message_id=names[2]))
    assert [entry.id for entry in commit(store, lambda transaction: transaction.pending(S))] == names[:1]


def test_promotion_appends_the_user_message_with_the_time_of_admission(store: Database) -> None:
    append(store, S, admitted(ASKED), created=3)
    append(store, S, promoted(ASKED, time=3), created=8)
    assert history(store) == (UserMessage(id=ASKED, created=3, text="Hello"),)
    assert commit(store, lambda transaction: transaction.message_owner(ASKED)) == S


@pytest.mark.parametrize("fate", [promoted(ASKED), PromptWithdrawn(message_id=ASKED)], ids=["promoted", "withdrawn"])
@pytest.mark.parametrize("second", [promoted(ASKED), PromptWithdrawn(message_id=ASKED)], ids=["promote", "withdraw"])
def test_a_prompt_has_one_fate(store: Database, fate: EventData, second: EventData) -> None:
    append(store, S, admitted(ASKED))
    append(store, S, fate)
    with pytest.raises(IllegalEventError):
        append(store, S, second)
    assert commit(store, lambda transaction: transaction.head(S)) == 3


def test_a_prompt_that_was_never_admitted_is_not_promoted(store: Database) -> None:
    with pytest.raises(IllegalEventError):
        append(store, S, promoted(ASKED))


def test_a_prompt_is_promoted_in_its_own_session_only(store: Database) -> None:
    append(store, OTHER, session_created())
    append(store, S, admitted(ASKED))
    with pytest.raises(IllegalEventError):
        append(store, OTHER, promoted(ASKED))


@pytest.mark.parametrize(
    "second",
    [
        admitted(ASKED),
        SyntheticAdded(message_id=ASKED, text="Go on."),
        ModelSwitched(message_id=ASKED, model=MODEL),
        started(ASKED),
    ],
    ids=lambda data: data.type,
)
@pytest.mark.parametrize("waiting", [True, False], ids=["pending", "promoted"])
def test_a_message_id_is_used_once(store: Database, second: EventData, waiting: bool) -> None:
    append(store, OTHER, session_created())
    append(store, S, admitted(ASKED), *([] if waiting else [promoted(ASKED)]))
    for session_id in (S, OTHER):
        with pytest.raises(ConflictError):
            append(store, session_id, second)


def test_an_id_that_history_shows_is_not_admitted(store: Database) -> None:
    append(store, S, SyntheticAdded(message_id=ASKED, text="Go on."))
    with pytest.raises(ConflictError):
        append(store, S, admitted(ASKED))
    assert commit(store, lambda transaction: transaction.find_prompt(ASKED)) is None


def test_an_id_claimed_earlier_in_the_same_transaction_is_taken(store: Database) -> None:
    def work(transaction: Any) -> None:
        assert transaction.message_owner(ASKED) is None
        transaction.append(S, [event(SyntheticAdded(message_id=ASKED, text="Go on."))])
        transaction.append(S, [event(admitted(ASKED))])

    with pytest.raises(ConflictError):
        commit(store, work)


# --- turns --------------------------------------------------------------------------------------------------------


def test_a_turn_is_one_message_from_its_first_attempt_to_its_end(store: Database) -> None:
    append(store, S, started(ANSWER), created=2)
    append(store, S, started(ANSWER, attempt=2), created=4)
    assert answer(store).attempt == 2
    append(store, S, completed(), created=6)
    assert history(store) == (
        AssistantMessage(
            id=ANSWER,
            created=2,
            agent="build",
            model=MODEL,
            attempt=2,
            content=(),
            finish="stop",
            tokens=TOKENS,
            cost=0.5,
            completed=6,
        ),
    )
    session = commit(store, lambda transaction: transaction.session(S)).session
    assert (session.tokens, session.cost) == (TOKENS, 0.5)


def test_totals_add_up_over_turns(store: Database) -> None:
    append(store, S, started(ANSWER), completed())
    second = MessageId("msg_second")
    append(store, S, started(second), TurnFailed(assistant_message_id=second, error=FAILURE, tokens=TOKENS, cost=0.25))
    session = commit(store, lambda transaction: transaction.session(S)).session
    assert (session.tokens, session.cost) == (TOKENS + TOKENS, 0.75)


def test_a_failed_turn_keeps_what_arrived(store: Database) -> None:
    text = TextEnded(assistant_message_id=ANSWER, part_id=PART, text="Half an ans")
    append(store, S, started(ANSWER), TextStarted(assistant_message_id=ANSWER, part_id=PART), text)
    append(store, S, TurnFailed(assistant_message_id=ANSWER, error=FAILURE), created=7)
    message = answer(store)
    assert (message.finish, message.error, message.completed) == ("error", FAILURE, 7)
    assert message.content == (TextPart(id=PART, text="Half an ans"),)


def test_an_interrupted_turn_says_that_it_was_aborted(store: Database) -> None:
    append(store, S, started(ANSWER), TurnInterrupted(assistant_message_id=ANSWER, reason="user"))
    message = answer(store)
    assert message.error is not None
    assert (message.error.type, message.finish) == (ABORTED, "error")


@pytest.mark.parametrize(
    "end",
    [
        completed(),
        completed(continues=True),
        TurnFailed(assistant_message_id=ANSWER, error=FAILURE),
        TurnInterrupted(assistant_message_id=ANSWER, reason="user"),
    ],
    ids=lambda data: data.type,
)
def test_a_turn_ends_once(store: Database, end: EventData) -> None:
    append(store, S, started(ANSWER), end)
    for second in (completed(), TurnInterrupted(assistant_message_id=ANSWER, reason="recovery"), started(ANSWER, attempt=2)):
        with pytest.raises(IllegalEventError):
            append(store, S, second)


def test_an_attempt_follows_the_one_before(store: Database) -> None:
    append(store, S, started(ANSWER))
    with pytest.raises(IllegalEventError):
        append(store, S, started(ANSWER, attempt=3))
    with pytest.raises(ConflictError):
        append(store, S, started(ANSWER))


def test_a_turn_that_never_started_has_no_parts_and_no_end(store: Database) -> None:
    for data in (completed(), called(), TextStarted(assistant_message_id=ANSWER, part_id=PART)):
        with pytest.raises(IllegalEventError):
            append(store, S, data)


def test_another_sessions_turn_is_out_of_reach(store: Database) -> None:
    append(store, OTHER, session_created())
    append(store, S, started(ANSWER))
    with pytest.raises(IllegalEventError):
        append(store, OTHER, completed())


def test_text_and_reasoning_are_overwritten_by_their_end(store: Database) -> None:
    thought = PartId("prt_thought")
    append(
        store,
        S,
        started(ANSWER),
        ReasoningStarted(assistant_message_id=ANSWER, part_id=thought),
        TextStarted(assistant_message_id=ANSWER, part_id=PART),
    )
    assert answer(store).content == (ReasoningPart(id=thought, text=""), TextPart(id=PART, text=""))
    append(
        store,
        S,
        TextEnded(assistant_message_id=ANSWER, part_id=PART, text="Yes."),
        ReasoningEnded(assistant_message_id=ANSWER, part_id=thought, text="Hm.", metadata={"signature": "s"}),
    )
    assert answer(store).content == (
        ReasoningPart(id=thought, text="Hm.", metadata={"signature": "s"}),
        TextPart(id=PART, text="Yes."),
    )


def test_a_fragment_ends_only_as_what_it_began(store: Database) -> None:
    append(store, S, started(ANSWER), TextStarted(assistant_message_id=ANSWER, part_id=PART))
    with pytest.raises(IllegalEventError):
        append(store, S, ReasoningEnded(assistant_message_id=ANSWER, part_id=PART, text="Hm."))
    with pytest.raises(IllegalEventError):
        append(store, S, TextStarted(assistant_message_id=ANSWER, part_id=PART))


# --- tool calls ---------------------------------------------------------------------------------------------------


def test_a_call_goes_from_pending_to_completed(store: Database) -> None:
    begun = ToolInputStarted(assistant_message_id=ANSWER, call_id=CALL, tool="date")
    append(store, S, started(ANSWER), begun, created=1)
    pending = ToolPart(id=CALL, name="date", provider_call_id="", executed=False, state=ToolPending(input=""), created=1)
    assert answer(store).content == (pending,)
    append(store, S, ToolInputEnded(assistant_message_id=ANSWER, call_id=CALL, text='{"zone": "UTC"}'), created=2)
    (part,) = answer(store).content
    assert isinstance(part, ToolPart)
    assert part.state == ToolPending(input='{"zone": "UTC"}')
    append(store, S, called(metadata={"m": 1}), created=3)
    (part,) = answer(store).content
    assert isinstance(part, ToolPart)
    assert (part.state, part.provider_call_id, part.created, part.ran) == (ToolRunning(input={"zone": "UTC"}), "theirs", 1, 3)
    append(store, S, succeeded(), created=4)
    assert answer(store).content == (
        ToolPart(
            id=CALL,
            name="date",
            provider_call_id="theirs",
            executed=False,
            state=ToolCompleted(input={"zone": "UTC"}, content=(TextContent(text="noon"),), structured={"hour": 12}),
            created=1,
            ran=3,
            completed=4,
            metadata={"m": 1},
            result_metadata={"k": 1},
        ),
    )


def test_a_call_without_fragments_makes_its_own_part(store: Database) -> None:
    append(store, S, started(ANSWER), called(executed=True), created=5)
    (part,) = answer(store).content
    assert isinstance(part, ToolPart)
    assert (part.executed, part.created, part.ran) == (True, 5, 5)


def test_a_call_that_fails_before_it_was_accepted_has_an_empty_input(store: Database) -> None:
    append(store, S, started(ANSWER), ToolInputStarted(assistant_message_id=ANSWER, call_id=CALL, tool="date"), failed_call())
    (part,) = answer(store).content
    assert isinstance(part, ToolPart)
    assert part.state == ToolError(input={}, error=FAILURE)


def test_a_call_that_fails_while_running_keeps_its_input(store: Database) -> None:
    append(store, S, started(ANSWER), called(), failed_call())
    (part,) = answer(store).content
    assert isinstance(part, ToolPart)
    assert part.state == ToolError(input={"zone": "UTC"}, error=FAILURE)


@pytest.mark.parametrize("first", [succeeded(), failed_call()], ids=lambda data: data.type)
@pytest.mark.parametrize("second", [succeeded(), failed_call(), called()], ids=lambda data: data.type)
def test_a_call_has_one_settlement(store: Database, first: EventData, second: EventData) -> None:
    append(store, S, started(ANSWER), called(), first)
    with pytest.raises(IllegalEventError):
        append(store, S, second)


def test_a_call_that_is_still_being_written_cannot_succeed(store: Database) -> None:
    append(store, S, started(ANSWER), ToolInputStarted(assistant_message_id=ANSWER, call_id=CALL, tool="date"))
    with pytest.raises(IllegalEventError):
        append(store, S, succeeded())


def test_an_unknown_call_is_not_settled(store: Database) -> None:
    append(store, S, started(ANSWER))
    for data in (succeeded(), failed_call(), ToolInputEnded(assistant_message_id=ANSWER, call_id=CALL, text="")):
        with pytest.raises(IllegalEventError):
            append(store, S, data)


# --- other messages -----------------------------------------------------------------------------------------------


def test_a_model_switch_is_a_marker_and_a_new_revision(store: Database) -> None:
    other = ModelRef(provider="demo", id="other", variant="fast")
    before = commit(store, lambda transaction: transaction.session(S)).revision
    append(store, S, ModelSwitched(message_id=ASKED, model=other, previous=MODEL), created=5)
    record = commit(store, lambda transaction: transaction.session(S))
    assert (record.session.model, record.revision) == (other, before + 1)
    assert history(store) == (ModelSwitchedMessage(id=ASKED, created=5, model=other, previous=MODEL),)


def test_messages_keep_the_order_in_which_they_were_created(store: Database) -> None:
    append(store, S, admitted(ASKED), started(ANSWER), SyntheticAdded(message_id=MessageId("msg_note"), text="Go on."))
    append(store, S, promoted(ASKED), completed())
    assert [type(message) for message in history(store)] == [AssistantMessage, SyntheticMessage, UserMessage]


# --- what is left to do -------------------------------------------------------------------------------------------


def test_unfinished_names_open_turns_fragments_and_calls(store: Database) -> None:
    append(store, S, started(ANSWER), TextStarted(assistant_message_id=ANSWER, part_id=PART), called())
    expected = Unfinished(
        turns=(ANSWER,),
        fragments=(OpenFragment(ANSWER, PART, "text"),),
        calls=(OpenCall(ANSWER, CALL, "date", executed=False, running=True),),
    )
    assert commit(store, lambda transaction: transaction.unfinished(S)) == expected
    append(store, S, TextEnded(assistant_message_id=ANSWER, part_id=PART, text=""), failed_call(), completed())
    assert not commit(store, lambda transaction: transaction.unfinished(S))


@pytest.mark.parametrize(
    ("end", "cleared"),
    [
        (completed(), True),
        (completed(continues=True), False),
        (TurnFailed(assistant_message_id=ANSWER, error=FAILURE), True),
        (TurnInterrupted(assistant_message_id=ANSWER, reason="user"), True),
        (TurnInterrupted(assistant_message_id=ANSWER, reason="shutdown"), False),
        (TurnInterrupted(assistant_message_id=ANSWER, reason="recovery"), False),
    ],
)
def test_what_is_unanswered_is_cleared_by_an_answer_or_its_user(store: Database, end: EventData, cleared: bool) -> None:
    append(store, S, admitted(ASKED))
    assert unanswered(store) is None
    append(store, S, promoted(ASKED))
    assert unanswered(store) == 3
    append(store, S, started(ANSWER), called())
    assert unanswered(store) == 3
    append(store, S, succeeded())
    assert unanswered(store) == 6
    append(store, S, end)
    assert (unanswered(store) is None) == cleared


def test_a_call_the_provider_ran_leaves_nothing_unanswered(store: Database) -> None:
    append(store, S, started(ANSWER), called(executed=True), succeeded())
    assert unanswered(store) is None


def outcome_of(database: Database, session_id: SessionId) -> PromptOutcome | None:
    return commit(database, lambda transaction: transaction.prompt_outcome(session_id, ASKED))


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        (completed(), CompletedOutcome()),
        (TurnFailed(assistant_message_id=ANSWER, error=FAILURE), FailedOutcome(error=FAILURE)),
        (TurnInterrupted(assistant_message_id=ANSWER, reason="shutdown"), InterruptedOutcome(reason="shutdown")),
    ],
)
def test_a_prompts_outcome_is_the_first_turn_that_needs_no_continuation(
    store: Database, end: EventData, outcome: object
) -> None:
    before = MessageId("msg_before")
    append(store, S, started(before), TurnFailed(assistant_message_id=before, error=FAILURE), admitted(ASKED))
    assert outcome_of(store, S) is None
    looking = MessageId("msg_looking")
    continuing = TurnCompleted(assistant_message_id=looking, finish="tool-calls", tokens=TOKENS, cost=0, continues=True)
    append(store, S, promoted(ASKED), started(looking), continuing, started(ANSWER))
    assert outcome_of(store, S) is None
    append(store, S, end)
    assert outcome_of(store, S) == outcome
    later = MessageId("msg_later")
    append(store, S, started(later), TurnInterrupted(assistant_message_id=later, reason="user"))
    assert outcome_of(store, S) == outcome


def test_a_withdrawn_prompt_has_its_own_outcome(store: Database) -> None:
    append(store, S, admitted(ASKED), PromptWithdrawn(message_id=ASKED))
    assert outcome_of(store, S) == WithdrawnOutcome()
    assert outcome_of(store, OTHER) is None


# --- rebuilding ---------------------------------------------------------------------------------------------------


def test_the_rebuild_check_finds_a_projection_that_was_changed(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    database = open_store(path)
    append(database, S, session_created(), admitted(ASKED), promoted(ASKED))
    database.close()
    assert rebuild_check(path) == []
    raw(path, "UPDATE message SET seq = 9; DELETE FROM inbox; UPDATE session SET title = 'Other'")
    assert [difference.table for difference in rebuild_check(path)] == ["session", "inbox", "message"]


# --- a machine against a model ------------------------------------------------------------------------------------


class Step(NamedTuple):
    """One member of a group: what it does, to which session, with which message, how it ends, in which chain."""

    act: str
    session: int
    message: int
    raises: bool
    chain: int | None


ACTS = ["create", "admit", "promote", "withdraw", "note", "start", "retry", "call", "settle", "complete", "fail"]

steps = st.builds(
    Step,
    act=st.sampled_from(ACTS),
    session=st.integers(0, 2),
    message=st.integers(0, 5),
    raises=st.sampled_from([False, False, False, True]),
    chain=st.sampled_from([None, None, 0, 1]),
)


class DeliberateError(Exception):
    pass


class Model:
    """What the journal promises, without any storage."""

    def __init__(self) -> None:
        self.heads: dict[int, int] = {}
        self.prompts: dict[int, tuple[int, str]] = {}  # message -> session, fate
        self.shown: dict[int, int] = {}  # message -> session
        self.turns: dict[int, int | None] = {}  # message -> open attempt
        self.calls: dict[int, str] = {}  # message -> state of its one call

    def copy(self) -> Model:
        other = Model()
        for name, value in vars(self).items():
            setattr(other, name, dict(value))
        return other

    def apply(self, step: Step) -> bool:
        """Do it; False when it must be refused."""
        session, message = step.session, step.message
        if (step.act == "create") == (session in self.heads):
            return False
        turn = self.shown.get(message) == session and message in self.turns
        fate = self.prompts.get(message)
        free = message not in self.shown and fate is None
        match step.act:
            case "create":
                legal = True
                self.heads[session] = 0
            case "admit":
                legal = free
                self.prompts[message] = (session, "pending")
            case "promote":
                legal = fate == (session, "pending")
                self.prompts[message], self.shown[message] = (session, "promoted"), session
            case "withdraw":
                legal = fate == (session, "pending")
                self.prompts[message] = (session, "withdrawn")
            case "note":
                legal = free
                self.shown[message] = session
            case "start":
                legal = free
                self.shown[message], self.turns[message] = session, 1
            case "retry":
                legal = turn and self.turns[message] == 1
                self.turns[message] = 2
            case "call":
                legal = turn and message not in self.calls
                self.calls[message] = "running"
            case "settle":
                legal = turn and self.calls.get(message) == "running"
                self.calls[message] = "settled"
            case _:
                legal = turn and self.turns[message] is not None
                self.turns[message] = None
        if legal:
            self.heads[session] += 1
        return legal and not step.raises


def message_of(number: int) -> MessageId:
    return MessageId(f"msg_{number}")


def data_of(step: Step) -> EventData:
    message = message_of(step.message)
    match step.act:
        case "create":
            return session_created()
        case "admit":
            return admitted(message)
        case "promote":
            return promoted(message)
        case "withdraw":
            return PromptWithdrawn(message_id=message)
        case "note":
            return SyntheticAdded(message_id=message, text="Go on.")
        case "start":
            return started(message)
        case "retry":
            return started(message, attempt=2)
        case "call":
            return ToolCalled(
                assistant_message_id=message, call_id=CALL, provider_call_id="x", tool="date", input={}, executed=False
            )
        case "settle":
            return ToolFailed(assistant_message_id=message, call_id=CALL, error=FAILURE)
        case "complete":
            return TurnCompleted(assistant_message_id=message, finish="stop", tokens=TOKENS, cost=0.5, continues=False)
        case _:
            return TurnFailed(assistant_message_id=message, error=FAILURE)


class JournalMachine(RuleBasedStateMachine):
    """Groups of members, some of which fail, against the model; the projections are rebuilt at the end."""

    @initialize()
    def open(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "store.db"
        self.database = open_store(self.path)
        self.reader = self.database.open_reader()
        self.model = Model()

    @rule(group=st.lists(steps, min_size=1, max_size=12))
    def commit(self, group: list[Step]) -> None:
        chains = [object(), object()]
        broken: set[int] = set()
        expected: list[bool] = []
        for step in group:
            tried = self.model.copy()
            passed = step.chain not in broken and tried.apply(step)
            expected.append(passed)
            if passed:
                self.model = tried
            elif step.chain is not None:
                broken.add(step.chain)
        answers = self.database.writer.commit(
            [Member(self.work(step), None if step.chain is None else chains[step.chain]) for step in group]
        )
        assert [type(answer) is Committed for answer in answers] == expected

    def work(self, step: Step) -> Any:
        append_step = appending(SessionId(f"ses_{step.session}"), data_of(step))

        def work(transaction: Any) -> None:
            append_step(transaction)
            if step.raises:
                raise DeliberateError

        return work

    @rule()
    def reopen(self) -> None:
        self.reader.close()
        self.database.close()
        self.database = open_store(self.path)
        self.reader = self.database.open_reader()

    @invariant()
    def sequences_are_gap_free(self) -> None:
        for session, head in self.model.heads.items():
            session_id = SessionId(f"ses_{session}")
            assert [seq for seq, _ in self.reader.events_page(session_id, 0)] == list(range(1, head + 1))
            assert self.reader.head(session_id) == head

    @invariant()
    def prompts_have_one_fate(self) -> None:
        for number, (session, fate) in self.model.prompts.items():
            id = message_of(number)
            receipt: Admission | None = commit(self.database, lambda transaction, id=id: transaction.find_prompt(id))
            assert receipt is not None
            assert receipt.session_id == f"ses_{session}"
            assert (receipt.promoted_seq is not None) == (fate == "promoted")
            assert (receipt.withdrawn_seq is not None) == (fate == "withdrawn")
            waits = receipt.id in [entry.id for entry in self.reader.pending(receipt.session_id)]
            assert waits == (fate == "pending")

    @invariant()
    def history_and_unfinished_agree(self) -> None:
        for session in self.model.heads:
            session_id = SessionId(f"ses_{session}")
            shown = {message.id for message in self.reader.history(session_id)}
            assert shown == {message_of(message) for message, owner in self.model.shown.items() if owner == session}
            unfinished: Unfinished = commit(self.database, lambda transaction, id=session_id: transaction.unfinished(id))
            own = {message: attempt for message, attempt in self.model.turns.items() if self.model.shown[message] == session}
            assert set(unfinished.turns) == {message_of(message) for message, attempt in own.items() if attempt}
            running = {message_of(message) for message in own if self.model.calls.get(message) == "running"}
            assert {call.assistant_message_id for call in unfinished.calls} == running
            assert (session_id in self.reader.unfinished_sessions()) == bool(unfinished)

    def teardown(self) -> None:
        if hasattr(self, "database"):
            self.reader.close()
            self.database.close()
            differences = rebuild_check(self.path)
            self.folder.cleanup()
            assert differences == []


TestJournalMachine = JournalMachine.TestCase
TestJournalMachine.settings = settings(
    max_examples=25, stateful_step_count=12, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
