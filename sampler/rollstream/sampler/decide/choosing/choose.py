"""Which of the ready groups make a batch: eligible, weighted, chosen. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain, islice
from operator import itemgetter
from typing import Literal, NamedTuple, TypeVar

import xxhash

from rollstream.folds.group.earned import spread_of
from rollstream.folds.group.eligible import Accept
from rollstream.folds.group.known import Key, KnownGroup
from rollstream.folds.ready.index import Policies
from rollstream.folds.state import SamplerState
from rollstream.sampler.decide.choosing.drawing import drawn, recency_weights
from rollstream.sampler.decide.choosing.dropping import Drops, refs_of
from rollstream.sampler.decide.choosing.row_limits import KeptRows, RowLimits
from rollstream.schemas.choosing import Choosing
from rollstream.schemas.order import PolicyRef

Grouping = Literal["strict", "mixed"]
ALGORITHM = 5
"""Version of everything here that equal settings, state and requests could choose otherwise by.
Decisions name theirs, and replay makes again those of this one: a change needs the next number.

4: which weights are the newest, or the same, is told by epoch and step where makers and ready packs
choose from the batch; by step alone before. What is carried is under
``max_rollout_timestamp_delay`` too.
5: the first version that is still chosen by. ``recency`` draws among the groups of all examples;
``recent_n_versions`` counts published versions; a group whose rollouts are too old is dropped
whether or not its turn has come.
"""
WEIGHED_PER_GROUP = 4  # Examples that spread looks at: about what admission lets be ready.
_HASH_RANGE = 2.0**64
_T = TypeVar("_T")
_Buckets = Iterator[tuple[Key, Iterator[KnownGroup]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is asked for; the settings are a ``Choosing``.

    Attributes:
        mix: shares by environment; they are scaled to 1, and the largest remainders round up.
            None: keys of all environments take turns with one another.
        accept: ``nonzero_std`` leaves out groups whose rewards are all equal.
        grouping: ``strict`` leaves out groups whose rollouts were sampled by several policies.
        start_offset: keys that are passed over before the first; they come last. Where groups are
            drawn, or come as they were sealed: groups.
        seed: instead of the configured one.
        policy_version: only groups that this published version alone sampled.
        attempt: other draws for the same step, as a replacement needs.
    """

    num_groups: int
    step: int
    mix: Mapping[str, float] | None = None
    accept: Accept | None = None
    grouping: Grouping = "mixed"
    start_offset: int = 0
    seed: int | None = None
    policy_version: str | None = None
    attempt: int = 0


class Chosen(NamedTuple):
    """A group, and which of its rows."""

    group: KnownGroup
    kept: KeptRows


def sample_groups(
    state: SamplerState,
    choosing: Choosing,
    asked: Asked,
    drops: Drops,
    *,
    now_us: int,
    without: Set[int] = frozenset(),
) -> list[Chosen] | None:
    """Chooses distinct groups, as many as were asked for; None: there are too few. They are the
    same for the same ready groups, turns and arguments, in whatever order they arrived. It looks at
    about as many groups as it chooses.

    Keys (environment, example) take turns: the one that waited longest comes first, by the policy
    that its oldest group was sampled with or that was the newest when it was served last, and none
    gives a second group before every other has given one. Groups of the newest policy come first
    where ``on_policy_fraction`` wants them, then those of preferred versions, then all that are
    eligible; each in turns, or as ``reward_weighting`` draws the keys. A key gives its oldest
    group. No key has a turn where ``recency`` is linear or exp, which draws groups one after the
    other, or ``order`` is ready: then groups come as they were sealed, by log time, of these by
    environment, partition and offset.

    Args:
        choosing: the settings; those of ``state`` or others.
        drops: ready groups that will never be served, with those of ``useless_groups``. Groups that
            were looked at, and of which too few rollouts are within the limits, are added.
        now_us: against which the age of rollouts is measured.
        without: packed references of other ready groups that are left out.
    """
    choice = _Choice(state, choosing, asked, drops, now_us, without)
    while True:
        before = len(choice.left_out)
        groups = choice.groups()
        if len(choice.left_out) == before:
            return groups
        # Without those that were dropped, other policies may be the newest: whoever makes the
        # choice again does so without them.


