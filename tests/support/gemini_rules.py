"""What a strict Gemini provider refuses in a request.

Rules:
- `violations` takes the decoded body and returns one sentence for each broken rule, naming its place; none is valid.
- It knows the protocol only, not what Steerway means to send: a rule belongs here when the vendor enforces or documents it.
- Broken shapes never raise: what cannot be looked into is itself a violation.
"""

import base64
import binascii
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from support.request_rules import is_list, is_object, is_text, surrogates, unknown_fields

_FIELDS = frozenset(
    (
        *("contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "safetySettings", "cachedContent"),
        *("labels", "serviceTier", "store"),
    )
)
_SETTINGS: Mapping[str, tuple[type, ...]] = {
    "maxOutputTokens": (int,),
    "temperature": (int, float),
    "topP": (int, float),
    "topK": (int, float),
    "frequencyPenalty": (int, float),
    "presencePenalty": (int, float),
    "seed": (int,),
    "candidateCount": (int,),
    "stopSequences": (list,),
    "responseMimeType": (str,),
    "responseJsonSchema": (dict,),
    "responseModalities": (list,),
    "mediaResolution": (str,),
    "thinkingConfig": (dict,),
}
_THINKING: Mapping[str, tuple[type, ...]] = {"thinkingBudget": (int,), "thinkingLevel": (str,), "includeThoughts": (bool,)}
_DATA = frozenset(
    (
        *("text", "inlineData", "fileData", "functionCall", "functionResponse", "executableCode", "codeExecutionResult"),
        *("toolCall", "toolResponse"),
    )
)
_ONLY_MODEL = ("functionCall", "executableCode", "codeExecutionResult", "toolCall", "toolResponse")
_BESIDE = frozenset(("thought", "thoughtSignature", "videoMetadata", "mediaResolution"))
_MEDIA = ("image/png", "image/jpeg", "image/webp", "image/heic", "image/heif", "application/pdf")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,127}")
_HOSTED_FIELDS: Mapping[str, frozenset[str]] = {
    "executableCode": frozenset(("id", "language", "code")),
    "codeExecutionResult": frozenset(("id", "outcome", "output")),
    "toolCall": frozenset(("id", "toolType", "args")),
    "toolResponse": frozenset(("id", "toolType", "response")),
}
_OUTCOMES = ("OUTCOME_OK", "OUTCOME_FAILED", "OUTCOME_DEADLINE_EXCEEDED")
_MODES = ("AUTO", "ANY", "NONE", "VALIDATED")


def violations(body: Mapping[str, Any]) -> list[str]:
    """Name every rule that the request body breaks."""
    return [
        *surrogates(body, "body"),
        *unknown_fields(body, _FIELDS, "body"),
        *_system(body.get("systemInstruction")),
        *_contents(body.get("contents")),
        *_tools(body.get("tools"), body.get("toolConfig")),
        *_typed(body.get("generationConfig", {}), _SETTINGS, "generationConfig"),
        *_safety(body.get("safetySettings", [])),
    ]


def _typed(value: object, known: Mapping[str, tuple[type, ...]], at: str) -> Iterator[str]:
    if not is_object(value):
        yield f"{at}: must be an object"
        return
    yield from unknown_fields(value, frozenset(known), at)
    for name, types in known.items():
        if name in value and (not isinstance(value[name], types) or (isinstance(value[name], bool) and bool not in types)):
            yield f"{at}.{name}: {value[name]!r} is of the wrong type"
    if "thinkingConfig" in value:
        yield from _typed(value["thinkingConfig"], _THINKING, f"{at}.thinkingConfig")


def _safety(settings: object) -> Iterator[str]:
    for setting in settings if is_list(settings) else (None,):
        if not is_object(setting) or not is_text(setting.get("category")) or not is_text(setting.get("threshold")):
            yield "safetySettings: each has a category and a threshold"


def _system(system: object) -> Iterator[str]:
    if system is None:
        return
    parts = system.get("parts") if is_object(system) else None
    if not is_list(parts) or not parts:
        yield "systemInstruction.parts: must be a list with at least one part"
        return
    for index, part in enumerate(parts):
        if not is_object(part) or not is_text(part.get("text")) or len(part) != 1:
            yield f"systemInstruction.parts[{index}]: must be text that is not blank"


# --- tools ------------------------------------------------------------------------------------------------------------


def _tools(tools: object, config: object) -> Iterator[str]:
    if tools is None:
        if config is not None:
            yield "toolConfig: is only allowed with tools"
        return
    if not is_list(tools) or not tools:
        yield "tools: must be a list with at least one tool"
        return
    names: set[str] = set()
    for number, tool in enumerate(tools):
        declared = tool.get("functionDeclarations", []) if is_object(tool) else None
        if not is_list(declared):
            yield f"tools[{number}]: must be an object, and its functionDeclarations a list"
            continue
        for index, declaration in enumerate(declared):
            at = f"tools[{number}].functionDeclarations[{index}]"
            if not is_object(declaration):
                yield f"{at}: must be an object"
            else:
                yield from _declaration(declaration, names, at)
    mode = config.get("functionCallingConfig", {}).get("mode", "AUTO") if is_object(config) else "AUTO"
    if mode not in _MODES:
        yield f"toolConfig.functionCallingConfig.mode: {mode!r} is unknown"


