"""`models.list` over the wire, and what is said of a model or a variant that is not there."""

from pathlib import Path

import pytest

from steerway import VariantUnavailableError, connect
from steerway.actors.client import Client
from steerway.actors.configuration import Configuration, Model, ModelSelection, Overlay, Provider, Store
from steerway.protocol.operations import CONTRACT, MODELS_LIST, SESSIONS_CREATE, SESSIONS_SWITCH_MODEL
from steerway.protocol.values.errors import ModelUnavailableError
from steerway.protocol.values.model import Capabilities, CatalogModel, ModelRef, Prices, PriceTier
from support.house import OpenHouse, open_house
from support.provider import open_provider

BIG = Model(
    id="big-on-the-wire",
    name="Big",
    context=1000,
    output=100,
    cost=Prices(input=1, output=2, cache_read=0.1, tiers=(PriceTier(above=10, input=2),)),
    capabilities=Capabilities(tools=True, input=("text", "image")),
    variants={"deep": Overlay(), "fast": Overlay()},
)
SETTINGS = Configuration(
    store=Store(synchronous="normal"),
    models=ModelSelection(default="local/big:deep"),
    providers={
        "local": Provider(protocol="openai-responses", base_url="http://127.0.0.1:9/v1", models={"big": BIG, "small": Model()}),
        "open": Provider(protocol="openai-chat", base_url="http://127.0.0.1:9/v1"),
        "keyed": Provider(protocol="openai-chat", api_key_env="NOBODY_SET_THIS", models={"m": Model()}),
    },
)
DEMO = CatalogModel(provider="demo", id="demo", protocol="demo", context=32_000, output=4_000, variants=("thinking",))


async def listed(client: Client) -> tuple[CatalogModel, ...]:
    return await client.models.list()


async def test_the_models_that_can_be_selected_are_listed_with_what_is_known_of_them(tmp_path: Path) -> None:
    async with open_provider() as provider, open_house(provider, tmp_path, settings=SETTINGS) as house:
        listening = await house.runtime.listen(host="127.0.0.1", port=0, token="secret")
        here = await listed(house.runtime)
        for subprotocol in ("steerway.v1.msgpack", "steerway.v1.json"):
            async with connect(listening.url, token="secret", subprotocol=subprotocol) as client:
                assert await listed(client) == here
    assert here == (
        DEMO,
        CatalogModel(
            provider="local",
            id="big",
            protocol="openai-responses",
            name="Big",
            context=1000,
            output=100,
            prices=BIG.cost,
            variants=("deep", "fast"),
            capabilities=BIG.capabilities,
            default=True,
        ),
        CatalogModel(provider="local", id="small", protocol="openai-responses"),
    )


async def refused(house: OpenHouse, ref: ModelRef) -> ModelUnavailableError:
    session = await house.session()
    with pytest.raises(ModelUnavailableError) as switching:
        await house.sessions.switch_model(session, ref)
    with pytest.raises(ModelUnavailableError) as creating:
        await house.sessions.create(model=ref)
    assert (await house.sessions.get(session)).model is None
    assert switching.value.fields == creating.value.fields
    return switching.value


async def test_an_unknown_model_or_variant_is_refused_by_its_own_error(tmp_path: Path) -> None:
    async with open_provider() as provider, open_house(provider, tmp_path, settings=SETTINGS) as house:
        variant = await refused(house, ModelRef(provider="local", id="big", variant="deeper"))
        assert isinstance(variant, VariantUnavailableError)
        assert variant.fields == {"provider": "local", "id": "big", "variant": "deeper"}
        assert "it has deep, fast" in variant.message
        for ref in (ModelRef(provider="local", id="huge"), ModelRef(provider="keyed", id="m")):
            error = await refused(house, ref)
            assert not isinstance(error, VariantUnavailableError)
            assert error.fields == {"provider": ref.provider, "id": ref.id}


def test_the_contract_declares_the_list_and_the_errors() -> None:
    assert CONTRACT.operations["models.list"] is MODELS_LIST
    assert MODELS_LIST.retry == "safe"
    for operation in (SESSIONS_CREATE, SESSIONS_SWITCH_MODEL):
        assert VariantUnavailableError in operation.errors
