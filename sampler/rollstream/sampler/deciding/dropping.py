"""Groups that will never be served: which ones, and the events that say so. Pure."""

from __future__ import annotations

from rollstream.sampler.deciding.command import Now
from rollstream.schemas.events import Dropped, SamplerEvent
from rollstream.schemas.reasons import DropReason
from rollstream.streams.folds.refs import GroupRef
from rollstream.streams.folds.sampler.eligible import dropped_for
from rollstream.streams.folds.sampler.state import SamplerState

DROPPED_PER_EVENT_MAX = 8_192  # So that an event stays far below a message's limit.

Drops = dict[DropReason, list[GroupRef]]


def useless_groups(state: SamplerState, step: int, *, all_equal: bool) -> Drops:
    """Ready groups that the batch of ``step`` and all later ones leave out, by the first reason
    that applies.

    Args:
        all_equal: whether groups whose rewards are all the same are among them.
    """
    drops: Drops = {}
    reference, branches = state.reference(step), tuple(state.branches.values())
    for policies, refs in state.ready.by_policies().items():
        reason = dropped_for(policies, reference, branches, state.choosing.max_policy_lag)
        if reason is not None:
            drops.setdefault(reason, []).extend(refs)
    dropped = {ref for refs in drops.values() for ref in refs}
    if all_equal:
        equal = [group.ref for group in state.ready.all_equal() if group.ref not in dropped]
        drops[DropReason.FILTERED] = equal
        dropped.update(equal)
    excess = state.excess() - len(dropped)
    if excess > 0:
        oldest = [ref for ref in state.oldest(excess + len(dropped)) if ref not in dropped]
        drops[DropReason.CAPACITY] = oldest[:excess]
    return drops


def evict_over_capacity(state: SamplerState, now: Now) -> list[SamplerEvent]:
    """The events that drop the oldest groups beyond ``capacity_groups``; none where all fit."""
    excess = state.excess()
    return drop_events({DropReason.CAPACITY: state.oldest(excess)}, now) if excess else []


def drop_events(drops: Drops, now: Now, detail: str = "") -> list[SamplerEvent]:
    """One event or more a reason, reasons and groups in order."""
    events: list[SamplerEvent] = []
    for reason, refs in sorted(drops.items()):
        groups = [ref.event_ref() for ref in sorted(refs)]
        for start in range(0, len(groups), DROPPED_PER_EVENT_MAX):
            part = tuple(groups[start : start + DROPPED_PER_EVENT_MAX])
            events.append(Dropped(**now, reason=reason.value, groups=part, detail=detail))
    return events
