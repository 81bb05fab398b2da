"""The configuration as values: what can be set, its types and defaults. `settings` reads them from their layers.

Rules:
- A key of `steerway.toml` is a field here; a field that is not here is an error there. Later features add their fields.
- Keys of providers never stand in a configuration, only the name of the variable or file that holds one. Header values
  may be credentials all the same, so no representation shows headers.
- Three domains stay apart (seed: Generation Controls, Model Request Options): `generation` is neutral, `options` is the
  provider's own semantics, `body` are compatibility fields of the final JSON. Each is merged provider, model, variant.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct, field, structs

from ..protocol.llm.request import Generation
from ..protocol.values.errors import SteerwayError
from ..protocol.values.model import Capabilities, Prices
from ..protocol.values.permission import Effect

Count = Annotated[int, Meta(ge=1, le=2**53)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Seconds = Annotated[float, Meta(gt=0)]
WireProtocol = Literal["openai-chat", "openai-responses", "anthropic-messages", "gemini", "demo"]

InputKind = Literal["text", "image", "pdf", "audio", "video"]
"""What may be said that a model reads. Of files, images and PDFs are sent as they are; sound and films never."""

DEFAULT_BASE_URL: Final = "https://api.openai.com/v1"
ANTHROPIC_BASE_URL: Final = "https://api.anthropic.com/v1"
GOOGLE_BASE_URL: Final = "https://generativelanguage.googleapis.com/v1beta"

_BASE_URLS: Final = {"anthropic-messages": ANTHROPIC_BASE_URL, "gemini": GOOGLE_BASE_URL}
"""The vendors' own, where it is not the default."""


