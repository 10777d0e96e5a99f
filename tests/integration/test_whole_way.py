"""From ``RolloutProducer`` to ``SamplerClient`` over the Kafka that ``rollstream up`` runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.whole_way import Deployment, goes_the_whole_way


@pytest.mark.broker
@pytest.mark.proves("I6", "I10")
def test_rollouts_go_the_whole_way_over_the_embedded_kafka(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    goes_the_whole_way(Deployment(kafka_bootstrap, tmp_path))
