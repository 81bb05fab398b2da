"""What a strict Chat Completions provider refuses in a request.

Rules:
- `violations` takes the decoded body and returns one sentence for each broken rule, naming its place; none is valid.
- It knows the protocol only, not what Steerway means to send: a rule belongs here when some real server enforces it.
- Broken shapes never raise: what cannot be looked into is itself a violation.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_THOUGHTFUL = re.compile(r"(?:.*/)?(?:deepseek|kimi)\b.*", re.IGNORECASE)
_ROLES = ("system", "developer", "user", "assistant", "tool")
_PART_TYPES = ("text", "image_url", "input_audio", "file", "refusal")
_TOOL_CHOICES = ("none", "auto", "required")


def violations(body: Mapping[str, Any]) -> list[str]:
    """Name every rule that the request body breaks, in order of appearance."""
    return [
        *_surrogates(body, "body"),
        *_frame(body),
        *_messages(body.get("messages")),
        *_thoughts(body.get("model"), body.get("messages")),
        *_tools(body),
    ]


def _thoughts(model: object, messages: object) -> Iterator[str]:
    """DeepSeek's and Kimi's thinking models want their thoughts back wherever tools were called."""
    said = [one for one in messages if _is_object(one) and one.get("role") == "assistant"] if _is_list(messages) else []
    if isinstance(model, str) and _THOUGHTFUL.fullmatch(model) and any("tool_calls" in message for message in said):
        for index, message in enumerate(said):
            if not isinstance(message.get("reasoning_content"), str):
                yield f"assistant message {index}: the reasoning_content must be passed back"


def _frame(body: Mapping[str, Any]) -> Iterator[str]:
    model = body.get("model")
    if not isinstance(model, str) or not model:
        yield "model: must be a non-empty string"
    if body.get("stream") is not True:
        yield "stream: must be true, this provider only streams"


def _messages(messages: object) -> Iterator[str]:
    if not _is_list(messages) or not messages:
        yield "messages: must be a list with at least one message"
        return
    seen: set[str] = set()  # ids of all calls so far
    awaited: dict[str, str] = {}  # calls of the latest assistant message without a result: id -> place
    for number, message in enumerate(messages):
        at = f"messages[{number}]"
        if not _is_object(message):
            yield f"{at}: must be an object"
            continue
        role = message.get("role")
        if role == "tool":
            call_id = message.get("tool_call_id")
            if not isinstance(call_id, str) or awaited.pop(call_id, None) is None:
                again = isinstance(call_id, str) and call_id in seen
                yield f"{at}: {'a second or late result for' if again else 'a result without a call for'} {call_id!r}"
        else:
            yield from _unanswered(awaited)
            awaited = {}
        yield from _content(message, role, at)
        if role == "assistant":
            for place, call_id, complaint in _calls(message, at):
                if complaint:
                    yield complaint
                if call_id is not None and call_id in seen:
                    yield f"{place}.id: {call_id!r} is used twice in this request"
                if call_id is not None:
                    seen.add(call_id)
                    awaited[call_id] = place
    yield from _unanswered(awaited)


def _unanswered(awaited: Mapping[str, str]) -> Iterator[str]:
    for call_id, place in awaited.items():
        yield f"{place}: call {call_id!r} has no result directly behind its message"


def _content(message: Mapping[str, Any], role: object, at: str) -> Iterator[str]:
    if role not in _ROLES:
        yield f"{at}.role: {role!r} is unknown"
        return
    content = message.get("content")
    if role != "assistant" and "tool_calls" in message:
        yield f"{at}.tool_calls: only an assistant calls tools"
    if role == "assistant" and not content and "tool_calls" not in message:
        yield f"{at}: an assistant message with neither content nor tool calls"
    elif content is None:
        if role != "assistant":
            yield f"{at}.content: is missing"
    elif _is_list(content):
        if not content:
            yield f"{at}.content: an empty list of parts"
        for index, part in enumerate(content):
            if not _is_object(part) or part.get("type") not in _PART_TYPES:
                yield f"{at}.content[{index}]: not a known part"
            elif part["type"] == "text" and not isinstance(part.get("text"), str):
                yield f"{at}.content[{index}].text: must be a string"
            elif part["type"] == "file":
                yield from _file(part.get("file"), role, f"{at}.content[{index}].file")
    elif not isinstance(content, str):
        yield f"{at}.content: must be a string or a list of parts"


def _file(file: object, role: object, at: str) -> Iterator[str]:
    if role != "user":
        yield f"{at}: only a user's message takes files"
    if not _is_object(file) or set(file) != {"filename", "file_data"} or not file["filename"]:
        yield f"{at}: must have a name and data"
    elif not str(file["file_data"]).startswith("data:application/pdf;base64,"):
        yield f"{at}.file_data: must be the data URL of a PDF"


def _calls(message: Mapping[str, Any], at: str) -> Iterator[tuple[str, str | None, str | None]]:
    """Each call's place and id, with one complaint at a time about its shape."""
    calls = message.get("tool_calls", ())
    if "tool_calls" in message and (not _is_list(calls) or not calls):
        yield at, None, f"{at}.tool_calls: must be a list with at least one call"
        return
    for index, call in enumerate(calls):
        place = f"{at}.tool_calls[{index}]"
        if not _is_object(call) or call.get("type") != "function" or not _is_object(call.get("function")):
            yield place, None, f"{place}: must be a call of type function"
            continue
        call_id = call.get("id")
        if not isinstance(call_id, str) or not call_id:
            yield place, None, f"{place}.id: must be a non-empty string"
        else:
            yield place, call_id, None
        if not _is_name(call["function"].get("name")):
            yield place, None, f"{place}.function.name: {call['function'].get('name')!r} is no valid name"
        if not _is_object_text(call["function"].get("arguments")):
            yield place, None, f"{place}.function.arguments: must be a string that holds a JSON object"


