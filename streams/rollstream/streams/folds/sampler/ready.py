"""The groups that may be served, in an order that arrival does not influence. Pure."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from operator import attrgetter

import xxhash

from rollstream.schemas.order import PolicyRef
from rollstream.streams.folds.refs import GroupRef
from rollstream.streams.folds.sampler.known import Key, KnownGroup

_TurnKey = tuple[int, int, Key]  # By which keys take turns: last turn, hash, the key itself.
_by_ref = attrgetter("ref")


class ReadyIndex:
    """Buckets by key, each sorted by ref; keys least recently served first, ties by a seeded hash.

    So the order is a function of what is in it, of the seed, and of what was served before.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._buckets: dict[Key, list[KnownGroup]] = {}
        self._turn_keys: dict[Key, _TurnKey] = {}
        self._order: dict[str, list[_TurnKey]] = {}
        self._turns: dict[Key, int] = {}
        self._policies: dict[tuple[PolicyRef, ...], dict[GroupRef, KnownGroup]] = {}
        self._ages: list[tuple[int, GroupRef]] = []
        self._groups: dict[GroupRef, KnownGroup] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, ref: GroupRef) -> bool:
        return ref in self._groups

    def counts(self) -> dict[str, int]:
        """Groups by environment, of those that have any."""
        counts = {
            environment: sum(len(self._buckets[key]) for *_, key in order)
            for environment, order in self._order.items()
        }
        return {environment: count for environment, count in counts.items() if count}

    def refs(self) -> list[GroupRef]:
        """Sorted."""
        return sorted(self._groups)

    def add(self, group: KnownGroup) -> None:
        """The group is ready from now on."""
        ref = group.ref
        assert ref not in self._groups, ref
        self._groups[ref] = group
        bucket = self._buckets.get(group.key)
        if bucket is None:
            self._buckets[group.key] = [group]
            self._enter_order(group.key)
        else:
            insort(bucket, group, key=_by_ref)
        self._policies.setdefault(group.policies, {})[ref] = group
        insort(self._ages, (group.sealed_ts, ref))

    def remove(self, ref: GroupRef) -> None:
        """The group is no longer ready."""
        group = self._groups.pop(ref)
        bucket = self._buckets[group.key]
        del bucket[bisect_left(bucket, ref, key=_by_ref)]
        if not bucket:
            del self._buckets[group.key]
            self._leave_order(group.key)
        alike = self._policies[group.policies]
        del alike[ref]
        if not alike:
            del self._policies[group.policies]
        del self._ages[bisect_left(self._ages, (group.sealed_ts, ref))]

    def mark_served(self, key: Key, turn: int) -> None:
        """A group of the key was served in this turn; turns may become known in any order."""
        if turn <= self._turns.get(key, 0):
            return
        self._turns[key] = turn
        if key in self._turn_keys:
            self._leave_order(key)
            self._enter_order(key)

    def turns(self) -> list[tuple[Key, int]]:
        """Sorted by key."""
        return sorted(self._turns.items())

    def keys_in_turn(self, environments: list[str]) -> Iterator[tuple[Key, list[KnownGroup]]]:
        """Keys of these environments, those served longest ago first, with their groups."""
        orders = [self._order.get(environment, []) for environment in environments]
        for _, _, key in heapq.merge(*orders):
            yield key, self._buckets[key]

    def by_policies(self) -> Mapping[tuple[PolicyRef, ...], Mapping[GroupRef, KnownGroup]]:
        """The distinct policies among the ready groups, and whose they are."""
        return self._policies

    def all_equal(self) -> list[KnownGroup]:
        """Groups whose rewards are all the same."""
        return [group for group in self._groups.values() if group.all_equal]

    def oldest(self, count: int) -> list[GroupRef]:
        """The groups sealed longest ago."""
        return [ref for _, ref in self._ages[:count]]

    def _enter_order(self, key: Key) -> None:
        text = f"{self._seed}\x1f{key.environment}\x1f{key.example_id}"
        turn_key = (self._turns.get(key, 0), xxhash.xxh3_64_intdigest(text.encode()), key)
        self._turn_keys[key] = turn_key
        insort(self._order.setdefault(key.environment, []), turn_key)

    def _leave_order(self, key: Key) -> None:
        turn_key = self._turn_keys.pop(key)
        order = self._order[key.environment]
        del order[bisect_left(order, turn_key)]
