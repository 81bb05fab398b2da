"""Compaction: making a Session's history small enough, by forgetting old results or by a summary.

Rules (semantics, "Compaction"; reference 5; rulings B10, B11):
- A request is too large when its estimate exceeds the model's context less its output allowance or the configured buffer,
  whichever is more (at most half the context). Without a known context limit there is no pressure.
- Under pressure old results of local calls are pruned first, if that alone is enough; otherwise the history is summarised.
  Both begin a new Context Epoch. When a summary was asked for, only a summary is made.
- The summary is asked for with the text of the history that is to go and the summary before it, without tools. Only a
  complete answer counts that is not blank. Retryable failures are tried again within a budget of their own.
- It starts and ends durably, exactly once. Failure changes nothing else: history stays as it is. Interrupted, it fails as
  aborted. After `MAX_FAILURES` in a row nothing is tried by itself until a compaction succeeds or the model is switched.
- It promotes nothing and accepts nothing; the inbox goes on accepting meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from ...protocol.llm import events as llm
from ...protocol.llm.request import Generation, LLMRequest, Text, UserMessage
from ...protocol.llm.transcript import CHARACTERS_PER_TOKEN, prunable, result_tokens, split
from ...protocol.values.event import (
    CompactionCompleted,
    CompactionDelta,
    CompactionFailed,
    CompactionStarted,
    EventData,
    ToolPruned,
)
from ...protocol.values.failure import ABORTED, COMPACTION_FAILED, COMPACTION_UNAVAILABLE, Failure
from ...protocol.values.ids import MessageId, SessionId
from ...protocol.values.message import CompactionMessage, CompactionReason, Message
from ...protocol.values.model import NO_TOKENS, Tokens
from ...storage.journal import Transaction
from ...storage.reader import Reader
from ..logs import Logger
from ..models.catalog import ModelInfo
from .journal import SessionJournal
from .retry import RetryBudget
from .services import Services

MAX_FAILURES: Final = 3
SUMMARY_TOKENS: Final = 4_096
PRUNED_TOKENS: Final = 20
"""What stands for a pruned result, about."""

ABORTED_COMPACTION: Final = Failure(type=ABORTED, message="The compaction was interrupted.")
NOTHING_TO_COMPACT: Final = Failure(type=COMPACTION_UNAVAILABLE, message="There is no history that could be summarised.")

INSTRUCTION: Final = """\
You write the memory of a conversation between a user and an assistant that works with tools. What you write takes the place
of the conversation below, which will not be seen again. Write only what is known from it, complete and brief, so that the work
can go on from there. Keep names, paths, numbers, commands and error messages exactly. Do not answer the conversation, and do
not go on with its work.

Use these headings, and write "none" below one that has nothing:

