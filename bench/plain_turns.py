"""What does a provider turn cost the server, beyond reading the provider's stream? (ruling E2)

Rules:
- The provider is a real HTTP server in another process, the client that prompts and watches a third one; what is counted is
  the CPU time of the server's process, runtime and gateway together, for a turn of 50 deltas of text.
- In one piece: the provider writes its whole answer at once. Paced: a delta every 20 ms, so that each is an arrival of its own.
- The raw limit is a reader of the same streams with h11 on a bare socket that drops every byte; it runs in the server's
  process while the server rests.
- Each measurement gets new sessions, and runs 4 turns in each, so that history is short and the same for all. A paced turn
  takes a second, so that variant runs 1.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import trio
from measure import Finding, at_most, beside, interleave, report, scratch_folder
from peers import Peers
from stack import TOKEN, Stack, open_stack

from steerway.actors.configuration import Configuration, ModelSelection, Provider
from support import bare_reader
from support.serve_provider import running_provider

DELTAS = 50
PACE = 0.02
EACH = 4
EACH_PACED = 1
FIRST_DELTAS = 40
SINGLE_SESSION_TURNS = 16


@asynccontextmanager
async def running_client(stack: Stack) -> AsyncGenerator[Peers]:
    """The gateway opened, and the client's process connected to it, for a block."""
    listening = await stack.listen()
    command = [sys.executable, str(Path(__file__).with_name("prompting.py")), listening.url, TOKEN]
    start = partial(subprocess.Popen[bytes], command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process = await trio.to_thread.run_sync(start)
    client = Peers(process)
    await client.met()
    try:
        yield client
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(process.communicate)


def asking(provider_url: str) -> Configuration:
    """A configuration whose only model is the provider's."""
    provider = Provider(protocol="openai-chat", base_url=provider_url)
    return Configuration(providers={"local": provider}, models=ModelSelection(default="local/scripted"))


async def turns(client: Peers, sessions: int, each: int, wall: dict[int, float] | None = None) -> float:
    """CPU milliseconds of this process for a turn."""
    await client.ask(do="create", count=sessions)
    begun = time.process_time()
    answer = await client.ask(do="turns", each=each)
    cpu = time.process_time() - begun
    if wall is not None:
        wall[sessions] = sessions * each / answer["seconds"]
    return 1e3 * cpu / (sessions * each)


async def read_bare(url: str, sessions: int, each: int, reader: str) -> float:
    """CPU milliseconds of this process for reading one answer."""
    measured = await bare_reader.measure(url, streams=sessions, turns=sessions * each, reader=reader)
    return measured["cpu_ms_per_turn"]


async def measure_in_one_piece() -> list[Finding]:
    """64, 16 and 1 session, and the first delta."""
    wall: dict[int, float] = {}
    with running_provider(deltas=DELTAS, one_piece=True) as provider, scratch_folder() as folder:
        async with open_stack(folder, asking(provider.url)) as stack, running_client(stack) as client:
            found = await interleave(
                {
                    "64": partial(turns, client, 64, EACH, wall),
                    "16": partial(turns, client, 16, EACH, wall),
                    "1": partial(turns, client, 1, SINGLE_SESSION_TURNS, wall),
                    "bare 64": partial(read_bare, provider.url, 64, EACH, "h11"),
                    "bare 1": partial(read_bare, provider.url, 1, SINGLE_SESSION_TURNS, "h11"),
                }
            )
            port = urlsplit(provider.url).port
            first: dict[str, Any] = await client.ask(do="first_delta", count=FIRST_DELTAS, provider_port=port)
    piece = f"a turn of {DELTAS} deltas in one piece"
    return [
        at_most(f"{piece}, 64 sessions, CPU", ours=found["64"], raw=found["bare 64"], unit="ms", target=3),
        beside(f"{piece}, 16 sessions, CPU", ours=f"{found['16']:.2f} ms"),
        beside(f"{piece}, 1 session, CPU", ours=f"{found['1']:.2f} ms", raw=f"{found['bare 1']:.2f} ms"),
        beside("turns a second, 64 / 16 / 1 sessions", ours=" / ".join(f"{wall[count]:,.0f}" for count in (64, 16, 1))),
        at_most(
            f"first delta after the prompt, over the provider's first byte ({first['direct']:.1f} ms), one session, p50",
            ours=first["over"],
            unit="ms",
            target=5,
        ),
    ]


async def measure_paced() -> list[Finding]:
    """64 sessions, each delta an arrival of its own."""
    with running_provider(deltas=DELTAS, delay=PACE) as provider, scratch_folder() as folder:
        async with open_stack(folder, asking(provider.url)) as stack, running_client(stack) as client:
            found = await interleave(
                {
                    "64": partial(turns, client, 64, EACH_PACED),
                    "httpx2": partial(read_bare, provider.url, 64, EACH_PACED, "httpx2"),
                    "h11": partial(read_bare, provider.url, 64, EACH_PACED, "h11"),
                },
                rounds=3,
            )
    paced = f"a turn of {DELTAS} deltas, one every {1e3 * PACE:.0f} ms, 64 sessions, CPU"
    return [
        beside(
            f"{paced}, against reading with {name}",
            ours=f"{found['64']:.2f} ms",
            raw=f"{found[key]:.2f} ms",
            ratio=found.ratio("64", key),
        )
        for key, name in (("h11", "h11 on a bare socket"), ("httpx2", "httpx2"))
    ]


async def measure() -> list[Finding]:
    """In one piece, then paced."""
    return [*await measure_in_one_piece(), *await measure_paced()]


if __name__ == "__main__":
    report(measure)
