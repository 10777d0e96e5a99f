"""What a producer makes of the arguments of ``publish``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.producers import ENVIRONMENT, Logged, new_layout, published, sampled
from rollstream.producers import RolloutProducer
from rollstream.streams.memory import MemoryBroker


def publish(**overrides: Any) -> Mapping[str, Any]:
    """The fields of the rollout as its reader has them."""
    return taken(sampled(**overrides))


def taken(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same of exactly these arguments."""
    return logged({"example_id": "ex", **arguments}).fields


def logged(arguments: Mapping[str, Any]) -> Logged:
    """The entry of a rollout of these arguments, in the log."""
    broker = MemoryBroker()
    layout = new_layout(broker)
    with RolloutProducer(
        broker=broker, namespace=layout.namespace, environment=ENVIRONMENT
    ) as producer:
        producer.publish(**arguments)
    [found] = published(broker, layout)
    return found
