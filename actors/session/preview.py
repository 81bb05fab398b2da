"""`sessions.provider_context`: the next boundary, looked at without passing it.

It observes and renders what the boundary would, with the same functions, and commits nothing: a message it has to make up for
the preview has an id that nobody will see again. A pending compaction or move is not anticipated, nor is the end of an
allowance of steps. A long history is made into a request outside the loop, as a boundary does it.
"""

from __future__ import annotations

from msgspec import structs

from ...protocol.llm.invariants import RequestInvariantError
from ...protocol.llm.request import RequestMessage
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
from .history import History, is_long
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
        new = await _new(services, view, pending, admitted)

        def made() -> tuple[RequestMessage, ...]:
            history = History(services.models, model, services.histories.conceded(session_id))
            history.extend(view.stretch._replace(messages=_history(view, new, admitted)))
            return history.messages()

        messages = await services.blocking.run(made) if _is_long(view, new) else made()
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


async def _new(services: Services, view: View, pending: list[PendingItem], admitted: Admitted) -> tuple[Message, ...]:
    """What the boundary would add to the history, in its order."""
    ids, now = services.ids, services.now_ms()
    new: list[Message] = [
        UserMessage(id=prompt.id, created=prompt.created, text=prompt.prompt.text, files=prompt.prompt.files)
        for prompt in eligible(pending, continuing=view.record.unanswered_seq is not None)
    ]
    found = await nearby(services, view)
    told = await services.storage.read(lambda reader: reader.told_paths(view.record.session.id, [one.path for one in found]))
    near = [one for one in found if one.path not in told]
    if near:
        new.append(SyntheticMessage(id=ids.message(), created=now, text=render_nearby(near)))
    match admitted:
        case Updated(text=text):
            new.append(SystemMessage(id=ids.message(), created=now, text=text))
        case _:
            pass
    return tuple(new)


def _history(view: View, new: tuple[Message, ...], admitted: Admitted) -> tuple[Message, ...]:
    """All messages of the request; a new baseline says what the updates before it said."""
    if isinstance(admitted, ReplacementReady):
        return (*(message for message in view.stretch.messages if not isinstance(message, SystemMessage)), *new)
    return (*view.stretch.messages, *new)


def _is_long(view: View, new: tuple[Message, ...]) -> bool:
    size = 0
    for message in new:
        match message:
            case UserMessage(text=text, files=files):
                size += len(text) + sum(len(file.data) for file in files or ())
            case _:
                pass
    return is_long(view.stretch._replace(messages=(*view.stretch.messages, *new), size=view.stretch.size + size))
