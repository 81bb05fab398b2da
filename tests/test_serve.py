"""`steerway serve` as a process, and an independent WebSocket client that talks to it."""

from __future__ import annotations

import base64
import json
import signal
import socket
import ssl
import stat
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgpack  # pyright: ignore[reportMissingTypeStubs]
import pytest
import trustme
from websockets.sync.client import ClientConnection, connect

from support.program import SECONDS, Home, Serving


class Wire(NamedTuple):
    """How a subprotocol's frames are written and read, by other packages than ours."""

    subprotocol: str
    encode: Callable[[Any], bytes | str]
    decode: Callable[[Any], Any]


_msgpack: Any = msgpack
WIRES = (
    Wire("steerway.v1.msgpack", _msgpack.packb, _msgpack.unpackb),
    Wire("steerway.v1.json", json.dumps, json.loads),
)


class Independent:
    """A client made from the wire contract alone."""

    def __init__(self, connection: ClientConnection, wire: Wire) -> None:
        self._connection = connection
        self._wire = wire
        self._last = 0
        self.items: dict[int, list[dict[str, Any]]] = {}

    def ask(self, method: str, **params: Any) -> Any:
        self._last += 1
        request = {"jsonrpc": "2.0", "id": self._last, "method": method, "params": params}
        self._connection.send(self._wire.encode(request))
        while True:
            frame = self._receive()
            if frame.get("id") == self._last:
                assert "error" not in frame, frame
                return frame["result"]

    def until(self, subscription: int, reached: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
        """All items of a subscription, read on until one is what is waited for."""
        while not any(reached(event) for event in self.items.get(subscription, ())):
            self._receive()
        return self.items[subscription]

    def _receive(self) -> dict[str, Any]:
        raw = self._connection.recv(timeout=SECONDS)
        assert isinstance(raw, bytes) == (self._wire.subprotocol == "steerway.v1.msgpack")
        frame = self._wire.decode(raw)
        assert frame["jsonrpc"] == "2.0"
        if frame.get("method") == "next":
            self.items.setdefault(frame["params"]["subscription"], []).append(frame["params"]["event"])
        return frame


def dial(serving: Serving, wire: Wire, *, ssl_context: ssl.SSLContext | None = None) -> ClientConnection:
    return connect(
        serving.url,
        subprotocols=[wire.subprotocol],  # pyright: ignore[reportArgumentType]  # a NewType of theirs
        additional_headers={"Authorization": f"Bearer {serving.token}"},
        ssl=ssl_context,
        proxy=None,
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def serving(home: Home) -> Generator[Serving]:
    with home.serving() as serving:
        yield serving


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.subprotocol)
def test_an_independent_client_gets_deltas_live_and_whole_values_durably(serving: Serving, wire: Wire) -> None:
    with dial(serving, wire) as connection:
        assert connection.subprotocol == wire.subprotocol
        client = Independent(connection, wire)
        session = client.ask("sessions.create", title="From outside", model={"provider": "demo", "id": "demo"})
        opened = client.ask("sessions.events", session_id=session["id"])
        live = client.ask("events.subscribe")["subscription"]
        receipt = client.ask("sessions.prompt", session_id=session["id"], text="What is the date today?")
        happened = client.until(live, lambda event: event["type"] == "session.activity" and event["data"]["state"] == "idle")
        outcome = happened[-1]["data"]["outcome"]
        head = max(event.get("seq", 0) for event in happened)
        stored = client.until(opened["subscription"], lambda event: event.get("seq") == head)

    assert outcome == {"type": "completed"}
    assert opened["head"] == 1
    assert happened[0]["type"] == "server.connected"
    synced = [event for event in stored if event["type"] == "synced"]
    assert [event["data"] for event in synced] == [{"seq": 1}]
    durable = [event for event in stored if event["type"] != "synced"]
    assert [event["seq"] for event in durable] == list(range(1, head + 1))
    assert [event["data"]["message_id"] for event in durable if event["seq"] == receipt["admitted_seq"]] == [receipt["id"]]
    assert [event for event in happened if "seq" in event] == durable[-len([event for event in happened if "seq" in event]) :]
    joined: dict[str, str] = {}
    for event in happened:
        if event["type"] == "session.text.delta":
            data = event["data"]
            assert data["offset"] == len(joined.get(data["part_id"], ""))
            joined[data["part_id"]] = joined.get(data["part_id"], "") + data["delta"]
    whole = {event["data"]["part_id"]: event["data"]["text"] for event in durable if event["type"] == "session.text.ended"}
    assert joined == whole
    assert len(whole) == 2  # one before the tool, one after it
    assert [event["data"]["tool"] for event in durable if event["type"] == "session.tool.called"] == ["date"]
    assert not [event for event in durable if event["type"].endswith(".delta")]


def test_bytes_of_a_file_are_the_same_in_both_subprotocols(serving: Serving) -> None:
    content = bytes(range(256))
    seen: list[bytes] = []
    for wire in WIRES:
        with dial(serving, wire) as connection:
            client = Independent(connection, wire)
            session = client.ask("sessions.create")
            data = content if wire.subprotocol.endswith("msgpack") else base64.b64encode(content).decode()
            client.ask("sessions.prompt", session_id=session["id"], text="Keep this.", files=[{"data": data}], resume=False)
            kept = client.ask("sessions.pending", session_id=session["id"])[0]["prompt"]["files"][0]["data"]
            seen.append(kept if isinstance(kept, bytes) else base64.b64decode(kept))
    assert seen == [content, content]


def test_it_says_once_where_it_listens_and_keeps_the_token_private(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with home.serving() as serving:
        announced = json.loads((home.state / "server.json").read_bytes())
        assert announced == {"url": serving.url, "token_file": serving.token_file}
        assert Path(serving.token_file).parent == home.state
        assert stat.S_IMODE(Path(serving.token_file).stat().st_mode) == 0o600
        assert len(serving.token) >= 40
        done = serving.stop()
    assert done.code == 0
    assert done.output == f"Steerway is listening at {serving.url} and wants the token in {serving.token_file}\n"
    assert not (home.state / "server.json").exists()
    assert Path(serving.token_file).exists()


def test_a_given_token_file_is_read_and_an_announcement_can_be_left_out(tmp_path: Path) -> None:
    home = Home(tmp_path)
    given = tmp_path / "token"
    given.write_text("a-token-of-our-own\n")
    given.chmod(0o600)
    with home.serving("--token-file", str(given), "--no-announce", "--log-format", "json") as serving:
        assert serving.token_file == str(given)
        with dial(serving, WIRES[1]) as connection:
            assert Independent(connection, WIRES[1]).ask("server.health") == {"healthy": True}
        assert not home.state.exists()
        done = serving.stop(signal.SIGINT)
    assert done.code == 130
    assert [json.loads(line)["event"] for line in done.errors.splitlines()] == ["stopping"]


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with Home(tmp_path).serving() as serving:
        address = urlsplit(serving.url)
        with socket.create_connection((address.hostname, address.port)) as held:
            key = base64.b64encode(bytes(16)).decode()
            held.sendall(
                f"GET / HTTP/1.1\r\nHost: {address.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n"
                f"Authorization: Bearer {serving.token}\r\n\r\n".encode()
            )
            assert held.recv(12) == b"HTTP/1.1 101"
            serving.process.send_signal(signal.SIGTERM)
            assert serving.process.stderr is not None
            assert "stopping" in serving.process.stderr.readline()
            done = serving.stop()  # while it waits for that peer's goodbye
    assert done.code == 130


def test_a_store_that_is_in_use_is_refused_with_its_owner(home: Home, serving: Serving) -> None:
    done = home.call("serve", "--port", "0", "--no-announce")
    assert done.code == 1
    assert done.output == ""
    assert f"Process {serving.process.pid} on {socket.gethostname()} owns {home.store}" in done.errors
    assert "--take-over" in done.errors
    assert "Traceback" not in done.errors


def test_a_stopped_owner_can_be_taken_over(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with home.serving() as wedged:
        wedged.process.send_signal(signal.SIGSTOP)
        try:
            with home.serving("--take-over") as serving, dial(serving, WIRES[0]) as connection:
                assert Independent(connection, WIRES[0]).ask("sessions.create")["head"] == 1
        finally:
            wedged.process.kill()


def test_other_machines_are_served_only_with_a_named_token(tmp_path: Path) -> None:
    done = Home(tmp_path).call("serve", "--host", "0.0.0.0", "--port", "0")
    assert done.code == 2
    assert "--token-file" in done.errors


def test_it_serves_tls_with_given_files(tmp_path: Path) -> None:
    authority: Any = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    for place, blob in enumerate(certificate.cert_chain_pems):
        blob.write_to_path(tmp_path / "cert.pem", append=place > 0)
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with Home(tmp_path).serving("--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem")) as serving:
        assert serving.url.startswith("wss://")
        with dial(serving, WIRES[0], ssl_context=context) as connection:
            assert Independent(connection, WIRES[0]).ask("server.health") == {"healthy": True}


def test_a_port_that_is_taken_is_one_sentence(tmp_path: Path, serving: Serving) -> None:
    done = Home(tmp_path).call("serve", "--port", str(urlsplit(serving.url).port))
    assert (done.code, done.output) == (1, "")
    assert done.errors.count("\n") == 1
    assert "ddress already in use" in done.errors


def test_the_prompt_with_the_last_receipt_is_there_once_after_a_kill(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with home.serving() as serving:
        with dial(serving, WIRES[0]) as connection:
            client = Independent(connection, WIRES[0])
            session = client.ask("sessions.create", model={"provider": "demo", "id": "demo"})
            receipt = client.ask("sessions.prompt", session_id=session["id"], text="Count to 1000.")
            serving.process.kill()
        serving.process.wait()
    with home.serving() as serving, dial(serving, WIRES[0]) as connection:
        client = Independent(connection, WIRES[0])
        opened = client.ask("sessions.events", session_id=session["id"])
        stored = client.until(opened["subscription"], lambda event: event["type"] == "synced")[:-1]
        again = client.ask("sessions.prompt", session_id=session["id"], text="Count to 1000.", id=receipt["id"], resume=False)
    assert [event["seq"] for event in stored] == list(range(1, opened["head"] + 1))
    assert [event["data"]["message_id"] for event in stored if event["type"] == "session.prompt.admitted"] == [receipt["id"]]
    assert again["admitted_seq"] == receipt["admitted_seq"]
