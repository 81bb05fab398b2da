"""How close does delivery come to a bare loop that sends bytes?

Rules:
- Live: an event of 150 bytes to 200 subscribers, each with a WebSocket of its own. The raw limit sends the same frame, made
  before, to 200 plain sockets. What is compared is the CPU time a delivered frame costs the sending process; the readers are
  another process and look every 2 ms. "16 ready" publishes 16 events at once, which leave each socket as one run of bytes, for
  both.
- A round sends no more than the sockets' buffers hold, so that neither side meets a full one.
- Replay: a session of 50,000 events to one WebSocket, until the reader has the bytes. The raw limit reads the same rows by the
  same query in pages of 512, frames each and sends a page at once from a blocking socket.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import trio
from measure import Finding, Stopwatch, at_least, beside, interleave, report, scratch_folder
from peers import Peers, running_peers
from stack import TOKEN, Stack, now_ms, open_database, open_stack

from steerway.actors.gateway.frames import OPCODE_BINARY, server_frame
from steerway.protocol.codec import MSGPACK
from steerway.protocol.values.event import Event, PromptAdmitted, ServerDiagnostic, SessionCreated, encode_event
from steerway.protocol.values.ids import IdSource, SessionId
from steerway.protocol.values.location import Location
from steerway.protocol.values.prompt import Prompt
from steerway.storage.connections import connect_reader
from steerway.storage.journal import NewEvent, Transaction
from steerway.storage.writer import Member

SUBSCRIBERS = 200
EVENTS = 192
EVENT_BYTES = 150
READY = 16
PAUSE = 0.002
"""Seconds between two looks of the live readers."""
REPLAYED = 50_000
PAGE = 512


def live_event() -> Event:
    """A live event whose encoding has exactly `EVENT_BYTES`."""
    for length in range(EVENT_BYTES):
        data = ServerDiagnostic(name="bench", message="x" * length)
        event = Event(type=data.type, created=1_700_000_000_000, data=data)
        if len(encode_event(event)) == EVENT_BYTES:
            return event
    raise AssertionError("the envelope alone is longer")


PREFIX = MSGPACK.item_prefix(1)


def framed(body: bytes) -> bytes:
    """The frame of one item of subscription 1."""
    return server_frame(PREFIX + body + MSGPACK.item_suffix, OPCODE_BINARY)


def accept(count: int, peers: Peers, group: str, listener: socket.socket) -> list[socket.socket]:
    """Plain sockets that the peers have joined."""
    peers.tell(do="join", group=group, port=listener.getsockname()[1], count=count)
    sockets = [listener.accept()[0] for _ in range(count)]
    for sock in sockets:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as the gateway does
    return sockets


# --- live -----------------------------------------------------------------------------------------------------------------


async def send_bare(peers: Peers, sockets: Sequence[socket.socket], frame: bytes, ready: int) -> float:
    """CPU microseconds a frame: a loop over the sockets."""
    peers.tell(do="drain", group="bare", bytes=EVENTS * SUBSCRIBERS * len(frame), pause=PAUSE)
    joined = frame * ready
    watch = Stopwatch()
    for _ in range(EVENTS // ready):
        for sock in sockets:
            sock.send(joined)
    cpu = watch.stop()[1]
    await peers.met()
    return 1e6 * cpu / (EVENTS * SUBSCRIBERS)


async def publish(peers: Peers, stack: Stack, event: Event, frame_bytes: int, ready: int) -> float:
    """CPU microseconds a frame: from `publish_live` to the sockets."""
    peers.tell(do="drain", group="live", bytes=EVENTS * SUBSCRIBERS * frame_bytes, pause=PAUSE)
    watch = Stopwatch()
    for _ in range(EVENTS // ready):
        for _ in range(ready):
            stack.feed.publish_live(event)
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()  # the feed's task has run by now
    cpu = watch.stop()[1]
    await peers.met()
    return 1e6 * cpu / (EVENTS * SUBSCRIBERS)


async def measure_live(folder: Path, peers: Peers) -> list[Finding]:
    """One event a wake-up, and 16."""
    event = live_event()
    frame = framed(encode_event(event))
    with socket.create_server(("127.0.0.1", 0), backlog=SUBSCRIBERS) as listener:
        sockets = accept(SUBSCRIBERS, peers, "bare", listener)
        await peers.met()
        for sock in sockets:
            sock.setblocking(False)
        async with open_stack(folder) as stack:
            port = (await stack.listen()).port
            await peers.ask(
                do="watch", group="live", port=port, token=TOKEN, count=SUBSCRIBERS, method="events.subscribe", params={}
            )
            found = await interleave(
                {
                    "bare": partial(send_bare, peers, sockets, frame, 1),
                    "ours": partial(publish, peers, stack, event, len(frame), 1),
                    "bare, joined": partial(send_bare, peers, sockets, frame, READY),
                    "ours, joined": partial(publish, peers, stack, event, len(frame), READY),
                }
            )
            overflowed = stack.feed.statistics().overflowed
        for sock in sockets:
            sock.close()
    if overflowed:
        raise AssertionError("subscribers were lost")

    def compared(what: str, ours: str, bare: str) -> Finding:
        ratio = 1 / found.ratio(ours, bare)
        return at_least(
            what, ours=1e6 / found[ours], raw=1e6 / found[bare], unit="frames per CPU second", target=0.80, ratio=ratio
        )

    return [
        compared(f"live events of {EVENT_BYTES} bytes to {SUBSCRIBERS} subscribers, one at a time", "ours", "bare"),
        compared(f"the same, {READY} ready at once", "ours, joined", "bare, joined"),
    ]


# --- durable --------------------------------------------------------------------------------------------------------------


def write_long_session(path: Path) -> tuple[SessionId, int]:
    """A session of `REPLAYED` events, and the bytes of their frames."""
    database = open_database(path)
    ids = IdSource(now_ms, bytes)
    session_id = ids.session()
    created = SessionCreated(title="long", location=Location(directory="/"))

    def append(count: int) -> Member:
        def work(transaction: Transaction) -> None:
            prompts = [
                PromptAdmitted(message_id=ids.message(), prompt=Prompt(text="word " * 8), delivery="steer")
                for _ in range(count)
            ]
            transaction.append(session_id, [NewEvent(ids.event(), now_ms(), prompt) for prompt in prompts])

        return Member(work)

    def begin(transaction: Transaction) -> None:
        transaction.append(session_id, [NewEvent(ids.event(), now_ms(), created)])

    database.writer.commit([Member(begin)])
    for _ in range(REPLAYED // PAGE):
        database.writer.commit([append(PAGE)])
    database.writer.commit([append(REPLAYED % PAGE - 1)])
    database.close()
    connection = connect_reader(path)
    rows = connection.execute("SELECT body FROM event WHERE seq > 0").fetchall()
    connection.close()
    if len(rows) != REPLAYED:
        raise AssertionError(f"the session has {len(rows)} events")
    return session_id, sum(len(framed(body)) for (body,) in rows)


async def replay_bare(peers: Peers, sock: socket.socket, path: Path, session_id: SessionId, size: int) -> float:
    """Events per second: read, frame, send."""
    peers.tell(do="drain", group="bare replay", bytes=size, pause=0)

    def loop() -> float:
        begun = time.perf_counter()
        connection = connect_reader(path)
        cursor = connection.cursor()
        after = 0
        while True:
            rows = cursor.execute(
                "SELECT seq, body FROM event WHERE session = (SELECT key FROM session WHERE id = ?) AND seq > ?"
                " ORDER BY seq LIMIT ?",
                (session_id, after, PAGE),
            ).fetchall()
            if not rows:
                break
            after = rows[-1][0]
            sock.sendall(b"".join([framed(body) for _, body in rows]))
        connection.close()
        return begun

    begun = loop()
    await peers.met()
    return REPLAYED / (time.perf_counter() - begun)


async def replay(peers: Peers, port: int, session_id: SessionId, size: int, rounds: list[int]) -> float:
    """Events per second: subscribe from the beginning."""
    group = f"replay {len(rounds)}"
    rounds.append(1)
    begun = time.perf_counter()
    await peers.ask(
        do="watch", group=group, port=port, token=TOKEN, count=1, method="sessions.events", params={"session_id": session_id}
    )
    await peers.ask(do="drain", group=group, bytes=size, pause=0)
    return REPLAYED / (time.perf_counter() - begun)


async def measure_replay(folder: Path, peers: Peers) -> list[Finding]:
    """A long session to one socket."""
    path = folder / "sessions.db"
    session_id, size = write_long_session(path)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        (sock,) = accept(1, peers, "bare replay", listener)
        await peers.met()
        async with open_stack(folder) as stack:
            port = (await stack.listen()).port
            found = await interleave(
                {
                    "bare": partial(replay_bare, peers, sock, path, session_id, size),
                    "ours": partial(replay, peers, port, session_id, size, []),
                }
            )
        sock.close()
    what = f"replay of {REPLAYED:,} durable events to one WebSocket"
    ratio = found.ratio("ours", "bare")
    return [
        at_least(
            f"{what}, against 200,000 events/s", ours=found["ours"], raw=2e5, unit="/s", target=1, ratio=found["ours"] / 2e5
        ),
        beside(f"{what}, against the bare loop", ours=f"{found['ours']:,.0f} /s", raw=f"{found['bare']:,.0f} /s", ratio=ratio),
    ]


async def measure() -> list[Finding]:
    """Live, then durable."""
    findings: list[Finding] = []
    with running_peers() as peers:
        for part in (measure_live, measure_replay):
            with scratch_folder() as folder:
                findings += await part(folder, peers)
    return findings


if __name__ == "__main__":
    report(measure)