def counted(
    state: SamplerState, choosing: Choosing, asked: Asked, without: Set[int]
) -> Callable[[int], bool] | None:
    """Returns whether ``sample_groups`` finds so many groups, told from counts that are made once.
    None: only a choice tells, which drops groups that it looks at.

    Args:
        asked: with neither ``grouping`` nor ``policy_version``; its ``num_groups`` has no part.
        without: packed references of groups that are left out.
    """
    assert _eligible(state, choosing, asked) is None, asked
    if asked.accept is not None and choosing.bounds_rows:
        return None
    ready, left_out = state.ready, _left_out(state, choosing, without)
    newest = _newest(state, None, left_out) if choosing.on_policy_fraction else frozenset()
    on_policy = sorted({ref for one in newest for ref in ready.by_policies(one)} - left_out)
    absent, counts = sorted(filter(ready.has, left_out)), ready.counts()
    available: dict[str, tuple[int, int]] = {}
    for name in choosing.names():
        first, end = ready.packed.bounds(name)
        of_name, of_newest = (
            bisect_left(refs, end) - bisect_left(refs, first) for refs in (absent, on_policy)
        )
        available[name] = counts.get(name, 0) - of_name, of_newest

    def enough(num_groups: int) -> bool:
        for names, wanted in quotas(choosing.names(), num_groups, asked.mix):
            found, of_newest = map(sum, zip(*map(available.__getitem__, names), strict=True))
            if found < wanted or of_newest < on_policy_groups(wanted, choosing):
                return False
        return True

    return enough


def _left_out(state: SamplerState, choosing: Choosing, without: Set[int]) -> set[int]:
    """These groups, and those that were used as often as may be."""
    used_up = state.uses.used_up_by(choosing.max_samples)
    return {*without, *map(state.ready.packed.pack, used_up)}


class _Choice:
    """What is asked for, and of what.

    Attributes:
        left_out: packed references of ready groups that are not chosen.
        drops: those among them that were looked at and will never be served are added.
        salt: of whatever is drawn.
    """

    def __init__(
        self,
        state: SamplerState,
        choosing: Choosing,
        asked: Asked,
        drops: Drops,
        now_us: int,
        without: Set[int],
    ) -> None:
        self._state = state
        self.ready, self.choosing, self.asked = state.ready, choosing, asked
        self._limits = RowLimits(
            state, choosing, state.clock(asked.step), now_us, spread=asked.accept is not None
        )
        self._drops, self.left_out = drops, _left_out(state, choosing, refs_of(drops) | without)
        seed = choosing.seed if asked.seed is None else asked.seed
        self.salt = f"{seed}\x1f{asked.step}\x1f{asked.attempt}"

    def groups(self) -> list[Chosen] | None:
        """As many as were asked for; None: there are too few."""
        state, choosing, asked = self._state, self.choosing, self.asked
        if len(self.ready) < asked.num_groups:
            return None
        chosen: list[Chosen] = []
        eligible = _eligible(state, choosing, asked)
        for among, wanted in quotas(choosing.names(), asked.num_groups, asked.mix):
            turns = _Turns(self, among)
            on_policy = on_policy_groups(wanted, choosing)
            if on_policy:
                turns.take(_newest(state, eligible, self.left_out), on_policy)
            if len(turns.chosen) < on_policy:
                return None
            if choosing.prefer_policy_versions:
                turns.take(_preferred(state, choosing, eligible), wanted)
            turns.take(eligible, wanted)
            if len(turns.chosen) < wanted:
                return None
            chosen.extend(turns.chosen)
        return chosen

    def fit(self, groups: Iterator[KnownGroup]) -> Iterator[Chosen]:
        """The groups without what may not be served; that is dropped."""
        for group in groups:
            rows = self._limits.kept(group)
            if rows.drop is None:
                yield Chosen(group, rows)
            else:
                ref = self.ready.packed.pack(group.ref)
                self.left_out.add(ref)
                self._drops.setdefault(rows.drop, {})[ref] = rows


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


def _eligible(state: SamplerState, choosing: Choosing, asked: Asked) -> Set[Policies] | None:
    """The policies of the groups that may be chosen; None: of all that are ready."""
    # Groups of other lineages wait where the sampler's own settings bound lag.
    comparable = choosing.bounds_lag and not state.choosing.bounds_lag
    if asked.grouping == "mixed" and asked.policy_version is None and not comparable:
        return None
    found = {*state.ready.distinct_policies()}
    if comparable:
        found = {one for one in found if all(p.lineage == choosing.lineage for p in one)}
    if asked.grouping == "strict":
        found = {policies for policies in found if len(policies) == 1}
    if asked.policy_version is not None:
        version = PolicyRef(choosing.lineage, *state.published.policies[asked.policy_version])
        found = {policies for policies in found if policies == (version,)}
    return found


