"""One conversation across all protocols: each request is valid, and continuation metadata meets only its own model.

Long, because each protocol says its part of one conversation.

The turns are decoded from each protocol's own stream, so that the metadata is what the decoders make.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from steerway.actors.configuration import Configuration, Provider, Store
from steerway.protocol.llm.adapter import Adapter
from steerway.protocol.llm.anthropic_messages import AnthropicMessagesAdapter
from steerway.protocol.llm.events import (
    Finished,
    LLMEvent,
    ReasoningDelta,
    ReasoningEnd,
    TextDelta,
    TextEnd,
    ToolCall,
    ToolResult,
)
from steerway.protocol.llm.gemini import UNCHECKED, GeminiAdapter
from steerway.protocol.llm.invariants import IMAGE_TYPES, MEDIA_TYPES, check
from steerway.protocol.llm.lowering import lower
from steerway.protocol.llm.openai_chat import OpenAIChatAdapter
from steerway.protocol.llm.openai_responses import OpenAIResponsesAdapter
from steerway.protocol.llm.request import Generation, LLMRequest, SystemUpdate
from steerway.protocol.values.failure import Failure
from steerway.protocol.values.ids import CallId, MessageId, PartId
from steerway.protocol.values.message import (
    AssistantContent,
    AssistantMessage,
    Message,
    ModelSwitchedMessage,
    ReasoningPart,
    SystemMessage,
    TextPart,
    ToolCompleted,
    ToolError,
    ToolPart,
    ToolPending,
    ToolRunning,
    ToolState,
    UserMessage,
)
from steerway.protocol.values.model import ModelRef
from steerway.protocol.values.prompt import PromptFile
from steerway.protocol.values.session import CompletedOutcome
from steerway.protocol.values.tool import FileContent, TextContent, ToolDefinition
from support import anthropic_messages, gemini, openai_chat, openai_responses
from support.answers import Answer, Block, answer, event, interleave, raw, reasoning, text, tool_call
from support.answers import stream as stream_of
from support.decoding import decode
from support.house import open_house
from support.provider import Wire, open_provider
from support.tools import ScriptedTool

ADAPTERS: Mapping[str, Adapter] = {
    adapter.protocol: adapter
    for adapter in (OpenAIChatAdapter(), OpenAIResponsesAdapter(), GeminiAdapter(), AnthropicMessagesAdapter())
}
WIRES: Mapping[str, Wire] = {
    "openai-chat": openai_chat,
    "openai-responses": openai_responses,
    "gemini": gemini,
    "anthropic-messages": anthropic_messages,
}
MODELS = {
    "openai-chat": ModelRef(provider="local", id="small"),
    "openai-responses": ModelRef(provider="openai", id="gpt-5"),
    "anthropic-messages": ModelRef(provider="anthropic", id="claude-1"),
    "gemini": ModelRef(provider="google", id="gemini-3-pro"),
}
OPAQUE = {
    "openai-chat": "reasoning_content",
    "openai-responses": openai_responses.ENCRYPTED,
    "anthropic-messages": anthropic_messages.SIGNATURE,
    "gemini": gemini.SIGNATURE,
}
"""What of each protocol's scripted answers only its own model may see again."""
READ = ToolDefinition(name="read", description="Reads.", input_schema={"type": "object", "properties": {"path": {}}})
BOOM = Failure(type="provider.internal", message="boom")
SEARCHES: Mapping[str, tuple[bytes, str]] = {
    "anthropic-messages": (
        b"".join(
            part.data
            for part in (
                event(
                    {
                        "type": "content_block_start",
                        "index": 0,
                        "content_block": {
                            "type": "server_tool_use",
                            "id": "srvtoolu_1",
                            "name": "web_search",
                            "input": {"query": "e"},
                        },
                    }
                ),
                event(
                    {
                        "type": "content_block_start",
                        "index": 1,
                        "content_block": {
                            "type": "web_search_tool_result",
                            "tool_use_id": "srvtoolu_1",
                            "content": [{"type": "web_search_result", "encrypted_content": "hidden"}],
                        },
                    }
                ),
                event({"type": "content_block_delta", "index": 2, "delta": {"type": "text_delta", "text": "E."}}),
                event({"type": "message_stop"}),
            )
        ),
        '"type":"web_search_tool_result"',
    ),
    "openai-responses": (
        event(
            {
                "type": "response.completed",
                "response": {
                    "output": [
                        {
                            "id": "ws_1",
                            "type": "web_search_call",
                            "status": "completed",
                            "action": {"type": "search", "query": "e"},
                        },
                        {"type": "message", "content": [{"type": "output_text", "text": "E."}]},
                    ]
                },
            }
        ).data,
        '"type":"web_search_call"',
    ),
    "gemini": (
        gemini.chunk(
            {
                "candidates": [
                    {
                        "content": {
                            "parts": [
                                {"toolCall": {"id": "s", "toolType": "WEB_SEARCH", "args": {"queries": ["e"]}}},
                                {"toolResponse": {"id": "s", "toolType": "WEB_SEARCH", "response": {"hidden": "x"}}},
                                {"text": "E."},
                            ]
                        },
                        "finishReason": "STOP",
                    }
                ]
            }
        ),
        '"toolResponse":{"id":"s"',
    ),
}
"""An answer with a search that the provider ran, and the words on the wire by which it goes back as it came."""


