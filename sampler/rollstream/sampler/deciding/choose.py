"""Which of the ready groups make a batch: eligible, weighted, chosen. Pure."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate, chain, islice
from operator import itemgetter
from typing import Literal, NamedTuple

import xxhash

from rollstream.sampler.deciding.dropping import branches_left
from rollstream.sampler.deciding.row_limits import KeptRows, RowLimits
from rollstream.schemas.choosing import Choosing
from rollstream.schemas.order import PolicyRef, policy_lag
from rollstream.schemas.reasons import DropReason
from rollstream.streams.folds.refs import GroupRef
from rollstream.streams.folds.sampler.earned import spread_of
from rollstream.streams.folds.sampler.eligible import Accept, dropped_for
from rollstream.streams.folds.sampler.known import Key, KnownGroup
from rollstream.streams.folds.sampler.ready import Policies
from rollstream.streams.folds.sampler.state import SamplerState

Grouping = Literal["strict", "mixed"]
ALGORITHM = 4
"""Version of everything here that equal settings, state and requests could choose otherwise by. A
shipped one is never changed: decisions name theirs, and replay makes them again by it.

1: examples that were served longest ago come first, of these by a seeded hash; another hash draws
among the groups of an example, which ``recency`` weights.
2: turns are those of ``ReadyIndex``, and where ``recency`` is uniform an example gives its oldest
group: by age, and by no hash. Under a bound on lag, what is ahead of the trainer is dropped.
3: where ``order`` is ready, what was sealed first comes first, whichever example it is of.
4: which weights are the newest, or the same, is told by epoch and step where a group is replaced,
and where makers and ready packs choose from the batch; by step alone before. What is carried is
under ``max_rollout_timestamp_delay`` too.
"""
WEIGHED_PER_GROUP = 4  # Examples that spread looks at: about what admission lets be ready.
_HASH_RANGE = 2.0**64
_Buckets = Iterator[tuple[Key, Sequence[KnownGroup]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is asked for; the settings are a ``Choosing``.

    Attributes:
        mix: shares by environment; they are scaled to 1, and the largest remainders round up.
            None: keys of all environments take turns with one another.
        accept: ``nonzero_std`` leaves out groups whose rewards are all equal.
        grouping: ``strict`` leaves out groups whose rollouts were sampled by several policies.
        start_offset: keys that are passed over before the first; they come last.
        attempt: other draws for the same step, as a replacement needs.
        algorithm: the version that chooses.
    """

    num_groups: int
    step: int
    mix: Mapping[str, float] | None = None
    accept: Accept | None = None
    grouping: Grouping = "mixed"
    start_offset: int = 0
    attempt: int = 0
    algorithm: int = ALGORITHM


class Chosen(NamedTuple):
    """A group, and which of its rows."""

    group: KnownGroup
    kept: KeptRows


class Choice(NamedTuple):
    """Distinct groups, as many as were asked for; None: there are too few.

    ``dropped`` are those that were looked at and will never be served, since too few of their
    rollouts are within the limits.
    """

    groups: list[Chosen] | None
    dropped: Mapping[DropReason, list[Chosen]]


def sample_groups(
    state: SamplerState,
    choosing: Choosing,
    asked: Asked,
    *,
    now_us: int,
    without: Set[GroupRef] = frozenset(),
) -> Choice:
    """Chooses groups; the same for the same ready groups, turns and arguments, in whatever order
    they arrived. It looks at about as many groups as it chooses.

    Keys (environment, example) take turns: the one that waited longest comes first, by the policy
    that its oldest group was sampled with or that was the newest when it was served last, and none
    gives a second group before every other has given one. Groups of the newest policy come first
    where ``on_policy_fraction`` wants them, then those of preferred versions, then all that are
    eligible; each in turns, or as ``reward_weighting`` draws the keys. A key gives its oldest
    group, or one that is drawn by ``recency``. Where ``order`` is ready, no key has a turn: groups
    come as they were sealed, by log time, of these by environment, partition and offset.

    Args:
        choosing: the settings; those of ``state`` or others.
        now_us: against which the age of rollouts is measured.
        without: ready groups that are left out.
    """
    clock = state.clock(asked.step)
    limits = RowLimits(state, choosing, clock, now_us, spread=asked.accept is not None)
    dropped: dict[DropReason, list[Chosen]] = {}
    left_out = {*without, *state.used_up(choosing.max_samples)}
    while True:
        before = len(left_out)
        groups = _sample(state, choosing, asked, limits, left_out, dropped)
        if len(left_out) == before:
            return Choice(groups, dropped)
        # Without those that were dropped, other policies may be the newest: whoever makes the
        # choice again does so without them.


