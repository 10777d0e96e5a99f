"""How often groups were handed out, and which of them are still needed. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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
        """Where its ack is to come: how often it was used; 0: there will be no other use."""
        if not self.unacked:
            return None
        return 0 if self.ended or self.dropped else self.used


UNUSED = Uses()
WERE_READY = frozenset(("stale", "too_old", "capacity", "by_trainer"))
"""So end groups that a batch could have had before; others that are dropped were fit for none."""


class Change(NamedTuple):
    """What happens to a group, as what is added to its uses.

    Attributes:
        ends: it is not served again, whatever is released.
        drops: so it is where no open batch has it. Those that have it go on, and a release of one
            gives it back.
        uses_up: so it is where no open batch has it, and it was used as often as the limit says.
    """

    used: int = 0
    held: int = 0
    open: int = 0
    unacked: int = 0
    pins: int = 0
    ends: bool = False
    drops: bool = False
    uses_up: bool = False


# A group is in one batch at a time that is neither acked nor final; only where batches are replayed
# after a resume it may be in several.
BEGIN = Change(used=1, held=1, open=1, unacked=1)
"""A batch has the group from now on."""
GIVE_BACK = Change(used=-1, held=-1, open=-1, unacked=-1)
"""A batch that had it unacked was released, or another group took its slot: that was no use."""
ACK, REOPEN = Change(unacked=-1), Change(unacked=1)
"""A batch that has it was acked; it is replayed, and its ack no longer counts."""
FINISH_ACKED = Change(open=-1, uses_up=True)
FINISH_UNACKED = Change(open=-1, unacked=-1, uses_up=True)
"""A batch that has it is final: a group that is used up stays so, if the limit is raised later."""
SKIP = FINISH_UNACKED._replace(ends=True)
"""The same, where the ack names the group as not trained on."""
CARRY, FORGET = Change(held=1), Change(held=-1)
"""A batch that is held carries it, which is no further use; one is no longer held."""
PIN, UNPIN = Change(pins=1), Change(pins=-1)
"""One more batch has it of which a step to come may carry groups; one less."""
DROP, END = Change(drops=True), Change(ends=True)
USE_UP = Change(uses_up=True)
"""The limit was lowered."""


class Changed(NamedTuple):
    """What a change comes to.

    Attributes:
        kept: whether any of it is needed.
        available: whether the group may be served (again).
        taken: whether it was available before, and is not.
    """

    uses: Uses
    kept: bool
    available: bool
    taken: bool

    @property
    def is_told(self) -> bool:
        """Whether anything is to be done about the group."""
        return self.available or self.taken or not self.kept


@lru_cache(maxsize=4_096)  # Groups share the few values that there are.
def _changed(before: Uses, change: Change, epoch: int, most: int) -> Changed:
    """In this trainer epoch, and with this limit."""
    used, opened = before.used + change.used, before.open + change.open
    used_up = change.uses_up and 0 <= most <= used
    ended = before.ended or change.ends or (not opened and (change.drops or used_up))
    last, lately = before.epoch, before.lately
    if change.used > 0 and last != epoch:
        last, lately = epoch, 0
    if last == epoch:
        lately += change.used
        last = epoch if lately else -1
    uses = Uses(
        used,
        before.held + change.held,
        opened,
        before.unacked + change.unacked,
        ended,
        change.used >= 0 and (before.dropped or (change.drops and opened > 0)),
        last,
        lately,
        before.pins + change.pins,
    )
    available = uses.available(most)
    again = uses.used if available else 0
    uses = uses._replace(again=min(again, 1) if most < 0 else again)
    kept = uses.held > 0 or uses.pins > 0 or (available and uses.used > 0)
    taken = not available and (before.available(most) or before.again > 0)
    return Changed(uses, kept, available, taken)


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
        self._unacked = Counter[tuple[str, int | None]]()
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
            if uses.unacked == acks:
                found[ref.environment, uses.waits_as()] -= 1
        groups, left = Counter[str](), Counter[str]()
        for (environment, used), count in found.items():
            groups[environment] += count
            left[environment] += count * max(0, max_samples - used) if used else 0
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
        after, kept, told_of = found.uses, found.kept, found.is_told
        told = []
        for ref in refs:
            uses = groups.get(ref, UNUSED)
            if uses is not before or ref[0] != environment:  # Most are like the one before.
                self._count(environment, before, after, many)
                before, environment, many = uses, ref[0], 0
                found = _changed(before, change, self._epoch, self._max_samples)
                after, kept, told_of = found.uses, found.kept, found.is_told
            many += 1
            if kept:
                groups[ref] = after
            else:
                groups.pop(ref, None)
            if told_of:
                told.append((ref, found))
        self._count(environment, before, after, many)
        return told

    def drop(self, refs: Sequence[GroupRef], reason: str) -> None:
        """``DROP``, for this reason: those that were ready unused count as inserted."""
        if reason in WERE_READY:
            self._first_lately += sum(map(self.is_fresh, refs))
        self.change(refs, DROP)

    def limit_by(self, choosing: str) -> list[GroupRef]:
        """A decision was made by these recorded settings: returns the groups that are used up by
        its limit and were not before, for ``USE_UP``."""
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

    def _count(self, environment: str, before: Uses, after: Uses, many: int) -> None:
        """So many groups had the uses before, and have those after."""
        for uses, sign in ((before, -many), (after, many)):
            if uses.epoch == self._epoch:
                self.lately += sign * uses.lately
                self._first_lately += sign
                self._again_lately += sign * (uses.again > 0)
            if uses.again:
                self._used_again[environment] += sign * uses.again
                self._groups_again[environment] += sign
            if (key := (environment, uses.waits_as()))[1] is not None:
                self._unacked[key] += sign
                if not self._unacked[key]:
                    del self._unacked[key]

    def sorted_items(self) -> list[Any]:
        """For a digest."""
        counts = (self._epoch, self.lately, self._first_lately, self._again_lately)
        return [counts, *sorted(self._groups.items())]
