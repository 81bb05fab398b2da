"""Configuration: layers in their order, errors that name who is to blame, sources, and secrets that stay unseen."""

from pathlib import Path

import pytest

from steerway.actors.configuration import DEFAULT_BASE_URL, Configuration, ConfigurationError
from steerway.actors.settings import Settings, Surroundings, load_settings

LOCAL = '[providers.local]\nprotocol = "openai-chat"\nbase_url = "http://127.0.0.1:8080/v1"\n'


class World:
    """Folders of a user's machine, and what is set there."""

    def __init__(self, root: Path) -> None:
        self.work = root / "work" / "project"
        self.user = root / "config"
        self.data = root / "data"
        for folder in (self.work, self.user, self.data):
            folder.mkdir(parents=True)
        self.environ: dict[str, str] = {}

    def load(self, *, config: str | None = None, **flags: object) -> Settings:
        around = Surroundings(environ=self.environ, directory=self.work, config_folder=self.user, data_folder=self.data)
        given = {name.replace("__", "."): value for name, value in flags.items()}
        return load_settings(around, config_file=Path(config) if config else None, flags=given)

    def refusal(self, *, config: str | None = None, **flags: object) -> ConfigurationError:
        with pytest.raises(ConfigurationError) as caught:
            self.load(config=config, **flags)
        return caught.value

    def user_file(self, text: str) -> Path:
        path = self.user / "steerway.toml"
        path.write_text(text)
        return path


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_without_any_layer_the_defaults_hold_and_the_store_is_in_the_users_data_folder(world: World):
    settings = world.load()
    assert settings.configuration.store.path == str(world.data / "sessions.db")
    assert settings.configuration.gateway == Configuration().gateway
    assert settings.configuration.gateway.port == 4747
    assert settings.configuration.models.default is None
    assert settings.configuration.providers == {}
    assert settings.sources == {}
    assert {setting.source for setting in settings.listed()} == {"default"}


def test_each_layer_wins_over_the_ones_below_and_is_named_as_the_source(world: World):
    user = world.user_file('[gateway]\nport = 1\nhost = "::1"\n[models]\ndefault = "a/user"\n[tool_output]\nmax_lines = 1\n')
    found = world.work.parent / "steerway.toml"
    found.write_text('[models]\ndefault = "a/found"\n[tool_output]\nmax_lines = 2\nmax_bytes = 2\n')
    named = world.work / "named.toml"
    named.write_text('[models]\ndefault = "a/named"\n[gateway]\nport = 3\n[store]\nsynchronous = "normal"\n')
    world.environ |= {"STEERWAY_MODELS_DEFAULT": "a/environ", "STEERWAY_GATEWAY_PORT": "4"}

    settings = world.load(config="named.toml", gateway__port=5, gateway__host=None)

    configuration = settings.configuration
    assert configuration.gateway.port == 5
    assert configuration.gateway.host == "::1"
    assert configuration.models.default == "a/environ"
    assert configuration.store.synchronous == "normal"
    assert (configuration.tool_output.max_lines, configuration.tool_output.max_bytes) == (2, 2)
    assert settings.sources == {
        "gateway.port": "flag",
        "gateway.host": str(user),
        "models.default": "environment STEERWAY_MODELS_DEFAULT",
        "store.synchronous": str(named),
        "tool_output.max_lines": str(found),
        "tool_output.max_bytes": str(found),
    }


