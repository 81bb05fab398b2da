"""The OpenAI Chat Completions protocol (`openai-chat`), as OpenAI and the many compatible servers speak it.

Rules:
- The same request gives the same bytes: the order of keys is fixed here, and that of inputs and schemas is theirs.
- Messages are encoded one by one, so that the messages of a longer request begin with those of the shorter one (ruling
  B10). Tool results carry text only in this protocol: their media follow in one user message after the results of a turn.
- `tool_choice` none keeps the tool definitions, and with them the cached prefix.
- Reasoning goes back as `reasoning_content` only where its metadata says that the provider gave that field; reasoning that
  came any other way has no place in this protocol.
- A call the provider executed itself is shown as an ordinary call with its result, since the protocol has no other.
- `options` understood: reasoningEffort, promptCacheKey, store, serviceTier, textVerbosity, parallelToolCalls (also in snake
  case), and maxTokensField, the name under which the provider takes the output limit (default `max_tokens`; models that
  reason want `max_completion_tokens`). Others are not sent: fields of a particular server belong into `body`.
- `body` is merged over the result, deeply and last; a null there removes a field.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

import msgspec

from .classify import classify_response
from .events import ProviderFailed
from .openai_chat_decoder import REASONING_FIELD, REASONING_METADATA, OpenAIChatDecoder
from .request import (
    AssistantMessage,
    Call,
    HttpRequest,
    LLMRequest,
    Media,
    Reasoning,
    RequestMessage,
    Text,
    ToolMessage,
    UserMessage,
)
from .unicode import well_formed_value

_OPTIONS: Final = (
    ("reasoningEffort", "reasoning_effort", "reasoning_effort"),
    ("textVerbosity", "text_verbosity", "verbosity"),
    ("serviceTier", "service_tier", "service_tier"),
    ("store", "store", "store"),
    ("parallelToolCalls", "parallel_tool_calls", "parallel_tool_calls"),
)
_MAX_CACHE_KEY: Final = 64
_SEPARATOR: Final = "\n\n"


class OpenAIChatAdapter:
    """Implements `Adapter`. Stateless."""

    @property
    def protocol(self) -> str:
        return "openai-chat"

    def encode(self, request: LLMRequest) -> HttpRequest:
        """The request; its path goes behind a base URL like `https://api.openai.com/v1`."""
        payload = _payload(request)
        try:
            body = msgspec.json.encode(payload)
        except (TypeError, ValueError, RecursionError):
            body = msgspec.json.encode(well_formed_value(payload))
        headers = {"content-type": "application/json", "accept": "text/event-stream"}
        return HttpRequest(path="/chat/completions", headers=headers, body=body)

    def decoder(self) -> OpenAIChatDecoder:
        return OpenAIChatDecoder()

    def authorization(self, api_key: str) -> Mapping[str, str]:
        return {"authorization": f"Bearer {api_key}"}

    def classify(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderFailed:
        return classify_response(status, headers, body)


def _payload(request: LLMRequest) -> dict[str, Any]:
    payload: dict[str, Any] = {"model": request.model, "messages": _messages(request)}
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
        value = request.options.get(camel, request.options.get(snake))
        if value is not None:
            payload[field] = value
    cache_key = request.options.get("promptCacheKey", request.options.get("prompt_cache_key", request.cache_key))
    if isinstance(cache_key, str) and cache_key:
        payload["prompt_cache_key"] = _cache_key(cache_key)
    return _merged(payload, request.body)


def _cache_key(key: str) -> str:
    """At most 64 characters are taken; a longer key is replaced by its hash."""
    if len(key) <= _MAX_CACHE_KEY:
        return key
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()


def _merged(under: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(under)
    for name, value in over.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, dict):
            mapping = cast("dict[str, Any]", value)
            standing = merged.get(name)
            merged[name] = _merged(cast("dict[str, Any]", standing) if isinstance(standing, dict) else {}, mapping)
        else:
            merged[name] = value
    return merged


# --- messages ---------------------------------------------------------------------------------------------------------


def _messages(request: LLMRequest) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if system := _SEPARATOR.join(filter(None, request.system)):
        messages.append({"role": "system", "content": system})
    media: list[dict[str, Any]] = []
    for message in request.messages:
        if media and not isinstance(message, ToolMessage):
            messages.append({"role": "user", "content": media})
            media = []
        messages += _message(message, media)
    if media:
        messages.append({"role": "user", "content": media})
    return messages


def _message(message: RequestMessage, media: list[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """The protocol's messages for one of ours; media of tool results are left in `media`."""
    match message:
        case UserMessage(content=(Text(text=text),)):
            return ({"role": "user", "content": text},)
        case UserMessage(content=content):
            return ({"role": "user", "content": [_part(part) for part in content]},)
        case AssistantMessage(content=content):
            return _assistant(content)
        case ToolMessage(call_id=call_id, name=name, content=content, is_error=is_error):
            texts = [part.text for part in content if isinstance(part, Text) and part.text]
            images = [_part(part) for part in content if isinstance(part, Media)]
            if images:
                media.append({"type": "text", "text": f"Media from the result of {name} ({call_id}):"})
                media += images
            text = _SEPARATOR.join(texts) or ("(media follow)" if images else "(no output)")
            return ({"role": "tool", "tool_call_id": call_id, "content": f"Error: {text}" if is_error else text},)


def _part(part: Text | Media) -> dict[str, Any]:
    match part:
        case Text(text=text):
            return {"type": "text", "text": text}
        case Media(data=data, mime=mime):
            url = f"data:{mime};base64,{b64encode(data).decode('ascii')}"
            return {"type": "image_url", "image_url": {"url": url}}


def _assistant(content: tuple[Text | Reasoning | Call, ...]) -> list[dict[str, Any]]:
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
                function = {"name": name, "arguments": _json(input)}
                calls.append({"id": id, "type": "function", "function": function})
                if part.executed:
                    text = part.result if isinstance(part.result, str) else _json(part.result)
                    results.append({"role": "tool", "tool_call_id": id, "content": text})
    if not (texts or calls or thoughts):
        return []
    # Without text, null is the documented content beside calls; a message of reasoning alone needs a string.
    empty = None if calls else ""
    message: dict[str, Any] = {"role": "assistant", "content": _SEPARATOR.join(texts) if texts else empty}
    if thoughts:
        message[REASONING_FIELD] = _SEPARATOR.join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return [message, *results]


def _gave_reasoning_field(metadata: dict[str, Any] | None) -> bool:
    return metadata is not None and all(metadata.get(name) == value for name, value in REASONING_METADATA.items())


def _json(value: Any) -> str:
    return msgspec.json.encode(well_formed_value(value)).decode()
