"""The Gemini protocol (`gemini`): `streamGenerateContent` of Google's API, answered by server-sent events.

Rules:
- The same request gives the same bytes; the order of keys is fixed here, and that of inputs and schemas is theirs.
- Each message is a content of its own, written once, and nothing merges into what was sent before (ruling B10). Only the
  results of one turn share a content: the protocol wants one with as many results as there were calls, in their order,
  directly behind them. It stays open until something else is said.
- A content that calls must follow one of the user's. Where the model spoke last, a user's word to go on stands between.
- A signature goes back on the part it came with, and parts that have one are not joined with others. Thoughts go back only
  with one. Models that refuse calls without a signature (Gemini 3 and later) get the documented word that skips the check on
  the first call of a content in which none has one: those calls are another model's, or of an answer that failed.
- A call's id goes back where the provider gave one, and then its result names it too; others are told apart by their order.
- A tool that the provider ran goes back with its result, verbatim, where its metadata says that this protocol gave it. Any
  other executed call is shown as an ordinary call; its result follows before the model goes on, unless local calls wait.
- Media of results follow behind all results of the turn, in the same content: older models take none inside a result. Media
  that the protocol does not take are named in a sentence.
- A system update is wrapped text in the user's role, since the protocol has no place for one among the contents.
- Tools are declared with `parametersJsonSchema`, which takes JSON Schema as tools have it; `parameters` takes a dialect of
  OpenAPI and refuses the whole request for any other keyword, so schemas would have to be changed, and lose meaning. What is
  refused there too is left out: `$schema`, and whatever stands beside a `$ref`. A tool without parameters declares none.
- `tool_choice` none keeps the definitions, and with them the cached prefix.
- `options` understood: thinkingConfig and safetySettings (also in snake case). `body` is merged over the result, last.
"""

from __future__ import annotations

import copy
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, cast
from urllib.parse import quote

import msgspec

from ..values.tool import ToolDefinition
from .classify import classify_response
from .conversation import Growth, Written
from .events import ProviderFailed
from .gemini_decoder import HOSTED, PROTOCOL, GeminiDecoder
from .payload import encoded, json_text, merged, metadata_of, option
from .request import (
    AssistantMessage,
    Call,
    HttpRequest,
    LLMRequest,
    Media,
    Reasoning,
    RequestMessage,
    SystemUpdate,
    Text,
    ToolMessage,
    UserMessage,
)
from .shapes import mapping, place, sequence, string
from .system_update import wrapped

UNCHECKED: Final = "skip_thought_signature_validator"
"""What stands in a signature's place on a call that no Gemini model made: documented for histories of other models."""
GO_ON: Final = "Continue."

