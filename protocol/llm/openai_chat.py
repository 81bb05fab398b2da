"""The OpenAI Chat Completions protocol (`openai-chat`), as OpenAI and the many compatible servers speak it.

Rules:
- The same request gives the same bytes: the order of keys is fixed here, and that of inputs and schemas is theirs.
- Messages are written one by one and once, so that the messages of a longer request begin with those of the shorter one
  (ruling B10). Tool results carry text only in this protocol: their media follow in one user message after the results of
  a turn.
- A PDF is a `file` part, which the protocol knows in the user's role; any other medium is an image.
- A system update is wrapped text in the user's role, behind the tool results and their media.
- `tool_choice` none keeps the tool definitions, and with them the cached prefix.
- Reasoning goes back as `reasoning_content` only where its metadata says that the provider gave that field; reasoning that
  came any other way has no place in this protocol. DeepSeek's and Kimi's models refuse a whole history for an answer that has
  no such field, once tools are in it: there an answer without thoughts, like another model's, has an empty one.
- A call the provider executed itself is shown as an ordinary call with its result, since the protocol has no other.
- `options` understood: reasoningEffort, promptCacheKey, store, serviceTier, textVerbosity, parallelToolCalls (also in snake
  case), and maxTokensField, the name under which the provider takes the output limit (default `max_tokens`; models that
  reason want `max_completion_tokens`). Others are not sent: fields of a particular server belong into `body`.
- `body` is merged over the result, deeply and last; a null there removes a field.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from .classify import classify_response
from .conversation import Growth, Written
from .events import ProviderFailed
from .openai_chat_decoder import REASONING_FIELD, REASONING_METADATA, OpenAIChatDecoder
from .payload import cache_key, data_url, encoded, json_text, merged, option, pdf_name
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
from .system_update import wrapped

_OPTIONS: Final = (
    ("reasoningEffort", "reasoning_effort", "reasoning_effort"),
    ("textVerbosity", "text_verbosity", "verbosity"),
    ("serviceTier", "service_tier", "service_tier"),
    ("store", "store", "store"),
    ("parallelToolCalls", "parallel_tool_calls", "parallel_tool_calls"),
)
_THOUGHTFUL: Final = re.compile(r"(?:.*/)?(?:deepseek|kimi)\b.*", re.IGNORECASE)
"""Models that want the field of their thoughts on every answer."""
_SEPARATOR: Final = "\n\n"


class OpenAIChatAdapter:
    """Implements `Adapter`. Stateless."""

    @property
    def protocol(self) -> str:
        return "openai-chat"

    def encode(self, request: LLMRequest) -> HttpRequest:
        """The request; its path goes behind a base URL like `https://api.openai.com/v1`."""
        return self.conversation().write(request)

    def conversation(self) -> OpenAIChatConversation:
        return OpenAIChatConversation()

    def decoder(self) -> OpenAIChatDecoder:
        return OpenAIChatDecoder()

    def authorization(self, api_key: str) -> Mapping[str, str]:
        return {"authorization": f"Bearer {api_key}"}

    def classify(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderFailed:
        return classify_response(status, headers, body)


class OpenAIChatConversation:
    """Implements `Conversation`. A model that wants every answer's thoughts, after one that does not, begins anew."""

    def __init__(self) -> None:
        self._thoughtful = False
        self._growth = self._begin()

    def extend(self, messages: Sequence[RequestMessage]) -> None:
        self._growth.extend(messages)

    def write(self, request: LLMRequest) -> HttpRequest:
        thoughtful = _THOUGHTFUL.fullmatch(request.model) is not None
        if thoughtful is not self._thoughtful:
            self._thoughtful = thoughtful
            self._growth = self._begin()
        system = _SEPARATOR.join(filter(None, request.system))
        messages = self._growth.extend(request.messages).array(system)
        headers = {"content-type": "application/json", "accept": "text/event-stream"}
        return HttpRequest(path="/chat/completions", headers=headers, body=encoded(_payload(request, messages)))

    def _begin(self) -> Growth[_Messages]:
        thoughtful = self._thoughtful
        return Growth(lambda: _Messages(thoughtful=thoughtful))


