"""What a turn costs: configured prices, known ones, tiers, and the totals of a session."""

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from genai_prices import Usage
from genai_prices.data_snapshot import get_snapshot
from trio.testing import MockClock

from steerway.actors.configuration import ANTHROPIC_BASE_URL, DEFAULT_BASE_URL, Configuration, Model, Provider
from steerway.actors.models import ModelInfo, Models
from steerway.actors.models.prices import UNKNOWN, look_up
from steerway.protocol.values.event import RetryScheduled, TurnCompleted
from steerway.protocol.values.ids import SessionId
from steerway.protocol.values.message import AssistantMessage
from steerway.protocol.values.model import CacheTokens, ModelRef, Prices, PriceTier, Tokens
from support.answers import answer, finish, text, usage
from support.house import OpenHouse, configuration, open_house
from support.provider import open_provider

GOOGLE = "https://generativelanguage.googleapis.com/v1beta/openai"


def used(input: int = 0, output: int = 0, reasoning: int = 0, read: int = 0, write: int = 0) -> Tokens:
    return Tokens(input=input, output=output, reasoning=reasoning, cache=CacheTokens(read=read, write=write))


def resolved(provider: Provider, id: str) -> ModelInfo:
    return Models(Configuration(providers={"p": provider}), {}).resolve(ModelRef(provider="p", id=id))


def test_each_kind_of_token_has_its_price_and_reasoning_is_output():
    prices = Prices(input=1, output=10, cache_read=0.1, cache_write=2)
    assert prices.cost(used(1_000_000, 100_000, 50_000, 200_000, 30_000)) == pytest.approx(1 + 1.0 + 0.5 + 0.02 + 0.06)


def test_cached_tokens_without_a_price_cost_what_input_does():
    assert Prices(input=3, output=0).cost(used(read=500_000, write=500_000)) == 3.0


def test_the_largest_tier_that_the_whole_input_exceeds_decides():
    tiers = (PriceTier(above=200, input=2_000_000), PriceTier(above=100, input=1_000_000))
    prices = Prices(input=10_000, tiers=tiers)
    assert prices.cost(used(100)) == 1
    assert prices.cost(used(90, read=6, write=5)) == 101
    assert prices.cost(used(201)) == 402


@pytest.mark.parametrize(
    ("base_url", "model"),
    [
        (DEFAULT_BASE_URL, "gpt-4.1"),
        (DEFAULT_BASE_URL, "o3-2025-04-16"),
        (ANTHROPIC_BASE_URL, "claude-sonnet-4-5"),
        (ANTHROPIC_BASE_URL, "claude-3-5-haiku-latest"),
        (GOOGLE, "gemini-2.5-pro"),
    ],
)
@pytest.mark.parametrize("tokens", [used(1000, 200, 100, 300, 0), used(150_000, 2_000, 0, 60_000, 0), used(300_000, 1)])
def test_known_prices_come_to_what_the_package_itself_computes(base_url: str, model: str, tokens: Tokens):
    known = look_up(base_url, model)
    assert known.prices is not None
    theirs = get_snapshot().calc(
        Usage(
            input_tokens=tokens.input + tokens.cache.read,
            cache_read_tokens=tokens.cache.read,
            output_tokens=tokens.output + tokens.reasoning,
        ),
        model,
        None,
        base_url,
        datetime.now(UTC),
    )
    assert known.prices.cost(tokens) == pytest.approx(float(theirs.total_price))
    assert known.prices.cost(tokens) > 0


@pytest.mark.parametrize(
    ("base_url", "model"),
    [
        ("http://127.0.0.1:8080/v1", "gpt-4.1"),
        ("https://models.example.org/v1", "gpt-4.1"),
        (DEFAULT_BASE_URL, "a-model-of-nobody"),
    ],
)
def test_nothing_is_known_of_other_endpoints_and_models(base_url: str, model: str):
    assert look_up(base_url, model) == UNKNOWN


def test_without_the_package_nothing_is_known_and_nothing_fails(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "genai_prices.data_snapshot", None)  # as if it were not installed
    assert look_up(DEFAULT_BASE_URL, "gpt-4.1") == UNKNOWN
    assert resolved(Provider(protocol="openai-chat"), "gpt-4.1").cost(used(1_000_000)) == 0.0


