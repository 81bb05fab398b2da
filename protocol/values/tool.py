"""Tool calls as history keeps them: what was asked, what came back."""

from __future__ import annotations

from typing import Any

from .value import Value


class TextContent(Value, tag_field="type", tag="text"):
    """Text a tool gave, already bounded."""

    text: str


class FileContent(Value, tag_field="type", tag="file"):
    """Media a tool gave."""

    data: bytes
    mime: str
    name: str | None = None


ToolContent = TextContent | FileContent


class ManagedOutput(Value):
    """A file that keeps the complete text of an output too large for history. It may expire; the bounded text stays."""

    path: str
    bytes: int
    lines: int
    complete: bool


class ToolDefinition(Value):
    """What the model is told about a tool. `input_schema` is a JSON Schema object."""

    name: str
    description: str
    input_schema: dict[str, Any]
