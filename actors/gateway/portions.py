"""How much of what a peer has sent is looked at before everybody else has a turn.

The library takes apart all that it is given without a pause, at some microseconds a frame: 64 KiB of empty fragments, 11,000
frames, would hold the whole process up. So what is read is handed over in portions of so many frames. Only frame headers are
looked at (RFC 6455, 5.2), and only far enough to find the next one; whether they are right is the library's to say.
"""

from __future__ import annotations

MAX_FRAMES = 256
"""In one portion."""


class Portions:
    """Where the peer's frames begin, over all that has come from it so far."""

    def __init__(self) -> None:
        self._payload = 0
        """Bytes that the frame now coming in still lacks."""
        self._header = b""
        """The part of a header that has come in without its rest."""

    def first(self, data: bytes) -> int:
        """How many bytes of `data` make the next portion. What is behind them has to be given again."""
        size = len(data)
        if self._payload >= size:
            self._payload -= size
            return size
        known = len(self._header)
        whole = self._header + data if known else data
        end = known + size
        place, self._payload, self._header = self._payload, 0, b""
        frames = 0
        while place < end:
            if frames == MAX_FRAMES:
                return place - known
            behind = _end_of_frame(whole, place, end)
            if behind is None:
                self._header = whole[place:]
                return size
            frames += 1
            place = behind
        self._payload = place - end
        return size


def _end_of_frame(data: bytes, place: int, end: int) -> int | None:
    """Where the frame at `place` ends; None while its header is not whole."""
    if place + 2 > end:
        return None
    second = data[place + 1]
    length = second & 0x7F
    header = 2 + (4 if second & 0x80 else 0)
    if length == 126:
        header += 2
    elif length == 127:
        header += 8
    if place + header > end:
        return None
    if length == 126:
        length = int.from_bytes(data[place + 2 : place + 4], "big")
    elif length == 127:
        length = int.from_bytes(data[place + 2 : place + 10], "big")
    return place + header + length