def _sample(
    state: SamplerState,
    choosing: Choosing,
    asked: Asked,
    limits: RowLimits,
    without: set[GroupRef],
    dropped: dict[DropReason, list[Chosen]],
) -> list[Chosen] | None:
    """The groups; those that are found to be too old are added to ``without`` and ``dropped``."""
    if len(state.ready) < asked.num_groups:
        return None
    chosen: list[Chosen] = []
    salt = f"{choosing.seed}\x1f{asked.step}\x1f{asked.attempt}"
    eligible = _eligible(state, choosing, asked, without)
    for among, wanted in quotas(choosing.names(), asked.num_groups, asked.mix):
        turns = _Turns(state, among, choosing, asked, salt, limits, without, dropped)
        on_policy = on_policy_groups(wanted, choosing)
        if on_policy:
            among_all = _distinct(state, without) if eligible is None else eligible
            turns.take(_newest(state, among_all), on_policy)
        if len(turns.chosen) < on_policy:
            return None
        if choosing.prefer_policy_versions:
            turns.take(_preferred(state, choosing, eligible), wanted)
        turns.take(eligible, wanted)
        if len(turns.chosen) < wanted:
            return None
        chosen.extend(turns.chosen)
    return chosen


def quotas(
    environments: Sequence[str], num_groups: int, mix: Mapping[str, float] | None
) -> list[tuple[list[str], int]]:
    """Pairs of environments and the number of groups that come from them together."""
    if mix is None:
        return [(sorted(environments), num_groups)]
    total = sum(mix.values())
    exact = {name: num_groups * share / total for name, share in sorted(mix.items())}
    counts = {name: int(share) for name, share in exact.items()}
    by_remainder = sorted(exact, key=lambda name: (counts[name] - exact[name], name))
    for name in by_remainder[: num_groups - sum(counts.values())]:
        counts[name] += 1
    return [([name], count) for name, count in counts.items() if count]


def on_policy_groups(wanted: int, choosing: Choosing) -> int:
    """How many of so many groups the newest policy must have sampled."""
    return math.ceil(wanted * choosing.on_policy_fraction)


# Eligible: which policies' groups. A group is as old as its oldest policy, the first one.


def _eligible(
    state: SamplerState, choosing: Choosing, asked: Asked, without: Set[GroupRef]
) -> Set[Policies] | None:
    """The policies of the groups that may be chosen; None: of all that are ready."""
    lag_asked = choosing.max_policy_lag != state.choosing.max_policy_lag
    if asked.grouping == "mixed" and choosing.recent_n_versions is None and not lag_asked:
        return None
    found = _usable(state, choosing, asked, _distinct(state, without))
    if asked.grouping == "strict":
        found = {policies for policies in found if len(policies) == 1}
    if choosing.recent_n_versions is not None:
        oldest = sorted({policies[0] for policies in found}, key=_age)
        recent = {
            policy
            for lineage in {policy.lineage for policy in oldest}
            for policy in [one for one in oldest if one.lineage == lineage][
                -choosing.recent_n_versions :
            ]
        }
        found = {policies for policies in found if policies[0] in recent}
    return found


def _distinct(state: SamplerState, without: Set[GroupRef]) -> set[Policies]:
    """The policies of the ready groups, but for these."""
    ready = state.ready
    gone = Counter(state.sealed(ref).policies for ref in without if ref in ready)
    return {one for one in ready.distinct_policies() if ready.count_of(one) > gone[one]}


