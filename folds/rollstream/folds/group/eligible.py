"""The rules which sealed groups cannot be served: not as they are, or never. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rollstream.folds.group.earned import mean_of
from rollstream.folds.group.known import KnownGroup
from rollstream.folds.group.scored import served_scores
from rollstream.schemas.choosing import Choosing
from rollstream.schemas.order import UNKNOWN_STEP, Branch, PolicyRef, off_branch, policy_lag
from rollstream.schemas.reasons import DropReason

Accept = Literal["nonzero_std"]
Waits = Literal["eval", "reward", "lineage"]
Stand = Waits | Literal["ready", "filtered"]


def stand_of(known: KnownGroup, choosing: Choosing) -> Stand:
    """Whether the group may be served, or is dropped for what it earned, or what it waits for,
    whatever the policy.

    ``eval`` never ends; the others may. With a limit in steps, of groups or of rollouts, a group of
    another lineage waits: its steps say nothing about its age. One whose weight step is not known
    does not wait, but is dropped.
    """
    if not known.is_train:
        return "eval"
    if not known.has_rewards:
        return "reward"
    if (
        choosing.bounds_lag
        and known.group.weight_step != UNKNOWN_STEP
        and known.group.lineage != choosing.lineage
    ):
        return "lineage"
    return "filtered" if _is_filtered(known, choosing) else "ready"


def _is_filtered(known: KnownGroup, choosing: Choosing) -> bool:
    """Whether its rollouts earned too little or too much on average, by their scores as far as they
    have any, or the flags of these keep it out; rollouts that are too old are among them."""
    if choosing.bounds_flags and _has_wrong_flags(known, choosing):
        return True
    if not choosing.bounds_reward:
        return False
    mean = mean_of(known.returns())
    low, high = choosing.min_mean_reward, choosing.max_mean_reward
    return (low is not None and mean < low) or (high is not None and mean > high)


def _has_wrong_flags(known: KnownGroup, choosing: Choosing) -> bool:
    flags = [{*score.flags} for score in served_scores(known, choosing)]
    if any(not one.isdisjoint(choosing.exclude_flags) for one in flags):
        return True
    if not choosing.require_flags:
        return False
    return len(flags) < len(known.returns()) or any(
        not one.issuperset(choosing.require_flags) for one in flags
    )


def dropped_for(
    policies: Sequence[PolicyRef],
    newest: PolicyRef,
    branches: Sequence[Branch],
    choosing: Choosing,
    oldest_step: int = UNKNOWN_STEP,
) -> DropReason | None:
    """Returns why groups of these policies will never be served; None where they may be.

    A group is as stale as its oldest member, and off the branch if any member is. Policies of
    another lineage than ``newest``, whose trainer made the branches, are neither. Its weight step
    is unknown where any member's is.

    Args:
        oldest_step: of the policies that ``recent_n_versions`` leaves.
    """
    if any(
        policy.lineage == newest.lineage and off_branch(policy, branches) for policy in policies
    ):
        return DropReason.OFF_BRANCH
    if choosing.bounds_lag and any(policy.step == UNKNOWN_STEP for policy in policies):
        return DropReason.NO_WEIGHT_STEP
    if choosing.max_policy_lag >= 0:
        lags = (policy_lag(newest, policy) for policy in policies)
        if any(lag is not None and lag > choosing.max_policy_lag for lag in lags):
            return DropReason.STALE
    if any(one.lineage == newest.lineage and one.step < oldest_step for one in policies):
        return DropReason.STALE
    return None
