"""The Anthropic Messages protocol (`anthropic-messages`).

Rules:
- The same request gives the same bytes; the order of keys is fixed here, and that of inputs and schemas is theirs.
- The protocol joins consecutive messages of one role itself. So each of ours stays one of its own, always as a list of
  blocks, and nothing merges into what was sent before (ruling B10); only the results of one turn, which belong to one
  boundary, share a user message, as the protocol wants them directly behind their calls. What moves from request to request
  is the cache markers: they are no part of what the cache compares.
- Cache markers, at most four: the last tool, the last system part, the latest user message, and the user message before
  the model last spoke, which is where the previous request put its own.
- Thinking goes back with its signature, or as redacted data. Thinking without either has no place here, nor has any that
  nothing follows: a message may not end with it.
- A server tool's call goes back with its result, verbatim, where its metadata says that this protocol gave it. Any other
  executed call is shown as an ordinary call; its result follows before the model goes on, unless local calls wait as well.
- A PDF is a `document` with its name as the title; any other medium is an image.
- Results that are errors carry text only; their media follow behind all results of the turn.
- A system update takes the native role where the model has it and the place allows it; else it is wrapped user text. The
  place depends on what follows: an update that ended a request, and of whose turn nothing is left to send, is wrapped from
  then on. Nothing else that was sent ever changes.
- `max_tokens` is always sent. A thinking budget stays below it, or thinking is off; with thinking, `temperature` and
  `top_k` are not sent. The protocol has no penalties and no seed.
- Thinking with a budget is off as well while results are due to calls before which nothing was thought, like another model's
  or a failed answer's: the protocol refuses such a request. From the user's next word on it is what was asked for.
- `options` understood: thinking (`budgetTokens` or `budget_tokens`) and effort. `body` is merged over the result, last.
"""

from __future__ import annotations

import copy
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from .anthropic_messages_decoder import PROTOCOL, AnthropicMessagesDecoder
from .classify import classify_response
from .conversation import Growth, Written
from .events import ProviderFailed
from .payload import encoded, json_text, merged, metadata_of
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
from .shapes import mapping, sequence, string
from .system_update import wrapped

API_VERSION: Final = "2023-06-01"
DEFAULT_MAX_TOKENS: Final = 4096
MIN_THINKING_BUDGET: Final = 1024

_NATIVE_UPDATES: Final = re.compile(r"(?:.*[/.])?claude-opus-4[-.]8(?:\D.*)?")
"""Models that take a system role among the messages."""
_CALL_ID: Final = re.compile(r"[A-Za-z0-9_-]+")
_NOT_IN_CALL_IDS: Final = re.compile(r"[^A-Za-z0-9_-]")
_SERVER_CALL_ID: Final = re.compile(r"srvtoolu_[A-Za-z0-9_]+")
_THINKING: Final = ("thinking", "redacted_thinking")
_MAX_TITLE: Final = 500
"""Characters of a document's title that the protocol takes."""
_MARKER: Final = {"type": "ephemeral"}
_IN_BLOCK: Final = b',"cache_control":' + msgspec.json.encode(_MARKER)
"""A marker as the last field of a block that has others, at the end of its message: before `}]}`."""
_BLOCK_END: Final = len(b"}]}")

Block = dict[str, Any]


