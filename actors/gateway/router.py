"""The router: every operation of the contract has one handler, and every caller comes through here.

Rules:
- Dispatch is synchronous. Decoding, checking and putting the letter happen at once, so that requests reach their actor in
  the order of their frames (ruling A11); only reads get a task of the connection's nursery.
- Nothing is raised at a connection: an unknown method, wrong params or a refused letter is a failed answer.
- Guards come from the contract. A session's existence is checked by its actor, or by the read itself.
- Start-up fails when handlers and contract differ.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec
import trio

from ...protocol import operations as op
from ...protocol.codec import MAX_DEPTH, MAX_MESSAGE_BYTES, Codec
from ...protocol.values.errors import (
    CursorExpiredError,
    DeclaredError,
    InvalidRequestError,
    MethodNotFoundError,
    ServiceUnavailableError,
    UnauthorizedError,
)
from ...protocol.values.event import SessionCreated
from ...protocol.values.ids import MAX_ID_LENGTH, Generation, SessionId, is_well_formed
from ...protocol.values.location import Location
from ...protocol.values.page import Page
from ...protocol.values.prompt import MAX_PROMPT_BYTES, Prompt
from ...protocol.values.server import Health, ServerInfo, ServerLimits
from ...protocol.values.session import Session
from ...protocol.values.value import Value
from ..feed import Feed
from ..mailbox import Answer, refused, settled
from ..published import Outbound
from ..session.letters import Admit, Create, Interrupt, Resume, SessionLetter, SwitchModel, Wait, Withdraw
from ..session.registry import SessionRegistry
from ..session.services import Services
from ..subscriber import OnEnd, Subscription
from .prompt_files import admit_files

T = TypeVar("T")

Handler = Callable[[Any, "Peer"], Answer[Any]]


class Peer(Protocol):
    """The connection a request came from."""

    @property
    def outbound(self) -> Outbound: ...

    @property
    def nursery(self) -> trio.Nursery: ...

    @property
    def authenticated(self) -> bool: ...

    def next_subscription(self) -> int:
        """A number for a subscription that is about to open; counted per connection from 1."""
        ...

    def subscription_ended(self, subscription: int, error: DeclaredError | None) -> None:
        """A subscription ended by itself."""
        ...


class Opened:
    """The answer of a stream operation: queue the answer frame, keep the subscription, then start it."""

    __slots__ = ("number", "result", "subscription")

    def __init__(self, result: Value, number: int, subscription: Subscription) -> None:
        self.result = result
        self.number = number
        self.subscription = subscription


class Router:
    """Maps the contract to the actors."""

    def __init__(
        self,
        services: Services,
        sessions: SessionRegistry,
        feed: Feed,
        *,
        default_directory: str,
        version: str,
        limits: ServerLimits,
    ) -> None:
        self._services = services
        self._sessions = sessions
        self._feed = feed
        self._default_directory = default_directory
        self._version = version
        self._limits = limits
        self._stopping = False
        self._handlers: dict[str, Handler] = {
            "sessions.create": self._create,
            "sessions.get": self._get,
            "sessions.list": self._list,
            "sessions.prompt": self._prompt,
            "sessions.pending": self._pending,
            "sessions.withdraw": self._withdraw,
            "sessions.interrupt": self._interrupt,
            "sessions.resume": self._resume,
            "sessions.wait": self._wait,
            "sessions.active": self._active,
            "sessions.messages": self._messages,
            "sessions.switch_model": self._switch_model,
            "sessions.events": self._events,
            "events.subscribe": self._subscribe,
            "server.info": self._info,
            "server.health": self._health,
        }
        op.CONTRACT.check_handlers(self._handlers)

    def stop(self) -> None:
        """From now on every request is answered `ServiceUnavailableError`."""
        self._stopping = True

    def dispatch(self, method: str, params: dict[str, Any], codec: Codec, peer: Peer) -> Answer[Any]:
        """Start an operation; its answer resolves with a value to encode, or with `Opened`."""
        operation = op.CONTRACT.operations.get(method)
        if operation is None:
            return refused(MethodNotFoundError(f"There is no operation {method!r}.", method=method))
        if self._stopping:
            return refused(ServiceUnavailableError("The runtime is stopping."))
        if "authenticated" in operation.guards and not peer.authenticated:
            return refused(UnauthorizedError("Say `rpc.authenticate` with the token first."))
        try:
            typed = codec.convert(params, operation.params)
            if "session" in operation.guards:
                _check_id(typed.session_id, "ses_", "session_id")
            return self._handlers[method](typed, peer)
        except msgspec.ValidationError as error:
            return refused(_invalid_params(error))
        except DeclaredError as error:
            return refused(error)

    # --- sessions: letters -------------------------------------------------------------------------------------------

    def _prompt(self, params: op.SendPrompt, peer: Peer) -> Answer[Any]:
        if params.id is not None:
            _check_id(params.id, "msg_", "id")
        files = admit_files(params.files or ())
        size = len(params.text.encode()) + sum(len(file.data) for file in files)
        if size > MAX_PROMPT_BYTES:
            raise InvalidRequestError(
                f"The prompt has {size} bytes with its files; at most {MAX_PROMPT_BYTES} are accepted.", field="text"
            )
        letter = Admit(
            Prompt(text=params.text, files=files or None),
            id=params.id,
            delivery=params.delivery or "steer",
            metadata=params.metadata,
            resume=params.resume is not False,
        )
        return self._post(params.session_id, letter)

    def _withdraw(self, params: op.WithdrawPrompt, peer: Peer) -> Answer[Any]:
        _check_id(params.id, "msg_", "id")
        return self._post(params.session_id, Withdraw(params.id))

    def _interrupt(self, params: op.SessionParams, peer: Peer) -> Answer[Any]:
        return self._post(params.session_id, Interrupt())

    def _resume(self, params: op.SessionParams, peer: Peer) -> Answer[Any]:
        return self._post(params.session_id, Resume())

    def _wait(self, params: op.SessionParams, peer: Peer) -> Answer[Any]:
        return self._post(params.session_id, Wait())

    def _switch_model(self, params: op.SwitchModel, peer: Peer) -> Answer[Any]:
        self._services.models.resolve(params.model)
        return self._post(params.session_id, SwitchModel(params.model))

    def _post(self, session_id: SessionId, letter: SessionLetter) -> Answer[Any]:
        self._sessions.post(session_id, letter)
        return letter.answer

    # --- sessions: reads ---------------------------------------------------------------------------------------------

    def _create(self, params: op.CreateSession, peer: Peer) -> Answer[Any]:
        if params.id is not None:
            _check_id(params.id, "ses_", "id")
        if params.parent_id is not None:
            _check_id(params.parent_id, "ses_", "parent_id")
        if params.model is not None:
            self._services.models.resolve(params.model)
        if params.location is not None:
            return self._send_creation(params, params.location)
        if params.parent_id is None:
            return self._send_creation(params, Location(directory=self._default_directory))
        return self._task(peer, partial(self._create_child, params))

    async def _create_child(self, params: op.CreateSession) -> Session:
        parent_id = params.parent_id
        if parent_id is None:
            raise AssertionError("only a child inherits its location")
        parent = await self._services.storage.read(lambda reader: reader.session(parent_id))
        return await self._send_creation(params, parent.location).wait()

    def _send_creation(self, params: op.CreateSession, location: Location) -> Answer[Any]:
        created = SessionCreated(
            title=params.title if params.title is not None else "New session",
            location=location,
            parent_id=params.parent_id,
            agent=params.agent,
            model=params.model,
            metadata=params.metadata,
        )
        letter = Create(created, check_directory=params.location is not None)
        return self._post(params.id or self._services.ids.session(), letter)

    def _get(self, params: op.SessionParams, peer: Peer) -> Answer[Any]:
        async def read() -> Session:
            session = await self._services.storage.read(lambda reader: reader.session(params.session_id))
            return self._with_outcome(session)

        return self._task(peer, read)

    def _list(self, params: op.ListSessions, peer: Peer) -> Answer[Any]:
        async def read() -> Page[Session]:
            page = await self._services.storage.read(lambda reader: reader.sessions_page(params))
            return msgspec.structs.replace(page, items=tuple(self._with_outcome(session) for session in page.items))

        return self._task(peer, read)

    def _pending(self, params: op.SessionParams, peer: Peer) -> Answer[Any]:
        return self._read(peer, lambda reader: tuple(reader.pending(params.session_id)), params.session_id)

    def _messages(self, params: op.ListMessages, peer: Peer) -> Answer[Any]:
        return self._read(peer, lambda reader: reader.messages_page(params), params.session_id)

    def _active(self, params: op.NoParams, peer: Peer) -> Answer[Any]:
        return settled(self._sessions.active())

    def _with_outcome(self, session: Session) -> Session:
        outcome = self._sessions.last_outcome(session.id)
        return session if outcome is None else msgspec.structs.replace(session, last_outcome=outcome)

    def _read(self, peer: Peer, query: Callable[[Any], T], session_id: SessionId) -> Answer[Any]:
        def checked(reader: Any) -> T:
            reader.record(session_id)  # raises SessionNotFoundError
            return query(reader)

        return self._task(peer, partial(self._services.storage.read, checked))

    # --- streams -----------------------------------------------------------------------------------------------------

    def _events(self, params: op.WatchSession, peer: Peer) -> Answer[Any]:
        if params.after is not None and params.after < 0:
            raise InvalidRequestError("after must be 0 or more.", field="after")
        on_end: OnEnd = peer.subscription_ended

        async def open_stream() -> Opened:
            head = await self._services.storage.read(lambda reader: reader.head(params.session_id))
            after, generation = params.after or 0, Generation(self._services.storage.generation)
            if after > head or params.generation not in (None, generation):
                raise CursorExpiredError(
                    "This position is not in the store's history; read the session anew and watch from its head.",
                    generation=generation,
                    head=head,
                )
            number = peer.next_subscription()
            subscription = self._feed.subscribe_session(
                peer.outbound, number, on_end, session_id=params.session_id, after=after, head=head
            )
            return Opened(op.SessionStream(subscription=number, generation=generation, head=head), number, subscription)

        return self._task(peer, open_stream)

    def _subscribe(self, params: op.NoParams, peer: Peer) -> Answer[Any]:
        number = peer.next_subscription()
        subscription = self._feed.subscribe_live(peer.outbound, number, peer.subscription_ended)
        return settled(Opened(op.LiveStream(subscription=number), number, subscription))

    # --- server ------------------------------------------------------------------------------------------------------

    def _info(self, params: op.NoParams, peer: Peer) -> Answer[Any]:
        generation = Generation(self._services.storage.generation)
        return settled(ServerInfo(name="steerway", version=self._version, generation=generation, limits=self._limits))

    def _health(self, params: op.NoParams, peer: Peer) -> Answer[Any]:
        return settled(Health(healthy=True))

    # --- tasks -------------------------------------------------------------------------------------------------------

    def _task(self, peer: Peer, work: Callable[[], Awaitable[Any]]) -> Answer[Any]:
        """Run `work` in a task of the connection; a defect in it is the answer's, never the connection's."""
        answer: Answer[Any] = Answer()

        async def run() -> None:
            try:
                answer.resolve(await work())
            except Exception as error:
                answer.fail(error)
            finally:
                answer.fail(ServiceUnavailableError("The connection ended."))

        peer.nursery.start_soon(run)
        return answer


def server_limits(max_requests_in_flight: int, max_subscriptions: int) -> ServerLimits:
    """The limits of the wire as `server.info` tells them."""
    return ServerLimits(
        max_message_bytes=MAX_MESSAGE_BYTES,
        max_depth=MAX_DEPTH,
        max_id_length=MAX_ID_LENGTH,
        max_prompt_bytes=MAX_PROMPT_BYTES,
        max_requests_in_flight=max_requests_in_flight,
        max_subscriptions=max_subscriptions,
    )


def _check_id(text: str, prefix: str, field: str) -> None:
    if not is_well_formed(text, prefix):
        raise InvalidRequestError(
            f"{field} must begin with {prefix!r} and have 1 to {MAX_ID_LENGTH} characters of A-Z a-z 0-9 _ -.", field=field
        )


def _invalid_params(error: msgspec.ValidationError) -> InvalidRequestError:
    message = str(error)
    field = message.rsplit("`$.", 1)[1].rstrip("`") if "`$." in message else None
    if field is None and "unknown field" in message:
        field = message.rsplit("`", 2)[-2]
    fields = {"field": field} if field else {}
    return InvalidRequestError(f"The params are not right: {message[:1000]}.", **fields)
