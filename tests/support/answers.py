"""What a scripted provider answers, as values: parts of a model's answer, steps in time, and the answer around them.

Rules:
- Parts say what the model says, not how a protocol spells it; a wire module (`openai_chat`) turns them into bytes.
- An answer is played once: it carries the events that tell how its playing went.
- Nothing here sends; times are seconds of trio's clock, so a mock clock paces an answer too.
"""

import json as jsonlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from typing import Any, Literal, TypeAlias, TypedDict, Unpack

import msgspec
import trio

CutHow = Literal["reset", "fin"]  # a TCP reset, or an orderly close in the middle of the chunked body
ReasoningField = Literal["reasoning_content", "reasoning"]  # the two spellings of chat-completions servers


class Text(msgspec.Struct, frozen=True):
    """One delta of visible text."""

    text: str


class Reasoning(msgspec.Struct, frozen=True):
    """One delta of reasoning text, in the given spelling."""

    text: str
    field: ReasoningField


class Call(msgspec.Struct, frozen=True, eq=False):
    """A tool call, shared by its deltas; equal only to itself, so that repeated ids and indexes can be scripted."""

    name: str
    id: str | None  # None: the wire module makes a unique one
    index: int | None  # None: its place among the answer's calls


class CallStart(msgspec.Struct, frozen=True):
    """The delta that opens a call with its id and name, and the beginning of its arguments."""

    call: Call
    arguments: str


class CallDelta(msgspec.Struct, frozen=True):
    """One further piece of a call's arguments."""

    call: Call
    arguments: str


class Finish(msgspec.Struct, frozen=True):
    """Why the model stopped, in the words of chat completions: stop, length, tool_calls, content_filter."""

    reason: str


class Usage(msgspec.Struct, frozen=True):
    """Token counts; cached is a part of prompt, reasoning a part of completion."""

    prompt: int
    completion: int
    cached: int
    reasoning: int
    if_asked: bool  # sent only when the request asked for usage


class Done(msgspec.Struct, frozen=True):
    """The protocol's end of stream mark."""


class Raw(msgspec.Struct, frozen=True):
    """Bytes of the body, as they are."""

    data: bytes


class Delay(msgspec.Struct, frozen=True):
    """Wait so many seconds."""

    seconds: float


class Cut(msgspec.Struct, frozen=True):
    """Close the TCP connection here, without ending the body."""

    how: CutHow


@dataclass(slots=True, eq=False)
class Hold:
    """Wait here until `event` is set. `reached` is set once everything before has been handed to the kernel."""

    event: trio.Event = field(default_factory=trio.Event)
    reached: trio.Event = field(default_factory=trio.Event)

    def release(self) -> None:
        """Let the answer go on."""
        self.event.set()


Step: TypeAlias = Hold | Delay | Cut
Part: TypeAlias = Text | Reasoning | CallStart | CallDelta | Finish | Usage | Done | Raw | Step
Block: TypeAlias = tuple[Part, ...]