def test_a_whole_provider_is_read_with_models_and_variants(world: World):
    world.user_file(
        LOCAL
        + """api_key_env = "LOCAL_API_KEY"
headers = { X-Team = "blue" }
timeouts = { idle = 5 }
[providers.local.models."gpt-4.1:free"]
context = 32000
output = 4000
generation = { temperature = 0.5, stop = ["END"] }
[providers.local.models."gpt-4.1:free".variants.deep]
options = { reasoningEffort = "high" }
[agents.build]
system = "You are careful."
model = "local/gpt-4.1:free"
"""
    )
    settings = world.load()
    provider = settings.configuration.providers["local"]
    model = provider.models["gpt-4.1:free"]
    assert provider.api_key_env == "LOCAL_API_KEY"
    assert (provider.timeouts.connect, provider.timeouts.first_byte, provider.timeouts.idle) == (30, 120, 5)
    assert (model.context, model.output, model.generation.temperature) == (32000, 4000, 0.5)
    assert model.generation.stop == ("END",)
    assert model.variants["deep"].options == {"reasoningEffort": "high"}
    assert settings.configuration.agents["build"].system == "You are careful."
    assert 'providers.local.models."gpt-4.1:free".context' in settings.sources


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        ("[gateway]\nprot = 1\n", "gateway.prot", "did you mean port?"),
        ("[gatway]\nport = 1\n", "gatway", "did you mean gateway?"),
        (LOCAL + "base_ulr = 'x'\n", "providers.local.base_ulr", "did you mean base_url?"),
        (
            LOCAL + "[providers.local.models.small]\ncontxt = 1\n",
            "providers.local.models.small.contxt",
            "did you mean context?",
        ),
        (LOCAL + "generation = { temprature = 1 }\n", "providers.local.generation.temprature", "did you mean temperature?"),
        ('[models]\ndefault = "gpt"\n', "models.default", "written provider/model, like demo/demo; this is 'gpt'"),
        ('[models]\nfallback = ["demo/demo", "/gpt"]\n', "models.fallback", "this is '/gpt'"),
        ('[agents.build]\nmodel = "gpt/"\n', "agents.build.model", "this is 'gpt/'"),
        ("[gateway]\nxyzzy = 1\n", "gateway.xyzzy", "known are host, hosts, origins, port"),
        ('[gateway]\nport = "80"\n', "gateway.port", "expected int, got str"),
        ("[gateway]\nport = 70000\n", "gateway.port", "<= 65535"),
        ("[gateway]\norigins = 'x'\n", "gateway.origins", "expected array, got str"),
        ("gateway = 1\n", "gateway", "expected a table"),
        ("[tool_output]\nmax_lines = 0\n", "tool_output.max_lines", ">= 1"),
        ('[store]\nsynchronous = "off"\n', "store.synchronous", "off"),
        ('[providers.x]\nprotocol = "telepathy"\n', "providers.x.protocol", "'telepathy' is none of openai-chat, "),
        ('[providers.x]\nbase_url = "http://127.0.0.1/v1"\n', "providers.x.protocol", "missing"),
        (LOCAL + "models.m.context = 9223372036854775808\n", "providers.local.models.m.context", "<="),
        (LOCAL + "models.m.cost = { inptu = 1 }\n", "providers.local.models.m.cost.inptu", "did you mean input?"),
        (LOCAL + "models.m.cost = { input = -1 }\n", "providers.local.models.m.cost.input", "0 or more"),
        (
            LOCAL + "models.m.cost = { tiers = [{ above = 1, output = -0.5 }] }\n",
            "providers.local.models.m.cost.tiers.output",
            "0 or more",
        ),
        (LOCAL + "headers = { A = 1 }\n", "providers.local.headers.A", "expected str, got int"),
        (LOCAL + 'headers = { A = "x\\ny" }\n', "providers.local.headers.A", "printable"),
        (LOCAL + "body = { when = 2026-01-01 }\n", "providers.local.body.when", "strings"),
        (LOCAL + "options = { x = [nan] }\n", "providers.local.options.x", "NaN"),
        (LOCAL.replace("http:", "ftp:"), "providers.local.base_url", "http or https"),
        (LOCAL.replace(":8080", ":port"), "providers.local.base_url", "http or https"),
        (LOCAL.replace("http://", "http://me:pass@"), "providers.local.base_url", "api_key_env"),
    ],
)
def test_a_wrong_key_or_value_is_refused_with_its_file_and_key(world: World, text: str, key: str, said: str):
    path = world.user_file(text)
    error = world.refusal()
    assert error.key == key
    assert error.source == str(path)
    assert error.message.startswith(f"{path}: {key}")
    assert said in error.message
    assert "pass" not in error.message


def test_a_file_that_is_no_toml_or_is_missing_is_refused(world: World):
    path = world.user_file("[gateway\n")
    assert str(path) in world.refusal().message
    path.unlink()
    assert "no such file" in world.refusal(config="absent.toml").message


@pytest.mark.parametrize("section", ["providers", "store", "gateway"])
def test_a_file_found_upward_may_not_say_where_keys_go_or_what_is_opened(world: World, section: str):
    text = LOCAL if section == "providers" else f"[{section}]\n"
    path = world.work / "steerway.toml"
    path.write_text(text)
    error = world.refusal()
    assert error.key == section
    assert "--config" in error.message
    assert world.load(config="steerway.toml").configuration is not None


def test_the_users_own_file_is_trusted_even_when_it_is_also_found_upward(world: World):
    world.user_file("[gateway]\nport = 9\n")
    world.work = world.user
    assert world.load().configuration.gateway.port == 9


def test_only_the_nearest_file_upward_counts(world: World):
    (world.work.parent / "steerway.toml").write_text('[models]\ndefault = "a/far"\n[tool_output]\nmax_lines = 7\n')
    (world.work / "steerway.toml").write_text('[models]\ndefault = "a/near"\n')
    configuration = world.load().configuration
    assert configuration.models.default == "a/near"
    assert configuration.tool_output.max_lines == 2000


def test_a_relative_path_belongs_to_its_file_and_one_from_outside_to_the_working_directory(world: World):
    world.user_file('[store]\npath = "mine.db"\n')
    assert world.load().configuration.store.path == str(world.user / "mine.db")
    world.environ["STEERWAY_STORE_PATH"] = "sub/other.db"
    assert world.load().configuration.store.path == str(world.work / "sub" / "other.db")
    assert world.load(store__path=Path("/abs.db")).configuration.store.path == "/abs.db"


