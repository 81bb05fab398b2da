"""Who answers what a session asks while `run` watches it: a person at the terminal, or nobody.

Rules (ruling C6):
- On a terminal a person is asked; without one a permission is denied, and the model reads why. `--permissions` says otherwise.
- A question is for a person whatever `--permissions` says. Without one it is dismissed, which ends the work: the model had said
  that it cannot go on. What it asked is shown, so that the next prompt can answer it.
- One thing is asked at a time. What ends meanwhile, because somebody else answered or the session was interrupted, is not asked
  any more. What was typed before a request was shown is no answer to it.
- A person sees all of what is asked for, as far as a screen holds it, and without control characters.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from .output import brief, plain, remark

if TYPE_CHECKING:
    import trio

    from ...protocol.values import Event, RequestId
    from ...protocol.values.event import PermissionAsked, QuestionAsked
    from ...protocol.values.question import Question
    from ..client.client import Client

Policy: TypeAlias = Literal["ask", "allow", "deny"]

NOBODY: Final = "Nobody is there who could allow this. Go on without it, or end here and say what you would need."

_SHOWN: Final = 200
"""Characters of what is only told."""
_WHOLE: Final = 4_000
"""Characters of what somebody decides about."""
_ENOUGH: Final = 100
"""Requests that wait to be shown; a session never has as many."""


def has_terminal() -> bool:
    """Whether somebody can be asked: what is typed comes from a terminal, and what is asked goes to one."""
    return sys.stdin.isatty() and sys.stderr.isatty()


class Answering:
    """Answers the requests of one session. `terminal` is where a person is; `policy` None decides by whether there is one.

    `before` is called before something is shown, to end a line that is being written.
    """

    def __init__(self, client: Client, policy: Policy | None, terminal: Terminal | None, before: Callable[[], None]) -> None:
        import trio

        self._client = client
        self._terminal = terminal
        self._policy = policy or ("deny" if self._terminal is None else "ask")
        self._before = before
        self._waiting: set[RequestId] = set()
        self._current: tuple[RequestId, trio.CancelScope] | None = None
        self._send, self._receive = trio.open_memory_channel[Callable[[], Awaitable[None]]](_ENOUGH)

    def saw(self, event: Event) -> None:
        """Take notice of an event of the session."""
        from ...protocol.values.event import (
            PermissionAsked,
            PermissionReplied,
            QuestionAsked,
            QuestionRejected,
            QuestionReplied,
        )

        match event.data:
            case PermissionAsked(request_id=request_id) as asked:
                self._waiting.add(request_id)
                self._send.send_nowait(lambda: self._answer(request_id, lambda: self._permission(asked)))
            case QuestionAsked(request_id=request_id) as asked:
                self._waiting.add(request_id)
                self._send.send_nowait(lambda: self._answer(request_id, lambda: self._question(asked)))
            case PermissionReplied(request_id=request_id) | QuestionReplied(request_id=request_id):
                self._ended(request_id)
            case QuestionRejected(request_id=request_id):
                self._ended(request_id)
            case _:
                pass

    async def run(self) -> None:
        """Answer, one request after the other, until cancelled."""
        async for answer in self._receive:
            await answer()

    def _ended(self, request_id: RequestId) -> None:
        self._waiting.discard(request_id)
        if self._current is not None and self._current[0] == request_id:
            self._current[1].cancel()

    async def _answer(self, request_id: RequestId, work: Callable[[], Awaitable[object]]) -> None:
        import trio

        from ...protocol.values.errors import ConflictError, PermissionNotFoundError, QuestionNotFoundError

        if request_id not in self._waiting:
            return
        with trio.CancelScope() as scope:
            self._current = request_id, scope
            try:
                await work()
            except (ConflictError, PermissionNotFoundError, QuestionNotFoundError):
                pass  # somebody else was quicker
            finally:
                self._current = None

    async def _permission(self, asked: PermissionAsked) -> None:
        reply = self._client.permissions.reply
        what = f"{asked.action} {', '.join(_distinct(asked.resources))}"
        if self._policy == "allow":
            await reply(asked.request_id, "once")
        elif self._policy == "deny":
            self._remark(f"  · not permitted: {brief(what, _SHOWN)} (`--permissions allow` would have allowed it)")
            await reply(asked.request_id, "reject", message=NOBODY)
        elif self._terminal is None:
            self._remark(f"  · waits for another client to permit: {brief(what, _SHOWN)}")
        else:
            self._remark(f"  ? {_whole(what)}")
            for key, value in (asked.metadata or {}).items():
                if isinstance(value, str) and value not in what:
                    remark(f"    {brief(key, _SHOWN)}: {_whole(value)}")
            always = f", [a]lways ({brief(', '.join(asked.save), _SHOWN)})" if asked.save else ""
            answer = await self._terminal.ask(f"    Allow it? [y]es{always}, [n]o, or say what to do instead: ")
            match answer.lower():
                case "y" | "yes":
                    await reply(asked.request_id, "once")
                case "a" | "always" if asked.save:
                    await reply(asked.request_id, "always")
                case "" | "n" | "no":
                    await reply(asked.request_id, "reject")
                case _:
                    await reply(asked.request_id, "reject", message=answer)

    async def _question(self, asked: QuestionAsked) -> None:
        answers: list[tuple[str, ...]] = []
        for question in asked.questions:
            self._remark(f"  ? {plain(question.question)}")
            for number, option in enumerate(question.options, 1):
                remark(f"    {number}. {brief(f'{option.label}  {option.description}', _SHOWN)}")
            if self._terminal is not None:
                answer = await self._chosen(self._terminal, question)
                if not answer:
                    break
                answers.append(answer)
        if len(answers) == len(asked.questions):
            await self._client.questions.reply(asked.request_id, tuple(answers))
        elif self._terminal is not None:
            await self._client.questions.reject(asked.request_id)
        else:
            remark("    Nobody is here to answer; the next prompt to the session can.")
            await self._client.questions.reject(asked.request_id)

    async def _chosen(self, terminal: Terminal, question: Question) -> tuple[str, ...]:
        ways = ["numbers" if question.multiple else "a number"] if question.options else []
        ways += [] if question.custom is False else ["your own words"]
        while line := await terminal.ask(f"    Answer with {' or '.join(ways)}, or with nothing to dismiss it: "):
            if answer := chosen(question, line):
                return answer
            remark("    That is none of the answers.")
        return ()

    def _remark(self, text: str) -> None:
        self._before()
        remark(text)


def chosen(question: Question, line: str) -> tuple[str, ...]:
    """The answer in a line: options by their numbers, or the line as it is; empty when it is none."""
    pieces = line.replace(",", " ").split()
    numbers = [int(piece) - 1 for piece in pieces if piece.isascii() and piece.isdigit()]
    if question.options and len(numbers) == len(pieces):
        known = all(0 <= number < len(question.options) for number in numbers)
        if known and (question.multiple or len(numbers) == 1):
            return tuple(dict.fromkeys(question.options[number].label for number in numbers))
        return ()
    return () if question.custom is False else (line,)


def _distinct(resources: tuple[str, ...]) -> list[str]:
    """Without those that another one shows already, as a command line shows its parts."""
    return [one for place, one in enumerate(resources) if not any(one in other for other in resources[:place])]


def _whole(text: str) -> str:
    shown = plain(text).replace("\n", "\n      ")
    return shown if len(shown) <= _WHOLE else f"{shown[:_WHOLE]}… ({len(text)} characters)"


class Terminal:
    """Where a person reads and types."""

    def __init__(self) -> None:
        self._asking = False

    def leave(self) -> None:
        """End the line of a question that waits for its answer, if any, since something else is said below it."""
        if self._asking:
            self._asking = False
            remark("")

    async def ask(self, prompt: str) -> str:
        """The next line that is typed, without blanks around it; empty also at the end of input. Cancelling leaves at once."""
        import termios

        import trio

        descriptor = sys.stdin.fileno()
        termios.tcflush(descriptor, termios.TCIFLUSH)
        sys.stderr.write(prompt)
        sys.stderr.flush()
        self._asking = True
        typed = b""
        try:
            while not typed.endswith(b"\n"):
                await trio.lowlevel.wait_readable(descriptor)
                piece = os.read(descriptor, 4_096)
                if not piece:
                    self.leave()
                    break
                typed += piece
        except trio.Cancelled:
            self.leave()
            raise
        self._asking = False
        return typed.decode(errors="replace").strip()
