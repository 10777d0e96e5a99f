"""The trainer: each prompt that is finished is a step of the optimizer, and a new policy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from examples.demo.history import History, StepSeen
from examples.multi_turn import settings
from examples.multi_turn.errors import NoPromptFinished
from examples.multi_turn.lake import ENVIRONMENT
from examples.multi_turn.learner import learn
from examples.multi_turn.policy import Policy
from rollstream.runtime.clock import Clock
from rollstream.sampler import PoolBatch, SamplerApi, TrajectoryPool


def train(
    sampler: SamplerApi, weights: Path, clock: Clock, after_step: Callable[[StepSeen], None]
) -> History:
    """Trains until the goal or the step limit is reached.

    Raises:
        NoPromptFinished: none came in time.
    """
    pool = TrajectoryPool(sampler, staleness_threshold=settings.STALENESS_THRESHOLD)
    pool.fetch_batch()  # From here on the pool is this process's; nobody has a policy yet.
    policy = Policy()
    history = History()
    begun_s = clock.monotonic_s()
    for step in range(settings.STEPS_MAX):
        path = policy.save(weights / f"step-{step}.npy")
        sampler.publish_policy(step, policy_version=f"step-{step}", weights=path)
        fetched = pool.fetch_batch(timeout_s=settings.FETCH_TIMEOUT_S)
        if fetched is None:
            raise NoPromptFinished(settings.FETCH_TIMEOUT_S)
        policy = learn(policy, fetched)
        history.steps.append(_seen(step, clock.monotonic_s() - begun_s, fetched))
        after_step(history.steps[-1])
        if history.recent_reward(ENVIRONMENT) >= settings.RETURN_GOAL:
            break
    pool.fetch_batch()  # Makes the last one final.
    return history


def _seen(step: int, elapsed_s: float, fetched: PoolBatch) -> StepSeen:
    figures = fetched.batch.metrics()
    return StepSeen(
        step=step,
        elapsed_s=elapsed_s,
        rewards={ENVIRONMENT: figures["reward/mean"]},
        lag_mean=figures["lag/mean"],
        lag_max=int(figures["lag/max"]),
        groups_ready=int(figures["groups_ready"]),
        rollouts=fetched.batch.num_trajectories,
    )
