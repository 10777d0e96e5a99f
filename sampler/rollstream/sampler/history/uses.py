"""Which batches had a group, and what became of it there: a fold over a decision log. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rollstream.folds.batches.life import BatchLife, Became, FinalTo
from rollstream.folds.batches.row_outcomes import RowOutcome, unpack_outcomes
from rollstream.folds.batches.served import ServedBatch
from rollstream.schemas.events import (
    BatchServed,
    ChosenGroup,
    Dropped,
    Event,
    Replaced,
)
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
        batches: the newest decision of each step: its offset and trainer epoch.
    """

    def __init__(self, matters: Callable[[GroupRef, int | None], bool]) -> None:
        self._matters = matters
        self._uses: list[Use] = []
        self.drops: dict[GroupRef, Drop] = {}
        self.batches: dict[int, tuple[int, int]] = {}
        # Of each decision: slot to the index of a use, and what its batch became last.
        self._slots: defaultdict[int, dict[int, int]] = defaultdict(dict)
        self._became: dict[int, Became] = {}
        self._shaped: dict[int, dict[GroupRef, int]] = {}  # Of shaped steps: likewise by group.
        self._carried: dict[int, Sequence[bool]] = {}  # Rows of a use that the next step carries.
        self._life = BatchLife()  # Of batches that are not final.

    @property
    def uses(self) -> list[Use]:
        """In the order of decisions."""
        found = list(self._uses)
        for decided_at, slots in self._slots.items():
            became = self._became[decided_at]
            rows = _rows_of(became.batch)
            for at in slots.values():
                found[at] = self._ended(at, _became(found[at], became, rows))
        return found

    def apply(self, offset: int, event: Event) -> None:
        """Applies the next event of the decision log that counts."""
        for change in self._life.apply(offset, event):
            if isinstance(change, FinalTo):
                if change.releases:
                    for at in self._shaped.get(change.step, {}).values():
                        self._carried.pop(at, None)
            elif change.state != "forgotten":
                if isinstance(event, BatchServed):
                    self._serve(change.batch)
                elif isinstance(event, Replaced):
                    self._replace(event, change.before)
                if change.batch.offset in self._slots:
                    self._became[change.batch.offset] = change
        if isinstance(event, Dropped):
            for group in event.groups:
                ref = ref_of(group)
                if self._matters(ref, None):
                    self.drops[ref] = Drop(event.reason, event.detail)

    def _serve(self, batch: ServedBatch) -> None:
        event = batch.event
        self.batches[event.step] = (batch.offset, event.trainer_epoch)
        carried = {ref_of(one.group): one.wanted.tolist() for one in event.carried}
        for ref, at in self._shaped.get(event.step - 1, {}).items():
            self._carried[at] = carried.get(ref, ())
        if batch.is_shaped:
            self._shaped[event.step] = {}
        else:
            self._shaped.pop(event.step, None)
        self._choose(event, list(enumerate(event.groups)))
        left_over = [one.group._replace(row_mask=one.wanted) for one in event.carried]
        slotted = list(enumerate(left_over, start=len(event.groups)))
        self._choose(event, slotted, carried=True)

    def _choose(
        self,
        event: BatchServed | Replaced,
        chosen: Sequence[tuple[int, ChosenGroup]],
        *,
        carried: bool = False,
    ) -> None:
        decided_at, trainer_epoch = self.batches[event.step]
        for slot, group in chosen:
            ref = ref_of(group)
            mask = group.row_mask
            if self._matters(ref, event.step):
                self._slots[decided_at][slot] = len(self._uses)
                if event.step in self._shaped:
                    self._shaped[event.step][ref] = len(self._uses)
                self._uses.append(
                    Use(
                        group=ref,
                        decided_at=decided_at,
                        trainer_epoch=trainer_epoch,
                        step=event.step,
                        slot=slot,
                        batch_id=event.batch_id,
                        row_mask=None if mask is None else tuple(mask.tolist()),
                        carried=carried,
                    )
                )

    def _replace(self, event: Replaced, before: ServedBatch) -> None:
        slots: list[int] = event.slots.tolist()
        held, rows = self._slots.get(before.offset, {}), _rows_of(before)
        for at in [held.pop(slot) for slot in slots if slot in held]:
            use = _acked(self._uses[at], before, rows)
            self._uses[at] = replace(use, state=event.outcome, detail=event.reason, replaced=True)
        self._choose(event, list(zip(slots, event.groups, strict=True)))

    def _ended(self, at: int, use: Use) -> Use:
        """With what the next step says of rows that were kept, or of which no ack tells."""
        if use.state in (SERVED, RELEASED) or use.replaced or use.step not in self._shaped:
            return use
        carried = self._carried.get(at)
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
        return replace(use, state=RELEASED, batch_id=became.batch.batch_id)
    acked = _acked(use, became.batch, rows)
    if became.state != "final":
        return acked
    return replace(acked, state=acked.acked or (UNKNOWN if became.batch.is_shaped else TRAINED))


def _acked(use: Use, batch: ServedBatch, rows: _Rows) -> Use:
    """With what the ack of its batch says."""
    use = replace(use, batch_id=batch.batch_id)
    if use.slot in rows:
        names = tuple(_NAMES[RowOutcome(code)] for code in rows[use.slot].tolist())
        return replace(use, outcomes=names).with_outcomes(names)
    if use.slot in batch.untrained:
        return replace(use, acked=SKIPPED if use.slot in batch.skipped else FILTERED)
    unknown = batch.is_shaped and batch.outcomes is None and batch.status == TRAINED
    return replace(use, acked=UNKNOWN if unknown else batch.status)
