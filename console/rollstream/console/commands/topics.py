"""``rollstream topics create`` and ``rollstream topics check``"""

from __future__ import annotations

import json

import typer

from rollstream.console.options import CONFIG_FILE, TIMEOUT_S, AsJson, ConfigOption, TimeoutOption
from rollstream.console.services import services_of, specs_of
from rollstream.runtime.config.load import load_config
from rollstream.streams.topics.check import check_topics
from rollstream.streams.topics.create import create_topics


def create(
    context: typer.Context,
    config: ConfigOption = CONFIG_FILE,
    timeout_s: TimeoutOption = TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Creates the topics that are missing. Existing ones stay as they are."""
    services, settings = services_of(context), load_config(config)
    specs = specs_of(settings)
    with services.connected(settings, timeout_s) as broker:
        created = create_topics(broker.admin(), specs, timeout_s)
    if as_json:
        typer.echo(json.dumps(created, indent=2))
        return
    for name in created:
        typer.echo(f"created {name}")
    typer.echo(f"{len(created)} created, {len(specs) - len(created)} existed")


def check(
    context: typer.Context,
    config: ConfigOption = CONFIG_FILE,
    timeout_s: TimeoutOption = TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Lists what differs from the configuration and what to do. Exit code 1 where anything does."""
    services, settings = services_of(context), load_config(config)
    specs = specs_of(settings)
    with services.connected(settings, timeout_s) as broker:
        found = check_topics(broker.admin(), specs, timeout_s)
    if as_json:
        typer.echo(json.dumps([difference._asdict() for difference in found], indent=2))
    else:
        for difference in found:
            typer.echo(str(difference))
        typer.echo(f"{len(specs)} topics, {len(found)} differences")
    if found:
        raise typer.Exit(1)
