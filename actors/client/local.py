"""Where a client finds the server of this machine: two small files in the user's state folder.

Rules:
- `server.json` holds `{url, token_file}` of the server that runs now; the token stands in a file of its own, so that the
  address may be shown to anybody. Both are written whole or not at all, and only their owner may read them.
- The serve command writes, `connect()` reads. Nothing here talks to anybody.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import msgspec

from ...protocol.values.errors import ClientError
from ...protocol.values.value import Value

SERVER_FILE = "server.json"
TOKEN_FILE = "token"


class LocalServer(Value):
    """What `server.json` says."""

    url: str
    token_file: str


def state_folder() -> Path:
    """The user's state folder of this program; it need not exist."""
    import platformdirs

    return Path(platformdirs.user_state_dir("steerway"))


def read_local(folder: Path | None = None) -> tuple[str, str | None]:
    """Address and token of the local server. Raises `ClientError` `transport` when none is known."""
    path = (folder or state_folder()) / SERVER_FILE
    try:
        server = msgspec.json.decode(path.read_bytes(), type=LocalServer)
    except FileNotFoundError:
        raise ClientError(
            "transport", "No server of this machine is known: start one with `steerway serve`, or give its url."
        ) from None
    except (OSError, msgspec.DecodeError) as error:
        raise ClientError("transport", f"{path} cannot be read ({error}); start the server again, or give its url.") from error
    return server.url, read_token(Path(server.token_file))


def read_token(path: Path) -> str | None:
    """The token in a file, None when there is no such file. Raises `ClientError` `transport` when it cannot be read."""
    try:
        return path.read_text("utf-8").strip() or None
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ClientError("transport", f"The token file {path} cannot be read ({error}).") from error


def write_local(url: str, token_file: Path, folder: Path | None = None) -> Path:
    """Say where the server is; the path of the file. Raises `OSError`."""
    path = (folder or state_folder()) / SERVER_FILE
    write_private(path, msgspec.json.encode(LocalServer(url=url, token_file=str(token_file.absolute()))))
    return path


def remove_local(url: str, folder: Path | None = None) -> None:
    """Say that the server at `url` is gone, unless another one has taken its place. Raises `OSError`."""
    path = (folder or state_folder()) / SERVER_FILE
    try:
        server = msgspec.json.decode(path.read_bytes(), type=LocalServer)
    except (FileNotFoundError, msgspec.DecodeError):
        return
    if server.url == url:
        path.unlink(missing_ok=True)


def ensure_token(path: Path | None = None) -> tuple[str, Path]:
    """The token in the file at `path` (default: in the state folder), made there at the first time. Raises `OSError`."""
    path = path or state_folder() / TOKEN_FILE
    token = read_token(path)
    if token is None:
        token = secrets.token_urlsafe(32)
        write_private(path, token.encode() + b"\n")
    return token, path


def write_private(path: Path, content: bytes) -> None:
    """Put `content` at `path` in one step, readable by its owner only. Raises `OSError`."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
