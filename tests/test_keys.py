"""Keys in files: only their owner's, read anew each time, and never repeated."""

import os
from pathlib import Path

import pytest

from steerway.actors.configuration import Configuration, Model, Provider
from steerway.actors.models import Models
from steerway.actors.models.secret import Secret
from steerway.protocol.values.errors import ModelUnavailableError
from steerway.protocol.values.model import ModelRef
from support.house import configuration, open_house
from support.provider import open_provider

KEY = "key-0123456789abcdef"
REF = ModelRef(provider="p", id="m")


def models_with(path: Path, *, variable: str | None = None) -> Models:
    provider = Provider(protocol="openai-chat", api_key_file=str(path), api_key_env=variable, models={"m": Model()})
    return Models(Configuration(providers={"p": provider}), {"SOME_KEY": "other"})


def key_file(folder: Path, content: str = f"{KEY}\n", mode: int = 0o600) -> Path:
    path = folder / "key"
    path.write_text(content)
    path.chmod(mode)
    return path


def refusal(models: Models) -> str:
    with pytest.raises(ModelUnavailableError) as caught:
        models.resolve(REF)
    assert models.list()[0].ref != REF
    assert KEY not in caught.value.message
    return caught.value.message


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_key_is_read_from_a_file_of_its_owner_alone(tmp_path: Path, mode: int):
    info = models_with(key_file(tmp_path, mode=mode), variable="SOME_KEY").resolve(REF)
    assert info.api_key is not None
    assert info.api_key.reveal() == KEY
    assert KEY not in repr(info)
    assert KEY not in f"{info.api_key} {info.api_key!r}"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o644, 0o700, 0o660])
def test_a_file_with_a_wider_mode_is_refused(tmp_path: Path, mode: int):
    said = refusal(models_with(key_file(tmp_path, mode=mode)))
    assert f"has the mode {mode:04o}; make it its owner's alone with chmod 600" in said


def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path):
    assert "No such file" in refusal(models_with(tmp_path / "missing"))
    assert "no regular file" in refusal(models_with(tmp_path))
    os.mkfifo(tmp_path / "pipe", 0o600)
    assert "no regular file" in refusal(models_with(tmp_path / "pipe"))
    assert "cannot be opened" in refusal(models_with(tmp_path / "nul\0"))


@pytest.mark.parametrize("content", ["", " \n", "two\nlines-" + KEY, "k\xe9y", "a\x7fb"])
def test_what_is_no_key_is_refused(tmp_path: Path, content: str):
    said = refusal(models_with(key_file(tmp_path, content)))
    assert f"the key file {tmp_path / 'key'}" in said


def test_a_changed_file_is_used_from_the_next_turn_on(tmp_path: Path):
    models = models_with(key_file(tmp_path))
    key_file(tmp_path, "another-key")
    info = models.resolve(REF)
    assert info.api_key is not None
    assert info.api_key.reveal() == "another-key"


def test_a_secret_shows_itself_to_nobody():
    assert str(Secret(KEY)) == repr(Secret(KEY)) == "Secret(...)"


async def test_a_provider_gets_the_key_of_the_file_and_nothing_stored_or_said_has_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    path = key_file(tmp_path)
    async with open_provider(api_key=KEY) as provider:
        base = configuration(provider)
        scripted = Provider(protocol="openai-chat", base_url=provider.base_url, api_key_file=str(path))
        settings = Configuration(store=base.store, providers={"scripted": scripted}, models=base.models, agents=base.agents)
        folder = tmp_path / "house"
        folder.mkdir()
        async with open_house(provider, folder, settings=settings) as house:
            session = await house.session()
            assert (await house.ask(session, "Hello")).__class__.__name__ == "CompletedOutcome"
            path.write_text("wrong-key-000000")
            failed = await house.ask(session, "Hello again")
            assert "wrong-key" not in str(failed)
            path.chmod(0o644)
            refused = await house.ask(session, "And again")
            assert "chmod 600" in str(refused)
    out = capfd.readouterr()
    for file in folder.iterdir():
        if file.is_file():
            assert KEY.encode() not in file.read_bytes()
    assert KEY not in out.out + out.err
