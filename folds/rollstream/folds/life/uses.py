"""How often groups were handed out, and which of them are still needed. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from rollstream.streams.folds.refs import GroupRef


@lru_cache(maxsize=16)
def max_samples_of(choosing: str, before: int) -> int:
    """The limit of the settings that a decision recorded; ``before`` where it recorded none."""
    return int(json.loads(choosing).get("max_samples", 1)) if choosing else before


class _Uses(NamedTuple):
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


# Groups share the few values that there are.
@lru_cache(maxsize=1_024)
def _changed(
    uses: _Uses, used: int, held: int, open_: int, unacked: int, ended: bool, dropped: bool
) -> _Uses:
    """With these numbers added, and so marked."""
    return _Uses(
        uses.used + used,
        uses.held + held,
        uses.open + open_,
        uses.unacked + unacked,
        ended,
        dropped,
        uses.epoch,
        uses.lately,
        uses.pins,
    )


@lru_cache(maxsize=1_024)
def _begun(uses: _Uses, epoch: int) -> _Uses:
    """With one more use, in this trainer epoch."""
    lately = 1 + (uses.lately if uses.epoch == epoch else 0)
    changed = _changed(uses, 1, 1, 1, 1, uses.ended, uses.dropped)
    return changed._replace(epoch=epoch, lately=lately)


def _unacked(ref: GroupRef, uses: _Uses) -> tuple[str, int]:
    return ref.environment, -1 if uses.ended or uses.dropped else uses.used


_UNUSED = _Uses()
WERE_READY = frozenset(("stale", "too_old", "capacity", "by_trainer"))
"""So end groups that a batch could have had before; others that are dropped were fit for none."""


class GroupUses:
    """The uses of groups that are in a batch which is held, or were used and may be again.

    A group is in one batch at a time that is neither acked nor final; only where batches are
    replayed after a resume it may be in several. After each change ask ``settle``.

    Attributes:
        lately: uses that were decided in the trainer epoch in effect, and not given back.
    """

    def __init__(self, max_samples: int) -> None:
        self._groups: dict[GroupRef, _Uses] = {}
        # How often those were used that may be served again; their sum by environment.
        self._again: dict[GroupRef, int] = {}
        self._used_again = Counter[str]()
        self._groups_again = Counter[str]()  # How many groups these are.
        # Groups with an ack to come, by environment and uses; -1: there will be no other.
        self._unacked = Counter[tuple[str, int]]()
        self._max_samples = max_samples  # Of the newest decision, so that logs say it.
        self._epoch = self.lately = 0
        self._first_lately = 0  # Groups that were used in this epoch, or dropped unused.
        self._again_lately = 0  # Groups of ``_again`` that were used in this epoch.

    def held(self, ref: GroupRef) -> bool:
        """Whether a batch that is held has the group."""
        uses = self._groups.get(ref)
        return uses is not None and (uses.held > 0 or uses.pins > 0)

    def is_pinned(self, ref: GroupRef) -> bool:
        """Whether a step to come may carry the group."""
        uses = self._groups.get(ref)
        return uses is not None and uses.pins > 0

    def is_open(self, ref: GroupRef) -> bool:
        """Whether a batch that is not final was to have the group."""
        uses = self._groups.get(ref)
        return uses is not None and uses.open > 0

    def left(self, ref: GroupRef, max_samples: int) -> int:
        """How often a group that a batch has may be served once more, with this limit."""
        uses = self._groups.get(ref, _UNUSED)
        return 0 if uses.ended or uses.dropped else max(0, max_samples - uses.used)

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
            if self._groups[ref].unacked == acks:
                found[_unacked(ref, self._groups[ref])] -= 1
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
        return self._groups.get(ref, _UNUSED).epoch != self._epoch

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

    def begin(self, ref: GroupRef) -> None:
        """A batch has the group from now on."""
        self._mark_again(ref, 0)
        self.lately += 1
        self._first_lately += self.is_fresh(ref)
        self._put(ref, _begun(self._groups.get(ref, _UNUSED), self._epoch))

    def carry(self, ref: GroupRef) -> None:
        """A batch that is held carries the group, which is no further use; ``forget`` ends it."""
        uses = self._groups[ref]
        self._groups[ref] = uses._replace(held=uses.held + 1)

    def pin(self, ref: GroupRef, pins: int) -> None:
        """One more batch, or with -1 one less, has it of which a step to come may carry groups."""
        uses = self._groups[ref]
        self._groups[ref] = uses._replace(pins=uses.pins + pins)

    def ack(self, ref: GroupRef) -> None:
        """A batch that has it was acked."""
        uses = self._groups[ref]
        self._put(ref, _changed(uses, 0, 0, 0, -1, uses.ended, uses.dropped))

    def reopen(self, ref: GroupRef) -> None:
        """A batch that has it is replayed: its ack no longer counts."""
        uses = self._groups[ref]
        self._put(ref, _changed(uses, 0, 0, 0, 1, uses.ended, uses.dropped))

    def give_back(self, ref: GroupRef) -> None:
        """A batch that had it unacked was released, or another group took its slot: that was no
        use."""
        uses = self._groups[ref]
        if uses.epoch == self._epoch:
            self.lately -= 1
            self._first_lately -= uses.lately == 1
            last = -1 if uses.lately == 1 else uses.epoch
            uses = uses._replace(epoch=last, lately=uses.lately - 1)
        self._put(ref, _changed(uses, -1, -1, -1, -1, uses.ended, False))

    def finish(self, ref: GroupRef, *, acked: bool, skipped: bool) -> None:
        """A batch that has it is final: a group that is used up, or that its ack ``skipped``, then
        stays so, also where the limit is raised later."""
        unacked = 0 if acked and not skipped else -1
        uses = self._groups[ref]
        used_up = uses.open == 1 and 0 <= self._max_samples <= uses.used
        ended = uses.ended or used_up or skipped
        self._put(ref, _changed(uses, 0, 0, -1, unacked, ended, uses.dropped))

    def forget(self, ref: GroupRef) -> None:
        """A batch that has it is no longer held: a use that was final stays one."""
        uses = self._groups[ref]
        self._groups[ref] = _changed(uses, 0, -1, 0, 0, uses.ended, uses.dropped)

    def drop(self, ref: GroupRef, reason: str) -> None:
        """It will not be served beyond the batches that are open: those have it, and a release of
        one gives it back."""
        self._mark_again(ref, 0)
        self._first_lately += reason in WERE_READY and self.is_fresh(ref)
        if self.is_open(ref):
            self._put(ref, self._groups[ref]._replace(dropped=True))
        else:
            self.end(ref)

    def end(self, ref: GroupRef) -> None:
        """It will never be served again; nothing is kept of one that no batch has."""
        self._mark_again(ref, 0)
        if self.held(ref):
            self._put(ref, self._groups[ref]._replace(ended=True))
        else:
            self._groups.pop(ref, None)

    def limit_by(self, choosing: str) -> list[GroupRef]:
        """A decision was made by these recorded settings: returns the groups that are used up by
        its limit and were not before. Those of no open batch stay so, as with ``finish``."""
        most = max_samples_of(choosing, self._max_samples)
        found = self.used_up_by(most)
        self._max_samples = most
        for ref in found:
            if not self.is_open(ref):
                self._groups[ref] = self._groups[ref]._replace(ended=True)
        return found

    def used_up_by(self, max_samples: int) -> list[GroupRef]:
        """The groups that were used as often, where that limit is below the one in effect: by that
        they may be ready."""
        if max_samples < 0 or 0 <= self._max_samples <= max_samples:
            return []
        return [ref for ref, uses in self._groups.items() if uses.used >= max_samples]

    def settle(self, ref: GroupRef) -> bool:
        """Whether the group may be served (again); nothing is kept of one that nobody needs."""
        uses = self._groups[ref]
        left = self._max_samples < 0 or uses.used < self._max_samples
        available = left and not (uses.unacked or uses.ended or uses.dropped or uses.pins)
        again = uses.used if available else 0
        self._mark_again(ref, min(again, 1) if self._max_samples < 0 else again)
        if not (uses.held or uses.pins or (available and uses.used)):
            del self._groups[ref]
        return available

    def _put(self, ref: GroupRef, uses: _Uses) -> None:
        """For what may change ``_unacked``."""
        before = self._groups.get(ref)
        if before is not None and before.unacked:
            key = _unacked(ref, before)
            self._unacked[key] -= 1
            if not self._unacked[key]:
                del self._unacked[key]
        self._groups[ref] = uses
        if uses.unacked:
            self._unacked[_unacked(ref, uses)] += 1

    def _mark_again(self, ref: GroupRef, uses: int) -> None:
        before = self._again.pop(ref, 0)
        if uses or before:
            self._used_again[ref.environment] += uses - before
            self._groups_again[ref.environment] += bool(uses) - bool(before)
            self._again_lately += (bool(uses) - bool(before)) * (not self.is_fresh(ref))
            if uses:
                self._again[ref] = uses

    def sorted_items(self) -> list[Any]:
        """For a digest."""
        counts = (self._epoch, self.lately, self._first_lately, self._again_lately)
        return [counts, *sorted(self._groups.items())]
