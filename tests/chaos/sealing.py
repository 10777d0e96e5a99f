"""``python -m chaos.sealing CONFIG PHASES``: a sealer that shows what it is at."""

from __future__ import annotations

import sys
from pathlib import Path

from chaos.phases import PhasedBroker, phased_steps
from rollstream.consumers import Sealer
from rollstream.runtime.config.load import load_config
from rollstream.runtime.shutdown import stop_on_signals


def main(config_file: Path, phases: Path) -> None:
    stopping = stop_on_signals()
    config = load_config(config_file)
    kafka = config.kafka
    with PhasedBroker(kafka.bootstrap, dict(kafka.client), "", phases) as broker:
        Sealer(config, broker=broker, steps=phased_steps(broker.phases)).run(stopping)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
