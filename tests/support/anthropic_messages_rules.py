"""What a strict Anthropic Messages provider refuses in a request.

Rules:
- `violations` takes the decoded body and returns one sentence for each broken rule, naming its place; none is valid.
- It knows the protocol only, not what Steerway means to send: a rule belongs here when the vendor enforces or documents it.
- Broken shapes never raise: what cannot be looked into is itself a violation.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from support.request_rules import frame, is_list, is_name, is_object, is_text, surrogates, unknown_fields

_FIELDS = frozenset(
    (
        *("model", "max_tokens", "messages", "system", "tools", "tool_choice", "stream", "thinking", "output_config"),
        *("temperature", "top_p", "top_k", "stop_sequences", "metadata", "service_tier", "cache_control", "container"),
    )
)
_CALL_ID = re.compile(r"[A-Za-z0-9_-]+")
_SERVER_CALL_ID = re.compile(r"srvtoolu_[A-Za-z0-9_]+")
_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_USER_BLOCKS = ("text", "image", "document", "tool_result", "search_result")
_THINKING = ("thinking", "redacted_thinking")
_SERVER_CALLS = ("server_tool_use", "mcp_tool_use")
_SYSTEM_ROLE_MODELS = re.compile(r"claude-opus-4-8.*")
_MAX_MARKERS = 4


def violations(body: Mapping[str, Any]) -> list[str]:
    """Name every rule that the request body breaks."""
    return [
        *surrogates(body, "body"),
        *unknown_fields(body, _FIELDS, "body"),
        *frame(body),
        *_system(body.get("system")),
        *_messages(body.get("messages"), body.get("model")),
        *_tools(body),
        *_generation(body),
        *_markers(body),
        *_thoughts(body),
    ]


def _generation(body: Mapping[str, Any]) -> Iterator[str]:
    max_tokens = body.get("max_tokens")
    if not isinstance(max_tokens, int) or max_tokens < 1:
        yield "max_tokens: must be a positive number"
        return
    effort = body.get("output_config", {}).get("effort", "low")
    if effort not in _EFFORTS:
        yield f"output_config.effort: {effort!r} is unknown"
    temperature = body.get("temperature", 1)
    if not 0 <= temperature <= 1:
        yield "temperature: must be between 0 and 1"
    thinking = body.get("thinking")
    if thinking is None or thinking == {"type": "disabled"}:
        return
    if not is_object(thinking) or thinking.get("type") not in ("enabled", "adaptive"):
        yield "thinking: must be enabled, adaptive or disabled"
        return
    if temperature != 1 or "top_k" in body:
        yield "thinking: cannot go with temperature or top_k"
    if thinking["type"] == "adaptive":
        yield from unknown_fields(thinking, frozenset(("type", "display")), "thinking")
        return
    yield from unknown_fields(thinking, frozenset(("type", "budget_tokens", "display")), "thinking")
    budget = thinking.get("budget_tokens")
    if not isinstance(budget, int) or not 1024 <= budget < max_tokens:
        yield "thinking.budget_tokens: must be at least 1024 and less than max_tokens"


def _thoughts(body: Mapping[str, Any]) -> Iterator[str]:
    """With a thinking budget, the calls whose results end the request must have been thought about."""
    thinking, messages = body.get("thinking"), body.get("messages")
    if not is_object(thinking) or thinking.get("type") != "enabled" or not is_list(messages):
        return
    thought = called = False
    for message in messages:
        content = message.get("content") if is_object(message) else None
        types = {block.get("type") for block in content if is_object(block)} if is_list(content) else {"text"}
        if is_object(message) and message.get("role") == "assistant":
            called = "tool_use" in types
            thought = thought or not types.isdisjoint(_THINKING)
        elif types != {"tool_result"}:
            thought = called = False
    if called and not thought:
        yield "messages: with thinking, a final assistant message must start with a thinking block"


def _system(system: object) -> Iterator[str]:
    if system is None or is_text(system):
        return
    if not is_list(system) or not system:
        yield "system: must be a text or a list of text blocks"
        return
    for index, block in enumerate(system):
        if not is_object(block) or block.get("type") != "text" or not is_text(block.get("text")):
            yield f"system[{index}]: must be a text block that is not blank"


def _tools(body: Mapping[str, Any]) -> Iterator[str]:
    tools, choice = body.get("tools"), body.get("tool_choice")
    if tools is None:
        if choice is not None:
            yield "tool_choice: is only allowed with tools"
        return
    if not is_list(tools) or not tools:
        yield "tools: must be a list with at least one tool"
        return
    names: set[str] = set()
    for index, tool in enumerate(tools):
        at = f"tools[{index}]"
        if not is_object(tool):
            yield f"{at}: must be an object"
            continue
        name = tool.get("name")
        if not is_name(name):
            yield f"{at}.name: {name!r} is no valid name"
        elif name in names:
            yield f"{at}.name: {name!r} is used twice"
        else:
            names.add(name)
        schema = tool.get("input_schema")
        if not is_object(schema) or schema.get("type") != "object":
            yield f"{at}.input_schema: must be a schema of type object"
    if choice is not None and (not is_object(choice) or choice.get("type") not in ("auto", "any", "none", "tool")):
        yield "tool_choice: is unknown"


def _markers(body: Mapping[str, Any]) -> Iterator[str]:
    count = 0
    for at, block in _blocks(body):
        marker = block.get("cache_control")
        if marker is None:
            continue
        count += 1
        if not is_object(marker) or marker.get("type") != "ephemeral" or marker.get("ttl", "5m") not in ("5m", "1h"):
            yield f"{at}.cache_control: must be ephemeral"
        if block.get("type") in _THINKING:
            yield f"{at}.cache_control: cannot stand on thinking"
    if count > _MAX_MARKERS:
        yield f"cache_control: {count} markers, at most {_MAX_MARKERS} are allowed"


def _blocks(body: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    lists = [(name, body.get(name)) for name in ("tools", "system")]
    messages = body.get("messages")
    for index, message in enumerate(messages if is_list(messages) else ()):
        if is_object(message):
            lists.append((f"messages[{index}].content", message.get("content")))
    for at, blocks in lists:
        for index, block in enumerate(blocks if is_list(blocks) else ()):
            if is_object(block):
                yield f"{at}[{index}]", block


# --- messages ---------------------------------------------------------------------------------------------------------


def _messages(messages: object, model: object) -> Iterator[str]:
    if not is_list(messages) or not messages:
        yield "messages: must be a list with at least one message"
        return
    awaited: dict[str, str] = {}  # calls of the latest assistant turn without a result: id -> place
    seen: set[str] = set()
    roles = [message.get("role") if is_object(message) else None for message in messages]
    if roles[0] != "user":
        yield "messages[0]: the first message must be the user's"
    for number, message in enumerate(messages):
        at = f"messages[{number}]"
        if not is_object(message):
            yield f"{at}: must be an object"
            continue
        yield from unknown_fields(message, frozenset(("role", "content")), at)
        content = message.get("content")
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        if not is_list(content) or not content:
            yield f"{at}.content: must be a text or a list of at least one block"
            continue
        match roles[number]:
            case "user":
                yield from _user(content, awaited, at)
                yield from _unanswered(awaited)
                awaited = {}
            case "assistant":
                yield from _unanswered(awaited)
                awaited = {}
                yield from _assistant(content, awaited, seen, at)
            case "system":
                yield from _unanswered(awaited)
                awaited = {}
                yield from _native_system(content, roles, number, model, messages)
            case role:
                yield f"{at}.role: {role!r} is unknown"
    yield from _unanswered(awaited)


def _unanswered(awaited: Mapping[str, str]) -> Iterator[str]:
    for call_id, place in awaited.items():
        yield f"{place}: call {call_id!r} has no result in the message directly behind it"


def _native_system(
    content: Sequence[Any], roles: Sequence[object], number: int, model: object, messages: Sequence[Any]
) -> Iterator[str]:
    at = f"messages[{number}]"
    if not isinstance(model, str) or not _SYSTEM_ROLE_MODELS.fullmatch(model):
        yield f"{at}.role: system is not supported by this model"
    if any(not is_object(block) or block.get("type") != "text" or not is_text(block.get("text")) for block in content):
        yield f"{at}.content: a system message takes text only"
    before = messages[number - 1].get("content") if number and is_object(messages[number - 1]) else None
    hosted = is_list(before) and is_object(before[-1]) and str(before[-1].get("type")).endswith("_tool_result")
    if roles[number - 1] != "user" and not hosted:
        yield f"{at}: a system message stands only behind the user's"
    if number + 1 < len(roles) and roles[number + 1] != "assistant":
        yield f"{at}: only the assistant can follow a system message"


def _user(content: Sequence[Any], awaited: dict[str, str], at: str) -> Iterator[str]:
    other = False
    for index, block in enumerate(content):
        place = f"{at}.content[{index}]"
        if not is_object(block) or block.get("type") not in _USER_BLOCKS:
            yield f"{place}: not a block that a user message takes"
        elif block["type"] == "tool_result":
            if other:
                yield f"{place}: tool results come first in their message"
            call_id = block.get("tool_use_id")
            if not isinstance(call_id, str) or awaited.pop(call_id, None) is None:
                yield f"{place}: a result for {call_id!r}, which the message before it does not call"
            yield from _result(block, place)
        else:
            other = True
            yield from _plain(block, place)


def _result(block: Mapping[str, Any], at: str) -> Iterator[str]:
    yield from unknown_fields(block, frozenset(("type", "tool_use_id", "content", "is_error", "cache_control")), at)
    content = block.get("content", "")
    if isinstance(content, str):
        return
    if not is_list(content):
        yield f"{at}.content: must be a text or a list of blocks"
        return
    for index, part in enumerate(content):
        place = f"{at}.content[{index}]"
        if not is_object(part) or part.get("type") not in ("text", "image", "document", "search_result"):
            yield f"{place}: not a block that a result takes"
        else:
            yield from _plain(part, place)
            if block.get("is_error") and part["type"] != "text":
                yield f"{place}: a result that is an error takes text only"


def _plain(block: Mapping[str, Any], at: str) -> Iterator[str]:
    match block.get("type"):
        case "text" if not is_text(block.get("text")):
            yield f"{at}.text: must not be blank"
        case "image":
            source = block.get("source")
            if not is_object(source) or source.get("type") != "base64" or source.get("media_type") not in _IMAGES:
                yield f"{at}.source: must be a base64 image of a known type"
            elif not source.get("data"):
                yield f"{at}.source.data: is empty"
        case "document":
            source = block.get("source")
            yield from unknown_fields(block, frozenset(("type", "source", "title", "cache_control")), at)
            if not is_object(source) or (source.get("type"), source.get("media_type")) != ("base64", "application/pdf"):
                yield f"{at}.source: must be a base64 PDF"
            elif not source.get("data"):
                yield f"{at}.source.data: is empty"
            title = block.get("title", "a")
            if not isinstance(title, str) or not 1 <= len(title) <= 500:
                yield f"{at}.title: must be a text of 1 to 500 characters"
        case _:
            pass


def _assistant(content: Sequence[Any], awaited: dict[str, str], seen: set[str], at: str) -> Iterator[str]:
    hosted: dict[str, str] = {}
    if is_object(content[-1]) and content[-1].get("type") in _THINKING:
        yield f"{at}: the last block of an assistant message cannot be thinking"
    for index, block in enumerate(content):
        place = f"{at}.content[{index}]"
        kind = block.get("type") if is_object(block) else None
        match kind:
            case "text":
                yield from _plain(block, place)
            case "thinking" if not is_text(block.get("signature")) or not isinstance(block.get("thinking"), str):
                yield f"{place}: thinking needs its text and its signature"
            case "redacted_thinking" if not is_text(block.get("data")):
                yield f"{place}: redacted thinking needs its data"
            case "thinking" | "redacted_thinking":
                pass
            case "tool_use":
                yield from _call(block, place, seen, _CALL_ID)
                awaited[str(block.get("id"))] = place
            case _ if kind in _SERVER_CALLS:
                yield from _call(block, place, seen, _SERVER_CALL_ID if kind == "server_tool_use" else _CALL_ID)
                hosted[str(block.get("id"))] = place
            case _ if isinstance(kind, str) and kind.endswith("_tool_result"):
                if hosted.pop(str(block.get("tool_use_id")), None) is None:
                    yield f"{place}: a server tool's result without its call in the same message"
                if not is_list(block.get("content")) and not is_object(block.get("content")):
                    yield f"{place}.content: is missing"
            case _:
                yield f"{place}: not a block that an assistant message takes"
    for call_id, place in hosted.items():
        yield f"{place}: server tool call {call_id!r} has no result in its message"


def _call(block: Mapping[str, Any], at: str, seen: set[str], id: re.Pattern[str]) -> Iterator[str]:
    call_id = block.get("id")
    if not isinstance(call_id, str) or not id.fullmatch(call_id):
        yield f"{at}.id: {call_id!r} is no valid id"
    elif call_id in seen:
        yield f"{at}.id: {call_id!r} is used twice in this request"
    else:
        seen.add(call_id)
    if not is_name(block.get("name")):
        yield f"{at}.name: {block.get('name')!r} is no valid name"
    if not is_object(block.get("input")):
        yield f"{at}.input: must be an object"
