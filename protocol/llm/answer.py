"""The frame of a decoder: one answer from its first byte to its end, whatever protocol is spoken inside.

Rules:
- A body is an event stream, or one JSON document: servers and proxies answer an error, or a whole answer, without a stream.
- Everything is bounded: an event, a document, the input of a call, the number of pieces, what is kept beside the text.
- One end: after `Finished` or `ProviderFailed` nothing more is said. A body that ends before either was incomplete.
- A line that is no JSON is invalid output, unless its event is none of the protocol's. JSON of a surprising shape is the
  business of the protocol, which passes it over.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Final, cast

from msgspec import structs

from ..values.failure import PROVIDER_INCOMPLETE, PROVIDER_INVALID_OUTPUT, Failure
from ..values.message import Finish
from ..values.model import NO_TOKENS, Tokens
from .classify import classify_error, excerpt
from .events import Finished, LLMEvent, ProviderFailed
from .fragments import CallFragment, Fragments
from .shapes import mapping
from .sse import MAX_EVENT_BYTES, EventTooLarge, ServerSentEvent, SseDecoder
from .unicode import decode_json, well_formed

MAX_PIECES: Final = 10_000
"""Blocks, items or calls that one answer may have."""
MAX_VALUES: Final = 1_000_000
"""Values that one event or document may have: in memory each takes many times its room on the wire."""
_MAX_HEAD: Final = 4096
_MAX_FINISH: Final = 100
_WHITESPACE: Final = b" \t\r\n"
_BOM: Final = b"\xef\xbb\xbf"


class AnswerDecoder(ABC):
    """One answer; implements `Decoder`. `limit` bounds an event, a document and the input of a call, in bytes.

    A protocol reads events by `_read_event` and a document by `_read_document`, puts what it finds into `_fragments`, and
    says the end by `_finish`, `_fail` or `_provider_error`.

    `steps` counts what brought the answer on and gave no event, like the beginning of an item that shows itself later.
    """

    def __init__(self, limit: int = MAX_EVENT_BYTES) -> None:
        self.steps: int = 0
        self._limit = limit
        self._fragments = Fragments()
        self._tokens: Tokens | None = None
        """Usage as far as it was reported."""
        self._sse = SseDecoder(limit)
        self._head: bytes | None = b""
        """The first bytes, until they show whether this is an event stream; None afterwards."""
        self._document: bytearray | None = None
        """The body, when it is no event stream."""
        self._end: Finished | ProviderFailed | None = None
        self._ended = False
        self._size = 0
        """Bytes of the event that is being read."""
        self._kept = 0
        self._reported = False

    def feed(self, data: bytes) -> list[LLMEvent]:
        """The events that `data` completes, in order."""
        if self._ended:
            return []
        if self._head is not None:
            self._head += data
            visible = self._head.removeprefix(_BOM).lstrip(_WHITESPACE)
            if len(self._head) < _MAX_HEAD and (not visible or _BOM.startswith(self._head)):
                return []
            data, self._head = self._head, None
            if visible and visible[:1] in b"{[<":
                self._document = bytearray()
        if self._document is not None:
            self._document += data
            if len(self._document) > self._limit:
                self._too_large()
            return self._take()
        for event in self._sse.feed(data):
            match event:
                case ServerSentEvent():
                    self._read(event)
                case EventTooLarge():
                    self._too_large()
            if self._end is not None:
                break
        return self._take()

    def close(self) -> list[LLMEvent]:
        """The body ended."""
        if self._ended:
            return []
        if self._document is not None:
            body = bytes(self._document)
            if not self._crowded(body):
                self._read_body(body)
        elif self._end is None:
            self._read_silence()
        if self._end is None:
            message = "The provider's answer broke off before it was complete."
            self._fail(PROVIDER_INCOMPLETE, message, retryable=True)
        return self._take()

    # --- what a protocol says -----------------------------------------------------------------------------------------

    @abstractmethod
    def _read_event(self, name: str, event: dict[str, Any]) -> None:
        """One event of the stream, decoded."""

    @abstractmethod
    def _read_document(self, document: dict[str, Any]) -> None:
        """A whole answer that came without a stream."""

    def _read_mark(self) -> None:
        """The line `[DONE]`, which ends the streams of some protocols."""
        return

    def _read_silence(self) -> None:
        """The stream ended and nothing had said so; a protocol may know that it was complete."""
        return

    def _concerns(self, name: str) -> bool:
        """Whether an event of this name is the protocol's; what other events hold need not even be JSON."""
        return name != "ping"

    def _extend_call(self, call: CallFragment, text: str) -> None:
        """More input of a call, within the limit."""
        self._fragments.extend_call(call, text)
        if call.size > self._limit:
            self._too_large()

    def _keep(self) -> bool:
        """Whether what this event says may be kept until its fragment ends; if not, the answer has failed."""
        self._kept += self._size
        if self._kept > self._limit:
            self._too_large()
        return self._end is None

    def _count_pieces(self, pieces: int) -> None:
        """So many pieces have begun, whether they show themselves or not."""
        if pieces > MAX_PIECES and self._end is None:
            self._fail(PROVIDER_INVALID_OUTPUT, f"The provider sent an answer of more than {MAX_PIECES} pieces.")

    def _report_usage(self) -> None:
        """Say what the answer has used until now: the first time that it is known."""
        if not self._reported and self._tokens is not None and self._tokens != NO_TOKENS:
            self._reported = True
            self._fragments.report(self._tokens)

    def _finish(self, finish: Finish, raw: str, *, refused: bool = False, paused: bool = False) -> None:
        """The protocol's explicit end. What the calls of the answer, or a refusal, say about it is put right here."""
        calls = self._fragments.calls
        if any(call.name is None for call in calls):
            self._fail(PROVIDER_INVALID_OUTPUT, "The model called a tool without saying which.")
            return
        if any(not call.executed for call in calls):
            finish = "tool-calls" if finish in ("stop", "unknown") else finish
        elif finish == "tool-calls":
            finish = "stop"
        if refused and finish in ("stop", "unknown"):
            finish = "content-filter"
        raw_finish = well_formed(raw[:_MAX_FINISH]) or None
        paused = paused and finish == "stop"
        self._end = Finished(finish=finish, tokens=self._tokens or NO_TOKENS, raw_finish=raw_finish, paused=paused)

    def _fail(self, type: str, message: str, *, retryable: bool = False) -> None:
        self._end = ProviderFailed(failure=Failure(type=type, message=message), retryable=retryable, tokens=self._tokens)

    def _provider_error(self, error: Any) -> None:
        """The provider said that it failed: an object, or only a text."""
        self._end = structs.replace(classify_error(error), tokens=self._tokens)

    # --- the body -----------------------------------------------------------------------------------------------------

    def _read(self, event: ServerSentEvent) -> None:
        text = event.data.strip()
        if not text:
            return
        self._size = len(text)
        if len(text) > MAX_VALUES and self._crowded(text):
            return
        if text == b"[DONE]":
            self._read_mark()
            return
        try:
            value = decode_json(text)
        except ValueError:
            if event.event == "error":
                self._provider_error(text.decode("utf-8", "replace"))
            elif self._concerns(event.event):
                self._fail(PROVIDER_INVALID_OUTPUT, f"The provider sent a line that is no JSON: {excerpt(text)}")
            return
        if event.event == "error" and not isinstance(value, dict):
            self._provider_error(value)
            return
        self._read_event(event.event, mapping(value))

    def _read_body(self, body: bytes) -> None:
        try:
            value = decode_json(body)
        except ValueError:
            message = f"The provider answered with something that is no event stream and no JSON: {excerpt(body)}"
            self._fail(PROVIDER_INVALID_OUTPUT, message)
            return
        if isinstance(value, list) and value:
            value = cast("list[Any]", value)[0]
        self._read_document(mapping(value))
        if self._end is None:
            message = f"The provider answered with JSON that is no answer of its protocol: {excerpt(body)}"
            self._fail(PROVIDER_INVALID_OUTPUT, message)

    def _crowded(self, text: bytes) -> bool:
        """Whether JSON may hold too many values, which fails the answer before they are made. Inside strings counts as well."""
        if len(text) <= MAX_VALUES or sum(map(text.count, (b",", b"[", b"{"))) <= MAX_VALUES:
            return False
        self._fail(PROVIDER_INVALID_OUTPUT, f"The provider sent more than {MAX_VALUES} values in one piece.")
        return True

    def _too_large(self) -> None:
        self._fail(PROVIDER_INVALID_OUTPUT, f"The provider sent more than {self._limit} bytes in one piece.")

    def _take(self) -> list[LLMEvent]:
        end = self._end
        if end is None:
            return self._fragments.take()
        self._ended = True
        closing = self._fragments.finish() if isinstance(end, Finished) else self._fragments.abandon()
        return [*closing, end]
