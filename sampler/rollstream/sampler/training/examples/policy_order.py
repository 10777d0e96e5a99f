"""Which of two policies is the newer one. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rollstream.sampler.batch.batch import Batch


def policy_ages(epochs: NDArray[np.integer], steps: NDArray[np.integer]) -> NDArray[np.int64]:
    """int64 [n]: of each policy how many of the distinct ones among these are older.

    What a later epoch made is newer than all before it, whatever its step: a resume went back, and
    step numbers came again. Within an epoch the higher step is newer, and one that is not known is
    older than every other. Policies are distinct by epoch and step; how producers name them has no
    part in it, since each may name them itself.
    """
    of_epochs, of_steps = (np.unique(one, return_inverse=True)[1] for one in (epochs, steps))
    return np.unique(of_epochs * len(steps) + of_steps, return_inverse=True)[1]


def telling_epochs(batch: Batch) -> NDArray[np.int32]:
    """int32 [n]: the policy epoch of each row, where the step was decided by rules to which weights
    of two epochs are two; else 0 of each."""
    return batch.policy_epochs if batch.algorithm >= 4 else np.zeros_like(batch.policy_epochs)
