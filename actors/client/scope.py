"""A nursery that users never see: no exception group comes out of it (ruling D1).

Rules:
- Leaving the block cancels what runs in it; the block's own exception passes untouched, as if there were no nursery.
- A failure of a background task arrives as one `RuntimeFailedError` with its cause, unless the block itself failed.
- Cancellation stays what it is: one `Cancelled`, on its way to the scope it belongs to.
- It is the first thing that every block opens, so it is what tells a program of another event loop that this one is trio's.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType

import trio

from ...protocol.values.errors import RuntimeFailedError


class Background:
    """`async with Background() as nursery`: background tasks for the length of a block."""

    async def __aenter__(self) -> trio.Nursery:
        if not trio.lowlevel.in_trio_run():
            raise RuntimeError("Steerway runs on trio: start the program with trio.run(main), not with asyncio.")
        self._manager = trio.open_nursery()
        self._nursery = await self._manager.__aenter__()
        return self._nursery

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._nursery.cancel_scope.cancel()
        own = list(_leaves(error))
        may_be_ours = any(isinstance(leaf, trio.Cancelled) for leaf in own)
        try:
            # A Cancelled may belong to this very nursery, so trio has to see it; any other exception is the block's.
            absorbed = await self._manager.__aexit__(*((kind, error, trace) if may_be_ours else (None, None, None)))
        except BaseException as raised:
            outcome = _sort_out(error, own, list(_leaves(raised)))
        else:
            return bool(absorbed) and may_be_ours
        if outcome is error:
            return False
        raise outcome


def _sort_out(error: BaseException | None, own: list[BaseException], raised: list[BaseException]) -> BaseException:
    """Which one exception leaves the block: its own, else a background failure, else the cancellation."""
    if error is not None and any(not isinstance(leaf, trio.Cancelled) for leaf in own):
        if len(own) > 1 and not any(isinstance(leaf, trio.Cancelled) for leaf in raised):
            return _without_cancelled(error)  # the cancellation in the group was this nursery's and goes no further
        return error
    background = [leaf for leaf in raised if leaf not in own and not isinstance(leaf, trio.Cancelled)]
    for leaf in background:
        if not isinstance(leaf, Exception):
            return leaf
    if background:
        failure = RuntimeFailedError(f"A background task failed ({type(background[0]).__name__}: {background[0]}).")
        failure.__cause__ = background[0] if len(background) == 1 else BaseExceptionGroup("background tasks", background)
        return failure
    return error if error is not None else raised[0]


def _leaves(error: BaseException | None) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for child in error.exceptions:  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            yield from _leaves(child)  # pyright: ignore[reportUnknownArgumentType]
    elif error is not None:
        yield error


def _without_cancelled(error: BaseException) -> BaseException:
    match error:
        case BaseExceptionGroup():
            group: BaseExceptionGroup[BaseException] = error  # pyright: ignore[reportUnknownVariableType]
            rest = group.split(trio.Cancelled)
            return group if rest[0] is None or rest[1] is None else rest[1]
        case _:
            return error
