"""Options that several commands share, and what they stand for.

Rules (ruling C5):
- `--db` and `--config` go with every command that opens a store, `--url` and `--token-file` with every one that can ask a
  server. Asking a server and opening a store exclude each other.
- A token is only sent to the server it belongs to: the one of a named token file, or the local one that wrote `server.json`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .failures import Refusal

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from ...storage.reader import Reader
    from ..client.client import Client
    from ..settings import Settings

CommandT = TypeVar("CommandT", bound=Callable[..., Any])
T = TypeVar("T")

FILE = click.Path(dir_okay=False, path_type=Path)


def store_options(command: CommandT) -> CommandT:
    """`--db` and `--config`."""
    command = click.option("--config", type=FILE, metavar="FILE", help="A configuration file above the ones that are found.")(
        command
    )
    return click.option("--db", type=FILE, metavar="PATH", help="The store's file.")(command)


def server_options(command: CommandT) -> CommandT:
    """`--url` and `--token-file`."""
    command = click.option("--token-file", type=FILE, metavar="FILE", help="The file with that server's token.")(command)
    return click.option("--url", metavar="ws://...", help="Ask the server at this address.")(command)


def json_option(command: CommandT) -> CommandT:
    """`--json`."""
    return click.option("--json", "as_json", is_flag=True, help="JSON, for programs.")(command)


def check_place(url: str | None, token_file: Path | None, db: Path | None) -> None:
    """Raises a usage error when options for a server and for a store are mixed."""
    if url is None and token_file is not None:
        raise click.UsageError("--token-file belongs to a server; name that with --url.")
    if url is not None and db is not None:
        raise click.UsageError("Either ask a server with --url or open a store with --db.")


def read_settings(config: Path | None, db: Path | None, flags: dict[str, object] | None = None) -> Settings:
    """The effective settings of a command."""
    from ..settings import Surroundings, load_settings

    return load_settings(Surroundings.of_process(), config_file=config, flags={"store.path": db, **(flags or {})})


def reader(config: Path | None, db: Path | None) -> Reader:
    """A reader of the store, which may belong to a running process (ruling B12). The caller closes it."""
    from ...storage.database import open_reader

    path = Path(read_settings(config, db).configuration.store.path)
    if not path.is_file():
        raise Refusal(f"There is no store at {path} yet; `steerway run` and `steerway serve` make it, --db names another.")
    return open_reader(path)


def asking(url: str, token_file: Path | None) -> AbstractAsyncContextManager[Client]:
    """A client of the server at `url`. A token that is missing or wrong is told together with where it was looked for."""
    from ...protocol.codec import MSGPACK
    from ..client.websocket import websocket_opener

    token, place = _token(url, token_file)
    try:
        websocket_opener(url, token=token, subprotocol=MSGPACK.subprotocol)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return _connected(url, token, place)


@asynccontextmanager
async def _connected(url: str, token: str | None, place: Path | None) -> AsyncGenerator[Client]:
    from ...protocol.values.errors import ClientError, UnauthorizedError
    from ..client.opening import connect

    try:
        async with connect(url, token=token) as client:
            yield client
    except (ClientError, UnauthorizedError) as error:
        if isinstance(error, ClientError) and (error.reason, error.status) != ("refused", 401):
            raise
        found = "none is known here for this address" if token is None else f"the one in {place} is wrong"
        advice = "The server named its token file when it started; say it with --token-file."
        raise Refusal(f"The server at {url} wants its token, and {found}. {advice}") from error


def ask(url: str, token_file: Path | None, question: Callable[[Client], Awaitable[T]]) -> T:
    """The answer of the server at `url` to one question."""
    import trio

    async def asked() -> T:
        async with asking(url, token_file) as client:
            return await question(client)

    return trio.run(asked)


def _token(url: str, token_file: Path | None) -> tuple[str | None, Path | None]:
    """The token for the server at `url`, and the file that it comes from."""
    import msgspec

    from ..client.local import SERVER_FILE, LocalServer, read_token, state_folder

    if token_file is not None:
        token = read_token(token_file)
        if token is None:
            raise click.BadParameter(f"{token_file} does not exist or is empty.", param_hint="--token-file")
        return token, token_file
    try:
        local = msgspec.json.decode((state_folder() / SERVER_FILE).read_bytes(), type=LocalServer)
    except (OSError, msgspec.DecodeError):
        return None, None
    if local.url.rstrip("/") != url.rstrip("/"):
        return None, None
    found = Path(local.token_file)
    return read_token(found), found
