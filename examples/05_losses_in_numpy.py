"""What a loss needs is in the batch: GRPO as it is trained today, in NumPy, with its gradient.

Token-normalised, with clip-higher and without a KL term (DAPO, Yu et al. 2025, arXiv:2503.14476),
and with truncated importance weights for what the generator's probabilities differ from the
trainer's (Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL
training"). TRL has it as ``loss_type="dapo"`` with ``beta=0``.

    python examples/05_losses_in_numpy.py
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollstream.consumers import InlineExecutor, Sealer, create_deployment
from rollstream.producers import RolloutProducer
from rollstream.runtime.clock import ManualClock
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.sampler import Batch, Examples, Sampler
from rollstream.store import MemoryBlobs
from rollstream.streams.memory import MemoryBroker

CLIP_LOW, CLIP_HIGH = 0.2, 0.28
WEIGHT_MAX = 2.0
STEP = 1e-6  # Of the finite differences.


class Loss(NamedTuple):
    """A loss, and its gradient float64 [total] with respect to the trainer's log-probs.

    ``clipped`` is the share of the tokens that the loss counts whose gradient the clip took.
    """

    value: float
    gradient: NDArray[np.float64]
    clipped: float


def grpo_loss(
    examples: Examples,
    log_probs: NDArray[np.floating],
    old_log_probs: NDArray[np.floating],
    *,
    clip_low: float = CLIP_LOW,
    clip_high: float = CLIP_HIGH,
    weight_max: float = WEIGHT_MAX,
) -> Loss:
    """The mean over all tokens that the loss counts, of all examples together, of

    ``-weight * min(ratio * advantage, clip(ratio, 1 - clip_low, 1 + clip_high) * advantage)``

    where ``ratio`` is between the trainer's probabilities now and when the step began, and
    ``weight`` between these and the generator's, at most ``weight_max`` and without a gradient; 1
    at tokens that were published without log-probs.

    Args:
        log_probs: float [total], of the examples' tokens under the weights now. Values where
            ``loss_mask`` is False are not read.
        old_log_probs: float [total], likewise under the weights when the step began.
    """
    counted = np.flatnonzero(examples.loss_mask)
    old = old_log_probs[counted].astype(np.float64)
    ratio = np.exp(log_probs[counted] - old)
    advantage = examples.advantages[counted].astype(np.float64)
    weight = np.minimum(np.exp(old - examples.generator_log_probs[counted]), weight_max)
    weight[np.isnan(weight)] = 1.0

    clipped_ratio = np.clip(ratio, 1 - clip_low, 1 + clip_high)
    free, clipped = ratio * advantage, clipped_ratio * advantage
    tokens = max(len(counted), 1)
    gradient = np.zeros(len(examples.tokens))
    # Where the clipped one is less, it is a constant; of ratio the derivative is ratio itself.
    gradient[counted] = np.where(free <= clipped, -weight * free / tokens, 0.0)
    value = -(weight * np.minimum(free, clipped)).sum() / tokens
    return Loss(float(value), gradient, float((free > clipped).sum() / tokens))


def a_batch() -> Batch:
    """Two groups of four rollouts, published, sealed and served in this process."""
    config = RollstreamConfig.model_validate(
        {
            "kafka": {"bootstrap": "in-memory:0"},
            "store": {"root": "file:///in-memory"},
            "environments": {"digits": {"partitions": 1, "flush_interval_s": 0.0}},
            "samplers": {"trainer-a": {"environments": ["digits"], "admission": False}},
        }
    )
    random, clock = np.random.default_rng(0), ManualClock()
    broker, store = MemoryBroker(clock=clock), MemoryBlobs()
    create_deployment(config, broker=broker, store=store, clock=clock)
    with (
        RolloutProducer(environment="digits", broker=broker, clock=clock) as producer,
        Sealer(config, broker=broker, store=store, clock=clock, workers=InlineExecutor()) as sealer,
        Sampler("trainer-a", config=config, broker=broker, store=store, clock=clock) as sampler,
    ):
        step = sampler.resume(None)
        policy = sampler.publish_policy(step, policy_version="step-0")
        for problem in ("1+1", "2+5"):
            with producer.dispatch(example_id=problem, group_size=4) as group:
                for _ in range(4):
                    length = int(random.integers(2, 6))
                    group.publish(
                        policy=policy,
                        prompt_tokens=[1, 2, 3],
                        output_tokens=random.integers(10, size=length),
                        logprobs=-random.uniform(0.1, 3.0, size=length),
                        reward=float(random.integers(2)),
                    )
        producer.flush()
        while sealer.stats().groups < 2:
            sealer.step(Deadline(1.0, clock))
        return sampler.next_batch(step, num_groups=2, timeout_s=10.0)


def main() -> None:
    examples = Examples.of(a_batch(), "grpo")
    # A model would compute both from the tokens; here they lie around the generator's.
    random = np.random.default_rng(1)
    old = examples.generator_log_probs + random.normal(0.0, 0.5, len(examples.tokens))
    now = old + random.normal(0.0, 0.6, len(examples.tokens))
    loss = grpo_loss(examples, now, old)
    print(f"loss {loss.value:.4f}, {loss.clipped:.0%} of the tokens clipped")

    differences = np.empty(len(now))
    for token in range(len(now)):
        moved = STEP * (np.arange(len(now)) == token)
        above, below = (grpo_loss(examples, now + side * moved, old).value for side in (1, -1))
        differences[token] = (above - below) / (2 * STEP)
    error = np.abs(differences - loss.gradient).max() / np.abs(loss.gradient).max()
    print(f"gradient as finite differences have it: {bool(error < 1e-6)}")


if __name__ == "__main__":
    main()
