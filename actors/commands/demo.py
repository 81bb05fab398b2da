"""`steerway demo`: the story of a session, in some seconds, without key or network."""

from __future__ import annotations

import click

from .failures import Refusal

LIMIT_SECONDS = 60


@click.command()
def demo() -> None:
    """Show what Steerway is for: no key, no network, some seconds.

    A server in a process of its own, on a temporary store, and a client on a real WebSocket. Everything that is said to have
    happened is checked; the exit code is 1 if something did not.
    """
    import trio

    from .logs import configure_logs

    configure_logs()
    try:
        trio.run(_tell)
    except trio.TooSlowError:
        raise Refusal(f"The demo did not end within {LIMIT_SECONDS} seconds; is this machine very busy?") from None


async def _tell() -> None:
    from pathlib import Path
    from tempfile import TemporaryDirectory

    import trio

    from .demo_stage import Stage
    from .demo_story import Story

    with TemporaryDirectory(prefix="steerway-demo-") as folder, trio.fail_after(LIMIT_SECONDS):
        await Story(Stage(), Path(folder)).tell()