def _tools(body: Mapping[str, Any]) -> Iterator[str]:
    tools = body.get("tools")
    choice = body.get("tool_choice")
    if tools is None:
        if choice is not None:
            yield "tool_choice: is only allowed with tools"
        return
    if not _is_list(tools) or not tools:
        yield "tools: must be a list with at least one tool"
        return
    names: set[str] = set()
    for index, tool in enumerate(tools):
        at = f"tools[{index}]"
        if not _is_object(tool) or tool.get("type") != "function" or not _is_object(tool.get("function")):
            yield f"{at}: must be a tool of type function"
            continue
        name = tool["function"].get("name")
        if not _is_name(name):
            yield f"{at}.function.name: {name!r} is no valid name"
        elif name in names:
            yield f"{at}.function.name: {name!r} is used twice"
        else:
            names.add(name)
        parameters = tool["function"].get("parameters")
        if parameters is not None and not (_is_object(parameters) and parameters.get("type") == "object"):
            yield f"{at}.function.parameters: must be a schema of type object"
    if _is_object(choice):
        function = choice.get("function")
        if not _is_object(function) or function.get("name") not in names:
            yield "tool_choice: names no offered tool"
    elif choice is not None and choice not in _TOOL_CHOICES:
        yield f"tool_choice: {choice!r} is unknown"


def _surrogates(value: object, at: str) -> Iterator[str]:
    """Find strings (and keys) that are no well-formed Unicode: JSON can spell them, UTF-8 cannot carry them."""
    if isinstance(value, str):
        if any("\ud800" <= char <= "\udfff" for char in value):
            yield f"{at}: holds a lone surrogate"
    elif _is_list(value):
        for index, item in enumerate(value):
            yield from _surrogates(item, f"{at}[{index}]")
    elif _is_object(value):
        for key, item in value.items():
            yield from _surrogates(key, f"{at} key")
            yield from _surrogates(item, f"{at}.{key}")


def _is_object(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _is_name(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _is_object_text(value: object) -> bool:
    if not isinstance(value, str):
        return False
    try:
        return isinstance(json.loads(value), dict)
    except (ValueError, RecursionError):
        return False
