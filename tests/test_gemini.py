"""Gemini: requests that the protocol accepts, byte for byte; what was decoded goes back as it came.

Long, because the requests are one table beside the recorded answers they return.
"""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from steerway.protocol.llm.adapter import Adapter
from steerway.protocol.llm.events import ReasoningEnd, TextDelta, TextEnd, ToolCall, ToolResult
from steerway.protocol.llm.gemini import GO_ON, UNCHECKED, GeminiAdapter
from steerway.protocol.llm.lowering import lower
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
    ToolChoice,
    ToolMessage,
    UserMessage,
)
from steerway.protocol.values.message import Message
from steerway.protocol.values.model import ModelRef
from steerway.protocol.values.tool import ToolDefinition
from support.decoding import decode
from support.gemini import chunk
from support.gemini_rules import violations
from support.histories import HISTORIES, MEDIA, MODELS, UPDATES, updated

ADAPTER: Adapter = GeminiAdapter()
SIGNATURE = "RXRZSENBRQ=="
OLD, NEW = "gemini-2.5-flash", "gemini-3-pro-preview"


def request(
    *messages: RequestMessage,
    model: str = OLD,
    system: tuple[str, ...] = (),
    tools: tuple[ToolDefinition, ...] = (),
    tool_choice: ToolChoice = "auto",
    generation: Generation | None = None,
    options: dict[str, Any] | None = None,
    body: dict[str, Any] | None = None,
) -> LLMRequest:
    return LLMRequest(
        model=model,
        system=system,
        messages=messages,
        tools=tools,
        tool_choice=tool_choice,
        generation=generation or Generation(),
        options=options or {},
        body=body or {},
    )


def sent(request: LLMRequest) -> dict[str, Any]:
    payload = json.loads(ADAPTER.encode(request).body)
    assert violations(payload) == []
    return payload


def contents(*messages: RequestMessage, model: str = OLD) -> list[Any]:
    return [(content["role"], content["parts"]) for content in sent(request(*messages, model=model))["contents"]]


def own(**fields: Any) -> dict[str, Any]:
    """Continuation metadata of this protocol."""
    return {"gemini": fields}


def user(text: str) -> UserMessage:
    return UserMessage(content=(Text(text=text),))


def assistant(*content: Text | Reasoning | Call) -> AssistantMessage:
    return AssistantMessage(content=content)


def result(id: str, *content: Text | Media, is_error: bool = False) -> ToolMessage:
    return ToolMessage(call_id=id, name="read", content=content, is_error=is_error)


READ = ToolDefinition(name="read", description="Reads.", input_schema={"type": "object", "properties": {"path": {}}})
LIST = ToolDefinition(name="list", description="Lists.", input_schema={"type": "object", "properties": {}})
IMAGE = Media(data=b"\x89PNG", mime="image/png", name="a.png")
PAPER = Media(data=b"%PDF", mime="application/pdf", name="a.pdf")
MOVING = Media(data=b"GIF8", mime="image/gif", name="a.gif")
HI = user("Hi")
READING = Call(id="c1", name="read", input={"path": "ü"}, metadata=own(id="c1", signature=SIGNATURE))
CODE = Call(
    id="call_9",
    name="code_execution",
    input={"language": "PYTHON", "code": "print(6 * 7)"},
    executed=True,
    result={"outcome": "OUTCOME_OK", "output": "42\n"},
    metadata=own(part="executableCode", fields={}, signature=SIGNATURE),
    result_metadata=own(part="codeExecutionResult"),
)
SEARCH = Call(
    id="s1",
    name="google_search_web",
    input={"queries": ["e"]},
    executed=True,
    result={"id": "s1", "toolType": "GOOGLE_SEARCH_WEB", "response": {"search": "<b>"}},
    metadata=own(part="toolCall", fields={"id": "s1", "toolType": "GOOGLE_SEARCH_WEB"}),
    result_metadata=own(part="toolResponse", signature=SIGNATURE),
)
FOREIGN_CALL = Call(id="f1", name="search", input={}, executed=True, result={"hits": [1]})
CONVERSATION: tuple[RequestMessage, ...] = (
    HI,
    user("there"),
    assistant(
        Reasoning(text="Hm", metadata=own(signed=[{"start": 0, "end": 2, "signature": SIGNATURE}])),
        Reasoning(text="unsigned"),
        Text(text="One"),
        CODE,
        SEARCH,
        Text(text="Two", metadata=own(groundingMetadata={"a": 1})),
        READING,
        Call(id="c2", name="read", input={}),
    ),
    result("c1", Text(text="gone"), IMAGE, is_error=True),
    result("c2", Text(text="here"), Text(text=" "), PAPER),
    SystemUpdate(text="Now <b> & </b>"),
    UserMessage(content=(Text(text="Look"), Text(text=" "), IMAGE)),
)