## Goal
## Requirements and preferences
## Progress
What is done, what is under way, what is blocked.
## Decisions
## Next steps
## Files and other facts that will be needed
"""
UPDATE: Final = """\
An earlier part of the conversation was summarised already. Bring that summary up to date with what follows it: keep what is
still true, drop what is not, and move what was done.
"""

_log = Logger("steerway.compaction")


def ceiling(services: Services, model: ModelInfo) -> int | None:
    """How many tokens a request to the model may have before something is done about it; None when nothing ever is."""
    if model.context is None or not services.compaction.auto:
        return None
    allowance = model.generation.max_tokens or model.output or 0
    return model.context - min(max(allowance, services.compaction.buffer), model.context // 2)


class Compactor:
    """Makes the history of one session smaller. `delivered(id)` is told when an inbox item has become a compaction."""

    def __init__(
        self, services: Services, session_id: SessionId, journal: SessionJournal, delivered: Callable[[MessageId], None]
    ) -> None:
        self._services = services
        self._session_id = session_id
        self._journal = journal
        self._delivered = delivered
        self._used = NO_TOKENS
        """What the attempts at a summary that are over have used."""
        self._said = NO_TOKENS
        """What the provider said until now that the one under way has used."""

    async def relieve(self, excess: int, model: ModelInfo) -> bool:
        """Do something about a request that is so many tokens too large. True when history changed, so that a new boundary
        has to follow.
        """
        return await self._prune(excess) or await self.summarise("auto", model)

    async def recover(self, model: ModelInfo) -> bool:
        """Summarise because the provider said that a request was too large. True when there is a summary."""
        return self._services.compaction.auto and await self.summarise("overflow", model)

    async def summarise(self, reason: CompactionReason, model: ModelInfo, message_id: MessageId | None = None) -> bool:
        """One compaction, from its start to its end. True when it was completed.

        `message_id` is that of the inbox item when it was asked for. Raises `StorageUnavailableError`.
        """
        if reason != "manual" and await self._given_up():
            return False
        history = await self._services.storage.read(self._history)
        older, recent = await self._services.blocking.run(lambda: split(history, self._services.compaction.keep_tokens))
        if reason != "manual" and not older.strip():
            return False
        message_id = message_id or self._services.ids.message()
        previous = await self._services.storage.read(self._last_summary)
        if not await self._start(message_id, reason):
            return False
        # Nothing is awaited unguarded from here to the record of the end: a cancelled wait would leave a start without one.
        if not older.strip():
            await self._end(CompactionFailed(message_id=message_id, error=NOTHING_TO_COMPACT))
            return False
        end: EventData | None = None
        self._used = self._said = NO_TOKENS
        try:
            end = await self._summary(message_id, model, _request(model, older, previous), recent)
        finally:
            await self._end(end or _failed(message_id, model, ABORTED_COMPACTION, self._used + self._said))
        return isinstance(end, CompactionCompleted)

    async def refuse(self, message_id: MessageId, error: Failure) -> None:
        """A compaction that was asked for cannot even be tried."""
        if await self._start(message_id, "manual"):
            await self._end(CompactionFailed(message_id=message_id, error=error))

    async def _start(self, message_id: MessageId, reason: CompactionReason) -> bool:
        started = await self._services.storage.commit(_Start(self._services, self._session_id, message_id, reason))
        if started and reason == "manual":
            self._delivered(message_id)
        return started

    async def _prune(self, excess: int) -> bool:
        history = await self._services.storage.read(self._history)
        parts = await self._services.blocking.run(lambda: prunable(history, self._services.compaction.keep_tokens))
        if sum(result_tokens(part) - PRUNED_TOKENS for part in parts) < excess:
            return False
        self._journal.append([ToolPruned(call_ids=tuple(part.id for part in parts))])
        await self._journal.gate()
        return True

    async def _given_up(self) -> bool:
        failures = await self._services.storage.read(lambda reader: reader.failed_compactions(self._session_id, MAX_FAILURES))
        if failures >= MAX_FAILURES:
            _log.warning("compaction is given up for now", session_id=self._session_id, failures=failures)
        return failures >= MAX_FAILURES

    def _history(self, reader: Reader) -> tuple[Message, ...]:
        """All of it; what is made of it takes long, so it is made outside the loop."""
        return reader.context(self._session_id)

    def _last_summary(self, reader: Reader) -> CompactionMessage | None:
        return reader.last_summary(self._session_id)

    async def _summary(self, message_id: MessageId, model: ModelInfo, request: LLMRequest, recent: str) -> EventData:
        budget = RetryBudget(self._services.random)
        while True:
            text, end = await self._answer(message_id, model, request)
            used = self._used = self._used + (self._said if end is None or end.tokens is None else end.tokens)
            self._said = NO_TOKENS
            match end:
                case llm.Finished(finish="stop") if text.strip():
                    return CompactionCompleted(
                        message_id=message_id,
                        summary=text.strip(),
                        recent=recent,
                        model=model.ref,
                        tokens=used,
                        cost=model.cost(used),
                    )
                case llm.ProviderFailed(failure=failure, retryable=retryable, retry_after_ms=after):
                    delay = budget.take(after) if retryable else None
                    if delay is None:
                        return _failed(message_id, model, failure, used)
                    await trio.sleep(delay)
                case llm.Finished(finish="stop"):
                    return _failed(message_id, model, Failure(type=COMPACTION_FAILED, message="The summary was empty."), used)
                case llm.Finished(finish=finish):
                    message = f"The summary is not complete ({finish})."
                    return _failed(message_id, model, Failure(type=COMPACTION_FAILED, message=message), used)
                case None:
                    message = "The summary stopped without an end."
                    return _failed(message_id, model, Failure(type=COMPACTION_FAILED, message=message), used)

    async def _answer(
        self, message_id: MessageId, model: ModelInfo, request: LLMRequest
    ) -> tuple[str, llm.Finished | llm.ProviderFailed | None]:
        text = ""
        async with self._services.models.stream(model, request) as batches:
            async for batch in batches:
                delta = "".join(event.text for event in batch if isinstance(event, llm.TextDelta))
                if delta:
                    self._journal.publish(CompactionDelta(message_id=message_id, offset=len(text), delta=delta))
                    text += delta
                for event in batch:
                    match event:
                        case llm.UsageReported(tokens=tokens):
                            self._said = tokens
                        case llm.Finished() | llm.ProviderFailed():
                            return text, event
                        case _:
                            pass
        return text, None

    async def _end(self, data: EventData) -> None:
        """Record the end, shielded; the store's own time limit bounds it. When it cannot be recorded, recovery does it."""
        with trio.CancelScope(shield=True):
            self._journal.append([data])
            await self._journal.gate()


class _Start:
    """Starts a compaction; one that was asked for only while its item still waits."""

    def __init__(self, services: Services, session_id: SessionId, message_id: MessageId, reason: CompactionReason) -> None:
        self._session_id = session_id
        self._message_id = message_id
        self._manual = reason == "manual"
        self._event = services.new_event(CompactionStarted(message_id=message_id, reason=reason))

    def __call__(self, transaction: Transaction) -> bool:
        if self._manual and not transaction.is_pending(self._session_id, self._message_id):
            return False
        transaction.append(self._session_id, [self._event])
        return True


def _failed(message_id: MessageId, model: ModelInfo, failure: Failure, used: Tokens) -> CompactionFailed:
    if used == NO_TOKENS:
        return CompactionFailed(message_id=message_id, error=failure)
    return CompactionFailed(message_id=message_id, error=failure, tokens=used, cost=model.cost(used))


def _request(model: ModelInfo, older: str, previous: CompactionMessage | None) -> LLMRequest:
    output = min(model.output or SUMMARY_TOKENS, SUMMARY_TOKENS)
    parts = [INSTRUCTION]
    if previous is not None and previous.summary:
        parts += [UPDATE, f"<summary>\n{previous.summary}\n</summary>"]
    if model.context is not None:
        taken = sum(map(len, parts)) + output * CHARACTERS_PER_TOKEN
        room = max(model.context * CHARACTERS_PER_TOKEN * 3 // 4 - taken, 0)
        if len(older) > room:
            older = f"[The beginning is not shown.]\n{older[len(older) - room :]}"
    parts.append(f"<conversation>\n{older}\n</conversation>")
    return LLMRequest(
        model=model.api_model,
        system=(),
        messages=(UserMessage(content=(Text(text="\n\n".join(parts)),)),),
        tools=(),
        tool_choice="auto",
        generation=Generation(max_tokens=output),
        options={},
        body={},
    )