def stream(protocol: str, number: int, scripted: Answer) -> bytes:
    parts = WIRES[protocol].render(scripted.parts, number=number, model="m", with_usage=True)
    return b"".join(part for part in parts if isinstance(part, bytes))


def turn(protocol: str, number: int, stream: bytes, *, model: ModelRef | None = None, failed: bool = False) -> AssistantMessage:
    """The history that a turn leaves when this stream was its answer; local calls are settled with text and an image."""
    content = tuple(parts(decode(ADAPTERS[protocol], [stream]), number))
    return AssistantMessage(
        id=MessageId(f"msg_{number}"),
        created=1,
        agent="build",
        model=model or MODELS[protocol],
        attempt=1,
        content=content,
        finish="error" if failed else "stop",
        error=BOOM if failed else None,
        completed=2,
    )


def parts(events: Iterable[LLMEvent], number: int) -> Iterable[AssistantContent]:
    said: dict[str, str] = {}
    results = {found.id: found for found in events if isinstance(found, ToolResult)}
    for found in events:
        match found:
            case TextDelta(id=id, text=delta) | ReasoningDelta(id=id, text=delta):
                said[id] = said.get(id, "") + delta
            case TextEnd(id=id, metadata=metadata):
                yield TextPart(id=PartId(f"prt_{number}_{id}"), text=said.get(id, ""), metadata=metadata)
            case ReasoningEnd(id=id, metadata=metadata):
                yield ReasoningPart(id=PartId(f"prt_{number}_{id}"), text=said.get(id, ""), metadata=metadata)
            case ToolCall(id=id, input=input):
                result = results.get(id)
                files = (TextContent(text="found"), FileContent(data=b"\x89PNG", mime="image/png"))
                yield ToolPart(
                    id=CallId(f"call_{number}_{id}"),
                    name=found.name,
                    provider_call_id=found.provider_call_id,
                    executed=found.executed,
                    state=ToolCompleted(
                        input=input or {}, content=() if result else files, result=result.result if result else None
                    ),
                    created=1,
                    metadata=found.metadata,
                    result_metadata=result.metadata if result else None,
                )
            case _:
                pass


def user(words: str) -> UserMessage:
    return UserMessage(id=MessageId("msg_u"), created=1, text=words)


def switch(model: ModelRef) -> ModelSwitchedMessage:
    return ModelSwitchedMessage(id=MessageId("msg_m"), created=1, model=model)


def sent(
    protocol: str,
    history: Iterable[Message],
    *,
    model: ModelRef | None = None,
    update: bool = False,
    media: Collection[str] = IMAGE_TYPES,
    options: dict[str, Any] | None = None,
) -> str:
    """The body of the request, which the protocol's strict rules accept."""
    target = model or MODELS[protocol]
    messages = lower(tuple(history), target, media=media)
    if update:
        messages = (*messages, SystemUpdate(text="It is <later>."))
    check(messages)
    body = (
        ADAPTERS[protocol]
        .encode(
            LLMRequest(
                model=target.id,
                system=("Be kind.",),
                messages=messages,
                tools=(READ,),
                tool_choice="auto",
                generation=Generation(),
                options=options or {},
                body={},
            )
        )
        .body
    )
    payload: dict[str, Any] = json.loads(body)
    assert WIRES[protocol].violations(payload) == []
    return body.decode()


