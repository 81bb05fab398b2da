"""A conversation that is lowered, checked, measured and written step by step gives what it gives at once."""

from collections.abc import Sequence
from typing import Any, overload

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steerway.actors.configuration import Configuration, Provider
from steerway.actors.models import Models
from steerway.protocol.llm.adapter import Adapter
from steerway.protocol.llm.anthropic_messages import AnthropicMessagesAdapter
from steerway.protocol.llm.gemini import GeminiAdapter
from steerway.protocol.llm.invariants import MEDIA_TYPES, Checker, RequestInvariantError, check
from steerway.protocol.llm.lowering import Lowering, lower
from steerway.protocol.llm.openai_chat import OpenAIChatAdapter
from steerway.protocol.llm.openai_responses import OpenAIResponsesAdapter
from steerway.protocol.llm.request import (
    AssistantMessage,
    Call,
    Generation,
    LLMRequest,
    Media,
    Reasoning,
    RequestMessage,
    SystemUpdate,
    Text,
    ToolMessage,
    UserMessage,
)
from steerway.protocol.llm.transcript import Size, estimate, measure, tokens
from steerway.protocol.values.message import Message
from steerway.protocol.values.model import ModelRef
from steerway.protocol.values.tool import ToolDefinition
from support.histories import HISTORIES, MODELS, TARGET, UPDATES, updated
from support.provider import open_provider

ADAPTERS: tuple[Adapter, ...] = (OpenAIChatAdapter(), OpenAIResponsesAdapter(), AnthropicMessagesAdapter(), GeminiAdapter())
each_protocol = pytest.mark.parametrize("adapter", ADAPTERS, ids=[adapter.protocol for adapter in ADAPTERS])
LOOK = ToolDefinition(name="look", description="Look.", input_schema={"type": "object"})
WIRE_MODELS = st.sampled_from(["m", "claude-opus-4-8"])


def request(messages: Sequence[RequestMessage], model: str = "m", **fields: Any) -> LLMRequest:
    base: dict[str, Any] = {
        "model": model,
        "system": ("Be kind.",),
        "messages": tuple(messages),
        "tools": (LOOK,),
        "tool_choice": "auto",
        "generation": Generation(),
        "options": {},
        "body": {},
        "cache_key": "ses_1",
    }
    return LLMRequest(**(base | fields))


HI = UserMessage(content=(Text(text="Hi"),))
PICTURE = Media(data=b"\x89PNG", mime="image/png", name="a.png")
PAPER = Media(data=b"%PDF-1.7", mime="application/pdf", name="a.pdf")
CALLED = AssistantMessage(content=(Call(id="c", name="look", input={}), Call(id="d", name="look", input={"n": 1})))
EXECUTED = AssistantMessage(content=(Call(id="e", name="search", input={}, executed=True, result="found"),))
FAILED = ToolMessage(call_id="c", name="look", content=(Text(text="no"), PICTURE), is_error=True)
SEEN = ToolMessage(call_id="d", name="look", content=(PAPER,), is_error=False)
NOW = SystemUpdate(text="Now.")
SAID = AssistantMessage(content=(Text(text="Yes"),))
SILENT = AssistantMessage(content=(Reasoning(text="Hm"),))

MESSAGES = st.lists(st.sampled_from([HI, NOW, SAID, SILENT, EXECUTED]), max_size=8)
"""Short ones in any order: where a marker stands and what an update becomes depends on little more than their roles."""


@each_protocol
@settings(max_examples=150, deadline=None)
@given(st.data(), HISTORIES, MODELS, UPDATES, WIRE_MODELS)
def test_any_history_in_any_steps_gives_the_bytes_of_writing_it_at_once(
    adapter: Adapter, data: st.DataObject, history: list[Message], target: ModelRef, places: list[bool], model: str
) -> None:
    messages = updated(lower(history, target, media=MEDIA_TYPES), places)
    conversation = adapter.conversation()
    for count in sorted(data.draw(st.lists(st.integers(0, len(messages)), max_size=5))):
        if data.draw(st.booleans()):
            conversation.extend(messages[:count])
        else:
            expected = adapter.encode(request(messages[:count], model))
            assert conversation.write(request(messages[:count], model)) == expected
            assert conversation.write(request(messages[:count], model)) == expected
    assert conversation.write(request(messages, model)) == adapter.encode(request(messages, model))


