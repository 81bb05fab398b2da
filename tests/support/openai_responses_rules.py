"""What a strict Responses provider refuses in a request.

Rules:
- `violations` takes the decoded body and returns one sentence for each broken rule, naming its place; none is valid.
- It knows the protocol only, not what Steerway means to send: a rule belongs here when the vendor enforces or documents it.
  The provider keeps nothing: what refers to a stored response or item is refused.
- Broken shapes never raise: what cannot be looked into is itself a violation.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from support.request_rules import (
    frame,
    is_list,
    is_name,
    is_object,
    is_object_text,
    is_text,
    surrogates,
    unknown_fields,
)

_FIELDS = frozenset(
    (
        *("model", "input", "instructions", "tools", "tool_choice", "stream", "store", "include", "reasoning", "text"),
        *("max_output_tokens", "temperature", "top_p", "parallel_tool_calls", "service_tier", "prompt_cache_key"),
        *("metadata", "truncation", "user", "safety_identifier", "stream_options", "background", "top_logprobs"),
    )
)
_ROLES = ("user", "assistant", "system", "developer")
_HOSTED = ("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call")
_INCLUDES = ("reasoning.encrypted_content", "web_search_call.action.sources", "file_search_call.results")
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
_MAX_ID = 64


def violations(body: Mapping[str, Any]) -> list[str]:
    """Name every rule that the request body breaks."""
    return [
        *surrogates(body, "body"),
        *unknown_fields(body, _FIELDS, "body"),
        *frame(body),
        *_settings(body),
        *_input(body.get("input")),
        *_tools(body),
    ]


def _settings(body: Mapping[str, Any]) -> Iterator[str]:
    instructions = body.get("instructions")
    if instructions is not None and not isinstance(instructions, str):
        yield "instructions: must be a text"
    limit = body.get("max_output_tokens")
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        yield "max_output_tokens: must be a positive number"
    for name in body.get("include", ()):
        if name not in _INCLUDES:
            yield f"include: {name!r} is unknown"
    reasoning = body.get("reasoning", {})
    yield from unknown_fields(reasoning, frozenset(("effort", "summary")), "reasoning")
    if reasoning.get("effort", "low") not in _EFFORTS:
        yield "reasoning.effort: is unknown"
    if reasoning.get("summary", "auto") not in ("auto", "concise", "detailed"):
        yield "reasoning.summary: is unknown"
    if body.get("text", {}).get("verbosity", "low") not in ("low", "medium", "high"):
        yield "text.verbosity: is unknown"
    key = body.get("prompt_cache_key", "")
    if not isinstance(key, str) or len(key) > _MAX_ID:
        yield "prompt_cache_key: must be a text of at most 64 characters"


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
        if not is_object(tool) or tool.get("type") != "function":
            yield f"{at}: must be a tool of type function"
            continue
        yield from unknown_fields(tool, frozenset(("type", "name", "description", "parameters", "strict")), at)
        name = tool.get("name")
        if not is_name(name):
            yield f"{at}.name: {name!r} is no valid name"
        elif name in names:
            yield f"{at}.name: {name!r} is used twice"
        else:
            names.add(name)
        parameters = tool.get("parameters")
        if not is_object(parameters) or parameters.get("type") != "object":
            yield f"{at}.parameters: must be a schema of type object"
    if choice is not None and choice not in ("none", "auto", "required"):
        yield "tool_choice: is unknown"


def _input(items: object) -> Iterator[str]:
    if not is_list(items) or not items:
        yield "input: must be a list with at least one item"
        return
    called: dict[str, str] = {}
    answered: set[str] = set()
    for number, item in enumerate(items):
        at = f"input[{number}]"
        if not is_object(item):
            yield f"{at}: must be an object"
            continue
        match item.get("type", "message"):
            case "message":
                yield from _message(item, at)
            case "function_call":
                yield from _call(item, called, at)
            case "function_call_output":
                yield from _output(item, called, answered, at)
            case "reasoning":
                yield from _reasoning(item, items[number + 1 : number + 2], at)
            case kind if kind in _HOSTED:
                if not is_text(item.get("id")) or not is_text(item.get("status")):
                    yield f"{at}: a hosted tool's item needs its id and status"
            case kind:
                yield f"{at}.type: {kind!r} is not taken here"
    for call_id, place in called.items():
        if call_id not in answered:
            yield f"{place}: call {call_id!r} has no output"


def _message(item: Mapping[str, Any], at: str) -> Iterator[str]:
    yield from unknown_fields(item, frozenset(("type", "role", "content", "phase")), at)
    role = item.get("role")
    if role not in _ROLES:
        yield f"{at}.role: {role!r} is unknown"
    if "phase" in item and (role != "assistant" or item["phase"] not in ("commentary", "final_answer")):
        yield f"{at}.phase: is unknown, or not an assistant's"
    content = item.get("content")
    if isinstance(content, str):
        return
    if role == "assistant" or not is_list(content) or not content:
        yield f"{at}.content: must be a text, or a user's list of parts"
        return
    yield from _parts(content, f"{at}.content")


def _parts(content: Sequence[Any], at: str) -> Iterator[str]:
    for index, part in enumerate(content):
        place = f"{at}[{index}]"
        match part.get("type") if is_object(part) else None:
            case "input_text":
                if not isinstance(part.get("text"), str):
                    yield f"{place}.text: must be a string"
            case "input_image":
                if not str(part.get("image_url")).startswith(("data:image/", "https://")):
                    yield f"{place}.image_url: must be a URL"
                if part.get("detail", "auto") not in ("auto", "low", "high"):
                    yield f"{place}.detail: is unknown"
            case "input_file":
                yield from unknown_fields(part, frozenset(("type", "filename", "file_data")), place)
                if not is_text(part.get("filename")):
                    yield f"{place}.filename: must not be blank"
                if not str(part.get("file_data")).startswith("data:application/pdf;base64,"):
                    yield f"{place}.file_data: must be a data URL"
            case _:
                yield f"{place}: not a known part"


def _call(item: Mapping[str, Any], called: dict[str, str], at: str) -> Iterator[str]:
    yield from unknown_fields(item, frozenset(("type", "call_id", "name", "arguments", "status")), at)
    call_id = item.get("call_id")
    if not is_text(call_id) or len(call_id) > _MAX_ID:
        yield f"{at}.call_id: must be a text of 1 to 64 characters"
    elif call_id in called:
        yield f"{at}.call_id: {call_id!r} is used twice in this request"
    else:
        called[call_id] = at
    if not is_name(item.get("name")):
        yield f"{at}.name: {item.get('name')!r} is no valid name"
    if not is_object_text(item.get("arguments")):
        yield f"{at}.arguments: must be a string that holds a JSON object"


def _output(item: Mapping[str, Any], called: Mapping[str, str], answered: set[str], at: str) -> Iterator[str]:
    yield from unknown_fields(item, frozenset(("type", "call_id", "output", "status")), at)
    call_id = item.get("call_id")
    if not isinstance(call_id, str) or call_id not in called:
        yield f"{at}: an output for {call_id!r}, which no item before it calls"
    elif call_id in answered:
        yield f"{at}: a second output for {call_id!r}"
    else:
        answered.add(call_id)
    output = item.get("output")
    if is_list(output) and output:
        yield from _parts(output, f"{at}.output")
    elif not isinstance(output, str):
        yield f"{at}.output: must be a text or a list of parts"


def _reasoning(item: Mapping[str, Any], after: Sequence[Any], at: str) -> Iterator[str]:
    yield from unknown_fields(item, frozenset(("type", "id", "summary", "content", "encrypted_content", "status")), at)
    if not is_text(item.get("id")) or not is_list(item.get("summary")):
        yield f"{at}: reasoning needs its id and its summary"
    if not is_text(item.get("encrypted_content")) and not item.get("content"):
        yield f"{at}: reasoning that was not stored needs its encrypted content"
    follower = after[0] if after and is_object(after[0]) else {}
    answers = follower.get("type", "message") == "function_call_output"
    if not after or answers or follower.get("role", "assistant") != "assistant":
        yield f"{at}: reasoning without the item that it led to"
