"""The rule which sealed groups cannot be served as they are. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from rollstream.schemas.events import SealedGroup, SealedSegments
from rollstream.schemas.order import UNKNOWN_STEP

TRAIN = "train"
Waits = Literal["eval", "reward", "weight_step", "lineage"]


def waits_for(
    group: SealedGroup, *, has_rewards: bool, lineage: str, max_policy_lag: int | None
) -> Waits | None:
    """Returns why the group cannot be served as it is, whatever the policy; None where it can.

    ``eval`` never ends; the others may.

    Args:
        group: as it was sealed; its ``weight_step`` is unknown where that of any member is.
        has_rewards: no member's reward is awaited.
        lineage: of the sampler's trainer.
        max_policy_lag: the sampler's; None: no limit.
    """
    if group.split != TRAIN:
        return "eval"
    if not has_rewards:
        return "reward"
    if max_policy_lag is not None:
        if group.weight_step == UNKNOWN_STEP:
            return "weight_step"
        if group.lineage != lineage:
            return "lineage"
    return None


def with_trajectories_rewarded(segments: SealedSegments) -> SealedSegments:
    """Gives segments without a reward that of the next segment of their trajectory.

    A reward is often known at a trajectory's last segment only. Where that has none, none is given.
    """
    missing = np.flatnonzero(np.isnan(segments.rewards))
    if not missing.size or not segments.segment_idxs.any():
        return segments
    rewards, uids = segments.rewards.copy(), segments.uids
    for row in missing[::-1].tolist():  # A member's rows lie together, in the order of segments.
        if row + 1 < len(uids) and uids[row + 1] == uids[row]:
            rewards[row] = rewards[row + 1]
    return replace(segments, rewards=rewards)
