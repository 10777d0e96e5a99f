"""The trainer: batches in, GRPO steps, new weights out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from examples.demo import settings
from examples.demo.history import History, StepSeen
from examples.demo.learner import Learner
from examples.demo.policy import Policy
from examples.demo.tasks import TASK_NAMES
from examples.demo.weights import save, version_of
from rollstream.runtime.clock import Clock
from rollstream.sampler import Batch, SamplerClient


class Trainer:
    """One run, from weights 0 until the goal is reached.

    ``before_step`` is called with each step and may kill processes; ``after_step`` with what was
    seen of it. Weights are saved in the folder ``weights``.
    """

    def __init__(
        self,
        sampler: SamplerClient,
        weights: Path,
        checkpoint: Path,
        *,
        clock: Clock,
        before_step: Callable[[int], None],
        after_step: Callable[[StepSeen], None],
    ) -> None:
        self._sampler = sampler
        self._weights = weights
        self._checkpoint = checkpoint
        self._clock = clock
        self._before_step = before_step
        self._after_step = after_step
        self.history = History()

    def run(self) -> History:
        """Trains until the goal, the step limit or the time limit is reached."""
        learner = Learner(Policy.initial(settings.SEED))
        step = self._sampler.resume(None)
        self._publish(step, learner.policy)
        begun_s = self._clock.monotonic_s()
        while step < settings.STEPS_MAX:
            self._before_step(step)
            batch = self._sampler.next_batch(
                step, num_groups=settings.BATCH_GROUPS, timeout_s=settings.BATCH_TIMEOUT_S
            )
            _update(learner, batch)
            self._sampler.ack(batch)
            self._publish(step + 1, learner.policy)
            if (step + 1) % settings.CHECKPOINT_EVERY == 0:
                self._checkpoint.write_bytes(learner.policy.to_bytes())
                self._sampler.checkpointed(step)
            elapsed_s = self._clock.monotonic_s() - begun_s
            seen = _seen(step, elapsed_s, batch)
            self.history.steps.append(seen)
            self._after_step(seen)
            step += 1
            done = self.history.reached(TASK_NAMES, settings.REWARD_GOAL)
            if done or elapsed_s > settings.TIME_LIMIT_S:
                break
        self._checkpoint.write_bytes(learner.policy.to_bytes())
        self._sampler.checkpointed(step - 1)
        return self.history

    def _publish(self, step: int, policy: Policy) -> None:
        """Weights first, then their policy: whoever is told of it finds them."""
        path = save(self._weights, step, policy)
        self._sampler.publish_policy(step, policy_version=version_of(step), weights=path)


def _update(learner: Learner, batch: Batch) -> Mapping[str, float]:
    return learner.update(
        tokens=batch.tokens,
        offsets=batch.offsets,
        prompt_lengths=batch.prompt_lengths,
        loss_mask=batch.loss_mask,
        logprobs=batch.logprobs,
        rewards=batch.rewards,
        group_index=batch.group_index,
    )


def _seen(step: int, elapsed_s: float, batch: Batch) -> StepSeen:
    figures = batch.metrics()
    return StepSeen(
        step=step,
        elapsed_s=elapsed_s,
        rewards={name: figures[f"reward/{name}"] for name in sorted(set(batch.environments))},
        lag_mean=figures["lag/mean"],
        lag_max=int(figures["lag/max"]),
        groups_ready=int(figures["groups_ready"]),
        rollouts=batch.num_trajectories,
    )
