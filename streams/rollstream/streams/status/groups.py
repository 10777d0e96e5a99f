"""Sealed groups against a sampler's decisions: which are ready, and which wait. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from rollstream.schemas.events import Flushed, SealedGroup
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.folds.refs import GroupRef
from rollstream.streams.folds.waiting import Waits, waits_for, with_trajectories_rewarded


class SamplerSources(NamedTuple):
    """What a sampler is configured to draw.

    Attributes:
        environments: names.
        lineage: of its trainer's policies.
        max_policy_lag: None: no limit.
    """

    environments: tuple[str, ...]
    lineage: str
    max_policy_lag: int | None


class Sealed(NamedTuple):
    """A group.

    Attributes:
        sealed_ts: broker's time of its flush, microseconds.
        has_rewards: no member's reward is awaited.
    """

    sealed_ts: int
    group: SealedGroup
    has_rewards: bool


class SealLog(NamedTuple):
    """The groups of one seal log, as far back as it was read.

    Attributes:
        start: offset from which it was read.
        older: groups that were sealed before.
        groups: the others.
    """

    start: int
    older: int
    groups: Mapping[GroupRef, Sealed]


class Standing(NamedTuple):
    """Groups that a sampler may still serve.

    Attributes:
        ready: can be served as they are.
        waiting: cannot yet, or never, by what they wait for.
        waiting_since: of those, sealed later than a moment.
        older: sealed before what was read: ready or waiting.
    """

    ready: int
    waiting: Mapping[Waits, int]
    waiting_since: Mapping[Waits, int]
    older: int


def sealed_groups(
    log: PartitionAddress, offset: int, sealed_ts: int, event: Flushed
) -> Iterable[tuple[GroupRef, Sealed]]:
    """The groups of the flush at ``offset``."""
    if not event.groups:
        return
    starts = np.cumsum([0, *(group.rows for group in event.groups[:-1])])
    rewards = with_trajectories_rewarded(event.segments).rewards
    has_rewards = (~np.isnan(np.minimum.reduceat(rewards, starts))).tolist()
    for index, (group, rewarded) in enumerate(zip(event.groups, has_rewards, strict=True)):
        yield GroupRef(*log, offset, index), Sealed(sealed_ts, group, rewarded)


def standing(
    logs: Mapping[PartitionAddress, SealLog],
    draws: SamplerSources,
    taken: set[GroupRef],
    since_ts: int | None,
) -> Standing:
    """How the groups stand that were neither served nor dropped.

    Args:
        logs: every seal log.
        draws: by the sampler.
        taken: served, dropped or replaced.
        since_ts: for ``waiting_since``; None: from the beginning.
    """
    mine = {log: sealed for log, sealed in logs.items() if log.environment in draws.environments}
    ready, older = 0, sum(sealed.older for sealed in mine.values())
    for ref in taken:
        if ref.log in mine and ref.offset < mine[ref.log].start:
            older -= 1
    waiting: Counter[Waits] = Counter()
    waiting_since: Counter[Waits] = Counter()
    for sealed in mine.values():
        for ref, group in sealed.groups.items():
            if ref in taken:
                continue
            waits = waits_for(
                group.group,
                has_rewards=group.has_rewards,
                lineage=draws.lineage,
                max_policy_lag=draws.max_policy_lag,
            )
            if waits is None:
                ready += 1
                continue
            waiting[waits] += 1
            if since_ts is None or group.sealed_ts > since_ts:
                waiting_since[waits] += 1
    return Standing(ready, dict(waiting), dict(waiting_since), older)
