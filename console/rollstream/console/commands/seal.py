"""``rollstream seal``"""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from rollstream.console.options import CONFIG_FILE, ConfigOption
from rollstream.console.services import services_of
from rollstream.consumers import Sealer
from rollstream.runtime.config.load import load_config
from rollstream.store.warm_memory import keep_memory_warm

_log = logging.getLogger("rollstream.seal")


def seal(
    context: typer.Context,
    config: ConfigOption = CONFIG_FILE,
    name: Annotated[
        str | None, typer.Option(help="Shown as the owner of partitions.", metavar="NAME")
    ] = None,
) -> None:
    """Joins rollouts into groups and writes them as Parquet, until SIGTERM or Ctrl-C.

    It then commits what is decided and ends. Several sealers share the partitions.
    """
    services, settings = services_of(context), load_config(config)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    keep_memory_warm()
    stopping = services.stopping()
    with services.connected(settings) as broker:
        store = services.store(settings)
        sealer = Sealer(settings, broker=broker, store=store, clock=services.clock, owner=name)
        _log.info("sealing %s from %s", ", ".join(settings.environments), settings.kafka.bootstrap)
        sealer.run(stopping)
        stats = sealer.stats()
    _log.info("ended; sealed segments: %s, groups: %s", f"{stats.segments:,}", f"{stats.groups:,}")
