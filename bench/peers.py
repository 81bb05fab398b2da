"""The other side of the measured sockets, in a process of its own.

    python bench/peers.py        one JSON command a line on standard input, one JSON answer a line on standard output

Rules:
- `watch`: connect `count` WebSockets to a gateway, ask each for a `method` and read the answer; `join`: connect `count` plain
  sockets to a port.
  Both give a group its sockets, and answer when they are connected.
- `drain`: read a group's sockets, dropping the bytes, until `bytes` more have come in all, then answer. With a `pause` in
  seconds it looks at them that often: a reader that sleeps in the kernel's poll has to be woken by the sender, at twice the
  cost of the frame, and how often it sleeps would depend on how fast the sender is.
- `admit`: keep `in_flight` prompts in flight on one WebSocket until `count` receipts are there, then answer with the seconds.
- It ends with its standard input.
"""

from __future__ import annotations

import json
import selectors
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import trio
from wire import MASK_BYTES, call, client_frame, cut_frames, upgrade


class Peers:
    """The running program, as the measuring side sees it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def tell(self, **command: Any) -> None:
        """Send a command; its answer must be met by `met` before the next one."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()

    async def met(self) -> dict[str, Any]:
        """The answer to the last command."""
        assert self._process.stdout is not None
        line = await trio.to_thread.run_sync(self._process.stdout.readline)
        if not line:
            raise RuntimeError("The other process has ended; what it said stands above.")
        return json.loads(line)

    async def ask(self, **command: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self.tell(**command)
        return await self.met()


@contextmanager
def running_peers() -> Generator[Peers]:
    """Run this program for a block."""
    command = [sys.executable, str(Path(__file__).resolve())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield Peers(process)
        finally:
            process.communicate()


class Crowd:
    """A group of sockets that are read and not looked at."""

    def __init__(self, sockets: list[socket.socket], ahead: int = 0) -> None:
        self._ahead = ahead
        self._selector = selectors.DefaultSelector()
        self._room = bytearray(1 << 18)
        for sock in sockets:
            sock.setblocking(False)
            self._selector.register(sock, selectors.EVENT_READ)

    def drain(self, count: int, pause: float) -> None:
        """Read until so many bytes have come, looking every `pause` seconds."""
        room = self._room
        count -= self._ahead
        self._ahead = 0
        while count > 0:
            time.sleep(pause)
            for key, _ in self._selector.select():
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                got = sock.recv_into(room)
                if not got:
                    raise ConnectionError("the measured side closed a socket")
                count -= got


def _watch(port: int, token: str, count: int, frame: bytes) -> Crowd:
    """WebSockets that have asked for something and got the answer; what came behind it counts as drained."""
    sockets: list[socket.socket] = []
    ahead = 0
    for _ in range(count):
        sock, rest = upgrade(port, token)
        sock.sendall(frame)
        received = bytearray(rest)
        while not (payloads := cut_frames(bytearray(received))):
            received += sock.recv(65_536)
        answer = len(client_frame(payloads[0])) - MASK_BYTES  # as the server sends it
        ahead += len(received) - answer
        sockets.append(sock)
    return Crowd(sockets, ahead)


def _admit(port: int, token: str, sessions: list[str], count: int, in_flight: int) -> float:
    sock, rest = upgrade(port, token)
    text = "Say in one sentence what this is for."
    requests = deque(
        call(number, "sessions.prompt", {"session_id": sessions[number % len(sessions)], "text": text, "resume": False})
        for number in range(count)
    )
    received = bytearray(rest)
    begun = time.perf_counter()
    answered, free = 0, in_flight
    while answered < count:
        sock.sendall(b"".join([requests.popleft() for _ in range(min(free, len(requests)))]))
        received += sock.recv(1 << 18)
        free = len(cut_frames(received))
        answered += free
    seconds = time.perf_counter() - begun
    sock.close()
    return seconds


def main() -> None:
    """Take commands until there are no more."""
    crowds: dict[str, Crowd] = {}
    for line in sys.stdin:
        answer: dict[str, Any] = {}
        match json.loads(line):
            case {
                "do": "watch",
                "group": group,
                "port": port,
                "token": token,
                "count": count,
                "method": method,
                "params": params,
            }:
                crowds[group] = _watch(port, token, count, call(1, method, params))
            case {"do": "join", "group": group, "port": port, "count": count}:
                connect = partial(socket.create_connection, ("127.0.0.1", port))
                crowds[group] = Crowd([connect() for _ in range(count)])
            case {"do": "drain", "group": group, "bytes": count, "pause": pause}:
                crowds[group].drain(count, pause)
            case {"do": "admit", "port": port, "token": token, "sessions": sessions, "count": count, "in_flight": in_flight}:
                answer["seconds"] = _admit(port, token, sessions, count, in_flight)
            case unknown:
                raise ValueError(f"no such command: {unknown}")
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
