"""Which of the ready groups make a batch. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import accumulate
from typing import Literal

import xxhash

from rollstream.schemas.choosing import Recency
from rollstream.streams.folds.refs import GroupRef
from rollstream.streams.folds.sampler.known import Key, KnownGroup
from rollstream.streams.folds.sampler.ready import ReadyIndex

ALGORITHM = 1
"""Version of everything here that equal settings, state and requests could choose otherwise by. A
shipped one is never changed: decisions name theirs, and replay makes them again by it."""
_HASH_RANGE = 2.0**64


def sample_groups(
    ready: ReadyIndex,
    num_groups: int,
    *,
    environments: Sequence[str],
    seed: int,
    step: int,
    start_offset: int = 0,
    recency: Recency = "uniform",
    mix: Mapping[str, float] | None = None,
    without: Set[GroupRef] = frozenset(),
) -> list[KnownGroup] | None:
    """Chooses ``num_groups`` distinct groups; None while there are too few.

    The same for the same ready groups, turns and arguments, in whatever order they arrived. Keys
    (environment, example) take turns: the one that was served longest ago comes first, and none
    gives a second group before every other has given one. Within a key newer policies are
    preferred by ``recency``.

    Args:
        environments: that may be drawn from.
        seed: of the draws within a key, together with ``step`` and ``start_offset``.
        start_offset: other draws for the same step, as a replacement needs.
        mix: shares by environment; they are scaled to 1, and the largest remainders round up.
            None: keys of all environments take turns with one another.
        without: ready groups that are left out.
    """
    if len(ready) < num_groups:
        return None
    salt = f"{seed}\x1f{step}\x1f{start_offset}"
    chosen: list[KnownGroup] = []
    for among, wanted in quotas(environments, num_groups, mix):
        buckets = ready.keys_in_turn(among)
        if without:
            buckets = ((key, [g for g in each if g.ref not in without]) for key, each in buckets)
        part = _in_turns(buckets, wanted, salt, recency)
        if part is None:
            return None
        chosen.extend(part)
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


def _in_turns(
    buckets: Iterable[tuple[Key, Sequence[KnownGroup]]], wanted: int, salt: str, recency: Recency
) -> list[KnownGroup] | None:
    """``wanted`` groups, one of each bucket in order, then a second one of each, and so on."""
    chosen: list[KnownGroup] = []
    turn = 0
    while True:
        left: list[tuple[Key, Sequence[KnownGroup]]] = []
        for key, bucket in buckets:
            if not bucket:
                continue
            text = f"{salt}\x1f{key.environment}\x1f{key.example_id}\x1f{turn}"
            drawn = _draw(bucket, text, recency)
            chosen.append(bucket[drawn])
            if len(chosen) == wanted:
                return chosen
            if len(bucket) > 1:
                left.append((key, [*bucket[:drawn], *bucket[drawn + 1 :]]))
        if not left:
            return None
        buckets, turn = left, turn + 1


def _draw(bucket: Sequence[KnownGroup], text: str, recency: Recency) -> int:
    """The index in the bucket of the group that the hash of ``text`` draws."""
    if len(bucket) == 1:
        return 0
    point = xxhash.xxh3_64_intdigest(text.encode()) / _HASH_RANGE
    if recency == "uniform":
        return min(int(point * len(bucket)), len(bucket) - 1)
    bounds = list(accumulate(_weights(bucket, recency)))
    return next((i for i, bound in enumerate(bounds) if point * bounds[-1] < bound), 0)


def _weights(bucket: Sequence[KnownGroup], recency: Literal["linear", "exp"]) -> list[float]:
    """A weight a group, by the rank of its oldest policy among the distinct ones in the bucket.

    ``linear``: the rank itself, the oldest 1. ``exp``: each rank twice as likely as the one before.
    """
    ages = [(policy.epoch, policy.step) for policy in (group.policies[0] for group in bucket)]
    ranks = {age: rank for rank, age in enumerate(sorted(set(ages)), start=1)}
    if recency == "linear":
        return [float(ranks[age]) for age in ages]
    return [2.0 ** (ranks[age] - len(ranks)) for age in ages]
