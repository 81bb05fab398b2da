"""Ids that are made: their form, their order, and what randomness they take."""

import os
import sys
import threading

from steerway.protocol.values.ids import IdSource, is_well_formed


def test_an_id_is_its_prefix_and_26_characters_and_rises_in_one_millisecond():
    source = IdSource(lambda: 1_700_000_000_000, os.urandom)
    made = [source.event() for _ in range(1_000)]
    assert all(is_well_formed(one, "evt_") and len(one) == 30 and one.isascii() for one in made)
    assert made == sorted(made)
    assert len({one[16:] for one in made}) == 1_000


def test_a_clock_that_jumps_back_makes_no_id_fall():
    times = iter([2_000, 1_000, 1_000, 3_000])
    source = IdSource(lambda: next(times), bytes)
    made = [source.message() for _ in range(4)]
    assert made == sorted(set(made))


def test_no_byte_of_the_randomness_is_used_twice():
    given: list[int] = []

    def counted(size: int) -> bytes:
        given.append(size)
        return os.urandom(size)

    source = IdSource(lambda: 1, counted)
    for _ in range(200):
        source.part()
    assert 200 * 14 <= sum(given) < 400 * 14


def test_ids_that_two_threads_make_are_all_different():
    """Transactions make ids in the storage thread while the loop makes others."""
    source = IdSource(lambda: 1_700_000_000_000, os.urandom, threading.Lock())
    made: tuple[list[str], list[str]] = ([], [])

    def make(ids: list[str]) -> None:
        ids.extend(source.event() for _ in range(100_000))

    threads = [threading.Thread(target=make, args=(ids,)) for ids in made]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert len({*made[0], *made[1]}) == 200_000
    assert {len(id) for ids in made for id in ids} == {len("evt_") + 26}
    assert all(ids == sorted(ids) for ids in made)
