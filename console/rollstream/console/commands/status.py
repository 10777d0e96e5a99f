"""``rollstream status``"""

from __future__ import annotations

import json
from dataclasses import asdict

import typer
from rich.console import Console

from rollstream.console.options import (
    CONFIG_FILE,
    TIMEOUT_S,
    ConfigOption,
    JsonOption,
    TimeoutOption,
)
from rollstream.console.services import services_of
from rollstream.console.views.status import status_view
from rollstream.runtime.config.load import load_config
from rollstream.runtime.deadline import Deadline
from rollstream.streams.status import first_stuck, measure


def register(app: typer.Typer) -> None:
    app.command("status", epilog="Example: rollstream status --config rollstream.toml")(status)


def status(
    context: typer.Context,
    config: ConfigOption = CONFIG_FILE,
    timeout_s: TimeoutOption = TIMEOUT_S,
    as_json: JsonOption = False,
) -> None:
    """Shows how far each stage is, and the first one that is stuck with the likely reason."""
    services, settings = services_of(context), load_config(config)
    with services.broker(settings) as broker:
        figures = measure(broker, settings, Deadline(timeout_s, services.clock))
    verdict = first_stuck(figures, settings)
    if as_json:
        typer.echo(json.dumps({**asdict(figures), "stuck": verdict._asdict()}, indent=2))
    else:
        Console().print(status_view(figures, verdict, settings.samplers))
