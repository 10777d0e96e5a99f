"""What became of every rollout that a sampler could serve: a fold over its decision log and the
seal logs. Pure.

Kept are groups that are not decided, which the sampler's capacity bounds, and counters.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from rollstream.sampler.history.ranking import RankedRows
from rollstream.sampler.history.report_rows import Cell, Outcome, ReportCounters, bucket_of
from rollstream.schemas.choosing import Choosing
from rollstream.schemas.events import (
    Acked,
    BatchServed,
    Checkpointed,
    ChosenGroup,
    CurrentStepSet,
    Dropped,
    Event,
    Flushed,
    PolicyPublished,
    Replaced,
    Resumed,
    Retired,
)
from rollstream.schemas.ids import PartitionAddress
from rollstream.schemas.order import UNKNOWN_STEP
from rollstream.schemas.reasons import SettleReason
from rollstream.streams.folds.refs import GroupRef, position_of, ref_of
from rollstream.streams.folds.sampler.known import TRAIN
from rollstream.streams.folds.sampler.served import LOST
from rollstream.streams.folds.sampler.unfinished import STOPPED

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
_TRAINED, _WAITING = Outcome("trained"), Outcome("waiting")


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


class _Batch(NamedTuple):
    """A batch that is not final.

    Attributes:
        newest: the weights that its groups' lag is measured against; ``UNKNOWN_STEP``: nobody named
            any.
        slots: each group, as it was chosen.
        status: of the ack; None: not acked.
    """

    newest: int
    slots: tuple[ChosenGroup, ...]
    status: str | None = None
    skipped: tuple[int, ...] = ()
    filtered: tuple[int, ...] = ()


class ReportFold:
    """Feed it each decision, before it the events of seal logs that ``needed`` names, then
    ``end_decisions`` and the rest of the seal logs.

    A rollout counts once, however often its group is served: as trained where it was ever.

    Args:
        counters: to which all is added.
        choosing: the sampler's settings, by its configuration; its decisions say them too. None: it
            has none any more.

    Attributes:
        next_step: the first that was not served.
    """

    def __init__(self, counters: ReportCounters, choosing: Choosing | None = None) -> None:
        self._counters = counters
        self.next_step = 0
        self._served_end = 0  # After the last step that was served and not released.
        self._current_step: int | None = None
        self._policy_epoch = 0
        self._published: dict[int, int] = {}  # Policy epoch to its newest step.
        self._lineage = "" if choosing is None else choosing.lineage  # Of the newest decision.
        self._is_pool = False
        self._groups: dict[GroupRef, _Group] = {}
        self._batches: dict[int, _Batch] = {}
        self._ended = False

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
                    self._end(ref, Outcome("dropped", "retired"), self.next_step, self._newest())

    def apply(self, event: Event) -> None:
        """Applies the next decision that counts."""
        match event:
            case BatchServed():
                self._lineage = _lineage_of(event.choosing)
                clock = event.step if event.current_step < 0 else event.current_step
                newest = max(self._clock(clock), event.policy_step)
                self._batches[event.step] = _Batch(newest, event.groups)
                self.next_step = self._served_end = event.step + 1
                if LOST in event.request:
                    lost = json.loads(event.request).get(LOST, {})
                    self._counters.add_carry_lost(event.step, lost)
            case Replaced():
                self._replace(event)
            case Acked():
                batch = self._batches.get(event.step)
                if batch is not None:
                    acked = batch._replace(
                        status=event.status, skipped=event.skipped, filtered=event.filtered
                    )
                    self._batches[event.step] = acked
            case Checkpointed():
                self._finish(event.step)
            case Resumed():
                self._resume(event)
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
                        self._end(ref, outcome, self.next_step, self._newest())
            case _:
                pass

    def end_decisions(self) -> None:
        """The decision log was read to its end: what seal logs still have waits."""
        self._ended = True

    def end(self) -> None:
        """All logs were read to their ends: counts what is in open batches, and what waits."""
        for step in sorted(self._batches):
            batch = self._batches[step]
            outcome = Outcome("served") if batch.status is None else _TRAINED
            self._close(step, batch, outcome)
        for ref, group in self._groups.items():
            self._count(ref, group, _WAITING, group.seen)
        self._groups.clear()

    def _settle(self, log: PartitionAddress, event: Flushed) -> None:
        for part in event.settled:
            named = set(part.uids) - {""}  # Segments of one rollout have its uid.
            self._unsealed(log, part.reason, len(named) + list(part.uids).count(""))
        for failed in event.failed:
            members = int(failed.members.sum())
            self._counters.add_failures(log.environment, self.next_step, failed.reason, members)
        for ranges in event.unread:
            self._unsealed(log, ranges.reason, int((ranges.stops - ranges.firsts).sum()))

    def _unsealed(self, log: PartitionAddress, reason: str, count: int) -> None:
        if count and reason not in _NO_END:
            outcome = Outcome("unsealed", reason)
            self._counters.add(Cell(log.environment, self.next_step, None, None, outcome), count)

    def _replace(self, event: Replaced) -> None:
        batch = self._batches.get(event.step)
        if batch is None:
            return
        slots = list(batch.slots)
        for slot, chosen in zip(event.slots.tolist(), event.groups, strict=True):
            gone = Outcome("dropped", event.outcome)
            self._end(ref_of(slots[slot]), gone, event.step, batch.newest)
            slots[slot] = chosen
        self._batches[event.step] = batch._replace(slots=tuple(slots))

    def _resume(self, event: Resumed) -> None:
        self._policy_epoch, self._current_step = event.policy_epoch, None
        self._is_pool = self._is_pool or event.reads_pool
        saved = -1 if event.checkpointed_step is None else event.checkpointed_step
        self._finish(saved)
        if event.later == "release":
            self._batches.clear()  # Their groups wait again.
            self._served_end = min(self._served_end, saved + 1)
        else:
            self._batches = {
                step: batch._replace(status=None, skipped=(), filtered=())
                for step, batch in self._batches.items()
            }
        self.next_step = max(event.first_step, self._served_end)

    def _finish(self, step: int) -> None:
        """Batches up to the step are final."""
        for at in [at for at in self._batches if at <= step]:
            self._close(at, self._batches.pop(at), _TRAINED)

    def _close(self, step: int, batch: _Batch, outcome: Outcome) -> None:
        if batch.status == "failed":
            outcome = Outcome("dropped", "failed")
        for slot, chosen in enumerate(batch.slots):
            of_slot = outcome
            if slot in batch.skipped or slot in batch.filtered:
                why = "skipped" if slot in batch.skipped else "filtered"
                of_slot = Outcome("dropped", why)
            mask = None if chosen.row_mask is None else chosen.row_mask.tolist()
            self._end(ref_of(chosen), of_slot, step, batch.newest, mask)

    def _held(self) -> set[GroupRef]:
        """The groups in batches that are not final."""
        return {ref_of(chosen) for batch in self._batches.values() for chosen in batch.slots}

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
        self,
        ref: GroupRef,
        outcome: Outcome,
        step: int,
        newest: int,
        row_mask: Sequence[bool] | None = None,
    ) -> None:
        group = self._groups.pop(ref, None)
        if group is not None:  # Else it was counted.
            self._count(ref, group, outcome, step, newest, row_mask)

    def _count(
        self,
        ref: GroupRef,
        group: _Group,
        outcome: Outcome,
        step: int,
        newest: int | None = None,
        row_mask: Sequence[bool] | None = None,
    ) -> None:
        newest = self._newest() if newest is None else newest
        for row, length, weight_step, unfinished in group.rollouts:
            lag = None
            known = UNKNOWN_STEP not in (weight_step, newest)
            if known and group.lineage == self._lineage:
                lag = bucket_of(newest - weight_step)
            served = row_mask is None or row_mask[row]
            of_rollout = outcome if served else Outcome("dropped", "left_out")
            cell = Cell(ref.environment, step, length, lag, of_rollout)
            self._counters.add(cell)
            if unfinished:
                self._counters.add(cell._replace(outcome=Outcome("unfinished", unfinished)))
        if group.failed:
            never_came = Cell(ref.environment, step, None, None, Outcome("unfinished", "failed"))
            self._counters.add(never_came, group.failed)


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
