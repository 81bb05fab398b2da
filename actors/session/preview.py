"""`sessions.provider_context`: the next boundary, looked at without passing it.

It observes and renders what the boundary would, with the same functions, and commits nothing: a message it has to make up for
the preview has an id that nobody will see again. A pending compaction or move is not anticipated, nor is the end of an
allowance of steps.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from msgspec import structs

from ...protocol.llm.invariants import RequestInvariantError, check
from ...protocol.llm.lowering import lower
from ...protocol.provider_context import ProviderContext
from ...protocol.values.context import ContextContribution
from ...protocol.values.errors import ContextUnavailableError
from ...protocol.values.failure import CONTEXT_UNAVAILABLE, Failure
from ...protocol.values.ids import SessionId
from ...protocol.values.message import Message, SyntheticMessage, SystemMessage, UserMessage
from ...protocol.values.prompt import PendingItem
from ...storage.reader import Reader
from ..agents import Agent
from ..context.algebra import ReplacementReady, Updated
from ..context.instructions import render_nearby
from ..context.observing import Observing
from .boundary import (
    BoundaryFailure,
    View,
    baseline_of,
    invalid_history,
    nearby,
    observe,
    request_of,
    select,
    snapshot_of,
    system_context,
    view_of,
)
from .promotion import Admitted, eligible
from .services import Services


async def provider_context(services: Services, session_id: SessionId) -> ProviderContext:
    """The answer. Raises `SessionNotFoundError`."""

    def query(reader: Reader) -> tuple[View, list[PendingItem]]:
        return view_of(session_id)(reader), reader.pending(session_id)

    view, pending = await services.storage.read(query)
    sources: tuple[ContextContribution, ...] = ()
    request, error = None, None
    try:
        agent, model = await select(services, view.record)
        sources = await _sources(services, view, agent)
        admitted = await observe(services, view, agent, Observing())
        history = tuple([message async for message in _messages(services, view, pending, admitted)])
        messages = lower(history, model.ref, media=model.media)
        check(messages)
        tools = services.tools.materialise(view.record.session.location, agent.name, agent.rules)
        frame = request_of(session_id, agent, model, tools, baseline=baseline_of(admitted, view.active))
        request = structs.replace(frame, messages=messages)
    except RequestInvariantError as invalid:
        error = invalid_history(invalid).failure
    except BoundaryFailure as failure:
        error = failure.failure
    except ContextUnavailableError as blocked:
        error = Failure(type=CONTEXT_UNAVAILABLE, message=blocked.message, fields=blocked.fields)
    return ProviderContext(
        session_id=session_id,
        epoch=view.active,
        sources=sources,
        unavailable=tuple(one.key for one in sources if one.state == "unavailable"),
        request=request,
        error=error,
    )


async def _sources(services: Services, view: View, agent: Agent) -> tuple[ContextContribution, ...]:
    observing = Observing()
    context = await system_context(services, view, agent, observing)
    return await context.survey({} if view.epoch is None else snapshot_of(view.epoch), observing)


async def _messages(services: Services, view: View, pending: list[PendingItem], admitted: Admitted) -> AsyncIterator[Message]:
    """History with what the boundary would add to it, in its order."""
    ids, now = services.ids, services.now_ms()
    told: set[str] = set()
    for message in view.stretch.messages:
        match message:
            case SystemMessage() if isinstance(admitted, ReplacementReady):
                continue
            case SyntheticMessage(paths=paths):
                told.update(paths or ())
            case _:
                pass
        yield message
    for prompt in eligible(pending, continuing=view.record.unanswered_seq is not None):
        yield UserMessage(id=prompt.id, created=prompt.created, text=prompt.prompt.text, files=prompt.prompt.files)
    near = [one for one in await nearby(services, view) if one.path not in told]
    if near:
        yield SyntheticMessage(id=ids.message(), created=now, text=render_nearby(near))
    match admitted:
        case Updated(text=text):
            yield SystemMessage(id=ids.message(), created=now, text=text)
        case _:
            pass
