"""The package as it is declared, laid out and loaded.

Rules: what is declared (packages, data, pins, public names) is compared with what is there; what an import may load is
measured in a new interpreter, because this one has loaded everything already.
"""

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import steerway
from steerway.protocol.values import errors

ROOT = Path(__file__).resolve().parents[1]
FLOORS = ("actors", "protocol", "storage")
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

# What a user may rely on. Adding a name is a line in the changelog; taking one away breaks somebody.
PUBLIC = [
    "Activity",
    "ActorStopped",
    "Admission",
    "AgentInfo",
    "AgentNotFoundError",
    "AgentSwitched",
    "AgentSwitchedMessage",
    "AssistantContent",
    "AssistantMessage",
    "Attachment",
    "CacheTokens",
    "CallId",
    "Capabilities",
    "CatalogModel",
    "Client",
    "ClientError",
    "ClientFailure",
    "CompactControl",
    "CompactionCompleted",
    "CompactionDelta",
    "CompactionFailed",
    "CompactionMessage",
    "CompactionStarted",
    "CompletedOutcome",
    "Configuration",
    "ConflictError",
    "ContextContribution",
    "ContextEntry",
    "ContextEpoch",
    "ContextSource",
    "ContextUnavailableError",
    "ContextUpdated",
    "ControlAdmitted",
    "ControlItem",
    "ControlWithdrawn",
    "CursorExpiredError",
    "DeclaredError",
    "Delivery",
    "Effect",
    "EpochStarted",
    "Event",
    "EventId",
    "FailedOutcome",
    "Failure",
    "FileContent",
    "Finish",
    "Generation",
    "Health",
    "IdleOutcome",
    "InboxFullError",
    "InternalError",
    "Interrupted",
    "InterruptedOutcome",
    "InvalidCursorError",
    "InvalidRequestError",
    "Location",
    "ManagedOutput",
    "Message",
    "MessageId",
    "MessageNotFoundError",
    "MethodNotFoundError",
    "ModelNotSelectedError",
    "ModelRef",
    "ModelSwitched",
    "ModelSwitchedMessage",
    "ModelUnavailableError",
    "MoveControl",
    "Order",
    "Outcome",
    "OverloadedError",
    "Page",
    "PageCursor",
    "PartId",
    "PendingItem",
    "PermissionAsked",
    "PermissionEnd",
    "PermissionNotFoundError",
    "PermissionReplied",
    "PermissionReply",
    "PermissionRequest",
    "PriceTier",
    "Prices",
    "PromotedOutcome",
    "Prompt",
    "PromptAdmitted",
    "PromptFile",
    "PromptFileInput",
    "PromptNotFoundError",
    "PromptOutcome",
    "PromptPromoted",
    "PromptRedelivered",
    "PromptWithdrawn",
    "ProviderContext",
    "Question",
    "QuestionAsked",
    "QuestionNotFoundError",
    "QuestionOption",
    "QuestionRejected",
    "QuestionReplied",
    "QuestionRequest",
    "ReasoningDelta",
    "ReasoningEnded",
    "ReasoningPart",
    "ReasoningStarted",
    "RequestCancelledError",
    "RequestId",
    "Retry",
    "RetryScheduled",
    "Rule",
    "Running",
    "Runtime",
    "RuntimeFailedError",
    "SavedPermission",
    "ServerConnected",
    "ServerDiagnostic",
    "ServerDisposed",
    "ServerHeartbeat",
    "ServerInfo",
    "ServerLimits",
    "ServiceUnavailableError",
    "Session",
    "SessionCreated",
    "SessionForked",
    "SessionId",
    "SessionMoved",
    "SessionNotFoundError",
    "SessionRemoved",
    "SessionUpdated",
    "SnapshotEntry",
    "SteerwayError",
    "StorageUnavailableError",
    "StoreInUseError",
    "StoreUnsuitableError",
    "StoreVersionError",
    "SubscriberOverflowError",
    "Synced",
    "SyntheticAdded",
    "SyntheticMessage",
    "SystemContext",
    "SystemMessage",
    "TextContent",
    "TextDelta",
    "TextEnded",
    "TextPart",
    "TextStarted",
    "Tokens",
    "Tool",
    "ToolCalled",
    "ToolCompleted",
    "ToolContent",
    "ToolContext",
    "ToolDefinition",
    "ToolError",
    "ToolFailed",
    "ToolFailure",
    "ToolInputDelta",
    "ToolInputEnded",
    "ToolInputStarted",
    "ToolPart",
    "ToolPending",
    "ToolProgress",
    "ToolPruned",
    "ToolRunning",
    "ToolState",
    "ToolSucceeded",
    "TurnCompleted",
    "TurnFailed",
    "TurnInterrupted",
    "TurnStarted",
    "UnauthorizedError",
    "Unavailable",
    "UnknownData",
    "UserMessage",
    "VariantUnavailableError",
    "WithdrawOutcome",
    "WithdrawnOutcome",
    "codec_of",
    "connect",
    "open_runtime",
    "tool",
]


