"""The OpenAI Responses protocol (`openai-responses`).

Rules:
- The same request gives the same bytes; the order of keys is fixed here, and that of inputs and schemas is theirs.
- Input items are written one by one and once, so that those of a longer request begin with those of the shorter one
  (ruling B10).
- Stateless: `store` is false unless an option says otherwise, and no item is ever referred to by its id alone. Reasoning
  goes back whole, with its encrypted content, or with the text that the provider gave as its content; other reasoning has
  no place here, nor has any that nothing follows, which the protocol refuses. Encrypted content is asked for where the
  options speak of reasoning, and of the GPT-5 family always.
- A PDF is an `input_file`, whole and by its name; any other medium is an image. Results take both as users' messages do.
- A hosted tool's item goes back verbatim where its metadata says that this protocol gave it. Any other executed call is
  shown as a function call with its output.
- System parts are the instructions. A system update is wrapped text in the user's role, since the protocol has no role for
  one that would leave the instructions in force as they are.
- `tool_choice` none keeps the tool definitions. The protocol has no `top_k`, penalties, seed or stop sequences.
- `options` understood: store, reasoningEffort, reasoningSummary, include, textVerbosity, serviceTier, promptCacheKey,
  parallelToolCalls (also in snake case). `body` is merged over the result, deeply and last.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from .classify import classify_response
from .conversation import Growth, Written
from .events import ProviderFailed
from .openai_responses_decoder import HOSTED, PROTOCOL, OpenAIResponsesDecoder
from .payload import cache_key, data_url, encoded, json_text, merged, metadata_of, option, pdf_name
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
from .shapes import mapping, string
from .system_update import wrapped

ENCRYPTED_REASONING: Final = "reasoning.encrypted_content"

_REASONS: Final = re.compile(r"(?:.*[/.])?gpt-5(?!.*chat).*")
_PHASES: Final = ("commentary", "final_answer")
_SEPARATOR: Final = "\n\n"

Item = dict[str, Any]


class OpenAIResponsesAdapter:
    """Implements `Adapter`. Stateless."""

    @property
    def protocol(self) -> str:
        return PROTOCOL

    def encode(self, request: LLMRequest) -> HttpRequest:
        """The request; its path goes behind a base URL like `https://api.openai.com/v1`."""
        return self.conversation().write(request)

    def conversation(self) -> OpenAIResponsesConversation:
        return OpenAIResponsesConversation()

    def decoder(self) -> OpenAIResponsesDecoder:
        return OpenAIResponsesDecoder()

    def authorization(self, api_key: str) -> Mapping[str, str]:
        return {"authorization": f"Bearer {api_key}"}

    def classify(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderFailed:
        return classify_response(status, headers, body)


class OpenAIResponsesConversation:
    """Implements `Conversation`."""

    def __init__(self) -> None:
        self._growth = Growth(_Input)

    def extend(self, messages: Sequence[RequestMessage]) -> None:
        self._growth.extend(messages)

    def write(self, request: LLMRequest) -> HttpRequest:
        items = self._growth.extend(request.messages).array()
        headers = {"content-type": "application/json", "accept": "text/event-stream"}
        return HttpRequest(path="/responses", headers=headers, body=encoded(_payload(request, items)))


def _payload(request: LLMRequest, items: msgspec.Raw) -> dict[str, Any]:
    payload: dict[str, Any] = {"model": request.model}
    if instructions := _SEPARATOR.join(filter(None, request.system)):
        payload["instructions"] = instructions
    payload["input"] = items
    if request.tools:
        payload["tools"] = [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.input_schema,
                "strict": False,
            }
            for tool in request.tools
        ]
        if request.tool_choice == "none":
            payload["tool_choice"] = "none"
    payload["stream"] = True
    payload.update({name: value for name, value in _settings(request).items() if value not in (None, {}, [])})
    return merged(payload, request.body)


def _settings(request: LLMRequest) -> dict[str, Any]:
    options, generation = request.options, request.generation
    store = options.get("store")
    effort = option(options, "reasoningEffort", "reasoning_effort")
    summary = option(options, "reasoningSummary", "reasoning_summary")
    reasoning = {"effort": effort, "summary": summary}
    return {
        "store": store if isinstance(store, bool) else False,
        "include": _included(request, reasons=bool(effort or summary)),
        "reasoning": {name: value for name, value in reasoning.items() if value is not None},
        "text": {"verbosity": verbosity} if (verbosity := option(options, "textVerbosity", "text_verbosity")) else None,
        "max_output_tokens": generation.max_tokens,
        "temperature": generation.temperature,
        "top_p": generation.top_p,
        "parallel_tool_calls": option(options, "parallelToolCalls", "parallel_tool_calls"),
        "service_tier": option(options, "serviceTier", "service_tier"),
        "prompt_cache_key": cache_key(request),
    }


def _included(request: LLMRequest, *, reasons: bool) -> list[Any]:
    asked = request.options.get("include")
    included = list(cast("Iterable[Any]", asked)) if isinstance(asked, list | tuple) else []
    if (reasons or _REASONS.fullmatch(request.model)) and ENCRYPTED_REASONING not in included:
        included.append(ENCRYPTED_REASONING)
    return included


# --- items ------------------------------------------------------------------------------------------------------------


class _Input:
    """The protocol's input items, each of them written at once."""

    def __init__(self) -> None:
        self._written = Written()

    def add(self, message: RequestMessage) -> None:
        for item in _items(message):
            self._written.add(item)

    def array(self) -> msgspec.Raw:
        """All items of a request."""
        return self._written.array()