def test_the_bytes_of_a_full_request_are_fixed() -> None:
    whole = request(
        *CONVERSATION,
        system=("Be brief.", "", "Today."),
        tools=(LIST, READ),
        tool_choice="none",
        generation=Generation(
            max_tokens=9000,
            temperature=0.5,
            top_p=1.0,
            top_k=3,
            frequency_penalty=0.1,
            presence_penalty=0.2,
            seed=3,
            stop=("END",),
        ),
        options={
            "thinkingConfig": {"thinkingBudget": 2000, "include_thoughts": True},
            "safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
        },
    )
    sent(whole)
    encoded = ADAPTER.encode(whole)
    assert encoded.path == "/models/gemini-2.5-flash:streamGenerateContent?alt=sse"
    assert encoded.headers == {"content-type": "application/json", "accept": "text/event-stream"}
    image = '{"inlineData":{"mimeType":"image/png","data":"iVBORw=="}}'
    expected = (
        '{"systemInstruction":{"parts":[{"text":"Be brief."},{"text":"Today."}]},"contents":['
        '{"role":"user","parts":[{"text":"Hi"}]},'
        '{"role":"user","parts":[{"text":"there"}]},'
        '{"role":"model","parts":['
        '{"text":"Hm","thoughtSignature":"RXRZSENBRQ==","thought":true},{"text":"One"},'
        '{"executableCode":{"language":"PYTHON","code":"print(6 * 7)"},"thoughtSignature":"RXRZSENBRQ=="},'
        '{"codeExecutionResult":{"outcome":"OUTCOME_OK","output":"42\\n"}},'
        '{"toolCall":{"id":"s1","toolType":"GOOGLE_SEARCH_WEB","args":{"queries":["e"]}}},'
        '{"toolResponse":{"id":"s1","toolType":"GOOGLE_SEARCH_WEB","response":{"search":"<b>"}},'
        '"thoughtSignature":"RXRZSENBRQ=="},'
        '{"text":"Two"},'
        '{"functionCall":{"id":"c1","name":"read","args":{"path":"ü"}},"thoughtSignature":"RXRZSENBRQ=="},'
        '{"functionCall":{"name":"read","args":{}}}]},'
        '{"role":"user","parts":['
        '{"functionResponse":{"id":"c1","name":"read","response":{"error":"gone"}}},'
        '{"functionResponse":{"name":"read","response":{"output":"here"}}},'
        '{"text":"Media from the result of read (c1):"},' + image + ","
        '{"text":"Media from the result of read (c2):"},{"inlineData":{"mimeType":"application/pdf","data":"JVBERg=="}}]},'
        '{"role":"user","parts":[{"text":"<system-update>\\nNow &lt;b&gt; &amp; &lt;/b&gt;\\n</system-update>"}]},'
        '{"role":"user","parts":[{"text":"Look"},' + image + "]}],"
        '"tools":[{"functionDeclarations":[{"name":"list","description":"Lists."},'
        '{"name":"read","description":"Reads.","parametersJsonSchema":{"type":"object","properties":{"path":{}}}}]}],'
        '"toolConfig":{"functionCallingConfig":{"mode":"NONE"}},'
        '"generationConfig":{"maxOutputTokens":9000,"temperature":0.5,"topP":1.0,"topK":3,"frequencyPenalty":0.1,'
        '"presencePenalty":0.2,"seed":3,"stopSequences":["END"],'
        '"thinkingConfig":{"thinkingBudget":2000,"includeThoughts":true}},'
        '"safetySettings":[{"category":"HARM_CATEGORY_HARASSMENT","threshold":"BLOCK_NONE"}]}'
    )
    assert encoded.body.decode() == expected


