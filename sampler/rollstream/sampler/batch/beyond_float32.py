"""Groups whose returns make advantages that float32 has no room for. Pure.

Each reward is refused beyond it where it is published, but the turns of a trajectory may earn more
in sum, and a group has differences of them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rollstream.sampler.batch.batch import Batch
from rollstream.schemas.rules import FLOAT32_MAX

BEYOND_FLOAT32 = "beyond_float32"
"""Why trajectories of such groups are filtered."""


def groups_beyond_float32(batch: Batch) -> NDArray[np.int64]:
    """int64 [g], indices in the batch of the groups of which a return is infinite in float32, or
    two are farther apart than its largest number: the difference to a mean of others is not."""
    returns = batch.trajectory_returns.astype(np.float64)
    if not returns.size or np.abs(returns).max() <= FLOAT32_MAX / 2:
        return np.empty(0, np.int64)
    groups = groups_of(batch)
    low, high = np.full((2, batch.num_groups), [[np.inf], [-np.inf]])
    np.minimum.at(low, groups, returns)
    np.maximum.at(high, groups, returns)
    # A return without an end counts as one too far: no difference to it has one.
    ends = np.isfinite(low) & np.isfinite(high)
    apart = np.subtract(high, low, out=np.full(len(low), np.inf), where=ends)
    return np.flatnonzero(apart > FLOAT32_MAX)


def groups_of(batch: Batch) -> NDArray[np.int32]:
    """int32 [m], of each trajectory the index of its group."""
    groups = np.zeros(batch.num_trajectories, np.int32)
    groups[batch.trajectory_index] = batch.group_index
    return groups


def named(batch: Batch, group: int) -> str:
    """A group of which ``groups_beyond_float32`` has the index: with its id, its slot, and that of
    its trajectories which earned most, either way."""
    mine = np.flatnonzero(groups_of(batch) == group)
    most = mine[np.argmax(np.abs(batch.trajectory_returns[mine]))]
    uid = batch.uids[int(np.flatnonzero(batch.trajectory_index == most)[0])]
    slot = batch.slots[group]
    earned = batch.trajectory_returns[most]
    return f"group {batch.sampled.group_ids[slot]} (slot {slot}), whose rollout {uid} has {earned}"