def _items(message: RequestMessage) -> Iterator[Item]:
    match message:
        case UserMessage(content=content):
            yield {"role": "user", "content": _contents(content)}
        case SystemUpdate(text=text):
            yield {"role": "user", "content": [{"type": "input_text", "text": wrapped(text)}]}
        case AssistantMessage(content=content):
            for part in _without_trailing_reasoning(content):
                yield from _said(part)
        case ToolMessage(call_id=call_id, content=content, is_error=is_error):
            yield {"type": "function_call_output", "call_id": call_id, "output": _output(content, is_error)}


def _without_trailing_reasoning(content: Sequence[Text | Reasoning | Call]) -> Sequence[Text | Reasoning | Call]:
    end = len(content)
    while end and isinstance(content[end - 1], Reasoning):
        end -= 1
    return content[:end]


def _contents(content: Sequence[Text | Media]) -> list[Item]:
    contents: list[Item] = []
    for part in content:
        match part:
            case Text(text=text):
                contents.append({"type": "input_text", "text": text})
            case Media(mime="application/pdf"):
                contents.append({"type": "input_file", "filename": pdf_name(part), "file_data": data_url(part)})
            case Media():
                contents.append({"type": "input_image", "detail": "auto", "image_url": data_url(part)})
    return contents


def _output(content: Sequence[Text | Media], is_error: bool) -> str | list[Item]:
    """Text alone is a string, with media it is a list; that it is an error is said in words."""
    if any(isinstance(part, Media) for part in content):
        return ([{"type": "input_text", "text": "Error:"}] if is_error else []) + _contents(content)
    text = _SEPARATOR.join(part.text for part in content if isinstance(part, Text) and part.text) or "(no output)"
    return f"Error: {text}" if is_error else text


def _said(part: Text | Reasoning | Call) -> Iterator[Item]:
    match part:
        case Text(text=text, metadata=metadata):
            item: Item = {"role": "assistant", "content": text}
            phase = string(metadata_of(metadata, PROTOCOL).get("phase"))
            if phase in _PHASES:
                item["phase"] = phase
            yield item
        case Reasoning(text=text, metadata=metadata):
            yield from _reasoning(text, metadata_of(metadata, PROTOCOL))
        case Call(executed=False, id=id):
            yield _call(part)
        case Call(id=id, result=result):
            if not part.is_error and _is_hosted_item(part):
                yield result
                return
            text = result if isinstance(result, str) else json_text(result)
            yield _call(part)
            yield {"type": "function_call_output", "call_id": id, "output": f"Error: {text}" if part.is_error else text}


def _is_hosted_item(call: Call) -> bool:
    """Whether the result is a hosted tool's whole item, under the id that no other call of the request has."""
    item = mapping(call.result)
    type = metadata_of(call.metadata, PROTOCOL).get("type")
    return type in HOSTED and item.get("type") == type and item.get("id") == call.id and bool(string(item.get("status")))


def _call(call: Call) -> Item:
    return {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": json_text(call.input)}


def _reasoning(text: str, native: Mapping[str, Any]) -> Iterator[Item]:
    item: Item = {"type": "reasoning", "id": string(native.get("id")), "summary": []}
    if not item["id"]:
        return
    if encrypted := string(native.get("encrypted_content")):
        if text:
            item["summary"] = [{"type": "summary_text", "text": text}]
        yield {**item, "encrypted_content": encrypted}
    elif native.get("field") == "content" and text:
        yield {**item, "content": [{"type": "reasoning_text", "text": text}]}