_CHECKS: Final = re.compile(r"(?:.*/)?gemini-(?![12][.-]).*")
"""Models that refuse a call without a signature."""
_COLLECTIONS: Final = ("models", "tunedModels")
_MEDIA: Final = frozenset(("image/png", "image/jpeg", "image/webp", "image/heic", "image/heif", "application/pdf"))
_LITERAL: Final = ("enum", "const", "default", "example", "examples")
"""Keywords of a schema that hold values, and no schemas."""
_BY_NAME: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords that hold schemas by names of their own."""
_SEPARATOR: Final = "\n\n"

Part = dict[str, Any]


class GeminiAdapter:
    """Implements `Adapter`. Stateless."""

    @property
    def protocol(self) -> str:
        return PROTOCOL

    def encode(self, request: LLMRequest) -> HttpRequest:
        """The request; its path goes behind a base URL like `https://generativelanguage.googleapis.com/v1beta`."""
        return self.conversation().write(request)

    def conversation(self) -> GeminiConversation:
        return GeminiConversation()

    def decoder(self) -> GeminiDecoder:
        return GeminiDecoder()

    def authorization(self, api_key: str) -> Mapping[str, str]:
        """The key goes into a header: in the URL, where the protocol takes it too, logs would show it."""
        return {"x-goog-api-key": api_key}

    def classify(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderFailed:
        return classify_response(status, headers, body)


class GeminiConversation:
    """Implements `Conversation`. A model that checks signatures, after one that does not, begins anew."""

    def __init__(self) -> None:
        self._checks = False
        self._growth = self._begin()

    def extend(self, messages: Sequence[RequestMessage]) -> None:
        self._growth.extend(messages)

    def write(self, request: LLMRequest) -> HttpRequest:
        checks = _CHECKS.fullmatch(request.model) is not None
        if checks is not self._checks:
            self._checks = checks
            self._growth = self._begin()
        contents = self._growth.extend(request.messages).array()
        headers = {"content-type": "application/json", "accept": "text/event-stream"}
        path = f"/{_resource(request.model)}:streamGenerateContent?alt=sse"
        return HttpRequest(path=path, headers=headers, body=encoded(_payload(request, contents)))

    def _begin(self) -> Growth[_Contents]:
        checks = self._checks
        return Growth(lambda: _Contents(checks=checks))


def _resource(model: str) -> str:
    """The model as a part of the path; ids may come with their collection."""
    collection, slash, name = model.partition("/")
    if slash and collection in _COLLECTIONS:
        return f"{collection}/{quote(name, safe='')}"
    return f"models/{quote(model, safe='')}"


def _payload(request: LLMRequest, contents: msgspec.Raw) -> dict[str, Any]:
    payload: dict[str, Any] = {}
    if system := [{"text": part} for part in request.system if part.strip()]:
        payload["systemInstruction"] = {"parts": system}
    payload["contents"] = contents
    if request.tools:
        payload["tools"] = [{"functionDeclarations": [_declaration(tool) for tool in request.tools]}]
        if request.tool_choice == "none":
            payload["toolConfig"] = {"functionCallingConfig": {"mode": "NONE"}}
    if settings := _settings(request):
        payload["generationConfig"] = settings
    if safety := sequence(option(request.options, "safetySettings", "safety_settings")):
        payload["safetySettings"] = safety
    return merged(payload, request.body)


def _settings(request: LLMRequest) -> dict[str, Any]:
    generation = request.generation
    thinking = mapping(option(request.options, "thinkingConfig", "thinking_config"))
    settings = {
        "maxOutputTokens": generation.max_tokens,
        "temperature": generation.temperature,
        "topP": generation.top_p,
        "topK": generation.top_k,
        "frequencyPenalty": generation.frequency_penalty,
        "presencePenalty": generation.presence_penalty,
        "seed": generation.seed,
        "stopSequences": list(generation.stop) if generation.stop else None,
        "thinkingConfig": {_camel(name): value for name, value in thinking.items()} or None,
    }
    return {name: value for name, value in settings.items() if value is not None}


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


# --- tools ------------------------------------------------------------------------------------------------------------


def _declaration(tool: ToolDefinition) -> dict[str, Any]:
    declaration: dict[str, Any] = {"name": tool.name, "description": tool.description}
    schema: dict[str, Any] = {**_schema(tool.input_schema), "type": "object"}
    if schema.get("properties") or schema.keys() - {"type", "title", "description", "properties", "additionalProperties"}:
        declaration["parametersJsonSchema"] = schema
    return declaration


def _schema(schema: Any) -> Any:
    """The schema without what is refused."""
    match schema:
        case dict():
            given = cast("dict[str, Any]", schema)
            refers = isinstance(given.get("$ref"), str)
            return {
                name: _below(name, value)
                for name, value in given.items()
                if name != "$schema" and (not refers or name.startswith("$"))
            }
        case list():
            return [_schema(item) for item in cast("list[Any]", schema)]
        case _:
            return schema


def _below(keyword: str, value: Any) -> Any:
    match value:
        case dict() if keyword in _BY_NAME:
            return {name: _schema(schema) for name, schema in cast("dict[str, Any]", value).items()}
        case _ if keyword in _LITERAL:
            return value
        case _:
            return _schema(value)


# --- contents ---------------------------------------------------------------------------------------------------------


class _Contents:
    """The protocol's contents, made in one pass. Open are only the results that are due.

    `checks`: whether the model refuses calls without a signature.
    """

    def __init__(self, *, checks: bool) -> None:
        self._checks = checks
        self._written = Written()
        self._role: Literal["user", "model"] | None = None
        """Who spoke last."""
        self._due: dict[str, Part | None] = {}
        """The calls of the model's last content, in order, and their results as far as they came."""
        self._named: set[str] = set()
        """Those of them that have an id on the wire."""
        self._behind: list[Part] = []
        """What follows the results in their content."""

    def add(self, message: RequestMessage) -> None:
        if not isinstance(message, ToolMessage):
            self._end_results()
        match message:
            case UserMessage(content=content):
                self._say("user", list(_parts(content)))
            case SystemUpdate(text=text):
                self._say("user", [{"text": wrapped(text)}])
            case AssistantMessage(content=content):
                self._assistant(content)
            case ToolMessage():
                self._result(message)

    def array(self) -> msgspec.Raw:
        """All contents, as those of a request that ends here."""
        with self._written.for_now():
            copy.copy(self)._end_results()
            return self._written.array()

    def _say(self, role: Literal["user", "model"], parts: list[Part]) -> None:
        if not parts:
            return
        if role == "model" and (calls := [part for part in parts if "functionCall" in part]):
            if self._role != "user":
                self._written.add({"role": "user", "parts": [{"text": GO_ON}]})
            if self._checks and not any("thoughtSignature" in part for part in calls):
                calls[0]["thoughtSignature"] = UNCHECKED
        self._written.add({"role": role, "parts": parts})
        self._role = role

    def _end_results(self) -> None:
        self._say("user", [part for part in self._due.values() if part is not None] + self._behind)
        self._due, self._named, self._behind = {}, set(), []

    # --- what the model said ------------------------------------------------------------------------------------------

    def _assistant(self, content: Sequence[Text | Reasoning | Call]) -> None:
        parts: list[Part] = []
        local = False
        for part in content:
            if self._due and not local and not isinstance(part, Call):
                self._say("model", parts)
                self._end_results()
                parts = []
            match part:
                case Text(text=text, metadata=metadata):
                    parts += [said for said in _said(text, metadata) if said["text"].strip() or len(said) > 1]
                case Reasoning(text=text, metadata=metadata):
                    parts += [{**said, "thought": True} for said in _said(text, metadata) if "thoughtSignature" in said]
                case Call():
                    local = local or not part.executed
                    parts += self._call(part)
        self._say("model", parts)

    def _call(self, call: Call) -> list[Part]:
        native = metadata_of(call.metadata, PROTOCOL)
        if call.executed and not call.is_error and (pair := _hosted(call, native)):
            return pair
        function: Part = {"name": call.name, "args": call.input}
        if string(native.get("id")):
            function = {"id": call.id, **function}
            self._named.add(call.id)
        part: Part = {"functionCall": function}
        if not call.executed:
            if signature := string(native.get("signature")):
                part["thoughtSignature"] = signature
            self._due[call.id] = None
        else:
            text = call.result if isinstance(call.result, str) and call.result.strip() else json_text(call.result)
            self._due[call.id] = self._response(call.id, call.name, text, call.is_error)
        return [part]

    # --- results ------------------------------------------------------------------------------------------------------

    def _result(self, message: ToolMessage) -> None:
        parts = list(_parts(message.content))
        text = _SEPARATOR.join(part["text"] for part in parts if "text" in part)
        media = [part for part in parts if "text" not in part]
        if media:
            label = f"Media from the result of {message.name} ({message.call_id}):"
            self._behind += [{"text": label}, *media]
        text = text or ("(media follow)" if media else "(no output)")
        self._due[message.call_id] = self._response(message.call_id, message.name, text, message.is_error)

    def _response(self, call_id: str, name: str, text: str, is_error: bool) -> Part:
        function: Part = {"name": name, "response": {"error" if is_error else "output": text}}
        return {"functionResponse": {"id": call_id, **function} if call_id in self._named else function}


