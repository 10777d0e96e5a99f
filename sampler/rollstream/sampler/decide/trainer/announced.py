"""What env workers are told of a state. Pure."""

from __future__ import annotations

import numpy as np

from rollstream.folds.published import Described
from rollstream.folds.state import SamplerState
from rollstream.schemas.events import PolicyAnnounced


def announced_at(state: SamplerState) -> int:
    """Offset of the newest decision that ``announced_policy`` tells of."""
    return max(state.published.offset, state.over_decided_at)


def announced_policy(state: SamplerState) -> PolicyAnnounced | None:
    """The newest policy on the branch that the trainer is on, or, where it has published none of
    that, the newest that it has left; None: it never published one."""
    branches = sorted(state.branches.now())
    newest = state.published.newest_on(branches)
    if newest is None:
        return None
    choosing = state.choosing
    limits = [choosing.max_policy_lag, choosing.max_rollout_step_delay]
    lags = [limit for limit in limits if limit >= 0]
    described = state.published.kept.get(newest, Described())
    return PolicyAnnounced(
        sampler=state.name,
        offset=announced_at(state),
        lineage=choosing.lineage,
        policy_epoch=newest[0],
        step=newest[1],
        policy_version=state.published.versions[newest],
        weights=described.weights,
        metadata=described.metadata,
        max_policy_lag=min(lags, default=-1),
        branch_epochs=np.array([one.epoch for one in branches], np.int32),
        branch_steps=np.array([one.from_step for one in branches], np.int64),
        published_ts=state.published.newest_ts,
        over=state.over,
        drops_off_branch=choosing.off_branch == "drop",
    )
