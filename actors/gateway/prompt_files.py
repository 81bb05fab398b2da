"""Files of a prompt at the door: taken as bytes or `data:` URLs, sniffed, bounded (ruling B9).

The server reads no path a client names: a client that wants to send a file reads it itself. So a prompt is complete when it is
admitted, and nothing is admitted of one whose file cannot be read.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from urllib.parse import unquote_to_bytes

from ...protocol.values.errors import InvalidRequestError
from ...protocol.values.prompt import PromptFile, PromptFileInput

MAX_FILES = 100
MAX_NAME = 255

_SIGNATURES: tuple[tuple[bytes, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
)


def admit_files(files: Sequence[PromptFileInput]) -> tuple[PromptFile, ...]:
    """The files as they will be stored. Raises `InvalidRequestError` naming the one that cannot be read."""
    if len(files) > MAX_FILES:
        raise InvalidRequestError(f"A prompt takes at most {MAX_FILES} files.", field="files")
    return tuple(_admit(file, f"files[{index}]") for index, file in enumerate(files))


def sniff(data: bytes, declared: str | None) -> str:
    """The media type that the bytes themselves show; text by the declared subtype, else plain."""
    for signature, mime in _SIGNATURES:
        if data.startswith(signature):
            return mime
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    try:
        data.decode()
    except UnicodeDecodeError:
        return "application/octet-stream"
    if b"\0" in data:
        return "application/octet-stream"
    if declared is not None and declared.startswith("text/"):
        return declared
    return "text/plain"


def _admit(file: PromptFileInput, field: str) -> PromptFile:
    if (file.data is None) == (file.uri is None):
        raise InvalidRequestError(f"{field} needs exactly one of data and uri.", field=field)
    if file.name is not None and len(file.name) > MAX_NAME:
        raise InvalidRequestError(f"The name has more than {MAX_NAME} characters.", field=f"{field}.name")
    data, declared = (file.data, None) if file.data is not None else _from_uri(file.uri or "", field)
    if len(declared or file.mime or "") > MAX_NAME:
        raise InvalidRequestError(f"The media type has more than {MAX_NAME} characters.", field=f"{field}.mime")
    return PromptFile(data=data, mime=sniff(data, declared or file.mime), name=file.name)


def _from_uri(uri: str, field: str) -> tuple[bytes, str | None]:
    if not uri.startswith("data:") or "," not in uri:
        raise InvalidRequestError(
            "The server reads only data: URLs; read the file and send its bytes in data.", field=f"{field}.uri"
        )
    head, _, body = uri.removeprefix("data:").partition(",")
    parameters = head.split(";")
    try:
        raw = unquote_to_bytes(body)
        data = base64.b64decode(raw, validate=True) if parameters[-1] == "base64" else raw
    except binascii.Error:
        raise InvalidRequestError("The data: URL is not valid base64.", field=f"{field}.uri") from None
    return data, parameters[0] or None
