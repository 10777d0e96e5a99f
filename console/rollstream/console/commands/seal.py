"""``rollstream seal``"""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from rollstream.console.options import CONFIG_FILE, ConfigOption
from rollstream.console.services import outside
from rollstream.consumers import Sealer
from rollstream.runtime.config.load import load_config
from rollstream.store.warm_memory import keep_memory_warm

_log = logging.getLogger("rollstream.seal")


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("seal", epilog="Example: rollstream seal --config rollstream.toml")(seal)


def seal(
    context: typer.Context,
    config: ConfigOption = CONFIG_FILE,
    name: Annotated[
        str | None, typer.Option(help="Named in claims, for people.", metavar="NAME")
    ] = None,
) -> None:
    """Joins rollouts into groups and writes them as Parquet, until SIGTERM or Ctrl-C; then it
    finishes what is decided and leaves. Run as many as you like: they share the partitions."""
    world, settings = outside(context), load_config(config)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    keep_memory_warm()
    stopping = world.stopping()
    with world.broker(settings) as broker:
        sealer = Sealer(
            settings, broker=broker, store=world.store(settings), clock=world.clock, owner=name
        )
        _log.info("sealing %s from %s", ", ".join(settings.environments), settings.kafka.bootstrap)
        sealer.run(stopping)
        stats = sealer.stats()
    _log.info("left: %s segments in %s groups sealed", f"{stats.segments:,}", f"{stats.groups:,}")
