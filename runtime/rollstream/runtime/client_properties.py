"""Which librdkafka properties users may set, and which would break what Rollstream promises. Pure.

One table for the configuration's check and for whoever makes a ``KafkaBroker``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_DURABLE = "a rollout would count as published before every replica has it"
_OFFSETS = "sealers commit offsets themselves, once what stands below them is settled"
_ONCE = "an owner's record is sent once: what a client repeats by itself could stand there twice"
_ADDRESS = "kafka.bootstrap names the brokers"
_START = "a reader would go on elsewhere without a word where records were deleted"
_REPORTS = "without reports nobody knows what was delivered"
# By property: the values that change nothing, and what any other would break.
_FIXED: Final[Mapping[str, tuple[frozenset[str], str]]] = {
    "acks": (frozenset({"all", "-1"}), _DURABLE),
    "request.required.acks": (frozenset({"all", "-1"}), _DURABLE),
    "auto.commit.enable": (frozenset({"false"}), _OFFSETS),
    "enable.auto.commit": (frozenset({"false"}), _OFFSETS),
    "enable.auto.offset.store": (frozenset({"false"}), _OFFSETS),
    "auto.offset.reset": (frozenset({"error"}), _START),
    "bootstrap.servers": (frozenset(), _ADDRESS),
    "metadata.broker.list": (frozenset(), _ADDRESS),
    "delivery.report.only.error": (frozenset(), _REPORTS),
    "enable.idempotence": (frozenset(), _ONCE),
    "message.send.max.retries": (frozenset(), _ONCE),
    "retries": (frozenset(), _ONCE),
    "transactional.id": (frozenset(), "nothing here is written in transactions"),
    "group.id": (frozenset(), "sealers of an environment share one group, and its name is ours"),
    "partition.assignment.strategy": (
        frozenset({"cooperative-sticky"}),
        "sealers of one group must agree in it",
    ),
    "partitioner": (
        frozenset({"murmur2_random"}),
        "members of a group would go to partitions where no sealer takes them",
    ),
}


def contradictions(client: Mapping[str, str]) -> list[str]:
    """What of these properties contradicts what Rollstream promises: property, value, why, remedy,
    a sentence each; empty where nothing does."""
    return [
        f'{name} = "{value}": {_FIXED[name][1]}; remove it'
        for name, value in client.items()
        if name in _FIXED and str(value).lower() not in _FIXED[name][0]
    ]
