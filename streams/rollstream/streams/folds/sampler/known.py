"""A sealed group as its flush event describes it, without tokens. Pure."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollstream.schemas.events import Flushed, SealedFile, SealedGroup, SealedSegments
from rollstream.schemas.ids import MIXED_POLICY, PartitionAddress
from rollstream.schemas.order import PolicyRef
from rollstream.streams.folds.refs import GroupRef


class Key(NamedTuple):
    """An example of an environment; batches take turns over them, so that none starves."""

    environment: str
    example_id: str


_NO_SEGMENTS = SealedSegments(
    offsets=np.empty(0, np.int64),
    entries=np.empty(0, np.int32),
    uids=(),
    segment_idxs=np.empty(0, np.int32),
    weight_steps=np.empty(0, np.int64),
    policy_epochs=np.empty(0, np.int32),
    prompt_counts=np.empty(0, np.int32),
    token_counts=np.empty(0, np.int32),
    rewards=np.empty(0),
    created_ts=np.empty(0, np.int64),
    replicas=(),
    replica_idxs=np.empty(0, np.int32),
    stop_reasons=(),
    stop_reason_idxs=np.empty(0, np.int32),
)


class KnownGroup(NamedTuple):
    """A sealed group.

    Attributes:
        segments: columns over the segments of the whole flush; ours begin at ``first``. A segment
            without a reward of its own has that of the next one of its trajectory.
        sealed_ts: log time of the flush, microseconds.
        policies: the distinct policies of the segments, sorted.
        has_rewards: no member's reward is awaited.
        all_equal: every trajectory has the same return, the sum of what its segments earned, so
            that no advantage is left.
        earned: float [rows of the flush], what each segment was published with; 0: no reward.
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
    earned: NDArray[np.floating[Any]]


def without_segments(group: KnownGroup) -> KnownGroup:
    """The group without what its flush says of segments: enough to read its rows."""
    return group._replace(segments=_NO_SEGMENTS, first=0, earned=np.empty(0))


def known_groups(log: PartitionAddress, offset: int, event: Flushed) -> list[KnownGroup]:
    """Returns the groups that the flush at ``offset`` sealed, in its order."""
    if not event.groups:
        return []
    segments = _with_rewards(event.segments)
    bounds = np.cumsum([0, *(group.rows for group in event.groups)])
    assert bounds[-1] == len(segments.rewards), (log, offset)
    starts = bounds[:-1]
    has_rewards = (~np.isnan(np.minimum.reduceat(segments.rewards, starts))).tolist()
    earned = np.nan_to_num(event.segments.rewards)
    all_equal = _all_equal(segments, earned, starts).tolist()
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
            earned,
        )
        for index, (group, (first, end)) in enumerate(zip(event.groups, spans, strict=True))
    ]


def _all_equal(
    segments: SealedSegments, earned: NDArray[np.floating[Any]], starts: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Of each group: whether all its trajectories, whose rows lie together, earned the same."""
    returns = earned
    if segments.segment_idxs.any():
        begins = np.array([one != other for one, other in pairwise(("", *segments.uids))])
        begins[starts] = True
        firsts = np.flatnonzero(begins)
        returns = np.add.reduceat(earned, firsts)
        starts = np.searchsorted(firsts, starts)
    lowest = np.minimum.reduceat(returns, starts)
    return np.asarray(lowest == np.maximum.reduceat(returns, starts))


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
