"""Groups that a sampler would drop: settled instead of sealed. Pure."""

from __future__ import annotations

from typing import NamedTuple

from rollstream.consumers.assembling.decisions import (
    Decision,
    DueGroup,
    Unsealed,
    values_of,
)
from rollstream.consumers.assembling.fitting import settlements_of
from rollstream.schemas.choosing import Choosing
from rollstream.schemas.events import NewestPolicy
from rollstream.schemas.order import Branch, PolicyRef
from rollstream.schemas.reasons import DropReason, SettleReason
from rollstream.streams.folds.sampler.eligible import dropped_for

_REASONS = {
    DropReason.STALE: SettleReason.STALE,
    DropReason.OFF_BRANCH: SettleReason.OFF_BRANCH,
}
_TRAIN = "train"


class Freshness(NamedTuple):
    """What groups are compared with.

    Attributes:
        newest: the policy; its branches are those that groups must not have left.
        choosing: the settings of its sampler.
    """

    newest: NewestPolicy
    choosing: Choosing

    def settled(self, decision: Decision) -> Decision:
        """The decision, where its group is too stale or off the branch as one that settles all of
        its segments for that reason: whole groups, by the sampler's own rule. Evaluation groups
        are never too old, and of one whose weight step is not known nothing is known here."""
        group = decision.group
        reason = None if group is None or group.split != _TRAIN else self._reason(group)
        if group is None or reason is None:
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
        return None if reason is None else _REASONS.get(reason)


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