def test_configured_prices_and_limits_win_over_known_ones():
    known = resolved(Provider(protocol="openai-chat"), "gpt-4.1")
    assert known.prices is not None
    assert known.context is not None
    own = Prices(input=7, output=8)
    model = Model(id="gpt-4.1", cost=own, context=1234)
    configured = resolved(Provider(protocol="openai-chat", models={"mine": model}), "mine")
    assert (configured.prices, configured.context) == (own, 1234)
    half = resolved(Provider(protocol="openai-chat", models={"gpt-4.1": Model(context=99)}), "gpt-4.1")
    assert (half.prices, half.context) == (known.prices, 99)


def test_what_nobody_knows_costs_nothing():
    unknown = resolved(Provider(protocol="openai-chat", base_url="http://127.0.0.1:1/v1"), "x")
    assert (unknown.prices, unknown.cost(used(1, 1)), unknown.cost(None)) == (None, 0.0, 0.0)


@pytest.mark.parametrize(("base_url", "loaded"), [("http://127.0.0.1:1/v1", False), (DEFAULT_BASE_URL, True)])
def test_the_package_is_loaded_at_the_start_and_only_for_public_endpoints(base_url: str, loaded: bool):
    program = (
        "import sys\n"
        "from steerway.actors.configuration import Configuration, Provider\n"
        "from steerway.actors.models import Models\n"
        "from steerway.protocol.values.model import ModelRef\n"
        f"provider = Provider(protocol='openai-chat', base_url={base_url!r})\n"
        "models = Models(Configuration(providers={'p': provider}), {})\n"
        "at_start = {'genai_prices.data', 'pydantic'} <= set(sys.modules)\n"
        "models.resolve(ModelRef(provider='p', id='x')), models.list()\n"
        "later = {'genai_prices.data', 'pydantic'} <= set(sys.modules)\n"
        f"assert at_start == later == {loaded}\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


async def last_cost(house: OpenHouse, session: SessionId) -> float | None:
    last = (await house.history(session))[-1]
    assert isinstance(last, AssistantMessage)
    return last.cost


async def test_an_attempt_that_is_given_up_for_another_is_paid_for_all_the_same(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_provider(answer(usage(prompt=10)), answer(text("There."), usage(prompt=10, completion=1))) as provider:
        base = configuration(provider)
        priced = Model(cost=Prices(input=1000, output=5000))
        scripted = Provider(protocol="openai-chat", base_url=provider.base_url, models={"scripted": priced})
        settings = Configuration(store=base.store, providers={"scripted": scripted}, models=base.models, agents=base.agents)
        async with open_house(provider, tmp_path, settings=settings) as house:
            session = await house.session()
            await house.ask(session, "Hello")
            assert len(await house.data(session, RetryScheduled)) == 1
            assert await last_cost(house, session) == pytest.approx((2 * 10 * 1000 + 5000) / 1e6)
            assert (await house.data(session, TurnCompleted))[0].tokens == used(20, 1)
            assert (await house.sessions.get(session)).tokens == used(20, 1)


async def test_turns_and_sessions_add_up_what_they_cost(tmp_path: Path):
    async with open_provider() as provider:
        base = configuration(provider)
        priced = Model(cost=Prices(input=1000, output=10_000, cache_read=100))
        scripted = Provider(protocol="openai-chat", base_url=provider.base_url, models={"scripted": priced})
        settings = Configuration(store=base.store, providers={"scripted": scripted}, models=base.models, agents=base.agents)
        provider.script(
            answer(text("One."), usage(prompt=10, completion=3, cached=4, reasoning=1)),
            answer(text("Two."), usage(prompt=100, completion=5), finish("content_filter")),
        )
        async with open_house(provider, tmp_path, settings=settings) as house:
            session = await house.session()
            await house.ask(session, "Count.")
            first = (6 * 1000 + 3 * 10_000 + 4 * 100) / 1e6
            assert (await house.sessions.get(session)).cost == pytest.approx(first)
            assert await last_cost(house, session) == pytest.approx(first)
            await house.ask(session, "More.")
            failed = (100 * 1000 + 5 * 10_000) / 1e6
            assert await last_cost(house, session) == pytest.approx(failed)
            assert (await house.sessions.get(session)).cost == pytest.approx(first + failed)
