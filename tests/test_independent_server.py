"""Three protocols against a server that somebody else wrote: `llm-mock-api` from the package index.

It is no dependency: install it where it disturbs nothing, and name its program.

    python -m venv mock && mock/bin/pip install llm-mock-api
    LLM_MOCK_API=mock/bin/llm-mock-api pytest tests/test_independent_server.py
"""

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from steerway.actors.configuration import Configuration, Model, ModelSelection, Provider, Store, WireProtocol
from steerway.actors.runtime import Runtime, open_runtime
from steerway.protocol.values import (
    AssistantMessage,
    CompletedOutcome,
    ModelRef,
    Outcome,
    SessionId,
    TextPart,
    ToolCompleted,
    ToolPart,
    TurnCompleted,
)
from support.house import read_events
from support.tools import printing_tool

PROGRAM = os.environ.get("LLM_MOCK_API") or shutil.which("llm-mock-api")
PROTOCOLS: dict[WireProtocol, str] = {
    "openai-chat": "openai",
    "openai-responses": "responses",
    "anthropic-messages": "anthropic",
}
SAID = "It is blue there. 🙂 Grüße, and some more words so that there are pieces."

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="llm-mock-api, a server of others, is not installed (LLM_MOCK_API)")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server with its rules: for each format a tool call first; a text with reasoning; else a text.

    To its Anthropic format a tool's result is a message of the user's that says nothing, so no rule knows the second request.
    """
    folder = tmp_path_factory.mktemp("server")
    rules: list[dict[str, object]] = [
        {
            "when": {"message": "sky", "format": kind},
            "replies": [
                {"text": "Let me look.", "tools": [{"name": "look", "args": {"value": f"the sky of {kind}"}}]},
                {"text": SAID},
            ],
        }
        for kind in PROTOCOLS.values()
    ]
    rules.append({"when": "think", "reply": {"text": "Done.", "reasoning": "Let me think."}})
    path = folder / "rules.json5"
    path.write_text(json.dumps({"rules": rules}))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(PROGRAM), "start", "-p", str(port), "-r", str(path), "-c", "3", "-l", "0", "-f", SAID]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait(10)


async def reachable(base_url: str) -> None:
    """Until the server accepts connections."""
    port = int(base_url.rpartition(":")[2].partition("/")[0])
    with trio.fail_after(30):
        while True:
            try:
                stream = await trio.open_tcp_stream("127.0.0.1", port)
            except OSError:
                await trio.sleep(0.1)
            else:
                await stream.aclose()
                return


def configuration(base_url: str) -> Configuration:
    providers = {
        protocol: Provider(protocol=protocol, base_url=base_url, api_key_env="KEY", models={"m": Model(output=500)})
        for protocol in PROTOCOLS
    }
    return Configuration(store=Store(synchronous="normal"), providers=providers, models=ModelSelection(default="openai-chat/m"))


async def ask(runtime: Runtime, session: SessionId, words: str) -> Outcome:
    await runtime.sessions.prompt(session, words, resume=False)
    return await runtime.sessions.resume(session)


async def answers(runtime: Runtime, session: SessionId) -> list[AssistantMessage]:
    page = await runtime.sessions.messages(session, order="asc", limit=200)
    return [message for message in page.items if isinstance(message, AssistantMessage)]


async def test_a_session_with_a_tool_runs_over_each_protocol_and_goes_on_over_the_next(server: str, tmp_path: Path) -> None:
    await reachable(server)
    look = printing_tool("look", "blue")
    async with open_runtime(
        tmp_path / "sessions.db",
        configuration=configuration(server),
        directory=tmp_path,
        tools=[look.tool],
        environ={"KEY": "a-key-of-nobody"},
    ) as runtime:
        session = (await runtime.sessions.create()).id
        for protocol in PROTOCOLS:
            await runtime.sessions.switch_model(session, ModelRef(provider=protocol, id="m"))
            assert await ask(runtime, session, "How is the sky?") == CompletedOutcome()
        assert await ask(runtime, session, "And what else?") == CompletedOutcome()
        found = await answers(runtime, session)
        ended = [event.data for event in await read_events(runtime, session) if isinstance(event.data, TurnCompleted)]
    assert look.values == [f"the sky of {kind}" for kind in PROTOCOLS.values()]
    texts = ["".join(part.text for part in answer.content if isinstance(part, TextPart)) for answer in found]
    assert texts == ["Let me look.", SAID] * 3 + [SAID]
    for answer in found[0:6:2]:
        (call,) = (part for part in answer.content if isinstance(part, ToolPart))
        assert isinstance(call.state, ToolCompleted)
    assert [data.finish for data in ended] == ["tool-calls", "stop"] * 3 + ["stop"]
    assert all(data.tokens.input > 0 and data.tokens.output > 0 for data in ended)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_reasoning_is_understood_where_the_server_gives_it(server: str, tmp_path: Path, protocol: WireProtocol) -> None:
    await reachable(server)
    async with open_runtime(
        tmp_path / "sessions.db", configuration=configuration(server), directory=tmp_path, environ={"KEY": "a-key-of-nobody"}
    ) as runtime:
        session = (await runtime.sessions.create(model=ModelRef(provider=protocol, id="m"))).id
        assert await ask(runtime, session, "Please think.") == CompletedOutcome()
        assert await ask(runtime, session, "Please think again.") == CompletedOutcome()
        found = await answers(runtime, session)
    kinds = ["text"] if protocol == "openai-chat" else ["reasoning", "text"]
    assert [[part.__struct_config__.tag for part in answer.content] for answer in found] == [kinds] * 2