class ConfigurationError(SteerwayError):
    """The configuration cannot be used. The message is one sentence that names the source and the key, and what to do.

    `source` is a file, an environment variable, or a flag; `key` is the dotted key, where one is to blame.
    """

    def __init__(self, message: str, *, source: str, key: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.source = source
        self.key = key


def unusable_name(kind: str, name: str) -> str | None:
    """Why a provider (or model) cannot be selected by this name, as a sentence; None when it can.

    A model is written `provider/model`: a provider's name has no slash, and neither is empty.
    """
    if name and name.isprintable() and name == name.strip() and not (kind == "provider" and "/" in name):
        return None
    rule = "it may not be empty" if not name else "it may hold no slash, nor begin or end with white space"
    return f"A {kind} cannot be called {name!r}: models are written provider/model, so {rule}."


class Store(Struct, frozen=True, kw_only=True):
    """`path`: the database file; the settings put it into the user's data folder unless something names another."""

    path: str = "sessions.db"
    synchronous: Literal["full", "normal"] = "full"


class Gateway(Struct, frozen=True, kw_only=True):
    """Where `serve` listens. `origins` and `hosts` are allowed beside the loopback names."""

    host: str = "127.0.0.1"
    port: Port = 4747
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()


class ModelSelection(Struct, frozen=True, kw_only=True):
    """`default`: `provider/model`, or `provider/model:variant`, for sessions that select none.

    `fallback`: models to ask instead, in this order, while one is overloaded; none unless they are named here.
    """

    default: str | None = None
    fallback: tuple[str, ...] = ()


class Timeouts(Struct, frozen=True, kw_only=True):
    """How long a provider may be silent, in seconds; what takes longer is a retryable transport failure.

    `connect` bounds the TCP connection, and once more the TLS handshake. `first_byte` counts from the start of the request
    to the first byte of the answer's body, `idle` from one piece of the body to the next, `stalled` from one step of the
    answer to the next, however many signs of life (comments, pings, empty deltas) come between them.
    """

    connect: Seconds = 30.0
    first_byte: Seconds = 120.0
    idle: Seconds = 120.0
    stalled: Seconds = 300.0


class Overlay(Struct, frozen=True, kw_only=True):
    """What provider, model and variant can each say about a request; the later one wins, key by key."""

    generation: Generation = field(default_factory=Generation)
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    headers: dict[str, str] = field(default_factory=dict[str, str])
    body: dict[str, Any] = field(default_factory=dict[str, Any])

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


class Model(Overlay, frozen=True, kw_only=True):
    """`id` is what the provider calls the model, when that differs from its name here. Limits are in tokens.

    `cost` wins over what is known of the model otherwise; all of it, not price by price. `name` and `capabilities` are what
    `models.list` tells people; no request depends on them. `input` says what the model reads, in place of the provider's.
    """

    id: str | None = None
    input: tuple[InputKind, ...] | None = None
    context: Count | None = None
    output: Count | None = None
    cost: Prices | None = None
    name: str | None = None
    capabilities: Capabilities = Capabilities()
    variants: dict[str, Overlay] = field(default_factory=dict[str, Overlay])

    def __repr__(self) -> str:
        return f"<Model context={self.context} output={self.output} variants={sorted(self.variants)}>"


class Provider(Overlay, frozen=True, kw_only=True):
    """One provider. Without listed models it takes any model id (ruling C7).

    `base_url` is the vendor's own when none is given: no key leaves for another vendor than that of the protocol. The key is
    in an environment variable, or in a file that only its owner may read; where both are named, the file is used. `input` says
    what its models read; what is sent where nobody says it is for `catalog` to know.
    """

    protocol: WireProtocol
    input: tuple[InputKind, ...] | None = None
    base_url: str = ""
    api_key_env: str | None = None
    api_key_file: str | None = None
    timeouts: Timeouts = Timeouts()
    models: dict[str, Model] = field(default_factory=dict[str, Model])

    def __post_init__(self) -> None:
        if not self.base_url:
            structs.force_setattr(self, "base_url", _BASE_URLS.get(self.protocol, DEFAULT_BASE_URL))

    def __repr__(self) -> str:
        return f"<Provider {self.protocol} {self.base_url} models={sorted(self.models)}>"


class PermissionRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`action` and `resource` are patterns (`*`, `?`); of the rules that match, the last one decides."""

    action: Annotated[str, Meta(min_length=1)]
    resource: Annotated[str, Meta(min_length=1)]
    effect: Effect


class Agent(Struct, frozen=True, kw_only=True):
    """`system` is the agent's own part of the system prompt; `model` as in `ModelSelection`.

    `steps` is how many provider turns one prompt may take; unlimited when not set. `permissions` stand behind the built-in
    rules. Those of several layers stand one behind the other.
    """

    system: str | None = None
    model: str | None = None
    steps: Count | None = None
    permissions: tuple[PermissionRule, ...] = ()


class Permissions(Struct, frozen=True, kw_only=True):
    """`policy`: what becomes of a permission that has to be asked for. `ask` waits for an answer, however long."""

    policy: Effect = "ask"


class Recovery(Struct, frozen=True, kw_only=True):
    """`policy`: what a start does about work that an ended process left. `settle` records that it was interrupted and spends
    nothing; `continue` goes on with it, a bounded number of times.
    """

    policy: Literal["settle", "continue"] = "settle"


class ToolOutputLimits(Struct, frozen=True, kw_only=True):
    """What of a tool's output stands in history."""

    max_lines: Count = 2000
    max_bytes: Count = 51200


class Compaction(Struct, frozen=True, kw_only=True):
    """`auto`: summarise when a request would not fit, or did not. Off means off; it can still be asked for.

    Tokens: `keep_tokens` is how much of the end stays as it was, `buffer` the room that is left free, at most half the context.
    """

    auto: bool = True
    keep_tokens: Count = 8_000
    buffer: Count = 20_000


class Configuration(Struct, frozen=True, kw_only=True):
    """Everything that can be configured. `Configuration()` is the built-in defaults."""

    store: Store = Store()
    gateway: Gateway = Gateway()
    models: ModelSelection = ModelSelection()
    providers: dict[str, Provider] = field(default_factory=dict[str, Provider])
    agents: dict[str, Agent] = field(default_factory=dict[str, Agent])
    permissions: Permissions = Permissions()
    recovery: Recovery = Recovery()
    tool_output: ToolOutputLimits = ToolOutputLimits()
    compaction: Compaction = Compaction()
