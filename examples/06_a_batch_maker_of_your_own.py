"""A batch maker of your own: of each group the best and the worst rollout alone.

A few rollouts of a group that differ most teach nearly as much as all of them ("Not all rollouts
are useful", Xu et al. 2025, arXiv:2504.13818). A maker knows rewards and lengths but no tokens;
what it does not train on, it keeps for later steps or leaves out, and that is counted.

    python examples/06_a_batch_maker_of_your_own.py
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from rollstream.consumers import InlineExecutor, Sealer, create_deployment
from rollstream.producers import RolloutProducer
from rollstream.runtime.clock import ManualClock
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.sampler import (
    BatchMaker,
    MadeBatch,
    Sampler,
    TrainingBatches,
    advantages_of,
)
from rollstream.store import MemoryBlobs
from rollstream.streams.memory import MemoryBroker


class BestAndWorst(BatchMaker):
    """Advantages are those among the whole group."""

    @property
    def settings(self) -> Mapping[str, object]:
        return {"maker": "best_and_worst", "version": 1}

    def create_batch(self, batch_size: int) -> MadeBatch:
        of_group = defaultdict(list)
        for index, rollout in enumerate(self.rollouts):
            if not rollout.used:
                of_group[rollout.group].append((rollout.reward, index))
        pairs = [(min(of)[1], max(of)[1]) for of in of_group.values() if min(of)[0] < max(of)[0]]
        trained = [index for pair in pairs[: batch_size // 2] for index in pair]
        rewards, groups = [r.reward for r in self.rollouts], [r.group for r in self.rollouts]
        return MadeBatch.of(self.rollouts, advantages_of(rewards, groups), trained=trained)


def main() -> None:
    config = RollstreamConfig.model_validate(
        {
            "kafka": {"bootstrap": "in-memory:0"},
            "store": {"root": "file:///in-memory"},
            "environments": {"digits": {"partitions": 1, "flush_interval_s": 0.0}},
            "samplers": {"trainer-a": {"environments": ["digits"], "admission": False}},
        }
    )
    clock = ManualClock()
    broker, store = MemoryBroker(clock=clock), MemoryBlobs()
    create_deployment(config, broker=broker, store=store, clock=clock)
    earned = {
        "1+1": (0.0, 0.5, 1.0, 0.75),
        "2+5": (1.0, 1.0, 1.0, 1.0),
        "9-6": (0.0, 0.0, 1.0, 0.0),
    }
    with (
        RolloutProducer(environment="digits", broker=broker, clock=clock) as producer,
        Sealer(config, broker=broker, store=store, clock=clock, workers=InlineExecutor()) as sealer,
        Sampler("trainer-a", config=config, broker=broker, store=store, clock=clock) as sampler,
    ):
        step = sampler.resume(None)
        policy = sampler.publish_policy(step, policy_version="step-0")
        for problem, rewards in earned.items():
            with producer.dispatch(example_id=problem, group_size=len(rewards)) as group:
                for reward in rewards:
                    group.publish(
                        policy=policy, prompt_tokens=[1, 2], output_tokens=[3], reward=reward
                    )
        producer.flush()
        while sealer.stats().groups < len(earned):
            sealer.step(Deadline(1.0, clock))
        batches = TrainingBatches(sampler, BestAndWorst(), num_groups=len(earned), batch_size=8)
        training = batches.next(step, timeout_s=10.0)
        for row, example in zip(training.examples.rows, training.examples, strict=True):
            print(f"{training.batch.example_ids[row]}: advantage {example.advantage[-1]:+.2f}")
        print(f"left out {training.made.filtered}")
        batches.ack(training)
        sampler.publish_policy(step + 1, policy_version="step-1")
        sampler.checkpointed(step)


if __name__ == "__main__":
    main()
