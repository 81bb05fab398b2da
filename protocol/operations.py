"""Every public operation, as data: parameters, result, declared errors, guards.

Long, because it is the one place to look for what can be asked of a runtime.

Params are always an object; an unknown field is `InvalidRequestError` naming it (ruling C1), and so is a text beyond its
length: what one caller writes into a list must leave room for everybody else's, and a search must not cost the machine. The
order of this file is the order of the documents made from it.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from .contract import COMMON_ERRORS, ContractIR, Guard, Operation, Retry
from .provider_context import ProviderContext
from .values.agent import AgentInfo
from .values.context import ContextEntry
from .values.errors import (
    AgentNotFoundError,
    ConflictError,
    CursorExpiredError,
    DeclaredError,
    InboxFullError,
    InvalidCursorError,
    MessageNotFoundError,
    ModelUnavailableError,
    PermissionNotFoundError,
    PromptNotFoundError,
    QuestionNotFoundError,
    SessionNotFoundError,
    VariantUnavailableError,
)
from .values.event import PermissionReplied, QuestionRejected, QuestionReplied
from .values.ids import Generation, MessageId, PageCursor, RequestId, SessionId
from .values.location import Location
from .values.message import Message
from .values.model import CatalogModel, ModelRef
from .values.page import Order, Page
from .values.permission import PermissionReply, PermissionRequest, SavedPermission
from .values.prompt import Admission, CompactControl, Delivery, MoveControl, PendingItem, PromptFileInput
from .values.question import QuestionRequest
from .values.server import Health, ServerInfo
from .values.session import (
    Attachment,
    IdleOutcome,
    Interrupted,
    Outcome,
    PromptOutcome,
    Running,
    Session,
    WithdrawOutcome,
)
from .values.value import Value

Title = Annotated[str, msgspec.Meta(max_length=1_000)]
SearchText = Annotated[str, msgspec.Meta(max_length=200)]
"""The index of titles takes time and memory with the square of its length."""
Directory = Annotated[str, msgspec.Meta(max_length=4_096)]
Name = Annotated[str, msgspec.Meta(max_length=200)]
"""Of an agent, a saved approval, or whatever else is looked up."""
Remark = Annotated[str, msgspec.Meta(max_length=65_536)]


class Params(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Root of all parameter objects: unlike values, they refuse what they do not know."""


class NoParams(Params, frozen=True):
    """`{}`."""


class CreateSession(Params, frozen=True, kw_only=True):
    id: SessionId | None = None
    location: Location | None = None
    parent_id: SessionId | None = None
    title: Title | None = None
    agent: Name | None = None
    model: ModelRef | None = None
    metadata: dict[str, Any] | None = None


class SessionParams(Params, frozen=True, kw_only=True):
    session_id: SessionId


class ListSessions(Params, frozen=True, kw_only=True):
    """Either a query, or the `cursor` of an earlier page and nothing else."""

    directory: Directory | None = None
    parent_id: SessionId | None = None
    search: SearchText | None = None
    order: Order | None = None
    limit: int | None = None
    cursor: PageCursor | None = None


class SendPrompt(Params, frozen=True, kw_only=True):
    session_id: SessionId
    text: str
    files: tuple[PromptFileInput, ...] | None = None
    id: MessageId | None = None
    delivery: Delivery | None = None
    metadata: dict[str, Any] | None = None
    resume: bool | None = None


class RedeliverPrompt(Params, frozen=True, kw_only=True):
    session_id: SessionId
    id: MessageId
    delivery: Delivery


class PromptParams(Params, frozen=True, kw_only=True):
    session_id: SessionId
    id: MessageId


class UpdateSession(Params, frozen=True, kw_only=True):
    """What is left out stays as it is. A `budget` of null takes the budget away."""

    session_id: SessionId
    title: Title | None = None
    metadata: dict[str, Any] | None = None
    budget: float | msgspec.UnsetType | None = msgspec.UNSET


class ForkSession(Params, frozen=True, kw_only=True):
    """`before` is the first message that the fork does not have; without it the fork has all settled history."""

    session_id: SessionId
    before: MessageId | None = None


class MessageParams(Params, frozen=True, kw_only=True):
    session_id: SessionId
    message_id: MessageId


class SwitchAgent(Params, frozen=True, kw_only=True):
    session_id: SessionId
    agent: Name


class ListRequests(Params, frozen=True, kw_only=True):
    """Of one session and its descendants, or of all."""

    session_id: SessionId | None = None


class PermissionAnswer(Params, frozen=True, kw_only=True):
    """`message` goes with `reject`: what the model should do instead."""

    request_id: Annotated[RequestId, msgspec.Meta(max_length=200)]
    reply: PermissionReply
    message: Remark | None = None


