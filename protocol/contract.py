"""The contract as data: what an operation is, and the table of all of them, compiled once.

Rules:
- An `Operation` is the only description of a public capability. Router, Python client, memory transport and documents read
  it; none of them knows an operation by hand. Start-up fails when the router's handlers and the contract differ.
- The wire method and the client's namespace and method are named apart, so that either may change alone.
- `guards` are checked in order before the handler runs. `retry` tells a client whether a lost answer may be asked again
  (`safe`: reads; `keyed`: safe with the same ids; `never`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, Literal, TypeVar

import msgspec

from .values.errors import (
    ActorStopped,
    DeclaredError,
    InternalError,
    InvalidRequestError,
    OverloadedError,
    RequestCancelledError,
    ServiceUnavailableError,
    StorageUnavailableError,
    UnauthorizedError,
)
from .values.value import Value

ParamsT = TypeVar("ParamsT", bound=msgspec.Struct)
ResultT = TypeVar("ResultT")

Guard = Literal["authenticated", "session"]
"""`authenticated`: the connection proved its token. `session`: `session_id` is well-formed and the session exists."""

Retry = Literal["safe", "keyed", "never"]

COMMON_ERRORS: tuple[type[DeclaredError], ...] = (
    InvalidRequestError,
    UnauthorizedError,
    RequestCancelledError,
    OverloadedError,
    ServiceUnavailableError,
    ActorStopped,
    StorageUnavailableError,
    InternalError,
)
"""Every operation can answer with these beside what is its own."""


class Operation(Value, Generic[ParamsT, ResultT]):
    """One public operation. `result` is the type of its answer; of a stream, of the answer that opens it."""

    method: str
    params: type[ParamsT]
    result: Any
    errors: tuple[type[DeclaredError], ...]
    summary: str
    namespace: str
    name: str
    stream: bool
    guards: tuple[Guard, ...]
    retry: Retry


class ContractIR:
    """All operations by wire method, with the schemas derived from their types. Immutable after construction."""

    def __init__(self, operations: Iterable[Operation[Any, Any]]) -> None:
        self.operations: dict[str, Operation[Any, Any]] = {}
        for operation in operations:
            if operation.method in self.operations:
                raise ValueError(f"The contract declares {operation.method} twice.")
            self.operations[operation.method] = operation

    def schemas(self) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
        """`({method: {"params": schema, "result": schema}}, components)`: JSON Schemas of the encoded shapes."""
        kinds: list[Any] = []
        for operation in self.operations.values():
            kinds += [operation.params, operation.result]
        schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
        pairs = iter(schemas)
        return {method: {"params": next(pairs), "result": next(pairs)} for method in self.operations}, components

    def check_handlers(self, methods: Iterable[str]) -> None:
        """Raise `ValueError` unless `methods` are exactly the operations of the contract."""
        given = set(methods)
        missing, unknown = sorted(self.operations.keys() - given), sorted(given - self.operations.keys())
        if missing or unknown:
            raise ValueError(f"The router and the contract differ: without handler {missing}, not declared {unknown}.")
