"""One drain's way through its Safe Provider-Turn Boundaries: sample, observe, promote, and take up what is new in history.

Rules (semantics, "Safe Provider-Turn Boundary"; ruling A14):
- Agent, model and location are sampled anew for each turn. The boundary's transaction expects the revision that was sampled;
  if it moved on, the transaction changes nothing and the boundary starts over.
- The request is built from durable state, of which a drain knows what it has read before (`History`).
- A boundary may record the first attempt of its turn with the promotions. Then no await comes between that record and the
  turn, which sees to its end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import trio
from msgspec import structs

from ...protocol.llm.adapter import Conversation
from ...protocol.llm.invariants import RequestInvariantError
from ...protocol.llm.request import LLMRequest
from ...protocol.llm.transcript import estimate, tokens
from ...protocol.values.event import TurnStarted
from ...protocol.values.ids import MessageId, SessionId
from ...protocol.values.location import Location
from ...storage.history import Mark, Stretch
from ..agents import Agent
from ..context.observing import Observing
from ..models.catalog import ModelInfo
from ..tools.registry import ToolSet
from .boundary import baseline_of, invalid_history, nearby, observe, request_of, select, view_of
from .compaction import ceiling
from .history import History, is_long
from .promotion import CONTINUE_INSTRUCTION, Promotion
from .retry import RetryBudget
from .services import Services


class GoesOn(NamedTuple):
    """What the next boundary is there for, beside the inbox.

    `hold`: the same step of the turn before, whose request was made smaller; nothing is promoted.
    """

    forced: bool = False
    continuing: bool = False
    hold: bool = False
    instruction: str | None = None

    def __bool__(self) -> bool:
        return self.forced or self.continuing


class Passed(NamedTuple):
    """A boundary that was passed: what its turn runs with.

    `frame` is the request without its messages, `step` the turn's number within its allowance, `excess` by how many tokens the
    request is surely or likely too large, 0 if it is not. `begun`: the first attempt is recorded, and this is what the
    history has to take up before the request.
    """

    location: Location
    agent: Agent
    model: ModelInfo
    tools: ToolSet
    frame: LLMRequest
    assistant: MessageId
    step: int
    last_step: bool
    excess: int
    begun: Stretch | None


class Passage:
    """Used by one drain. `promoted(ids)` is told of every prompt that leaves the inbox."""

    def __init__(
        self,
        services: Services,
        session_id: SessionId,
        budget: RetryBudget,
        promoted: Callable[[tuple[MessageId, ...]], None],
    ) -> None:
        self._services = services
        self._session_id = session_id
        self._budget = budget
        self._promoted = promoted
        self._history: History | None = None
        self.switched = trio.Event()
        """Set once another model was selected than the one that was sampled last."""

    @property
    def conversation(self) -> Conversation | None:
        """What the adapter remembers of the requests before."""
        return None if self._history is None else self._history.conversation

    async def through(self, goes_on: GoesOn, step: int) -> Passed | None:
        """The next boundary, behind the turn `step`; None when there is nothing to answer.

        Raises `BoundaryFailure`, `ContextUnavailableError` or `StorageUnavailableError`; then nothing was promoted.
        """
        services, session_id = self._services, self._session_id
        instruction = goes_on.instruction
        if self._history is None:
            self._history = services.histories.take(session_id)
        while True:
            self.switched = trio.Event()
            known = None if self._history is None else self._history.mark
            view = await services.storage.read(view_of(session_id, known))
            agent, model = await select(services, view.record, self._budget)
            history = await self._follow(view.stretch, model)
            if goes_on.forced and history.assistant_had_the_last_word:
                instruction = CONTINUE_INSTRUCTION
            tools = services.tools.materialise(view.record.session.location, agent.name, agent.rules)
            admitted = await observe(services, view, agent, Observing(diagnose=services.diagnose))
            frame = request_of(session_id, agent, model, tools, baseline=baseline_of(admitted, view.active))
            assistant = services.ids.message()
            promotion = Promotion(
                services,
                session_id,
                revision=view.record.revision,
                epoch=view.active,
                admitted=admitted,
                nearby=await nearby(services, view),
                forced=goes_on.forced,
                continuing=goes_on.continuing,
                hold=goes_on.hold,
                instruction=instruction,
                step=step,
                steps=agent.steps,
                known=history.mark,
                room=None if goes_on.hold else self._room(model, frame, history),
                started=TurnStarted(assistant_message_id=assistant, agent=agent.name, model=model.ref, attempt=1),
            )
            promoted = await services.storage.commit(promotion)
            self._promoted(promotion.promoted)
            if promoted is None:
                continue
            if not promoted:
                return None
            room: int | None = None
            if not promotion.begun:
                stretch = promotion.stretch or await self._stretch(history.mark)
                room = self._room(model, frame, await self._follow(stretch, model))
            return Passed(
                view.record.session.location,
                agent,
                model,
                tools,
                structs.replace(frame, tool_choice="none") if promotion.last_step else frame,
                assistant,
                promotion.step,
                promotion.last_step,
                excess=0 if room is None else max(-room, 0),
                begun=promotion.stretch if promotion.begun else None,
            )

    def request(self, passed: Passed) -> LLMRequest:
        """The request of the turn. Raises `BoundaryFailure`."""
        history = self._history
        if history is None:
            raise AssertionError("a boundary that was passed has a history")
        try:
            if passed.begun is not None:
                history.extend(passed.begun)
            messages = history.messages()
        except RequestInvariantError as error:
            raise invalid_history(error) from error
        return structs.replace(passed.frame, messages=messages)

    @property
    def may_concede(self) -> bool:
        """Whether a request that is refused could be made without what may have been the reason."""
        return self._history is not None and self._history.concession() is not None

    def concede(self) -> None:
        """Leave that out from now on."""
        concession = None if self._history is None else self._history.concession()
        if concession is None:
            raise AssertionError("there is something to concede")
        self._services.histories.concede(self._session_id, concession)
        self.forget()

    def forget(self) -> None:
        """What was taken up has changed, or may have."""
        self._history = None
        self._services.histories.forget(self._session_id)

    def rest(self) -> None:
        """Nothing is to be done for now. Who passes the next boundary, this drain or another one, goes on from here."""
        if self._history is not None:
            self._services.histories.put(self._session_id, self._history)
            self._history = None

    def _room(self, model: ModelInfo, frame: LLMRequest, history: History) -> int | None:
        """How many tokens may be added to the history before something is done about it; None without a limit."""
        limit = ceiling(self._services, model)
        return None if limit is None else limit - estimate(frame) - tokens(history.size)

    async def _stretch(self, known: Mark | None) -> Stretch:
        return await self._services.storage.read(lambda reader: reader.stretch(self._session_id, known))

    async def _follow(self, stretch: Stretch, model: ModelInfo) -> History:
        """The history, made for that model, with the stretch taken up."""
        history = self._history
        if history is None or not history.serves(model):
            conceded = self._services.histories.conceded(self._session_id)
            history = self._history = History(self._services.models, model, conceded)
        if not history.follows(stretch):
            stretch = await self._stretch(None)
        try:
            if is_long(stretch):
                await self._services.blocking.run(lambda: history.extend(stretch))
            else:
                history.extend(stretch)
        except RequestInvariantError as error:
            raise invalid_history(error) from error
        return history