def worked(protocol: str, number: int, *, model: ModelRef | None = None, failed: bool = False) -> tuple[Message, ...]:
    """An exchange with thoughts and two parallel calls, then one with thoughts and an answer."""
    calls = interleave(tool_call("read", {"path": "a"}, deltas=3), tool_call("read", {"path": "b"}, deltas=2))
    first = answer(reasoning(f"thought {number} aloud", deltas=2), text("I look."), calls)
    second = answer(reasoning(f"thought {number} again"), text(f"answer {number}", deltas=2))
    return (
        user(f"question {number}"),
        turn(protocol, 10 * number, stream(protocol, 10 * number, first), model=model, failed=failed),
        turn(protocol, 10 * number + 1, stream(protocol, 10 * number + 1, second), model=model, failed=failed),
    )


def test_a_conversation_that_switches_between_all_protocols_is_valid_in_each() -> None:
    history: tuple[Message, ...] = ()
    for number, protocol in enumerate([*ADAPTERS, *reversed(list(ADAPTERS))], 1):
        history += (switch(MODELS[protocol]), *worked(protocol, number))
        for target in ADAPTERS:
            # Between a call and its result nothing is sent, but behind the results of a turn a request may end.
            for end in (len(history), len(history) - 1, len(history) - 2):
                body = sent(target, history[:end])
                assert f"question {number}" in body
            assert f"answer {number}" in sent(target, history, update=True)


@pytest.mark.parametrize("origin", list(ADAPTERS))
def test_opaque_data_goes_back_to_the_very_model_that_gave_it_and_to_no_other(origin: str) -> None:
    history = worked(origin, 1)
    assert OPAQUE[origin] in sent(origin, history)
    variant = ModelRef(provider=MODELS[origin].provider, id=MODELS[origin].id, variant="deep")
    assert OPAQUE[origin] in sent(origin, history, model=variant)
    sibling = ModelRef(provider=MODELS[origin].provider, id="another")
    stranger = ModelRef(provider="another", id=MODELS[origin].id)
    for target, model in [*((other, None) for other in ADAPTERS if other != origin), (origin, sibling), (origin, stranger)]:
        body = sent(target, history, model=model)
        assert OPAQUE[origin] not in body
        assert "thought 1 aloud" in body, "what was thought aloud goes on as text"


@pytest.mark.parametrize("origin", [protocol for protocol in ADAPTERS if protocol != "gemini"])
def test_a_model_that_wants_every_call_signed_is_told_which_are_another_s(origin: str) -> None:
    body = sent("gemini", (*worked(origin, 1), switch(MODELS["gemini"]), *worked("gemini", 2)))
    assert body.count(UNCHECKED) == 1
    assert body.count(gemini.SIGNATURE) == 2


@pytest.mark.parametrize("origin", list(ADAPTERS))
def test_a_failed_turn_gives_no_opaque_data_to_anyone(origin: str) -> None:
    for target in ADAPTERS:
        body = sent(target, worked(origin, 1, failed=True))
        assert OPAQUE[origin] not in body
        assert "thought 1 aloud" in body


@pytest.mark.parametrize("other", ["openai-chat", "openai-responses", "gemini"])
def test_back_at_the_first_model_its_own_opaque_data_goes_back_and_only_its_own(other: str) -> None:
    """Field report PRV-01."""
    history = (*worked("anthropic-messages", 1), switch(MODELS[other]), *worked(other, 2), user("and now?"))
    there = sent(other, history)
    assert anthropic_messages.SIGNATURE not in there
    assert OPAQUE[other] in there
    back = sent("anthropic-messages", history)
    assert anthropic_messages.SIGNATURE in back
    assert OPAQUE[other] not in back
    assert '"thinking":"thought 1 aloud"' in back
    assert '"text":"thought 2 aloud"' in back


