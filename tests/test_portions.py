"""Portions of what a peer sends: at most so many frames each, whatever pieces it comes in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from steerway.actors.gateway.portions import MAX_FRAMES, Portions
from support.gateway import client_frame

EMPTY = client_frame(b"", first=0x00)

FRAMES = st.lists(st.sampled_from([0, 1, 125, 126, 127, 65_535, 65_536]), max_size=8)


def portions(pieces: list[bytes]) -> list[bytes]:
    """What is handed over of pieces as they come in."""
    found: list[bytes] = []
    counter = Portions()
    for piece in pieces:
        rest = piece
        while rest:
            size = counter.first(rest)
            assert size > 0
            found.append(rest[:size])
            rest = rest[size:]
    return found


def test_tiny_frames_come_in_portions_of_so_many() -> None:
    found = portions([EMPTY * (3 * MAX_FRAMES + 1)])
    assert [len(portion) // len(EMPTY) for portion in found] == [MAX_FRAMES] * 3 + [1]


@given(FRAMES, st.integers(0, 3), st.integers(1, 40))
def test_nothing_is_lost_and_no_portion_has_more_frames_wherever_it_is_cut(sizes: list[int], floods: int, step: int) -> None:
    flood = EMPTY * (MAX_FRAMES + 10)
    sent = b"".join(flood * (index < floods) + client_frame(bytes(size)) for index, size in enumerate(sizes))
    if len(sent) > 4_000:
        step = max(step, len(sent) // 97)
    pieces = [sent[start : start + step] for start in range(0, len(sent), step)]
    found = portions(pieces)
    assert b"".join(found) == sent
    whole = portions([sent])
    assert b"".join(whole) == sent
    assert all(portion.count(EMPTY) <= MAX_FRAMES + 1 for portion in whole)


def test_a_large_message_is_one_portion_for_each_piece() -> None:
    sent = client_frame(bytes(1_000_000))
    pieces = [sent[start : start + 65_536] for start in range(0, len(sent), 65_536)]
    assert portions(pieces) == pieces


def test_a_header_that_comes_byte_by_byte_is_one_frame() -> None:
    sent = client_frame(bytes(300)) + EMPTY * MAX_FRAMES
    assert portions([sent[index : index + 1] for index in range(len(sent))]) == [bytes((byte,)) for byte in sent]
