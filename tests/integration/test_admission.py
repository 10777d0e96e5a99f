"""Env workers, a sealer and a trainer: who generates faster than is trained waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from harness.brokers import TIMEOUT_S, until
from rollstream.consumers import InlineExecutor, Sealer, create_deployment
from rollstream.producers import ProducerClosed, RolloutProducer
from rollstream.runtime.clock import SystemClock
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.sampler import Sampler
from rollstream.store import open_store
from rollstream.streams.memory import MemoryBroker

GROUPS = 4  # A step.
LAG = 2  # Steps that generation may be ahead: the default.
STEPS = 4


@contextmanager
def running(body: Callable[[threading.Event], None], count: int = 1) -> Iterator[None]:
    """Threads that do it until the block ends."""
    stopping = threading.Event()
    threads = [threading.Thread(target=body, args=(stopping,)) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopping.set()
        for thread in threads:
            thread.join()


@pytest.mark.proves("F5")
def test_workers_that_are_faster_begin_no_more_than_the_trainer_can_use(tmp_path: Path) -> None:
    broker, store = MemoryBroker(), open_store(tmp_path.as_uri())
    config = RollstreamConfig.model_validate(
        {
            "kafka": {"bootstrap": "in-memory:0"},
            "store": {"root": tmp_path.as_uri()},
            "environments": {"math": {"partitions": 2, "flush_interval_s": 0.0}},
            "samplers": {"a": {"environments": ["math"], "groups_per_step": GROUPS}},
        }
    )
    create_deployment(config, broker=broker, store=store, clock=SystemClock())
    begun = [0]
    lock = threading.Lock()

    def have_begun(groups: int) -> bool:
        return begun[0] >= groups

    def seal(stopping: threading.Event) -> None:
        with Sealer(config, broker=broker, store=store, workers=InlineExecutor()) as sealer:
            while not stopping.is_set():
                sealer.step(Deadline(0.1))

    def work(stopping: threading.Event) -> None:
        with suppress(ProducerClosed):
            while not stopping.is_set():
                with producer.dispatch(example_id="ex", group_size=1) as group:
                    policy = producer.policy(timeout_s=TIMEOUT_S)  # The newest, after the wait.
                    with lock:
                        begun[0] += 1
                    group.publish(policy=policy, output_tokens=[1], logprobs=[-0.1], reward=1.0)

    with (
        Sampler("a", config=config, broker=broker, store=store) as sampler,
        running(seal),
        RolloutProducer(environment="math", broker=broker) as producer,
    ):
        step = sampler.resume(None)
        sampler.publish_policy(step, policy_version="step-0")
        producer.policy(timeout_s=TIMEOUT_S)  # Workers have nothing to do before.
        with running(work, 3):
            try:
                for step in range(STEPS):
                    allowed = GROUPS * (step + 1 + LAG)
                    until(partial(have_begun, allowed))
                    batch = sampler.next_batch(step, GROUPS, timeout_s=TIMEOUT_S)
                    assert begun[0] == allowed
                    # One more where a group began between an ack and the next policy.
                    assert batch.metrics()["lag/max"] <= LAG + 1
                    sampler.ack(batch)
                    sampler.publish_policy(step + 1, policy_version=f"step-{step + 1}")
            finally:
                producer.close()  # Ends the workers' waits.
