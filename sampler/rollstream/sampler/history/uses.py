"""Which batches had a group, and what became of it there: a fold over a decision log. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rollstream.folds.batches.life import BatchLife, Became, FinalTo
from rollstream.folds.batches.row_outcomes import RowOutcome, unpack_outcomes
from rollstream.folds.batches.served import ServedBatch
from rollstream.schemas.events import Dropped, Event, Replaced
from rollstream.streams.folds.refs import GroupRef, ref_of

SERVED, TRAINED, FAILED, SKIPPED, RELEASED = "served", "trained", "failed", "skipped", "released"
FILTERED, KEPT, UNKNOWN = "filtered", "kept", "unknown"
NOT_CARRIED, UNUSED = "not_carried", "unused"  # Of what was kept.
LEFT_OUT = "left_out"  # Of a rollout: its group was served without it.
IN_BATCH = "in_batch"  # By a file, which does not say what became of the batch.
_NOT_OF_STEP = ""
_NAMES = {
    code: _NOT_OF_STEP if code is RowOutcome.NONE else code.name.lower() for code in RowOutcome
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A group in a batch.

    Attributes:
        decided_at: offset of the batch in the decision log.
        trainer_epoch: in which the batch was decided.
        batch_id: of the newest batch of the step that had the group.
        state: ``served`` (not final yet), ``trained``, ``failed``, ``skipped`` (final, but not
            trained on), ``released`` (a resume gave it back), ``in_batch`` (more than that no file
            says), or why others took its place: ``filtered``, ``unreadable``. Of a shaped batch the
            first that is true of one of its rows: ``trained``, ``kept``, ``unknown`` (final, and no
            ack says it), ``stale``, ``filtered``, or of kept ones ``not_carried`` by the next step,
            ``unused`` (the run is over).
        acked: as what; None: not, in the trainer epoch in effect.
        detail: the reason that was given for a replacement.
        row_mask: which rows of the group the batch has; None: all. Of a carried one, those that
            were yet to be trained on.
        carried: whether an earlier step was served with the group, and this one trained on what
            that one left over.
        replaced: whether another group took its place.
        outcomes: of a shaped batch, the state of each row; empty: it is none of this step. None:
            ``state`` is that of all of them.
    """

    group: GroupRef
    decided_at: int
    trainer_epoch: int
    step: int
    slot: int
    batch_id: str
    state: str = SERVED
    acked: str | None = None
    detail: str = ""
    row_mask: tuple[bool, ...] | None = None
    carried: bool = False
    replaced: bool = False
    outcomes: tuple[str, ...] | None = None

    def of_rows(self, indexes: Iterable[int]) -> Use | None:
        """What became of these rows of the group alone; None: the group was carried for others of
        its rows only."""
        rows = list(indexes)
        if self.row_mask is not None and not any(self.row_mask[index] for index in rows):
            # What a resume gave back, or others took the place of, is the group with all its rows.
            ended = self.state == RELEASED or self.replaced
            return None if self.carried else self if ended else replace(self, state=LEFT_OUT)
        if self.outcomes is None:
            return self
        return self.with_outcomes([self.outcomes[index] for index in rows])

    def with_outcomes(self, outcomes: Sequence[str]) -> Use:
        """With the first state that is true of one of these rows."""
        state = next((one for one in _FIRST if one in outcomes), self.acked or self.state)
        if self.state == SERVED:
            return replace(self, acked=state)
        return self if self.state == RELEASED else replace(self, state=state, acked=state)


_FIRST = (TRAINED, KEPT, UNKNOWN, FAILED, SKIPPED, "stale", NOT_CARRIED, UNUSED, FILTERED)


@dataclass(frozen=True, slots=True)
class Drop:
    """A group that is never served, and why."""

    reason: str
    detail: str


