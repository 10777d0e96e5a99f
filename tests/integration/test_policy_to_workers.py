"""A policy's way from a trainer's process to an env worker, over a real Kafka, through kills."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from harness.admission import announce, told
from harness.trainer_process import TrainerProcess
from rollstream.consumers import create_deployment
from rollstream.producers import NoPolicy, RolloutProducer
from rollstream.runtime.config.load import load_config
from rollstream.schemas.events import PolicyAnnounced
from rollstream.streams.kafka import KafkaBroker
from rollstream.streams.topics.layout import SHARES_PARTITIONS, Layout, shares_topic

WAIT_S = 60.0
SHORT_S = 2.0  # For what must not come.
CONFIG = """
[kafka]
bootstrap = "{bootstrap}"
namespace = "{namespace}"

[store]
root = "{root}"

[environments.math]
partitions = 1

[samplers.trainer-a]
environments = ["math"]
max_policy_lag = 2
"""


@pytest.mark.broker
@pytest.mark.proves("F22")
def test_a_policy_reaches_a_worker_in_another_process_through_kills_zombies_and_resumes(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    namespace = f"test-{uuid4().hex}"
    config = tmp_path / "rollstream.toml"
    root = (tmp_path / "data").as_uri()
    config.write_text(CONFIG.format(bootstrap=kafka_bootstrap, namespace=namespace, root=root))
    create_deployment(load_config(config))
    topic = Layout(namespace).admission("math")
    with (
        KafkaBroker(kafka_bootstrap) as broker,
        RolloutProducer(kafka_bootstrap, environment="math", namespace=namespace) as worker,
    ):
        with TrainerProcess(config, "trainer-a") as trainer:
            assert trainer.do("resume 4") == "5"  # The weights of another run's checkpoint.
            assert trainer.do("publish 4 /w/4") == "step-4"
            fourth = worker.policy(timeout_s=WAIT_S)
            assert (fourth.version, fourth.step, fourth.weights) == ("step-4", 4, "/w/4")
            assert trainer.do("publish 5 /w/5") == "step-5"
            fifth = worker.policy(newer_than=fourth, timeout_s=WAIT_S)
            assert (fifth.step, fifth.weights) == (5, "/w/5")
            trainer.kill()
        written = told(broker, topic)

        with TrainerProcess(config, "trainer-a") as successor:
            # It takes the sampler over and says again what holds; nothing is another by that.
            assert successor.do("publish 5 /w/5") == "step-5"
            assert worker.policy(timeout_s=WAIT_S) == fifth
            # And so does one that was stopped in the middle of telling an older policy.
            zombie = next(event for event in written if isinstance(event, PolicyAnnounced))
            for partition in range(SHARES_PARTITIONS):
                announce(broker, shares_topic(topic), zombie, partition=partition)
            with pytest.raises(NoPolicy):
                worker.policy(newer_than=fifth, timeout_s=SHORT_S)
            assert worker.policy(timeout_s=WAIT_S) == fifth
            assert not fifth.stale()

            assert successor.do("resume 3") == "4"
            again = worker.policy(newer_than=fifth, timeout_s=WAIT_S)
            assert (again.step, again.epoch) == (4, fourth.epoch)
            assert (again.stale(), fourth.stale(), fifth.stale()) == (False, False, True)
            assert successor.do("publish 4 /w/other") == "step-4.e2"
            newest = worker.policy(newer_than=again, timeout_s=WAIT_S)
            assert (newest.version, newest.epoch, newest.weights) == ("step-4.e2", 2, "/w/other")
