"""Groups that a sampler would drop: settled instead of sealed. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rollstream.consumers.assembling.decisions import (
    DueGroup,
    SealDecision,
    Unsealed,
    values_of,
)
from rollstream.consumers.assembling.fitting import settlements_of
from rollstream.folds.group.eligible import dropped_for
from rollstream.folds.group.packed_rows import UNKNOWN_TS
from rollstream.schemas.choosing import Choosing
from rollstream.schemas.events import NewestPolicy
from rollstream.schemas.order import UNKNOWN_STEP, Branch, PolicyRef
from rollstream.schemas.reasons import DropReason, SettleReason

_REASONS = {
    DropReason.STALE: SettleReason.STALE,
    DropReason.TOO_OLD: SettleReason.TOO_OLD,
    DropReason.OFF_BRANCH: SettleReason.OFF_BRANCH,
}
_TRAIN = "train"


class Freshness(NamedTuple):
    """What groups are compared with.

    Attributes:
        newest: the policy; its branches are those that groups must not have left.
        choosing: the settings of its sampler.
        now_us: log time, against which the age of rollouts is measured.
    """

    newest: NewestPolicy
    choosing: Choosing
    now_us: int

    def settled(self, decision: SealDecision) -> SealDecision:
        """The decision, where its group is too stale or off the branch, or too few of its rollouts
        are within the limits, as one that settles all of its segments for that reason: whole
        groups, by the sampler's own rule. Evaluation groups are never too old, nor are imported
        ones, and of one whose weight step is not known nothing is known here."""
        group = decision.group
        if group is None or group.split != _TRAIN or group.request >= 0:
            return decision
        reason = self._reason(group)
        if reason is None:
            return decision
        was_dispatched = any(one.reason is SettleReason.DISPATCHED for one in decision.settled)
        return decision._replace(
            group=None,
            settled=[*decision.settled, *settlements_of(group.rows, reason)],
            unsealed=Unsealed(reason, group.key.example_id) if was_dispatched else None,
        )

    def _reason(self, group: DueGroup) -> SettleReason | None:
        newest = self.newest
        reference = PolicyRef(newest.lineage, newest.policy_epoch, newest.step)
        pairs = zip(newest.branch_epochs.tolist(), newest.branch_steps.tolist(), strict=True)
        branches = tuple(Branch(*pair) for pair in pairs)
        reason = dropped_for(_policies(group), reference, branches, self.choosing)
        if reason is None:
            reason = self._left_too_small(group, reference)
        return None if reason is None else _REASONS.get(reason)

    def _left_too_small(self, group: DueGroup, reference: PolicyRef) -> DropReason | None:
        """Why too few rollouts are left without those that are too old; None: enough are."""
        choosing, delay = self.choosing, self.choosing.max_rollout_step_delay
        oldest_made_us = choosing.oldest_made_us(self.now_us)
        if delay < 0 and oldest_made_us is None:
            return None
        begins = np.array(values_of(group.rows, "segment_idx")) == 0
        begins[0] = True
        starts = np.flatnonzero(begins)
        late_step = late_time = np.zeros(len(begins), np.bool_)
        if delay >= 0 and values_of(group.rows[:1], "lineage")[0] == reference.lineage:
            steps = np.array(values_of(group.rows, "weight_step"))
            late_step = (steps != UNKNOWN_STEP) & (steps < reference.step - delay)
        if oldest_made_us is not None:
            made_us = np.array(values_of(group.rows, "created_ts"))
            late_time = (made_us != UNKNOWN_TS) & (made_us < oldest_made_us)
        by_step = np.logical_or.reduceat(late_step, starts)
        by_time = np.logical_or.reduceat(late_time, starts)
        least = {one.name: one.min_group_size for one in choosing.environments}
        if by_step.any() and (~by_step).sum() < least[group.key.environment]:
            return DropReason.STALE
        if by_time.any() and (~(by_step | by_time)).sum() < least[group.key.environment]:
            return DropReason.TOO_OLD
        return None


def _policies(group: DueGroup) -> list[PolicyRef]:
    """The policies of the group as a sampler would see it: the oldest one, or all where its members
    are of several versions."""
    steps: list[int] = values_of(group.rows, "weight_step")
    epochs: list[int] = values_of(group.rows, "policy_epoch")
    oldest = steps.index(min(steps))
    lineage = values_of(group.rows[oldest : oldest + 1], "lineage")[0]
    if len({version for version, *_ in group.names}) == 1:
        return [PolicyRef(lineage, epochs[oldest], steps[oldest])]
    distinct = set(zip(epochs, steps, strict=True))
    return [PolicyRef(lineage, epoch, step) for epoch, step in sorted(distinct)]