@each_protocol
@settings(max_examples=150, deadline=None)
@given(MESSAGES, WIRE_MODELS, st.sets(st.integers(0, 8)))
def test_markers_and_updates_move_as_if_all_were_written_anew(
    adapter: Adapter, messages: list[RequestMessage], model: str, written: set[int]
) -> None:
    conversation = adapter.conversation()
    for count in range(len(messages)):
        if count in written:
            asked = request(messages[:count], model)
            assert conversation.write(asked) == adapter.encode(asked)
    asked = request(messages, model)
    assert conversation.write(asked) == adapter.encode(asked)


@each_protocol
def test_a_request_between_the_results_of_a_turn_does_not_end_them(adapter: Adapter) -> None:
    messages = (HI, CALLED, FAILED, SEEN, NOW, SAID, HI)
    conversation = adapter.conversation()
    for count in range(len(messages) + 1):
        asked = request(messages[:count], "claude-opus-4-8")
        assert conversation.write(asked) == adapter.encode(asked), count


@each_protocol
@settings(max_examples=100, deadline=None)
@given(MESSAGES, MESSAGES, WIRE_MODELS, WIRE_MODELS)
def test_other_messages_and_another_model_begin_anew(
    adapter: Adapter, first: list[RequestMessage], second: list[RequestMessage], before: str, after: str
) -> None:
    # Each message an object of its own: what is known is told by identity.
    second = [AssistantMessage(content=one.content) if isinstance(one, AssistantMessage) else one for one in second]
    conversation = adapter.conversation()
    conversation.write(request([*first, SAID], before))
    asked = request([*second, AssistantMessage(content=SAID.content)], after)
    assert conversation.write(asked) == adapter.encode(asked)
    shorter = request(asked.messages[:-1], before)
    assert conversation.write(shorter) == adapter.encode(shorter)


@each_protocol
def test_what_surrounds_the_messages_may_differ_from_request_to_request(adapter: Adapter) -> None:
    conversation = adapter.conversation()
    messages = (HI, CALLED, FAILED, SEEN)
    surroundings: list[dict[str, Any]] = [
        {},
        {"system": ()},
        {"system": ("Be brief.", "Be kind.")},
        {"tools": (), "cache_key": None},
        {"tool_choice": "none", "generation": Generation(max_tokens=9, temperature=0.5)},
        {"options": {"effort": "high", "reasoningEffort": "low"}, "body": {"metadata": {"a": 1}, "stream_options": None}},
        {"body": {"messages": [], "input": None, "model": None}},
        {"system": ("half \ud83d",)},
    ]
    for fields in surroundings:
        asked = request(messages, **fields)
        assert conversation.write(asked) == adapter.encode(asked)


@each_protocol
def test_a_text_that_no_codec_carries_is_repaired_in_its_own_message_alone(adapter: Adapter) -> None:
    broken = UserMessage(content=(Text(text="half \ud83d"),))
    body = adapter.encode(request((HI, broken, SAID))).body
    whole = adapter.encode(request((HI, UserMessage(content=(Text(text="half \ufffd"),)), SAID))).body
    assert body == whole


class Watched(Sequence[RequestMessage]):
    """Messages that tell what is read of them."""

    def __init__(self, messages: Sequence[RequestMessage]) -> None:
        self._messages = messages
        self.read: list[int | slice] = []

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> RequestMessage: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[RequestMessage]: ...
    def __getitem__(self, index: int | slice) -> RequestMessage | Sequence[RequestMessage]:
        self.read.append(index)
        return self._messages[index]


