"""Who waits for what becomes of a prompt (ruling C3).

The answer is derived from the store, in commit order, whenever it may have come: the first terminal turn after the promotion
that needs no continuation, or the withdrawal. A promoted prompt that nobody answers any more, because the session is idle, was
interrupted. Where a start goes on with an interrupted turn, that turn is one that needed continuation. A pending prompt is
waited for, however long.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ...protocol.values.errors import DeclaredError, PromptNotFoundError
from ...protocol.values.ids import MessageId, SessionId
from ...protocol.values.session import InterruptedOutcome, PromptOutcome
from ...storage.journal import Transaction
from ..mailbox import Answer
from .letters import WaitPrompt
from .services import Services

_Found = PromptOutcome | DeclaredError | bool
"""The outcome, an error, or whether the prompt was promoted and its turn has no end yet."""


class PromptWaiters:
    """The waiting `WaitPrompt` letters of one session."""

    def __init__(self, session_id: SessionId, services: Services) -> None:
        self._session_id = session_id
        self._services = services
        self._letters: list[WaitPrompt] = []

    @property
    def waiting(self) -> bool:
        """Whether anybody waits who has not given up."""
        return any(not letter.answer.abandoned for letter in self._letters)

    def add(self, letter: WaitPrompt) -> None:
        """Somebody waits from now on; `look` answers. Whoever has given up meanwhile is forgotten."""
        self._letters = [*(other for other in self._letters if not other.answer.abandoned), letter]

    def look(self, working: Callable[[], bool]) -> None:
        """Ask the store about every prompt that is waited for. `working()` says, when the answer comes, what goes on."""
        self._letters = [letter for letter in self._letters if not letter.answer.abandoned]
        for letter in tuple(self._letters):
            posted = self._services.storage.post(partial(self._find, letter.id))
            posted.when_done(partial(self._found, letter, working))

    def close(self, error: Exception) -> None:
        """Nobody will find out."""
        for letter in self._letters:
            letter.answer.fail(error)
        self._letters.clear()

    def _find(self, message_id: MessageId, transaction: Transaction) -> _Found:
        known = transaction.find_prompt(message_id)
        if known is None or known.session_id != self._session_id:
            return PromptNotFoundError(f"The session never had a prompt {message_id}.", message_id=message_id)
        outcome = transaction.prompt_outcome(self._session_id, message_id)
        return known.promoted_seq is not None if outcome is None else outcome

    def _found(self, letter: WaitPrompt, working: Callable[[], bool], posted: Answer[_Found]) -> None:
        found = posted.error if posted.error is not None else posted.result()
        match found:
            case bool() if found and not working():
                letter.answer.resolve(InterruptedOutcome())
            case bool():
                return
            case BaseException():
                letter.answer.fail(found)
            case _:
                letter.answer.resolve(found)
        if letter in self._letters:
            self._letters.remove(letter)
