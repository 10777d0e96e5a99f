"""A sealed group as its flush event describes it, without tokens. Pure."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from rollstream.schemas.events import Flushed, SealedFile, SealedGroup, SealedSegments
from rollstream.schemas.ids import MIXED_POLICY, PartitionAddress
from rollstream.schemas.order import PolicyRef
from rollstream.streams.folds.refs import GroupRef


class Key(NamedTuple):
    """An example of an environment; batches take turns over them, so that none starves."""

    environment: str
    example_id: str


class KnownGroup(NamedTuple):
    """A sealed group.

    Attributes:
        segments: columns over the segments of the whole flush; ours begin at ``first``. A segment
            without a reward of its own has that of the next one of its trajectory.
        sealed_ts: log time of the flush, microseconds.
        policies: the distinct policies of the segments, sorted.
        has_rewards: no member's reward is awaited.
        all_equal: every member has the same reward, so that no advantage is left.
    """

    ref: GroupRef
    key: Key
    group: SealedGroup
    file: SealedFile
    segments: SealedSegments
    first: int
    sealed_ts: int
    policies: tuple[PolicyRef, ...]
    has_rewards: bool
    all_equal: bool


def known_groups(log: PartitionAddress, offset: int, event: Flushed) -> list[KnownGroup]:
    """Returns the groups that the flush at ``offset`` sealed, in its order."""
    if not event.groups:
        return []
    segments = _with_rewards(event.segments)
    bounds = np.cumsum([0, *(group.rows for group in event.groups)])
    assert bounds[-1] == len(segments.rewards), (log, offset)
    starts = bounds[:-1]
    lowest = np.minimum.reduceat(segments.rewards, starts)
    highest = np.maximum.reduceat(segments.rewards, starts)
    has_rewards = (~np.isnan(lowest)).tolist()
    all_equal = (lowest == highest).tolist()
    spans = pairwise(bounds.tolist())
    return [
        KnownGroup(
            GroupRef(*log, offset, index),
            Key(log.environment, group.example_id),
            group,
            event.files[group.file],
            segments,
            first,
            event.now_ts,
            _policies(group, segments, first, end),
            has_rewards[index],
            all_equal[index],
        )
        for index, (group, (first, end)) in enumerate(zip(event.groups, spans, strict=True))
    ]


def _policies(
    group: SealedGroup, segments: SealedSegments, first: int, end: int
) -> tuple[PolicyRef, ...]:
    if group.policy_version != MIXED_POLICY:
        return (PolicyRef(group.lineage, group.policy_epoch, group.weight_step),)
    epochs = segments.policy_epochs[first:end].tolist()
    steps = segments.weight_steps[first:end].tolist()
    distinct = {PolicyRef(group.lineage, *pair) for pair in zip(epochs, steps, strict=True)}
    return tuple(sorted(distinct))


def _with_rewards(segments: SealedSegments) -> SealedSegments:
    """Gives segments without a reward that of the next segment of their trajectory.

    A reward is often known at a trajectory's last segment only. Where that has none, none is given.
    """
    missing = np.flatnonzero(np.isnan(segments.rewards))
    if not missing.size or not segments.segment_idxs.any():
        return segments
    rewards, uids = segments.rewards.copy(), segments.uids
    for row in missing[::-1].tolist():  # A member's rows lie together, in the order of segments.
        if row + 1 < len(uids) and uids[row + 1] == uids[row]:
            rewards[row] = rewards[row + 1]
    return replace(segments, rewards=rewards)
