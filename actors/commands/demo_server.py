"""The demo's server: a process of its own, so that it can be killed. Both ends of it are here.

Rules:
- It is a plain embedder: `open_runtime`, then `listen` on a free loopback port. It reads no settings and touches no state
  folder, so that the demo shows the same on every machine.
- It says where it listens in one JSON line on its output, and stops in order when its input ends, so that it never outlives
  the demo.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import trio

DELAY: Final = 0.012
"""Seconds between the words of the demo model: slow enough to be read, quick enough to be short."""


class ServerProcess(NamedTuple):
    """A server that accepts connections."""

    process: trio.Process
    url: str
    token: str

    async def kill(self) -> int:
        """SIGKILL: no handler runs, nothing is flushed. Returns what the process ended with."""
        self.process.kill()
        return await self.process.wait()


@asynccontextmanager
async def server_process(store: Path, directory: Path) -> AsyncGenerator[ServerProcess]:
    """A server on `store`, for the length of the block."""
    import trio

    command = (sys.executable, "-m", __name__, str(store), str(directory))
    process = await trio.lowlevel.open_process(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        process_group=0,  # Ctrl-C is the demo's, which then closes the server's input
    )
    if process.stdin is None or process.stdout is None:
        raise AssertionError("both were asked for")
    try:
        said = b""
        while not said.endswith(b"\n"):
            more = await process.stdout.receive_some()
            if not more:
                raise OSError("The demo's server process ended before it was ready.")
            said += more
        yield ServerProcess(process, **json.loads(said))
        await process.stdin.aclose()
        with trio.move_on_after(5):
            await process.wait()
    finally:
        with trio.CancelScope(shield=True):
            await process.stdin.aclose()
            await process.stdout.aclose()
            process.kill()  # harmless when it has ended
            await process.wait()


async def _serve(store: str, directory: str) -> None:
    import trio

    from ..configuration import Configuration, Model, ModelSelection, Provider
    from ..runtime import open_runtime

    demo = Provider(protocol="demo", models={"demo": Model(options={"delay": DELAY})})
    configuration = Configuration(models=ModelSelection(default="demo/demo"), providers={"demo": demo})
    token = secrets.token_urlsafe(32)
    async with open_runtime(store, configuration=configuration, directory=directory, environ={}) as runtime:
        listening = await runtime.listen(host="127.0.0.1", port=0, token=token)
        sys.stdout.write(json.dumps({"url": listening.url, "token": token}) + "\n")
        sys.stdout.flush()
        async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as parent:
            async for _ in parent:
                pass


if __name__ == "__main__":
    import trio

    from .failures import told
    from .logs import configure_logs

    configure_logs()
    try:
        trio.run(_serve, sys.argv[1], sys.argv[2])
    except Exception as error:
        sys.exit(str(told(error)))
