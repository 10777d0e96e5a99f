"""Groups that will never be served: which ones, and the events that say so; and the cursor behind
which files may be deleted. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import cache, partial
from itertools import chain, repeat, takewhile
from operator import itemgetter

from rollstream.folds.group.eligible import dropped_for
from rollstream.folds.group.packed_refs import INDEX_MAX
from rollstream.folds.life.uses import WERE_READY
from rollstream.folds.ready.index import Policies
from rollstream.folds.state import SamplerState
from rollstream.sampler.decide.capacity import capacities
from rollstream.sampler.decide.choosing.row_limits import KeptRows, RowLimits
from rollstream.sampler.decide.command import Now
from rollstream.schemas.choosing import Choosing
from rollstream.schemas.events import CursorRecorded, Dropped, DroppedGroup, SamplerEvent
from rollstream.schemas.order import UNKNOWN_STEP, PolicyRef, ahead, policy_lag
from rollstream.schemas.reasons import DropReason

DROPPED_PER_EVENT_MAX = 8_192  # So that an event stays far below a message's limit.

Drops = dict[DropReason, dict[int, KeptRows]]
"""By the packed references of the groups."""
_ALL = KeptRows()
_made = partial(tuple.__new__, DroppedGroup)  # A third of what its constructor takes.


def useless_groups(
    state: SamplerState, choosing: Choosing, step: int, now_us: int, *, all_equal: bool
) -> Drops:
    """Ready groups that the batch which updates weights ``step`` and all later ones leave out, by
    the first reason that applies, and those that waited for a score for too long. Groups of
    which enough rollouts are left stay.

    Args:
        all_equal: whether groups whose rewards are all the same are among them.
    """
    drops = _beyond_use(state, choosing, step, now_us)
    _add_at_any_step(drops, state, choosing, now_us, all_equal=all_equal)
    return drops


def _add_at_any_step(
    drops: Drops, state: SamplerState, choosing: Choosing, now_us: int, *, all_equal: bool
) -> None:
    """Adds groups that are dropped whatever is trained next, each for its first reason."""
    ready, foreign, known = state.ready, set[int](), refs_of(drops)
    if state.is_pool:  # Whose trainer never trains on others.
        foreign = _ready_with(state, lambda policy: policy.lineage != choosing.lineage)
    overdue = state.late.sealed_before(now_us - round(choosing.score_timeout_s * 1e6))
    filtered = {*ready.filtered(), *(ready.all_equal() if all_equal else ())}
    for reason, refs in (
        (DropReason.OTHER_LINEAGE, foreign),
        (DropReason.UNSCORED, {*map(ready.packed.pack, overdue)}),
        (DropReason.FILTERED, filtered),
    ):
        drops[reason] = dict.fromkeys(refs - known, _ALL)
        known |= refs
    excess = _over_capacity(state, choosing, known)
    drops[DropReason.CAPACITY] = dict.fromkeys(excess, _ALL)


def _beyond_use(state: SamplerState, choosing: Choosing, step: int, now_us: int) -> Drops:
    """Ready groups of policies that are stale, unknown, off the branch or ahead of those that are
    possible, and those of which too few rollouts are left; no others are looked at."""
    ready, reference = state.ready, state.reference(step)
    delay, begun, possible = choosing.max_rollout_step_delay, state.branches.now(), state.possible()
    branches = begun if choosing.off_branch == "drop" else ()
    oldest_step = UNKNOWN_STEP
    if choosing.recent_n_versions is not None:
        oldest_step = state.published.oldest_recent(
            choosing.recent_n_versions, begun, reference.step
        )

    def is_ahead(policy: PolicyRef) -> bool:
        return choosing.bounds_lag and ahead(policy, possible, begun)

    @cache  # Most groups have one policy.
    def dropped(policies: Policies) -> DropReason | None:
        reason = dropped_for(policies, reference, branches, choosing, oldest_step)
        if reason is None and any(map(is_ahead, policies)):
            return DropReason.AHEAD
        if reason is None and delay >= 0:
            lags = [policy_lag(reference, policy) for policy in policies]
            if all(lag is not None and lag > delay for lag in lags):
                return DropReason.STALE
        return reason

    useless = {
        policies
        for policy in _at_ends(ready.policies(), lambda one: dropped((one,)) is not None)
        for policies in ready.having(policy)
    }
    limits = RowLimits(state, choosing, step, now_us, spread=False)
    oldest_made_us = choosing.oldest_made_us(now_us)
    drops: Drops = {}
    partly: list[Iterable[int]] = []  # Groups of which some policies are too old, but not all.
    for policies in useless:
        reason, refs = dropped(policies), ready.by_policies(policies)
        if reason == DropReason.STALE and delay >= 0:
            rows_of = {ref: limits.left_of(ready, ref) for ref in refs}
            drops.setdefault(reason, {}).update(rows_of)
        elif reason is not None:
            drops.setdefault(reason, {}).update(zip(refs, repeat(_ALL), strict=False))
        else:
            partly.append(refs)
    if not partly and oldest_made_us is None:
        return drops
    known = refs_of(drops)

    def add(ref: int, rows: KeptRows) -> None:
        if rows.drop is not None:
            known.add(ref)
            drops.setdefault(rows.drop, {})[ref] = rows

    for ref in limits.short_by_step(ready) if partly else ():
        if ref not in known:
            add(ref, limits.kept(ready.at(ref)))
    made_before = () if oldest_made_us is None else ready.made_before(oldest_made_us)
    for ref, rollouts in made_before:
        if ref not in known:
            add(ref, limits.left_of(ready, ref, rollouts))
    for ref in chain.from_iterable(partly):  # Too few may be left by both limits alone.
        if ref not in known and limits.may_be_late(ready, ref):
            add(ref, limits.kept(ready.at(ref)))
    return drops


def _ready_with(state: SamplerState, wanted: Callable[[PolicyRef], bool]) -> set[int]:
    """Ready groups of which a member has such a policy."""
    ready = state.ready
    found = {
        policies for policy in filter(wanted, ready.policies()) for policies in ready.having(policy)
    }
    return {ref for policies in found for ref in ready.by_policies(policies)}


def _at_ends(
    policies: Sequence[PolicyRef], dropped: Callable[[PolicyRef], bool]
) -> Iterator[PolicyRef]:
    """Those of the sorted policies that are dropped: within an epoch the first are of an unknown
    step, those after them stale, and the last off the branch or ahead."""
    start = 0
    while start < len(policies):
        lineage, epoch, _ = policies[start]
        yield from filter(dropped, policies[start : start + 1])
        start = bisect_left(policies, (lineage, epoch, UNKNOWN_STEP + 1), start)
        stop = bisect_left(policies, (lineage, epoch + 1, UNKNOWN_STEP), start)
        yield from takewhile(dropped, map(policies.__getitem__, range(start, stop)))
        yield from takewhile(dropped, map(policies.__getitem__, range(stop - 1, start - 1, -1)))
        start = stop


def refs_of(drops: Drops) -> set[int]:
    """All groups that are dropped."""
    return set[int]().union(*drops.values())


def unfit_groups(drops: Drops) -> set[int]:
    """Those of them that no batch could have had before."""
    return refs_of({why: refs for why, refs in drops.items() if why.value not in WERE_READY})


def after_sealed(
    state: SamplerState, now: Now, machine_us: int, *, tells_clock: bool = False
) -> list[SamplerEvent]:
    """The events that what was sealed calls for, though nobody asks for anything: those that drop
    groups whose age will never be known, where there is a limit, those of another lineage than a
    pool's trainer has, groups that waited for a score for too long, those that earned too little
    or too much, and the oldest of the others beyond ``capacity_groups`` and ``capacity``; and the
    cursor, where files were retired since it was recorded. Sealers wait for that before they
    delete these.

    Args:
        machine_us: the time by this machine's clock, which a cursor has instead of log time.
        tells_clock: records the cursor for that alone.
    """
    drops: Drops = {}
    if state.choosing.bounds_lag:
        unknown = _ready_with(state, lambda policy: policy.step == UNKNOWN_STEP)
        drops[DropReason.NO_WEIGHT_STEP] = dict.fromkeys(unknown, _ALL)
    _add_at_any_step(drops, state, state.choosing, now["now_ts"], all_equal=False)
    events = drop_events(state, drops, now)
    if state.cursor_is_due or tells_clock:
        told: Now = {**now, "now_ts": machine_us}
        events.append(CursorRecorded(**told, cursor=state.cursor()))
    return events


def drop_events(
    state: SamplerState,
    drops: Mapping[DropReason, Mapping[int, KeptRows] | Iterable[int]],
    now: Now,
    detail: str = "",
) -> list[SamplerEvent]:
    """One event or more a reason, reasons and groups in order.

    Args:
        drops: packed references, with what was too old of the groups.
    """
    events: list[SamplerEvent] = []
    for reason, refs in sorted(drops.items()):
        rows = refs if isinstance(refs, Mapping) else dict.fromkeys(refs, _ALL)
        groups: list[DroppedGroup] = []
        for flush, of_flush in state.ready.packed.by_flush(sorted(rows)):
            packed = [*of_flush]
            kept = [*map(rows.__getitem__, packed)]
            indexes = map(INDEX_MAX.__and__, packed)
            too_old = map(itemgetter(1), kept), map(itemgetter(2), kept)
            groups += map(_made, zip(*map(repeat, flush), indexes, *too_old, strict=False))
        for start in range(0, len(groups), DROPPED_PER_EVENT_MAX):
            part = tuple(groups[start : start + DROPPED_PER_EVENT_MAX])
            events.append(Dropped(**now, reason=reason.value, groups=part, detail=detail))
    return events


def _over_capacity(state: SamplerState, choosing: Choosing, without: Set[int]) -> list[int]:
    """The oldest groups beyond the capacities, once those ``without`` are gone."""
    refs: set[int] = set()
    gone = without
    limits = [*capacities(state).items(), (None, choosing.capacity_groups)]
    for environment, most in limits:
        beyond, dropped = _count(state, environment) - most, len(gone)
        if beyond <= 0:
            continue
        if environment is not None:
            first, end = state.ready.packed.bounds(environment)
            dropped = sum(first <= ref < end for ref in gone)
        excess = beyond - dropped
        if excess > 0:
            oldest = _oldest(state, excess + dropped, environment)
            refs.update([ref for ref in oldest if ref not in gone][:excess])
            gone = gone | refs
    return sorted(refs)


def _count(state: SamplerState, environment: str | None) -> int:
    """Groups of the environment, or of all, that are ready or wait."""
    if environment is None:
        return len(state.ready) + len(state.waiting)
    return state.ready.counts().get(environment, 0) + state.waiting.count(environment)


def _oldest(state: SamplerState, count: int, environment: str | None) -> list[int]:
    """Of those the ones that wait, which push out none that can be served; then the others; both
    from the one that was sealed longest ago on."""
    waiting = [*map(state.ready.packed.pack, state.waiting.oldest(count, environment))]
    return [*waiting, *state.ready.oldest(count - len(waiting), environment)]