def _usable(
    state: SamplerState, choosing: Choosing, asked: Asked, among: Set[Policies]
) -> set[Policies]:
    """Those of the policies whose groups are not to be dropped, within the lag."""
    reference = state.reference(state.clock(asked.step))
    branches = branches_left(state, choosing)
    bounded = choosing.max_policy_lag >= 0
    return {
        policies
        for policies in among
        if dropped_for(policies, reference, branches, choosing) is None
        and not (bounded and None in [policy_lag(reference, one) for one in policies])
    }


def _newest(state: SamplerState, among: Collection[Policies]) -> set[Policies]:
    """Of groups that the newest policy sampled: the published one, else the newest of these."""
    published = state.newest_policy()
    if published is not None:
        newest = PolicyRef(published.lineage, published.epoch, published.step)
        return {policies for policies in among if policies == (newest,)}
    ages = {policies: _age(policies[0]) for policies in among if len(policies) == 1}
    latest = max((_age(policies[-1]) for policies in among), default=None)
    return {policies for policies, age in ages.items() if age == latest}


def _preferred(
    state: SamplerState, choosing: Choosing, eligible: Collection[Policies] | None
) -> set[Policies]:
    """Of groups that preferred versions alone sampled."""
    among = state.ready.distinct_policies() if eligible is None else eligible
    versions = filter(None, map(state.published.policies.get, choosing.prefer_policy_versions))
    preferred = {PolicyRef(choosing.lineage, *version) for version in versions}
    return {policies for policies in among if preferred.issuperset(policies)}


def _age(policy: PolicyRef) -> tuple[int, int]:
    return policy.epoch, policy.step


# Weighted, and chosen in turns.


class _Turns:
    """Groups of some environments, chosen key after key: ``chosen`` so far. Those that were looked
    at and will never be served are added to ``without`` and ``dropped``."""

    def __init__(
        self,
        state: SamplerState,
        environments: Sequence[str],
        choosing: Choosing,
        asked: Asked,
        salt: str,
        limits: RowLimits,
        without: set[GroupRef],
        dropped: dict[DropReason, list[Chosen]],
    ) -> None:
        self._ready = state.ready
        self._environments = list(environments)
        self._choosing = choosing
        self._asked = asked
        self._salt = salt
        self._limits = limits
        self._left_out = without
        self._taken = set[GroupRef]()
        self._given: dict[Key, int] = {}
        self._dropped = dropped
        self._draws = asked.algorithm < 2 or choosing.recency != "uniform"
        self.chosen: list[Chosen] = []

    def take(self, policies: Collection[Policies] | None, wanted: int) -> None:
        """Chooses among groups of these policies until ``wanted`` are chosen in all, or none is
        left: one of each key, then a second one of each, and so on."""
        if self._choosing.order == "ready":
            self._take_as_sealed(policies, wanted)
            return
        if self._asked.algorithm >= 2:
            without = self._left_out | self._taken
            keys = self._ready.keys_in_turn(self._environments, policies, without)
        else:
            keys = self._ready.keys_by_hash(self._environments, policies)
        if self._limits.active or self._left_out or self._taken:
            keys = self._within_limits(keys)
        keys = _rotated(keys, self._asked.start_offset)
        if self._choosing.reward_weighting == "spread":
            keys = _by_spread(keys, WEIGHED_PER_GROUP * wanted, self._salt)
        among = ((key, bucket, range(len(bucket))) for key, bucket in keys)
        visits: Iterator[tuple[Key, Sequence[KnownGroup], Sequence[int]]] = among
        turn = 0
        while len(self.chosen) < wanted:
            left: list[tuple[Key, Sequence[KnownGroup], Sequence[int]]] = []
            for key, bucket, indexes in visits:
                given = self._given.get(key, 0)
                if given > turn:  # It gave one to an earlier call.
                    left.append((key, bucket, indexes))
                    continue
                drawn = 0
                if len(indexes) > 1 and self._draws:
                    text = f"{self._salt}\x1f{key.environment}\x1f{key.example_id}\x1f{turn}"
                    drawn = _draw(bucket, indexes, text, self._choosing)
                group = bucket[indexes[drawn]]
                self.chosen.append(Chosen(group, self._limits.kept(group)))
                self._given[key] = given + 1
                if len(self.chosen) == wanted:
                    break
                if len(indexes) > 1:
                    others = array("I", indexes)
                    del others[drawn]
                    left.append((key, bucket, others))
            if not left:
                break
            visits, turn = iter(left), turn + 1
        self._taken.update(one.group.ref for one in self.chosen)

    def _take_as_sealed(self, policies: Collection[Policies] | None, wanted: int) -> None:
        without = self._left_out | self._taken
        sealed = self._ready.as_sealed(self._environments, policies, without)
        groups: _Buckets = ((group.key, (group,)) for group in sealed)
        if self._limits.active:
            groups = self._within_limits(groups)
        groups = _rotated(groups, self._asked.start_offset)
        for _, (group, *_) in islice(groups, max(0, wanted - len(self.chosen))):
            self.chosen.append(Chosen(group, self._limits.kept(group)))
        self._taken.update(one.group.ref for one in self.chosen)

    def _within_limits(self, keys: _Buckets) -> _Buckets:
        """Without what may not be chosen; what never may is dropped."""
        for key, groups in keys:
            bucket = []
            for group in groups:
                if group.ref in self._left_out or group.ref in self._taken:
                    continue
                rows = self._limits.kept(group)
                if rows.drop is None:
                    bucket.append(group)
                else:
                    self._left_out.add(group.ref)
                    self._dropped.setdefault(rows.drop, []).append(Chosen(group, rows))
            if bucket:
                yield key, bucket


