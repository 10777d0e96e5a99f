"""Each test of this folder runs twice: in memory, and against a real Kafka."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.brokers import KafkaWorld, MemoryWorld, TimedWorld, World
from rollstream.streams.broker import TopicPartition


@pytest.fixture(params=["memory", "timed", pytest.param("kafka", marks=pytest.mark.broker)])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    made: World
    if request.param == "kafka":
        made = KafkaWorld(request.getfixturevalue("kafka_bootstrap"))
    else:
        made = MemoryWorld() if request.param == "memory" else TimedWorld()
    yield made
    made.close()


@pytest.fixture
def where(world: World) -> TopicPartition:
    """A log of the test's own."""
    return TopicPartition(world.topic(partitions=2), 1)
