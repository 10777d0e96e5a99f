"""``GrpoBatchMaker``: the newest policy of each problem, a reservoir of both signs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import SupportsIndex

import numpy as np
from numpy.typing import NDArray

from rollstream.sampler.arguments import at_least, whole_number
from rollstream.sampler.training.examples.advantages import Advantage, advantages_of
from rollstream.sampler.training.makers.interface import BatchMaker, MadeBatch
from rollstream.sampler.training.makers.reservoir import (
    RESERVOIR_FULL,
    RESERVOIR_SIZE,
    ages_of,
    newest_policies,
    of_both_signs,
    shuffled,
)
from rollstream.schemas.other_names import refuses


class GrpoBatchMaker(BatchMaker):
    """Trains on trajectories that did better or worse than their group, each at most once.

    - Advantages compare a trajectory with its group (``advantages_of``).
    - If a problem is here under several weights, only the newest groups are used. Older groups are
      filtered as ``older_policy``. A group is as new as its newest member. A later policy epoch is
      newer, whatever the step.
    - Groups without a signal are filtered: those with equal returns or one trajectory as
      ``all_equal``, and average trajectories as ``zero_advantage``.
    - If there is more than ``batch_size``, the batch has both signs in proportion, one of each at
      least. The rest is kept for later steps, at most ``reservoir_size`` trajectories. Beyond that
      the oldest weights leave first, as ``reservoir_full``.
    - The order is shuffled, as a function of seed and step.

    Args:
        seed: of the order.
        advantage: as in ``advantages_of``.
        reservoir_size: most trajectories that are kept; 0: none.
    """

    @refuses(rng_seed="seed")
    def __init__(
        self,
        *,
        seed: SupportsIndex = 0,
        advantage: Advantage = "rloo",
        reservoir_size: SupportsIndex = RESERVOIR_SIZE,
    ) -> None:
        advantages_of((), (), advantage)  # Refuses an unknown one before the first step.
        self._seed = whole_number("seed", seed)
        self._advantage = advantage
        self._reservoir_size = at_least("reservoir_size", reservoir_size, 0)

    @property
    def settings(self) -> Mapping[str, object]:
        """The maker's name, version and arguments."""
        return {
            "maker": "grpo",
            "version": 1,
            "seed": self._seed,
            "advantage": self._advantage,
            "reservoir_size": self._reservoir_size,
        }

    def create_batch(self, batch_size: int) -> MadeBatch:
        """Returns the batch of the step; see ``BatchMaker.create_batch``."""
        size = at_least("batch_size", batch_size, 0)
        rollouts = self.rollouts
        groups = np.array([rollout.group for rollout in rollouts], np.int64)
        open_ = np.array([not rollout.used for rollout in rollouts], np.bool_)
        returns = [rollout.reward for rollout in rollouts]
        advantages = advantages_of(returns, groups, self._advantage)
        differs = advantages != 0
        older = open_ & self._of_older_policies(groups)
        open_ &= ~older
        all_equal = open_ & (np.bincount(groups, differs)[groups] == 0)
        candidates = shuffled(self._seed, self.step, np.flatnonzero(open_ & differs).tolist())
        in_order = np.array(candidates, np.int64)
        chosen = of_both_signs(advantages[in_order], size)
        rest = in_order[~chosen].tolist()
        kept = newest_policies(rollouts, rest, self._reservoir_size)
        return MadeBatch.of(
            rollouts,
            advantages,
            trained=in_order[chosen],
            kept=kept,
            filtered={
                "older_policy": int(older.sum()),
                "all_equal": int(all_equal.sum()),
                "zero_advantage": int((open_ & ~differs & ~all_equal).sum()),
                RESERVOIR_FULL: len(rest) - len(kept),
            },
        )

    def _of_older_policies(self, groups: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Of each rollout, whether its problem has a group of newer weights."""
        problems = [(rollout.environment, rollout.example_id) for rollout in self.rollouts]
        numbers = {problem: number for number, problem in enumerate(dict.fromkeys(problems))}
        problem = np.fromiter(map(numbers.__getitem__, problems), np.int64, len(problems))
        age_of_group = np.zeros(int(groups.max(initial=-1)) + 1, np.int64)
        np.maximum.at(age_of_group, groups, ages_of(self.rollouts))
        ages = age_of_group[groups]
        newest = np.zeros(len(numbers), np.int64)
        np.maximum.at(newest, problem, ages)
        older: NDArray[np.bool_] = ages < newest[problem]
        return older
