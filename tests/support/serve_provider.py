"""A provider in a process of its own, with one fixed answer at the lowest cost: for benchmarks and command-line tests.

    python tests/support/serve_provider.py --deltas 50 --delay 0.02
    python tests/support/serve_provider.py --deltas 50 --one-piece

Rules:
- It prints one JSON line {"url", "pid"} when it listens, runs until its standard input ends or SIGTERM comes, and then
  prints a second line {"requests", "cpu_seconds"} (its whole CPU time, start included).
- The bytes of the answer are made once. Requests are not checked, recorded or even decoded, and the HTTP is just enough
  for one client that sends `Content-Length`: the scripted provider (`provider.py`) is the place for correctness.
- `running_provider` starts it for a `with` block; it blocks shortly, so use it outside virtual time only.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support import openai_chat
from support.answers import Text, answer, text, usage

_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_MODELS = json.dumps({"object": "list", "data": [{"id": "scripted", "object": "model"}]}).encode()
_MODELS_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"


def rendered_answer(deltas: int) -> list[bytes]:
    """The answer's HTTP bytes: the head with all before the first delta, each delta, and the rest."""
    script = answer(text([f"word{number:03} " for number in range(deltas)]), usage(1_000, deltas))
    events = openai_chat.render(script.parts, number=1, model="scripted", with_usage=True)
    chunks = [b"%x\r\n%s\r\n" % (len(event), event) for event in events if isinstance(event, bytes)]
    first = 1  # behind the chunk with the role
    last = first + sum(isinstance(part, Text) for part in script.parts)
    return [_STREAM_HEAD + chunks[0], *chunks[first:last], b"".join(chunks[last:]) + b"0\r\n\r\n"]


class FixedProvider:
    """Answers every POST with the same pieces, `delay` seconds before each but the first."""

    def __init__(self, pieces: Sequence[bytes], delay: float) -> None:
        self.requests = 0
        self._pieces = pieces
        self._delay = delay

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve one connection until the client leaves."""
        received = bytearray()
        try:
            while data := await stream.receive_some(65_536):
                received += data
                while (end := received.find(b"\r\n\r\n")) >= 0:
                    length = _LENGTH.search(received, 0, end)
                    missing = end + 4 + (int(length[1]) if length else 0) - len(received)
                    if missing > 0:
                        break
                    is_post = received.startswith(b"POST ")
                    del received[: len(received) + missing]
                    await self._answer(stream, is_post)
        except trio.BrokenResourceError:
            pass  # the client left in the middle

    async def _answer(self, stream: trio.SocketStream, is_post: bool) -> None:
        if not is_post:
            await stream.send_all(_MODELS_ANSWER % (len(_MODELS), _MODELS))
            return
        self.requests += 1
        for number, piece in enumerate(self._pieces):
            if number and self._delay:
                await trio.sleep(self._delay)
            await stream.send_all(piece)


def _read_to_end() -> None:
    while os.read(0, 65_536):  # not sys.stdin: a lock held by this thread would disturb the exit
        pass


async def _run(pieces: Sequence[bytes], delay: float) -> None:
    provider = FixedProvider(pieces, delay)
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1", backlog=1_024)
    url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/v1"
    async with trio.open_nursery() as nursery:

        async def stop_when_stdin_ends() -> None:
            await trio.to_thread.run_sync(_read_to_end, abandon_on_cancel=True)
            nursery.cancel_scope.cancel()

        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            nursery.start_soon(trio.serve_listeners, provider.serve, [listener])
            nursery.start_soon(stop_when_stdin_ends)
            print(json.dumps({"url": url, "pid": os.getpid()}), flush=True)
            async for _ in signals:
                nursery.cancel_scope.cancel()
    print(json.dumps({"requests": provider.requests, "cpu_seconds": time.process_time()}), flush=True)


@dataclass(slots=True)
class ProviderProcess:
    """The running program; the two counts are known when it has ended."""

    url: str
    pid: int
    requests: int = 0
    cpu_seconds: float = 0


@contextmanager
def running_provider(*, deltas: int = 50, delay: float = 0, one_piece: bool = False) -> Generator[ProviderProcess]:
    """Run this program for a block."""
    options = ["--deltas", str(deltas), "--delay", str(delay), *(["--one-piece"] if one_piece else [])]
    command = [sys.executable, str(Path(__file__).resolve()), *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        running = ProviderProcess(**json.loads(process.stdout.readline()))
        try:
            yield running
        finally:
            process.terminate()
            report = json.loads(process.communicate()[0])
            running.requests, running.cpu_seconds = report["requests"], report["cpu_seconds"]


def main() -> None:
    """Read the options and serve."""
    parser = argparse.ArgumentParser(description="Serve one fixed chat-completions answer on a port of 127.0.0.1.")
    parser.add_argument("--deltas", type=int, default=50, help="text deltas of the answer (default 50)")
    parser.add_argument("--delay", type=float, default=0, help="seconds before each delta (default 0)")
    parser.add_argument("--one-piece", action="store_true", help="write the whole answer at once")
    options = parser.parse_args()
    if options.one_piece and options.delay:
        parser.error("an answer in one piece has no pace: give --delay or --one-piece")
    pieces = rendered_answer(options.deltas)
    trio.run(_run, [b"".join(pieces)] if options.one_piece else pieces, options.delay)


if __name__ == "__main__":
    main()