def python_files() -> Iterator[Path]:
    for floor in FLOORS:
        yield from sorted((ROOT / floor).rglob("*.py"))


def loaded_by(program: str) -> set[str]:
    """The top-level modules that a new interpreter has loaded after `program`."""
    report = f"{program}\nimport json, sys\nprint(json.dumps(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=False, cwd=ROOT / "tests")
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def test_the_declared_packages_are_the_folders_on_disk() -> None:
    on_disk = {"steerway"} | {"steerway." + ".".join(path.parent.relative_to(ROOT).parts) for path in python_files()}
    declared: list[str] = PROJECT["tool"]["setuptools"]["packages"]
    assert declared == sorted(on_disk)


def test_every_package_opens_with_what_may_happen_inside() -> None:
    folders = {ROOT} | {path.parent for path in python_files()}
    silent = [folder for folder in sorted(folders) if not ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))]
    assert silent == []


def test_every_data_file_is_declared_as_package_data() -> None:
    declared: dict[str, list[str]] = PROJECT["tool"]["setuptools"]["package-data"]
    undeclared: list[str] = []
    for floor in FLOORS:
        patterns = declared.get(f"steerway.{floor}", [])
        for path in (ROOT / floor).rglob("*"):
            inside = path.relative_to(ROOT / floor).as_posix()
            if path.is_dir() or path.suffix in (".py", ".pyc") or any(fnmatch(inside, pattern) for pattern in patterns):
                continue
            undeclared.append(f"{floor}/{inside}")
    assert undeclared == []


def test_imports_inside_the_floors_are_relative() -> None:
    absolute: list[str] = []
    for path in python_files():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Import(names=names):
                    modules = [alias.name for alias in names]
                case ast.ImportFrom(module=str(module), level=0):
                    modules = [module]
                case _:
                    continue
            if any(module.partition(".")[0] in ("steerway", *FLOORS) for module in modules):
                absolute.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert absolute == []


def test_the_folder_for_type_checkers_holds_relative_links_to_all_that_is_the_package() -> None:
    links = {path.name: path.readlink() for path in (ROOT / ".dev" / "steerway").iterdir()}
    assert links == {name: Path("..", "..", name) for name in ("__init__.py", "py.typed", *FLOORS)}


def test_every_dependency_is_pinned_and_no_pin_carries_an_address() -> None:
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert [pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9_.+]+", pin)] == []
    project = PROJECT["project"]
    extras: list[list[str]] = list(project["optional-dependencies"].values())
    wanted = {
        re.split(r"[<>=\[]", spec)[0] for spec in [*project["dependencies"], *(spec for extra in extras for spec in extra)]
    }
    assert wanted - {pin.partition("==")[0] for pin in pins} == {"steerway"}


def test_the_public_names_are_the_pinned_ones() -> None:
    assert steerway.__all__ == PUBLIC
    assert set(PUBLIC) <= set(dir(steerway))


def test_every_public_name_resolves_to_what_type_checkers_see() -> None:
    tree = ast.parse((ROOT / "__init__.py").read_text(encoding="utf-8"))
    (guarded,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.name: str(node.module) for node in guarded.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert sorted(seen) == PUBLIC
    for name, home in seen.items():
        assert getattr(steerway, name) is getattr(import_module(home), name)


def test_every_error_can_be_caught_by_a_public_name() -> None:
    own = {name for name, value in vars(errors).items() if isinstance(value, type) and value.__module__ == errors.__name__}
    assert own - set(PUBLIC) == set()


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = steerway.nonsense  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType, reportAttributeAccessIssue]


def test_importing_the_package_loads_no_floor() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import steerway, sys; print([name for name in sys.modules if name.startswith('steerway.')])",
        ],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT / "tests",
    )
    assert done.stdout.strip() == "[]"


def test_the_whole_protocol_loads_neither_trio_nor_sqlite_nor_http() -> None:
    program = """
import importlib, pkgutil, steerway.protocol
for module in pkgutil.walk_packages(steerway.protocol.__path__, "steerway.protocol."):
    importlib.import_module(module.name)
"""
    assert loaded_by(program) & {"trio", "trio_websocket", "apsw", "sqlite3", "httpx2", "structlog"} == set()


def test_the_whole_of_storage_loads_no_trio_and_no_http() -> None:
    program = """
import importlib, pkgutil, steerway.storage
for module in pkgutil.walk_packages(steerway.storage.__path__, "steerway.storage."):
    importlib.import_module(module.name)
"""
    assert loaded_by(program) & {"trio", "trio_websocket", "httpx2"} == set()


@pytest.mark.parametrize("name", ["connect", "Client"])
def test_the_client_loads_no_sqlite(name: str) -> None:
    assert loaded_by(f"import steerway; steerway.{name}") & {"apsw", "sqlite3"} == set()


def test_a_runtime_that_logs_nothing_does_not_pay_for_a_console() -> None:
    """A third of the start was once rich, pygments and asyncio, for log lines that were never written."""
    program = "from steerway.actors import runtime"
    assert loaded_by(program) & {"structlog", "rich", "pygments", "asyncio", "httpx2", "click"} == set()