@each_protocol
def test_what_was_written_is_not_read_again(adapter: Adapter) -> None:
    conversation = adapter.conversation()
    conversation.extend([HI, SAID] * 50)
    watched = Watched([HI, SAID] * 50 + [HI])
    conversation.extend(watched)
    assert watched.read == [99, slice(100, None), -1]


async def test_models_send_what_a_conversation_writes_and_the_same_without_one() -> None:
    async with open_provider() as provider:
        there = Provider(protocol="anthropic-messages", base_url=provider.base_url)
        async with Models(Configuration(providers={"p": there}), {}) as models:
            info = models.resolve(ModelRef(provider="p", id="m"))
            conversation = models.conversation(info)
            for messages in ((HI,), (HI, SAID, HI), (HI, SAID, HI)):
                for known in (conversation, None):
                    async with models.stream(info, request(messages), known) as batches:
                        assert [event async for batch in batches for event in batch]
        first, *others = [sent.json for sent in provider.requests]
        assert others[0] == first
        assert others[1] == others[2] == others[3] == others[4] != first


async def test_there_is_no_conversation_with_a_model_that_is_sent_nothing() -> None:
    async with Models(Configuration(), {}) as models:
        assert models.conversation(models.resolve(ModelRef(provider="demo", id="demo"))) is None


# --- lowering, checking, measuring ------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(st.data(), HISTORIES, MODELS)
def test_any_history_in_any_steps_is_lowered_checked_and_measured_as_at_once(
    data: st.DataObject, history: list[Message], target: ModelRef
) -> None:
    lowering, checker, size = Lowering(target, MEDIA_TYPES), Checker(), Size()
    messages: list[RequestMessage] = []
    begin = 0
    for end in [*sorted(data.draw(st.lists(st.integers(0, len(history)), max_size=4))), len(history)]:
        new = lowering.extend(history[begin:end])
        checker.extend(new)
        checker.finish()
        size += measure(new)
        messages += new
        begin = end
    assert tuple(messages) == lower(history, target, media=MEDIA_TYPES)
    assert size == measure(messages)
    around = request(messages, system=(), tools=())
    assert tokens(size) <= estimate(around) <= tokens(size) + 1


def test_the_check_counts_messages_over_all_steps() -> None:
    checker = Checker()
    checker.extend((HI, SAID))
    checker.finish()
    with pytest.raises(RequestInvariantError) as caught:
        checker.extend((HI, FAILED))
    assert caught.value.index == 3


def test_a_call_may_wait_for_its_result_between_steps_but_not_at_the_end() -> None:
    checker = Checker()
    checker.extend((HI, CALLED))
    with pytest.raises(RequestInvariantError, match="the call c has no result") as caught:
        checker.finish()
    assert caught.value.index == 1
    checker.extend((FAILED,))
    with pytest.raises(RequestInvariantError, match="the call d has no result") as caught:
        checker.finish()
    assert caught.value.index == 2
    checker.extend((SEEN, HI))
    checker.finish()


def test_a_call_id_is_used_once_over_all_steps() -> None:
    checker = Checker()
    checker.extend((EXECUTED, HI))
    with pytest.raises(RequestInvariantError, match="used twice") as caught:
        checker.extend((EXECUTED,))
    assert caught.value.index == 2
    check((EXECUTED, HI))


def test_a_pdf_counts_by_its_bytes_within_bounds() -> None:
    def counted(size: int) -> int:
        paper = Media(data=b"%PDF-" + bytes(size), mime="application/pdf")
        return tokens(measure((UserMessage(content=(paper,)),)))

    picture = tokens(measure((UserMessage(content=(PICTURE,)),)))
    assert counted(0) == 2 * picture
    assert counted(0) < counted(200_000) < counted(1_000_000) < counted(4_000_000) == counted(8_000_000) < 100_000


def test_sizes_add_up() -> None:
    assert measure((HI, SAID)) + measure((FAILED,)) == measure((HI, SAID, FAILED))
    assert tokens(Size(characters=400, media=7)) == 107
    assert measure(lower((), TARGET)) == Size()
