"""What a tool's input looks like: from the signature of a function to a type that decodes it, and to a JSON Schema.

Rules:
- Every parameter is a field, passed by name. Decoding is strict: nothing is coerced, unknown fields are refused.
- The schema is one self-contained object: definitions are inlined, and only those that contain themselves stay behind
  references. Generated titles and discriminators (which refer to definitions) are left out.
- Whatever cannot be described is refused with a TypeError when the tool is defined, never when it is called.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import msgspec

_DEFINITIONS: Final = "#/$defs/"
_VERBATIM: Final = frozenset({"default", "const", "enum", "examples"})
_NAMED: Final = frozenset({"properties", "patternProperties", "$defs"})
_KINDS: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Signature(typing.NamedTuple):
    """What the parameters and the return annotation of a function say."""

    takes_context: bool
    input: type[msgspec.Struct]
    """One field a parameter; decode with `msgspec.convert`."""
    output: Any
    """The return annotation, or `inspect.Signature.empty`."""


def signature_of(function: Callable[..., Any], context_type: type) -> Signature:
    """Read a function's signature. A first parameter annotated with `context_type` is not part of the input.

    Raises TypeError for parameters without annotation, `*args`, `**kwargs`, positional-only parameters, and annotations
    that cannot be resolved.
    """
    named = function if inspect.isroutine(function) else cast("Any", function).__call__
    try:
        hints = typing.get_type_hints(named, include_extras=True)
    except NameError as error:
        raise TypeError(f"an annotation of {_name(function)} cannot be resolved: {error}") from error
    parameters = list(inspect.signature(function).parameters.values())
    takes_context = bool(parameters) and hints.get(parameters[0].name) is context_type
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for parameter in parameters[1:] if takes_context else parameters:
        if parameter.kind not in _KINDS:
            raise TypeError(f"{_name(function)}: a model passes arguments by name, which {parameter} does not allow")
        if parameter.name not in hints:
            raise TypeError(f"{_name(function)}: the parameter {parameter.name} needs an annotation")
        hint = hints[parameter.name]
        if parameter.default is inspect.Parameter.empty:
            fields.append((parameter.name, hint))
        else:
            fields.append((parameter.name, hint, parameter.default))
    made = msgspec.defstruct("Input", fields, frozen=True, kw_only=True, forbid_unknown_fields=True)
    return Signature(takes_context, made, hints.get("return", inspect.Signature.empty))


def input_schema(input_type: type[msgspec.Struct]) -> dict[str, Any]:
    """The self-contained JSON Schema object of an input type. Raises TypeError for types that JSON cannot carry."""
    (root,), definitions = msgspec.json.schema_components((input_type,))
    recursive = {name for name in definitions if name in _reachable(definitions[name], definitions)}
    top: dict[str, Any] = root
    while "$ref" in top:
        top = definitions[top["$ref"].removeprefix(_DEFINITIONS)]
    schema = _inlined({key: value for key, value in top.items() if key != "title"}, definitions, recursive)
    kept = sorted(recursive & _reachable(top, definitions))
    if kept:
        schema["$defs"] = {name: _inlined(definitions[name], definitions, recursive) for name in kept}
    return schema


def check_describable(annotation: Any) -> None:
    """Raises TypeError when values of this type cannot be checked and stored."""
    msgspec.json.schema_components((annotation,))


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", function))


def _reachable(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> set[str]:
    """The definitions that a schema refers to, directly or through others."""
    found: set[str] = set()
    waiting = [schema]
    while waiting:
        for name in _references(waiting.pop()):
            if name not in found:
                found.add(name)
                waiting.append(definitions[name])
    return found


def _references(schema: Mapping[str, Any]) -> set[str]:
    found: set[str] = set()

    def note(node: dict[str, Any]) -> dict[str, Any]:
        if "$ref" in node:
            found.add(node["$ref"].removeprefix(_DEFINITIONS))
        return _mapped(node, note)

    note(dict(schema))
    return found


def _inlined(schema: Mapping[str, Any], definitions: Mapping[str, Any], recursive: set[str]) -> dict[str, Any]:
    def inline(node: dict[str, Any]) -> dict[str, Any]:
        name = node.get("$ref", "").removeprefix(_DEFINITIONS)
        if not name or name in recursive:
            return _mapped(node, inline)
        beside = {key: value for key, value in node.items() if key != "$ref"}
        return {**inline(definitions[name]), **_mapped(beside, inline)}

    return inline(dict(schema))


def _mapped(schema: dict[str, Any], change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """The schema with `change` applied to the schemas directly inside it. Names of properties are not keywords."""
    result: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "discriminator":
            continue
        if key in _VERBATIM:
            result[key] = value
        elif key in _NAMED:
            result[key] = {name: change(inner) for name, inner in value.items()}
        elif isinstance(value, dict):
            result[key] = change(cast("dict[str, Any]", value))
        elif isinstance(value, list):
            items = cast("list[Any]", value)
            result[key] = [change(cast("dict[str, Any]", item)) if isinstance(item, dict) else item for item in items]
        else:
            result[key] = value
    return result
