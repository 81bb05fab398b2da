"""Readers of a provider's stream that do nothing with it: the raw limit that a turn's cost is compared with.

    python tests/support/bare_reader.py http://127.0.0.1:PORT/v1 --streams 64 --turns 1000 --reader httpx2

Rules:
- Each reader reads every byte of the body and counts it; none splits lines or decodes JSON.
- `read_stream` stands on a socket and h11, one connection a stream; `read_stream_with` on a shared httpx2 client.
- The program prints one JSON line: bytes, turns, cpu_seconds and wall_seconds of the reading (start-up excluded), and
  cpu_ms_per_turn.
"""

import argparse
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import h11
import httpx2
import trio

_READ_SIZE = 65_536


class BareConnection:
    """One keep-alive connection to a server, read with h11."""

    def __init__(self, stream: trio.SocketStream, host: str) -> None:
        self._stream = stream
        self._host = host
        self._http = h11.Connection(h11.CLIENT)

    async def read(self, path: str, body: bytes) -> int:
        """Post a body and count the bytes of the answer's body; any status is read."""
        http = self._http
        headers = [("host", self._host), ("content-type", "application/json"), ("content-length", str(len(body)))]
        request = http.send(h11.Request(method="POST", target=path, headers=headers)) or b""
        await self._stream.send_all(request + (http.send(h11.Data(data=body)) or b""))
        http.send(h11.EndOfMessage())
        count = 0
        while True:
            match http.next_event():
                case h11.NEED_DATA:
                    http.receive_data(await self._stream.receive_some(_READ_SIZE))
                case h11.Data(data=data):
                    count += len(data)
                case h11.EndOfMessage():
                    http.start_next_cycle()
                    return count
                case _:
                    pass  # the head


async def read_streams(url: str, body: Mapping[str, Any], turns: int) -> int:
    """Post the same body so many times over one connection; return the bytes read in all.

    Raises h11.RemoteProtocolError when the server cuts a stream.
    """
    parts = urlsplit(url)
    encoded = json.dumps(body).encode()
    async with await trio.open_tcp_stream(parts.hostname or "", parts.port or 80) as stream:
        connection = BareConnection(stream, parts.netloc)
        return sum([await connection.read(parts.path, encoded) for _ in range(turns)])


async def read_stream(url: str, body: Mapping[str, Any]) -> int:
    """Post a body over a connection of its own and return the number of bytes of the streamed answer."""
    return await read_streams(url, body, 1)


async def read_stream_with(client: httpx2.AsyncClient, url: str, body: Mapping[str, Any]) -> int:
    """The same over a shared client's pool."""
    count = 0
    async with client.stream("POST", url, json=body) as response:
        async for data in response.aiter_raw():
            count += len(data)
    return count


def open_client() -> httpx2.AsyncClient:
    """A client as production has it: no limit of connections, no time-outs of its own, no proxies."""
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx2.AsyncClient(limits=limits, timeout=None, trust_env=False)


async def measure(base_url: str, *, streams: int, turns: int, reader: str) -> dict[str, float]:
    """Read `turns` answers with so many streams at a time."""
    url = f"{base_url}/chat/completions"
    body = {
        "model": "scripted",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": "go"}],
    }
    count = 0

    async def worker(read: Callable[[], Awaitable[int]]) -> None:
        nonlocal count
        read_bytes = await read()  # first, since `count +=` would read the old count before it waits
        count += read_bytes

    each = turns // streams
    async with open_client() as client:

        async def read_by_client() -> int:
            return sum([await read_stream_with(client, url, body) for _ in range(each)])

        async def read_by_socket() -> int:
            return await read_streams(url, body, each)

        read = read_by_client if reader == "httpx2" else read_by_socket
        wall, cpu = time.perf_counter(), time.process_time()
        async with trio.open_nursery() as nursery:
            for _ in range(streams):
                nursery.start_soon(worker, read)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    done = each * streams
    return {
        "bytes": count,
        "turns": done,
        "cpu_seconds": cpu,
        "wall_seconds": wall,
        "cpu_ms_per_turn": 1_000 * cpu / done,
    }


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description="Read a provider's streams and count the bytes and the CPU time.")
    parser.add_argument("url", help="base URL of the provider, ending in /v1")
    parser.add_argument("--streams", type=int, default=1, help="streams at a time (default 1)")
    parser.add_argument("--turns", type=int, default=100, help="answers to read in all (default 100)")
    parser.add_argument("--reader", choices=("h11", "httpx2"), default="httpx2")
    options = parser.parse_args()
    if options.turns < options.streams:
        parser.error("each stream reads at least one answer: --turns is less than --streams")

    async def run() -> dict[str, float]:
        return await measure(options.url, streams=options.streams, turns=options.turns, reader=options.reader)

    print(json.dumps(trio.run(run)))


if __name__ == "__main__":
    main()
