"""History as plain text for a summary, how much of it stays, and how large a request is.

Rules (semantics, "Compaction"; reference 5.2, 5.3):
- Text is labelled by who said it. Media are described and never copied; results are cut; system messages are left out.
- What is kept are whole exchanges from a user's message on, as many as fit. When not even the last exchange fits, whole
  messages of it are kept; a call and its result are one message here, so that they are never apart.
- When everything fits, only the latest exchange is kept; when nothing older is there, all of it is summarised.
- A token counts as four characters; an image as `IMAGE_TOKENS`. A PDF is sent as the text and the picture of each page, and
  its pages cannot be counted without reading it: it counts by its bytes, never less than one page, and never so much that a
  file of few heavy scans could fill a context by itself. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from ..values.message import (
    AssistantMessage,
    CompactionMessage,
    Message,
    ReasoningPart,
    SyntheticMessage,
    TextPart,
    ToolCompleted,
    ToolError,
    ToolPart,
    UserMessage,
)
from ..values.prompt import PromptFile
from ..values.tool import FileContent, TextContent, ToolContent
from ..values.value import Value
from .invariants import PDF_TYPE
from .request import Call, LLMRequest, Media, Reasoning, RequestMessage, SystemUpdate, Text
from .unicode import well_formed, well_formed_value

MAX_RESULT: Final = 2_000
"""Characters of a tool's result that a transcript shows."""
MAX_INPUT: Final = 2_000
IMAGE_TOKENS: Final = 1_500
PDF_PAGE_TOKENS: Final = 2 * IMAGE_TOKENS
PDF_PAGE_BYTES: Final = 64 * 1024
"""Bytes of a PDF that count as a page."""
MAX_PDF_PAGES: Final = 20
"""Pages that a PDF counts as at most."""
MIN_PRUNED: Final = 50
"""Tokens of a result that is worth pruning."""
CHARACTERS_PER_TOKEN: Final = 4


def transcript(messages: Iterable[Message]) -> str:
    """The messages as labelled text; those that say nothing leave nothing."""
    return "\n\n".join(filter(None, map(_described, messages)))


def split(history: Sequence[Message], keep_tokens: int) -> tuple[str, str]:
    """What is to be summarised, and what stays beside the summary, both as text. The first is blank when there is nothing."""
    spoken = [(message, text) for message in history if (text := _described(message))]
    if not spoken:
        return "", ""
    starts = [index for index, (message, _) in enumerate(spoken) if isinstance(message, UserMessage)]
    room = keep_tokens * CHARACTERS_PER_TOKEN
    first = len(spoken)
    while first > 0 and (room := room - len(spoken[first - 1][1])) >= 0:
        first -= 1
    if first == 0:
        first = starts[-1] if starts else len(spoken)
        first = first or len(spoken)
    else:
        first = next((start for start in starts if start >= first), first)
    texts = [text for _, text in spoken]
    kept = texts[first:]
    if starts and starts[-1] < first and (kept or not _settled(spoken)):  # the latest exchange is cut: what was asked stays
        kept.insert(0, _cut(texts[starts[-1]], keep_tokens * CHARACTERS_PER_TOKEN))
    return "\n\n".join(texts[:first]), "\n\n".join(kept)


def prunable(history: Sequence[Message], keep_tokens: int) -> list[ToolPart]:
    """The calls whose results are older than what is kept, and large enough to matter, the oldest first."""
    room = keep_tokens * CHARACTERS_PER_TOKEN
    found: list[ToolPart] = []
    for message in reversed(history):
        room -= len(_described(message))
        if room < 0 and isinstance(message, AssistantMessage):
            found += [
                part
                for part in reversed(message.content)
                if isinstance(part, ToolPart) and not part.executed and result_tokens(part) >= MIN_PRUNED
            ]
    return found[::-1]


class Size(Value):
    """How large messages are: `characters` of text, and the tokens that their `media` count for. Sizes add up."""

    characters: int = 0
    media: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(characters=self.characters + other.characters, media=self.media + other.media)


def tokens(size: Size) -> int:
    """About how many tokens that is."""
    return round(size.characters / CHARACTERS_PER_TOKEN) + size.media


