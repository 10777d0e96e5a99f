"""The broker of a round, for every system on Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rollstream.console.broker import EmbeddedKafka

# The embedded broker's session ends after 2 s without a heartbeat, so that it serves soon after
# kill -9. Here it is not killed, and with every core busy a heartbeat may be later than that.
SETTINGS = {"broker.session.timeout.ms": "18000"}


@contextmanager
def fresh_kafka(folder: Path) -> Iterator[EmbeddedKafka]:
    """Starts a new broker in the round's folder, and kills it in the end."""
    kafka = EmbeddedKafka(folder / "kafka", overrides=SETTINGS).start()
    try:
        yield kafka
    finally:
        kafka.kill()