def _pieces(text: str | Sequence[str], deltas: int) -> list[str]:
    """Cut a text into so many nearly equal deltas; a sequence is taken as its deltas already."""
    if not isinstance(text, str):
        return list(text)
    if deltas > max(len(text), 1):
        raise ValueError(f"{len(text)} characters do not fill {deltas} deltas; give the deltas as a sequence")
    edges = [len(text) * n // deltas for n in range(deltas + 1)]
    return [text[start:end] for start, end in pairwise(edges)]


def _paced(parts: Sequence[Part], every: float) -> Block:
    """Put a delay of `every` seconds between the parts."""
    if not every:
        return tuple(parts)
    return tuple(part for item in parts for part in (Delay(every), item))[1:]


def text(content: str | Sequence[str], *, deltas: int = 1, every: float = 0) -> Block:
    """Visible text in `deltas` pieces (or the pieces given), `every` seconds apart."""
    return _paced([Text(piece) for piece in _pieces(content, deltas)], every)


def reasoning(
    content: str | Sequence[str], *, deltas: int = 1, every: float = 0, field: ReasoningField = "reasoning_content"
) -> Block:
    """Reasoning text in `deltas` pieces (or the pieces given), `every` seconds apart."""
    return _paced([Reasoning(piece, field) for piece in _pieces(content, deltas)], every)


def tool_call(
    name: str,
    arguments: Mapping[str, Any] | str | Sequence[str] = "{}",
    *,
    id: str | None = None,
    index: int | None = None,
    deltas: int = 1,
    every: float = 0,
) -> Block:
    """A tool call whose arguments are an object, raw text (broken, if you like) or the pieces of a raw text.

    With `deltas=0` the call comes whole in its opening delta. Give `id` or `index` to repeat or to skip them.
    """
    call = Call(name, id, index)
    raw = jsonlib.dumps(arguments) if isinstance(arguments, Mapping) else arguments
    if deltas == 0:
        return (CallStart(call, raw if isinstance(raw, str) else "".join(raw)),)
    return _paced([CallStart(call, ""), *(CallDelta(call, piece) for piece in _pieces(raw, deltas))], every)


def interleave(*blocks: Block) -> Block:
    """Take one part of each block in turn, until all are used up."""
    return tuple(part for row in zip_longest(*blocks) for part in row if part is not None)


def finish(reason: str = "stop") -> Finish:
    """Why the model stopped: stop, length, tool_calls, content_filter, or anything else to be odd."""
    return Finish(reason)


def usage(prompt: int = 0, completion: int = 0, *, cached: int = 0, reasoning: int = 0) -> Usage:
    """Token counts, sent whether or not the request asked for them."""
    return Usage(prompt, completion, cached, reasoning, if_asked=False)


def done() -> Done:
    """The end of stream mark."""
    return Done()


def raw(data: bytes | str) -> Raw:
    """Bytes of the body: broken lines, comments, bytes that are no UTF-8."""
    return Raw(data.encode() if isinstance(data, str) else data)


def event(data: object, name: str | None = None) -> Raw:
    """One server-sent event: `data` as it is when a string, else as JSON; `name` fills the event field."""
    line = data if isinstance(data, str) else jsonlib.dumps(data)
    return raw((f"event: {name}\n" if name else "") + f"data: {line}\n\n")


def hold(until: trio.Event | None = None) -> Hold:
    """Wait here until the test sets `until` (or calls `release()`); `await it.reached.wait()` tells when."""
    return Hold(until or trio.Event())


def delay(seconds: float) -> Delay:
    """Wait here for so many seconds of trio's clock."""
    return Delay(seconds)


def cut(how: CutHow = "reset") -> Cut:
    """Close the connection here."""
    return Cut(how)


class Options(TypedDict, total=False):
    """How an answer is sent.

    `before`: steps before the first byte. `head_pace`: seconds between the lines of the head. `one_piece`: one write
    for all that lies between two waits. `piece_bytes`: the body in writes of so many bytes. `cut_at`: close after so
    many bytes of the body, as `cut_how` says. `close`: say `Connection: close` and do so.
    """

    headers: Mapping[str, str]
    before: Sequence[Step]
    head_pace: float
    one_piece: bool
    piece_bytes: int
    cut_at: int
    cut_how: CutHow
    close: bool


@dataclass(slots=True, eq=False)
class Answer:
    """An answer to one request, and how its playing went.

    One of two events is set at its end: `finished` when all was written (or cut by the script), `disconnected` when the
    client closed the connection before that.
    """

    parts: Block
    status: int = 200
    content_type: str = "text/event-stream"
    plain: bool = False  # one body of known length
    options: Options = field(default_factory=Options)
    finished: trio.Event = field(default_factory=trio.Event)
    disconnected: trio.Event = field(default_factory=trio.Event)


def stream(*parts: Part | Block, **options: Unpack[Options]) -> Answer:
    """An event stream of exactly these parts."""
    flat = tuple(inner for part in parts for inner in (part if isinstance(part, tuple) else (part,)))
    return Answer(flat, options=options)


def answer(*parts: Part | Block, **options: Unpack[Options]) -> Answer:
    """An event stream of these parts and what a whole answer still needs: finish, usage (if asked for), done."""
    made = stream(*parts, **options)
    kinds = {type(part) for part in made.parts}
    body: Block = made.parts
    ending: list[Part] = []
    if Finish not in kinds:
        ending.append(Finish("tool_calls" if CallStart in kinds else "stop"))
        if body and isinstance(body[-1], Usage):
            body, ending = body[:-1], [*ending, body[-1]]  # usage follows the finish
    if Usage not in kinds:
        ending.append(Usage(10, 5, 0, 0, if_asked=True))
    if Done not in kinds:
        ending.append(Done())
    made.parts = (*body, *ending)
    return made


def status(code: int, body: object = None, *, content_type: str = "application/json", **options: Unpack[Options]) -> Answer:
    """An answer with one body and no stream: a string or bytes as they are, anything else as JSON.

    Without a body it is the protocol's error object for this status.
    """
    if body is None:
        return Answer((), code, content_type, plain=True, options=options)
    data = body if isinstance(body, str | bytes) else jsonlib.dumps(body)
    return Answer((raw(data),), code, content_type, plain=True, options=options)
