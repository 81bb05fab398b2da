"""Files in prompts and results, up to the request that arrives: which model gets a PDF, and what another one learns of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from steerway.actors.configuration import Configuration, InputKind, Model, ModelSelection, Provider, Store
from steerway.actors.configuration import WireProtocol as Wire
from steerway.actors.models import Models
from steerway.protocol.llm.invariants import IMAGE_TYPES, MEDIA_TYPES, PDF_TYPE
from steerway.protocol.llm.request import Text, UserMessage
from steerway.protocol.values import ModelRef, PromptFileInput
from steerway.protocol.values.model import Capabilities
from support.answers import answer, text, tool_call
from support.house import open_house
from support.provider import Provider as ScriptedProvider
from support.provider import Request, open_provider

PDF = b"%PDF-1.7\n1 0 obj"
BASE64 = "JVBERi0xLjcKMSAwIG9iag=="
FILE = PromptFileInput(data=PDF, mime=PDF_TYPE, name="a.pdf")
NOTE = 'File "a.pdf" (application/pdf, 16 bytes) was not sent: not supported here.'


def settings(provider: ScriptedProvider, wire: Wire, input: tuple[InputKind, ...] | None = None) -> Configuration:
    return Configuration(
        store=Store(synchronous="normal"),
        providers={"p": Provider(protocol=wire, base_url=provider.base_url, input=input)},
        models=ModelSelection(default="p/m"),
    )


def parts(request: Request, last: int = -1) -> Sequence[Any]:
    """The parts of a message of the request, without cache markers."""
    body = request.json
    message = next(body[name] for name in ("messages", "input", "contents") if name in body)[last]
    content = next(message[name] for name in ("content", "parts", "output") if name in message)
    return [{name: value for name, value in part.items() if name != "cache_control"} for part in content]


DOCUMENTS: dict[Wire, dict[str, Any]] = {
    "openai-chat": {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{BASE64}"}},
    "openai-responses": {"type": "input_file", "filename": "a.pdf", "file_data": f"data:application/pdf;base64,{BASE64}"},
    "anthropic-messages": {
        "type": "document",
        "source": {"type": "base64", "media_type": PDF_TYPE, "data": BASE64},
        "title": "a.pdf",
    },
    "gemini": {"inlineData": {"mimeType": PDF_TYPE, "data": BASE64}},
}


@pytest.mark.parametrize("wire", list(DOCUMENTS))
async def test_a_pdf_of_a_prompt_arrives_as_the_protocol_has_it_and_stays_so(wire: Wire, tmp_path: Path) -> None:
    async with (
        open_provider() as provider,
        open_house(provider, tmp_path, settings=settings(provider, wire, ("text", "pdf"))) as house,
    ):
        session = await house.session()
        await house.ask(session, "Read this", files=[FILE])
        await house.ask(session, "And?")
        first, second = provider.requests
        assert parts(first)[1:] == [DOCUMENTS[wire]]
        at = next(len(first.json[name]) for name in ("messages", "input", "contents") if name in first.json) - 1
        assert parts(second, at) == parts(first)
        assert provider.violations == []


async def test_a_pdf_that_was_read_arrives_in_the_result(tmp_path: Path) -> None:
    script = (answer(tool_call("read", {"path": "a.pdf"})), answer(text("Done.")))
    async with (
        open_provider(*script) as provider,
        open_house(provider, tmp_path, settings=settings(provider, "anthropic-messages")) as house,
    ):
        (tmp_path / "a.pdf").write_bytes(PDF)
        session = await house.session()
        await house.ask(session, "Read it")
        (result,) = parts(provider.requests[1])
        assert result["content"] == [DOCUMENTS["anthropic-messages"]]


async def test_a_model_that_takes_no_pdf_learns_that_there_was_one(tmp_path: Path) -> None:
    async with open_provider() as provider, open_house(provider, tmp_path) as house:
        session = await house.session()
        await house.ask(session, "Read this", files=[FILE])
        said, note = parts(provider.requests[0])
        assert (said["text"], note["text"]) == ("Read this", NOTE)
        shown = await house.sessions.provider_context(session)
        assert shown.request is not None
        assert shown.request.messages[0] == UserMessage(content=(Text(text="Read this"), Text(text=NOTE)))


# --- which model takes what -------------------------------------------------------------------------------------------

OPENAI = "https://api.openai.com/v1"
LOCAL = "http://127.0.0.1:9/v1"


@pytest.mark.parametrize(
    ("wire", "base_url", "expected"),
    [
        ("openai-chat", OPENAI, MEDIA_TYPES),
        ("openai-chat", "https://eu.api.openai.com/v1", MEDIA_TYPES),
        ("openai-chat", LOCAL, IMAGE_TYPES),
        ("openai-chat", "https://api.openai.com.example.org/v1", IMAGE_TYPES),
        ("openai-responses", LOCAL, MEDIA_TYPES),
        ("anthropic-messages", LOCAL, MEDIA_TYPES),
        ("gemini", LOCAL, MEDIA_TYPES - {"image/gif"}),
        ("demo", OPENAI, IMAGE_TYPES),
    ],
)
async def test_images_go_everywhere_and_pdfs_where_the_protocol_has_them(
    wire: Wire, base_url: str, expected: frozenset[str]
) -> None:
    provider = Provider(protocol=wire, base_url=base_url)
    async with Models(Configuration(providers={"p": provider}), {}) as models:
        assert models.resolve(ModelRef(provider="p", id="m")).media == expected


@pytest.mark.parametrize(
    ("of_provider", "of_model", "expected"),
    [
        (("text",), None, frozenset[str]()),
        (("text", "image"), None, IMAGE_TYPES),
        (("pdf",), None, {PDF_TYPE}),
        (("text", "audio", "video"), None, frozenset[str]()),
        (("text",), ("text", "image", "pdf"), MEDIA_TYPES),
        (("text", "image"), (), frozenset[str]()),
        (None, ("text",), frozenset[str]()),
    ],
)
async def test_what_a_model_reads_can_be_said_of_it_or_of_its_provider(
    of_provider: tuple[InputKind, ...] | None, of_model: tuple[InputKind, ...] | None, expected: frozenset[str]
) -> None:
    provider = Provider(protocol="anthropic-messages", base_url=LOCAL, input=of_provider, models={"m": Model(input=of_model)})
    async with Models(Configuration(providers={"p": provider}), {}) as models:
        assert models.resolve(ModelRef(provider="p", id="m")).media == expected
        (told,) = [one.capabilities.input for one in models.describe() if one.provider == "p"]
        assert told == (of_provider if of_model is None else of_model)


async def test_what_a_protocol_does_not_take_does_not_go_whatever_is_said_of_the_model() -> None:
    provider = Provider(protocol="gemini", base_url=LOCAL, models={"m": Model(input=("text", "image"))})
    async with Models(Configuration(providers={"p": provider}), {}) as models:
        assert models.resolve(ModelRef(provider="p", id="m")).media == IMAGE_TYPES - {"image/gif"}


async def test_what_is_told_of_a_model_in_other_words_stays_what_people_see() -> None:
    model = Model(input=("text",), capabilities=Capabilities(input=("text", "smell")))
    async with Models(Configuration(providers={"p": Provider(protocol="gemini", models={"m": model})}), {}) as models:
        (told,) = [one.capabilities.input for one in models.describe() if one.provider == "p"]
        assert told == ("text", "smell")
