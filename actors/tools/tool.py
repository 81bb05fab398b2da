"""The Tool contract: what a tool is told, what it may give back, and how a plain Python function becomes one.

Rules:
- A tool sees its own invocation (`ToolContext`) and nothing else of the runtime.
- Only `ToolFailure` is a failure in the tool's own words. Whatever else it raises is a defect: the model learns that the
  call failed, the log learns why.
- Input that does not fit never executes. Output that does not fit what the tool declares, or that cannot be stored, fails
  the call.
- A tool is authorized by the session before it runs, as a whole, unless it says that it asks for what it does itself
  (`asks_itself`), resource by resource.
- Async functions run in the turn's own tasks. Plain functions run through the blocking seam and are abandoned when the call is
  cancelled: the call is settled at once and a late result dropped (ruling A17).
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, cast, overload

import msgspec

from ...protocol.llm.unicode import well_formed_value
from ...protocol.values import (
    CallId,
    FileContent,
    Location,
    ManagedOutput,
    MessageId,
    SessionId,
    TextContent,
    ToolContent,
    ToolDefinition,
)
from ...protocol.values.failure import PERMISSION_DENIED, PERMISSION_REJECTED, QUESTION_REJECTED, TOOL_EXECUTION
from ...protocol.values.permission import Rule
from ...protocol.values.question import Question
from .permissions import built_in_rules, evaluate
from .schema import check_describable, input_schema, signature_of

if TYPE_CHECKING:
    from ..blocking import Blocking

MAX_STRUCTURED_DEPTH: Final = 40
"""Nesting of a structured value: what the wire allows, less the event, page and message around it."""
MAX_STRUCTURED_BYTES: Final = 8 * 1024 * 1024
"""A structured value as JSON. History shows it unbounded, so that one that would not fit a frame is no valid output."""

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_SHOWN_RESOURCES: Final = 3
_SHOWN_LETTERS: Final = 200
_EMPTY: Final = inspect.Signature.empty


class ToolFailure(Exception):
    """A failure that the model is meant to read. The message is shown as it is, bounded like any output.

    `type` is the durable failure's type.
    """

    type: ClassVar[str] = TOOL_EXECUTION


class PermissionDeniedError(ToolFailure):
    """A rule denies this, or nobody is there who could allow it. The model reads it and the drain goes on."""

    type: ClassVar[str] = PERMISSION_DENIED

    def __init__(self, action: str, resources: Sequence[str], reason: str = "a permission rule denies it") -> None:
        super().__init__(f"{_described(action, resources)} is not permitted: {reason}.")


class PermissionCorrectedError(ToolFailure):
    """The user did not allow this and said what to do instead. The model reads it and the drain goes on."""

    type: ClassVar[str] = PERMISSION_REJECTED

    def __init__(self, action: str, resources: Sequence[str], message: str) -> None:
        super().__init__(f"The user did not allow {_described(action, resources)}, and says: {message}")


class DeclinedError(Exception):
    """The user declined a permission or dismissed a question, without a word for the model.

    No ToolFailure: like a cancellation it passes through everything here. The turn fails the call with `type` and stops the
    drain.
    """

    def __init__(self, message: str, *, type: str) -> None:
        super().__init__(message)
        self.type = type

    @classmethod
    def of_permission(cls, action: str, resources: Sequence[str]) -> DeclinedError:
        """A permission that was rejected."""
        return cls(f"The user declined {_described(action, resources)}.", type=PERMISSION_REJECTED)

    @classmethod
    def of_question(cls) -> DeclinedError:
        """Questions that were dismissed."""
        return cls("The user dismissed the questions.", type=QUESTION_REJECTED)


class CallOwner(Protocol):
    """The session, as one of its calls sees it. Cancelling a wait here withdraws what it waits for."""

    async def authorize(
        self, action: str, resources: Sequence[str], *, save: Sequence[str] = (), metadata: dict[str, Any] | None = None
    ) -> None:
        """Return when the call may do this; waits for somebody's answer where the rules say so.

        `save` are the patterns that an answer `always` keeps for the directory; `metadata` is shown to whoever is asked.
        Raises `PermissionDeniedError`, `PermissionCorrectedError` or `DeclinedError`.
        """
        ...

    async def ask(self, questions: tuple[Question, ...]) -> tuple[tuple[str, ...], ...]:
        """The user's answers, one list for each question. Raises `DeclinedError` when the questions are dismissed."""
        ...

    def progress(self, text: str) -> None:
        """Show what the call is doing. Live only; never waits and never raises."""
        ...


