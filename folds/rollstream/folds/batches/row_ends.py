"""How the rows of final batches ended, also those that one step kept for a later one. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollstream.folds.batches.row_outcomes import RowOutcome, unpack_outcomes
from rollstream.folds.batches.served import Outcome, ServedBatch
from rollstream.folds.group.known import Key
from rollstream.streams.folds.refs import GroupRef

Rows = NDArray[np.bool_] | None
"""Which rows of a group; None: all that a batch had of it."""
_ENDS: dict[RowOutcome, Outcome] = {
    RowOutcome.TRAINED: "trained",
    RowOutcome.FILTERED: "filtered",
    RowOutcome.STALE: "stale",
}
# What a group counts as, of which no row was trained on: the first of these that one of them is.
_GROUP_ENDS: tuple[Outcome, ...] = ("unknown", "failed", "skipped", "stale", "not_carried")


class RowEnd(NamedTuple):
    """Rows of a group that ended so, by the batch of ``step``."""

    group: GroupRef
    rows: Rows
    outcome: Outcome
    step: int


class GroupEnd(NamedTuple):
    """What a group counts as: ``trained`` as soon as one of its rows was, else when all of them
    have ended."""

    group: GroupRef
    outcome: Outcome


class Left(NamedTuple):
    """Rows of a group that have not ended.

    Attributes:
        rows: which ones.
        otherwise: what they end as unless the next step carries them; ``not_carried``: the step
            said that it keeps them.
        step: the final step that had them last.
        since: the step that the group was new in.
        counted: whether the group counts as something already.
        ended: what others of its rows ended as; None: none did.
    """

    rows: Rows
    otherwise: Outcome
    step: int
    since: int
    counted: bool = False
    ended: Outcome | None = None

    def as_of_now(self, *, over: bool) -> str:
        """What the rows count as for now: ``kept`` for a later step, ``unused`` where the run is
        over, or what they end as unless the next step carries them."""
        if self.otherwise != "not_carried":
            return self.otherwise
        return "unused" if over else "kept"


class RowEnds:
    """Feed it each batch when it becomes final, by rising step.

    What the next step carries is the truth about what a step kept: where no ack tells it, rows that
    are not carried count as ``unknown``, and kept ones that are not as ``not_carried``.
    """

    def __init__(self) -> None:
        self._left: dict[GroupRef, Left] = {}

    def left(self) -> Iterator[tuple[GroupRef, Left]]:
        """The groups some of whose rows a later step may still carry."""
        return iter(self._left.items())

    def uncounted(
        self, key_of: Callable[[GroupRef], Key | None], *, over: bool
    ) -> Iterator[tuple[Key, str]]:
        """Key and ``as_of_now`` of those groups that do not count as anything yet."""
        for ref, left in self._left.items():
            if not left.counted and (key := key_of(ref)) is not None:
                yield key, left.as_of_now(over=over)

    def finish(self, batch: ServedBatch) -> tuple[Iterable[RowEnd], Iterable[GroupEnd]]:
        """The batch is final: returns the rows that ended with it, and what groups count as, each
        to be iterated once."""
        ended = _Ended()
        before, self._left = self._left, {}
        wanted = (one.wanted for one in batch.carried)
        carried = dict(zip(batch.carried_refs, wanted, strict=True))
        for ref, left in before.items():
            before[ref] = ended.without(ref, left, carried.get(ref))
            if ref not in carried:
                ended.close(ref, before[ref])
        if not batch.is_shaped:
            outcome: Outcome = "failed" if batch.status == "failed" else "trained"
            outcomes = [_left_out(batch, slot) or outcome for slot in range(len(batch.refs))]
            masks = (chosen.row_mask for chosen in batch.groups)
            own = map(RowEnd, batch.refs, masks, outcomes, repeat(batch.event.step))
            return chain(ended.rows, own), chain(ended.groups, map(GroupEnd, batch.refs, outcomes))
        step = batch.event.step
        told = None if batch.outcomes is None else unpack_outcomes(batch.outcomes)
        unknown: Outcome = "failed" if batch.status == "failed" else "unknown"
        offered: list[Rows] = [one.row_mask for one in batch.groups]
        offered += [one.wanted for one in batch.carried]
        for slot, (ref, rows) in enumerate(zip(batch.all_refs, offered, strict=True)):
            new = slot < len(batch.refs)
            # A carried group that is not among those left was counted before a rewind.
            group = Left(None, "not_carried", step, step, counted=not new)
            if not new and ref in before:
                group = before[ref]._replace(step=step)
            if told is None:
                otherwise = _left_out(batch, slot) or unknown
                self._left[ref] = group._replace(rows=rows, otherwise=otherwise)
                continue
            codes = told.get(slot)
            if codes is None:
                group = ended.end(ref, group, rows, "trained")
                ended.close(ref, group)
                continue
            for code, outcome in _ENDS.items():
                if (mask := codes == code).any():
                    group = ended.end(ref, group, mask, outcome)
            if (mask := codes == RowOutcome.KEPT).any():
                self._left[ref] = group._replace(rows=mask, otherwise="not_carried")
            else:
                ended.close(ref, group)
        return ended.rows, ended.groups

    def release(
        self, step: int, held: Mapping[int, ServedBatch] | None = None
    ) -> tuple[list[RowEnd], list[GroupEnd]]:
        """A resume released all batches after ``step``, final ones too: what only these had is not
        carried any more.

        Args:
            held: batches by step. Groups that none up to ``step`` has cannot be carried, and end
                now, while their examples are known. None: the next step tells what is carried.
        """
        ended = _Ended()
        stay = None
        if held is not None:
            stay = {ref for at, batch in held.items() if at <= step for ref in batch.all_refs}
        for ref, left in list(self._left.items()):
            if left.since > step or (stay is not None and ref not in stay):
                ended.close(ref, ended.without(ref, self._left.pop(ref), None))
        return ended.rows, ended.groups

    def sorted_items(self) -> list[object]:
        """For a digest."""
        return [
            (ref, None if left.rows is None else left.rows.tobytes(), *left[1:])
            for ref, left in sorted(self._left.items(), key=lambda item: item[0])
        ]


class _Ended:
    """What ended with one batch."""

    def __init__(self) -> None:
        self.rows: list[RowEnd] = []
        self.groups: list[GroupEnd] = []

    def without(self, ref: GroupRef, left: Left, carried: Rows) -> Left:
        """Rows that were left, and are not carried, end."""
        gone = left.rows
        if carried is not None:
            gone = ~carried if left.rows is None else left.rows & ~carried
            if not gone.any():
                return left
        return self.end(ref, left, gone, left.otherwise)

    def end(self, ref: GroupRef, left: Left, rows: Rows, outcome: Outcome) -> Left:
        """These rows end; returns the group as it is then."""
        self.rows.append(RowEnd(ref, rows, outcome, left.step))
        if outcome == "trained" and not left.counted:
            self.groups.append(GroupEnd(ref, outcome))
            left = left._replace(counted=True)
        found = {left.ended, outcome}
        first = next((one for one in _GROUP_ENDS if one in found), outcome)
        return left._replace(ended=first)

    def close(self, ref: GroupRef, left: Left) -> None:
        """All rows of the group have ended."""
        if not left.counted and left.ended is not None:
            self.groups.append(GroupEnd(ref, left.ended))


def _left_out(batch: ServedBatch, slot: int) -> Outcome | None:
    """What the ack names the slot as; None: not."""
    if slot in batch.skipped:
        return "skipped"
    return "filtered" if slot in batch.filtered else None