def test_the_smallest_request_says_nothing_it_does_not_have_to() -> None:
    assert ADAPTER.encode(request(HI)).body == b'{"contents":[{"role":"user","parts":[{"text":"Hi"}]}]}'


def test_the_key_goes_into_a_header_and_the_model_into_the_path() -> None:
    assert ADAPTER.authorization("k") == {"x-goog-api-key": "k"}
    assert ADAPTER.protocol == "gemini"
    paths = {
        "gemini-3-pro": "models/gemini-3-pro",
        "models/gemini-3-pro": "models/gemini-3-pro",
        "tunedModels/mine": "tunedModels/mine",
        "google/gemini:free?x=1#y": "models/google%2Fgemini%3Afree%3Fx%3D1%23y",
        "models/../../x": "models/..%2F..%2Fx",
    }
    for model, path in paths.items():
        assert ADAPTER.encode(request(HI, model=model)).path == f"/{path}:streamGenerateContent?alt=sse"


@pytest.mark.parametrize("model", [OLD, NEW])
def test_contents_of_a_longer_request_begin_with_those_of_the_shorter(model: str) -> None:
    whole = contents(*CONVERSATION, model=model)
    for count in (1, 2, 5, 6, 7):
        part = contents(*CONVERSATION[:count], model=model)
        assert whole[: len(part)] == part


@settings(max_examples=200, deadline=None)
@given(HISTORIES, MODELS, UPDATES, MEDIA, st.sampled_from([OLD, NEW]))
def test_every_history_is_accepted_and_stays_a_prefix_of_what_follows(
    history: list[Message], target: ModelRef, places: list[bool], media: frozenset[str], model: str
) -> None:
    messages = (HI, *updated(lower(history, target, media=media), places))
    whole = contents(*messages, model=model)
    ends = [at for at in range(1, len(messages)) if not isinstance(messages[at], ToolMessage)]
    for end in ends:
        waits = [part for part in getattr(messages[end - 1], "content", ()) if isinstance(part, Call) and not part.executed]
        if not waits:  # between a call and its result nothing is sent
            part = contents(*messages[:end], model=model)
            assert whole[: len(part)] == part


# --- signatures -------------------------------------------------------------------------------------------------------


def test_signed_text_goes_back_in_the_parts_it_came_in() -> None:
    signed = [
        {"start": 0, "end": 3, "signature": SIGNATURE},
        {"start": 6, "end": 9, "signature": "b3RoZXI="},
        {"start": 9, "end": 9, "signature": "bGFzdA=="},
    ]
    (_, (_, parts)) = contents(HI, assistant(Text(text="Hello you, two", metadata=own(signed=signed))))
    assert parts == [
        {"text": "Hel", "thoughtSignature": SIGNATURE},
        {"text": "lo "},
        {"text": "you", "thoughtSignature": "b3RoZXI="},
        {"text": "", "thoughtSignature": "bGFzdA=="},
        {"text": ", two"},
    ]


@pytest.mark.parametrize(
    "signed",
    [
        None,
        3,
        [None, {}, {"start": 0}, {"start": 0, "end": 1}, {"start": "a", "end": 2, "signature": SIGNATURE}],
        [{"start": 2, "end": 1, "signature": SIGNATURE}, {"start": -1, "end": 1, "signature": SIGNATURE}],
        [{"start": 0, "end": 1, "signature": 3}],
    ],
)
def test_text_is_whole_whatever_its_metadata_say(signed: Any) -> None:
    assert contents(HI, assistant(Text(text="Hello", metadata=own(signed=signed))))[1] == ("model", [{"text": "Hello"}])


def test_signatures_that_overlap_or_pass_the_end_lose_no_text() -> None:
    signed = [{"start": 0, "end": 3, "signature": SIGNATURE}, {"start": 2, "end": 99, "signature": SIGNATURE}]
    (_, (_, parts)) = contents(HI, assistant(Text(text="Hello", metadata=own(signed=signed))))
    assert "".join(part["text"] for part in parts) == "Hello"
    late = [{"start": 3, "end": 99, "signature": SIGNATURE}]
    (_, (_, parts)) = contents(HI, assistant(Text(text="Hello", metadata=own(signed=late))))
    assert [part["text"] for part in parts] == ["Hel", "lo"]


