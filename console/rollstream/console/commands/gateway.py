"""``rollstream gateway``"""

from __future__ import annotations

import importlib
from typing import Annotated

import typer

from rollstream.console.options import CONFIG_FILE, ConfigOption
from rollstream.console.services import services_of
from rollstream.runtime.config.load import load_config


def gateway(
    context: typer.Context,
    config: ConfigOption = CONFIG_FILE,
    host: Annotated[
        str, typer.Option(help="Address to listen at; 0.0.0.0: all.", metavar="ADDRESS")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any that is free.", min=0, max=65_535)] = 8080,
) -> None:
    """Takes steps of trajectories over HTTP, until SIGTERM or Ctrl-C.

    It then takes no more, and ends once the broker has what it accepted. Any number may run side by
    side.
    """
    services, settings = services_of(context), load_config(config)
    serving = importlib.import_module("rollstream.gateway")  # Needs the extra of its name.
    serving.check_open_to_all(settings.gateway, host)
    stopping = services.stopping()
    with services.connected(settings) as broker:
        serving.serve(
            settings,
            broker=broker,
            host=host,
            port=port,
            stopping=stopping,
            clock=services.clock,
        )
