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
from rollstream.runtime.config.store import StoreConfig

SEALERS = 2
PARTITIONS = 2  # One for each sealer.
ANY_LAG = "max_policy_lag = -1\n"  # Of a sampler: whatever was published is to be trained on.


@contextmanager
def services(
    folder: Path,
    *,
    environment: str = "",
    sampler: str = "",
    store: StoreConfig | None = None,
    sealers: int = SEALERS,
    partitions: int = PARTITIONS,
) -> Iterator[Services]:
    """Starts them. The address is the bootstrap address, a space, and the configuration's path.

    Args:
        environment: further lines of the environment's section.
        sampler: further lines of the sampler's section.
        store: None: in the folder.
    """
    store = store or StoreConfig(root=(folder / "store").as_uri())
    with fresh_kafka(folder) as kafka:
        config = folder / "rollstream.toml"
        config.write_text(
            config_text(
                kafka.bootstrap, store, partitions, environment=environment, sampler=sampler
            )
        )
        settings = load_config(config)
        create_deployment(settings, timeout_s=START_TIMEOUT_S)
        running = [sealer(folder, config, number) for number in range(sealers)]
        try:
            pids = {f"sealer-{number + 1}": child.pid for number, child in enumerate(running)}
            yield Services(f"{kafka.bootstrap} {config}", {"broker": kafka.pid, **pids})
        finally:
            for child in running:
                child.signal(signal.SIGTERM)
            for child in running:
                if child.wait(STOP_TIMEOUT_S) is None:
                    child.signal(signal.SIGKILL)


def config_text(
    bootstrap: str, store: StoreConfig, partitions: int, *, environment: str = "", sampler: str = ""
) -> str:
    """A ``rollstream.toml`` with one environment and one sampler; arguments as of ``services``."""
    return (
        f'[kafka]\nbootstrap = "{bootstrap}"\n'
        f'[store]\nroot = "{store.root}"\nendpoint = "{store.endpoint}"\n'
        f'region = "{store.region}"\n'
        f"[environments.{ENVIRONMENT}]\npartitions = {partitions}\n{environment}"
        f'[samplers.{SAMPLER}]\nenvironments = ["{ENVIRONMENT}"]\n{sampler}'
    )


def sealer(folder: Path, config: Path, number: int) -> BoundChild:
    """Starts one."""
    program = Path(sys.executable).with_name("rollstream")
    command = [str(program), "seal", "--config", str(config)]
    return BoundChild(command, cwd=folder, output=folder / f"sealer-{number + 1}.log")
