"""Which batches had a group, and what became of it there: a fold over a decision log. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from rollstream.schemas.events import (
    Acked,
    BatchServed,
    Checkpointed,
    ChosenGroup,
    Dropped,
    Event,
    Replaced,
    Resumed,
)
from rollstream.streams.folds.refs import GroupRef, ref_of

SERVED, TRAINED, FAILED, SKIPPED, RELEASED = "served", "trained", "failed", "skipped", "released"
FILTERED = "filtered"
LEFT_OUT = "left_out"  # Of a rollout: its group was served without it.
IN_BATCH = "in_batch"  # By a file, which does not say what became of the batch.


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A group in a batch.

    Attributes:
        decided_at: offset of the batch in the decision log.
        trainer_epoch: in which the batch was decided.
        batch_id: of the newest batch of the step that had the group.
        state: ``served`` (not final yet), ``trained``, ``failed``, ``skipped`` (final, but not
            trained on), ``released`` (a resume gave it back), ``in_batch`` (more than that no file
            says), or why others took its place: ``filtered``, ``unreadable``.
        acked: as what; None: not, in the trainer epoch in effect.
        detail: the reason that was given for a replacement; ``filtered`` of a group that was
            skipped since what shapes the batch left it out whole.
        row_mask: which rows of the group the batch has; None: all. Of a carried one, those that
            were yet to be trained on.
        carried: whether an earlier step was served with the group, and this one trained on what
            that one left over.
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

    @property
    def replaced(self) -> bool:
        """Whether another group took its place."""
        return self.state not in (SERVED, TRAINED, FAILED, SKIPPED, RELEASED, LEFT_OUT, IN_BATCH)

    def of_rows(self, indexes: Iterable[int]) -> Use | None:
        """What became of these rows of the group alone; None: the group was carried for others of
        its rows only."""
        if self.row_mask is None or any(self.row_mask[index] for index in indexes):
            return self
        return None if self.carried else replace(self, state=LEFT_OUT)


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
        uses: in the order of decisions.
        drops: of groups that were dropped outside of a batch.
        batches: the newest decision of each step: its offset and trainer epoch.
    """

    def __init__(self, matters: Callable[[GroupRef, int | None], bool]) -> None:
        self._matters = matters
        self.uses: list[Use] = []
        self.drops: dict[GroupRef, Drop] = {}
        self.batches: dict[int, tuple[int, int]] = {}
        self._held: dict[tuple[int, int], int] = {}  # Step and slot to the index of a use.

    def apply(self, offset: int, event: Event) -> None:
        """Applies the next event of the decision log that counts."""
        match event:
            case BatchServed():
                self.batches[event.step] = (offset, event.trainer_epoch)
                self._choose(event, list(enumerate(event.groups)))
                left_over = [one.group._replace(row_mask=one.wanted) for one in event.carried]
                slotted = list(enumerate(left_over, start=len(event.groups)))
                self._choose(event, slotted, carried=True)
            case Replaced():
                self._replace(event)
            case Acked():
                for at in self._of_step(event.step):
                    use = self.uses[at]
                    left_out = use.slot in event.filtered
                    acked = SKIPPED if left_out or use.slot in event.skipped else event.status
                    detail = FILTERED if left_out else ""
                    self.uses[at] = replace(use, acked=acked, detail=detail)
            case Checkpointed():
                self._end_up_to(event.step)
            case Resumed():
                self._resume(event)
            case Dropped():
                for group in event.groups:
                    ref = ref_of(group)
                    if self._matters(ref, None):
                        self.drops[ref] = Drop(event.reason, event.detail)
            case _:
                pass

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
                self._held[event.step, slot] = len(self.uses)
                self.uses.append(
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

    def _replace(self, event: Replaced) -> None:
        slots: list[int] = event.slots.tolist()
        for slot in slots:
            at = self._held.pop((event.step, slot), None)
            if at is not None:
                ended = replace(self.uses[at], state=event.outcome, detail=event.reason)
                self.uses[at] = ended
        for at in self._of_step(event.step):
            self.uses[at] = replace(self.uses[at], batch_id=event.batch_id)
        self._choose(event, list(zip(slots, event.groups, strict=True)))

    def _resume(self, event: Resumed) -> None:
        saved = -1 if event.checkpointed_step is None else event.checkpointed_step
        self._end_up_to(saved)
        for (step, slot), at in list(self._held.items()):
            if event.later == "replay":
                self.uses[at] = replace(self.uses[at], acked=None)
            else:
                self.uses[at] = replace(self.uses[at], state=RELEASED, acked=None)
                del self._held[step, slot]

    def _end_up_to(self, step: int) -> None:
        """Batches up to the step are final."""
        for key, at in list(self._held.items()):
            if key[0] <= step:
                use = self.uses[at]
                self.uses[at] = replace(use, state=use.acked or TRAINED)
                del self._held[key]

    def _of_step(self, step: int) -> list[int]:
        return [at for (held, _), at in self._held.items() if held == step]
