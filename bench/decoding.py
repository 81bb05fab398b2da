"""What does decoding a provider's stream cost, beyond splitting it and parsing its JSON?

Rules:
- Alone: an answer of 2,000 deltas of text in each protocol's shape, fed to the adapter's decoder. "One at a time" gives each
  server-sent event as a piece of its own, "16 at once" 16 of them in one piece, as a busy reader meets them.
- The raw limit splits the same pieces at their empty lines and parses the data line of each event with the fastest JSON parser
  there is here (msgspec, untyped). It keeps nothing and checks nothing.
- Live: 50 streams with 100 deltas a second each, for 2 seconds, from another process through `Models.stream`, canonical events
  out. The raw limits read the same streams and drop every byte: with h11 on sockets, as production does, and with httpx2.
- What is compared is CPU time of this process for a delta.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgspec
import trio
from measure import Finding, beside, interleave, report

from steerway.actors.configuration import Configuration, Provider
from steerway.actors.models.models import Models
from steerway.protocol.llm.adapter import Adapter
from steerway.protocol.llm.anthropic_messages import AnthropicMessagesAdapter
from steerway.protocol.llm.events import Finished, TextDelta
from steerway.protocol.llm.gemini import GeminiAdapter
from steerway.protocol.llm.openai_chat import OpenAIChatAdapter
from steerway.protocol.llm.openai_responses import OpenAIResponsesAdapter
from steerway.protocol.llm.request import Generation, LLMRequest, Text, UserMessage
from steerway.protocol.values.model import ModelRef
from support import anthropic_messages, bare_reader, gemini, openai_chat, openai_responses
from support.answers import answer, text, usage
from support.provider import Wire
from support.serve_provider import running_provider

DELTAS = 2_000
READY = 16
STREAMS = 50
PACE = 0.01
SECONDS = 2
WIRES: Sequence[tuple[Adapter, Wire]] = (
    (OpenAIChatAdapter(), openai_chat),
    (OpenAIResponsesAdapter(), openai_responses),
    (AnthropicMessagesAdapter(), anthropic_messages),
    (GeminiAdapter(), gemini),
)
REQUEST = LLMRequest(
    model="unset",
    system=(),
    messages=(UserMessage(content=(Text(text="go"),)),),
    tools=(),
    tool_choice="auto",
    generation=Generation(),
    options={},
    body={},
)

# --- alone ----------------------------------------------------------------------------------------------------------------


def pieces_of(wire: Wire, ready: int) -> list[bytes]:
    """The body of an answer, so many events a piece."""
    script = answer(text([f"word{number:03} " for number in range(DELTAS)]), usage(1_000, DELTAS))
    body = wire.render(script.parts, number=1, model="scripted", with_usage=True)
    events = [event for event in body if isinstance(event, bytes)]
    return [b"".join(events[place : place + ready]) for place in range(0, len(events), ready)]


def split_and_parse(pieces: Sequence[bytes]) -> int:
    """The bare loop: how many events it parsed."""
    parse = msgspec.json.decode
    count = 0
    blank = b"\r\n\r\n" if pieces[0].endswith(b"\r\n") else b"\n\n"
    for piece in pieces:
        for event in piece.split(blank):
            line = event[event.find(b"data: ") + 6 :]
            if line and line != b"[DONE]":
                parse(line)
                count += 1
    return count


def decode(adapter: Adapter, pieces: Sequence[bytes]) -> None:
    """The adapter's decoder over the same pieces."""
    decoder = adapter.decoder()
    events = [event for piece in pieces for event in decoder.feed(piece)] + decoder.close()
    deltas = sum(isinstance(event, TextDelta) for event in events)
    if deltas != DELTAS or not isinstance(events[-1], Finished):
        raise AssertionError(f"{adapter.protocol} gave {deltas} deltas and {events[-1]}")


async def cost(work: Callable[[], object]) -> float:
    """CPU microseconds a delta."""
    begun = time.process_time()
    work()
    return 1e6 * (time.process_time() - begun) / DELTAS