def estimate(request: LLMRequest) -> int:
    """About how many tokens a request has."""
    around = sum(map(len, request.system)) + len(msgspec.json.encode(request.tools))
    return tokens(Size(characters=around) + measure(request.messages))


def measure(messages: Iterable[RequestMessage]) -> Size:
    """The size of messages, which is that of their parts, however they are divided."""
    characters = media = 0
    for message in messages:
        match message:
            case SystemUpdate(text=text):
                characters += len(text)
            case _:
                for part in message.content:
                    match part:
                        case Text(text=text) | Reasoning(text=text):
                            characters += len(text)
                        case Media(data=data, mime=mime):
                            media += media_tokens(mime, data)
                        case Call():
                            characters += len(part.name) + _size(part.input) + (_size(part.result) if part.executed else 0)
    return Size(characters=characters, media=media)


def media_tokens(mime: str, data: bytes) -> int:
    """About how many tokens an image or a PDF has."""
    if mime != PDF_TYPE:
        return IMAGE_TOKENS
    return min(1 + len(data) // PDF_PAGE_BYTES, MAX_PDF_PAGES) * PDF_PAGE_TOKENS


def result_tokens(part: ToolPart) -> int:
    """About how many tokens the result of a call that worked has; 0 for all others and for one that was pruned."""
    match part.state:
        case ToolCompleted(pruned=None, content=content, structured=structured):
            size = sum(len(item.text) for item in content if isinstance(item, TextContent))
            media = sum(media_tokens(item.mime, item.data) for item in content if isinstance(item, FileContent))
            if not content and structured is not None:
                size = _size(structured)
            return round(size / CHARACTERS_PER_TOKEN) + media
        case _:
            return 0


def _settled(spoken: Sequence[tuple[Message, str]]) -> bool:
    """Whether the last word is an assistant's that ended by itself, so that nothing waits for an answer."""
    last = spoken[-1][0]
    return isinstance(last, AssistantMessage) and last.finish not in (None, "tool-calls")


def _size(value: Any) -> int:
    return len(msgspec.json.encode(value))


def _described(message: Message) -> str:
    match message:
        case UserMessage(text=text, files=files):
            lines = [f"User: {text}".rstrip() if text.strip() or not files else "User:", *map(_file, files or ())]
            return well_formed("\n".join(lines))
        case SyntheticMessage(text=text):
            return well_formed(f"Note: {text}") if text.strip() else ""
        case AssistantMessage(content=content):
            return "\n".join(line for part in content if (line := _part(part)))
        case CompactionMessage(summary=str(), recent=recent):
            return well_formed(recent or "")
        case _:
            return ""


def _part(part: TextPart | ReasoningPart | ToolPart) -> str:
    match part:
        case TextPart(text=text):
            return well_formed(f"Assistant: {text}") if text.strip() else ""
        case ReasoningPart(text=text):
            return well_formed(f"Assistant (thinking): {text}") if text.strip() else ""
        case ToolPart(name=name, state=state):
            given = getattr(state, "input", None)
            shown = _cut(given if isinstance(given, str) else msgspec.json.encode(well_formed_value(given)).decode(), MAX_INPUT)
            match state:
                case ToolCompleted(content=content, structured=structured, result=result):
                    text = "\n".join(map(_content, content))
                    other = structured if result is None else result
                    if not text and other is not None:
                        text = msgspec.json.encode(well_formed_value(other)).decode()
                    outcome = f"Result of {name}: {_cut(text, MAX_RESULT)}"
                case ToolError(error=error):
                    outcome = f"{name} failed: {_cut(error.message, MAX_RESULT)}"
                case _:
                    outcome = f"{name} was interrupted."
            return well_formed(f"Assistant calls {name} with {shown}\n{outcome}")


def _content(item: ToolContent) -> str:
    match item:
        case TextContent(text=text):
            return text
        case FileContent():
            return _file(item)


def _file(file: PromptFile | FileContent) -> str:
    return f"[file {file.name or 'without a name'}, {file.mime}, {len(file.data)} bytes]"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]} [cut]"