def _rotated(keys: _Buckets, start_offset: int) -> _Buckets:
    """The same, begun ``start_offset`` later; those passed over come last."""
    first = list(islice(keys, start_offset))
    if first and len(first) < start_offset:
        first = first[(at := start_offset % len(first)) :] + first[:at]
    return chain(keys, first)


def _by_spread(keys: _Buckets, count: int, salt: str) -> _Buckets:
    """The same, the first so many in an order that is drawn: each time by the standard deviation of
    what the rollouts of the key's oldest group earned, and where that is 0 after all others, in
    turn. (Each gets an exponential time whose rate is its weight: Efraimidis and Spirakis, 2006.)
    """
    timed = []
    for at, (key, bucket) in enumerate(islice(keys, count)):
        spread = spread_of(bucket[0].returns())
        text = f"{salt}\x1f{key.environment}\x1f{key.example_id}\x1fspread"
        point = (xxhash.xxh3_64_intdigest(text.encode()) + 1) / _HASH_RANGE
        timed.append((-math.log(point) / spread if spread else math.inf, at, (key, bucket)))
    return chain([one for *_, one in sorted(timed, key=itemgetter(0, 1))], keys)


def _draw(
    bucket: Sequence[KnownGroup], indexes: Sequence[int], text: str, choosing: Choosing
) -> int:
    """Where in the indexes that of the group is which the hash of ``text`` draws among them."""
    point = xxhash.xxh3_64_intdigest(text.encode()) / _HASH_RANGE
    if choosing.recency == "uniform":
        return min(int(point * len(indexes)), len(indexes) - 1)
    bounds = list(accumulate(_weights([bucket[index] for index in indexes], choosing)))
    return next((i for i, bound in enumerate(bounds) if point * bounds[-1] < bound), 0)


def _weights(bucket: Sequence[KnownGroup], choosing: Choosing) -> list[float]:
    """A weight a group, by the rank of its oldest policy among the distinct ones in the bucket.

    ``linear``: the rank itself, the oldest 1. ``exp``: each rank twice as likely as the one before.
    Either to the power of ``alpha``.
    """
    ages = [_age(group.policies[0]) for group in bucket]
    ranks = {age: rank for rank, age in enumerate(sorted(set(ages)), start=1)}
    if choosing.recency == "linear":
        return [float(ranks[age]) ** choosing.alpha for age in ages]
    return [2.0 ** (choosing.alpha * (ranks[age] - len(ranks))) for age in ages]
