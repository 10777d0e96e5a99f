"""What rollouts of split ``eval`` earned, by the policy that sampled them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rollstream.folds.state import SamplerState
from rollstream.sampler.decide.command import Command, ResultContext

PASSING = 1.0


@dataclass(frozen=True, slots=True)
class Earned:
    """What some trajectories earned. Figures are None if no reward is known.

    Attributes:
        trajectories: whose rewards are known. Each earned its return, the sum over its segments.
        awaited: trajectories of groups that wait for a reward.
        reward_mean: of the returns.
        reward_std: standard deviation of the returns; 0 of one.
        pass_rate: the share whose return is at least ``passing``.
    """

    trajectories: int
    awaited: int
    reward_mean: float | None
    reward_std: float | None
    pass_rate: float | None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What evaluation rollouts of one policy earned in one environment.

    Attributes:
        environment: of the rollouts.
        lineage: of the policy, as its rollouts name it.
        policy_epoch: counts the branches of the weights.
        weight_step: optimizer steps behind the weights; -1: not known. If the rollouts of a group
            differ, that of the oldest.
        policy_version: the weights' name; ``mixed`` if the rollouts of a group differ.
        total: of all trajectories.
        examples: the same by example id.
    """

    environment: str
    lineage: str
    policy_epoch: int
    weight_step: int
    policy_version: str
    total: Earned
    examples: Mapping[str, Earned]


@dataclass(frozen=True, slots=True, kw_only=True)
class AskEvaluations(Command[tuple[Evaluation, ...]]):
    """The table of evaluations; ``passing``: the least return that passes."""

    claims: ClassVar[bool] = False
    passing: float

    def result(self, state: SamplerState, context: ResultContext) -> tuple[Evaluation, ...]:
        found = []
        for key, examples in state.evaluated.items():
            returns = [one for returns, _ in examples.values() for one in returns]
            awaited = sum(awaited for _, awaited in examples.values())
            by_example = {name: self._earned(*one) for name, one in examples.items()}
            found.append(Evaluation(*key, self._earned(returns, awaited), by_example))
        return tuple(found)

    def _earned(self, returns: Sequence[float], awaited: int) -> Earned:
        if not returns:
            return Earned(0, awaited, None, None, None)
        values = np.sort(np.asarray(returns, np.float64))  # In whatever order they were sealed.
        passed = float((values >= self.passing).mean())
        return Earned(len(values), awaited, float(values.mean()), float(values.std()), passed)