class Unattended:
    """A session where nobody can be asked: what its rules do not allow is denied."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules

    async def authorize(
        self, action: str, resources: Sequence[str], *, save: Sequence[str] = (), metadata: dict[str, Any] | None = None
    ) -> None:
        match evaluate(self._rules, action, resources):
            case "allow":
                pass
            case "ask":
                raise PermissionDeniedError(action, resources, "nobody is there who could allow it")
            case "deny":
                raise PermissionDeniedError(action, resources)

    async def ask(self, questions: tuple[Question, ...]) -> tuple[tuple[str, ...], ...]:
        raise ToolFailure("Nobody is there who could answer.")

    def progress(self, text: str) -> None:
        pass


UNATTENDED: Final[CallOwner] = Unattended(built_in_rules("build"))


@dataclass(frozen=True, slots=True)
class ToolContext:
    """One invocation. `agent` is the effective agent of the turn that issued the call, whatever is selected later.

    `blocking` is for files and other work that blocks; it is where plain functions run. `session` is where the call asks for
    permission, asks the user, and tells of its progress. `rules` are that agent's permission rules, for a tool that meets many
    resources in one call; everything else is better asked of `session`.
    """

    session_id: SessionId
    agent: str
    assistant_message_id: MessageId
    call_id: CallId
    location: Location
    blocking: Blocking
    session: CallOwner = UNATTENDED
    rules: Sequence[Rule] = ()


class InvalidInput(Exception):
    """The input does not fit the tool's schema; the message names the field."""


class InvalidOutput(Exception):
    """What the tool gave is not what it declares, or cannot be stored. A defect of the tool: the message is for the log."""


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """What a tool gives when text alone is not enough.

    `content` is what the model sees; when it is empty, the model sees `structured` as JSON. `structured` is for the
    session's observers and is never changed. `managed_outputs` are files that the tool filled itself (a bounded
    capture); they survive the registry's own bounding.
    """

    content: tuple[ToolContent, ...] = ()
    structured: Any = None
    managed_outputs: tuple[ManagedOutput, ...] = ()
    lossy: bool = False