class ListSavedPermissions(Params, frozen=True, kw_only=True):
    directory: Directory | None = None


class ForgetPermission(Params, frozen=True, kw_only=True):
    id: Name


class QuestionAnswer(Params, frozen=True, kw_only=True):
    """One list of answers for each question."""

    request_id: Annotated[RequestId, msgspec.Meta(max_length=200)]
    answers: tuple[tuple[Remark, ...], ...]


class QuestionParams(Params, frozen=True, kw_only=True):
    request_id: Annotated[RequestId, msgspec.Meta(max_length=200)]


class MoveSession(Params, frozen=True, kw_only=True):
    session_id: SessionId
    location: Location


class PutContextEntry(Params, frozen=True, kw_only=True):
    """`value` is any JSON value, null included."""

    session_id: SessionId
    key: str
    value: Any


class RemoveContextEntry(Params, frozen=True, kw_only=True):
    session_id: SessionId
    key: str


class ListMessages(Params, frozen=True, kw_only=True):
    """The first page takes `order` and `limit`; a continuation takes only `cursor`."""

    session_id: SessionId
    order: Order | None = None
    limit: int | None = None
    cursor: PageCursor | None = None


class SwitchModel(Params, frozen=True, kw_only=True):
    session_id: SessionId
    model: ModelRef


class WatchSession(Params, frozen=True, kw_only=True):
    """`after` is exclusive and 0 when omitted; `generation` is what an earlier answer said."""

    session_id: SessionId
    after: int | None = None
    generation: Generation | None = None


class SessionStream(Value):
    """The answer that opens `sessions.events`."""

    subscription: int
    generation: Generation
    head: int


class LiveStream(Value):
    """The answer that opens `events.subscribe`."""

    subscription: int


def _operation(
    method: str,
    params: type[msgspec.Struct],
    result: Any,
    summary: str,
    *errors: type[DeclaredError],
    stream: bool = False,
    retry: Retry = "safe",
    public: bool = False,
) -> Operation[Any, Any]:
    namespace, name = method.split(".")
    guards: tuple[Guard, ...] = () if public else ("authenticated",)
    if "session_id" in params.__struct_fields__[: len(params.__struct_fields__) - len(params.__struct_defaults__)]:
        guards = (*guards, "session")
        errors = (SessionNotFoundError, *errors)
    return Operation(
        method=method,
        params=params,
        result=result,
        errors=tuple(dict.fromkeys((*errors, *COMMON_ERRORS))),
        summary=summary,
        namespace=namespace,
        name=name,
        stream=stream,
        guards=guards,
        retry=retry,
    )


