"""The groups that may be served, in an order that arrival does not influence. Pure."""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from functools import cache
from itertools import chain, compress, dropwhile, filterfalse, islice, repeat
from typing import Any

import numpy as np
import xxhash

from rollstream.folds.group.known import Key, KnownGroup
from rollstream.folds.group.known_groups import KnownGroups
from rollstream.folds.group.packed_refs import INDEX_BITS, INDEX_MAX
from rollstream.folds.group.packed_rows import PackedRows
from rollstream.folds.group.sorted_rows import SortedRows
from rollstream.folds.ready.example_turns import ExampleTurns, TurnOfKey, age_of
from rollstream.folds.ready.needed_steps import NeededSteps
from rollstream.schemas.order import PolicyRef
from rollstream.streams.folds.refs import GroupRef

Policies = tuple[PolicyRef, ...]  # The distinct ones of a group, sorted.
_hash = xxhash.xxh3_64_intdigest
_NONE: Set[int] = frozenset()
_EARLIEST = 2**63  # Added to times, so that none is negative.
KEYS_TAKEN = 64  # Of the keys in turn a batch takes about so many.
_PASSED_PER_LOOKUP = 64  # Keys that are passed over in the time in which one is looked up.


class ReadyIndex:
    """Of the known groups those that are ready, in buckets by key. Of a bucket the group of the
    oldest policy comes first, and of these the one that was sealed first.

    The turn of a key comes with its oldest group's policy, or with the one that was the newest when
    the key was served last, if that is later; of these by the oldest group as in a bucket. This is
    start-time fair queueing (Goyal, Vin and Cheng, 1996), whose clock is the trainer's steps: what
    waits longest comes first, and an example with many groups keeps no other waiting.

    So the order is a function of what is in it and of what was served before. A change costs some
    microseconds among a million groups, and no question but ``refs``, ``turns`` and
    ``by_age`` walks all of them. Two keys of one environment with the same 64-bit hash count
    as one. Groups are asked for, and told, by their packed references, as ``PackedRefs`` has them.

    Args:
        seed: of the keys' hashes.
        takes_turns: False: nothing is kept of what was served, since only ``as_sealed`` is asked.
        least: fewest rollouts of a group that is served, by environment, for ``made_before``; None:
            that is not asked.

    Attributes:
        packed: packs references.
    """

    _needed: NeededSteps | None = None  # Made when it is first asked for.

    def __init__(
        self,
        seed: int,
        known: KnownGroups,
        *,
        takes_turns: bool = True,
        least: Mapping[str, int] | None = None,
    ) -> None:
        self._seed = seed
        self._takes_turns = takes_turns
        self._known = known
        self.packed = known.packed
        self._environments: dict[str, ExampleTurns] = {}
        self._newest_turn = 0
        self._turn_ages = array("Q", [0])  # By turn; none was served in turn 0.
        self._masks: dict[int, int] = {}  # By flush, a bit for each group of it that is ready.
        self._size = 0
        self._numbers: dict[Policies, int] = {}  # Drawn anew where policies come back.
        self._next_number = 0
        self._by_number = SortedRows(3)  # (Number, ref, key.)
        self._having: dict[PolicyRef, set[Policies]] = {}
        self._distinct: list[PolicyRef] = []
        self._all_equal = SortedRows(2)  # By age.
        self._filtered = set[int]()
        self._least = least
        # When ``made_before`` has a group, when its newest rollout was made, how many it has, ref.
        self._made = SortedRows(4)

    def __getstate__(self) -> dict[str, Any]:
        """For a snapshot: without what is made again from the rest."""
        return {name: value for name, value in vars(self).items() if name != "_needed"}

    def __len__(self) -> int:
        return self._size

    def __contains__(self, ref: GroupRef) -> bool:
        return self.has(self.packed.find(ref))

    def has(self, packed: int) -> bool:
        """Whether the group of a packed reference is ready; -1 is none."""
        return bool(self._masks.get(packed >> INDEX_BITS, 0) >> (packed & INDEX_MAX) & 1)

    def counts(self) -> dict[str, int]:
        """Groups by environment, of those that have any."""
        found = self._environments.items()
        return {environment: len(of.groups) for environment, of in found if len(of.groups)}

    def refs(self) -> list[GroupRef]:
        """Sorted."""
        found = self._environments.values()
        return sorted(self.packed.unpack(ref) for of in found for _, ref in of.ages)

    def add(self, group: KnownGroup, *, filtered: bool = False) -> None:
        """The group, which is known, is ready from now on; ``filtered``, until it is dropped."""
        assert group.ref not in self, group.ref
        ref, key = self.packed.pack(group.ref), self._hash(*group.key)
        flush = ref >> INDEX_BITS
        self._masks[flush] = self._masks.get(flush, 0) | 1 << group.ref.index_in_flush
        self._size += 1
        number = self._numbers.get(group.policies)
        if number is None:
            number = self._numbers[group.policies] = self._next_number
            self._next_number += 1
            for policy in group.policies:
                if policy not in self._having:
                    self._having[policy] = set()
                    insort(self._distinct, policy)
                self._having[policy].add(group.policies)
        self._by_number.add(number, ref, key)
        self._environment(group.key.environment).add(
            key, age_of(group.policies[0]), group.sealed_ts, ref, number
        )
        if group.all_equal:
            self._all_equal.add(group.sealed_ts, ref)
        if filtered:
            self._filtered.add(ref)
        if self._least is not None:
            self._made.add(*self._made_us(group, self._least), ref)
        if self._needed is not None:
            self._needed.add(group, ref)

    def discard(self, refs: Iterable[GroupRef]) -> None:
        """Those of the groups that are ready, and so known, are no longer ready."""
        rows: dict[str, list[TurnOfKey]] = {}
        numbers: dict[int, Policies] = {}
        for ref in refs:
            packed = self.packed.find(ref)
            flush, bit = packed >> INDEX_BITS, 1 << ref.index_in_flush
            if not self._masks.get(flush, 0) & bit:
                continue
            self._masks[flush] ^= bit
            if not self._masks[flush]:
                del self._masks[flush]
            example_id, sealed_ts, policies, all_equal = self._known.ranked(packed)
            number = self._numbers[policies]
            numbers[number] = policies
            key = self._hash(ref.environment, example_id)
            row = key, age_of(policies[0]), sealed_ts, packed, number
            rows.setdefault(ref.environment, []).append(row)
            if all_equal:
                self._all_equal.remove(sealed_ts, packed)
            self._filtered.discard(packed)
            if self._least is not None:
                made = self._made_us(self._known.made(packed), self._least)
                self._made.remove(*made, packed)
            if self._needed is not None and len(policies) > 1:
                self._needed.remove(self._known.made(packed), packed)
        for environment, groups in rows.items():
            self._size -= len(groups)
            self._environment(environment).remove(groups)
            self._by_number.remove_all([(number, ref, key) for key, _, _, ref, number in groups])
        for number, policies in numbers.items():
            if self._by_number.least(number) is None:
                self._forget(policies)

    def _forget(self, policies: Policies) -> None:
        """No ready group has exactly these."""
        del self._numbers[policies]
        for policy in policies:
            self._having[policy].discard(policies)
            if not self._having[policy]:
                del self._having[policy]
                del self._distinct[bisect_left(self._distinct, policy)]

    def begin_turn(self, newest: PolicyRef) -> int:
        """The next turn, while this policy is the newest."""
        self._newest_turn += 1
        if self._takes_turns:
            self._turn_ages.append(age_of(newest))
        return self._newest_turn

    def mark_served(self, environment: str, served: Iterable[tuple[str, int]]) -> None:
        """Examples, of each of which a group was served in this turn; turns may become known in any
        order."""
        if not self._takes_turns:
            return
        before = self._before(environment)
        hashed = [(_hash(before + example.encode()), turn) for example, turn in served]
        self._environment(environment).mark_served(hashed)

    def turns(self) -> list[tuple[str, int, int]]:
        """Of each key that was ever served its environment, its hash and its last turn; sorted."""
        found = sorted(self._environments.items())
        return [(environment, *pair) for environment, of in found for pair in of.turns]

    def keys_in_turn(
        self,
        environments: Collection[str],
        policies: Collection[Policies] | None = None,
        without: Set[int] = _NONE,
    ) -> Iterator[tuple[Key, Iterator[KnownGroup]]]:
        """Keys of these environments in turn, with their groups, of which each is made when it is
        looked at. It costs a few microseconds a key. Of keys without groups of the policies it
        passes over about as many as it finds so, and others at some nanoseconds.

        Args:
            policies: only groups of these, and only keys that have any; None: all. The turns are
                those of the keys with all their groups.
            without: groups that count as if they were not ready.
        """
        among = [self._environments[name] for name in {*environments} & {*self._environments}]
        orders: list[Iterable[TurnOfKey]] = [of.order for of in among]
        numbers = None
        if policies is not None and len(wanted := self._numbers_of(policies)) < len(self._numbers):
            numbers = wanted
            orders = self._orders(among, numbers)
        for of, key, oldest in _in_turn(among, orders, without):
            refs = _bucket(of, key, oldest, numbers, without)
            groups = map(self._known.at, refs)
            if (first := next(groups, None)) is not None:
                yield first.key, chain([first], groups)

    def as_sealed(
        self,
        environments: Collection[str],
        policies: Collection[Policies] | None = None,
        without: Set[int] = _NONE,
    ) -> Iterator[KnownGroup]:
        """Groups of these environments as they were sealed: by log time, of these by ref.

        Args:
            policies: only groups of these; None: all.
            without: groups that are left out.
        """
        among = [of.ages for name, of in self._environments.items() if name in environments]
        for _, ref in heapq.merge(*among):
            if ref not in without:
                group = self._known.at(ref)
                if policies is None or group.policies in policies:
                    yield group

    def by_age(
        self,
        environments: Collection[str],
        policies: Collection[Policies] | None = None,
        without: Set[int] = _NONE,
    ) -> list[tuple[int, array[int]]]:
        """Groups of these environments by the age of their oldest policy, the oldest first: the age
        and, rising, the references, for ``at``. It costs some nanoseconds a group.

        Args:
            policies: only groups of these; None: all.
            without: groups that are left out.
        """
        bounds = [self.packed.bounds(name) for name in sorted({*environments})]
        alike: dict[int, list[array[int]]] = {}
        for one in self._numbers if policies is None else {*policies} & self._numbers.keys():
            refs = self.by_policies(one)
            if not self._environments.keys() <= {*environments}:
                found = [refs[bisect_left(refs, a) : bisect_left(refs, b)] for a, b in bounds]
                refs = array("Q", chain.from_iterable(found))
            if not without.isdisjoint(refs):
                refs = array("Q", filterfalse(without.__contains__, refs))
            if refs:
                alike.setdefault(age_of(one[0]), []).append(refs)
        return [
            (age, of[0] if len(of) == 1 else array("Q", sorted(chain.from_iterable(of))))
            for age, of in sorted(alike.items())
        ]

    def at(self, packed: int) -> KnownGroup:
        """The group of a packed reference."""
        return self._known.at(packed)

    def aged(self, packed: int) -> tuple[str, int, PackedRows]:
        """The lineage, ``sealed_ts`` and rows of the group of a packed reference."""
        return self._known.aged(packed)

    def made_before(self, oldest_made_us: int) -> Iterator[tuple[int, int]]:
        """Groups of which fewer rollouts than are served were made at that time or later; none if
        the index does not look at that. With each: how many rollouts it has, if all were made
        before; else 0."""
        first = oldest_made_us + _EARLIEST
        for _, newest, rollouts, ref in self._made.below(first):
            yield ref, rollouts if newest < first else 0

    def short_from(self, oldest_step: int, lineage: str, least: Mapping[str, int]) -> Iterator[int]:
        """Groups of several policies of which fewer rollouts than are served have weights of that
        step or later ones. With other arguments than before, but for the step, it looks at all
        groups of several policies once.

        Args:
            lineage: that of the steps; no groups of others.
            least: fewest rollouts of a group that is served, by environment.
        """
        if self._needed is None or not self._needed.is_of(lineage, least):
            self._needed = NeededSteps(lineage, least)
            for policies in self._numbers:
                for ref in self.by_policies(policies) if len(policies) > 1 else ():
                    self._needed.add(self._known.made(ref), ref)
        return self._needed.below(oldest_step)

    def distinct_policies(self) -> Collection[Policies]:
        """The policies of the ready groups, each once."""
        return self._numbers.keys()

    def count_of(self, policies: Policies) -> int:
        """Groups of exactly these policies."""
        number = self._numbers.get(policies)
        return 0 if number is None else self._by_number.count(number)

    def one_of(self, policies: Policies) -> int:
        """One of the groups of exactly these policies, of which there are some."""
        row = self._by_number.least(self._numbers[policies])
        assert row is not None, policies
        return row[1]

    def version_of(self, policies: Policies) -> str:
        """The ``policy_version`` of one of the groups of exactly these policies."""
        return self._known.version_of(self.one_of(policies))

    def has_others(self, policies: Policies, without: Set[int]) -> bool:
        """Whether there are groups of exactly these policies, which are ready, besides these."""
        return any(ref not in without for ref in self.by_policies(policies))

    def policies(self) -> Sequence[PolicyRef]:
        """The distinct policies of the ready groups' members, sorted."""
        return self._distinct

    def having(self, policy: PolicyRef) -> Collection[Policies]:
        """The policies of ready groups of which a member has this one."""
        return self._having[policy]

    def by_policies(self, policies: Policies) -> array[int]:
        """The groups of exactly these policies; rising."""
        number = self._numbers.get(policies)
        return array("Q") if number is None else self._by_number.columns(number, 1)[0]

    def all_equal(self) -> list[int]:
        """Groups whose rewards are all the same, in no order."""
        return [ref for _, ref in self._all_equal.below(2**64)]

    def filtered(self) -> Set[int]:
        """Groups that will be dropped whatever is trained next, by what they earned."""
        return self._filtered

    def oldest(self, count: int, environment: str | None = None) -> list[int]:
        """The groups sealed longest ago, of the environment or of all."""
        found = self._environments.items()
        among = [of.ages for name, of in found if environment in (None, name)]
        return [ref for _, ref in islice(heapq.merge(*among), count)]

    def _orders(
        self, among: Sequence[ExampleTurns], numbers: Set[int]
    ) -> list[Iterable[TurnOfKey]]:
        """The keys of each in turn; but for the first ones of an order only those of groups whose
        policies have these numbers."""
        groups = sum(map(self._by_number.count, numbers))

        @cache
        def keys() -> Set[int]:
            return {*chain.from_iterable(map(self._by_number.lasts, numbers))}

        if groups <= max(KEYS_TAKEN, sum(len(of.order) for of in among) // _PASSED_PER_LOOKUP):
            return [of.places(keys()) for of in among]
        plain = KEYS_TAKEN + groups // _PASSED_PER_LOOKUP
        return [_with_keys(of.order, keys, plain) for of in among]

    def _numbers_of(self, policies: Collection[Policies]) -> set[int]:
        return {self._numbers[one] for one in {*policies} & self._numbers.keys()}

    def _made_us(self, group: KnownGroup, least: Mapping[str, int]) -> tuple[int, int, int]:
        """When that rollout was made, after 2**63 µs before 1970, without which, and all that were
        made before it, the group has too few; when its newest was; and how many it has."""
        rows = group.rows.unpack()
        made = np.minimum.reduceat(rows.made_ts(group.sealed_ts), np.flatnonzero(rows.begins))
        made.sort()
        needed = min(least[group.key.environment], len(made))
        return int(made[-needed]) + _EARLIEST, int(made[-1]) + _EARLIEST, len(made)

    def _environment(self, name: str) -> ExampleTurns:
        found = self._environments.get(name)
        if found is None:
            found = self._environments[name] = ExampleTurns(self._turn_ages)
        return found

    def _hash(self, environment: str, example_id: str) -> int:
        return _hash(self._before(environment) + example_id.encode())

    def _before(self, environment: str) -> bytes:
        """What is hashed before each example of it."""
        return f"{self._seed}\x1f{environment}\x1f".encode()


def _in_turn(
    among: Sequence[ExampleTurns], orders: Sequence[Iterable[TurnOfKey]], without: Set[int]
) -> Iterator[tuple[ExampleTurns, int, int]]:
    """The keys of these orders, one for each environment: those with other groups than these. With
    each the oldest of the others."""
    pairs = [zip(order, repeat(at)) for at, order in enumerate(orders)]
    # Keys whose oldest group is left out have their turn with the next one, which is never sooner.
    moved: list[tuple[TurnOfKey, int]] = []
    passed: list[list[int]] = [[] for _ in among]  # Such keys, which are looked up together.

    def move() -> None:
        for at, keys in enumerate(passed):
            if keys:
                for later in among[at].places_after(keys, without):
                    heapq.heappush(moved, (later, at))
                keys.clear()

    for place, at in heapq.merge(*pairs) if len(pairs) > 1 else chain(*pairs):
        *_, ref, key = place
        if ref in without and not (moved and moved[0] < (place, at)):
            passed[at].append(key)
            continue
        move()
        while moved and moved[0] < (place, at):
            (*_, later_ref, later_key), later_at = heapq.heappop(moved)
            yield among[later_at], later_key, later_ref
        if ref in without:
            passed[at].append(key)
        else:
            yield among[at], key, ref
    move()
    for (*_, ref, key), at in sorted(moved):
        yield among[at], key, ref


def _with_keys(order: SortedRows, keys: Callable[[], Set[int]], plain: int) -> Iterator[TurnOfKey]:
    """The first so many in order, whatever their keys: ``keys`` is not asked before they are
    consumed; then those with one of the keys."""
    last: TurnOfKey = ()
    for last in islice(order, plain):
        yield last
    if len(order) > plain:
        yield from dropwhile(last.__ge__, order.ending_in(keys()))


def _bucket(
    of: ExampleTurns, key: int, oldest: int, numbers: Set[int] | None, without: Set[int]
) -> Iterator[int]:
    """The groups of the key by age, of which one is the oldest, but for these: those of the
    policies with these numbers."""
    if numbers is None:
        yield oldest  # Most keys are asked for no other one.
    refs, of_refs = of.groups.columns(key, 3, 4)
    found = refs if numbers is None else compress(refs, map(numbers.__contains__, of_refs))
    left = filterfalse(without.__contains__, found)
    yield from left if numbers is not None else islice(left, 1, None)