def test_thoughts_without_a_signature_of_their_own_are_left_out() -> None:
    foreign = Reasoning(text="Hm", metadata={"anthropic-messages": {"signature": SIGNATURE}})
    assert contents(HI, assistant(foreign), assistant(foreign, Text(text="a")), user("b")) == [
        ("user", [{"text": "Hi"}]),
        ("model", [{"text": "a"}]),
        ("user", [{"text": "b"}]),
    ]


@pytest.mark.parametrize(
    ("model", "checks"),
    [
        (NEW, True),
        ("models/gemini-3.1-flash-lite", True),
        ("gemini-flash-latest", True),
        ("gemini-2.5-pro", False),
        ("gemini-1.5-flash", False),
        ("gemma-3-27b-it", False),
    ],
)
def test_models_that_check_signatures_are_told_which_calls_have_none(model: str, checks: bool) -> None:
    unsigned = assistant(Call(id="a", name="read", input={}), Call(id="b", name="read", input={}))
    signed = assistant(
        Call(id="c", name="read", input={}, metadata=own(signature=SIGNATURE)), Call(id="d", name="read", input={})
    )
    made = contents(HI, unsigned, result("a"), result("b"), signed, result("c"), result("d"), model=model)
    assert [part.get("thoughtSignature") for part in made[1][1]] == [UNCHECKED if checks else None, None]
    assert [part.get("thoughtSignature") for part in made[3][1]] == [SIGNATURE, None]


def test_a_model_that_checks_after_one_that_does_not_begins_anew() -> None:
    messages = (HI, assistant(Call(id="a", name="read", input={})), result("a"))
    conversation = ADAPTER.conversation()
    for model in (OLD, NEW, NEW, OLD):
        asked = request(*messages, model=model)
        assert conversation.write(asked) == ADAPTER.encode(asked)
        assert (UNCHECKED in conversation.write(asked).body.decode()) is (model == NEW)


# --- calls and results ------------------------------------------------------------------------------------------------


def test_a_result_is_known_by_the_id_that_the_provider_gave_and_else_by_its_place() -> None:
    named = Call(id="call_new", name="read", input={}, metadata=own(id="c1"))
    made = contents(HI, assistant(named, Call(id="c2", name="read", input={})), result("call_new"), result("c2"))
    assert [part["functionCall"].get("id") for part in made[1][1]] == ["call_new", None]
    assert [part["functionResponse"].get("id") for part in made[2][1]] == ["call_new", None]
    assert made[2][1][1]["functionResponse"]["response"] == {"output": "(no output)"}


def test_an_executed_call_of_another_protocol_is_a_call_with_its_result_before_the_model_goes_on() -> None:
    failed = Call(id="f2", name="search", input={}, executed=True, result={"error": "no"}, is_error=True)
    made = contents(HI, assistant(Text(text="a"), FOREIGN_CALL, failed, Text(text="b")), user("c"))
    assert [role for role, _ in made] == ["user", "model", "user", "model", "user"]
    assert made[2][1] == [
        {"functionResponse": {"name": "search", "response": {"output": '{"hits":[1]}'}}},
        {"functionResponse": {"name": "search", "response": {"error": '{"error":"no"}'}}},
    ]


def test_beside_a_local_call_the_results_of_executed_calls_wait_in_the_order_of_the_calls() -> None:
    local = Call(id="c1", name="read", input={})
    made = contents(HI, assistant(local, FOREIGN_CALL, Text(text="b")), result("c1", Text(text="r")), user("c"))
    assert [role for role, _ in made] == ["user", "model", "user", "user"]
    assert [part["functionResponse"]["name"] for part in made[2][1]] == ["read", "search"]


