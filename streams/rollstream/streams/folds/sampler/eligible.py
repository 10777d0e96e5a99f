"""The rule which groups will never be served: stale, or off the branch. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rollstream.schemas.order import Branch, PolicyRef, off_branch, policy_lag
from rollstream.schemas.reasons import DropReason

Accept = Literal["nonzero_std"]


def dropped_for(
    policies: Sequence[PolicyRef],
    newest: PolicyRef,
    branches: Sequence[Branch],
    max_policy_lag: int | None,
) -> DropReason | None:
    """Returns why groups of these policies will never be served; None where they may be.

    A group is as stale as its oldest member, and off the branch if any member is.
    """
    if any(off_branch(policy, branches) for policy in policies):
        return DropReason.OFF_BRANCH
    if max_policy_lag is not None:
        lags = (policy_lag(newest, policy) for policy in policies)
        if any(lag is not None and lag > max_policy_lag for lag in lags):
            return DropReason.STALE
    return None
