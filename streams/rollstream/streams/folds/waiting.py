"""Which sealed groups cannot be served as they are: samplers and status ask the same rule. Pure."""

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
    """Why the group cannot be served as it is, whatever the policy; None: it can.

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
    """What a trajectory earned is often known at its last segment only; the earlier ones have it
    too. A last segment without a reward waits for its score."""
    missing = np.flatnonzero(np.isnan(segments.rewards))
    if not missing.size or not segments.segment_idxs.any():
        return segments
    rewards, uids = segments.rewards.copy(), segments.uids
    for row in missing[::-1].tolist():  # A member's rows lie together, in the order of segments.
        if row + 1 < len(uids) and uids[row + 1] == uids[row]:
            rewards[row] = rewards[row + 1]
    return replace(segments, rewards=rewards)
