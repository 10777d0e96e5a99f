"""What became of every rollout that a sampler could serve: a fold over its decision log and the
seal logs. Pure.

Kept are groups that are not decided, which the sampler's capacity bounds, and counters.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollstream.folds.batches.life import BatchLife, Change, FinalTo
from rollstream.folds.batches.row_ends import RowEnd, RowEnds
from rollstream.folds.batches.served import ServedBatch
from rollstream.folds.group.known import TRAIN
from rollstream.folds.group.unfinished import STOPPED
from rollstream.sampler.history.ranking import RankedRows
from rollstream.sampler.history.report_rows import Cell, Outcome, ReportCounters, bucket_of
from rollstream.schemas.choosing import Choosing
from rollstream.schemas.events import (
    BatchServed,
    CurrentStepSet,
    Dropped,
    Event,
    Flushed,
    PolicyPublished,
    Replaced,
    Resumed,
    Retired,
    Settlements,
    UnreadRanges,
)
from rollstream.schemas.ids import PartitionAddress
from rollstream.schemas.order import UNKNOWN_STEP
from rollstream.schemas.reasons import SettleReason
from rollstream.streams.folds.refs import GroupRef, position_of, ref_of

# No ends of rollouts: control events, what says nothing of its original, and what nobody published.
_NO_END = frozenset(
    {
        SettleReason.DISPATCHED,
        SettleReason.ALIVE,
        SettleReason.ENDED,
        SettleReason.NOT_OPEN,
        SettleReason.DUPLICATE,
        SettleReason.NO_RECORD,
    }
)
_WAITING = Outcome("waiting")
_LEFT_OUT = Outcome("dropped", "left_out")


class _Rollout(NamedTuple):
    """A rollout of a group that is not decided.

    Attributes:
        row: its first one, in the group.
        length: the bucket of its output tokens.
        weight_step: of its oldest segment.
        unfinished: that it was ``aborted`` or ``truncated``; else empty.
    """

    row: int
    length: int
    weight_step: int
    unfinished: str


class _Group(NamedTuple):
    """A group that is not decided.

    Attributes:
        seen: the step that was next when it became known.
        failed: members that never came.
    """

    path: str
    lineage: str
    seen: int
    failed: int
    rollouts: Sequence[_Rollout]


class ReportFold:
    """Feed it each decision, before it the events of seal logs that ``needed`` names, then
    ``end_decisions`` and the rest of the seal logs.

    A rollout counts once, however often its group is served: as it ended first.

    Args:
        counters: to which all is added.
        choosing: the sampler's settings, by its configuration; its decisions say them too. None: it
            has none any more.
    """

    def __init__(self, counters: ReportCounters, choosing: Choosing | None = None) -> None:
        self._counters = counters
        self._life = BatchLife()  # Of batches that are not final.
        self._current_step: int | None = None
        self._policy_epoch = 0
        self._published: dict[int, int] = {}  # Policy epoch to its newest step.
        self._lineage = "" if choosing is None else choosing.lineage  # Of the newest decision.
        self._is_pool = False
        self._groups: dict[GroupRef, _Group] = {}
        self._newest_of: dict[int, int] = {}  # The weights that lag is measured against, by step.
        self._ends = RowEnds()
        self._ended = False

    @property
    def next_step(self) -> int:
        """The first that was not served."""
        return self._life.next_step

    def needed(self, event: Event) -> Mapping[PartitionAddress, int]:
        """Up to which offsets seal logs have to be applied before this decision is."""
        if isinstance(event, BatchServed | Replaced):
            return position_of(event.cursor)
        offsets: dict[PartitionAddress, int] = {}
        if isinstance(event, Dropped):
            for ref in map(ref_of, event.groups):
                offsets[ref.log] = max(offsets.get(ref.log, 0), ref.offset + 1)
        return offsets

    def apply_groups(self, log: PartitionAddress, offset: int, event: Event) -> None:
        """Applies the next event of a seal log that counts, by rising offset."""
        if isinstance(event, Flushed):
            self._settle(log, event)
            for index, (group, eval_only) in enumerate(_groups_of(event, self.next_step)):
                ref = GroupRef(*log, offset, index)
                if eval_only:
                    self._count(ref, group, Outcome("eval"), group.seen)
                elif self._ended:
                    self._count(ref, group, _WAITING, group.seen)
                else:
                    self._groups[ref] = group
        elif isinstance(event, Retired):
            gone = {(file.offset, file.path) for file in event.files}
            held = self._held()
            for ref, group in list(self._groups.items()):
                if ref.log == log and (ref.offset, group.path) in gone and ref not in held:
                    self._end(ref, Outcome("dropped", "retired"), self.next_step)

    def apply(self, event: Event) -> None:
        """Applies the next decision that counts."""
        if isinstance(event, Resumed):
            self._policy_epoch, self._current_step = event.policy_epoch, None
            self._is_pool = self._is_pool or event.reads_pool
        for change in self._life.apply(0, event):
            self._follow(change, event)
        match event:
            case BatchServed():
                self._lineage = _lineage_of(event.choosing)
                clock = event.step if event.current_step < 0 else event.current_step
                self._newest_of[event.step] = max(self._clock(clock), event.policy_step)
                self._counters.add_carry_lost(event.step, self._life.batches[event.step].lost)
                left = len(self._groups) - len(self._held() & self._groups.keys())
                self._counters.add_ready(event.step, left)
            case PolicyPublished():
                newest = max(event.step, self._published.get(event.policy_epoch, UNKNOWN_STEP))
                self._published[event.policy_epoch] = newest
            case CurrentStepSet():
                self._current_step = event.step
            case Dropped():
                held = self._held()  # Those are trained first; what a release gives back may wait.
                for ref in map(ref_of, event.groups):
                    if ref not in held:
                        outcome = Outcome("dropped", event.reason)
                        self._end(ref, outcome, self.next_step)
            case _:
                pass

    def end_decisions(self) -> None:
        """The decision log was read to its end: what seal logs still have waits."""
        self._ended = True

    def end(self) -> None:
        """All logs were read to their ends: counts what is in open batches, and what waits."""
        served = Outcome("served")
        batches = self._life.batches
        unacked = {step for step, batch in batches.items() if batch.status is None}
        for step, batch in sorted(batches.items()):
            if step not in unacked or batch.is_shaped:
                self._finish_one(batch, unacked)
                continue
            self._leave_out(batch)
            for ref in batch.refs:
                self._end(ref, served, step)
        for ref, left in self._ends.left():
            outcome = _outcome_of(left.as_of_now(over=self._life.over))
            self._end(ref, served if left.step in unacked else outcome, left.step, left.rows)
        for ref, group in self._groups.items():
            self._count(ref, group, _WAITING, group.seen)
        self._groups.clear()

    def _settle(self, log: PartitionAddress, event: Flushed) -> None:
        for reason, count in unsealed_in(event.settled, event.unread).items():
            outcome = Outcome("unsealed", reason)
            self._counters.add(Cell(log.environment, self.next_step, None, None, outcome), count)
        for failed in event.failed:
            members = int(failed.members.sum())
            self._counters.add_failures(log.environment, self.next_step, failed.reason, members)

    def _follow(self, change: Change, event: Event) -> None:
        """What a change in the life of a batch means for its rollouts."""
        if isinstance(change, FinalTo):
            if change.releases:  # The groups of later batches wait again.
                self._end_rows(self._ends.release(change.step)[0])
                for at in [at for at in self._newest_of if at > change.step]:
                    del self._newest_of[at]
        elif isinstance(event, Replaced):
            for slot in event.slots.tolist():
                outcome = Outcome("dropped", event.outcome)
                self._end(change.before.refs[slot], outcome, event.step)
        elif change.state == "final":
            self._finish_one(change.batch)

    def _finish_one(self, batch: ServedBatch, unacked: Collection[int] = ()) -> None:
        """The batch is final, or counts as if it were; rows of the ``unacked`` steps count as
        served."""
        step = batch.event.step
        self._leave_out(batch)
        self._end_rows(self._ends.finish(batch)[0], unacked)
        left = {one.step for _, one in self._ends.left()}
        for at in [at for at in self._newest_of if at < step and at not in left]:
            del self._newest_of[at]

    def _leave_out(self, batch: ServedBatch) -> None:
        for ref, chosen in zip(batch.refs, batch.groups, strict=True):
            if chosen.row_mask is not None:
                self._end(ref, _LEFT_OUT, batch.event.step, ~chosen.row_mask)

    def _end_rows(self, ends: Iterable[RowEnd], unacked: Collection[int] = ()) -> None:
        for end in ends:
            served = end.step in unacked
            outcome = Outcome("served") if served else _outcome_of(end.outcome)
            self._end(end.group, outcome, end.step, end.rows)

    def _held(self) -> set[GroupRef]:
        """The groups in batches that are not final, or that a step kept."""
        kept = {ref for ref, _ in self._ends.left()}
        return kept.union(*(batch.all_refs for batch in self._life.batches.values()))

    def _newest(self) -> int:
        """The weights that lag is measured against now; ``UNKNOWN_STEP``: nobody named any."""
        published = self._published.get(self._policy_epoch, UNKNOWN_STEP)
        clock = self.next_step if self._current_step is None else self._current_step
        return max(self._clock(clock), published)

    def _clock(self, step: int) -> int:
        """The same, by the trainer's step alone. Those of a pool are fetches: at which optimizer
        step the trainer is, only the trainer says."""
        fetches = self._is_pool and self._current_step is None
        return UNKNOWN_STEP if fetches else step

    def _end(
        self, ref: GroupRef, outcome: Outcome, step: int, rows: NDArray[np.bool_] | None = None
    ) -> None:
        """Rollouts of the group ended so, those with these rows; others stay."""
        group = self._groups.pop(ref, None)
        if group is None:
            return  # It was counted.
        ended, stay = group, list[_Rollout]()
        if rows is not None:
            mask = rows.tolist()
            stay = [one for one in group.rollouts if not mask[one.row]]
            ended = group._replace(rollouts=[one for one in group.rollouts if mask[one.row]])
            if not ended.rollouts:
                self._groups[ref] = group
                return
        self._count(ref, ended, outcome, step, self._newest_of.get(step))
        if stay:
            self._groups[ref] = group._replace(rollouts=stay, failed=0)

    def _count(
        self, ref: GroupRef, group: _Group, outcome: Outcome, step: int, newest: int | None = None
    ) -> None:
        newest = self._newest() if newest is None else newest
        for _, length, weight_step, unfinished in group.rollouts:
            lag = None
            known = UNKNOWN_STEP not in (weight_step, newest)
            if known and group.lineage == self._lineage:
                lag = bucket_of(newest - weight_step)
            cell = Cell(ref.environment, step, length, lag, outcome)
            self._counters.add(cell)
            if unfinished:
                self._counters.add(cell._replace(outcome=Outcome("unfinished", unfinished)))
        if group.failed:
            never_came = Cell(ref.environment, step, None, None, Outcome("unfinished", "failed"))
            self._counters.add(never_came, group.failed)


def unsealed_in(settled: Iterable[Settlements], unread: Iterable[UnreadRanges]) -> Counter[str]:
    """By reason, the rollouts that a flush settled without a group; segments of one rollout have
    its uid."""
    counts = Counter[str]()
    for part in settled:
        own = np.flatnonzero(part.segment_idxs >= 0)  # Control entries are no segments.
        uids = [part.uids[index] for index in own.tolist()]
        counts[part.reason] += len({*uids} - {""}) + uids.count("")
    for ranges in unread:
        counts[ranges.reason] += int((ranges.stops - ranges.firsts).sum())
    return Counter({name: n for name, n in counts.items() if n and name not in _NO_END})


def _outcome_of(outcome: str) -> Outcome:
    if outcome in ("trained", "unknown", "kept"):
        return Outcome(outcome)  # type: ignore[arg-type]
    return Outcome("dropped", outcome)


def _groups_of(event: Flushed, seen: int) -> Iterator[tuple[_Group, bool]]:
    """The groups of a flush, in its order; and whether each is for evaluation alone."""
    segments = event.segments
    if not event.groups:
        return
    ranked = RankedRows.of(segments.segment_idxs, segments.rewards, segments.token_counts)
    oldest = np.minimum.reduceat(segments.weight_steps, ranked.starts).tolist()
    lengths = [bucket_of(tokens) for tokens in ranked.tokens.tolist()]
    lasts = segments.stop_reason_idxs[ranked.starts + ranked.rows - 1].tolist()
    stopped = [STOPPED.get(reason, "") for reason in segments.stop_reasons]
    starts = ranked.starts.tolist()
    first = at = 0
    for group in event.groups:
        rollouts = []
        while at < len(starts) and starts[at] < first + group.rows:
            one = _Rollout(starts[at] - first, lengths[at], oldest[at], stopped[lasts[at]])
            rollouts.append(one)
            at += 1
        path = event.files[group.file].path
        known = _Group(path, group.lineage, seen, group.failed_members, rollouts)
        yield known, group.split != TRAIN
        first += group.rows


@lru_cache(maxsize=16)
def _lineage_of(choosing: str) -> str:
    """Of those that a decision recorded; older ones had none."""
    recorded = json.loads(choosing) if choosing else {}
    return str(recorded.get("lineage", ""))
