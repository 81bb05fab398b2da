"""Agents: which there are, and what the configuration may say about them."""

from __future__ import annotations

from pathlib import Path

import pytest

from steerway.actors.agents import Agent, Agents, UnknownAgentError
from steerway.actors.configuration import ConfigurationError, PermissionRule
from steerway.actors.settings import Settings, Surroundings, load_settings
from steerway.protocol.values.permission import Rule

DENY = '[agents.build]\npermissions = [{ action = "shell", resource = "rm *", effect = "deny" }]\n'
ASK = '[agents.build]\npermissions = [{ action = "shell", resource = "*", effect = "ask" }]\n'
ALLOW = '[agents.build]\npermissions = [{ action = "shell", resource = "ls *", effect = "allow" }]\n'


class World:
    """A user's configuration, a project with a file of its own, and an environment."""

    def __init__(self, root: Path) -> None:
        self.project = root / "work" / "steerway.toml"
        self.user = root / "config" / "steerway.toml"
        for path in (self.project, self.user):
            path.parent.mkdir()
        self.environ: dict[str, str] = {}

    def load(self, *, config: str | None = None, **flags: object) -> Settings:
        around = Surroundings(
            environ=self.environ,
            directory=self.project.parent,
            config_folder=self.user.parent,
            data_folder=self.user.parent,
        )
        given = {name.replace("__", "."): value for name, value in flags.items()}
        return load_settings(around, config_file=Path(config) if config else None, flags=given)

    def refusal(self) -> ConfigurationError:
        with pytest.raises(ConfigurationError) as caught:
            self.load()
        return caught.value

    def effects(self, *, config: str | None = None) -> list[str]:
        return [rule.effect for rule in self.load(config=config).configuration.agents["build"].permissions]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


# --- which there are ----------------------------------------------------------------------------------------------


def test_build_and_plan_are_always_there_and_build_is_the_default() -> None:
    agents = Agents()
    assert [agent.name for agent in agents.list()] == ["build", "plan"]
    assert agents.resolve(None).name == "build"
    assert agents.resolve("plan").steps is None
    with pytest.raises(UnknownAgentError, match="build, plan"):
        agents.resolve("plan9")


def test_a_configured_agent_joins_them_or_takes_the_place_of_its_name() -> None:
    extra = Rule(action="shell", resource="ls *", effect="allow")
    agents = Agents([Agent(name="zoe", steps=3), Agent(name="amy"), Agent(name="plan", system="Plan.", configured=(extra,))])
    assert [agent.name for agent in agents.list()] == ["build", "amy", "plan", "zoe"]
    assert agents.resolve("zoe").steps == 3
    assert agents.resolve("plan").system == "Plan."
    assert agents.resolve("plan").rules == (*Agent(name="plan").rules, extra)


# --- what is configured -------------------------------------------------------------------------------------------


def test_steps_and_permissions_are_read(world: World) -> None:
    world.user.write_text(f"{ALLOW}steps = 50\n[permissions]\npolicy = 'deny'\n")
    settings = world.load()
    agent = settings.configuration.agents["build"]
    assert agent.steps == 50
    assert agent.permissions == (PermissionRule(action="shell", resource="ls *", effect="allow"),)
    assert settings.configuration.permissions.policy == "deny"
    shown = {setting.key: setting.value for setting in settings.listed()}
    assert list(shown["agents.build.permissions"]) == [{"action": "shell", "resource": "ls *", "effect": "allow"}]
    assert world.load(permissions__policy="allow").configuration.permissions.policy == "allow"


def test_nothing_configured_asks_and_has_no_allowance(world: World) -> None:
    world.user.write_text("[agents.own]\nsystem = 'x'\n")
    configuration = world.load().configuration
    assert configuration.permissions.policy == "ask"
    assert configuration.agents["own"].steps is None
    assert configuration.agents["own"].permissions == ()


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        ("[agents.build]\nsteps = 0\n", "agents.build.steps", ">= 1"),
        ("[agents.build]\npermissions = 'all'\n", "agents.build.permissions", "expected array"),
        (ALLOW.replace("allow", "alow"), "agents.build.permissions", "alow"),
        (ALLOW.replace("resource", "resorce"), "agents.build.permissions", "resorce"),
        (ALLOW.replace('"shell"', '""'), "agents.build.permissions", "length >= 1"),
        ("[permissions]\npolicy = 'never'\n", "permissions.policy", "never"),
        ("[permissions]\npolcy = 'ask'\n", "permissions.polcy", "did you mean policy?"),
    ],
)
def test_a_wrong_rule_is_refused_with_its_key(world: World, text: str, key: str, said: str) -> None:
    world.user.write_text(text)
    error = world.refusal()
    assert error.key == key
    assert said in error.message


def test_the_policy_can_come_from_the_environment(world: World) -> None:
    world.environ["STEERWAY_PERMISSIONS_POLICY"] = "allow"
    assert world.load().configuration.permissions.policy == "allow"


# --- what a file that was only found may say ----------------------------------------------------------------------


def test_a_file_found_upward_may_not_allow_anything(world: World) -> None:
    for text, key in ((ALLOW, "agents.build.permissions"), ("[permissions]\npolicy = 'allow'\n", "permissions")):
        world.project.write_text(text)
        error = world.refusal()
        assert error.key == key
        assert str(world.project) in error.message
        assert "--config" in error.message
        world.load(config="steerway.toml")


def test_rules_of_a_file_found_upward_cannot_weaken_the_users_own(world: World) -> None:
    world.user.write_text(DENY)
    world.project.write_text(ASK)
    assert world.effects() == ["ask", "deny"]
    world.project.write_text("[agents.build]\npermissions = []\n")
    assert world.effects() == ["deny"]


def test_rules_of_a_named_file_stand_behind_the_users_own(world: World) -> None:
    world.user.write_text(DENY)
    world.project.write_text(ALLOW)
    assert world.effects(config="steerway.toml") == ["deny", "allow"]
    source = world.load(config="steerway.toml").sources["agents.build.permissions"]
    assert str(world.user) in source
    assert str(world.project) in source
