"""The rules which sealed groups cannot be served: not as they are, or never. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rollstream.schemas.choosing import Choosing
from rollstream.schemas.order import UNKNOWN_STEP, Branch, PolicyRef, off_branch, policy_lag
from rollstream.schemas.reasons import DropReason
from rollstream.streams.folds.sampler.known import KnownGroup

Accept = Literal["nonzero_std"]
Waits = Literal["eval", "reward", "weight_step", "lineage"]


def waits_for(known: KnownGroup, choosing: Choosing) -> Waits | None:
    """Returns why the group cannot be served as it is, whatever the policy; None where it can.

    ``eval`` never ends; the others may. With a limit in steps, of groups or of rollouts, a group
    whose age is not known waits. Its weight step is unknown where any member's is.
    """
    if not known.is_train:
        return "eval"
    if not known.has_rewards:
        return "reward"
    if choosing.max_policy_lag is not None or choosing.max_rollout_step_delay >= 0:
        if known.group.weight_step == UNKNOWN_STEP:
            return "weight_step"
        if known.group.lineage != choosing.lineage:
            return "lineage"
    return None


def dropped_for(
    policies: Sequence[PolicyRef],
    newest: PolicyRef,
    branches: Sequence[Branch],
    max_policy_lag: int | None,
) -> DropReason | None:
    """Returns why groups of these policies will never be served; None where they may be.

    A group is as stale as its oldest member, and off the branch if any member is. Policies of
    another lineage than ``newest``, whose trainer made the branches, are neither.
    """
    if any(
        policy.lineage == newest.lineage and off_branch(policy, branches) for policy in policies
    ):
        return DropReason.OFF_BRANCH
    if max_policy_lag is not None:
        lags = (policy_lag(newest, policy) for policy in policies)
        if any(lag is not None and lag > max_policy_lag for lag in lags):
            return DropReason.STALE
    return None
