"""When the sync producer's own thread ends the linger, and when it is not needed."""

from __future__ import annotations

import subprocess
import sys
import threading

from harness.brokers import TIMEOUT_S, until
from harness.producers import new_layout, records_of, sampled
from rollstream.producers import RolloutProducer
from rollstream.producers.linger import LINGER_S
from rollstream.runtime.clock import ManualClock, SystemClock
from rollstream.schemas.ingest.record import decode_record
from rollstream.streams.memory import MemoryBroker

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


def test_a_worker_that_publishes_one_at_a_time_does_not_wait_for_others() -> None:
    clock, broker = ManualClock(), MemoryBroker()
    layout = new_layout(broker, "math")
    with RolloutProducer(
        broker=broker, environment="math", namespace=layout.namespace, clock=clock
    ) as producer:

        def sent_at_once() -> bool:
            clock.advance(1.0)
            before = len(records_of(broker, layout))
            producer.publish(example_id="ex", **sampled())
            at_once = len(records_of(broker, layout)) == before + 1
            until(lambda: len(records_of(broker, layout)) == before + 1)
            return at_once

        def generate() -> None:
            SystemClock().wait(threading.Event(), 2 * LINGER_S)

        until(sent_at_once, generate)  # Once a linger has held one, and ended.
        assert all(sent_at_once() for _ in range(5))

        before = len(records_of(broker, layout))
        for _ in range(3):  # Soon after one another: the next linger holds them all.
            producer.publish(example_id="ex", **sampled())
        until(lambda: len(records_of(broker, layout)) > before)
        *_, last = records_of(broker, layout)
        assert decode_record(last.value).count == 3
