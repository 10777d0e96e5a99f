"""The groups that may be served, in an order that arrival does not influence. Pure."""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, islice, repeat
from operator import itemgetter
from typing import overload

import xxhash

from rollstream.schemas.order import PolicyRef
from rollstream.streams.folds.refs import GroupRef
from rollstream.streams.folds.sampler.known import Key, KnownGroup
from rollstream.streams.folds.sampler.known_groups import KnownGroups
from rollstream.streams.folds.sampler.last_turns import LastTurns
from rollstream.streams.folds.sampler.packed_refs import INDEX_BITS
from rollstream.streams.folds.sampler.sorted_pairs import SortedPairs

Policies = tuple[PolicyRef, ...]  # The distinct ones of a group, sorted.
_hash = xxhash.xxh3_64_intdigest
KEYS_TAKEN = 64  # Of the keys in turn a batch takes about so many.


class Bucket(Sequence[KnownGroup]):
    """The ready groups of a key by rising ref, each made when it is looked at."""

    def __init__(self, refs: array[int], group_at: Callable[[int], KnownGroup]) -> None:
        self._refs = refs
        self._group_at = group_at

    def __len__(self) -> int:
        return len(self._refs)

    @overload
    def __getitem__(self, index: int) -> KnownGroup: ...

    @overload
    def __getitem__(self, index: slice) -> Bucket: ...

    def __getitem__(self, index: int | slice) -> KnownGroup | Bucket:
        if isinstance(index, slice):
            return Bucket(self._refs[index], self._group_at)
        return self._group_at(self._refs[index])


class _Environment:
    """The keys of an environment, as hashes.

    Attributes:
        groups: (key, ref) of the ready groups.
        turns: the last turns of the keys that were ever served.
        order: (last turn, key) of the keys that have ready groups; 0: it was never served.
        ages: (when it was sealed, ref) of the ready groups.
    """

    def __init__(self) -> None:
        self.groups = SortedPairs()
        self.turns = LastTurns()
        self.order = SortedPairs()
        self.ages = SortedPairs()

    def add(self, key: int, ref: int, sealed_ts: int) -> None:
        if self.groups.any_second(key) is None:
            self.order.add(self.turns.get(key), key)
        self.groups.add(key, ref)
        self.ages.add(sealed_ts, ref)

    def remove(self, key: int, ref: int, sealed_ts: int) -> None:
        self.groups.remove(key, ref)
        self.ages.remove(sealed_ts, ref)
        if self.groups.any_second(key) is None:
            self.order.remove(self.turns.get(key), key)

    def mark_served(self, served: Sequence[tuple[int, int]]) -> None:
        if len(self.groups):
            for key, turn in served:
                if self.groups.any_second(key) is not None:
                    before = self.turns.get(key)
                    if turn > before:
                        self.order.remove(before, key)
                        self.order.add(turn, key)
                        self.turns.serve([(key, turn)])
        self.turns.serve(served)


