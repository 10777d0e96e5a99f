"""A small run in memory: its policy gets better by the step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rollstream.consumers import InlineExecutor, Sealer, create_deployment
from rollstream.producers import RolloutProducer
from rollstream.runtime.clock import ManualClock
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.sampler import Batch, Sampler
from rollstream.store import MemoryBlobs
from rollstream.streams.memory import MemoryBroker

STEPS = 8
GROUPS = 4
GROUP_SIZE = 8
CONFIG = RollstreamConfig.model_validate(
    {
        "kafka": {"bootstrap": "in-memory:0"},
        "store": {"root": "file:///in-memory"},
        "environments": {"math": {"partitions": 1, "flush_interval_s": 0.0}},
        # One thread plays all parts, so nobody may wait for admission.
        "samplers": {"trainer-a": {"environments": ["math"], "admission": False}},
    }
)


def batches(steps: int = STEPS) -> Iterator[Batch]:
    """Yields the batch of each step. A step ends once the next batch is asked for."""
    clock, store, random = ManualClock(), MemoryBlobs(), np.random.default_rng(0)
    broker = MemoryBroker(clock=clock)
    create_deployment(CONFIG, broker=broker, store=store, clock=clock)
    with (
        RolloutProducer(environment="math", broker=broker, clock=clock) as producer,
        Sealer(CONFIG, broker=broker, store=store, clock=clock, workers=InlineExecutor()) as sealer,
        Sampler("trainer-a", config=CONFIG, broker=broker, store=store, clock=clock) as sampler,
    ):
        for step in range(sampler.resume(None), steps):
            sampler.publish_policy(step, policy_version=f"step-{step}")
            _sample(producer, random, solved=(step + 1) / (steps + 1))
            while sealer.stats().groups < GROUPS * (step + 1):
                sealer.step(Deadline(1.0, clock))
            batch = sampler.next_batch(step, num_groups=GROUPS, timeout_s=10.0)
            yield batch
            sampler.ack(batch)


def _sample(producer: RolloutProducer, random: np.random.Generator, solved: float) -> None:
    policy = producer.policy()
    for number in range(GROUPS):
        with producer.dispatch(
            example_id=f"{policy.step}-{number}", group_size=GROUP_SIZE
        ) as group:
            for _ in range(GROUP_SIZE):
                output = random.integers(100, size=random.integers(1, 64)).tolist()
                group.publish(
                    policy=policy,
                    prompt_tokens=[1, 2],
                    output_tokens=output,
                    logprobs=[-0.5] * len(output),
                    reward=float(random.random() < solved),
                )
    producer.flush()