class UseHistory:
    """What was decided about the groups that matter.

    Args:
        matters: asked of each group that is chosen or dropped; the step, or None for a drop.

    Attributes:
        drops: of groups that were dropped outside of a batch.
    """

    def __init__(self, matters: Callable[[GroupRef, int | None], bool]) -> None:
        self._matters = matters
        self.drops: dict[GroupRef, Drop] = {}
        self._life = BatchLife()  # Of batches that are not final.
        self._newest: dict[int, int] = {}  # By step, the offset of its newest decision.
        # Of each decision about groups that matter, by its offset: what the batch became last, its
        # groups that gave way to others, and the rows that the next step carries.
        self._became: dict[int, Became] = {}
        self._given_way: defaultdict[int, list[Use]] = defaultdict(list)
        self._carried: dict[int, Mapping[GroupRef, Sequence[bool]]] = {}

    @property
    def uses(self) -> list[Use]:
        """In the order of decisions; of a batch the groups that gave way to others first."""
        found: list[Use] = []
        for decided_at, became in sorted(self._became.items()):
            found += self._given_way[decided_at]
            uses = self._uses_in(became, range(len(became.batch.all_refs)))
            found += [self._ended(use, became.batch) for use in uses]
        return found

    def apply(self, offset: int, event: Event) -> None:
        """Applies the next event of the decision log that counts."""
        for change in self._life.apply(offset, event):
            if isinstance(change, FinalTo):
                if change.releases:
                    self._carried.pop(self._newest.get(change.step, -1), None)
            elif change.state != "forgotten":
                self._follow(change, event)
        if isinstance(event, Dropped):
            for group in event.groups:
                ref = ref_of(group)
                if self._matters(ref, None):
                    self.drops[ref] = Drop(event.reason, event.detail)

    def _follow(self, change: Became, event: Event) -> None:
        batch, step = change.batch, change.batch.event.step
        if change.state == "served":
            before = self._newest.get(step - 1)
            if before in self._became:
                rows = [one.wanted.tolist() for one in batch.carried]
                self._carried[before] = dict(zip(batch.carried_refs, rows, strict=True))
            self._newest[step] = batch.offset
        elif isinstance(event, Replaced):
            gone = self._uses_in(change._replace(batch=change.before), event.slots.tolist())
            self._given_way[batch.offset] += [
                replace(use, state=event.outcome, detail=event.reason, replaced=True)
                for use in gone
            ]
        if batch.offset in self._became or any(self._matters(ref, step) for ref in batch.all_refs):
            self._became[batch.offset] = change

    def _uses_in(self, became: Became, slots: Iterable[int]) -> Iterator[Use]:
        """The groups in these slots that matter, with what their batch became."""
        batch, new = became.batch, len(became.batch.groups)
        refs, step, rows = batch.all_refs, batch.event.step, _rows_of(batch)
        for slot in slots:
            if self._matters(refs[slot], step):
                is_new = slot < new
                mask = batch.groups[slot].row_mask if is_new else batch.carried[slot - new].wanted
                use = Use(
                    group=refs[slot],
                    decided_at=batch.offset,
                    trainer_epoch=batch.event.trainer_epoch,
                    step=step,
                    slot=slot,
                    batch_id=batch.batch_id,
                    row_mask=None if mask is None else tuple(mask.tolist()),
                    carried=not is_new,
                )
                yield _became(use, became, rows)

    def _ended(self, use: Use, batch: ServedBatch) -> Use:
        """With what the next step says of rows that were kept, or of which no ack tells."""
        if use.state in (SERVED, RELEASED) or not batch.is_shaped:
            return use
        carries = self._carried.get(use.decided_at)
        carried = None if carries is None else carries.get(use.group, ())
        if use.outcomes is None and use.state != TRAINED and carried:
            outcomes = [KEPT if kept else use.state for kept in carried]
        elif use.outcomes is not None and KEPT in use.outcomes:
            outcomes = list(use.outcomes)
            if carried is None:
                gone = UNUSED if self._life.over else KEPT
            else:
                gone = NOT_CARRIED if use.step < self._life.final_to else KEPT
            for row, outcome in enumerate(outcomes):
                if outcome == KEPT and not (carried and carried[row]):
                    outcomes[row] = gone
        else:
            return use
        return replace(use, outcomes=tuple(outcomes)).with_outcomes(outcomes)


_Rows = Mapping[int, NDArray[np.int8]]


def _rows_of(batch: ServedBatch) -> _Rows:
    """By slot, what its ack says of rows."""
    return {} if batch.outcomes is None else unpack_outcomes(batch.outcomes)


def _became(use: Use, became: Became, rows: _Rows) -> Use:
    """With what its batch became."""
    if became.state == "released":
        return replace(use, state=RELEASED)
    acked = _acked(use, became.batch, rows)
    if became.state != "final":
        return acked
    return replace(acked, state=acked.acked or (UNKNOWN if became.batch.is_shaped else TRAINED))


def _acked(use: Use, batch: ServedBatch, rows: _Rows) -> Use:
    """With what the ack of its batch says."""
    if use.slot in rows:
        names = tuple(_NAMES[RowOutcome(code)] for code in rows[use.slot].tolist())
        return replace(use, outcomes=names).with_outcomes(names)
    if use.slot in batch.untrained:
        return replace(use, acked=SKIPPED if use.slot in batch.skipped else FILTERED)
    unknown = batch.is_shaped and batch.outcomes is None and batch.status == TRAINED
    return replace(use, acked=UNKNOWN if unknown else batch.status)