class AnthropicMessagesAdapter:
    """Implements `Adapter`. Stateless."""

    @property
    def protocol(self) -> str:
        return PROTOCOL

    def encode(self, request: LLMRequest) -> HttpRequest:
        """The request; its path goes behind a base URL like `https://api.anthropic.com/v1`."""
        return self.conversation().write(request)

    def conversation(self) -> AnthropicMessagesConversation:
        return AnthropicMessagesConversation()

    def decoder(self) -> AnthropicMessagesDecoder:
        return AnthropicMessagesDecoder()

    def authorization(self, api_key: str) -> Mapping[str, str]:
        return {"x-api-key": api_key, "anthropic-version": API_VERSION}

    def classify(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderFailed:
        return classify_response(status, headers, body)


class AnthropicMessagesConversation:
    """Implements `Conversation`. A model with the native role for updates, after one without it, begins anew."""

    def __init__(self) -> None:
        self._native = False
        self._growth = self._begin()

    def extend(self, messages: Sequence[RequestMessage]) -> None:
        self._growth.extend(messages)

    def write(self, request: LLMRequest) -> HttpRequest:
        native = _NATIVE_UPDATES.fullmatch(request.model) is not None
        if native is not self._native:
            self._native = native
            self._growth = self._begin()
        messages = self._growth.extend(request.messages)
        headers = {"content-type": "application/json", "accept": "text/event-stream", "anthropic-version": API_VERSION}
        payload = _payload(request, messages.array(), may_think=not messages.thoughtless)
        return HttpRequest(path="/messages", headers=headers, body=encoded(payload))

    def _begin(self) -> Growth[_Messages]:
        native = self._native
        return Growth(lambda: _Messages(native=native))


def _payload(request: LLMRequest, messages: msgspec.Raw, *, may_think: bool) -> dict[str, Any]:
    payload: dict[str, Any] = {"model": request.model}
    system: list[Block] = [{"type": "text", "text": part} for part in request.system if part.strip()]
    if system:
        payload["system"] = system
    payload["messages"] = messages
    if request.tools:
        payload["tools"] = [
            {"name": tool.name, "description": tool.description, "input_schema": _schema(tool.input_schema)}
            for tool in request.tools
        ]
        if request.tool_choice == "none":
            payload["tool_choice"] = {"type": "none"}
    payload["stream"] = True
    payload.update(_controls(request, may_think=may_think))
    _mark(payload.get("tools", [])[-1:])
    _mark(system[-1:])
    return merged(payload, request.body)


def _schema(schema: dict[str, Any]) -> dict[str, Any]:
    return schema if schema.get("type") == "object" else {**schema, "type": "object"}


def _controls(request: LLMRequest, *, may_think: bool) -> dict[str, Any]:
    generation = request.generation
    thinking = dict(mapping(request.options.get("thinking")))
    budget = thinking.pop("budgetTokens", thinking.get("budget_tokens"))
    max_tokens = generation.max_tokens
    if thinking.get("type") == "enabled":
        wanted = budget if isinstance(budget, int) else MIN_THINKING_BUDGET
        max_tokens = max_tokens or wanted + DEFAULT_MAX_TOKENS
        thinking["budget_tokens"] = budget = min(wanted, max_tokens - 1)
        if budget < MIN_THINKING_BUDGET or not may_think:
            thinking = {}
    controls: dict[str, Any] = {"max_tokens": max_tokens or DEFAULT_MAX_TOKENS}
    if thinking:
        controls["thinking"] = thinking
    if effort := request.options.get("effort"):
        controls["output_config"] = {"effort": effort}
    thinks = thinking.get("type") in ("enabled", "adaptive")
    sampling = {
        "temperature": None if thinks else generation.temperature,
        "top_p": generation.top_p,
        "top_k": None if thinks else generation.top_k,
        "stop_sequences": list(generation.stop) if generation.stop else None,
    }
    controls.update({name: value for name, value in sampling.items() if value is not None})
    return controls


def _mark(blocks: Sequence[Block]) -> None:
    for block in blocks:
        block["cache_control"] = _MARKER


# --- messages ---------------------------------------------------------------------------------------------------------


class _Messages:
    """The protocol's messages, made in one pass.

    Open are only the results that are due and an update that came last; the markers are put into what is written. `native`:
    whether the model takes a system role among the messages.
    """

    def __init__(self, *, native: bool) -> None:
        self._native = native
        self._written = Written()
        self._ids: dict[str, str] = {}
        self._used: set[str] = set()
        self._results: list[Block] = []
        self._behind: list[Block] = []
        """What follows the results in their message: media that cannot stand in them."""
        self._update: str | None = None
        """An update whose place depends on what follows."""
        self._may_update = False
        """Whether an update may follow what was said last."""
        self._latest: int | None = None
        """Where a marker stands in the latest user message since the model last spoke."""
        self._before: int | None = None
        """The same of the user message before."""
        self._calls = False
        """What the model said last calls tools, and nothing but their results has followed."""
        self._thought = False
        """The model has thought since the user's last word."""

    @property
    def thoughtless(self) -> bool:
        """Whether a request that ends here goes on with calls before which nothing was thought."""
        return self._calls and not (self._thought or self._behind or self._update)

    def add(self, message: RequestMessage) -> None:
        if not isinstance(message, ToolMessage):
            self._end_results()
        match message:
            case UserMessage(content=content):
                self._say("user", list(_blocks(content)))
            case SystemUpdate(text=text):
                self._place_update(follows="system")
                self._update = text
            case AssistantMessage(content=content):
                self._assistant(content)
            case ToolMessage():
                self._result(message)

    def array(self) -> msgspec.Raw:
        """All messages, as those of a request that ends here."""
        with self._written.for_now():
            ended = copy.copy(self)
            ended._end_results()
            ended._place_update(follows=None)
            markers = [(place, _IN_BLOCK) for place in (ended._before, ended._latest) if place is not None]
            return self._written.array(inserted=markers)

    def _say(self, role: Literal["user", "assistant"], content: list[Block]) -> None:
        while content and content[-1]["type"] in _THINKING:
            content.pop()
        if content:
            self._place_update(follows=role)
            self._write(role, content)
            self._may_update = role == "user" or content[-1]["type"].endswith("_tool_result")

    def _end_results(self) -> None:
        if self._results:
            self._say("user", self._results + self._behind)
            self._results, self._behind = [], []

    def _place_update(self, *, follows: Literal["user", "assistant", "system"] | None) -> None:
        """Write the update that waits. Its native role may stand behind a user message or a server tool's result, and only
        where the model speaks next or the request ends. Two updates in a row are both wrapped."""
        if (text := self._update) is None:
            return
        if self._native and self._may_update and follows in (None, "assistant"):
            self._write("system", [{"type": "text", "text": text}])
        else:
            self._write("user", [{"type": "text", "text": wrapped(text)}])
        self._update, self._may_update = None, False

    def _write(self, role: Literal["user", "assistant", "system"], content: list[Block]) -> None:
        self._written.add({"role": role, "content": content})
        match role:
            case "user":
                if any(block["type"] != "tool_result" for block in content):
                    self._calls = self._thought = False
                self._latest = len(self._written) - _BLOCK_END
            case "assistant":
                types = {block["type"] for block in content}
                self._calls = "tool_use" in types
                self._thought = self._thought or not types.isdisjoint(_THINKING)
                if self._latest is not None:
                    self._before, self._latest = self._latest, None
            case "system":
                pass

    # --- what the model said ------------------------------------------------------------------------------------------

    def _assistant(self, content: Sequence[Text | Reasoning | Call]) -> None:
        blocks: list[Block] = []
        local = False
        for part in content:
            if self._results and not local and not isinstance(part, Call):
                self._say("assistant", blocks)
                self._end_results()
                blocks = []
            match part:
                case Text():
                    blocks += _text(part)
                case Reasoning():
                    blocks += _thinking(part)
                case Call():
                    local = local or not part.executed
                    blocks += self._call(part)
        self._say("assistant", blocks)

    def _call(self, call: Call) -> list[Block]:
        native = metadata_of(call.metadata, PROTOCOL)
        if call.executed and not call.is_error and (pair := _server_call(call, native)):
            return pair
        block: Block = {"type": "tool_use", "id": self._id(call.id), "name": call.name, "input": call.input}
        if not call.executed:
            return [{**native, **block}]
        text = call.result if isinstance(call.result, str) and call.result.strip() else json_text(call.result)
        self._results.append(self._tool_result(call.id, [{"type": "text", "text": text}], call.is_error))
        return [block]

    def _id(self, id: str) -> str:
        """The id as the protocol takes it; two of ours never become one."""
        found = self._ids.get(id)
        if found is None:
            base = id if _CALL_ID.fullmatch(id) else _NOT_IN_CALL_IDS.sub("_", id)
            found, number = base, 1
            while found in self._used:
                number += 1
                found = f"{base}_{number}"
            self._ids[id] = found
            self._used.add(found)
        return found

    # --- results ------------------------------------------------------------------------------------------------------

    def _result(self, message: ToolMessage) -> None:
        blocks = list(_blocks(message.content))
        if message.is_error:
            media = [block for block in blocks if block["type"] != "text"]
            blocks = [block for block in blocks if block["type"] == "text"]
            if media:
                label = f"Media from the result of {message.name} ({message.call_id}):"
                self._behind += [{"type": "text", "text": label}, *media]
        self._results.append(self._tool_result(message.call_id, blocks, message.is_error))

    def _tool_result(self, call_id: str, content: list[Block], is_error: bool) -> Block:
        content = content or [{"type": "text", "text": "(no output)"}]
        block: Block = {"type": "tool_result", "tool_use_id": self._id(call_id), "content": content}
        return {**block, "is_error": True} if is_error else block


def _blocks(content: Sequence[Text | Media]) -> Iterator[Block]:
    for part in content:
        match part:
            case Text(text=text):
                if text.strip():
                    yield {"type": "text", "text": text}
            case Media(data=data, mime=mime, name=name):
                source = {"type": "base64", "media_type": mime, "data": b64encode(data).decode("ascii")}
                if mime == "application/pdf":
                    yield {"type": "document", "source": source, **({"title": name[:_MAX_TITLE]} if name else {})}
                else:
                    yield {"type": "image", "source": source}


def _text(part: Text) -> Iterator[Block]:
    if part.text.strip():
        block: Block = {"type": "text", "text": part.text}
        if citations := sequence(metadata_of(part.metadata, PROTOCOL).get("citations")):
            block["citations"] = citations
        yield block


def _thinking(part: Reasoning) -> Iterator[Block]:
    native = metadata_of(part.metadata, PROTOCOL)
    if data := string(native.get("redacted")):
        yield {"type": "redacted_thinking", "data": data}
    elif signature := string(native.get("signature")):
        yield {"type": "thinking", "thinking": part.text, "signature": signature}


def _server_call(call: Call, native: Mapping[str, Any]) -> list[Block]:
    """A server tool's call and its result as they came, or nothing when they cannot go back that way."""
    kept = metadata_of(call.result_metadata, PROTOCOL)
    if string(native.get("type")) not in ("server_tool_use", "mcp_tool_use") or not string(kept.get("type")):
        return []
    if native["type"] == "server_tool_use" and _SERVER_CALL_ID.fullmatch(call.id) is None:
        return []
    result: object = call.result
    if not isinstance(result, dict | list) or not kept["type"].endswith("_tool_result"):
        return []
    return [
        {**native, "id": call.id, "name": call.name, "input": call.input},
        {**kept, "tool_use_id": call.id, "content": call.result},
    ]
