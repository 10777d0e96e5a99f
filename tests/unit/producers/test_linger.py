"""The sync producer's own thread ends with its process."""

from __future__ import annotations

import subprocess
import sys

from harness.brokers import TIMEOUT_S

PROGRAM = """
from rollstream.producers import RolloutProducer
from rollstream.streams.broker import TopicSpec
from rollstream.streams.memory import MemoryBroker
from rollstream.streams.topics.layout import Layout

broker = MemoryBroker()
broker.admin().create([TopicSpec(Layout().rollouts("math"), 2, {})], 1.0)
producer = RolloutProducer(broker=broker, environment="math")
for _ in range(100):
    producer.publish(example_id="ex", policy_version="step-1", output_tokens=[1], reward=1.0)
"""


def test_a_process_that_never_closes_its_producer_ends() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], timeout=TIMEOUT_S, check=False, capture_output=True
    )
    assert (ended.returncode, ended.stderr) == (0, b"")
