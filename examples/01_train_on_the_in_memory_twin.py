"""A whole training run in one process: no Kafka, no disk, no waiting.

Logs and files are in memory and the clock is ours, so your own loop can be tested like this. The
policy guesses a digit for each of three problems and learns which one is right.

    python examples/01_train_on_the_in_memory_twin.py
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rollstream.consumers import InlineExecutor, Sealer, create_deployment
from rollstream.producers import RolloutProducer
from rollstream.runtime.clock import ManualClock
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.sampler import Batch, Sampler
from rollstream.store import MemoryBlobs
from rollstream.streams.memory import MemoryBroker

ANSWERS = {"1+1": 2, "2+5": 7, "9-6": 3}
PROBLEMS = list(ANSWERS)
GROUP_SIZE = 16
STEPS = 40
LEARNING_RATE = 8.0

# The same models that rollstream.toml is read into; the addresses are never used here.
CONFIG = RollstreamConfig.model_validate(
    {
        "kafka": {"bootstrap": "in-memory:0"},
        "store": {"root": "file:///in-memory"},
        "environments": {"digits": {"partitions": 1, "flush_interval_s": 0.0}},
        # One thread plays all parts: nobody would seal, or train, while a dispatch waits.
        "samplers": {"trainer-a": {"environments": ["digits"], "admission": False}},
    }
)


def sample(
    logits: NDArray[np.float64], producer: RolloutProducer, random: np.random.Generator
) -> None:
    """What an env worker does: a group of guesses for every problem, with the newest policy. Its
    weights are in this process; elsewhere ``policy.weights`` would say where they are."""
    policy = producer.policy()
    for row, problem in enumerate(PROBLEMS):
        probabilities = softmax(logits[row])
        with producer.dispatch(example_id=problem, group_size=GROUP_SIZE) as group:
            for guess in random.choice(10, size=GROUP_SIZE, p=probabilities):
                group.publish(
                    policy=policy,
                    prompt_tokens=[row],
                    output_tokens=[int(guess)],
                    logprobs=[float(np.log(probabilities[guess]))],
                    reward=float(guess == ANSWERS[problem]),
                )
    producer.flush()


def learn(logits: NDArray[np.float64], batch: Batch) -> None:
    """One policy gradient step; a rollout's advantage is its return less its group's mean.

    By trajectory, so that it holds for rollouts of several turns, too.
    """
    groups = np.empty(batch.num_trajectories, np.int64)
    groups[batch.trajectory_index] = batch.group_index
    means = np.bincount(groups, batch.trajectory_returns) / np.bincount(groups)
    advantages = (batch.trajectory_returns - means[groups])[batch.trajectory_index]
    prompts = batch.tokens[batch.offsets[:-1]]
    guesses = batch.tokens[batch.offsets[1:] - 1]
    for row, guess, advantage in zip(prompts, guesses, advantages, strict=True):
        gradient = -softmax(logits[row])
        gradient[guess] += 1.0
        logits[row] += LEARNING_RATE / batch.num_trajectories * advantage * gradient


def softmax(values: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(values - values.max())
    result: NDArray[np.float64] = weights / weights.sum()
    return result


def main() -> None:
    random = np.random.default_rng(0)
    clock = ManualClock()
    broker = MemoryBroker(clock=clock)
    store = MemoryBlobs()
    create_deployment(CONFIG, broker=broker, store=store, clock=clock)

    logits = np.zeros((len(PROBLEMS), 10))
    rewards = []
    with (
        RolloutProducer(environment="digits", broker=broker, clock=clock) as producer,
        # Without threads everything that a sealer does happens within `step`.
        Sealer(CONFIG, broker=broker, store=store, clock=clock, workers=InlineExecutor()) as sealer,
        Sampler("trainer-a", config=CONFIG, broker=broker, store=store, clock=clock) as sampler,
    ):
        step = sampler.resume(None)  # None: a new run.
        sampler.publish_policy(step, policy_version=f"step-{step}")
        while step < STEPS:
            sample(logits, producer, random)
            # A turn does what there is to do at once; to join the group takes it the first ones.
            while sealer.stats().groups < len(PROBLEMS) * (step + 1):
                sealer.step(Deadline(1.0, clock))
            batch = sampler.next_batch(step, num_groups=len(PROBLEMS), timeout_s=10.0)
            learn(logits, batch)
            sampler.ack(batch)
            sampler.publish_policy(step + 1, policy_version=f"step-{step + 1}")
            sampler.checkpointed(step)  # Weights would be saved here.
            rewards.append(float(batch.trajectory_returns.mean()))
            step += 1
    print(f"mean reward of the first step {rewards[0]:.2f}, of the last {rewards[-1]:.2f}")


if __name__ == "__main__":
    main()