@pytest.mark.parametrize("origin", list(SEARCHES))
def test_what_a_provider_ran_goes_back_as_it_came_and_elsewhere_is_a_call_with_its_result(origin: str) -> None:
    answered, native = SEARCHES[origin]
    events = decode(ADAPTERS[origin], [answered])
    assert isinstance(events[-1], Finished)
    history = (user("Search."), turn(origin, 1, answered), user("And?"))
    assert native in sent(origin, history)
    for target in ADAPTERS:
        if target != origin:
            body = sent(target, history)
            assert native not in body
            assert '"web_search"' in body, "the call is still told"
            assert "And?" in body


def test_broken_arguments_leave_a_history_that_every_protocol_accepts() -> None:
    """Field report PRV-02."""
    for origin in ADAPTERS:
        for broken in ('{"path": "a', '["a"]', "", '{"a":1,"a":2}', '{"a": "\n"}'):
            calls = answer(tool_call("read", broken, deltas=0))
            history = (user("Hi"), turn(origin, 1, stream(origin, 1, calls)), user("Go on."))
            for target in ADAPTERS:
                assert "Go on." in sent(target, history)


async def test_a_session_switches_between_the_protocols_over_http(tmp_path: Path) -> None:
    """Every request passes its provider's rules, or the scripted provider fails the test."""
    look = ScriptedTool("look")
    async with open_provider() as scripted:
        for number in range(1, len(ADAPTERS) + 1):
            scripted.script(
                answer(reasoning(f"thought {number}"), tool_call("look", {}, deltas=1), tool_call("look", {}, deltas=1)),
                answer(reasoning("done"), text(f"answer {number}")),
            )
        searched, native = SEARCHES["anthropic-messages"]
        scripted.script(stream_of(raw(searched)), answer(text("Welcome.")))
        providers = {
            MODELS[protocol].provider: Provider(protocol=protocol, base_url=scripted.base_url)  # pyright: ignore[reportArgumentType]
            for protocol in ADAPTERS
        }
        settings = Configuration(store=Store(synchronous="normal"), providers=providers)
        async with open_house(scripted, tmp_path, tools=[look.tool], settings=settings) as house:
            session = await house.session(model=MODELS["openai-chat"])
            for number, protocol in enumerate(ADAPTERS, 1):
                await house.sessions.switch_model(session, MODELS[protocol])
                assert isinstance(await house.ask(session, f"question {number}"), CompletedOutcome)
            for words in ("Search.", "Thanks."):
                assert isinstance(await house.ask(session, words), CompletedOutcome)
            history = await house.history(session)
        paths = [request.path for request in scripted.requests]
        last = scripted.requests[-1].body.decode()
    asked = [wire.PATH.format(model=MODELS[protocol].id) for protocol, wire in WIRES.items()]
    assert paths == [path for path in asked for _ in range(2)] + [anthropic_messages.PATH] * 2
    assert native in last
    assert anthropic_messages.SIGNATURE in last
    assert OPAQUE["openai-responses"] not in last
    assert OPAQUE["gemini"] not in last
    turns = [message for message in history if isinstance(message, AssistantMessage)]
    assert [message.error for message in turns] == [None] * 10
    found = [part for message in turns for part in message.content if isinstance(part, ToolPart)]
    assert [(part.name, part.executed) for part in found] == [*[("look", False)] * 8, ("web_search", True)]
    assert all(isinstance(part.state, ToolCompleted) for part in found)


# --- any conversation -------------------------------------------------------------------------------------------------

