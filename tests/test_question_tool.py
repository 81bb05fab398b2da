"""`question`: what may be asked, and what comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from steerway.actors.tools.asking import question_tool
from steerway.actors.tools.settlement import Failed, RawResult
from steerway.actors.tools.tool import UNATTENDED, CallOwner, DeclinedError, ToolOutput
from steerway.protocol.values import TextContent
from steerway.protocol.values.question import Question, QuestionOption
from support.tools import ScriptedOwner, make_context, make_registry

COLOUR: dict[str, Any] = {
    "question": "Which colour?",
    "header": "Colour",
    "options": [{"label": "Red", "description": "Like a rose."}, {"label": "Blue"}],
}
NAME: dict[str, Any] = {"question": "What is it called?", "header": "Name"}


async def ask(tmp_path: Path, owner: CallOwner, *questions: dict[str, Any]) -> RawResult:
    context = make_context(tmp_path, session=owner)
    tools = make_registry(tmp_path, question_tool()).materialise(context.location, "build")
    return await tools.run("question", {"questions": list(questions)}, "", context)


async def test_the_answers_come_back_as_text_and_as_a_value(tmp_path: Path) -> None:
    owner = ScriptedOwner(answers=(("Red", "Blue"), ()))
    output = await ask(tmp_path, owner, {**COLOUR, "multiple": True, "custom": False}, NAME)
    assert isinstance(output, ToolOutput)
    assert output.structured == {"answers": [["Red", "Blue"], []]}
    assert output.content == (TextContent(text="Which colour?\n-> Red, Blue\n\nWhat is it called?\n-> (no answer)"),)
    (asked,) = owner.questions
    options = (QuestionOption(label="Red", description="Like a rose."), QuestionOption(label="Blue", description=""))
    assert asked == (
        Question(question="Which colour?", header="Colour", options=options, multiple=True, custom=False),
        Question(question="What is it called?", header="Name", options=(), multiple=False, custom=True),
    )
    assert [(one.action, one.resources) for one in owner.asked] == [("question", ("*",))]


async def test_questions_that_are_dismissed_pass_through_to_the_turn(tmp_path: Path) -> None:
    with pytest.raises(DeclinedError) as caught:
        await ask(tmp_path, ScriptedOwner(answers=None), COLOUR)
    assert caught.value.type == "question.rejected"


async def test_where_nobody_attends_the_model_is_told_so(tmp_path: Path) -> None:
    result = await ask(tmp_path, UNATTENDED, COLOUR)
    assert isinstance(result, Failed)
    assert "Nobody" in result.error.message


@pytest.mark.parametrize(
    ("questions", "said"),
    [
        ([], "length >= 1"),
        ([COLOUR] * 11, "length <= 10"),
        ([{**NAME, "custom": False}], "neither options nor room"),
        ([{**COLOUR, "options": [{"label": "Red"}, {"label": "Red"}]}], "same option twice"),
        ([{**COLOUR, "options": [{"label": f"{number}"} for number in range(21)]}], "length <= 20"),
        ([{**COLOUR, "question": ""}], "question"),
        ([{**COLOUR, "colour": "x"}], "colour"),
    ],
)
async def test_what_cannot_be_answered_is_refused_before_anybody_is_asked(
    tmp_path: Path, questions: list[dict[str, Any]], said: str
) -> None:
    owner = ScriptedOwner(answers=())
    result = await ask(tmp_path, owner, *questions)
    assert isinstance(result, Failed)
    assert said in result.error.message
    assert owner.questions == []
