"""The broker that every system on Kafka is measured with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rollstream.console.broker import EmbeddedKafka

# The embedded broker calls itself dead after 2 s without a heartbeat, so that it is back soon after
# kill -9. Nobody kills it here, and with every core busy a heartbeat may well be that late.
SETTINGS = {"broker.session.timeout.ms": "18000"}


@contextmanager
def fresh_kafka(folder: Path) -> Iterator[EmbeddedKafka]:
    """A new broker over a folder of the round, killed at the end: its data goes with the folder."""
    kafka = EmbeddedKafka(folder / "kafka", overrides=SETTINGS).start()
    try:
        yield kafka
    finally:
        kafka.kill()