class ReadyIndex:
    """Of the known groups those that are ready: buckets by key, each sorted by ref; keys least
    recently served first, ties by a seeded hash.

    So the order is a function of what is in it, of the seed, and of what was served before. A
    change costs some microseconds among a million groups, and no question but ``refs`` and
    ``turns`` walks all of them. Two keys of one environment with the same 64-bit hash count as one.
    """

    def __init__(self, seed: int, known: KnownGroups) -> None:
        self._seed = seed
        self._known = known
        self._packed = known.packed
        self._environments: dict[str, _Environment] = {}
        self._masks: dict[int, int] = {}  # By flush, a bit for each group of it that is ready.
        self._size = 0
        self._numbers: dict[Policies, int] = {}  # Drawn anew where policies come back.
        self._next_number = 0
        self._by_number = SortedPairs()
        self._having: dict[PolicyRef, set[Policies]] = {}
        self._distinct: list[PolicyRef] = []
        self._all_equal = SortedPairs()  # By age.

    def __len__(self) -> int:
        return self._size

    def __contains__(self, ref: GroupRef) -> bool:
        flush = self._packed.find(ref) >> INDEX_BITS  # -1 where it is of none of the logs.
        return bool(self._masks.get(flush, 0) >> ref.index_in_flush & 1)

    def counts(self) -> dict[str, int]:
        """Groups by environment, of those that have any."""
        found = self._environments.items()
        return {environment: len(of.groups) for environment, of in found if len(of.groups)}

    def refs(self) -> list[GroupRef]:
        """Sorted."""
        found = self._environments.values()
        return sorted(self._unpacked(ref for of in found for _, ref in of.ages))

    def add(self, group: KnownGroup) -> None:
        """The group, which is known, is ready from now on."""
        assert group.ref not in self, group.ref
        ref = self._packed.pack(group.ref)
        flush = ref >> INDEX_BITS
        self._masks[flush] = self._masks.get(flush, 0) | 1 << group.ref.index_in_flush
        self._size += 1
        self._environment(group.key.environment).add(self._hash(*group.key), ref, group.sealed_ts)
        number = self._numbers.get(group.policies)
        if number is None:
            number = self._numbers[group.policies] = self._next_number
            self._next_number += 1
            for policy in group.policies:
                if policy not in self._having:
                    self._having[policy] = set()
                    insort(self._distinct, policy)
                self._having[policy].add(group.policies)
        self._by_number.add(number, ref)
        if group.all_equal:
            self._all_equal.add(group.sealed_ts, ref)

    def discard(self, of: GroupRef) -> None:
        """The group, which is known if it is ready, is no longer ready."""
        ref = self._packed.find(of)
        flush, bit = ref >> INDEX_BITS, 1 << of.index_in_flush
        mask = self._masks.get(flush, 0)
        if not mask & bit:
            return
        if mask == bit:
            del self._masks[flush]
        else:
            self._masks[flush] = mask ^ bit
        group = self._known.at(ref)
        self._size -= 1
        self._environment(group.key.environment).remove(
            self._hash(*group.key), ref, group.sealed_ts
        )
        number = self._numbers[group.policies]
        self._by_number.remove(number, ref)
        if self._by_number.any_second(number) is None:
            del self._numbers[group.policies]
            for policy in group.policies:
                self._having[policy].discard(group.policies)
                if not self._having[policy]:
                    del self._having[policy]
                    del self._distinct[bisect_left(self._distinct, policy)]
        if group.all_equal:
            self._all_equal.remove(group.sealed_ts, ref)

    def mark_served(self, environment: str, served: Iterable[tuple[str, int]]) -> None:
        """Examples, of each of which a group was served in this turn; turns may become known in any
        order."""
        before = self._before(environment)
        hashed = [(_hash(before + example.encode()), turn) for example, turn in served]
        self._environment(environment).mark_served(hashed)

    def turns(self) -> list[tuple[str, int, int]]:
        """Of each key that was ever served its environment, its hash and its last turn; sorted."""
        found = sorted(self._environments.items())
        return [(environment, *pair) for environment, of in found for pair in of.turns]

    def keys_in_turn(
        self, environments: Collection[str], policies: Collection[Policies] | None = None
    ) -> Iterator[tuple[Key, Sequence[KnownGroup]]]:
        """Keys of these environments, those served longest ago first, with their groups.

        Args:
            policies: only groups of these, and only keys that have any; None: all.
        """
        if policies is None:
            yield from self._in_turn(environments)
            return
        numbers = [self._numbers[one] for one in set(policies) if one in self._numbers]
        refs = array("Q", chain.from_iterable(map(self._by_number.seconds, numbers)))
        if len(refs) ** 2 < KEYS_TAKEN * len(self):
            yield from self._looked_up(environments, refs)
            return
        alike = set(policies)
        for key, bucket in self._in_turn(environments):
            among = [group for group in bucket if group.policies in alike]
            if among:
                yield key, among

    def distinct_policies(self) -> Collection[Policies]:
        """The policies of the ready groups, each once."""
        return self._numbers.keys()

    def count_of(self, policies: Policies) -> int:
        """Groups of exactly these policies."""
        number = self._numbers.get(policies)
        return 0 if number is None else len(self._by_number.seconds(number))

    def policies(self) -> Sequence[PolicyRef]:
        """The distinct policies of the ready groups' members, sorted."""
        return self._distinct

    def having(self, policy: PolicyRef) -> Collection[Policies]:
        """The policies of ready groups of which a member has this one."""
        return self._having[policy]

    def by_policies(self, policies: Policies) -> list[GroupRef]:
        """The groups of exactly these policies; sorted."""
        number = self._numbers.get(policies)
        return [] if number is None else self._unpacked(self._by_number.seconds(number))

    def all_equal(self) -> list[GroupRef]:
        """Groups whose rewards are all the same, those sealed longest ago first."""
        return self._unpacked(ref for _, ref in self._all_equal)

    def oldest(self, count: int, environment: str | None = None) -> list[GroupRef]:
        """The groups sealed longest ago, of the environment or of all."""
        found = self._environments.items()
        among = [of.ages for name, of in found if environment in (None, name)]
        return self._unpacked(ref for _, ref in islice(heapq.merge(*among), count))

    def _in_turn(self, environments: Collection[str]) -> Iterator[tuple[Key, Bucket]]:
        found = [
            (name, self._environments[name]) for name in {*environments} & {*self._environments}
        ]
        orders = [zip(of.order, repeat(name), repeat(of)) for name, of in found]
        several = len(orders) > 1
        among = heapq.merge(*orders, key=itemgetter(0, 1)) if several else chain(*orders)
        for (_, hashed), _, of in among:
            bucket = Bucket(of.groups.seconds(hashed), self._known.at)
            yield bucket[0].key, bucket

    def _looked_up(
        self, environments: Collection[str], refs: Iterable[int]
    ) -> Iterator[tuple[Key, Bucket]]:
        """The keys of these groups in turn, with no others in their buckets."""
        buckets: dict[tuple[int, int, str], array[int]] = {}
        for ref in sorted(refs):
            key = self._known.at(ref).key
            if key.environment in environments:
                hashed = self._hash(*key)
                turn = self._environments[key.environment].turns.get(hashed)
                buckets.setdefault((turn, hashed, key.environment), array("Q")).append(ref)
        for _, those in sorted(buckets.items()):
            yield self._known.at(those[0]).key, Bucket(those, self._known.at)

    def _environment(self, name: str) -> _Environment:
        found = self._environments.get(name)
        if found is None:
            found = self._environments[name] = _Environment()
        return found

    def _hash(self, environment: str, example_id: str) -> int:
        return _hash(self._before(environment) + example_id.encode())

    def _before(self, environment: str) -> bytes:
        """What is hashed before each example of it."""
        return f"{self._seed}\x1f{environment}\x1f".encode()

    def _unpacked(self, refs: Iterable[int]) -> list[GroupRef]:
        return list(map(self._packed.unpack, refs))