def _newest(
    state: SamplerState, eligible: Set[Policies] | None, without: Set[int]
) -> Set[Policies]:
    """Of groups that the newest policy sampled: the published one, else the newest of the eligible
    groups that are not left out."""
    among = state.ready.distinct_policies() if eligible is None else eligible
    published = state.newest_policy()
    if published is not None:
        newest = PolicyRef(published.lineage, published.epoch, published.step)
        return {(newest,)} & {*among}
    latest = None
    for policies in sorted(among, key=lambda one: _age(one[-1]), reverse=True):
        if state.ready.has_others(policies, without):
            latest = _age(policies[-1])
            break
    return {policies for policies in among if len(policies) == 1 and _age(policies[0]) == latest}


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


# Chosen: in turns, as they were sealed, or drawn.


class _Turns:
    """Groups of some environments, chosen one after the other: ``chosen`` so far."""

    def __init__(self, choice: _Choice, environments: Sequence[str]) -> None:
        self._choice, self._environments = choice, environments
        self._taken = set[int]()
        self._given: dict[Key, int] = {}
        self.chosen: list[Chosen] = []

    def take(self, policies: Collection[Policies] | None, wanted: int) -> None:
        """Chooses among groups of these policies until ``wanted`` are chosen in all, or none is
        left."""
        choice, without = self._choice, self._choice.left_out | self._taken
        if choice.choosing.order == "ready":
            found = self._served(choice.ready.as_sealed(self._environments, policies, without))
        elif choice.choosing.recency != "uniform":
            found = self._served(self._by_recency(policies, without))
        else:
            found = self._in_turns(policies, without, WEIGHED_PER_GROUP * wanted)
        self.chosen.extend(islice(found, max(0, wanted - len(self.chosen))))
        self._taken.update(choice.ready.packed.pack(one.group.ref) for one in self.chosen)

    def _in_turns(
        self, policies: Collection[Policies] | None, without: set[int], weighed: int
    ) -> Iterator[Chosen]:
        """One group of each key, then a second one of each, and so on; of a key the oldest. So many
        keys are weighed by spread."""
        choice = self._choice
        keys = choice.ready.keys_in_turn(self._environments, policies, without)
        keys = _rotated(keys, choice.asked.start_offset)
        if choice.choosing.reward_weighting == "spread":
            keys = _by_spread(keys, weighed, choice.salt)
        visits: Iterator[tuple[Key, Iterator[Chosen]]] = (
            (key, choice.fit(groups)) for key, groups in keys
        )
        turn = 0
        while True:
            left: list[tuple[Key, Iterator[Chosen]]] = []
            for key, groups in visits:
                given = self._given.get(key, 0)
                if given > turn:  # It gave one to an earlier call.
                    left.append((key, groups))
                    continue
                group = next(groups, None)
                if group is not None:
                    self._given[key] = given + 1
                    yield group
                    left.append((key, groups))
            if not left:
                return
            visits, turn = iter(left), turn + 1

    def _by_recency(
        self, policies: Collection[Policies] | None, without: set[int]
    ) -> Iterator[KnownGroup]:
        """Groups as ``recency`` draws them, whatever their keys."""
        ready, choosing = self._choice.ready, self._choice.choosing
        classes = ready.by_age(self._environments, policies, without)
        weights = recency_weights(len(classes), choosing.recency, choosing.alpha)
        weighted = [(weight, refs) for weight, (_, refs) in zip(weights, classes, strict=True)]
        salt = "\x1f".join([self._choice.salt, *self._environments, str(len(self.chosen))])
        return map(ready.at, drawn(weighted, salt))

    def _served(self, groups: Iterator[KnownGroup]) -> Iterator[Chosen]:
        return _rotated(self._choice.fit(groups), self._choice.asked.start_offset)


def _rotated(found: Iterator[_T], start_offset: int) -> Iterator[_T]:
    """The same, begun ``start_offset`` later; those passed over come last."""
    first = list(islice(found, start_offset))
    if first and len(first) < start_offset:
        first = first[(at := start_offset % len(first)) :] + first[:at]
    return chain(found, first)


def _by_spread(keys: _Buckets, count: int, salt: str) -> _Buckets:
    """The same, the first so many in an order that is drawn: each time by the standard deviation of
    what the rollouts of the key's oldest group earned, and where that is 0 after all others, in
    turn. (Each gets an exponential time whose rate is its weight: Efraimidis and Spirakis, 2006.)
    """
    timed = []
    for at, (key, groups) in enumerate(islice(keys, count)):
        oldest = next(groups)
        spread = spread_of(oldest.returns())
        text = f"{salt}\x1f{key.environment}\x1f{key.example_id}\x1fspread"
        point = (xxhash.xxh3_64_intdigest(text.encode()) + 1) / _HASH_RANGE
        due = -math.log(point) / spread if spread else math.inf
        timed.append((due, at, (key, chain([oldest], groups))))
    return chain([one for *_, one in sorted(timed, key=itemgetter(0, 1))], keys)
