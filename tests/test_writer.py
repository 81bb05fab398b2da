"""Group commit: who fails alone, who fails together, and that the writer works again afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from steerway.protocol.values import MessageId, SessionId, SyntheticAdded
from steerway.protocol.values.errors import ConflictError, SessionNotFoundError, StorageUnavailableError, StoreInUseError
from steerway.storage.database import Database
from steerway.storage.journal import Transaction
from steerway.storage.projectors import IllegalEventError
from steerway.storage.rebuild import rebuild_check
from steerway.storage.writer import Committed, Member, Refused
from support.stores import admitted, append, appending, commit, event, open_store, promoted, raw, session_created, there

S = SessionId("ses_1")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Database]:
    database = open_store(tmp_path / "store.db")
    append(database, S, session_created())
    yield database
    database.close()
    assert rebuild_check(tmp_path / "store.db") == []


class MemberError(Exception):
    pass


def admitting(number: int, text: str = "Hello") -> Member:
    return Member(appending(S, admitted(MessageId(f"msg_{number}"), text)))


def failing(number: int, chain: object | None = None) -> Member:
    """Writes, then raises."""

    def work(transaction: Transaction) -> None:
        transaction.append(S, [event(admitted(MessageId(f"msg_{number}")))])
        raise MemberError

    return Member(work, chain)


def kinds(answers: list[Committed | Refused]) -> list[str]:
    return [type(answer.error).__name__ if isinstance(answer, Refused) else "committed" for answer in answers]


def pending(store: Database) -> list[str]:
    return [entry.id for entry in commit(store, lambda transaction: transaction.pending(S))]


def test_answers_come_in_order_with_result_and_events(store: Database) -> None:
    answers = store.writer.commit([Member(lambda _: "looked"), admitting(1), admitting(2)])
    assert answers[0] == Committed("looked", ())
    assert [event.seq for answer in answers[1:] if isinstance(answer, Committed) for event in answer.events] == [2, 3]


def test_a_failing_member_is_undone_alone(store: Database) -> None:
    answers = store.writer.commit([admitting(1), failing(2), admitting(3), failing(4), admitting(5)])
    assert kinds(answers) == ["committed", "MemberError", "committed", "MemberError", "committed"]
    assert pending(store) == ["msg_1", "msg_3", "msg_5"]
    reader = store.open_reader()
    assert [seq for seq, _ in reader.events_page(S, 0)] == [1, 2, 3, 4]
    stored = [event for answer in answers if isinstance(answer, Committed) for event in answer.events]
    assert reader.events_page(S, 1) == [(event.seq, event.body) for event in stored]
    reader.close()


def test_no_work_runs_twice_when_a_group_starts_over(store: Database) -> None:
    runs: list[int] = []

    def counting(number: int) -> Member:
        def work(transaction: Transaction) -> None:
            runs.append(number)
            transaction.append(S, [event(admitted(MessageId(f"msg_{number}")))])

        return Member(work)

    store.writer.commit([counting(1), counting(2), failing(3), counting(4), failing(5)])
    assert runs == [1, 2, 4]


def test_a_session_created_in_a_group_survives_a_later_failure_in_it(store: Database) -> None:
    other = SessionId("ses_2")
    created = Member(appending(other, session_created()))
    more = Member(appending(other, admitted(MessageId("msg_9"))))
    assert kinds(store.writer.commit([created, failing(1), more])) == ["committed", "MemberError", "committed"]
    assert commit(store, lambda transaction: transaction.head(other)) == 2


def test_a_session_whose_creation_failed_is_not_remembered(store: Database) -> None:
    other = SessionId("ses_2")

    def work(transaction: Transaction) -> None:
        transaction.append(other, [event(session_created())])
        raise MemberError

    after = Member(there(other))
    answers = store.writer.commit([Member(work), after])
    assert answers[1] == Committed(result=False, events=())


def test_a_swallowed_failure_fails_the_member_all_the_same(store: Database) -> None:
    def work(transaction: Transaction) -> str:
        try:
            transaction.append(S, [event(admitted(MessageId("msg_1"))), event(promoted(MessageId("msg_other")))])
        except IllegalEventError:
            pass
        return "fine"

    assert kinds(store.writer.commit([Member(work), admitting(2)])) == ["IllegalEventError", "committed"]
    assert pending(store) == ["msg_2"]


def test_a_declared_error_is_handed_on_as_it_is(store: Database) -> None:
    error = ConflictError("taken")

    def work(transaction: Transaction) -> None:
        del transaction
        raise error

    assert store.writer.commit([Member(work)]) == [Refused(error)]


def test_a_member_that_only_looks_and_fails_disturbs_nobody(store: Database) -> None:
    looking = Member(lambda transaction: transaction.session(SessionId("ses_none")))
    assert kinds(store.writer.commit([admitting(1), looking, admitting(2)])) == [
        "committed",
        SessionNotFoundError.__name__,
        "committed",
    ]


def test_a_chain_stands_or_falls_in_order(store: Database) -> None:
    chain, other = object(), object()
    ran: list[str] = []

    def noting(name: str, of: object | None) -> Member:
        return Member(lambda _: ran.append(name), of)

    answers = store.writer.commit(
        [noting("a", chain), failing(1, chain), noting("b", chain), noting("c", other), noting("d", None), noting("e", chain)]
    )
    assert ran == ["a", "c", "d"]
    assert kinds(answers) == ["committed", "MemberError", "MemberError", "committed", "committed", "MemberError"]
    assert isinstance(answers[1], Refused)
    assert answers[2] == answers[1]
    assert kinds(store.writer.commit([noting("f", chain)])) == ["committed"]


def test_a_transaction_is_of_no_use_after_its_work(store: Database) -> None:
    kept: list[Transaction] = []
    commit(store, kept.append)
    with pytest.raises(RuntimeError, match="has ended"):
        kept[0].append(S, [event(admitted(MessageId("msg_1")))])
    with pytest.raises(RuntimeError, match="has ended"):
        kept[0].session(S)


def test_an_interrupt_from_the_keyboard_undoes_the_group_and_passes(store: Database) -> None:
    def work(transaction: Transaction) -> None:
        del transaction
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.writer.commit([admitting(1), Member(work)])
    assert pending(store) == []
    assert append(store, S, admitted(MessageId("msg_2"))) == [2]


def test_a_full_disk_fails_every_member_and_the_writer_works_again(store: Database) -> None:
    large = "x" * 4096
    store.limit_pages(60)
    assert kinds(store.writer.commit([admitting(1)])) == ["committed"]
    group = [admitting(2), *(admitting(number, large) for number in range(3, 60)), Member(lambda _: "looked")]
    answers = store.writer.commit(group)
    assert kinds(answers) == [StorageUnavailableError.__name__] * len(group)
    assert pending(store) == ["msg_1"]
    store.limit_pages(None)
    assert kinds(store.writer.commit([admitting(2), admitting(3, large)])) == ["committed", "committed"]
    assert pending(store) == ["msg_1", "msg_2", "msg_3"]


def test_a_full_disk_is_noticed_by_a_member_that_swallows_it(store: Database) -> None:
    store.limit_pages(60)

    def work(transaction: Transaction) -> str:
        try:
            for number in range(60):
                note = SyntheticAdded(message_id=MessageId(f"msg_{number}"), text="x" * 4096)
                transaction.append(S, [event(note)])
        except Exception:
            return "never mind"
        raise AssertionError("the file had room")

    assert kinds(store.writer.commit([admitting(100), Member(work)])) == [StorageUnavailableError.__name__] * 2
    store.limit_pages(None)
    assert pending(store) == []


def test_a_busy_store_refuses_the_group(store: Database) -> None:
    other: Any = apsw.Connection(str(store.path))
    other.execute("BEGIN IMMEDIATE")
    store.set_busy_timeout(1)
    assert kinds(store.writer.commit([admitting(1)])) == [StorageUnavailableError.__name__]
    other.execute("ROLLBACK")
    other.close()
    assert kinds(store.writer.commit([admitting(1)])) == ["committed"]


def test_a_raised_fence_stops_the_writer_for_good(store: Database) -> None:
    raw(store.path, "UPDATE store SET fence = fence + 1")
    assert kinds(store.writer.commit([admitting(1), Member(lambda _: "looked")])) == [StoreInUseError.__name__] * 2
    assert store.writer.lost
    raw(store.path, "UPDATE store SET fence = fence - 1")
    assert kinds(store.writer.commit([admitting(1)])) == [StoreInUseError.__name__]


def test_a_checkpoint_empties_the_log_unless_a_reader_is_in_it(store: Database) -> None:
    wal = Path(f"{store.path}-wal")
    append(store, S, admitted(MessageId("msg_1")))
    assert wal.stat().st_size > 0
    reading: Any = apsw.Connection(str(store.path))
    reading.execute("BEGIN; SELECT * FROM event").fetchone()
    append(store, S, admitted(MessageId("msg_2")))
    store.set_busy_timeout(1)
    assert not store.writer.checkpoint()
    reading.close()
    assert store.writer.checkpoint()
    assert wal.stat().st_size == 0


def test_an_empty_group_is_fine(store: Database) -> None:
    assert store.writer.commit([]) == []
