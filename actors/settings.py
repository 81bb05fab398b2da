"""The settings of a process: the configuration put together from its layers, and where each value came from.

Rules:
- Layers, lowest to highest: defaults, the user's file, the nearest `steerway.toml` from the working directory upward, the
  file named by `--config`, environment, flags. Tables are merged key by key; any other value replaces the one below.
- Each layer is checked by itself, so that an error names the layer to blame. Unknown keys name the nearest known key.
- Permission rules of an agent are not replaced but put one behind the other, so that no layer drops what another one denies.
- A file found upward may have come with somebody's repository: it may set neither providers, store, gateway nor the policies
  of permissions and recovery, and no rule that allows, unless it is also named by `--config` (ruling C7). What rules it has
  stand before all others, so that they cannot weaken the user's own.
- A relative path in a file is relative to that file; one in the environment or a flag to the working directory (ruling C5).
- Everything outside is passed in as `Surroundings`, so that tests own it. Reading blocks: call it before the loop runs.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast, get_args, get_origin

import msgspec
from msgspec import Struct

from .configuration import Configuration, ConfigurationError
from .configuration_keys import Key, check, dotted, is_secret, leaves, nearest
from .configuration_spelling import respelled

FILE_NAME: Final = "steerway.toml"
ENVIRONMENT_PREFIX: Final = "STEERWAY_"
DEFAULT_SOURCE: Final = "default"

_GUARDED_SECTIONS: Final = ("providers", "store", "gateway", "permissions", "recovery")
_ENVIRONMENT_SECTIONS: Final = ("store", "gateway", "models", "permissions", "recovery", "tool_output", "compaction")
_PATHS: Final[tuple[Key, ...]] = (("store", "path"),)
_VENDORS: Final = (
    ("openai", "openai-chat", ("OPENAI",), ""),
    ("anthropic", "anthropic-messages", ("ANTHROPIC",), "/v1"),
    ("google", "gemini", ("GEMINI", "GOOGLE_GENERATIVE_AI", "GOOGLE", "GOOGLE_GEMINI"), "/v1beta"),
)
"""Providers that are there by their vendor's variables: name, protocol, how the variables begin (the first that is set
counts), and the version that a base URL of theirs leaves out."""
_VERSION: Final = re.compile(r"/v[0-9]\w*$")


class Surroundings(Struct, frozen=True, kw_only=True):
    """What of the world the settings depend on."""

    environ: Mapping[str, str]
    directory: Path
    config_folder: Path
    data_folder: Path

    def __repr__(self) -> str:  # the environment holds keys
        return f"<Surroundings directory={str(self.directory)!r}>"

    @classmethod
    def of_process(cls) -> Surroundings:
        """This process's environment, working directory and platform folders. Raises `ConfigurationError` when the working
        directory has been removed."""
        import platformdirs

        try:
            directory = Path.cwd()
        except FileNotFoundError:
            message = "The working directory is not there any more; change to another one."
            raise ConfigurationError(message, source="working directory") from None
        return cls(
            environ=os.environ,
            directory=directory,
            config_folder=Path(platformdirs.user_config_dir("steerway", appauthor=False)),
            data_folder=Path(platformdirs.user_data_dir("steerway", appauthor=False)),
        )


class Setting(Struct, frozen=True, kw_only=True):
    """One effective value for people to see: secrets are masked. `source` names the layer it came from."""

    key: str
    value: Any
    source: str


class Settings(Struct, frozen=True, kw_only=True):
    """The effective configuration. `sources` maps dotted keys to layers; what is not there is a default."""

    configuration: Configuration
    sources: Mapping[str, str]

    def listed(self) -> list[Setting]:
        """Every effective value with its source, as `steerway config` shows them."""
        values = cast("dict[str, Any]", msgspec.to_builtins(self.configuration))
        return [
            Setting(
                key=dotted(key),
                value="(not shown)" if is_secret(key) else value,
                source=self.sources.get(dotted(key), DEFAULT_SOURCE),
            )
            for key, value in leaves(values)
        ]


class _Layer(Struct, frozen=True):
    """`trusted` is false for a file that was only found."""

    source: str
    table: dict[str, Any]
    trusted: bool = True


def load_settings(
    surroundings: Surroundings, *, config_file: Path | None = None, flags: Mapping[str, object] | None = None
) -> Settings:
    """Read and merge all layers. `flags` maps dotted keys (`gateway.port`) to values; None means not given.

    Raises `ConfigurationError`: unknown key, wrong type, a file that is missing (when named) or no TOML, a file found
    upward that sets what it may not.
    """
    merged: dict[str, Any] = {"store": {"path": str(surroundings.data_folder / "sessions.db")}}
    sources: dict[str, str] = {}
    for layer in _layers(surroundings, config_file, flags or {}):
        _merge(merged, layer, sources)
    if not merged.get("providers"):
        _merge(merged, _Layer("environment", _environment_providers(surroundings.environ)), sources)
    _require_protocols(merged.get("providers", {}), sources)
    return Settings(configuration=msgspec.convert(merged, Configuration), sources=sources)


def _require_protocols(providers: Mapping[str, dict[str, Any]], sources: Mapping[str, str]) -> None:
    """The one key without a default: layers may give it apart from the rest, so it is looked for last."""
    for name, provider in providers.items():
        if "protocol" not in provider:
            at = dotted(("providers", name))
            source = next((source for key, source in sources.items() if key.startswith(f"{at}.")), "configuration")
            message = f"{source}: {at}.protocol: it is missing; it names how the provider is spoken to, like openai-chat."
            raise ConfigurationError(message, source=source, key=f"{at}.protocol")


def _layers(surroundings: Surroundings, config_file: Path | None, flags: Mapping[str, object]) -> Iterator[_Layer]:
    named = (surroundings.directory / config_file) if config_file is not None else None
    if named is not None and not named.is_file():
        raise ConfigurationError(f"{named}: there is no such file; --config names a TOML file.", source=str(named))
    user = surroundings.config_folder / FILE_NAME
    found = _found_upward(surroundings.directory)
    if user.is_file():
        yield _file_layer(user)
    if found is not None and not _same(found, user) and not _same(found, named):
        layer = _file_layer(found, trusted=False)
        _guard(layer)
        yield layer
    if named is not None and not _same(named, user):
        yield _file_layer(named)
    yield from _environment_layers(surroundings)
    yield from _flag_layers(surroundings, flags)


def _found_upward(directory: Path) -> Path | None:
    return next((folder / FILE_NAME for folder in (directory, *directory.parents) if (folder / FILE_NAME).is_file()), None)


def _same(one: Path, other: Path | None) -> bool:
    return other is not None and other.is_file() and one.samefile(other)


def _file_layer(path: Path, *, trusted: bool = True) -> _Layer:
    source = str(path)
    try:
        with path.open("rb") as file:
            table = tomllib.load(file)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{source}: this is no TOML: {error}.", source=source) from None
    except OSError as error:
        raise ConfigurationError(f"{source}: cannot be read: {error.strerror}.", source=source) from None
    table = respelled(table, source)
    check(table, source)
    _anchor(table, path.parent)
    return _Layer(source, table, trusted)


def _guard(layer: _Layer) -> None:
    for section in _GUARDED_SECTIONS:
        if section in layer.table:
            raise _not_trusted(layer, (section,), f"set [{section}]")
    for name, agent in layer.table.get("agents", {}).items():
        if any(rule["effect"] == "allow" for rule in agent.get("permissions", ())):
            raise _not_trusted(layer, ("agents", name, "permissions"), "allow anything")


def _not_trusted(layer: _Layer, key: Key, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"{layer.source}: {dotted(key)}: a file that was only found may not {what}, because it can come with somebody's "
        "repository; name it by --config to trust it, or move this to your own configuration.",
        source=layer.source,
        key=dotted(key),
    )


def _environment_layers(surroundings: Surroundings) -> Iterator[_Layer]:
    known = dict(_environment_keys())
    for name, text in sorted(surroundings.environ.items()):
        if not any(name.startswith(f"{ENVIRONMENT_PREFIX}{section.upper()}_") for section in _ENVIRONMENT_SECTIONS):
            continue
        source = f"environment {name}"
        if name not in known:
            message = f"{source}: there is no such setting{nearest(name, known)}"
            raise ConfigurationError(message if message.endswith("?") else f"{message}.", source=source, key=name)
        key, kind = known[name]
        yield _value_layer(surroundings, source, key, _from_text(text, kind))


def _environment_keys() -> Iterator[tuple[str, tuple[Key, object]]]:
    for section in msgspec.structs.fields(Configuration):
        if section.encode_name in _ENVIRONMENT_SECTIONS:
            for field in msgspec.structs.fields(section.type):
                name = f"{ENVIRONMENT_PREFIX}{section.encode_name}_{field.encode_name}".upper()
                yield name, ((section.encode_name, field.encode_name), field.type)


def _from_text(text: str, kind: object) -> object:
    if get_origin(kind) is tuple:
        return [part for part in (part.strip() for part in text.split(",")) if part]
    if kind is bool:
        return {"true": True, "1": True, "false": False, "0": False}.get(text.strip().lower(), text)
    if int in (kind, *get_args(kind)):
        try:
            return int(text)
        except ValueError:
            return text
    return text


def _flag_layers(surroundings: Surroundings, flags: Mapping[str, object]) -> Iterator[_Layer]:
    for name, value in flags.items():
        if value is not None:
            given = str(value) if isinstance(value, Path) else value
            yield _value_layer(surroundings, "flag", tuple(name.split(".")), given)


def _value_layer(surroundings: Surroundings, source: str, key: Key, value: object) -> _Layer:
    table: dict[str, Any] = {}
    inner = table
    for name in key[:-1]:
        inner = inner.setdefault(name, {})
    inner[key[-1]] = value
    check(table, source)
    _anchor(table, surroundings.directory)
    return _Layer(source, table)


def _anchor(table: dict[str, Any], folder: Path) -> None:
    tables = [(table.get(section, {}), name) for section, name in _PATHS]
    tables += [(provider, "api_key_file") for provider in table.get("providers", {}).values()]
    for inner, name in tables:
        if name in inner:
            inner[name] = str(folder / Path(inner[name]).expanduser())


def _merge(under: dict[str, Any], layer: _Layer, sources: dict[str, str]) -> None:
    _merge_table(under, layer.table, (), layer, sources)


def _merge_table(under: dict[str, Any], over: Mapping[str, Any], at: Key, layer: _Layer, sources: dict[str, str]) -> None:
    for name, value in over.items():
        key = (*at, name)
        if isinstance(value, dict):
            below = under.get(name)
            if not isinstance(below, dict):
                below = under[name] = {}
            _merge_table(cast("dict[str, Any]", below), cast("dict[str, Any]", value), key, layer, sources)
        elif _is_rules(key) and name in under:
            under[name] = [*under[name], *value] if layer.trusted else [*value, *under[name]]
            sources[dotted(key)] += f" and {layer.source}"
        else:
            under[name] = value
            sources[dotted(key)] = layer.source


def _is_rules(key: Key) -> bool:
    match key:
        case ("agents", _, "permissions"):
            return True
        case _:
            return False


def _environment_providers(environ: Mapping[str, str]) -> dict[str, Any]:
    """The providers that the vendors' own variables stand for, when none is configured."""
    providers: dict[str, Any] = {}
    for name, protocol, prefixes, version in _VENDORS:
        key = next((key for prefix in prefixes if environ.get(key := f"{prefix}_API_KEY")), None)
        url = next((url for prefix in prefixes if environ.get(url := f"{prefix}_BASE_URL")), None)
        if key is None and url is None:
            continue
        table: dict[str, Any] = {"protocol": protocol}
        if key is not None:
            table["api_key_env"] = key
        if url is not None:
            table["base_url"] = _versioned(environ[url], version)
        check({"providers": {name: table}}, f"environment {url or key}")
        providers[name] = table
    return {"providers": providers} if providers else {}


def _versioned(base_url: str, version: str) -> str:
    """Some vendors' variables name the host alone by custom; here a base URL holds the version too."""
    plain = base_url.rstrip("/")
    return base_url if not version else plain if _VERSION.search(plain) else f"{plain}{version}"
