"""Where blocking work runs: nothing that hangs there holds up anything else."""

import threading

import trio

from steerway.actors.blocking import Threads


async def test_threads_that_were_abandoned_take_no_place_of_work_that_is_waited_for() -> None:
    """Ruling A17: tools that ignore cancellation must not stop the runtime's own access to files."""
    threads, release = Threads(limit=2), threading.Event()
    begun = [threading.Event() for _ in range(2)]

    def hang(mine: threading.Event) -> None:
        mine.set()
        release.wait(60)

    try:
        async with trio.open_nursery() as nursery:
            for mine in begun:
                nursery.start_soon(lambda mine=mine: threads.run(lambda: hang(mine), abandon_on_cancel=True))
            for mine in begun:
                await trio.to_thread.run_sync(mine.wait, 30)
            nursery.cancel_scope.cancel()
        with trio.fail_after(30):
            assert await threads.run(lambda: "done") == "done"
    finally:
        release.set()
