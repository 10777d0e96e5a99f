"""Both producers, each on the broker in memory and on Kafka."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.brokers import KafkaWorld, MemoryWorld, World
from harness.producer_stage import Stage


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.broker)])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param == "memory":
        made: World = MemoryWorld()
    else:
        made = KafkaWorld(request.getfixturevalue("kafka_bootstrap"))
    yield made
    made.close()


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def stage(kind: str, world: World) -> Stage:
    return Stage(kind, world)
