"""`question`: the model asks its user, and waits for the answer.

Rules: a question has options, or takes the user's own words, or both. What cannot be answered, or not clearly, is refused
before anybody is asked. Questions that are dismissed end the drain (`DeclinedError`).
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from ...protocol.values.question import Question, QuestionOption
from ...protocol.values.tool import TextContent
from .tool import Tool, ToolContext, ToolFailure, ToolOutput, tool

MAX_QUESTIONS: Final = 10
MAX_OPTIONS: Final = 20

_Label = Annotated[str, Meta(min_length=1, max_length=100)]
_Sentence = Annotated[str, Meta(min_length=1, max_length=2_000)]


class Option(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    label: _Label
    description: Annotated[str, Meta(max_length=500)] = ""


class Asked(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    question: _Sentence
    header: Annotated[str, Meta(min_length=1, max_length=60, description="A few words that name the question.")]
    options: Annotated[tuple[Option, ...], Meta(max_length=MAX_OPTIONS)] = ()
    multiple: Annotated[bool, Meta(description="Whether several options may be chosen.")] = False
    custom: Annotated[bool, Meta(description="Whether an answer in the user's own words is welcome.")] = True


def question_tool() -> Tool:
    """The tool."""

    @tool(name="question")
    async def question(
        context: ToolContext,
        questions: Annotated[tuple[Asked, ...], Meta(min_length=1, max_length=MAX_QUESTIONS)],
    ) -> ToolOutput:
        """Ask the user one or more questions and wait for the answers. Use it when the work cannot go on without them."""
        asked = tuple(_question(one) for one in questions)
        answers = await context.session.ask(asked)
        lines = [f"{one.question}\n-> {', '.join(answer) or '(no answer)'}" for one, answer in zip(asked, answers, strict=True)]
        structured = {"answers": [list(answer) for answer in answers]}
        return ToolOutput((TextContent(text="\n\n".join(lines)),), structured)

    return question


def _question(asked: Asked) -> Question:
    labels = [option.label for option in asked.options]
    if not labels and not asked.custom:
        raise ToolFailure(f"`{asked.header}` has neither options nor room for the user's own words.")
    if len(set(labels)) < len(labels):
        raise ToolFailure(f"`{asked.header}` offers the same option twice.")
    return Question(
        question=asked.question,
        header=asked.header,
        options=tuple(QuestionOption(label=option.label, description=option.description) for option in asked.options),
        multiple=asked.multiple,
        custom=asked.custom,
    )
