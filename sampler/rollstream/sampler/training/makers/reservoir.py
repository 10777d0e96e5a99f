"""What is kept for later steps, and what is chosen from it. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from rollstream.sampler.training.examples.policy_order import policy_ages
from rollstream.sampler.training.makers.interface import Rollout

RESERVOIR_SIZE = 256
"""Trajectories that are kept for later steps: half a step of 64 groups of 8. Of each the whole
group is read again with every step."""
RESERVOIR_FULL = "reservoir_full"


def shuffled(seed: int, step: int, indices: Iterable[int]) -> list[int]:
    """The indices in an order that is a function of seed and step; NumPy's generators may give
    another one in a later version, which would not be the recorded step any more."""

    def drawn(index: int) -> bytes:
        return hashlib.blake2b(f"{seed}/{step}/{index}".encode(), digest_size=8).digest()

    return sorted(indices, key=drawn)


def of_both_signs(advantages: NDArray[np.float32], size: int) -> NDArray[np.bool_]:
    """The first ``size`` of these, bool [n], each sign in proportion to what there is, and at least
    one of each where there is one and ``size`` is no less than 2. None may be 0."""
    count, positive = len(advantages), advantages > 0
    there = int(positive.sum())
    if size >= count:
        return np.ones(count, np.bool_)
    take = (2 * there * size + count) // (2 * count)  # To the nearest; a half goes up.
    if 0 < there < count and size >= 2:
        take = min(max(take, 1), size - 1)
    return np.where(positive, positive.cumsum() <= take, (~positive).cumsum() <= size - take)


def newest_policies(rollouts: Sequence[Rollout], indices: Sequence[int], size: int) -> list[int]:
    """At most ``size`` of the indices: the oldest weights leave first, those not known before all
    others of their epoch; of the same, what was carried before what is new, and those behind."""
    ages, among = ages_of(rollouts), np.array(indices, np.int64)
    newest: list[int] = among[np.lexsort((among, -ages[among]))][:size].tolist()
    return newest


def ages_of(rollouts: Sequence[Rollout]) -> NDArray[np.int64]:
    """As ``policy_ages`` has them, of each."""
    epochs = np.array([rollout.policy_epoch for rollout in rollouts], np.int64)
    steps = np.array([rollout.weight_step for rollout in rollouts], np.int64)
    return policy_ages(epochs, steps)