SESSIONS_CREATE: Operation[CreateSession, Session] = _operation(
    "sessions.create",
    CreateSession,
    Session,
    "Create a session; an id that exists returns that session unchanged.",
    SessionNotFoundError,
    ModelUnavailableError,
    VariantUnavailableError,
    retry="keyed",
)
SESSIONS_GET: Operation[SessionParams, Session] = _operation(
    "sessions.get", SessionParams, Session, "One session as it stands."
)
SESSIONS_LIST: Operation[ListSessions, Page[Session]] = _operation(
    "sessions.list", ListSessions, Page[Session], "Sessions by creation time, in pages.", InvalidCursorError
)
SESSIONS_PROMPT: Operation[SendPrompt, Admission] = _operation(
    "sessions.prompt",
    SendPrompt,
    Admission,
    "Admit a prompt durably and, unless `resume` is false, wake the session. The receipt means it is committed.",
    ConflictError,
    InboxFullError,
    retry="keyed",
)
SESSIONS_PENDING: Operation[SessionParams, tuple[PendingItem, ...]] = _operation(
    "sessions.pending",
    SessionParams,
    tuple[PendingItem, ...],
    "What waits in the inbox, in admission order: Admitted Prompts and control items.",
)
SESSIONS_WITHDRAW: Operation[PromptParams, WithdrawOutcome] = _operation(
    "sessions.withdraw",
    PromptParams,
    WithdrawOutcome,
    "Take a pending prompt or control item back; the answer says whether promotion was faster.",
    PromptNotFoundError,
    retry="keyed",
)
SESSIONS_INTERRUPT: Operation[SessionParams, Interrupted] = _operation(
    "sessions.interrupt",
    SessionParams,
    Interrupted,
    "Stop what runs; answered once it is settled, or after 5 s while cleanup goes on. Idle: nothing happens.",
    retry="keyed",
)
SESSIONS_RESUME: Operation[SessionParams, Outcome] = _operation(
    "sessions.resume",
    SessionParams,
    Outcome,
    "Run at least one provider turn if idle, else join what runs; answers with its outcome.",
    retry="never",
)
SESSIONS_WAIT: Operation[SessionParams, IdleOutcome] = _operation(
    "sessions.wait", SessionParams, IdleOutcome, "Answered when the session is idle; starts nothing."
)
SESSIONS_ACTIVE: Operation[NoParams, dict[str, Running]] = _operation(
    "sessions.active", NoParams, dict[str, Running], "The sessions this process is draining right now."
)
SESSIONS_MESSAGES: Operation[ListMessages, Page[Message]] = _operation(
    "sessions.messages", ListMessages, Page[Message], "A session's messages, in pages.", InvalidCursorError
)
SESSIONS_SWITCH_MODEL: Operation[SwitchModel, Session] = _operation(
    "sessions.switch_model",
    SwitchModel,
    Session,
    "Select the model of the next Provider Turn.",
    ModelUnavailableError,
    VariantUnavailableError,
    retry="keyed",
)
SESSIONS_REDELIVER: Operation[RedeliverPrompt, Admission] = _operation(
    "sessions.redeliver",
    RedeliverPrompt,
    Admission,
    "Change the delivery of a pending prompt; a prompt that becomes a steer wakes the session.",
    PromptNotFoundError,
    ConflictError,
    retry="keyed",
)
SESSIONS_WAIT_PROMPT: Operation[PromptParams, PromptOutcome] = _operation(
    "sessions.wait_prompt",
    PromptParams,
    PromptOutcome,
    "Answered when the prompt's turn is terminal, or the prompt is withdrawn; starts nothing.",
    PromptNotFoundError,
)
SESSIONS_UPDATE: Operation[UpdateSession, Session] = _operation(
    "sessions.update", UpdateSession, Session, "Set title, metadata or budget; a budget of null takes it away.", retry="keyed"
)
SESSIONS_REMOVE: Operation[SessionParams, None] = _operation(
    "sessions.remove",
    SessionParams,
    None,
    "Interrupt the session and delete it, its log and its children. Its id cannot be used again.",
    retry="never",
)
SESSIONS_FORK: Operation[ForkSession, Session] = _operation(
    "sessions.fork",
    ForkSession,
    Session,
    "A new session with the settled history of this one.",
    MessageNotFoundError,
    retry="never",
)
SESSIONS_MESSAGE: Operation[MessageParams, Message] = _operation(
    "sessions.message", MessageParams, Message, "One message of the session.", MessageNotFoundError
)
SESSIONS_CONTEXT: Operation[SessionParams, tuple[Message, ...]] = _operation(
    "sessions.context", SessionParams, tuple[Message, ...], "The messages selected as Session History for the next turn."
)
SESSIONS_SWITCH_AGENT: Operation[SwitchAgent, Session] = _operation(
    "sessions.switch_agent",
    SwitchAgent,
    Session,
    "Select the agent of the next Provider Turn.",
    AgentNotFoundError,
    retry="keyed",
)
SESSIONS_PROVIDER_CONTEXT: Operation[SessionParams, ProviderContext] = _operation(
    "sessions.provider_context",
    SessionParams,
    ProviderContext,
    "What the provider would be sent now: epoch, sources, and the request of the next turn. Commits nothing and wakes nothing.",
)
SESSIONS_COMPACT: Operation[SessionParams, CompactControl] = _operation(
    "sessions.compact",
    SessionParams,
    CompactControl,
    "Ask for a compaction: an item of the inbox, behind which input waits. Asked again, the one that waits is answered.",
    InboxFullError,
    retry="keyed",
)
SESSIONS_MOVE: Operation[MoveSession, MoveControl] = _operation(
    "sessions.move",
    MoveSession,
    MoveControl,
    "Move the session to another location. It waits in the inbox like a compaction; the next turn begins a new Context Epoch.",
    InboxFullError,
    retry="keyed",
)
CONTEXT_LIST: Operation[SessionParams, tuple[ContextEntry, ...]] = _operation(
    "context.list", SessionParams, tuple[ContextEntry, ...], "The context entries that clients keep for a session, by key."
)
CONTEXT_PUT: Operation[PutContextEntry, ContextEntry] = _operation(
    "context.put",
    PutContextEntry,
    ContextEntry,
    "Keep a context entry for a session; its model is told at the next turn. Wakes nothing.",
    retry="keyed",
)
CONTEXT_REMOVE: Operation[RemoveContextEntry, None] = _operation(
    "context.remove",
    RemoveContextEntry,
    None,
    "Remove a context entry; removing one that is not there is no error.",
    retry="keyed",
)
SESSIONS_ATTACH: Operation[SessionParams, Attachment] = _operation(
    "sessions.attach",
    SessionParams,
    Attachment,
    "What a client needs to join the session, of one moment: the session, its inbox, its open requests, the running turn.",
)
PERMISSIONS_LIST: Operation[ListRequests, tuple[PermissionRequest, ...]] = _operation(
    "permissions.list", ListRequests, tuple[PermissionRequest, ...], "Permission requests that wait for an answer."
)
PERMISSIONS_REPLY: Operation[PermissionAnswer, PermissionReplied] = _operation(
    "permissions.reply",
    PermissionAnswer,
    PermissionReplied,
    "Answer a permission request. The first answer wins; a later one is told what it was.",
    PermissionNotFoundError,
    ConflictError,
    retry="never",
)
PERMISSIONS_SAVED: Operation[ListSavedPermissions, tuple[SavedPermission, ...]] = _operation(
    "permissions.saved", ListSavedPermissions, tuple[SavedPermission, ...], "Approvals that were kept by `always`."
)
PERMISSIONS_FORGET: Operation[ForgetPermission, None] = _operation(
    "permissions.forget",
    ForgetPermission,
    None,
    "Forget a kept approval; forgetting one that is not there is no error.",
    retry="keyed",
)
QUESTIONS_LIST: Operation[ListRequests, tuple[QuestionRequest, ...]] = _operation(
    "questions.list", ListRequests, tuple[QuestionRequest, ...], "Questions that wait for an answer."
)
QUESTIONS_REPLY: Operation[QuestionAnswer, QuestionReplied] = _operation(
    "questions.reply",
    QuestionAnswer,
    QuestionReplied,
    "Answer a question. The first answer wins; a later one is told what it was.",
    QuestionNotFoundError,
    ConflictError,
    retry="never",
)
QUESTIONS_REJECT: Operation[QuestionParams, QuestionRejected] = _operation(
    "questions.reject",
    QuestionParams,
    QuestionRejected,
    "Dismiss a question, which stops the drain that asked it.",
    QuestionNotFoundError,
    ConflictError,
    retry="never",
)
AGENTS_LIST: Operation[NoParams, tuple[AgentInfo, ...]] = _operation(
    "agents.list", NoParams, tuple[AgentInfo, ...], "The agents a session can be given; the first is the default."
)
MODELS_LIST: Operation[NoParams, tuple[CatalogModel, ...]] = _operation(
    "models.list", NoParams, tuple[CatalogModel, ...], "The models that can be selected now, by provider and id."
)
SESSIONS_EVENTS: Operation[WatchSession, SessionStream] = _operation(
    "sessions.events",
    WatchSession,
    SessionStream,
    "The durable stream of one session: everything after `after`, then new commits; no gap, no duplicate.",
    CursorExpiredError,
    stream=True,
)
EVENTS_SUBSCRIBE: Operation[NoParams, LiveStream] = _operation(
    "events.subscribe",
    NoParams,
    LiveStream,
    "The live stream of the whole instance: no replay, no filter.",
    stream=True,
)
SERVER_INFO: Operation[NoParams, ServerInfo] = _operation(
    "server.info", NoParams, ServerInfo, "Name, version, store generation, limits."
)
SERVER_HEALTH: Operation[NoParams, Health] = _operation("server.health", NoParams, Health, "Whether the runtime answers.")

