"""What is kept for later steps, and what is chosen from it. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollstream.sampler.arguments import whole_number
from rollstream.sampler.errors import InvalidRequest
from rollstream.sampler.shaping.makers.interface import Rollout

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
    others; of the same, what was carried before what is new, and those behind."""
    return sorted(indices, key=lambda index: (-rollouts[index].weight_step, index))[:size]


def at_least(name: str, value: Any, lowest: int) -> int:
    """The value, which is a whole number no lower than that."""
    found = whole_number(name, value)
    if found < lowest:
        raise InvalidRequest(f"{name} is {found}; give {lowest} or more")
    return found