@pytest.mark.parametrize(
    "call",
    [
        Call(
            id="c", name="code_execution", input={}, executed=True, result={"error": "x"}, is_error=True, metadata=CODE.metadata
        ),
        structs.replace(CODE, result_metadata=None),
        structs.replace(CODE, input={}),
        structs.replace(CODE, result={"output": "no outcome"}),
        Call(
            id="c", name="n", input={}, executed=True, result="x", metadata=CODE.metadata, result_metadata=CODE.result_metadata
        ),
        Call(
            id="c", name="n", input={}, executed=True, result={}, metadata=SEARCH.metadata, result_metadata=CODE.result_metadata
        ),
        Call(id="c", name="n", input={}, executed=True, result={}, metadata=own(part="x"), result_metadata=own(part="x")),
    ],
)
def test_a_hosted_call_that_cannot_go_back_as_it_came_is_an_ordinary_call(call: Call) -> None:
    made = contents(HI, assistant(call, Text(text="b")), user("c"))
    assert [next(iter(parts[0])) for _, parts in made] == ["text", "functionCall", "functionResponse", "text", "text"]


def test_a_call_behind_words_of_the_model_s_own_is_preceded_by_a_word_of_the_user_s() -> None:
    call, said = assistant(Call(id="a", name="read", input={})), assistant(Text(text="So far"))
    made = contents(HI, said, call, result("a"), call_again := assistant(Call(id="b", name="read", input={})), result("b"))
    assert [role for role, _ in made] == ["user", "model", "user", "model", "user", "model", "user"]
    assert made[2][1] == [{"text": GO_ON}]
    assert contents(HI, said, said)[1:] == [("model", [{"text": "So far"}])] * 2
    assert contents(call_again, result("b"))[0] == ("user", [{"text": GO_ON}])


def test_media_that_the_protocol_does_not_take_are_named() -> None:
    sentence = {"text": 'File "a.gif" (image/gif, 4 bytes) was not sent: this provider does not take it.'}
    assert contents(UserMessage(content=(MOVING,)))[0] == ("user", [sentence])
    made = contents(HI, assistant(Call(id="a", name="read", input={})), result("a", MOVING), user("b"))
    assert made[2][1] == [{"functionResponse": {"name": "read", "response": {"output": sentence["text"]}}}]
    made = contents(HI, assistant(Call(id="a", name="read", input={})), result("a", IMAGE), user("b"))
    assert made[2][1][0]["functionResponse"]["response"] == {"output": "(media follow)"}


# --- what surrounds the contents --------------------------------------------------------------------------------------


def declared(schema: dict[str, Any]) -> Any:
    tool = ToolDefinition(name="t", description="T.", input_schema=schema)
    (declaration,) = sent(request(HI, tools=(tool,)))["tools"][0]["functionDeclarations"]
    return declaration.get("parametersJsonSchema")


def test_schemas_stay_as_they_are_except_for_what_is_refused() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "a": {"anyOf": [{"type": "string", "pattern": "x"}, {"$ref": "#/$defs/b", "description": "B", "default": None}]},
            "$schema": {"type": "string", "default": {"$ref": "kept", "a": 1}},
            "enum": {"$ref": "#/$defs/b", "title": "E"},
        },
        "required": ["a"],
        "additionalProperties": False,
        "$defs": {"b": {"$schema": "x", "enum": [{"$ref": "kept", "a": 1}]}},
    }
    assert declared(schema) == {
        "type": "object",
        "properties": {
            "a": {"anyOf": [{"type": "string", "pattern": "x"}, {"$ref": "#/$defs/b"}]},
            "$schema": {"type": "string", "default": {"$ref": "kept", "a": 1}},
            "enum": {"$ref": "#/$defs/b"},
        },
        "required": ["a"],
        "additionalProperties": False,
        "$defs": {"b": {"enum": [{"$ref": "kept", "a": 1}]}},
    }


@pytest.mark.parametrize(
    "schema", [{}, {"type": "object"}, {"type": "object", "properties": {}, "additionalProperties": False}]
)
def test_a_tool_without_parameters_declares_none(schema: dict[str, Any]) -> None:
    assert declared(schema) is None