def _parts(content: Sequence[Text | Media]) -> Iterator[Part]:
    for part in content:
        match part:
            case Text(text=text):
                if text.strip():
                    yield {"text": text}
            case Media(data=data, mime=mime) if mime in _MEDIA:
                yield {"inlineData": {"mimeType": mime, "data": b64encode(data).decode("ascii")}}
            case Media(data=data, mime=mime, name=name):
                size = f"{mime}, {len(data)} bytes"
                yield {"text": f'File "{name or "unnamed"}" ({size}) was not sent: this provider does not take it.'}


def _said(text: str, metadata: Mapping[str, Any] | None) -> Iterator[Part]:
    """The text in the parts that it came in, as far as signatures tell them apart; all of it, whatever the metadata say."""
    begin = 0
    for signed in map(mapping, sequence(metadata_of(metadata, PROTOCOL).get("signed"))):
        start, end, signature = place(signed.get("start")), place(signed.get("end")), string(signed.get("signature"))
        if start is None or end is None or not signature or not begin <= start <= end:
            continue
        if text[begin:start]:
            yield {"text": text[begin:start]}
        yield {"text": text[start:end], "thoughtSignature": signature}
        begin = end
    if text[begin:]:
        yield {"text": text[begin:]}


def _hosted(call: Call, native: Mapping[str, Any]) -> list[Part]:
    """A tool that the provider ran and its result as they came, or nothing when they cannot go back that way."""
    kind, kept = string(native.get("part")), metadata_of(call.result_metadata, PROTOCOL)
    result: object = call.result
    if kind not in HOSTED or HOSTED[kind] != kept.get("part") or not isinstance(result, dict):
        return []
    if kind == "executableCode" and not (string(call.input.get("code")) and string(mapping(result).get("outcome"))):
        return []
    input = call.input if kind == "executableCode" else {"args": call.input}
    pair: list[Part] = [{kind: {**mapping(native.get("fields")), **input}}, {HOSTED[kind]: result}]
    for part, signature in zip(pair, (native.get("signature"), kept.get("signature")), strict=True):
        if string(signature):
            part["thoughtSignature"] = signature
    return pair