def _declaration(declaration: Mapping[str, Any], names: set[str], at: str) -> Iterator[str]:
    known = frozenset(("name", "description", "parameters", "parametersJsonSchema", "response", "responseJsonSchema"))
    yield from unknown_fields(declaration, known, at)
    name = declaration.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        yield f"{at}.name: {name!r} is no valid name"
    elif name in names:
        yield f"{at}.name: {name!r} is used twice"
    else:
        names.add(name)
    if not isinstance(declaration.get("description"), str):
        yield f"{at}.description: is missing"
    if "parametersJsonSchema" in declaration:
        schema = declaration["parametersJsonSchema"]
        if not is_object(schema) or schema.get("type") != "object":
            yield f"{at}.parametersJsonSchema: must be a schema of type object"
        yield from _schema(schema, f"{at}.parametersJsonSchema")


def _schema(schema: object, at: str) -> Iterator[str]:
    if is_list(schema):
        for index, item in enumerate(schema):
            yield from _schema(item, f"{at}[{index}]")
    if not is_object(schema):
        return
    if "$schema" in schema:
        yield f"{at}.$schema: there is no such field"
    if isinstance(schema.get("$ref"), str) and any(not name.startswith("$") for name in schema):
        yield f"{at}: nothing stands beside a $ref"
    for name, below in schema.items():
        if name in ("properties", "$defs") and is_object(below):
            for key, inner in below.items():
                yield from _schema(inner, f"{at}.{name}.{key}")
        elif name not in ("enum", "const", "default"):
            yield from _schema(below, f"{at}.{name}")


# --- contents ---------------------------------------------------------------------------------------------------------


def _contents(contents: object) -> Iterator[str]:
    if not is_list(contents) or not contents:
        yield "contents: must be a list with at least one content"
        return
    awaited: list[Mapping[str, Any]] = []
    before: object = None
    for number, content in enumerate(contents):
        at = f"contents[{number}]"
        parts = content.get("parts") if is_object(content) else None
        if not is_object(content) or not is_list(parts) or not parts or not all(is_object(part) for part in parts):
            yield f"{at}: must have a list of at least one part"
            continue
        yield from unknown_fields(content, frozenset(("role", "parts")), at)
        role = content.get("role")
        if role not in ("user", "model"):
            yield f"{at}.role: {role!r} is unknown"
        for index, part in enumerate(parts):
            yield from _part(part, role, f"{at}.parts[{index}]")
        yield from _answered(awaited, [part["functionResponse"] for part in parts if "functionResponse" in part], at)
        awaited = [part["functionCall"] for part in parts if "functionCall" in part]
        if awaited and before != "user":
            yield f"{at}: a call comes immediately after a user's turn or a function response"
        before = role
    yield from _answered(awaited, [], "the end")


def _answered(calls: Sequence[Any], responses: Sequence[Any], at: str) -> Iterator[str]:
    if len(calls) != len(responses):
        yield f"{at}: {len(responses)} function responses to {len(calls)} function calls"
        return
    for call, response in zip(calls, responses, strict=True):
        if not is_object(call) or not is_object(response):
            continue  # said already
        if (call.get("name"), call.get("id")) != (response.get("name"), response.get("id")):
            yield f"{at}: the response of {response.get('name')!r} stands where that of {call.get('name')!r} is due"


def _part(part: Mapping[str, Any], role: object, at: str) -> Iterator[str]:
    yield from unknown_fields(part, _DATA | _BESIDE, at)
    kinds = [name for name in part if name in _DATA]
    if len(kinds) != 1:
        yield f"{at}: must have exactly one kind of data, not {kinds}"
        return
    kind, value = kinds[0], part[kinds[0]]
    signature = part.get("thoughtSignature")
    if signature is not None and not _is_base64(signature):
        yield f"{at}.thoughtSignature: is no base64"
    if kind in _ONLY_MODEL and role != "model":
        yield f"{at}: {kind} is the model's"
    if (kind in ("functionResponse", "inlineData") or "thought" in part or signature) and role != (
        "user" if kind in ("functionResponse", "inlineData") else "model"
    ):
        yield f"{at}: {kind} cannot stand with {role}"
    match kind:
        case "text":
            if not isinstance(value, str) or not (value or signature):
                yield f"{at}.text: must not be empty"
        case "inlineData":
            mime = value.get("mimeType") if is_object(value) else None
            if mime not in _MEDIA or not _is_base64(value.get("data")) or not value["data"]:
                yield f"{at}.inlineData: {mime!r} is not supported, or the data are none"
        case "functionCall":
            yield from _function(value, "args", at)
        case "functionResponse":
            yield from _function(value, "response", at)
        case "fileData":
            pass
        case _:
            if not is_object(value):
                yield f"{at}.{kind}: must be an object"
                return
            yield from unknown_fields(value, _HOSTED_FIELDS[kind], f"{at}.{kind}")
            if kind == "codeExecutionResult" and value.get("outcome") not in _OUTCOMES:
                yield f"{at}.{kind}.outcome: is unknown"


def _function(function: object, data: str, at: str) -> Iterator[str]:
    if not is_object(function):
        yield f"{at}: must be an object"
        return
    yield from unknown_fields(function, frozenset(("id", "name", data)), at)
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        yield f"{at}.name: {name!r} is no valid name"
    if not is_object(function.get(data)):
        yield f"{at}.{data}: must be an object"
    if "id" in function and not is_text(function["id"]):
        yield f"{at}.id: must be a text"


def _is_base64(value: object) -> bool:
    if not isinstance(value, str):
        return False
    try:
        plain = value.translate(str.maketrans("-_", "+/")).rstrip("=")
        base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        return False
    return True
