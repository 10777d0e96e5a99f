"""How often groups were handed out, and which of them are still needed. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from rollstream.streams.folds.refs import GroupRef


@lru_cache(maxsize=16)
def max_samples_of(choosing: str, before: int) -> int:
    """The limit of the settings that a decision recorded; ``before`` where it recorded none."""
    return int(json.loads(choosing).get("max_samples", 1)) if choosing else before


class Uses(NamedTuple):
    """Of one group.

    Attributes:
        used: batches that it was chosen for and that were not released.
        held: batches that are held and have it, chosen or carried.
        open: those that it was chosen for, and that are not final.
        unacked: those of these that are not acked.
        ended: it will never be served again, whatever is released.
        dropped: it will not be served again, unless a use is given back.
        epoch: the trainer epoch of its newest use; -1: it has none that was not given back.
        lately: those of ``used`` that were decided in that trainer epoch.
        pins: batches that have it, and that a step to come may carry groups of.
        again: ``used`` where it may be served again, 1 where there is no limit; else 0.
    """

    used: int = 0
    held: int = 0
    open: int = 0
    unacked: int = 0
    ended: bool = False
    dropped: bool = False
    epoch: int = -1
    lately: int = 0
    pins: int = 0
    again: int = 0

    def available(self, most: int) -> bool:
        """Whether it may be served (again), so many times at most; -1: without a limit."""
        left = most < 0 or self.used < most
        return left and not (self.unacked or self.ended or self.dropped or self.pins)

    def waits_as(self) -> int | None:
        """Where its ack is to come: how often it was used; -1: there will be no other use."""
        if not self.unacked:
            return None
        return -1 if self.ended or self.dropped else self.used


UNUSED = Uses()
WERE_READY = frozenset(("stale", "too_old", "capacity", "by_trainer"))
"""So end groups that a batch could have had before; others that are dropped were fit for none."""

Change = Callable[[Uses, int, int], Uses]
"""What becomes of the uses, in this trainer epoch and with this limit."""


# The changes. Groups are in one batch at a time that is neither acked nor final; only where batches
# are replayed after a resume they may be in several.


def begin(uses: Uses, epoch: int, most: int) -> Uses:
    """A batch has the group from now on."""
    lately = 1 + (uses.lately if uses.epoch == epoch else 0)
    return uses._replace(
        used=uses.used + 1,
        held=uses.held + 1,
        open=uses.open + 1,
        unacked=uses.unacked + 1,
        epoch=epoch,
        lately=lately,
    )


def give_back(uses: Uses, epoch: int, most: int) -> Uses:
    """A batch that had it unacked was released, or another group took its slot: that was no use."""
    if uses.epoch == epoch:
        last = -1 if uses.lately == 1 else epoch
        uses = uses._replace(epoch=last, lately=uses.lately - 1)
    return uses._replace(
        used=uses.used - 1,
        held=uses.held - 1,
        open=uses.open - 1,
        unacked=uses.unacked - 1,
        dropped=False,
    )


def ack(uses: Uses, epoch: int, most: int) -> Uses:
    """A batch that has it was acked."""
    return uses._replace(unacked=uses.unacked - 1)


def reopen(uses: Uses, epoch: int, most: int) -> Uses:
    """A batch that has it is replayed: its ack no longer counts."""
    return uses._replace(unacked=uses.unacked + 1)


def finish_acked(uses: Uses, epoch: int, most: int) -> Uses:
    """A batch that has it, and was acked, is final: a group that is used up stays so, also where
    the limit is raised later."""
    used_up = uses.open == 1 and 0 <= most <= uses.used
    return uses._replace(open=uses.open - 1, ended=uses.ended or used_up)


def finish_unacked(uses: Uses, epoch: int, most: int) -> Uses:
    """The same, of a batch that was not acked."""
    return finish_acked(ack(uses, epoch, most), epoch, most)


def skip(uses: Uses, epoch: int, most: int) -> Uses:
    """The same, where the ack names the group as not trained on: it is not served again."""
    return finish_unacked(uses, epoch, most)._replace(ended=True)


def carry(uses: Uses, epoch: int, most: int) -> Uses:
    """A batch that is held carries the group, which is no further use; ``forget`` ends it."""
    return uses._replace(held=uses.held + 1)


def forget(uses: Uses, epoch: int, most: int) -> Uses:
    """A batch that has it is no longer held: a use that was final stays one."""
    return uses._replace(held=uses.held - 1)


def pin(uses: Uses, epoch: int, most: int) -> Uses:
    """One more batch has it of which a step to come may carry groups."""
    return uses._replace(pins=uses.pins + 1)


def unpin(uses: Uses, epoch: int, most: int) -> Uses:
    """One less has it."""
    return uses._replace(pins=uses.pins - 1)


def drop(uses: Uses, epoch: int, most: int) -> Uses:
    """It is not served beyond the batches that are open: those have it, and a release of one gives
    it back."""
    return uses._replace(dropped=True) if uses.open else uses._replace(ended=True)


def end(uses: Uses, epoch: int, most: int) -> Uses:
    """It is never served again."""
    return uses._replace(ended=True)


def use_up(uses: Uses, epoch: int, most: int) -> Uses:
    """The limit was lowered to what it was used; one of no open batch stays used up."""
    return uses if uses.open else uses._replace(ended=True)


class Changed(NamedTuple):
    """What a change comes to.

    Attributes:
        after: the uses; None: nothing is kept of the group.
        available: whether it may be served (again).
        taken: whether it was available before, and is not.
        lately, first_lately, again, groups_again, again_lately: what is added to the counts.
        waited_as, waits_as: as ``Uses`` has it, before and after.
    """

    after: Uses | None
    available: bool
    taken: bool
    lately: int
    first_lately: int
    again: int
    groups_again: int
    again_lately: int
    waited_as: int | None
    waits_as: int | None


@lru_cache(maxsize=4_096)  # Groups share the few values that there are.
def _changed(before: Uses, change: Change, epoch: int, most: int) -> Changed:
    uses = change(before, epoch, most)
    available = uses.available(most)
    again = uses.used if available else 0
    uses = uses._replace(again=min(again, 1) if most < 0 else again)
    needed = uses.held or uses.pins or (available and uses.used)
    now, then = uses.epoch == epoch, before.epoch == epoch
    return Changed(
        uses if needed else None,
        available,
        not available and (before.available(most) or before.again > 0),
        lately=now * uses.lately - then * before.lately,
        first_lately=now - then,
        again=uses.again - before.again,
        groups_again=bool(uses.again) - bool(before.again),
        again_lately=bool(now and uses.again) - bool(then and before.again),
        waited_as=before.waits_as(),
        waits_as=uses.waits_as(),
    )


class GroupUses:
    """The uses of groups that are in a batch which is held, or were used and may be again.

    Attributes:
        lately: uses that were decided in the trainer epoch in effect, and not given back.
    """

    def __init__(self, max_samples: int) -> None:
        self._groups: dict[GroupRef, Uses] = {}
        # By environment, of groups that were used and may be served again: uses, and groups.
        self._used_again = Counter[str]()
        self._groups_again = Counter[str]()
        # Groups with an ack to come, by environment and ``waits_as``.
        self._unacked = Counter[tuple[str, int]]()
        self._max_samples = max_samples  # Of the newest decision, so that logs say it.
        self._epoch = self.lately = 0
        self._first_lately = 0  # Groups that were used in this epoch, or dropped unused.
        self._again_lately = 0  # Groups that may be served again and were used in this epoch.

    def of(self, ref: GroupRef) -> Uses:
        """The uses of the group."""
        return self._groups.get(ref, UNUSED)

    def held(self, ref: GroupRef) -> bool:
        """Whether a batch that is held has the group, or a step to come may carry it."""
        uses = self.of(ref)
        return uses.held > 0 or uses.pins > 0

    def is_open(self, ref: GroupRef) -> bool:
        """Whether a batch that is not final was to have the group, or a step to come may carry
        it."""
        uses = self.of(ref)
        return uses.open > 0 or uses.pins > 0

    def unacked(
        self, max_samples: int, skipped: Mapping[GroupRef, int]
    ) -> tuple[Counter[str], Counter[str]]:
        """By environment the groups that open batches have whose ack is to come, and how often
        these may be served once more, with this limit.

        Args:
            skipped: how many acks of open batches skipped each.
        """
        found = self._unacked.copy()
        for ref, acks in skipped.items():
            uses = self._groups[ref]
            if uses.unacked == acks and (waits_as := uses.waits_as()) is not None:
                found[ref.environment, waits_as] -= 1
        groups, left = Counter[str](), Counter[str]()
        for (environment, used), count in found.items():
            groups[environment] += count
            left[environment] += count * max(0, max_samples - used) if used >= 0 else 0
        return groups, left

    def inserted(self, ready: int) -> int:
        """Groups that were ready in the trainer epoch in effect, with those that are: ``ready``."""
        return self._first_lately + ready - self._again_lately

    def is_fresh(self, ref: GroupRef) -> bool:
        """Whether it was not used in the trainer epoch in effect."""
        return self.of(ref).epoch != self._epoch

    def begin_epoch(self, trainer_epoch: int) -> None:
        """A trainer resumed: what was used before no longer counts as used lately."""
        self._epoch = trainer_epoch
        self.lately = self._first_lately = self._again_lately = 0

    def used_again(self, environment: str) -> int:
        """Uses, so far, of its groups that may be served again; without a limit one a group."""
        return self._used_again[environment]

    def groups_again(self, environment: str) -> int:
        """Its groups that were used and may be served again."""
        return self._groups_again[environment]

    def change(self, refs: Iterable[GroupRef], change: Change) -> list[tuple[GroupRef, Changed]]:
        """Changes the uses of each. Returns those that are available, are so no longer, or of which
        nothing is kept."""
        groups, before, environment, many = self._groups, UNUSED, "", 0
        found = _changed(before, change, self._epoch, self._max_samples)
        told = []
        for ref in refs:
            uses = groups.get(ref, UNUSED)
            if uses is not before or ref[0] != environment:  # Most are like the one before.
                self._count(environment, found, many)
                before, environment, many = uses, ref[0], 0
                found = _changed(before, change, self._epoch, self._max_samples)
            many += 1
            if found.after is not None:
                groups[ref] = found.after
            else:
                groups.pop(ref, None)
            if found.available or found.taken or found.after is None:
                told.append((ref, found))
        self._count(environment, found, many)
        return told

    def drop(self, ref: GroupRef, reason: str) -> None:
        """``drop``, for this reason: one that was ready unused counts as inserted."""
        self._first_lately += reason in WERE_READY and self.is_fresh(ref)
        self.change([ref], drop)

    def limit_by(self, choosing: str) -> list[GroupRef]:
        """A decision was made by these recorded settings: returns the groups that are used up by
        its limit and were not before, for ``use_up``."""
        most = max_samples_of(choosing, self._max_samples)
        found = self.used_up_by(most)
        self._max_samples = most
        return found

    def used_up_by(self, max_samples: int) -> list[GroupRef]:
        """The groups that were used as often, where that limit is below the one in effect: by that
        they may be ready."""
        if max_samples < 0 or 0 <= self._max_samples <= max_samples:
            return []
        return [ref for ref, uses in self._groups.items() if uses.used >= max_samples]

    def _count(self, environment: str, found: Changed, many: int) -> None:
        if not many:
            return
        self.lately += found.lately * many
        self._first_lately += found.first_lately * many
        self._again_lately += found.again_lately * many
        if found.again or found.groups_again:
            self._used_again[environment] += found.again * many
            self._groups_again[environment] += found.groups_again * many
        if found.waited_as != found.waits_as:
            if found.waited_as is not None:
                self._unacked[environment, found.waited_as] -= many
                if not self._unacked[environment, found.waited_as]:
                    del self._unacked[environment, found.waited_as]
            if found.waits_as is not None:
                self._unacked[environment, found.waits_as] += many

    def sorted_items(self) -> list[Any]:
        """For a digest."""
        counts = (self._epoch, self.lately, self._first_lately, self._again_lately)
        return [counts, *sorted(self._groups.items())]
