"""When the turn comes of each example of an environment that has ready groups. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence, Set

from rollstream.folds.group.sorted_rows import SortedRows
from rollstream.folds.ready.last_turns import LastTurns
from rollstream.schemas.order import UNKNOWN_STEP, PolicyRef

# When the turn comes; age, seal time and ref of the key's oldest group; the key.
TurnOfKey = tuple[int, ...]
_EPOCH_MAX = 2**24 - 1
_STEP_BITS = 40
_REF_AT = 3  # In a row of ``ExampleTurns.groups``.


def age_of(policy: PolicyRef) -> int:
    """Rises with epoch and step, from 0; all that are beyond what 64 bits hold count as one."""
    step = min(max(policy.step, UNKNOWN_STEP) + 1, (1 << _STEP_BITS) - 1)
    return min(max(policy.epoch, 0), _EPOCH_MAX) << _STEP_BITS | step


class ExampleTurns:
    """The keys of an environment, as hashes, with their ready groups.

    Attributes:
        groups: (key, age, when it was sealed, ref, number of its policies) of the ready groups.
        turns: the last turns of the keys that were ever served.
        order: of each key that has ready groups a ``TurnOfKey``.
        ages: (when it was sealed, ref) of the ready groups.
    """

    def __init__(self, turn_ages: array[int]) -> None:
        self.groups = SortedRows(5)
        self.turns = LastTurns()
        self.order = SortedRows(5)
        self.ages = SortedRows(2)
        self._turn_ages = turn_ages

    def place(self, key: int, age: int, sealed_ts: int, ref: int) -> TurnOfKey:
        """When the turn of the key comes, whose oldest group is this one: with the policy that
        sampled it, or that was the newest when the key was served last, if that is a later one."""
        return max(age, self._turn_ages[self.turns.get(key)]), age, sealed_ts, ref, key

    def places(self, keys: Iterable[int]) -> list[TurnOfKey]:
        """Those of the keys that have ready groups, in turn."""
        oldest = filter(None, map(self.groups.least, keys))
        return sorted([self.place(*row[:4]) for row in oldest])

    def places_after(self, keys: Sequence[int], without: Set[int]) -> list[TurnOfKey]:
        """When the turns of these keys come without these groups, among which the oldest one of
        each is; of keys that have others."""
        several = self.groups.beginning(keys, more_than=1)
        found = [self.groups.least_but(key, _REF_AT, without) for key in several]
        return [self.place(*row[:4]) for row in found if row is not None]

    def add(self, key: int, age: int, sealed_ts: int, ref: int, number: int) -> None:
        group = age, sealed_ts, ref
        before = self.groups.least(key)
        self.groups.add(key, *group, number)
        self.ages.add(sealed_ts, ref)
        if before is None:
            self.order.add(*self.place(key, *group))
        elif group < before[1:4]:
            self.order.remove(*self.place(*before[:4]))
            self.order.add(*self.place(key, *group))

    def remove(self, groups: Sequence[TurnOfKey]) -> None:
        """Rows of ``groups``."""
        oldest = {group[0]: group for group in sorted(groups, reverse=True)}
        self.groups.remove_all(groups)
        self.ages.remove_all([(sealed_ts, ref) for _, _, sealed_ts, ref, _ in groups])
        left = {key: self.groups.least(key) for key in self.groups.beginning(oldest)}
        later: list[TurnOfKey] = []
        for key, row in left.items():
            if row is not None and row < oldest[key]:
                del oldest[key]  # It was not the oldest one of its key.
            elif row is not None:
                later.append(self.place(*row[:4]))
        self.order.remove_all([self.place(*row[:4]) for row in oldest.values()])
        for place in later:
            self.order.add(*place)

    def mark_served(self, served: Sequence[tuple[int, int]]) -> None:
        if len(self.groups):
            ready = {*self.groups.beginning({key for key, _ in served})}
            for key, turn in served:
                oldest = self.groups.least(key) if key in ready else None
                if oldest is not None and turn > self.turns.get(key):
                    self.order.remove(*self.place(*oldest[:4]))
                    self.turns.serve([(key, turn)])
                    self.order.add(*self.place(*oldest[:4]))
        self.turns.serve(served)
