"""Any history becomes a list of request messages that a strict provider accepts, and never changes what was sent before.

Long, because each rule is shown beside the property that holds them all.
"""

import json
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steerway.protocol.llm import request
from steerway.protocol.llm.adapter import Adapter
from steerway.protocol.llm.anthropic_messages import AnthropicMessagesAdapter
from steerway.protocol.llm.invariants import IMAGE_TYPES, MEDIA_TYPES, RequestInvariantError, check
from steerway.protocol.llm.lowering import EMPTY_PROMPT, INTERRUPTED, NOT_RETURNED, lower
from steerway.protocol.llm.openai_chat import OpenAIChatAdapter
from steerway.protocol.llm.openai_responses import OpenAIResponsesAdapter
from steerway.protocol.llm.request import (
    Call,
    Generation,
    LLMRequest,
    Media,
    Reasoning,
    RequestMessage,
    SystemUpdate,
    Text,
    ToolMessage,
)
from steerway.protocol.values.failure import Failure
from steerway.protocol.values.ids import CallId, MessageId, PartId
from steerway.protocol.values.message import (
    AssistantContent,
    AssistantMessage,
    Message,
    ModelSwitchedMessage,
    ReasoningPart,
    SyntheticMessage,
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
from steerway.protocol.values.tool import FileContent, TextContent
from support import anthropic_messages_rules, openai_chat_rules, openai_responses_rules
from support.histories import FOREIGN, HISTORIES, MEDIA, MODELS, OTHER, TARGET, UPDATES, updated

PNG = b"\x89PNG"
ADAPTERS: tuple[Adapter, ...] = (OpenAIChatAdapter(), OpenAIResponsesAdapter(), AnthropicMessagesAdapter())
RULES = {
    "openai-chat": openai_chat_rules.violations,
    "openai-responses": openai_responses_rules.violations,
    "anthropic-messages": anthropic_messages_rules.violations,
}
SIGNED = {"p": {"signature": "s"}}
BOOM = Failure(type="provider.internal", message="boom")


def user(text: str, *files: PromptFile) -> UserMessage:
    return UserMessage(id=MessageId("msg_u"), created=1, text=text, files=files or None)


def assistant(*content: AssistantContent, model: ModelRef = TARGET, error: Failure | None = None) -> AssistantMessage:
    return AssistantMessage(
        id=MessageId("msg_a"),
        created=1,
        agent="build",
        model=model,
        attempt=1,
        content=content,
        finish="error" if error else "stop",
        error=error,
        completed=2,
    )


def text(value: str, metadata: dict[str, Any] | None = None) -> TextPart:
    return TextPart(id=PartId("prt_t"), text=value, metadata=metadata)


def thought(value: str, metadata: dict[str, Any] | None = None) -> ReasoningPart:
    return ReasoningPart(id=PartId("prt_r"), text=value, metadata=metadata)


def tool(
    state: ToolState,
    id: str = "call_1",
    provider_id: str = "fc_1",
    name: str = "read",
    executed: bool = False,
    metadata: dict[str, Any] | None = None,
) -> ToolPart:
    return ToolPart(
        id=CallId(id),
        name=name,
        provider_call_id=provider_id,
        executed=executed,
        state=state,
        created=1,
        metadata=metadata,
        result_metadata=metadata,
    )


def done(*content: TextContent | FileContent, structured: Any = None, result: Any = None) -> ToolCompleted:
    return ToolCompleted(input={"path": "x"}, content=content, structured=structured, result=result)


def lowered(*history: Message, target: ModelRef = TARGET) -> list[RequestMessage]:
    messages = lower(history, target)
    check(messages)
    return list(messages)


def said(*content: Text | Media) -> request.UserMessage:
    return request.UserMessage(content=content)


def answered(*content: Text | Reasoning | Call) -> request.AssistantMessage:
    return request.AssistantMessage(content=content)


def calls(messages: list[RequestMessage]) -> list[Call]:
    return [
        part
        for message in messages
        if isinstance(message, request.AssistantMessage)
        for part in message.content
        if isinstance(part, Call)
    ]


# --- users ------------------------------------------------------------------------------------------------------------


def test_each_user_message_stays_its_own() -> None:
    history = (user("one"), user("two"), SyntheticMessage(id=MessageId("msg_s"), created=1, text="Go on."), user(""))
    assert lowered(*history) == [
        said(Text(text="one")),
        said(Text(text="two")),
        said(Text(text="Go on.")),
        said(Text(text=EMPTY_PROMPT)),
    ]


def test_files_follow_the_prompt_as_media_as_labelled_text_or_as_a_note() -> None:
    files = (
        PromptFile(data=PNG, mime="image/PNG; x=y", name="a.png"),
        PromptFile(data=b"# Hi \xff", mime="text/markdown", name="a.md"),
        PromptFile(data=b"{}", mime="application/json"),
        PromptFile(data=b"%PDF", mime="application/pdf", name="a.pdf"),
        PromptFile(data=b"<svg>", mime="image/svg+xml", name="a.svg"),
        PromptFile(data=b"II*", mime="image/tiff", name="a.tiff"),
    )
    (message,) = lowered(user("Look", *files))
    assert isinstance(message, request.UserMessage)
    assert message.content[:4] == (
        Text(text="Look"),
        Media(data=PNG, mime="image/png", name="a.png"),
        Text(text='File "a.md" (text/markdown):\n\n# Hi \ufffd'),
        Text(text='File "unnamed" (application/json):\n\n{}'),
    )
    notes = [part.text for part in message.content[4:] if isinstance(part, Text)]
    assert [note.split()[1] for note in notes] == ['"a.pdf"', '"a.svg"', '"a.tiff"']
    assert "not sent" in notes[0]
    assert "not sent" in notes[2]


def test_a_target_without_images_learns_that_there_was_one() -> None:
    history = [user("", PromptFile(data=PNG, mime="image/png", name="a.png"))]
    (message,) = lower(history, TARGET, media=())
    assert isinstance(message, request.UserMessage)
    (part,) = message.content
    assert isinstance(part, Text)
    assert "a.png" in part.text
    assert lower(history, TARGET) == (said(Media(data=PNG, mime="image/png", name="a.png")),)


def test_a_pdf_is_a_medium_only_for_a_target_that_takes_it_and_only_where_it_is_one() -> None:
    file = PromptFile(data=b"%PDF-1.7 x", mime="application/pdf", name="a.pdf")
    late = PromptFile(data=b"\n" * 1024 + b"%PDF-1.7 x", mime="application/pdf", name="late.pdf")
    none = PromptFile(data=b"\n" * 1025 + b"%PDF-1.7 x", mime="application/pdf", name="none.pdf")
    seen = FileContent(data=file.data, mime="application/pdf", name="b.pdf")
    history = (user("Read", file, late, none), assistant(tool(done(seen))))
    first, _, result = lower(history, TARGET, media=MEDIA_TYPES)
    assert isinstance(first, request.UserMessage)
    assert isinstance(result, ToolMessage)
    assert first.content[1:3] == tuple(Media(data=one.data, mime=one.mime, name=one.name) for one in (file, late))
    note = 'File "none.pdf" (application/pdf, 1035 bytes) was not sent: not supported here.'
    assert first.content[3:] == (Text(text=note),)
    assert result.content == (Media(data=file.data, mime="application/pdf", name="b.pdf"),)
    for message in lower(history, TARGET, media=IMAGE_TYPES):
        if not isinstance(message, SystemUpdate):
            assert not any(isinstance(part, Media) for part in message.content)


def test_a_model_switch_lowers_to_nothing() -> None:
    assert lowered(ModelSwitchedMessage(id=MessageId("msg_m"), created=1, model=TARGET)) == []


def test_an_image_without_data_is_only_named() -> None:
    messages = lowered(
        user("", PromptFile(data=b"", mime="image/png")), assistant(tool(done(FileContent(data=b"", mime="image/png"))))
    )
    parts = [part for message in messages if not isinstance(message, SystemUpdate) for part in message.content]
    assert not any(isinstance(part, Media) for part in parts)


def test_ill_formed_strings_are_repaired_wherever_they_stand() -> None:
    half = "\ud83d"
    broken = {half: [half]}
    messages = lowered(
        user(half, PromptFile(data=PNG, mime="image/png", name=half), PromptFile(data=b"x", mime=half, name=half)),
        SyntheticMessage(id=MessageId("msg_s"), created=1, text=half),
        assistant(
            text(half),
            thought(half, broken),
            tool(ToolRunning(input=broken), half, half, half, metadata=broken),
            tool(done(TextContent(text=half), FileContent(data=PNG, mime="image/png", name=half)), "call_1"),
            tool(done(structured=broken), "call_2"),
            tool(ToolError(input=broken, error=Failure(type=half, message=half)), "call_3"),
            tool(done(result=broken), "call_4", executed=True),
        ),
        assistant(thought(half), model=OTHER),
    )
    assert "\ufffd" in msgspec.json.encode(messages).decode()


# --- reasoning and its metadata ---------------------------------------------------------------------------------------


def test_reasoning_of_the_same_model_keeps_its_metadata_whatever_the_variant() -> None:
    history = (assistant(thought("Hm", SIGNED), thought("", SIGNED), thought(""), text("Yes", SIGNED)),)
    expected = answered(
        Reasoning(text="Hm", metadata=SIGNED), Reasoning(text="", metadata=SIGNED), Text(text="Yes", metadata=SIGNED)
    )
    for variant in (None, "high"):
        assert lowered(*history, target=ModelRef(provider="p", id="m", variant=variant)) == [expected]


@pytest.mark.parametrize("model", [OTHER, FOREIGN])
def test_reasoning_of_another_model_becomes_text_without_metadata(model: ModelRef) -> None:
    part = tool(done(), metadata=SIGNED)
    messages = lowered(assistant(thought("Hm", SIGNED), thought("", SIGNED), text("Yes", SIGNED), part, model=model))
    assert isinstance(messages[0], request.AssistantMessage)
    assert messages[0].content[:2] == (Text(text="Hm"), Text(text="Yes"))
    assert len(messages[0].content) == 3
    assert [(call.metadata, call.result_metadata) for call in calls(messages)] == [(None, None)]


def test_a_failed_turn_keeps_what_was_said_and_loses_its_metadata() -> None:
    failed = assistant(thought("Hm", SIGNED), text("Ye", SIGNED), tool(done(), metadata=SIGNED), error=BOOM)
    messages = lowered(failed)
    assert isinstance(messages[0], request.AssistantMessage)
    assert messages[0].content[:2] == (Text(text="Hm"), Text(text="Ye"))
    assert [(call.metadata, call.result_metadata) for call in calls(messages)] == [(None, None)]
    sound = lowered(assistant(tool(done(), metadata=SIGNED)))
    assert [(call.metadata, call.result_metadata) for call in calls(sound)] == [(SIGNED, SIGNED)]


def test_turns_that_left_nothing_to_say_are_not_sent() -> None:
    blank = assistant(text(""), text(" \n"), thought(" "), thought("", {}))
    assert lowered(user("Hi"), assistant(error=BOOM), assistant(), blank) == [said(Text(text="Hi"))]


# --- calls ------------------------------------------------------------------------------------------------------------


def test_every_call_has_its_result_directly_behind_its_message() -> None:
    history = (
        assistant(
            text("Look"),
            tool(done(TextContent(text="a"), FileContent(data=PNG, mime="image/png")), "call_1", "fc_1"),
            tool(ToolError(input={}, error=BOOM, content=(TextContent(text="so far"),)), "call_2", "fc_2"),
            tool(ToolRunning(input={"x": 1}), "call_3", "fc_3"),
            tool(ToolPending(input='{"y": '), "call_4", "fc_4"),
            tool(ToolPending(input='{"y": 2}'), "call_5", "fc_5"),
            tool(done(structured={"n": 1}), "call_6", "fc_6"),
        ),
        user("Next"),
    )
    messages = lowered(*history)
    assert [call.input for call in calls(messages)] == [{"path": "x"}, {}, {"x": 1}, {}, {"y": 2}, {"path": "x"}]

    def result(number: int, is_error: bool, *content: Text | Media) -> ToolMessage:
        return ToolMessage(call_id=f"fc_{number}", name="read", content=content, is_error=is_error)

    assert messages[1:] == [
        result(1, False, Text(text="a"), Media(data=PNG, mime="image/png", name="unnamed")),
        result(2, True, Text(text="boom"), Text(text="so far")),
        result(3, True, Text(text=INTERRUPTED)),
        result(4, True, Text(text=INTERRUPTED)),
        result(5, True, Text(text=INTERRUPTED)),
        result(6, False, Text(text='{"n":1}')),
        said(Text(text="Next")),
    ]


def test_provider_executed_calls_stay_inline_with_their_stored_result() -> None:
    stored = {"type": "web_search_result", "hits": [1]}
    messages = lowered(
        assistant(
            tool(done(result=stored), "call_1", "fc_1", executed=True),
            tool(done(), "call_2", "fc_2", executed=True),
            tool(ToolError(input={}, error=BOOM, result="raw"), "call_3", "fc_3", executed=True),
            tool(ToolError(input={}, error=BOOM), "call_4", "fc_4", executed=True),
            tool(ToolRunning(input={}), "call_5", "fc_5", executed=True),
        )
    )
    assert len(messages) == 1
    assert [(call.result, call.is_error) for call in calls(messages)] == [
        (stored, False),
        ({"error": NOT_RETURNED}, True),
        ("raw", False),
        ({"error": "boom"}, True),
        ({"error": NOT_RETURNED}, True),
    ]


def test_call_ids_that_repeat_or_are_malformed_are_replaced_by_our_own() -> None:
    first = assistant(tool(done(), "call_1", "fc"), tool(done(), "call_2", "fc"), tool(done(), "call_3", ""))
    second = assistant(
        tool(done(), "call_4", "fc"),
        tool(done(), "call_5", "id with spaces"),
        tool(done(), "call_6", "x" * 65),
        tool(done(), "call_7", "functions.read:0"),
        tool(done(), "call_8", "call_9"),
        tool(done(), "call_9", "fc"),
    )
    foreign = assistant(tool(done(), "call_10", "fc_10"), model=FOREIGN)
    messages = lowered(first, second, foreign)
    assert [call.id for call in calls(messages)] == [
        *("fc", "call_2", "call_3", "call_4", "call_5", "call_6", "functions.read:0", "call_9", "call_9_2", "call_10")
    ]


def test_tool_names_are_made_valid_for_the_protocol() -> None:
    names = ["read", "Read File!", "", "ü" * 70, "7zip", "-rm", "_own", "9" * 64]
    parts = [tool(done(), f"call_{at}", f"fc_{at}", name) for at, name in enumerate(names)]
    found = [call.name for call in calls(lowered(assistant(*parts)))]
    assert found == ["read", "Read_File_", "unnamed_tool", "_" * 64, "_7zip", "_-rm", "_own", "_" + "9" * 63]


def test_a_structured_value_in_place_of_content_is_bounded() -> None:
    messages = lowered(assistant(tool(done(structured=["x" * 200_000]))))
    assert isinstance(messages[1], ToolMessage)
    (part,) = messages[1].content
    assert isinstance(part, Text)
    assert len(part.text) < 60_000


# --- the properties ---------------------------------------------------------------------------------------------------


def body(messages: tuple[RequestMessage, ...], adapter: Adapter = ADAPTERS[0], model: str = "m") -> bytes:
    return adapter.encode(
        LLMRequest(
            model=model,
            system=("s",),
            messages=messages,
            tools=(),
            tool_choice="auto",
            generation=Generation(),
            options={},
            body={},
        )
    ).body


def sent(messages: tuple[RequestMessage, ...], adapter: Adapter) -> list[dict[str, Any]]:
    """What the protocol calls its messages, without cache markers, which move."""
    payload = json.loads(body(messages, adapter))
    items: list[dict[str, Any]] = payload.get("messages", payload.get("input"))
    for item in items:
        for block in item.get("content") or ():
            if isinstance(block, dict):
                cast("dict[str, Any]", block).pop("cache_control", None)
    return items


@settings(max_examples=200, deadline=None)
@given(HISTORIES, MODELS, MEDIA)
def test_every_history_lowers_to_messages_that_pass_the_check_and_can_be_encoded(
    history: list[Message], target: ModelRef, media: frozenset[str]
) -> None:
    messages = lower(history, target, media=media)
    check(messages)
    for adapter in ADAPTERS:
        assert body(messages, adapter) == body(lower(history, target, media=media), adapter)


@settings(max_examples=300, deadline=None)
@given(HISTORIES, MODELS, UPDATES, st.sampled_from(["m", "claude-opus-4-8"]))
def test_every_history_is_valid_in_every_protocol(
    history: list[Message], target: ModelRef, places: list[bool], model: str
) -> None:
    messages = (said(Text(text="Hi")), *updated(lower(history, target, media=MEDIA_TYPES), places))
    check(messages)
    for adapter in ADAPTERS:
        broken = RULES[adapter.protocol](json.loads(body(messages, adapter, model)))
        assert broken == [], adapter.protocol


@settings(max_examples=100, deadline=None)
@given(HISTORIES, MODELS)
def test_a_longer_history_begins_with_what_the_shorter_sent_in_every_protocol(history: list[Message], target: ModelRef) -> None:
    for adapter in ADAPTERS:
        whole = sent(lower(history, target, media=MEDIA_TYPES), adapter)
        for count in range(len(history)):
            part = sent(lower(history[:count], target, media=MEDIA_TYPES), adapter)
            assert whole[: len(part)] == part


@settings(max_examples=100, deadline=None)
@given(HISTORIES, MODELS)
def test_a_longer_history_begins_with_the_messages_and_the_bytes_of_the_shorter(
    history: list[Message], target: ModelRef
) -> None:
    whole = lower(history, target, media=MEDIA_TYPES)
    whole_body = body(whole)
    end = b'],"stream":true'
    for count in range(len(history)):
        part = lower(history[:count], target, media=MEDIA_TYPES)
        assert whole[: len(part)] == part
        assert whole_body.startswith(body(part).rpartition(end)[0])


# --- the check --------------------------------------------------------------------------------------------------------


def a_call(id: str = "c", **fields: Any) -> Call:
    return msgspec.structs.replace(Call(id=id, name="read", input={}), **fields)


def a_result(id: str = "c", name: str = "read") -> ToolMessage:
    return ToolMessage(call_id=id, name=name, content=(), is_error=False)


HI = said(Text(text="Hi"))
UPDATE = SystemUpdate(text="Now.")
GOOD = (HI, answered(a_call("c"), a_call("d")), a_result("c"), a_result("d"), answered(Text(text="ok")))


def test_the_check_passes_what_is_right() -> None:
    check(())
    check(GOOD)
    check((answered(a_call(executed=True, result=0)), HI))
    check((*GOOD[:4], UPDATE, GOOD[4], UPDATE, UPDATE, HI))


WRONG: list[tuple[str, tuple[RequestMessage, ...], int]] = [
    ("call without a result at the end", (HI, answered(a_call())), 1),
    ("call without a result before another message", (answered(a_call()), HI), 1),
    ("second call without a result", (*GOOD[:3], HI), 3),
    ("results in another order", (HI, GOOD[1], a_result("d"), a_result("c")), 2),
    ("a system update between a call and its result", (HI, GOOD[1], UPDATE, *GOOD[2:]), 2),
    ("a system update between two results", (*GOOD[:3], UPDATE, *GOOD[3:]), 3),
    ("a system update that says nothing", (HI, SystemUpdate(text=" ")), 1),
    ("a system update with a lone surrogate", (HI, SystemUpdate(text="a\ud83d")), 1),
    ("text metadata with a lone surrogate", (HI, answered(Text(text="a", metadata={"\ud83d": 1}))), 1),
    ("a result twice", (*GOOD[:4], a_result("d")), 4),
    ("a result without a call", (HI, a_result()), 1),
    ("a result under another name", (answered(a_call()), a_result(name="write")), 1),
    ("a result of an executed call", (answered(a_call(executed=True, result=1)), a_result()), 1),
    ("an executed call without a result", (answered(a_call(executed=True)),), 0),
    ("a call id used twice in a message", (answered(a_call(), a_call()), a_result(), a_result()), 0),
    ("a call id used twice in a request", (*GOOD, answered(a_call("d")), a_result("d")), 5),
    ("an empty call id", (answered(a_call("")), a_result("")), 0),
    ("a call id with a space", (answered(a_call("a b")), a_result("a b")), 0),
    ("a tool name that is too long", (answered(a_call(name="x" * 65)), a_result(name="x" * 65)), 0),
    ("an input that is no object", (answered(a_call(input=[1])), a_result()), 0),
    ("an input with a lone surrogate", (answered(a_call(input={"a": "\ud83d"})), a_result()), 0),
    ("metadata with a lone surrogate", (answered(a_call(metadata={"\ud83d": 1})), a_result()), 0),
    ("an empty user message", (said(),), 0),
    ("a blank user message", (said(Text(text=" ")),), 0),
    ("an empty assistant message", (HI, answered()), 1),
    ("a blank assistant message", (answered(Text(text="\n"), Reasoning(text=" ")),), 0),
    ("a text with a lone surrogate", (said(Text(text="a\ud83d")),), 0),
    ("reasoning with a lone surrogate", (answered(Reasoning(text="\ude00")),), 0),
    ("an image without data", (said(Media(data=b"", mime="image/png")),), 0),
    ("a PDF without data", (said(Media(data=b"", mime="application/pdf")),), 0),
    ("a medium of another kind", (said(Media(data=b"x", mime="image/tiff")),), 0),
    ("a medium with an ill-formed name", (said(Media(data=b"x", mime="image/png", name="\ud83d")),), 0),
]


@pytest.mark.parametrize(("messages", "index"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_the_check_refuses_what_breaks_a_rule_and_says_where(messages: tuple[RequestMessage, ...], index: int) -> None:
    with pytest.raises(RequestInvariantError) as caught:
        check(messages)
    assert caught.value.index == index
    assert caught.value.reason
