"""Rollstream's services of a round: Kafka with the topics, and the sealers."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.systems.interface import START_TIMEOUT_S, STOP_TIMEOUT_S, Services
from benchmarks.systems.kafka_broker import fresh_kafka
from benchmarks.systems.rollstream_source import SAMPLER
from benchmarks.workload import ENVIRONMENT
from rollstream.console.broker.child import BoundChild
from rollstream.consumers import create_deployment
from rollstream.runtime.config.load import load_config

SEALERS = 2
PARTITIONS = 2  # One for each sealer.
ANY_LAG = "max_policy_lag = -1\n"  # Of a sampler: whatever was published is to be trained on.


@contextmanager
def services(folder: Path, *, environment: str = "", sampler: str = "") -> Iterator[Services]:
    """Starts them. The address is the bootstrap address, a space, and the configuration's path.

    Args:
        environment: further lines of the environment's section.
        sampler: further lines of the sampler's section.
    """
    with fresh_kafka(folder) as kafka:
        config = folder / "rollstream.toml"
        config.write_text(
            f'[kafka]\nbootstrap = "{kafka.bootstrap}"\n'
            f'[store]\nroot = "{(folder / "store").as_uri()}"\n'
            f"[environments.{ENVIRONMENT}]\npartitions = {PARTITIONS}\n{environment}"
            f'[samplers.{SAMPLER}]\nenvironments = ["{ENVIRONMENT}"]\n{sampler}'
        )
        settings = load_config(config)
        create_deployment(settings, timeout_s=START_TIMEOUT_S)
        sealers = [_sealer(folder, config, number) for number in range(SEALERS)]
        try:
            pids = {f"sealer-{number + 1}": child.pid for number, child in enumerate(sealers)}
            yield Services(f"{kafka.bootstrap} {config}", {"broker": kafka.pid, **pids})
        finally:
            for sealer in sealers:
                sealer.signal(signal.SIGTERM)
            for sealer in sealers:
                if sealer.wait(STOP_TIMEOUT_S) is None:
                    sealer.signal(signal.SIGKILL)


def _sealer(folder: Path, config: Path, number: int) -> BoundChild:
    program = Path(sys.executable).with_name("rollstream")
    command = [str(program), "seal", "--config", str(config)]
    return BoundChild(command, cwd=folder, output=folder / f"sealer-{number + 1}.log")
