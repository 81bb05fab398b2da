"""`sessions.*`: letters for the session actors, and reads of the store.

What changes or waits for a session is a letter, put at once. What only looks is a read in a task of the connection, on a
read-only connection; it sees every commit that was answered before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import msgspec

from ...protocol import operations as op
from ...protocol.values.errors import AgentNotFoundError, InvalidRequestError
from ...protocol.values.event import SessionCreated
from ...protocol.values.ids import SessionId
from ...protocol.values.location import Location
from ...protocol.values.message import Message
from ...protocol.values.page import Page
from ...protocol.values.prompt import MAX_PROMPT_BYTES, MAX_PROMPT_JSON_BYTES, Prompt
from ...protocol.values.session import Session
from ...storage.copying import Fork
from ...storage.pages import MAX_ITEM_BYTES, Weigh
from ...storage.reader import Reader
from ..agents import UnknownAgentError
from ..mailbox import Answer, settled
from ..session.forking import fork
from ..session.letters import (
    Admit,
    Attach,
    Create,
    Interrupt,
    Redeliver,
    Resume,
    SessionLetter,
    SwitchAgent,
    SwitchModel,
    Update,
    Wait,
    WaitPrompt,
    Withdraw,
)
from ..session.registry import SessionRegistry
from ..session.services import Services
from .handling import Handler, Peer, check_id, check_metadata, check_model, in_task
from .prompt_files import admit_files

T = TypeVar("T")

_MOST_ESCAPED = 6
"""Bytes of JSON that one byte of a text can take: a control character is `\\u0000`."""


class SessionHandlers:
    """Everything about sessions except their streams."""

    def __init__(self, services: Services, sessions: SessionRegistry, *, default_directory: str) -> None:
        self._services = services
        self._sessions = sessions
        self._default_directory = default_directory

    def handlers(self) -> Mapping[str, Handler]:
        """By wire method."""
        return {
            "sessions.create": self._create,
            "sessions.get": self._get,
            "sessions.list": self._list,
            "sessions.prompt": self._prompt,
            "sessions.pending": self._pending,
            "sessions.withdraw": self._withdraw,
            "sessions.redeliver": self._redeliver,
            "sessions.interrupt": lambda params, _: self._post(params.session_id, Interrupt()),
            "sessions.resume": lambda params, _: self._post(params.session_id, Resume()),
            "sessions.wait": lambda params, _: self._post(params.session_id, Wait()),
            "sessions.wait_prompt": self._wait_prompt,
            "sessions.active": lambda _params, _peer: settled(self._sessions.active()),
            "sessions.messages": self._messages,
            "sessions.message": self._message,
            "sessions.context": self._context,
            "sessions.switch_model": self._switch_model,
            "sessions.switch_agent": self._switch_agent,
            "sessions.update": self._update,
            "sessions.remove": self._remove,
            "sessions.fork": self._fork,
            "sessions.attach": lambda params, _: self._post(params.session_id, Attach()),
        }

    # --- letters -----------------------------------------------------------------------------------------------------

    def _create(self, params: op.CreateSession, peer: Peer) -> Answer[Any]:
        if params.id is not None:
            check_id(params.id, "ses_", "id")
        if params.parent_id is not None:
            check_id(params.parent_id, "ses_", "parent_id")

        def check() -> None:
            check_metadata(params.metadata)
            if params.model is not None:
                check_model(params.model)
                self._services.models.resolve(params.model)
            self._check_agent(params.agent)

        created = SessionCreated(
            title=params.title if params.title is not None else "New session",
            location=params.location or Location(directory=self._default_directory),
            parent_id=params.parent_id,
            agent=params.agent,
            model=params.model,
            metadata=params.metadata,
        )
        letter = Create(created, located=params.location is not None, check=check)
        return self._post(params.id or self._services.ids.session(), letter)

    def _prompt(self, params: op.SendPrompt, peer: Peer) -> Answer[Any]:
        if params.id is not None:
            check_id(params.id, "msg_", "id")
        files = admit_files(params.files or ())
        size = len(params.text.encode()) + sum(len(file.data) for file in files)
        if size > MAX_PROMPT_BYTES:
            raise InvalidRequestError(
                f"The prompt has {size} bytes with its files; at most {MAX_PROMPT_BYTES} are accepted.", field="text"
            )
        check_metadata(params.metadata)
        prompt = Prompt(text=params.text, files=files or None)
        if size > MAX_PROMPT_JSON_BYTES // _MOST_ESCAPED and len(msgspec.json.encode(prompt)) > MAX_PROMPT_JSON_BYTES:
            raise InvalidRequestError(
                f"The prompt has more than {MAX_PROMPT_JSON_BYTES} bytes as JSON, with its control characters and files.",
                field="text",
            )
        letter = Admit(
            prompt,
            id=params.id,
            delivery=params.delivery or "steer",
            metadata=params.metadata,
            resume=params.resume is not False,
        )
        return self._post(params.session_id, letter)

    def _withdraw(self, params: op.PromptParams, peer: Peer) -> Answer[Any]:
        check_id(params.id, "msg_", "id")
        return self._post(params.session_id, Withdraw(params.id))

    def _redeliver(self, params: op.RedeliverPrompt, peer: Peer) -> Answer[Any]:
        check_id(params.id, "msg_", "id")
        return self._post(params.session_id, Redeliver(params.id, params.delivery))

    def _wait_prompt(self, params: op.PromptParams, peer: Peer) -> Answer[Any]:
        check_id(params.id, "msg_", "id")
        return self._post(params.session_id, WaitPrompt(params.id))

    def _switch_model(self, params: op.SwitchModel, peer: Peer) -> Answer[Any]:
        check_model(params.model)
        self._services.models.resolve(params.model)
        return self._post(params.session_id, SwitchModel(params.model))

    def _switch_agent(self, params: op.SwitchAgent, peer: Peer) -> Answer[Any]:
        self._check_agent(params.agent)
        return self._post(params.session_id, SwitchAgent(params.agent))

    def _update(self, params: op.UpdateSession, peer: Peer) -> Answer[Any]:
        check_metadata(params.metadata)
        if isinstance(params.budget, float) and params.budget < 0:
            raise InvalidRequestError("budget must be 0 or more US dollars.", field="budget")
        return self._post(params.session_id, Update(title=params.title, metadata=params.metadata, budget=params.budget))

    def _post(self, session_id: SessionId, letter: SessionLetter) -> Answer[Any]:
        self._sessions.post(session_id, letter)
        return letter.answer

    def _check_agent(self, name: str | None) -> None:
        try:
            self._services.agents.resolve(name)
        except UnknownAgentError as error:
            raise AgentNotFoundError(str(error), agent=name) from error

    # --- tasks -------------------------------------------------------------------------------------------------------

    def _remove(self, params: op.SessionParams, peer: Peer) -> Answer[Any]:
        return in_task(peer, partial(self._sessions.remove, params.session_id))

    def _fork(self, params: op.ForkSession, peer: Peer) -> Answer[Any]:
        if params.before is not None:
            check_id(params.before, "msg_", "before")
        services = self._services
        copy = Fork(
            params.session_id,
            services.ids.session(),
            ids=services.ids,
            created=services.now_ms(),
            before=params.before,
        )
        return in_task(peer, partial(fork, services.storage, services.sweeper, copy))

    def _get(self, params: op.SessionParams, peer: Peer) -> Answer[Any]:
        async def read() -> Session:
            return self._with_outcome(await self._services.storage.read(lambda reader: reader.session(params.session_id)))

        return in_task(peer, read)

    def _list(self, params: op.ListSessions, peer: Peer) -> Answer[Any]:
        async def read() -> Page[Session]:
            page = await self._services.storage.read(lambda reader: reader.sessions_page(params, _weigh(peer)))
            return msgspec.structs.replace(page, items=tuple(self._with_outcome(session) for session in page.items))

        return in_task(peer, read)

    def _pending(self, params: op.SessionParams, peer: Peer) -> Answer[Any]:
        return self._read(peer, lambda reader: tuple(reader.pending(params.session_id)))

    def _messages(self, params: op.ListMessages, peer: Peer) -> Answer[Any]:
        return self._read(peer, lambda reader: reader.messages_page(params, _weigh(peer)))

    def _message(self, params: op.MessageParams, peer: Peer) -> Answer[Any]:
        check_id(params.message_id, "msg_", "message_id")
        return self._read(peer, lambda reader: reader.message(params.session_id, params.message_id))

    def _context(self, params: op.SessionParams, peer: Peer) -> Answer[Any]:
        weigh = _weigh(peer)

        def read(reader: Reader) -> tuple[Message, ...]:
            if reader.context_bytes(params.session_id) > MAX_ITEM_BYTES:
                raise _too_much_context()
            messages = reader.context(params.session_id)
            if sum(map(weigh, messages)) > MAX_ITEM_BYTES:
                raise _too_much_context()
            return messages

        return self._read(peer, read)

    def _read(self, peer: Peer, query: Callable[[Reader], T]) -> Answer[Any]:
        return in_task(peer, partial(self._services.storage.read, query))

    def _with_outcome(self, session: Session) -> Session:
        outcome = self._sessions.last_outcome(session.id)
        return session if outcome is None else msgspec.structs.replace(session, last_outcome=outcome)


def _weigh(peer: Peer) -> Weigh:
    encode = peer.codec.encode
    return lambda item: len(encode(item))


def _too_much_context() -> InvalidRequestError:
    return InvalidRequestError(
        "The context is larger than an answer may be; read the history in pages, with `sessions.messages`.", field="session_id"
    )
