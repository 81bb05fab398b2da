"""Decodes answers of the OpenAI Responses protocol, OpenAI's own and those of servers that are like it.

Rules:
- The explicit end is `response.completed` or `response.incomplete`; the latter says why: the output limit, or a filter.
- An answer is a list of output items. Items are told apart by their `output_index`, since some servers give every event
  another item id; the id stands in where there is no index.
- What was not streamed is taken from the finished item, and an item of which no event told from the response at the end:
  so a server that sends only the last event is understood as well.
- A reasoning item is one fragment; the parts of its summary are paragraphs. Its id and encrypted content are Native
  Continuation Metadata, as is the phase of a message.
- Hosted tools: call and result come with the finished item, which is the result, verbatim.
- A refusal is text, and makes the finish a content filter.
"""

from __future__ import annotations

from typing import Any, Final

from ..values.failure import PROVIDER_INTERNAL
from ..values.message import Finish
from ..values.model import CacheTokens, Tokens
from .answer import AnswerDecoder
from .fragments import CallFragment, Lane
from .payload import json_text
from .shapes import count, mapping, place, sequence, string, word
from .sse import MAX_EVENT_BYTES

PROTOCOL: Final = "openai-responses"

HOSTED: Final = {
    "web_search_call": ("action",),
    "file_search_call": ("queries",),
    "code_interpreter_call": ("code", "container_id"),
    "image_generation_call": (),
    "mcp_call": (),
}
"""Items of tools that the provider runs, and the fields of each that are its input."""

_REASONS: Final[dict[str, Finish]] = {
    "max_output_tokens": "length",
    "max_tokens": "length",
    "content_filter": "content-filter",
}
_SEPARATOR: Final = "\n\n"


class _Item:
    """An output item. `said`: something of its prose was streamed."""

    __slots__ = ("call", "done", "part", "said", "type")

    def __init__(self) -> None:
        self.type = ""
        self.call: CallFragment | None = None
        self.part: tuple[str, int] | None = None
        """The part of its text that was written last."""
        self.said = False
        self.done = False


