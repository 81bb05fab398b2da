"""Decodes answers of the OpenAI Responses protocol, OpenAI's own and those of servers that are like it.

Rules:
- The explicit end is `response.completed` or `response.incomplete`; the latter says why: the output limit, or a filter.
- An answer is a list of output items. Items are told apart by their `output_index`, since some servers give every event
  another item id; the id stands in where there is no index.
- What was not streamed is taken from the finished item, and an item of which no event told from the response at the end:
  so a server that sends only the last event is understood as well.
- A reasoning item is one fragment; the parts of its summary are paragraphs. Its id and encrypted content are Native
  Continuation Metadata, as are the phase of a message and the annotations of its text.
- Hosted tools: call and result come with the finished item, which is the result, verbatim. So it is with call items that
  later versions add, unless they have a `call_id`: then they wait for an output.
- What somebody else has to do (a custom tool, a computer, a shell, a patch) is a call like any other, by the name of the
  item's type where it has none; if no such tool is offered here the model is told so. An output that comes with the answer
  after all makes it a hosted call.
- Nobody here gives an approval to a hosted tool: a request for one is a hosted call that failed.
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

_OURS: Final = ("function_call", "custom_tool_call")
"""Items of calls that have a name, and an input as text."""
_APPROVAL: Final = "mcp_approval_request"
_NO_APPROVAL: Final = "Nobody can approve this call here; let the server's tools run without approval (require_approval)."
_SURROUNDINGS: Final = ("id", "type", "status", "call_id", "created_by")
"""Fields of a call item that are not its input."""

_REASONS: Final[dict[str, Finish]] = {
    "max_output_tokens": "length",
    "max_tokens": "length",
    "content_filter": "content-filter",
}
_SEPARATOR: Final = "\n\n"


class _Item:
    """An output item. `said`: something of its prose was streamed."""

    __slots__ = ("annotations", "call", "done", "news", "part", "said", "type")

    def __init__(self) -> None:
        self.type = ""
        self.news = ""
        """The last event that only told how far the item is."""
        self.annotations: list[dict[str, Any]] = []
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
            case "response.output_text.annotation.added":
                self._annotate(self._item(event), mapping(event.get("annotation")), place(event.get("content_index")) or 0)
            case "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta":
                call = self._item(event).call
                if call is not None and (text := string(event.get("delta"))):
                    self._extend_call(call, text)
            case "response.output_item.added":
                self._start(self._item(event), mapping(event.get("item")))
            case "response.output_item.done":
                self._complete(self._item(event), mapping(event.get("item")))
            case "response.completed" | "response.incomplete" | "response.failed" | "response.cancelled" as type:
                response = mapping(event.get("response"))
                error = response.get("error") or event.get("error")  # some servers have it beside the response
                self._read_response({**response, "error": error}, type.partition(".")[2])
            case "error":
                self._provider_error(event.get("error") or event)
            case "response.created":
                self.steps += 1
            case kind:
                if event.get("error"):
                    self._provider_error(event["error"])
                elif "_call" in kind:
                    self._progress(self._item(event), kind, string(event.get("delta")))

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
            self._count_pieces(len(self._items))
        return item

    def _progress(self, item: _Item, news: str, delta: str) -> None:
        """A call that is run by the provider went on; to hear the same again says nothing."""
        if delta or item.news != news:
            item.news = news
            self.steps += 1

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
        self.steps += bool(type)
        if type in _OURS:
            item.call = self._fragments.start_call(word(start.get("call_id")) or word(start.get("id")))
            name = word(start.get("name"))
        elif type in HOSTED:
            item.call = self._fragments.start_call(word(start.get("id")))
            item.call.executed = True
            item.call.metadata = {PROTOCOL: {"type": type}}
            name = word(start.get("name")) if type == "mcp_call" else type.removesuffix("_call")
        elif type.endswith("_call") or type == _APPROVAL:
            id = word(start.get("call_id"))
            item.call = self._fragments.start_call(id or word(start.get("id")))
            item.call.executed = not id
            name = type
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
        self.steps += 1
        match item.type:
            case "message":
                self._complete_message(item, done)
            case "reasoning":
                self._complete_reasoning(item, done)
            case _ if item.call is not None:
                self._complete_call(item, item.call, done)
            case type if type.endswith("_call_output"):
                self._complete_output(type.removesuffix("_output"), done)
            case _:
                pass

    def _complete_message(self, item: _Item, done: dict[str, Any]) -> None:
        streamed = item.said
        annotations: list[dict[str, Any]] = []
        for index, part in enumerate(map(mapping, sequence(done.get("content")))):
            refusal = string(part.get("refusal"))
            self._refused = self._refused or bool(refusal)
            text = string(part.get("text")) or refusal
            if text and not streamed:
                self._write(item, "text", text, ("content_index", index))
            annotations += _placed(sequence(part.get("annotations")), index)
        if self._writing is item:
            kept: dict[str, Any] = {}
            if phase := string(done.get("phase")):
                kept["phase"] = phase
            if annotations := annotations or item.annotations:
                kept["annotations"] = annotations
            self._fragments.say("text", "", {PROTOCOL: kept} if kept else None)
            self._end_prose()

    def _annotate(self, item: _Item, annotation: dict[str, Any], index: int) -> None:
        """A source of the text, or the like; what the finished item has of them takes the place of these."""
        if not annotation or item.done or not self._keep():
            return
        self.steps += 1
        item.annotations += _placed([annotation], index)
        if self._writing is item:
            self._fragments.say("text", "", {PROTOCOL: {"annotations": item.annotations}})

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
        text = string(done.get("arguments"))
        if item.type in _OURS:
            call.provider_id = call.provider_id or word(done.get("call_id"))
            if not call.size and (text := text or string(done.get("input"))):
                self._extend_call(call, text)
            return
        if call.name is None:
            return
        if item.type not in HOSTED:
            given = {name: value for name, value in done.items() if name not in _SURROUNDINGS and value is not None}
            self._extend_call(call, json_text(given))
            if not call.executed:
                return
        else:
            fields = {name: done[name] for name in HOSTED[item.type] if done.get(name) is not None}
            if item.type == "web_search_call":
                fields = mapping(fields.get("action"))
            if text or fields:
                self._extend_call(call, text or json_text(fields))
        failed = item.type == _APPROVAL or done.get("status") == "failed" or bool(done.get("error"))
        result = _NO_APPROVAL if item.type == _APPROVAL else done
        self._writing = None
        self._fragments.settle_call(call, result, is_error=failed, metadata={PROTOCOL: {"type": item.type}})

    def _complete_output(self, type: str, done: dict[str, Any]) -> None:
        """The output of a call that seemed to wait for us: the provider has run it."""
        id = word(done.get("call_id"))
        for item in self._items.values():
            call = item.call
            if item.type == type and call is not None and call.provider_id == id and not call.settled and call.name is not None:
                call.executed = True
                self._writing = None
                failed = done.get("status") == "failed"
                self._fragments.settle_call(call, done, is_error=failed, metadata={PROTOCOL: {"type": f"{type}_output"}})
                return

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
            self._finish("stop", status, refused=self._refused)

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


def _placed(annotations: list[Any], index: int) -> list[dict[str, Any]]:
    """The annotations of one part of a text; those behind the first part say which it is, since their places are its."""
    found = [mapping(annotation) for annotation in annotations if mapping(annotation)]
    return [{**annotation, "content_index": index} for annotation in found] if index else found
