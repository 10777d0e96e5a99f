"""When the turn comes of each example of an environment that has ready groups. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from rollstream.folds.group.sorted_rows import SortedRows
from rollstream.folds.ready.last_turns import LastTurns
from rollstream.schemas.order import UNKNOWN_STEP, PolicyRef

TurnOfKey = tuple[int, ...]  # When the turn comes; age, seal time and ref of a group.
_EPOCH_MAX = 2**24 - 1
_STEP_BITS = 40


def age_of(policy: PolicyRef) -> int:
    """Rises with epoch and step, from 0; all that are beyond what 64 bits hold count as one."""
    step = min(max(policy.step, UNKNOWN_STEP) + 1, (1 << _STEP_BITS) - 1)
    return min(max(policy.epoch, 0), _EPOCH_MAX) << _STEP_BITS | step


class ExampleTurns:
    """The keys of an environment, as hashes. Of a group: its age, when it was sealed, its ref.

    Attributes:
        groups: (key, age, when it was sealed, ref) of the ready groups.
        turns: the last turns of the keys that were ever served.
        order: of each key that has ready groups when its turn comes, and its oldest group.
        ages: (when it was sealed, ref) of the ready groups.
    """

    def __init__(self, turn_ages: array[int]) -> None:
        self.groups = SortedRows(4)
        self.turns = LastTurns()
        self.order = SortedRows(4)
        self.ages = SortedRows(2)
        self._turn_ages = turn_ages

    def place(self, key: int, oldest: Sequence[int]) -> TurnOfKey:
        """When the turn of the key comes, whose oldest group is this one: with the policy that
        sampled it, or that was the newest when the key was served last, if that is a later one."""
        age, sealed_ts, ref = oldest
        return max(age, self._turn_ages[self.turns.get(key)]), age, sealed_ts, ref

    def add(self, key: int, age: int, sealed_ts: int, ref: int) -> None:
        group = age, sealed_ts, ref
        before = self.groups.least(key)
        self.groups.add(key, *group)
        self.ages.add(sealed_ts, ref)
        if before is None:
            self.order.add(*self.place(key, group))
        elif group < before[1:]:
            self.order.remove(*self.place(key, before[1:]))
            self.order.add(*self.place(key, group))

    def remove(self, key: int, age: int, sealed_ts: int, ref: int) -> None:
        group = age, sealed_ts, ref
        before = self.groups.least(key)
        self.groups.remove(key, *group)
        self.ages.remove(sealed_ts, ref)
        if before is not None and before[1:] == group:
            self.order.remove(*self.place(key, group))
            if (oldest := self.groups.least(key)) is not None:
                self.order.add(*self.place(key, oldest[1:]))

    def mark_served(self, served: Sequence[tuple[int, int]]) -> None:
        if len(self.groups):
            for key, turn in served:
                oldest = self.groups.least(key)
                if oldest is not None and turn > self.turns.get(key):
                    self.order.remove(*self.place(key, oldest[1:]))
                    self.turns.serve([(key, turn)])
                    self.order.add(*self.place(key, oldest[1:]))
        self.turns.serve(served)