TARGETS: Mapping[str, Sequence[str]] = {
    "openai-chat": ("small", "deepseek-v4"),
    "openai-responses": ("gpt-5", "gpt-4o"),
    "anthropic-messages": ("claude-1", "claude-opus-4-8"),
    "gemini": ("gemini-3-pro", "gemini-2.5-flash"),
}
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "openai-chat": {"reasoningEffort": "low"},
    "openai-responses": {"reasoningEffort": "low", "reasoningSummary": "auto"},
    "anthropic-messages": {"thinking": {"type": "enabled", "budgetTokens": 2000}},
    "gemini": {"thinkingConfig": {"includeThoughts": True}},
}
FILES = (
    PromptFile(data=b"\x89PNG", mime="image/png", name="a.png"),
    PromptFile(data=b"GIF89a", mime="image/gif"),
    PromptFile(data=b"%PDF-1.7", mime="application/pdf", name="a.pdf"),
    PromptFile(data=b"text", mime="text/plain"),
)
SAID: Sequence[Callable[[int], Block]] = (
    lambda number: reasoning(f"thought {number} \ud83d", deltas=2),
    lambda number: text(f"word {number} 😀", deltas=2),
    lambda _: tool_call("read", {"path": "a"}, deltas=2),
    lambda _: tool_call("7 zip!", {}, deltas=1),
    lambda _: tool_call("read", '["broken', deltas=1),
    lambda _: interleave(tool_call("read", {"path": "b"}, deltas=3), tool_call("read", {"path": "c"}, deltas=2)),
)
STATES: Sequence[Callable[[dict[str, Any]], ToolState]] = (
    lambda given: ToolCompleted(input=given, content=(TextContent(text="found"),)),
    lambda given: ToolCompleted(input=given, content=tuple(FileContent(data=one.data, mime=one.mime) for one in FILES)),
    lambda given: ToolCompleted(input=given, content=(), structured={"n": 1}),
    lambda given: ToolCompleted(input=given, content=(), pruned=True),
    lambda given: ToolError(input=given, error=BOOM, content=(FileContent(data=b"\x89PNG", mime="image/png"),)),
    lambda given: ToolRunning(input=given),
    lambda _: ToolPending(input='{"pa'),
)
"""What became of a local call."""


@st.composite
def conversations(draw: st.DrawFn) -> tuple[Message, ...]:
    """Turns of all protocols' models in any order, decoded from their own streams, some of them cut or failed."""
    history: list[Message] = [user("Hi")]
    for number in range(1, draw(st.integers(1, 6)) + 1):
        protocol = draw(st.sampled_from(list(TARGETS)))
        model = structs.replace(MODELS[protocol], id=draw(st.sampled_from(TARGETS[protocol])))
        if draw(st.booleans()):
            files = tuple(draw(st.lists(st.sampled_from(FILES), max_size=2)))
            history.append(UserMessage(id=MessageId("msg_u"), created=1, text=draw(st.sampled_from(["", "Go"])), files=files))
        if draw(st.integers(0, 3)) == 0:
            history.append(SystemMessage(id=MessageId("msg_s"), created=1, text="It is <later>."))
        history.append(switch(model))
        if protocol in SEARCHES and draw(st.integers(0, 4)) == 0:
            whole = SEARCHES[protocol][0]
        else:
            blocks = [draw(st.sampled_from(SAID))(number) for _ in range(draw(st.integers(0, 4)))]
            whole = stream(protocol, number, answer(*blocks))
        if cut := draw(st.integers(0, 3)) == 0:
            whole = whole[: draw(st.integers(0, len(whole)))]
        said = turn(protocol, number, whole, model=model, failed=cut or draw(st.integers(0, 4)) == 0)
        content = tuple(
            structs.replace(part, state=draw(st.sampled_from(STATES))(part.state.input))
            if isinstance(part, ToolPart) and not part.executed and isinstance(part.state, ToolCompleted)
            else part
            for part in said.content
        )
        history.append(structs.replace(said, content=content))
    return tuple(history)


@settings(max_examples=150)
@given(conversations(), st.sampled_from(list(TARGETS)), st.integers(0, 1), st.booleans(), st.booleans())
def test_any_conversation_of_all_protocols_gives_a_valid_request_in_each(
    history: tuple[Message, ...], protocol: str, number: int, thinks: bool, asks: bool
) -> None:
    model = structs.replace(MODELS[protocol], id=TARGETS[protocol][number])
    media = MEDIA_TYPES - ({"image/gif"} if protocol == "gemini" else set())
    options = dict(OPTIONS[protocol]) if thinks else {}
    sent(protocol, (*history, user("And?")) if asks else history, model=model, media=media, options=options)
