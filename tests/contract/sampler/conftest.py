"""The worlds in which every sampler is tested: in memory, on Kafka, and over Ray on Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.ray_world import RayWorld
from harness.sampler_worlds import SamplerWorld, kafka_world, memory_world


@pytest.fixture(
    params=[
        "memory",
        pytest.param("kafka", marks=pytest.mark.broker),
        pytest.param("ray", marks=pytest.mark.broker),
    ]
)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SamplerWorld]:
    made: SamplerWorld
    if request.param == "memory":
        made = memory_world()
    elif request.param == "kafka":
        made = kafka_world(request.getfixturevalue("kafka_bootstrap"), tmp_path)
    else:
        made = RayWorld(request.getfixturevalue("kafka_bootstrap"), tmp_path)
    yield made
    made.close()
