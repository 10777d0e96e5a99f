"""Two trainers learn from the same rollouts, each with its own name, log, lineage and pace.

The first trains while env workers publish. The second begins when all is over, from the beginning:
it trains once more on what was recorded, with another algorithm. Neither takes a group from the
other, since each sampler decides in a log of its own.

    python examples/03_many_trainers_on_one_data_set.py
"""

from __future__ import annotations

import numpy as np

from rollstream.consumers import InlineExecutor, Sealer, create_deployment
from rollstream.producers import RolloutProducer
from rollstream.runtime.clock import ManualClock
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.sampler import Batch, Sampler
from rollstream.sampler.history import lineage_of_rollout
from rollstream.store import MemoryBlobs
from rollstream.streams.memory import MemoryBroker

CONFIG = RollstreamConfig.model_validate(
    {
        "kafka": {"bootstrap": "in-memory:0"},
        "store": {"root": "file:///in-memory"},
        "environments": {"math": {"partitions": 1, "flush_interval_s": 0.0}},
        "samplers": {
            # On policy: what the other model sampled is not for it.
            "trainer-a": {
                **{"environments": ["math"], "lineage": "policy-a", "max_policy_lag": 1},
                "admission": False,  # One thread plays all parts: nobody would seal meanwhile.
            },
            # Any rollout will do: no bound on the lag, so no lineage is kept out.
            "trainer-b": {
                **{"environments": ["math"], "lineage": "policy-b", "recency": "linear"},
                **{"max_policy_lag": -1, "capacity": 64},  # The oldest go, where more are ready.
                "admission": False,
            },
        },
    }
)
STEPS = 3
GROUPS_A_STEP = 2
CLOCK = ManualClock()
BROKER = MemoryBroker(clock=CLOCK)
STORE = MemoryBlobs()


def trainer(name: str) -> Sampler:
    return Sampler(name, config=CONFIG, broker=BROKER, store=STORE, clock=CLOCK)


def publish_and_seal() -> None:
    """What env workers with the newest weights and a sealer leave: two groups of two."""
    with RolloutProducer(environment="math", broker=BROKER, clock=CLOCK) as producer:
        policy = producer.policy()
        for number in range(GROUPS_A_STEP):
            example = f"problem-{policy.step}-{number}"
            with producer.dispatch(example_id=example, group_size=2) as group:
                for reward in (0.0, 1.0):
                    group.publish(
                        rollout_uid=f"{example}-{reward:.0f}",
                        policy=policy,
                        prompt_tokens=[1, 2],
                        output_tokens=[number, int(reward)],
                        logprobs=[-0.5, -0.7],
                        reward=reward,
                    )
    with Sealer(
        CONFIG, broker=BROKER, store=STORE, clock=CLOCK, workers=InlineExecutor()
    ) as sealer:
        while sealer.stats().groups < GROUPS_A_STEP:
            sealer.step(Deadline(1.0, CLOCK))


def policy_gradient(batch: Batch) -> float:
    """The first trainer's algorithm: every rollout, by its advantage over its group."""
    pairs = batch.trajectory_returns.reshape(-1, 2)
    return float(np.abs(pairs - pairs.mean(1, keepdims=True)).sum())


def best_of_group(batch: Batch) -> float:
    """The second one's: imitate the better rollout of each group."""
    return float(batch.trajectory_returns.reshape(-1, 2).max(1).sum())


def main() -> None:
    create_deployment(CONFIG, broker=BROKER, store=STORE, clock=CLOCK)
    with trainer("trainer-a") as first:
        step = first.resume(None)
        for _ in range(STEPS):
            first.publish_policy(step, policy_version=f"a-{step}")
            publish_and_seal()
            batch = first.next_batch(step, GROUPS_A_STEP)
            print(f"trainer-a, step {step}: {policy_gradient(batch):.0f} of advantage")
            first.ack(batch)
            first.checkpointed(step)
            step += 1

    with trainer("trainer-b") as second:
        step = second.resume(None)
        recorded = second.stats().ready["math"]
        print(f"trainer-b begins: {recorded} groups were recorded, and all are ready for it")
        batch = second.next_batch(step, recorded)  # Its own pace: all of them in one step.
        print(f"trainer-b, step {step}: imitates {best_of_group(batch):.0f} rollouts")
        second.ack(batch)
        second.checkpointed(step)

    uid = "problem-2-0-1"
    (lineage,) = lineage_of_rollout(uid, config=CONFIG, broker=BROKER, clock=CLOCK)
    for one in lineage.samplers:
        for use in one.uses:
            print(f"{uid}: {use.state} in step {use.step} of {one.sampler}")


if __name__ == "__main__":
    main()
