"""Groups that will never be served: which ones, and the events that say so; and the cursor behind
which files may be deleted. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import takewhile

from rollstream.sampler.deciding.command import Now
from rollstream.schemas.events import CursorRecorded, Dropped, SamplerEvent
from rollstream.schemas.order import UNKNOWN_STEP, PolicyRef
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
    drops = _beyond_use(state, step)
    dropped = {ref for refs in drops.values() for ref in refs}
    if all_equal:
        equal = [ref for ref in state.ready.all_equal() if ref not in dropped]
        drops[DropReason.FILTERED] = equal
        dropped.update(equal)
    excess = state.excess() - len(dropped)
    if excess > 0:
        oldest = [ref for ref in state.oldest(excess + len(dropped)) if ref not in dropped]
        drops[DropReason.CAPACITY] = oldest[:excess]
    return drops


def _beyond_use(state: SamplerState, step: int) -> Drops:
    """Ready groups of policies that are stale or off the branch; no others are looked at."""
    ready, reference = state.ready, state.reference(step)
    lag_max = state.choosing.max_policy_lag
    branches = tuple(state.branches.values()) if state.choosing.off_branch == "drop" else ()
    dropped = partial(dropped_for, newest=reference, branches=branches, max_policy_lag=lag_max)
    useless = {
        policies
        for policy in _at_ends(ready.policies(), lambda one: dropped((one,)) is not None)
        for policies in ready.having(policy)
    }
    drops: Drops = {}
    for policies in useless:
        reason = dropped(policies)
        assert reason is not None, policies
        drops.setdefault(reason, []).extend(ready.by_policies(policies))
    return drops


def _at_ends(
    policies: Sequence[PolicyRef], dropped: Callable[[PolicyRef], bool]
) -> Iterator[PolicyRef]:
    """Those of the sorted policies that are dropped: within an epoch the first are stale, and the
    last are off the branch. Policies of an unknown step are neither."""
    start = 0
    while start < len(policies):
        lineage, epoch, _ = policies[start]
        start = bisect_left(policies, (lineage, epoch, UNKNOWN_STEP + 1), start)
        stop = bisect_left(policies, (lineage, epoch + 1, UNKNOWN_STEP), start)
        yield from takewhile(dropped, map(policies.__getitem__, range(start, stop)))
        yield from takewhile(dropped, map(policies.__getitem__, range(stop - 1, start - 1, -1)))
        start = stop


def evict_over_capacity(state: SamplerState, now: Now) -> list[SamplerEvent]:
    """The events that drop the oldest groups beyond ``capacity_groups``; none where all fit."""
    excess = state.excess()
    return drop_events({DropReason.CAPACITY: state.oldest(excess)}, now) if excess else []


def after_sealed(state: SamplerState, now: Now) -> list[SamplerEvent]:
    """The events that what was sealed calls for, though nobody asks for anything: those of
    ``evict_over_capacity``, and the cursor, where files were retired since it was recorded. Sealers
    wait for that before they delete these."""
    events = evict_over_capacity(state, now)
    if state.cursor_is_due:
        events.append(CursorRecorded(**now, cursor=state.cursor()))
    return events


def drop_events(drops: Drops, now: Now, detail: str = "") -> list[SamplerEvent]:
    """One event or more a reason, reasons and groups in order."""
    events: list[SamplerEvent] = []
    for reason, refs in sorted(drops.items()):
        groups = [ref.event_ref() for ref in sorted(refs)]
        for start in range(0, len(groups), DROPPED_PER_EVENT_MAX):
            part = tuple(groups[start : start + DROPPED_PER_EVENT_MAX])
            events.append(Dropped(**now, reason=reason.value, groups=part, detail=detail))
    return events
