"""Which rollouts of many rows come first: the worst, the best, the longest. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Order = Literal["lowest_reward", "highest_reward", "longest"]


class RankedRows(NamedTuple):
    """Rollouts, each of one row or of several that follow one another.

    Attributes:
        starts: int64 [n], the first row of each. rows: int64 [n], how many.
        rewards: float64 [n], the sum over its segments; NaN where it is awaited.
        tokens: int64 [n], output tokens of all its segments.
    """

    starts: NDArray[np.int64]
    rows: NDArray[np.int64]
    rewards: NDArray[np.float64]
    tokens: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        segment_idxs: NDArray[np.int32],
        rewards: NDArray[np.float64],
        token_counts: NDArray[np.int32],
    ) -> RankedRows:
        """The rollouts of these rows, one value a row: one begins with each segment 0."""
        begins = segment_idxs == 0
        begins[:1] = True
        starts = np.flatnonzero(begins)
        rows = np.diff(starts, append=len(begins))
        if len(starts) == len(begins):  # As of most files: a row each.
            return cls(starts, rows, rewards, token_counts.astype(np.int64))
        returns = np.add.reduceat(np.nan_to_num(rewards), starts)
        # What a trajectory earned at its end is every earlier segment's.
        returns[np.isnan(rewards[starts + rows - 1])] = np.nan
        return cls(starts, rows, returns, np.add.reduceat(token_counts.astype(np.int64), starts))

    def first(self, order: Order, count: int, among: NDArray[np.bool_]) -> NDArray[np.intp]:
        """Indexes of the ``count`` that come first, of those ``among``; of equal rewards the
        longest comes first, of equal lengths the lowest reward. Those whose reward is awaited are
        not ranked by it."""
        if order != "longest":
            among = among & ~np.isnan(self.rewards)
        rewards = -self.rewards if order == "highest_reward" else self.rewards
        keys = (rewards, -self.tokens) if order == "longest" else (-self.tokens, rewards)
        return first_by(keys, np.flatnonzero(among), count)


def first_by(
    keys: Sequence[NDArray[Any]], indexes: NDArray[np.intp], count: int
) -> NDArray[np.intp]:
    """The ``count`` of these indexes that come first, the lowest one first, by keys of which the
    last counts most; equal ones stay in their order."""
    first = keys[-1][indexes]
    if count < len(indexes):  # Of most nothing is looked at but this key.
        indexes = indexes[first <= np.partition(first, count - 1)[count - 1]]
    return indexes[np.lexsort([key[indexes] for key in keys])][:count]


def rank_of(order: Order, reward: float, tokens: int) -> tuple[float, float]:
    """By which rollouts of several files are compared; the lowest comes first."""
    if order == "longest":
        return (-tokens, np.inf if np.isnan(reward) else reward)
    return (-reward if order == "highest_reward" else reward, -tokens)
