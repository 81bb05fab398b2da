"""Any history, for Hypothesis: what users, models and tools may have left, whole or in part, well-formed or not."""

from typing import Any

from hypothesis import strategies as st

from steerway.protocol.llm.invariants import MEDIA_TYPES
from steerway.protocol.llm.request import RequestMessage, SystemUpdate, ToolMessage
from steerway.protocol.values.failure import Failure
from steerway.protocol.values.message import (
    AssistantMessage,
    ModelSwitchedMessage,
    ReasoningPart,
    SyntheticMessage,
    TextPart,
    ToolCompleted,
    ToolError,
    ToolPart,
    ToolPending,
    ToolRunning,
    UserMessage,
)
from steerway.protocol.values.model import ModelRef
from steerway.protocol.values.prompt import PromptFile
from steerway.protocol.values.tool import FileContent, TextContent

TARGET = ModelRef(provider="p", id="m")
OTHER = ModelRef(provider="p", id="other")
FOREIGN = ModelRef(provider="q", id="m")

STRINGS = st.text(
    st.one_of(st.characters(categories=("L", "P", "Zs", "Cc", "Cs")), st.sampled_from("\ud83d\ude00 {}")), max_size=6
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | STRINGS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(STRINGS, inner, max_size=2),
    max_leaves=4,
)
OBJECTS = st.dictionaries(STRINGS, JSON, max_size=2)
OWNED: list[dict[str, Any]] = [
    {"openai-chat": {"field": "reasoning_content"}},
    {"openai-responses": {"id": "rs", "encrypted_content": "e", "phase": "commentary"}},
    {"openai-responses": {"id": "rs", "field": "content", "phase": "x"}},
    {"openai-responses": {"encrypted_content": "e"}},
    {"openai-responses": {"type": "web_search_call"}},
    {"anthropic-messages": {"signature": "s", "citations": []}},
    {"anthropic-messages": {"redacted": "r"}},
    {"anthropic-messages": {"type": "server_tool_use"}},
    {"anthropic-messages": {"type": "web_search_tool_result"}},
    {"anthropic-messages": {"type": 3, "signature": None}},
    {"gemini": {"id": "c", "signature": "cw=="}},
    {"gemini": {"signed": [{"start": 0, "end": 1, "signature": "cw=="}, {"start": 1, "end": 1, "signature": "cw=="}, 3]}},
    {"gemini": {"part": "executableCode", "fields": {"id": "a"}}},
    {"gemini": {"part": "codeExecutionResult", "signature": "cw=="}},
    {"gemini": {"part": "toolCall", "fields": 3, "signed": {"start": 0}}},
]
"""Metadata as the protocols give it, whole and in part, and for the wrong kind of content."""
RESULTS = st.sampled_from(
    [{"id": "srvtoolu_1", "type": "web_search_call", "status": "completed"}, {"type": "web_search_call"}, [{"a": 1}], "x", 0]
)
METADATA = st.none() | OBJECTS | st.sampled_from(OWNED)
MIMES = st.sampled_from(["image/png", "image/heic", "text/plain", "application/pdf", ""])
IDS = (
    st.sampled_from(["call_1", "call_2", "call_1_2", "fc", "", "a b", "\ud83d", "z" * 200, "srvtoolu_1", "a.b", "a:b", "a_b"])
    | STRINGS
)
FAILURES = st.builds(Failure, type=st.sampled_from(["aborted", "", "x"]), message=STRINGS)
DATA = st.binary(max_size=3) | st.just(b"%PDF-1.7")
CONTENT = st.lists(
    st.builds(TextContent, text=STRINGS) | st.builds(FileContent, data=DATA, mime=MIMES, name=st.none() | STRINGS),
    max_size=2,
).map(tuple)
STATES = st.one_of(
    st.builds(ToolPending, input=STRINGS | st.just('{"a": 1}')),
    st.builds(ToolRunning, input=OBJECTS),
    st.builds(ToolCompleted, input=OBJECTS, content=CONTENT, structured=JSON, result=JSON | RESULTS),
    st.builds(ToolError, input=OBJECTS, error=FAILURES, content=st.none() | CONTENT, result=JSON | RESULTS),
)
PARTS = st.one_of(
    st.builds(TextPart, id=st.just("prt"), text=STRINGS, metadata=METADATA),
    st.builds(ReasoningPart, id=st.just("prt"), text=STRINGS, metadata=METADATA),
    st.builds(
        ToolPart,
        id=IDS,
        name=IDS,
        provider_call_id=IDS,
        executed=st.booleans(),
        state=STATES,
        created=st.just(1),
        metadata=METADATA,
        result_metadata=METADATA,
    ),
)
MODELS = st.sampled_from([TARGET, OTHER, FOREIGN, ModelRef(provider="p", id="m", variant="v")])
FILES = st.builds(PromptFile, data=DATA, mime=MIMES, name=st.none() | STRINGS)
HISTORIES = st.lists(
    st.one_of(
        st.builds(
            UserMessage,
            id=st.just("msg"),
            created=st.just(1),
            text=STRINGS,
            files=st.none() | st.lists(FILES, max_size=2).map(tuple),
        ),
        st.builds(SyntheticMessage, id=st.just("msg"), created=st.just(1), text=STRINGS),
        st.builds(ModelSwitchedMessage, id=st.just("msg"), created=st.just(1), model=MODELS),
        st.builds(
            AssistantMessage,
            id=st.just("msg"),
            created=st.just(1),
            agent=st.just("build"),
            model=MODELS,
            attempt=st.just(1),
            content=st.lists(PARTS, max_size=4).map(tuple),
            finish=st.sampled_from([None, "stop", "error"]),
            error=st.none() | FAILURES,
            completed=st.sampled_from([None, 2]),
        ),
    ),
    max_size=5,
)


MEDIA = st.frozensets(st.sampled_from(sorted(MEDIA_TYPES)))
UPDATES = st.lists(st.booleans(), min_size=12, max_size=12)


def updated(messages: tuple[RequestMessage, ...], places: list[bool]) -> tuple[RequestMessage, ...]:
    """The messages with a system update before those of these places where one may stand."""
    result: list[RequestMessage] = []
    for place, message in zip([*places, *([False] * len(messages))], messages, strict=False):
        if place and not isinstance(message, ToolMessage):
            result.append(SystemUpdate(text="Now <b>"))
        result.append(message)
    return tuple(result)
