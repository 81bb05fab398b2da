"""`skill`: the text of one skill, behind the permission check; the only way to bodies and places (seed, skill guidance)."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ..context.files import FileTrouble
from ..context.skills import Skills, UnknownSkillError, render_skill
from .tool import Tool, ToolContext, ToolFailure, tool


def skill_tool(skills: Skills) -> Tool:
    """The tool. Permission is asked for action `skill` on the name, before anything is looked for."""

    @tool(name="skill", asks_itself=True)
    async def skill(
        context: ToolContext, name: Annotated[str, Meta(min_length=1, max_length=64, description="As it is listed.")]
    ) -> str:
        """Load a skill: instructions for one kind of task, by the name that the list of available skills gives."""
        await context.session.authorize("skill", (name,), save=(name,))
        try:
            return render_skill(await skills.load(name, context.location))
        except (UnknownSkillError, FileTrouble) as error:
            raise ToolFailure(str(error)) from error

    return skill
