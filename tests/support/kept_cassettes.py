"""The conversation of the cassettes in `tests/cassettes`, and the recording of them.

    PYTHONPATH=tests python tests/support/kept_cassettes.py        after requests changed on purpose

They are recorded from the scripted provider, one folder a protocol. What a vendor's own server said can stand beside them:
record it with STEERWAY_RECORD, and play it in a test.
"""

import shutil
from pathlib import Path
from typing import Any

import trio

from steerway.actors.configuration import Configuration, Model, Provider, WireProtocol
from steerway.actors.models import Models
from steerway.protocol.llm.events import LLMEvent
from steerway.protocol.llm.request import AssistantMessage, Call, Generation, LLMRequest, Text, ToolMessage, UserMessage
from steerway.protocol.values.model import ModelRef
from steerway.protocol.values.tool import ToolDefinition
from support.answers import Answer, answer, reasoning, text, tool_call, usage
from support.provider import open_provider

FOLDER = Path(__file__).resolve().parent.parent / "cassettes"
PROTOCOLS: list[WireProtocol] = ["openai-chat", "openai-responses", "anthropic-messages", "gemini"]

_LOOK = ToolDefinition(
    name="look", description="Look at a place.", input_schema={"type": "object", "properties": {"at": {"type": "string"}}}
)
_ASKED = UserMessage(content=(Text(text="What is behind the door?"),))
_LOOKED = (
    AssistantMessage(content=(Text(text="Let me look."), Call(id="call_1", name="look", input={"at": "the door"}))),
    ToolMessage(call_id="call_1", name="look", content=(Text(text="fur, whiskers"),), is_error=False),
)


def answers() -> tuple[Answer, ...]:
    """What the provider answered."""
    look = tool_call("look", {"at": "the door"}, deltas=3)
    return (
        answer(reasoning("Something is there."), text("Let me look."), look, usage(prompt=40, completion=20, reasoning=5)),
        answer(text("A cat 🐈.", deltas=5), usage(prompt=80, completion=6, cached=40)),
    )


def requests() -> tuple[LLMRequest, ...]:
    """What it was asked."""
    first: dict[str, Any] = {"messages": (_ASKED,)}
    second: dict[str, Any] = {"messages": (_ASKED, *_LOOKED)}
    return tuple(
        LLMRequest(
            model="unset",
            system=("Be brief.",),
            tools=(_LOOK,),
            tool_choice="auto",
            generation=Generation(max_tokens=500),
            options={},
            body={},
            cache_key="ses_1",
            **fields,
        )
        for fields in (first, second)
    )


async def converse(protocol: WireProtocol, base_url: str, environ: dict[str, str]) -> list[list[LLMEvent]]:
    """The events of both answers."""
    provider = Provider(protocol=protocol, base_url=base_url, models={"m": Model(id="scripted")})
    found: list[list[LLMEvent]] = []
    async with Models(Configuration(providers={"p": provider}), environ) as models:
        info = models.resolve(ModelRef(provider="p", id="m"))
        for request in requests():
            async with models.stream(info, request) as batches:
                found.append([event async for batch in batches for event in batch])
    return found


async def _record() -> None:
    for protocol in PROTOCOLS:
        folder = FOLDER / protocol
        if folder.exists():
            shutil.rmtree(folder)
        async with open_provider(*answers()) as provider:
            await converse(protocol, provider.base_url, {"STEERWAY_RECORD": str(folder)})


if __name__ == "__main__":
    trio.run(_record)