def _payload(request: LLMRequest, messages: msgspec.Raw) -> dict[str, Any]:
    payload: dict[str, Any] = {"model": request.model, "messages": messages}
    if request.tools:
        payload["tools"] = [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.input_schema},
            }
            for tool in request.tools
        ]
        if request.tool_choice == "none":
            payload["tool_choice"] = "none"
    payload["stream"] = True
    payload["stream_options"] = {"include_usage": True}
    generation = request.generation
    limit_field = request.options.get("maxTokensField", request.options.get("max_tokens_field", "max_tokens"))
    controls = {
        str(limit_field): generation.max_tokens,
        "temperature": generation.temperature,
        "top_p": generation.top_p,
        "top_k": generation.top_k,
        "frequency_penalty": generation.frequency_penalty,
        "presence_penalty": generation.presence_penalty,
        "seed": generation.seed,
        "stop": list(generation.stop) if generation.stop else None,
    }
    payload.update({name: value for name, value in controls.items() if value is not None})
    for camel, snake, field in _OPTIONS:
        value = option(request.options, camel, snake)
        if value is not None:
            payload[field] = value
    if key := cache_key(request):
        payload["prompt_cache_key"] = key
    return merged(payload, request.body)


# --- messages ---------------------------------------------------------------------------------------------------------


class _Messages:
    """The protocol's messages. All that is kept back are the media of the results that came last.

    `thoughtful`: whether every answer has the field of its thoughts.
    """

    def __init__(self, *, thoughtful: bool) -> None:
        self._thoughtful = thoughtful
        self._written = Written()
        self._media: list[dict[str, Any]] = []

    def add(self, message: RequestMessage) -> None:
        if not isinstance(message, ToolMessage):
            self._show_media()
            self._media = []
        for one in _message(message, self._media, thoughtful=self._thoughtful):
            self._written.add(one)

    def array(self, system: str) -> msgspec.Raw:
        """All messages of a request with these instructions."""
        with self._written.for_now():
            self._show_media()
            return self._written.array(first=[{"role": "system", "content": system}] if system else ())

    def _show_media(self) -> None:
        if self._media:
            self._written.add({"role": "user", "content": self._media})


def _message(message: RequestMessage, media: list[dict[str, Any]], *, thoughtful: bool) -> Iterable[dict[str, Any]]:
    """The protocol's messages for one of ours; media of tool results are left in `media`."""
    match message:
        case UserMessage(content=(Text(text=text),)):
            return ({"role": "user", "content": text},)
        case UserMessage(content=content):
            return ({"role": "user", "content": [_part(part) for part in content]},)
        case SystemUpdate(text=text):
            return ({"role": "user", "content": wrapped(text)},)
        case AssistantMessage(content=content):
            return _assistant(content, thoughtful=thoughtful)
        case ToolMessage(call_id=call_id, name=name, content=content, is_error=is_error):
            texts = [part.text for part in content if isinstance(part, Text) and part.text]
            shown = [_part(part) for part in content if isinstance(part, Media)]
            if shown:
                media.append({"type": "text", "text": f"Media from the result of {name} ({call_id}):"})
                media += shown
            text = _SEPARATOR.join(texts) or ("(media follow)" if shown else "(no output)")
            return ({"role": "tool", "tool_call_id": call_id, "content": f"Error: {text}" if is_error else text},)


def _part(part: Text | Media) -> dict[str, Any]:
    match part:
        case Text(text=text):
            return {"type": "text", "text": text}
        case Media(mime="application/pdf"):
            return {"type": "file", "file": {"filename": pdf_name(part), "file_data": data_url(part)}}
        case Media():
            return {"type": "image_url", "image_url": {"url": data_url(part)}}


def _assistant(content: tuple[Text | Reasoning | Call, ...], *, thoughtful: bool) -> list[dict[str, Any]]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for part in content:
        match part:
            case Text(text=text):
                texts.append(text)
            case Reasoning(text=text, metadata=metadata):
                if text and _gave_reasoning_field(metadata):
                    thoughts.append(text)
            case Call(id=id, name=name, input=input):
                function = {"name": name, "arguments": json_text(input)}
                calls.append({"id": id, "type": "function", "function": function})
                if part.executed:
                    text = part.result if isinstance(part.result, str) else json_text(part.result)
                    results.append({"role": "tool", "tool_call_id": id, "content": text})
    if not (texts or calls):
        return []  # the protocol knows no message of reasoning alone
    message: dict[str, Any] = {"role": "assistant", "content": _SEPARATOR.join(texts) if texts else None}
    if thoughts or thoughtful:
        message[REASONING_FIELD] = _SEPARATOR.join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return [message, *results]


def _gave_reasoning_field(metadata: dict[str, Any] | None) -> bool:
    return metadata is not None and all(metadata.get(name) == value for name, value in REASONING_METADATA.items())
