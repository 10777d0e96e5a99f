"""What rollouts of split ``eval`` earned, by the policy that sampled them. Pure."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rollstream.folds.scores.evaluated import Evaluated, Returns
from rollstream.folds.state import SamplerState
from rollstream.sampler.decide.command import Look, ResultContext, Unread

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
class AskEvaluations(Look[tuple[Evaluation, ...]]):
    """The table of evaluations; ``passing``: the least return that passes."""

    passing: float

    def result(self, state: SamplerState, context: ResultContext) -> Unread[tuple[Evaluation, ...]]:
        found = state.evaluated.items()
        return Unread(object(), lambda: tuple(self._evaluation(*one) for one in found), "computed")

    def _evaluation(self, key: Evaluated, examples: Mapping[str, Returns]) -> Evaluation:
        alike: defaultdict[int, list[str]] = defaultdict(list)  # By how many they have.
        for name, one in examples.items():
            alike[len(one.returns)].append(name)
        earned: dict[str, Earned] = {}
        for names in alike.values():
            earned.update(zip(names, self._earned([examples[one] for one in names]), strict=True))
        every = array("d", b"".join(one.returns for one in examples.values()))
        total = Returns(every, sum(one.awaited for one in examples.values()))
        (of_all,) = self._earned([total])
        return Evaluation(*key, of_all, {name: earned[name] for name in examples})

    def _earned(self, found: Sequence[Returns]) -> list[Earned]:
        """Of each, all of which have as many."""
        count = len(found[0].returns)
        if not count:
            return [Earned(0, one.awaited, None, None, None) for one in found]
        values = np.frombuffer(b"".join(one.returns for one in found)).reshape(-1, count)
        values = np.sort(values, axis=1)  # In whatever order they were sealed.
        passed = (values >= self.passing).mean(axis=1)
        figures = (values.mean(axis=1), values.std(axis=1), passed)
        columns = (column.tolist() for column in figures)
        return [Earned(count, one.awaited, *of) for one, *of in zip(found, *columns, strict=True)]