async def measure_alone() -> list[Finding]:
    """Each adapter, one event a piece and several."""
    findings: list[Finding] = []
    for ready in (1, READY):
        variants: dict[str, Callable[[], Awaitable[float]]] = {}
        for adapter, wire in WIRES:
            pieces = pieces_of(wire, ready)
            if split_and_parse(pieces) < DELTAS:
                raise AssertionError("the bare loop missed events")
            variants[adapter.protocol] = partial(cost, partial(decode, adapter, pieces))
            variants[f"bare {adapter.protocol}"] = partial(cost, partial(split_and_parse, pieces))
        found = await interleave(variants, rounds=9)
        arriving = "one at a time" if ready == 1 else f"{ready} at once"
        findings += [
            beside(
                f"CPU a text delta, {adapter.protocol}, {arriving}, against split and parse",
                ours=f"{found[adapter.protocol]:.2f} us",
                raw=f"{found[f'bare {adapter.protocol}']:.2f} us",
                ratio=found.ratio(adapter.protocol, f"bare {adapter.protocol}"),
            )
            for adapter, _ in WIRES
        ]
    return findings


# --- live -----------------------------------------------------------------------------------------------------------------


async def stream(models: Models) -> None:
    """One answer, to its end."""
    info = models.resolve(ModelRef(provider="local", id="scripted"))
    deltas = 0
    async with models.stream(info, REQUEST) as batches:
        async for batch in batches:
            deltas += sum(isinstance(event, TextDelta) for event in batch)
    if not deltas:
        raise AssertionError("a stream gave nothing")


async def read_through(url: str, wall: list[float]) -> float:
    """CPU microseconds a delta, from the socket to canonical events."""
    provider = Provider(protocol="openai-chat", base_url=url)
    async with Models(Configuration(providers={"local": provider}), {}, trust_env=False) as models:
        await stream(models)  # imports and the first connection
        begun, cpu = time.perf_counter(), time.process_time()
        async with trio.open_nursery() as nursery:
            for _ in range(STREAMS):
                nursery.start_soon(stream, models)
        cpu = time.process_time() - cpu
        wall.append(time.perf_counter() - begun)
    return 1e6 * cpu / (STREAMS * SECONDS / PACE)


async def read_bare(url: str, reader: str) -> float:
    """CPU microseconds a delta of reading and dropping."""
    measured = await bare_reader.measure(url, streams=STREAMS, turns=STREAMS, reader=reader)
    return 1e6 * measured["cpu_seconds"] / (STREAMS * SECONDS / PACE)


async def measure_live() -> list[Finding]:
    """50 streams, 100 deltas a second each."""
    wall: list[float] = []
    with running_provider(deltas=int(SECONDS / PACE), delay=PACE) as provider:
        found = await interleave(
            {
                "ours": partial(read_through, provider.url, wall),
                "httpx2": partial(read_bare, provider.url, "httpx2"),
                "h11": partial(read_bare, provider.url, "h11"),
            },
            rounds=3,
        )
    live = f"CPU a delta, {STREAMS} live streams of {1 / PACE:.0f} deltas/s, socket to canonical events"
    return [
        *(
            beside(
                f"{live}, against reading with {name}",
                ours=f"{found['ours']:.1f} us",
                raw=f"{found[key]:.1f} us",
                ratio=found.ratio("ours", key),
            )
            for key, name in (("h11", "h11 on a bare socket"), ("httpx2", "httpx2"))
        ),
        beside("share of one core that all of them take", ours=f"{found['ours'] * STREAMS / PACE / 1e4:.0f} %"),
        beside(f"seconds until the last of {SECONDS} s of stream is decoded", ours=f"{sorted(wall)[len(wall) // 2]:.2f} s"),
    ]


async def measure() -> list[Finding]:
    """Alone, then live."""
    return [*await measure_alone(), *await measure_live()]


if __name__ == "__main__":
    report(measure)
