"""The catalog: names that can be selected, what is said of models that are not there, well-known models, and what is kept."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import structlog
from genai_prices.data_snapshot import DataSnapshot, get_snapshot, set_custom_snapshot
from genai_prices.types import ModelPrice
from structlog.testing import capture_logs

from steerway.actors.configuration import (
    ANTHROPIC_BASE_URL,
    DEFAULT_BASE_URL,
    Configuration,
    ConfigurationError,
    Model,
    ModelSelection,
    Overlay,
    Provider,
)
from steerway.actors.models import Models
from steerway.actors.models.catalog import KEY_VARIABLES
from steerway.actors.models.prices import look_up, well_known
from steerway.actors.models.secret import MAX_KEY_BYTES
from steerway.actors.settings import Surroundings, load_settings
from steerway.protocol.values.errors import ModelUnavailableError
from steerway.protocol.values.model import CatalogModel, ModelRef, Prices

NO_MODEL = ModelRef(provider="openai", id="gpt-4.1")
OPEN = Provider(protocol="openai-chat", api_key_env="K")
HERE = "http://127.0.0.1:9/v1"


def settings_of(folder: Path, *lines: str, environ: Mapping[str, str] | None = None) -> Configuration:
    (folder / "steerway.toml").write_text("\n".join(lines))
    surroundings = Surroundings(environ=environ or {}, directory=folder / "empty", config_folder=folder, data_folder=folder)
    return load_settings(surroundings).configuration


def refusal(models: Models, ref: ModelRef | None = NO_MODEL) -> ModelUnavailableError:
    with pytest.raises(ModelUnavailableError) as caught:
        models.resolve(ref)
    return caught.value


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "a/b", " a", "a\t", "\x00"])
def test_a_provider_that_nobody_could_select_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="provider/model") as embedded:
        Models(Configuration(providers={name: OPEN}), {})
    assert repr(name) in embedded.value.message
    quoted = name.encode("unicode_escape").decode().replace("\\x00", "\\u0000")
    with pytest.raises(ConfigurationError, match="provider/model") as read:
        settings_of(tmp_path, f'[providers."{quoted}"]', 'protocol = "openai-chat"')
    assert repr(name) in read.value.message
    assert read.value.source == str(tmp_path / "steerway.toml")
    assert read.value.key is not None
    assert read.value.key.startswith("providers.")


def test_a_model_without_a_name_is_refused_and_one_with_slashes_and_colons_is_not(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="may not be empty"):
        settings_of(tmp_path, '[providers.p.models.""]', "context = 1")
    with pytest.raises(ConfigurationError, match="may not be empty"):
        Models(Configuration(providers={"p": Provider(protocol="openai-chat", models={"": Model()})}), {})
    Models(Configuration(providers={"p:q": Provider(protocol="openai-chat", models={"a/b:c": Model()})}), {})


# --- what is not there ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vendor", KEY_VARIABLES)
def test_a_vendors_model_without_its_key_is_refused_by_the_name_of_the_variable(tmp_path: Path, vendor: str) -> None:
    variable = KEY_VARIABLES[vendor]
    ref = ModelRef(provider=vendor, id="some-model")
    error = refusal(Models(settings_of(tmp_path), {}), ref)
    assert f"{variable} is not set" in error.message
    assert error.message.endswith("; there is only demo.")
    assert error.fields == {"provider": vendor, "id": "some-model"}
    environ = {variable: "key-0123456789"}
    assert Models(settings_of(tmp_path, environ=environ), environ).resolve(ref).api_key is not None


def test_where_the_environments_key_would_not_help_the_configuration_is_named(tmp_path: Path) -> None:
    local = Configuration(providers={"local": Provider(protocol="openai-chat", base_url=HERE)})
    for models in (Models(local, {}), Models(Configuration(), {"OPENAI_API_KEY": "key"})):
        said = refusal(models).message
        assert 'configure it with api_key_env = "OPENAI_API_KEY"' in said
        assert "is not set" not in said
    assert "there are demo, local." in refusal(Models(local, {})).message
    assert "there is only demo." in refusal(Models(Configuration(), {}), ModelRef(provider="nobody", id="x")).message


def test_the_configured_default_is_refused_in_the_same_words() -> None:
    models = Models(Configuration(models=ModelSelection(default="openai/gpt-4.1")), {})
    assert refusal(models, None).message == refusal(models).message


def test_a_key_file_that_is_too_large_is_refused_and_not_cut(tmp_path: Path) -> None:
    path = tmp_path / "key"
    provider = Provider(protocol="openai-chat", base_url=HERE, api_key_file=str(path))
    models = Models(Configuration(providers={"p": provider}), {})
    ref = ModelRef(provider="p", id="m")
    for size, fits in ((MAX_KEY_BYTES, True), (MAX_KEY_BYTES + 1, False)):
        path.write_bytes(b"k" * size)
        path.chmod(0o600)
        if fits:
            assert models.resolve(ref).api_key is not None
        else:
            error = refusal(models, ref)
            assert f"more than {MAX_KEY_BYTES} bytes" in error.message
            assert "kkkk" not in error.message


# --- fallbacks --------------------------------------------------------------------------------------------------------

LISTED = Provider(protocol="openai-chat", base_url=HERE, models={"a": Model(variants={"v": Overlay()}), "b": Model()})


@pytest.mark.parametrize("named", ["nobody/x", "p/x", "p/a:x", "p/", "x"])
def test_a_fallback_that_can_never_be_there_is_refused_at_the_start(named: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Models(Configuration(providers={"p": LISTED}, models=ModelSelection(fallback=("p/b", named))), {})
    assert caught.value.key == "models.fallback"
    assert "models.fallback" in caught.value.message


def test_a_fallback_that_may_be_there_another_time_is_passed_over_and_logged_once() -> None:
    fallback = ("openai/gpt-4.1", "open/any", "p/a:v", "p/b")
    configuration = Configuration(providers={"p": LISTED, "open": OPEN}, models=ModelSelection(fallback=fallback))
    models = Models(configuration, {})
    structlog.reset_defaults()
    with capture_logs() as logged:
        for _ in range(3):
            assert models.fallback([]) == ModelRef(provider="p", id="a", variant="v")
            assert models.fallback([ModelRef(provider="p", id="a", variant="v")]) == ModelRef(provider="p", id="b")
    assert [(line["event"], line["model"]) for line in logged] == [
        ("fallback model skipped", "openai/gpt-4.1"),
        ("fallback model skipped", "open/any"),
    ]
    assert "OPENAI_API_KEY" in logged[0]["reason"]
    assert "environment variable K" in logged[1]["reason"]


# --- well-known models ------------------------------------------------------------------------------------------------


def described(provider: Provider, environ: Mapping[str, str] | None = None, **fields: Any) -> dict[str, CatalogModel]:
    models = Models(Configuration(providers={"p": provider}, **fields), {"K": "key"} if environ is None else environ)
    return {model.id: model for model in models.describe() if model.provider == "p"}


def test_a_provider_without_listed_models_lists_its_well_known_ones() -> None:
    found = described(OPEN, models=ModelSelection(default="p/gpt-4.1"))
    known = look_up(DEFAULT_BASE_URL, "gpt-4.1")
    assert known.prices is not None
    assert found["gpt-4.1"] == CatalogModel(
        provider="p",
        id="gpt-4.1",
        protocol="openai-chat",
        name=found["gpt-4.1"].name,
        context=known.context,
        prices=known.prices,
        default=True,
    )
    assert list(found) == sorted(found)
    assert {"gpt-4o", "o3"} <= set(found)
    assert not {"whisper-1", "text-embedding-3-small", "gpt-image-1", "davinci", "ft:gpt-4o", "gpt-4o-transcribe"} & set(found)
    assert [model.default for model in found.values()].count(True) == 1


def test_each_of_them_can_be_selected_and_is_what_the_list_says_of_it() -> None:
    models = Models(Configuration(providers={"p": Provider(protocol="anthropic-messages")}), {})
    listed = [model for model in models.describe() if model.provider == "p"]
    assert len(listed) > 5
    for model in listed:
        info = models.resolve(ModelRef(provider=model.provider, id=model.id))
        assert (info.protocol, info.context, info.prices) == (model.protocol, model.context, model.prices)


def test_google_lists_only_its_own() -> None:
    url = "https://generativelanguage.googleapis.com/v1beta/openai"
    found = described(Provider(protocol="openai-chat", base_url=url))
    assert "gemini-2.5-pro" in found
    assert all(id.startswith("gem") for id in found)


def test_listed_models_take_their_place_and_without_a_key_or_at_another_address_there_are_none() -> None:
    assert list(described(replace_models(OPEN, {"mine": Model()}))) == ["mine"]
    assert described(OPEN, {}) == {}
    assert described(Provider(protocol="openai-chat", base_url=HERE)) == {}
    assert described(Provider(protocol="openai-chat", base_url="https://models.example.org/v1")) == {}


def replace_models(provider: Provider, models: dict[str, Model]) -> Provider:
    return Provider(protocol=provider.protocol, api_key_env=provider.api_key_env, models=models)


def test_without_the_package_there_are_none_and_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices.data_snapshot", None)  # as if it were not installed
    assert described(OPEN) == {}


def test_nothing_of_it_is_loaded_while_only_the_demo_can_be_asked() -> None:
    program = (
        "import sys\n"
        "from steerway.actors.configuration import Configuration\n"
        "from steerway.actors.models import Models\n"
        "assert [str(model.id) for model in Models(Configuration(), {}).describe()] == ['demo']\n"
        "assert not {'genai_prices', 'pydantic'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env=dict(os.environ))


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_a_model_is_put_together_once_as_long_as_nothing_changes() -> None:
    environ = {"K": "key-0123456789"}
    models = Models(Configuration(providers={"p": OPEN}), environ)
    ref = ModelRef(provider="p", id="gpt-4.1")
    first = models.resolve(ref)
    assert models.resolve(ref) is first
    environ["K"] = "another-0123456789"
    changed = models.resolve(ref)
    assert changed.api_key is not None
    assert changed.api_key.reveal() == "another-0123456789"
    assert models.resolve(ref) is changed
    del environ["K"]
    assert "environment variable K" in refusal(models, ref).message
    environ["K"] = "key-0123456789"
    assert models.resolve(ref) == first


CHEAP = ModelPrice(input_mtok=Decimal(1), output_mtok=Decimal(2))


@pytest.fixture
def other_prices() -> Iterator[DataSnapshot]:
    """The package's data, where everything of Anthropic costs the same."""
    given = get_snapshot()
    providers = [
        replace(provider, models=[replace(model, prices=CHEAP) for model in provider.models])
        if provider.id == "anthropic"
        else provider
        for provider in given.providers
    ]
    yield DataSnapshot(providers=providers, from_auto_update=False)
    set_custom_snapshot(None)


def test_prices_that_change_count_from_the_next_turn_on(other_prices: DataSnapshot) -> None:
    models = Models(Configuration(providers={"p": Provider(protocol="anthropic-messages")}), {})
    ref = ModelRef(provider="p", id="claude-sonnet-4-5")
    before = models.resolve(ref)
    assert before.prices == look_up(ANTHROPIC_BASE_URL, ref.id).prices
    set_custom_snapshot(other_prices)
    after = models.resolve(ref).prices
    assert after is not None
    assert (after.input, after.output) == (1, 2)
    assert before.prices != after
    assert all(isinstance(model.known.prices, Prices) for model in well_known(ANTHROPIC_BASE_URL))


def test_any_number_of_ids_fills_no_memory() -> None:
    models = Models(Configuration(providers={"p": Provider(protocol="openai-chat", base_url=HERE)}), {})
    first, *others = (models.resolve(ModelRef(provider="p", id=f"m{number}")) for number in range(2500))
    assert len({info.api_model for info in others}) == 2499
    again = models.resolve(first.ref)
    assert again == first
    assert again is not first