CONTRACT = ContractIR(
    (
        SESSIONS_CREATE,
        SESSIONS_GET,
        SESSIONS_LIST,
        SESSIONS_PROMPT,
        SESSIONS_PENDING,
        SESSIONS_WITHDRAW,
        SESSIONS_INTERRUPT,
        SESSIONS_RESUME,
        SESSIONS_WAIT,
        SESSIONS_ACTIVE,
        SESSIONS_MESSAGES,
        SESSIONS_SWITCH_MODEL,
        SESSIONS_SWITCH_AGENT,
        SESSIONS_REDELIVER,
        SESSIONS_WAIT_PROMPT,
        SESSIONS_UPDATE,
        SESSIONS_REMOVE,
        SESSIONS_FORK,
        SESSIONS_MESSAGE,
        SESSIONS_CONTEXT,
        SESSIONS_PROVIDER_CONTEXT,
        SESSIONS_COMPACT,
        SESSIONS_MOVE,
        SESSIONS_ATTACH,
        CONTEXT_LIST,
        CONTEXT_PUT,
        CONTEXT_REMOVE,
        PERMISSIONS_LIST,
        PERMISSIONS_REPLY,
        PERMISSIONS_SAVED,
        PERMISSIONS_FORGET,
        QUESTIONS_LIST,
        QUESTIONS_REPLY,
        QUESTIONS_REJECT,
        AGENTS_LIST,
        MODELS_LIST,
        SESSIONS_EVENTS,
        EVENTS_SUBSCRIBE,
        SERVER_INFO,
        SERVER_HEALTH,
    )
)
"""The whole public surface. `rpc.authenticate`, `rpc.cancel` and `rpc.unsubscribe` belong to the envelope, not to it."""