class OpenAIResponsesDecoder(AnswerDecoder):
    """One answer."""

    def __init__(self, limit: int = MAX_EVENT_BYTES) -> None:
        super().__init__(limit)
        self._items: dict[int | str, _Item] = {}
        self._writing: _Item | None = None
        """The item that the open text or reasoning belongs to."""
        self._refused = False

    def _read_event(self, name: str, event: dict[str, Any]) -> None:
        match string(event.get("type")) or name:
            case "response.output_text.delta":
                self._say(event, "text", "content_index")
            case "response.refusal.delta":
                self._refused = True
                self._say(event, "text", "content_index")
            case "response.reasoning_summary_text.delta":
                self._say(event, "reasoning", "summary_index")
            case "response.reasoning_text.delta":
                self._say(event, "reasoning", "content_index")
            case "response.function_call_arguments.delta":
                call = self._item(event).call
                if call is not None and (text := string(event.get("delta"))):
                    self._extend_call(call, text)
            case "response.output_item.added":
                self._start(self._item(event), mapping(event.get("item")))
            case "response.output_item.done":
                self._complete(self._item(event), mapping(event.get("item")))
            case "response.completed" | "response.incomplete" | "response.failed" | "response.cancelled" as type:
                self._read_response(mapping(event.get("response")), type.partition(".")[2])
            case "error":
                self._provider_error(event.get("error") or event)
            case _:
                if event.get("error"):
                    self._provider_error(event["error"])

    def _read_document(self, document: dict[str, Any]) -> None:
        if document.get("error"):
            self._provider_error(document["error"])
        elif "output" in document:
            self._read_response(document, string(document.get("status")) or "completed")

    # --- items --------------------------------------------------------------------------------------------------------

    def _item(self, event: dict[str, Any]) -> _Item:
        index = place(event.get("output_index"))
        key = index if index is not None else word(event.get("item_id")) or word(mapping(event.get("item")).get("id"))
        item = self._items.get(key)
        if item is None:
            item = self._items[key] = _Item()
        return item

    def _say(self, event: dict[str, Any], lane: Lane, part: str) -> None:
        item = self._item(event)
        text = string(event.get("delta"))
        if text and not item.done:
            self._write(item, lane, text, (part, place(event.get(part)) or 0))

    def _write(self, item: _Item, lane: Lane, text: str, part: tuple[str, int]) -> None:
        if self._writing is not item:
            self._end_prose()
            self._writing = item
        if lane == "reasoning" and item.part not in (None, part):
            text = _SEPARATOR + text
        item.part = part
        item.said = True
        self._fragments.say(lane, text)

    def _end_prose(self) -> None:
        self._fragments.end_prose()
        self._writing = None

    def _start(self, item: _Item, start: dict[str, Any]) -> None:
        if item.type:
            return
        item.type = type = string(start.get("type"))
        if type == "function_call":
            item.call = self._fragments.start_call(word(start.get("call_id")) or word(start.get("id")))
            name = word(start.get("name"))
        elif type in HOSTED:
            item.call = self._fragments.start_call(word(start.get("id")))
            item.call.executed = True
            item.call.metadata = {PROTOCOL: {"type": type}}
            name = word(start.get("name")) if type == "mcp_call" else type.removesuffix("_call")
        else:
            return
        if name:
            self._end_prose()
            self._fragments.name_call(item.call, name)

    def _complete(self, item: _Item, done: dict[str, Any]) -> None:
        if item.done:
            return
        self._start(item, done)
        item.done = True
        match item.type:
            case "message":
                self._complete_message(item, done)
            case "reasoning":
                self._complete_reasoning(item, done)
            case _ if item.call is not None:
                self._complete_call(item, item.call, done)
            case _:
                pass

    def _complete_message(self, item: _Item, done: dict[str, Any]) -> None:
        phase = string(done.get("phase"))
        streamed = item.said
        for index, part in enumerate(map(mapping, sequence(done.get("content")))):
            refusal = string(part.get("refusal"))
            self._refused = self._refused or bool(refusal)
            text = string(part.get("text")) or refusal
            if text and not streamed:
                self._write(item, "text", text, ("content_index", index))
        if self._writing is item:
            self._fragments.say("text", "", {PROTOCOL: {"phase": phase}} if phase else None)
            self._end_prose()

    def _complete_reasoning(self, item: _Item, done: dict[str, Any]) -> None:
        content = sequence(done.get("content"))
        if not item.said:
            for name, parts in (("summary_index", sequence(done.get("summary"))), ("content_index", content)):
                for index, part in enumerate(map(mapping, parts)):
                    if text := string(part.get("text")):
                        self._write(item, "reasoning", text, (name, index))
        kept: dict[str, Any] = {"id": word(done.get("id"))}
        if encrypted := string(done.get("encrypted_content")):
            kept["encrypted_content"] = encrypted
        elif content:
            kept["field"] = "content"
        if self._writing is not item and encrypted:
            self._end_prose()
            self._writing = item
        if self._writing is item:
            self._fragments.say("reasoning", "", {PROTOCOL: kept})
            self._end_prose()

    def _complete_call(self, item: _Item, call: CallFragment, done: dict[str, Any]) -> None:
        if call.name is None and (name := word(done.get("name"))):
            self._end_prose()
            self._fragments.name_call(call, name)
        if not call.executed:
            call.provider_id = call.provider_id or word(done.get("call_id"))
            if not call.size and (text := string(done.get("arguments"))):
                self._extend_call(call, text)
            return
        if call.name is None:
            return
        text = string(done.get("arguments"))
        fields = {name: done[name] for name in HOSTED[item.type] if done.get(name) is not None}
        if item.type == "web_search_call":
            fields = mapping(fields.get("action"))
        if text or fields:
            self._extend_call(call, text or json_text(fields))
        failed = done.get("status") == "failed" or bool(done.get("error"))
        self._writing = None
        self._fragments.settle_call(call, done, is_error=failed, metadata={PROTOCOL: {"type": item.type}})

    # --- the end ------------------------------------------------------------------------------------------------------

    def _read_response(self, response: dict[str, Any], status: str) -> None:
        self._read_usage(mapping(response.get("usage")))
        if status == "failed" or response.get("error"):
            self._read_error(mapping(response.get("error")))
            return
        if status == "cancelled":
            self._fail(PROVIDER_INTERNAL, "The provider cancelled its answer.", retryable=True)
            return
        for index, output in enumerate(map(mapping, sequence(response.get("output")))):
            known = self._items.get(index) or self._items.get(word(output.get("id")))
            self._complete(known or self._item({"output_index": index}), output)
            if self._end is not None:
                return
        if status == "incomplete":
            reason = string(mapping(response.get("incomplete_details")).get("reason"))
            self._finish(_REASONS.get(reason, "unknown"), reason or status)
        else:
            self._finish("content-filter" if self._refused else "stop", status)

    def _read_error(self, error: dict[str, Any]) -> None:
        code = string(error.get("code"))
        # What is wrong with a prompt or an image stays wrong; the other codes are the provider's own trouble.
        if code.startswith(("invalid_", "image_", "unsupported_", "empty_image")):
            error = {**error, "status": 400}
        self._provider_error(error)

    def _read_usage(self, usage: dict[str, Any]) -> None:
        if not usage:
            return
        inputs = mapping(usage.get("input_tokens_details"))
        outputs = mapping(usage.get("output_tokens_details"))
        total_in, total_out = count(usage.get("input_tokens")), count(usage.get("output_tokens"))
        read = min(count(inputs.get("cached_tokens")), total_in)
        write = min(count(inputs.get("cache_write_tokens")), total_in - read)
        reasoning = min(count(outputs.get("reasoning_tokens")), total_out)
        self._tokens = Tokens(
            input=total_in - read - write,
            output=total_out - reasoning,
            reasoning=reasoning,
            cache=CacheTokens(read=read, write=write),
        )