@dataclass(frozen=True, slots=True)
class Tool:
    """A definition and what stands behind it. Immutable: a registration captures it, an offered set runs it.

    `decode` turns the model's JSON object into whatever `invoke` takes and raises `InvalidInput`. `invoke` raises
    `ToolFailure`, `InvalidOutput`, or anything. A tool that `asks_itself` authorizes what it does through its context; any
    other is authorized before it runs, with its name as the action.
    """

    definition: ToolDefinition
    decode: Callable[[dict[str, Any]], Any] = field(repr=False)
    invoke: Callable[[Any, ToolContext], Awaitable[ToolOutput]] = field(repr=False)
    asks_itself: bool = False

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.definition.name):
            raise TypeError(f"{self.definition.name!r} is no tool name: a letter, then up to 63 of A-Z a-z 0-9 _ -")
        if not self.definition.description.strip():
            raise TypeError(f"the tool {self.definition.name} needs a description (its docstring)")

    @property
    def name(self) -> str:
        """What the model calls it by."""
        return self.definition.name

    @classmethod
    def from_function(
        cls,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        asks_itself: bool = False,
    ) -> Tool:
        """The tool that a function is: annotations are its schema, the docstring its description.

        A first parameter annotated `ToolContext` gets the invocation. The result may be text, bytes (decoded with
        replacement), None, a `ToolOutput`, or any value that msgspec can encode, which becomes `structured`; it is checked
        against the return annotation. Raises TypeError for a function that cannot be a tool.
        """
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError("a generator function cannot be a tool")
        signature = signature_of(function, ToolContext)
        check = _output_check(signature.output)
        definition = ToolDefinition(
            name=name or str(getattr(function, "__name__", "")),
            description=description or inspect.getdoc(function) or "",
            input_schema=input_schema(signature.input),
        )

        def decode(value: dict[str, Any]) -> dict[str, Any]:
            try:
                decoded = msgspec.convert(value, signature.input, strict=True)
            except msgspec.ValidationError as error:
                raise InvalidInput(str(error)) from error
            return {key: getattr(decoded, key) for key in signature.input.__struct_fields__}

        async def invoke(arguments: dict[str, Any], context: ToolContext) -> ToolOutput:
            leading = (context,) if signature.takes_context else ()
            if _is_async(function):
                result = await function(*leading, **arguments)
            else:
                result = await context.blocking.run(lambda: function(*leading, **arguments), abandon_on_cancel=True)
            return output_of(check(result))

        return cls(definition, decode, invoke, asks_itself)


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *, name: str | None = None, description: str | None = None, asks_itself: bool = False
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    asks_itself: bool = False,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Decorator: the function as a `Tool`. See `Tool.from_function`."""
    if function is not None:
        return Tool.from_function(function)
    return lambda function: Tool.from_function(function, name=name, description=description, asks_itself=asks_itself)


def output_of(value: Any) -> ToolOutput:
    """The output that a returned value stands for, checked to be storable. Raises `InvalidOutput`."""
    match value:
        case ToolOutput():
            if not all(_is_content(item) for item in value.content):
                raise InvalidOutput("content holds something that is neither text nor a file")
            return ToolOutput(value.content, _storable(value.structured), value.managed_outputs, value.lossy)
        case str():
            return ToolOutput((TextContent(text=value),))
        case bytes() | bytearray():
            return ToolOutput((TextContent(text=value.decode("utf-8", "replace")),))
        case _:
            return ToolOutput(structured=_storable(value))


def _described(action: str, resources: Sequence[str]) -> str:
    shown = ", ".join(f"`{_excerpt(resource)}`" for resource in resources[:_SHOWN_RESOURCES] if resource != "*")
    return f"{action} {shown}" if shown else action


def _excerpt(text: str) -> str:
    return text if len(text) <= _SHOWN_LETTERS else f"{text[:_SHOWN_LETTERS]}…"


def _is_content(item: object) -> bool:
    match item:
        case TextContent():
            return isinstance(cast("object", item.text), str)
        case FileContent():
            return isinstance(cast("object", item.data), bytes)
        case _:
            return False


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(cast("Any", function).__call__)


def _output_check(annotation: Any) -> Callable[[Any], Any]:
    """A function that raises `InvalidOutput` for results of another type than declared."""
    if annotation is _EMPTY or annotation is Any:
        return lambda value: value
    if annotation is ToolOutput or ToolOutput in typing.get_args(annotation):
        alternatives = tuple(kind for kind in typing.get_args(annotation) if kind is not ToolOutput)
        others = _output_check(typing.Union[alternatives]) if alternatives else None  # noqa: UP007 (made at run time)

        def check_output(value: Any) -> Any:
            if isinstance(value, ToolOutput):
                return value
            if others is None:
                raise InvalidOutput(f"a ToolOutput is declared, but {type(value).__name__} was given")
            return others(value)

        return check_output
    check_describable(annotation)

    def check_value(value: Any) -> Any:
        try:
            msgspec.convert(_builtins(value), annotation)
        except msgspec.ValidationError as error:
            raise InvalidOutput(f"the result is not what is declared: {error}") from error
        return value

    return check_value


def _builtins(value: Any) -> Any:
    try:
        return msgspec.to_builtins(value, str_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidOutput(f"the result cannot be stored: {error}") from error


def _storable(value: Any) -> Any:
    """The structured value as both codecs carry it (ruling B14), strings well-formed (ruling B13)."""
    plain = _builtins(value)
    _check_storable(plain, MAX_STRUCTURED_DEPTH)
    plain = well_formed_value(plain)
    if len(msgspec.json.encode(plain)) > MAX_STRUCTURED_BYTES:
        raise InvalidOutput(f"the structured value is larger than {MAX_STRUCTURED_BYTES} bytes")
    return plain


def _check_storable(value: Any, depth: int) -> None:
    match value:
        case dict() | list() | tuple():
            if depth == 0:
                raise InvalidOutput(f"the structured value is nested more than {MAX_STRUCTURED_DEPTH} deep")
            inside = cast("dict[str, Any]", value).values() if isinstance(value, dict) else cast("list[Any]", value)
            for item in inside:
                _check_storable(item, depth - 1)
        case bool():
            pass
        case int():
            if not -(2**63) <= value < 2**64:
                raise InvalidOutput("the structured value holds an integer of more than 64 bits")
        case float():
            if value != value or value in (float("inf"), float("-inf")):
                raise InvalidOutput("the structured value holds a number that JSON cannot say")
        case _:
            pass
