"""A verifier that gives rewards after the rollouts were sealed, and dies in the middle: no Kafka.

Env workers publish guesses without a reward. The verifier reads sealed groups and scores each as a
whole. Its first life ends before it commits, so its successor scores the same groups again, with
other results: for one `attempt` the first score counts.

    python examples/04_score_rewards_late.py
"""

from __future__ import annotations

import numpy as np

from rollstream.consumers import InlineExecutor, SealedGroups, Sealer, create_deployment
from rollstream.producers import RolloutProducer, ScoreProducer
from rollstream.runtime.clock import ManualClock
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.sampler import Sampler
from rollstream.store import MemoryBlobs
from rollstream.streams.memory import MemoryBroker

PROBLEMS = ("1+1", "2+5", "9-6")
GROUP_SIZE = 4
# In a file of its own, both would read the same `rollstream.toml`.
CONFIG = RollstreamConfig.model_validate(
    {
        "kafka": {"bootstrap": "in-memory:0"},
        "store": {"root": "file:///in-memory"},
        "environments": {"digits": {"partitions": 1, "target_group_size": GROUP_SIZE}},
        "samplers": {"trainer-a": {"environments": ["digits"]}},
    }
)


def guess(producer: RolloutProducer, random: np.random.Generator) -> None:
    """What an env worker does."""
    for problem in PROBLEMS:
        with producer.dispatch(example_id=problem, group_size=GROUP_SIZE) as group:
            for answer in random.integers(10, size=GROUP_SIZE):
                group.publish(
                    policy_version="step-0",
                    weight_step=0,
                    prompt_tokens=[0],
                    output_tokens=[int(answer)],
                    logprobs=[-2.3],
                    reward=None,
                )
    producer.flush()


def verify(groups: SealedGroups, scores: ScoreProducer, mood: float, *, commit: bool) -> int:
    """What a verifier does; returns how many groups it scored. Its verdicts depend on its mood."""
    scored = 0
    while found := groups.poll(timeout_s=1.0):
        for group in found:
            rewards = {
                rollout.rollout_uid: mood + float(rollout.output_tokens[0] % 2)
                for rollout in group.rollouts
            }
            scores.upsert_scores(group.id, rewards, attempt="1")
        scores.flush()  # First the scores are in the log; then they are done with.
        if commit:
            groups.commit()
        scored += len(found)
    return scored


def main() -> None:
    clock = ManualClock()
    broker = MemoryBroker(clock=clock)
    store = MemoryBlobs()
    create_deployment(CONFIG, broker=broker, store=store, clock=clock)
    with (
        RolloutProducer(environment="digits", broker=broker, clock=clock) as producer,
        Sealer(CONFIG, broker=broker, store=store, clock=clock, workers=InlineExecutor()) as sealer,
    ):
        guess(producer, np.random.default_rng(0))
        while sealer.stats().groups < len(PROBLEMS):
            sealer.step(Deadline(1.0, clock))
    for life, mood in enumerate((0.0, 100.0), start=1):
        with (
            SealedGroups(
                "parity", ["digits"], config=CONFIG, broker=broker, store=store, clock=clock
            ) as groups,
            ScoreProducer(
                environment="digits", scorer="parity", broker=broker, clock=clock
            ) as scores,
        ):
            scored = verify(groups, scores, mood, commit=life > 1)
            print(f"life {life} of the verifier scored {scored} groups")
    with Sampler("trainer-a", config=CONFIG, broker=broker, store=store, clock=clock) as sampler:
        sampler.resume(None)
        batch = sampler.next_batch(0, num_groups=len(PROBLEMS), timeout_s=10.0)
        waiting = sampler.stats().waiting
    print(f"rewards of the batch: {sorted(set(batch.rewards.tolist()))}; {waiting} groups wait")


if __name__ == "__main__":
    main()
