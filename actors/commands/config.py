"""`steerway config`: the effective configuration and where each value comes from."""

from __future__ import annotations

from pathlib import Path

import click

from .options import json_option, read_settings, store_options
from .output import say_json, table


@click.command()
@store_options
@json_option
def config(db: Path | None, config: Path | None, as_json: bool) -> None:
    """Show every effective setting and where it comes from.

    Layers, lowest to highest: defaults, your own file, steerway.toml found upward from here, --config, environment
    (STEERWAY_STORE_PATH, STEERWAY_GATEWAY_PORT, ...), flags. Values that may be secrets are not shown.
    """
    import msgspec

    settings = read_settings(config, db).listed()
    if as_json:
        say_json(settings)
    else:
        table(
            ["KEY", "VALUE", "FROM"],
            [[setting.key, msgspec.json.encode(setting.value).decode(), setting.source] for setting in settings],
        )