def test_the_environment_gives_numbers_and_lists(world: World):
    world.environ |= {"STEERWAY_GATEWAY_ORIGINS": "https://a.example, https://b.example", "STEERWAY_GATEWAY_PORT": "0"}
    gateway = world.load().configuration.gateway
    assert gateway.origins == ("https://a.example", "https://b.example")
    assert gateway.port == 0


def test_a_misspelt_variable_of_ours_is_an_error_and_other_variables_are_nobodys_business(world: World):
    world.environ |= {"STEERWAY_RECORD": "x", "STEERWAY_TERMINAL": "1", "GATEWAY_PORT": "x"}
    world.load()
    world.environ["STEERWAY_GATEWAY_PROT"] = "1"
    assert "did you mean STEERWAY_GATEWAY_PORT?" in world.refusal().message
    del world.environ["STEERWAY_GATEWAY_PROT"]
    world.environ["STEERWAY_GATEWAY_PORT"] = "many"
    error = world.refusal()
    assert error.source == "environment STEERWAY_GATEWAY_PORT"
    assert error.key == "gateway.port"


def test_an_unknown_flag_is_an_error_too(world: World):
    assert world.refusal(gateway__prot=1).source == "flag"


def test_vendor_variables_are_a_provider_when_none_is_configured(world: World):
    world.environ["OPENAI_API_KEY"] = "sk-very-secret-value"
    provider = world.load().configuration.providers["openai"]
    assert (provider.protocol, provider.base_url, provider.api_key_env) == ("openai-chat", DEFAULT_BASE_URL, "OPENAI_API_KEY")
    world.environ["OPENAI_BASE_URL"] = "http://127.0.0.1:9/v1"
    assert world.load().configuration.providers["openai"].base_url == "http://127.0.0.1:9/v1"
    del world.environ["OPENAI_API_KEY"]
    assert world.load().configuration.providers["openai"].api_key_env is None
    world.user_file(LOCAL)
    assert list(world.load().configuration.providers) == ["local"]


def test_the_variables_of_anthropic_are_a_provider_beside_that_of_openai(world: World):
    world.environ |= {"ANTHROPIC_API_KEY": "sk-ant-very-secret-value", "OPENAI_API_KEY": "sk-very-secret-value"}
    providers = world.load().configuration.providers
    assert {name: (provider.protocol, provider.base_url) for name, provider in providers.items()} == {
        "openai": ("openai-chat", DEFAULT_BASE_URL),
        "anthropic": ("anthropic-messages", "https://api.anthropic.com/v1"),
    }
    assert providers["anthropic"].api_key_env == "ANTHROPIC_API_KEY"
    for given in ("http://127.0.0.1:9/proxy", "http://127.0.0.1:9/proxy/", "http://127.0.0.1:9/proxy/v1"):
        world.environ["ANTHROPIC_BASE_URL"] = given
        assert world.load().configuration.providers["anthropic"].base_url == "http://127.0.0.1:9/proxy/v1"


def test_a_provider_without_a_url_is_that_of_its_protocol_s_vendor(world: World):
    world.user_file('[providers.a]\nprotocol = "anthropic-messages"\n[providers.b]\nprotocol = "openai-responses"\n')
    providers = world.load().configuration.providers
    assert providers["a"].base_url == "https://api.anthropic.com/v1"
    assert providers["b"].base_url == DEFAULT_BASE_URL


def test_a_wrong_vendor_url_is_refused_without_repeating_credentials(world: World):
    world.environ["OPENAI_BASE_URL"] = "https://me:hunter2@host/v1"
    assert "hunter2" not in world.refusal().message


def test_nothing_that_may_be_a_credential_is_shown(world: World):
    world.environ["LOCAL_API_KEY"] = "sk-from-environment"
    world.user_file(
        LOCAL
        + 'api_key_env = "LOCAL_API_KEY"\nheaders = { X-Team = "hidden-header" }\n'
        + 'body = { auth = { token = "hidden-token" }, user = "shown-user" }\ngeneration = { max_tokens = 77 }\n'
    )
    settings = world.load()
    shown = {setting.key: setting.value for setting in settings.listed()}
    everything = f"{shown} {settings!r} {settings.configuration!r} {settings.configuration.providers!r}"
    assert "hidden" not in everything
    assert "sk-from" not in everything
    assert shown["providers.local.api_key_env"] == "LOCAL_API_KEY"
    assert shown["providers.local.body.user"] == "shown-user"
    assert shown["providers.local.generation.max_tokens"] == 77
    assert shown["providers.local.headers.X-Team"] == "(not shown)"


def test_the_process_surroundings_do_not_show_the_environment():
    assert "PATH" not in repr(Surroundings.of_process())
