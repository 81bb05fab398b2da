"""A client that prompts and watches, in a process of its own, through the public client.

    python bench/prompting.py URL TOKEN

One JSON command a line on standard input, one JSON answer a line on standard output; the first answer says that it watches.

Rules:
- It is subscribed to the live events all the time, as a program with a screen is, and learns from them that a turn is over.
- `create` makes `count` new sessions. `turns` runs `each` turns in every one of them, one behind the other in a session and
  all sessions at the same time, and answers when all are over.
- `first_delta` runs `count` turns in one new session, and between them reads the provider directly over one connection: the
  median milliseconds from prompt to first delta, and from request to first byte.
- Sessions are new for every measurement, so that history stays short and the same for all.
"""

from __future__ import annotations

import json
import sys
import time
from statistics import median
from typing import Any

import h11
import trio

from steerway import Activity, Client, Event, SessionId, TextDelta, connect

TEXT = "Say in one sentence what this is for."


class Watch:
    """Who waits for which session."""

    def __init__(self) -> None:
        self._idle: dict[SessionId, trio.Event] = {}
        self._first: dict[SessionId, float] = {}

    def expect(self, session_id: SessionId) -> trio.Event:
        """Set when the session goes idle next."""
        self._first.pop(session_id, None)
        event = self._idle[session_id] = trio.Event()
        return event

    def first_delta(self, session_id: SessionId) -> float:
        """When the first delta came since `expect`."""
        return self._first[session_id]

    def see(self, event: Event) -> None:
        """Take one live event."""
        match event:
            case Event(data=TextDelta(), session_id=str() as session_id) if session_id not in self._first:
                self._first[session_id] = time.perf_counter()
            case Event(data=Activity(state="idle"), session_id=str() as session_id):
                self._idle[session_id].set()
            case _:
                pass


async def create(client: Client, count: int) -> list[SessionId]:
    """So many new sessions."""
    return [(await client.sessions.create(title="bench")).id for _ in range(count)]


async def run_turns(client: Client, watch: Watch, sessions: list[SessionId], each: int) -> float:
    """Seconds for `each` turns in every session."""

    async def run_session(session_id: SessionId) -> None:
        for _ in range(each):
            idle = watch.expect(session_id)
            await client.sessions.prompt(session_id, TEXT)
            await idle.wait()

    begun = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for session_id in sessions:
            nursery.start_soon(run_session, session_id)
    return time.perf_counter() - begun


class DirectReader:
    """Asks the provider itself, over one connection."""

    def __init__(self, stream: trio.SocketStream, port: int) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.CLIENT)
        self._headers = [("host", f"127.0.0.1:{port}"), ("content-type", "application/json")]

    async def first_byte(self, body: bytes) -> float:
        """Seconds from the request to the first byte of the answer's body; the rest is read."""
        http, first = self._http, None
        begun = time.perf_counter()
        head = h11.Request(
            method="POST", target="/v1/chat/completions", headers=[*self._headers, ("content-length", str(len(body)))]
        )
        await self._stream.send_all((http.send(head) or b"") + (http.send(h11.Data(data=body)) or b""))
        http.send(h11.EndOfMessage())
        while True:
            match http.next_event():
                case h11.NEED_DATA:
                    http.receive_data(await self._stream.receive_some(65_536))
                case h11.Data() if first is None:
                    first = time.perf_counter() - begun
                case h11.EndOfMessage():
                    http.start_next_cycle()
                    return first or 0.0
                case _:
                    pass


async def first_deltas(client: Client, watch: Watch, count: int, provider_port: int) -> dict[str, float]:
    """Median milliseconds to the first delta through the server, and to the provider's first byte."""
    (session_id,) = await create(client, 1)
    through: list[float] = []
    direct: list[float] = []
    over: list[float] = []
    body = json.dumps({"model": "scripted", "stream": True, "messages": [{"role": "user", "content": TEXT}]}).encode()
    async with await trio.open_tcp_stream("127.0.0.1", provider_port) as stream:
        reader = DirectReader(stream, provider_port)
        for _ in range(count):
            direct.append(await reader.first_byte(body))
            idle = watch.expect(session_id)
            begun = time.perf_counter()
            await client.sessions.prompt(session_id, TEXT)
            await idle.wait()
            through.append(watch.first_delta(session_id) - begun)
            over.append(through[-1] - direct[-1])
    return {
        "through": 1e3 * median(through[count // 5 :]),
        "direct": 1e3 * median(direct[count // 5 :]),
        "over": 1e3 * median(over[count // 5 :]),
    }


async def run(url: str, token: str) -> None:
    """Connect, subscribe, take commands."""
    watch = Watch()
    sessions: list[SessionId] = []
    async with connect(url, token=token) as client, trio.open_nursery() as nursery:

        async def see(*, task_status: trio.TaskStatus[None]) -> None:
            async with client.events.subscribe() as events:
                async for event in events:
                    if event.type == "server.connected":
                        task_status.started()
                    watch.see(event)

        await nursery.start(see)
        print(json.dumps({}), flush=True)
        while line := await trio.to_thread.run_sync(sys.stdin.readline):
            answer: dict[str, Any] = {}
            match json.loads(line):
                case {"do": "create", "count": count}:
                    sessions = await create(client, count)
                case {"do": "turns", "each": each}:
                    answer["seconds"] = await run_turns(client, watch, sessions, each)
                case {"do": "first_delta", "count": count, "provider_port": port}:
                    answer.update(await first_deltas(client, watch, count, port))
                case unknown:
                    raise ValueError(f"no such command: {unknown}")
            print(json.dumps(answer), flush=True)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(run, sys.argv[1], sys.argv[2])
