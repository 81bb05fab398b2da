"""Session History becomes request messages: the one place that makes any history sendable.

Rules (semantics, "Request invariants"; the log keeps the truth, what cannot be sent is repaired here):
- Item by item, looking back only at the call ids already used, and never into an earlier item: the messages of a history are
  a prefix of those of every longer one, for one target (ruling B10), as long as its items are settled.
- User and synthetic messages are user messages, each its own. A model switch lowers to nothing, a Mid-Conversation System
  Message to an update of its own, a completed compaction to one user message that says what it is; a failed one to nothing.
- An assistant message is followed by one result for each local call, in order; what was never settled is interrupted. A
  call the provider executed stays inline with its stored result. A turn that left nothing to say is not sent.
- Native Continuation Metadata goes only to the exact provider and model that gave it (whatever the variant), and only from
  turns that did not fail. Reasoning of any other turn is text.
- A provider sees its own call ids again; where they repeat, are malformed, or are another provider's, our `CallId` stands in.
- Files of the types that the target takes are media, text files labelled text behind the prompt; of any other file the model
  learns that it was not sent. So it is with what only calls itself a PDF: a provider would refuse every request that has it.
- A history may come in steps: its parts, one after the other, give what the whole gives.

`check` in `invariants` accepts whatever comes out of here; a property test says so.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any, Final, cast

import msgspec

from ..values.message import (
    AgentSwitchedMessage,
    AssistantMessage,
    CompactionMessage,
    Message,
    ModelSwitchedMessage,
    ReasoningPart,
    SyntheticMessage,
    SystemMessage,
    TextPart,
    ToolCompleted,
    ToolError,
    ToolPart,
    ToolPending,
    ToolRunning,
    UserMessage,
)
from ..values.model import ModelRef
from ..values.prompt import PromptFile
from ..values.tool import FileContent, TextContent, ToolContent
from . import request
from .arguments import parse_arguments
from .invariants import IMAGE_TYPES, MAX_CALL_ID_LENGTH, MAX_NAME_LENGTH, PDF_TYPE, VALID_CALL_ID
from .request import Call, Media, Reasoning, RequestMessage, Text
from .unicode import well_formed, well_formed_value

INTERRUPTED: Final = "The tool call was interrupted before it gave a result. It may or may not have taken effect."
NOT_RETURNED: Final = "The provider did not return a result for this call."
PRUNED: Final = "[This old result was removed to save room. Call the tool again if it is needed.]"
EMPTY_PROMPT: Final = "(empty message)"

_MAX_PREVIEW: Final = 50 * 1024
"""Characters of a structured value that stands in for missing content."""
_UNNAMED_TOOL: Final = "unnamed_tool"
_TEXT_TYPES: Final = frozenset(
    (
        "application/json",
        "application/xml",
        "application/yaml",
        "application/x-yaml",
        "application/toml",
        "application/javascript",
    )
)
_PDF_BEGINNING: Final = b"%PDF-"
_PDF_JUNK: Final = 1024
"""Bytes in front of the beginning that readers of PDF overlook."""
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_-]")


def lower(history: Iterable[Message], target: ModelRef, *, media: Collection[str] = IMAGE_TYPES) -> tuple[RequestMessage, ...]:
    """The request messages of `history` for `target`. `media`: the types it takes, of those `invariants` allows."""
    return tuple(Lowering(target, media).extend(history))


def remembered(summary: str, recent: str) -> str:
    """How the model is told what a compaction kept: a record of what was, and no instruction."""
    parts = [
        "The earlier part of this conversation was summarised to save room. What follows is a record of it, not a new request.",
        f"<summary>\n{summary.strip()}\n</summary>",
    ]
    if recent.strip():
        parts.append(f"The last exchanges, as they were:\n\n<recent>\n{recent.strip()}\n</recent>")
    return "\n\n".join(parts)


class Lowering:
    """One pass over a history that may grow. The call ids used so far are all it remembers.

    `media` as for `lower`. What was lowered once has to be settled: an item that changes later takes a new pass. `metadata`:
    whether Native Continuation Metadata may be sent; both hold for what is lowered from now on.
    """

    def __init__(self, target: ModelRef, media: Collection[str] = IMAGE_TYPES, *, metadata: bool = True) -> None:
        self._target = target
        self.media = media
        self.metadata = metadata
        self._ids: set[str] = set()

    def extend(self, items: Iterable[Message]) -> list[RequestMessage]:
        """The messages of the items that follow what was lowered before."""
        messages: list[RequestMessage] = []
        for item in items:
            messages += self._item(item)
        return messages

    def _item(self, item: Message) -> Iterable[RequestMessage]:
        match item:
            case UserMessage(text=text, files=files):
                return (self._user(text, files or ()),)
            case SyntheticMessage(text=text):
                return (self._user(text, ()),)
            case SystemMessage(text=text):
                return (request.SystemUpdate(text=well_formed(text)),) if text.strip() else ()
            case CompactionMessage(summary=str() as summary, recent=recent):
                return (self._user(remembered(summary, recent or ""), ()),)
            case ModelSwitchedMessage() | AgentSwitchedMessage() | CompactionMessage():
                return ()
            case AssistantMessage():
                return self._assistant(item)

    def _user(self, text: str, files: Iterable[PromptFile]) -> request.UserMessage:
        content: list[Text | Media] = [Text(text=well_formed(text))] if text.strip() else []
        content += [self._file(file) for file in files]
        return request.UserMessage(content=tuple(content) or (Text(text=EMPTY_PROMPT),))

    def _file(self, file: PromptFile | FileContent) -> Text | Media:
        mime = well_formed(file.mime).partition(";")[0].strip().lower()
        name = well_formed(file.name or "") or "unnamed"
        if mime in self.media and _is_sound(mime, file.data):
            return Media(data=file.data, mime=mime, name=name)
        if mime.startswith("text/") or mime in _TEXT_TYPES or mime.endswith(("+json", "+xml")):
            return Text(text=f'File "{name}" ({mime}):\n\n{file.data.decode("utf-8", "replace")}')
        return Text(text=f'File "{name}" ({mime or "unknown type"}, {len(file.data)} bytes) was not sent: not supported here.')

    def _assistant(self, message: AssistantMessage) -> Iterable[RequestMessage]:
        failed = message.error is not None or message.finish == "error"
        same_provider = message.model.provider == self._target.provider
        native = same_provider and message.model.id == self._target.id and not failed and self.metadata
        content: list[Text | Reasoning | Call] = []
        results: list[request.ToolMessage] = []
        for part in message.content:
            match part:
                case TextPart(text=text, metadata=metadata):
                    if text.strip():
                        kept = well_formed_value(metadata) if native else None
                        content.append(Text(text=well_formed(text), metadata=kept))
                case ReasoningPart(text=text, metadata=metadata):
                    if native and (text.strip() or metadata):
                        content.append(Reasoning(text=well_formed(text), metadata=well_formed_value(metadata)))
                    elif text.strip():
                        content.append(Text(text=well_formed(text)))
                case ToolPart():
                    call = self._call(part, native=native, same_provider=same_provider)
                    content.append(call)
                    if not call.executed:
                        results.append(self._result(call, part))
        return (request.AssistantMessage(content=tuple(content)), *results) if content else ()

    # --- calls --------------------------------------------------------------------------------------------------------

    def _call(self, part: ToolPart, *, native: bool, same_provider: bool) -> Call:
        result: Any = None
        is_error = False
        if part.executed:
            match part.state:
                case ToolCompleted(result=result) | ToolError(result=result):
                    pass
                case ToolPending() | ToolRunning():
                    pass
            if result is None:
                message = part.state.error.message if isinstance(part.state, ToolError) else ""
                result = {"error": message or NOT_RETURNED}
                is_error = True
        return Call(
            id=self._call_id(part, same_provider=same_provider),
            name=_name(part.name),
            input=_input(part),
            executed=part.executed,
            result=well_formed_value(result),
            is_error=is_error,
            metadata=well_formed_value(part.metadata) if native else None,
            result_metadata=well_formed_value(part.result_metadata) if native else None,
        )

    def _call_id(self, part: ToolPart, *, same_provider: bool) -> str:
        id = part.provider_call_id
        if not same_provider or VALID_CALL_ID.fullmatch(id) is None or id in self._ids:
            base = _NOT_IN_NAMES.sub("_", part.id)[: MAX_CALL_ID_LENGTH - 12] or "call"
            id = base
            # Our own ids do not repeat; a provider's id may still be the same text as one of them.
            count = 1
            while id in self._ids:
                count += 1
                id = f"{base}_{count}"
        self._ids.add(id)
        return id

    def _result(self, call: Call, part: ToolPart) -> request.ToolMessage:
        is_error = True
        match part.state:
            case ToolCompleted(pruned=True):
                is_error = False
                parts = [Text(text=PRUNED)]
            case ToolCompleted(content=content, structured=structured):
                is_error = False
                parts = self._contents(content)
                if not parts and structured is not None:
                    parts = [Text(text=_preview(structured))]
            case ToolError(error=error, content=content):
                parts = [Text(text=well_formed(error.message or error.type)), *self._contents(content or ())]
            case ToolPending() | ToolRunning():
                parts = [Text(text=INTERRUPTED)]
        return request.ToolMessage(call_id=call.id, name=call.name, content=tuple(parts), is_error=is_error)

    def _contents(self, content: Iterable[ToolContent]) -> list[Text | Media]:
        parts: list[Text | Media] = []
        for item in content:
            match item:
                case TextContent(text=text):
                    if text:
                        parts.append(Text(text=well_formed(text)))
                case FileContent():
                    parts.append(self._file(item))
        return parts


def _is_sound(mime: str, data: bytes) -> bool:
    return bool(data) and (mime != PDF_TYPE or _PDF_BEGINNING in data[: _PDF_JUNK + len(_PDF_BEGINNING)])


def _name(name: str) -> str:
    """A tool's name as every protocol takes it. No tool that is offered needs it: a model may call what it likes."""
    name = _NOT_IN_NAMES.sub("_", name) or _UNNAMED_TOOL
    return (name if name[0].isalpha() or name[0] == "_" else f"_{name}")[:MAX_NAME_LENGTH]


def _input(part: ToolPart) -> dict[str, Any]:
    match part.state:
        case ToolPending(input=raw):
            return parse_arguments(raw) or {}
        case ToolRunning(input=input) | ToolCompleted(input=input) | ToolError(input=input):
            return cast("dict[str, Any]", well_formed_value(input))


def _preview(structured: Any) -> str:
    text = msgspec.json.encode(well_formed_value(structured)).decode()
    return text if len(text) <= _MAX_PREVIEW else f"{text[:_MAX_PREVIEW]}\n[cut: {len(text)} characters of JSON in all]"