def test_a_schema_says_that_it_is_an_object() -> None:
    assert declared({"properties": {"a": {}}}) == {"properties": {"a": {}}, "type": "object"}
    assert declared({"anyOf": [{"required": ["a"]}]}) == {"anyOf": [{"required": ["a"]}], "type": "object"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"thinkingConfig": {"thinkingLevel": "low"}}, {"thinkingLevel": "low"}),
        ({"thinking_config": {"thinking_budget": 0, "include_thoughts": True}}, {"thinkingBudget": 0, "includeThoughts": True}),
        ({"thinkingConfig": {}}, None),
        ({"thinkingConfig": "high"}, None),
        ({"reasoningEffort": "low"}, None),
    ],
)
def test_thinking_is_what_the_options_say(options: dict[str, Any], expected: Any) -> None:
    assert sent(request(HI, options=options)).get("generationConfig", {}).get("thinkingConfig") == expected


def test_body_fields_are_merged_deeply_and_last_and_null_removes() -> None:
    payload = sent(
        request(
            HI,
            tools=(READ,),
            generation=Generation(temperature=0.5, top_k=3),
            body={"generationConfig": {"topK": None, "candidateCount": 1}, "tools": [{"googleSearch": {}}]},
        )
    )
    assert payload["generationConfig"] == {"temperature": 0.5, "candidateCount": 1}
    assert payload["tools"] == [{"googleSearch": {}}]
    assert "contents" not in json.loads(ADAPTER.encode(request(HI, body={"contents": None})).body)


def test_ill_formed_strings_anywhere_in_a_request_are_still_sent_as_unicode() -> None:
    broken = ToolDefinition(name="t", description="\ud83d", input_schema={"properties": {"\ude00": {"x": "\ud83d\ude00"}}})
    payload = sent(request(user("a\ud83d"), system=("\ude00",), tools=(broken,)))
    assert payload["contents"][0]["parts"] == [{"text": "a\ufffd"}]
    assert payload["systemInstruction"]["parts"] == [{"text": "\ufffd"}]
    assert payload["tools"][0]["functionDeclarations"][0]["parametersJsonSchema"]["properties"] == {"\ufffd": {"x": "😀"}}


# --- there and back ---------------------------------------------------------------------------------------------------


def test_what_was_decoded_goes_back_as_it_came() -> None:
    parts: list[dict[str, Any]] = [
        {"text": "Hm", "thought": True, "thoughtSignature": SIGNATURE},
        {"text": "I look", "thoughtSignature": "b3RoZXI="},
        {"text": " there."},
        {"executableCode": {"language": "PYTHON", "code": "1", "id": "x"}, "thoughtSignature": SIGNATURE},
        {"codeExecutionResult": {"outcome": "OUTCOME_FAILED", "output": "no", "id": "x"}},
        {"toolCall": {"id": "s", "toolType": "URL_CONTEXT", "args": {"urls": ["u"]}}, "thoughtSignature": SIGNATURE},
        {"toolResponse": {"id": "s", "toolType": "URL_CONTEXT", "response": {"a": [1.5]}}},
        {"functionCall": {"id": "c1", "name": "read", "args": {"path": "ü"}}, "thoughtSignature": SIGNATURE},
        {"functionCall": {"id": "c2", "name": "read", "args": {}}},
    ]
    stream = b"".join(chunk({"candidates": [{"content": {"parts": [part]}}]}) for part in parts)
    said: dict[str, str] = {"reasoning-1": "Hm"}
    content: list[Text | Reasoning | Call] = []
    events = decode(ADAPTER, [stream + chunk({"candidates": [{"finishReason": "STOP"}]})])
    results = {event.id: event for event in events if isinstance(event, ToolResult)}
    for event in events:
        match event:
            case TextDelta(id=id, text=delta):
                said[id] = said.get(id, "") + delta
            case TextEnd(id=id, metadata=metadata):
                content.append(Text(text=said[id], metadata=metadata))
            case ReasoningEnd(id=id, metadata=metadata):
                content.append(Reasoning(text=said[id], metadata=metadata))
            case ToolCall(id=id, input=input, executed=executed) as call:
                found = results.get(id)
                content.append(
                    Call(
                        id=call.provider_call_id,
                        name=call.name,
                        input=input or {},
                        executed=executed,
                        result=found.result if found else None,
                        metadata=call.metadata,
                        result_metadata=found.metadata if found else None,
                    )
                )
            case _:
                pass
    made = contents(HI, assistant(*content), result("c1"), result("c2"), model=NEW)
    assert made[1] == ("model", parts)
