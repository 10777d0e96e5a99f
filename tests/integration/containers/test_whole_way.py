"""From ``RolloutProducer`` to ``SamplerClient`` over the broker that users run in production."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.containers import KafkaContainer, why_no_kafka_container
from harness.whole_way import Deployment, goes_the_whole_way


@pytest.mark.container
def test_rollouts_go_the_whole_way_over_a_kafka_in_a_container(tmp_path: Path) -> None:
    reason = why_no_kafka_container()
    if reason is not None:
        pytest.skip(reason)
    with KafkaContainer() as kafka:
        goes_the_whole_way(Deployment(kafka.bootstrap, tmp_path))
