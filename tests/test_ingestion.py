"""Configuration of models in any spelling, and the three domains it is partitioned into."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from steerway.actors.configuration import Configuration, ConfigurationError, Model, Overlay, Provider
from steerway.actors.models import Models
from steerway.actors.models.ingestion import CONTROLS, OPTIONS, partition, snake
from steerway.actors.settings import Settings, Surroundings, load_settings
from steerway.protocol.llm.adapter import Adapter
from steerway.protocol.llm.anthropic_messages import AnthropicMessagesAdapter
from steerway.protocol.llm.openai_chat import OpenAIChatAdapter
from steerway.protocol.llm.openai_responses import OpenAIResponsesAdapter
from steerway.protocol.llm.request import Generation, LLMRequest, Text, UserMessage
from steerway.protocol.values.model import Capabilities, ModelRef, Prices, PriceTier
from support.house import configuration, open_house
from support.provider import open_provider


def parted(protocol: str = "openai-chat", **options: Any) -> Overlay:
    return partition(protocol, Overlay(options=options))


@pytest.mark.parametrize(
    ("options", "generation"),
    [
        ({"maxTokens": 5}, Generation(max_tokens=5)),
        ({"maxOutputTokens": 6}, Generation(max_tokens=6)),
        ({"max_tokens": 7, "maxOutputTokens": 8}, Generation(max_tokens=7)),
        ({"temperature": 0, "topP": 0.5, "topK": 3}, Generation(temperature=0, top_p=0.5, top_k=3)),
        ({"frequencyPenalty": -1, "presence_penalty": 1.5}, Generation(frequency_penalty=-1, presence_penalty=1.5)),
        ({"seed": 0, "stopSequences": ["a", "b"]}, Generation(seed=0, stop=("a", "b"))),
        ({"stop": "END"}, Generation(stop=("END",))),
    ],
)
def test_generation_controls_are_found_under_each_of_their_names(options: dict[str, Any], generation: Generation):
    overlay = parted(**options)
    assert overlay.generation == generation
    assert overlay.options == {}


@pytest.mark.parametrize(
    "options",
    [{"maxTokens": "many"}, {"maxTokens": -1}, {"maxTokens": True}, {"seed": 1.5}, {"stop": [1]}, {"temperature": "hot"}],
)
def test_what_has_not_a_controls_type_is_no_control(options: dict[str, Any]):
    overlay = parted(**options)
    assert overlay.generation == Generation()
    assert overlay.body == options


@pytest.mark.parametrize(
    ("protocol", "options", "kept", "body"),
    [
        ("openai-responses", {"reasoning_effort": "low"}, {"reasoningEffort": "low"}, {}),
        ("openai-responses", {"reasoningSummary": "auto", "include": []}, {"reasoningSummary": "auto", "include": []}, {}),
        ("openai-responses", {"service_tier": "flex", "store": True}, {"serviceTier": "flex", "store": True}, {}),
        ("openai-chat", {"reasoning_effort": "low", "reasoningEffort": "high"}, {"reasoningEffort": "high"}, {}),
        ("openai-chat", {"thinking": {"type": "enabled"}}, {}, {"thinking": {"type": "enabled"}}),
        ("openai-chat", {"chat_template_kwargs": {"a": 1}}, {}, {"chat_template_kwargs": {"a": 1}}),
        ("anthropic-messages", {"thinking": {"budgetTokens": 9}}, {"thinking": {"budgetTokens": 9}}, {}),
        ("anthropic-messages", {"metadata": {"user_id": "u"}}, {}, {"metadata": {"user_id": "u"}}),
        ("demo", {"reasoning": True, "delay": 0, "seed": 1}, {"reasoning": True, "delay": 0, "seed": 1}, {}),
    ],
)
def test_options_that_the_protocol_understands_stay_and_others_are_body_fields(
    protocol: str, options: dict[str, Any], kept: dict[str, Any], body: dict[str, Any]
):
    overlay = parted(protocol, **options)
    assert (overlay.options, overlay.body) == (kept, body)


def test_what_stands_in_its_own_table_wins():
    given = Overlay(
        generation=Generation(max_tokens=1),
        options={"maxTokens": 2, "topK": 3, "extra": {"a": 1, "b": 1}},
        headers={"x": "y"},
        body={"extra": {"b": 2}},
    )
    assert partition("openai-chat", given) == Overlay(
        generation=Generation(max_tokens=1, top_k=3), headers={"x": "y"}, body={"extra": {"a": 1, "b": 2}}
    )


NAMES = [*CONTROLS, *(spelling for names in OPTIONS.values() for name in names for spelling in (name, snake(name))), "own", "x"]
VALUES = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(0, 1) | st.text("ab", max_size=2) | st.lists(st.text("a"))


@given(st.sampled_from(sorted(OPTIONS)), st.dictionaries(st.sampled_from(NAMES), VALUES))
def test_a_partition_loses_no_value_and_parting_it_again_changes_nothing(protocol: str, options: dict[str, Any]):
    once = partition(protocol, Overlay(options=options))
    again = partition(protocol, once)
    assert again == once
    assert set(once.options) <= set(OPTIONS[protocol])
    for name, value in once.body.items():
        assert options[name] == value
    controls = [value for value in structs.astuple(once.generation) if value is not None]
    assert len(once.options) + len(once.body) + len(controls) <= len(options)
    assert once != Overlay() or not options


def test_layers_are_parted_before_they_are_laid_over_each_other():
    model = Model(options={"maxTokens": 20}, variants={"deep": Overlay(options={"reasoning_effort": "high", "max_tokens": 30})})
    provider = Provider(protocol="openai-chat", options={"reasoningEffort": "low", "topK": 1}, models={"m": model})
    models = Models(Configuration(providers={"p": provider}), {})
    plain, deep = (models.resolve(ModelRef(provider="p", id="m", variant=variant)) for variant in (None, "deep"))
    assert (plain.options, plain.generation) == ({"reasoningEffort": "low"}, Generation(max_tokens=20, top_k=1))
    assert (deep.options, deep.generation) == ({"reasoningEffort": "high"}, Generation(max_tokens=30, top_k=1))


# --- models.dev and the AI SDK in a file ------------------------------------------------------------------------------


def load(folder: Path, text: str) -> Settings:
    (folder / "given.toml").write_text(text)
    around = Surroundings(environ={}, directory=folder, config_folder=folder / "c", data_folder=folder / "d")
    return load_settings(around, config_file=Path("given.toml"))


FOREIGN = """
[providers.router]
npm = "@ai-sdk/openai-compatible"
name = "A router"
api = "http://127.0.0.1:9/v1"
env = ["ROUTER_KEY"]
options = { headers = { "X-Title" = "t" }, reasoning_effort = "low" }
[providers.router.models."vendor/big"]
name = "Big"
attachment = true
reasoning = true
temperature = true
tool_call = true
knowledge = "2025-01"
release_date = "2025-06-01"
modalities = { input = ["text", "image"], output = ["text"] }
limit = { context = 1000, output = 100 }
cost = { input = 1, output = 2, cache_read = 0.1, reasoning = 3, context_over_200k = { input = 2, output = 4 } }
options = { maxOutputTokens = 50, stopSequences = ["END"], provider = { sort = "price" } }
variants.deep = { reasoningEffort = "high", maxTokens = 80 }
"""


def test_a_provider_as_models_dev_spells_it_is_read(tmp_path: Path):
    provider = load(tmp_path, FOREIGN).configuration.providers["router"]
    assert (provider.protocol, provider.base_url) == ("openai-chat", "http://127.0.0.1:9/v1")
    assert (provider.api_key_env, provider.headers) == ("ROUTER_KEY", {"X-Title": "t"})
    model = provider.models["vendor/big"]
    assert (model.name, model.context, model.output) == ("Big", 1000, 100)
    assert model.capabilities == Capabilities(tools=True, reasoning=True, input=("text", "image"), output=("text",))
    assert model.input == ("text", "image")
    tier = PriceTier(above=200_000, input=2, output=4)
    assert model.cost == Prices(input=1, output=2, cache_read=0.1, tiers=(tier,))
    models = Models(load(tmp_path, FOREIGN).configuration, {"ROUTER_KEY": "key"})
    info = models.resolve(ModelRef(provider="router", id="vendor/big", variant="deep"))
    assert info.generation == Generation(max_tokens=80, stop=("END",))
    assert (info.options, info.body) == ({"reasoningEffort": "high"}, {"provider": {"sort": "price"}})


def test_our_own_spelling_wins_over_the_other_one(tmp_path: Path):
    text = (
        '[providers.p]\nprotocol = "openai-responses"\nbase_url = "http://own/v1"\nnpm = "@ai-sdk/openai-compatible"\n'
        'options = { baseURL = "http://other/v1" }\n[providers.p.models.m]\ncontext = 1\nlimit = { context = 2, output = 3 }\n'
    )
    provider = load(tmp_path, text).configuration.providers["p"]
    assert (provider.protocol, provider.base_url) == ("openai-responses", "http://own/v1")
    assert (provider.models["m"].context, provider.models["m"].output) == (1, 3)


def test_what_a_model_reads_is_taken_from_its_modalities_unless_it_is_said(tmp_path: Path):
    text = """
[providers.p]
protocol = "openai-chat"
input = ["text", "pdf"]
models.told = { modalities = { input = ["text", "pdf", "smell"] } }
models.said = { input = ["text"], modalities = { input = ["text", "pdf"] } }
models.other = { modalities = { output = ["text"] } }
"""
    provider = load(tmp_path, text).configuration.providers["p"]
    assert provider.input == ("text", "pdf")
    assert {name: model.input for name, model in provider.models.items()} == {
        "told": ("text", "pdf"),
        "said": ("text",),
        "other": None,
    }


@pytest.mark.parametrize(
    ("value", "where"),
    [("{env:SOME_KEY}", ("SOME_KEY", None)), ("{file:keys/one}", (None, "keys/one"))],
)
def test_a_key_may_be_named_where_the_ai_sdk_takes_one(tmp_path: Path, value: str, where: tuple[str | None, str | None]):
    text = f'[providers.p]\nnpm = "@ai-sdk/anthropic"\noptions = {{ apiKey = "{value}" }}\n'
    provider = load(tmp_path, text).configuration.providers["p"]
    variable, file = where
    assert (provider.api_key_env, provider.api_key_file) == (variable, file and str(tmp_path / file))


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        ('[providers.p]\nnpm = "@ai-sdk/cohere"\n', "providers.p.npm", "no protocol here is that of @ai-sdk/cohere"),
        (
            '[providers.p]\nprotocol = "openai-chat"\noptions = { apiKey = "sk-0123456789" }\n',
            "providers.p.options.apiKey",
            "api_key_file",
        ),
        (
            '[providers.p]\nprotocol = "openai-chat"\ninput = ["text", "pfd"]\n',
            "providers.p.input",
            "'pfd' is none of text, image, pdf",
        ),
        (
            '[providers.p]\nprotocol = "openai-chat"\n[providers.p.models.m]\ncontxt = 1\n',
            "providers.p.models.m.contxt",
            "did you mean context",
        ),
        (
            '[providers.p]\nprotocol = "openai-chat"\n[providers.p.models.m.variants.v]\noptoins = {}\n',
            "providers.p.models.m.variants.v.optoins",
            "did you mean options",
        ),
        ('[providers.p]\nprotocol = "openai-chat"\nmodels = 3\n', "providers.p.models", "expected a table"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_key_and_without_repeating_a_credential(
    tmp_path: Path, text: str, key: str, said: str
):
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, text)
    assert caught.value.key == key
    assert said in caught.value.message
    assert "sk-0123456789" not in caught.value.message


async def test_the_three_domains_arrive_at_the_provider_under_its_own_names(tmp_path: Path):
    async with open_provider() as provider:
        base = configuration(provider)
        options = {"maxOutputTokens": 77, "stopSequences": ["END"], "reasoning_effort": "low", "min_p": 0.1}
        scripted = Provider(protocol="openai-chat", base_url=provider.base_url, options=options)
        settings = Configuration(store=base.store, providers={"scripted": scripted}, models=base.models, agents=base.agents)
        async with open_house(provider, tmp_path, settings=settings) as house:
            await house.ask(await house.session(), "Hello")
        sent = json.loads(provider.requests[0].body)
    assert (sent["max_tokens"], sent["stop"], sent["reasoning_effort"], sent["min_p"]) == (77, ["END"], "low", 0.1)


SETTINGS: dict[str, Any] = {
    "store": True,
    "promptCacheKey": "key",
    "reasoningEffort": "high",
    "reasoningSummary": "auto",
    "include": ["web_search_call.action.sources"],
    "textVerbosity": "low",
    "serviceTier": "flex",
    "parallelToolCalls": False,
    "maxTokensField": "max_completion_tokens",
    "thinking": {"type": "adaptive"},
    "effort": "high",
}


@pytest.mark.parametrize("adapter", [OpenAIChatAdapter(), OpenAIResponsesAdapter(), AnthropicMessagesAdapter()])
def test_every_option_that_stays_is_one_that_the_adapter_sends(adapter: Adapter):
    def sent(**options: Any) -> bytes:
        hello = UserMessage(content=(Text(text="Hello"),))
        generation = Generation(max_tokens=100)
        request = LLMRequest(
            model="m",
            system=(),
            messages=(hello,),
            tools=(),
            tool_choice="auto",
            generation=generation,
            options=options,
            body={},
        )
        return adapter.encode(request).body

    for name in OPTIONS[adapter.protocol]:
        assert sent(**{name: SETTINGS[name]}) != sent(), name
