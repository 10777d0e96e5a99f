"""A sealed group as its flush event describes it, without tokens. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollstream.folds.group.earned import returns_of
from rollstream.folds.group.packed_rows import PackedRows, pack_rows
from rollstream.folds.group.score_targets import pack_targets
from rollstream.schemas.columns import offsets_of
from rollstream.schemas.events import (
    Flushed,
    SealedFile,
    SealedGroupColumns,
    SealedSegments,
    ServedScore,
)
from rollstream.schemas.ids import MIXED_POLICY, PartitionAddress
from rollstream.schemas.order import PolicyRef
from rollstream.streams.folds.refs import GroupRef

TRAIN = "train"


class Key(NamedTuple):
    """An example of an environment; batches take turns over them, so that none starves."""

    environment: str
    example_id: str


class GroupHeader(NamedTuple):
    """Of a ``SealedGroup`` what decides, and what finds its rows."""

    group_id: str
    lineage: str
    policy_version: str
    policy_epoch: int
    weight_step: int
    row_start: int
    rows: int
    digest: bytes


class KnownGroup(NamedTuple):
    """A sealed group.

    Attributes:
        sealed_ts: log time up to which its partition was read when it was sealed, microseconds.
        policies: the distinct policies of the segments, sorted.
        is_train: whether its split is ``train``.
        has_rewards: no member's reward is awaited.
        all_equal: every trajectory has the same return, the sum of what its segments earned, so
            that no advantage is left.
        rows: what limits look at.
        targets: ``score_targets`` of its rollouts; empty: no late score changes it.
        scores: late ones, of each row, scorer and way to give it the newest version.
        logged_ts: log time of the flush's own record, microseconds; 0: not known.
    """

    ref: GroupRef
    key: Key
    group: GroupHeader
    file: SealedFile
    sealed_ts: int
    policies: tuple[PolicyRef, ...]
    is_train: bool
    has_rewards: bool
    all_equal: bool
    rows: PackedRows
    targets: bytes = b""
    scores: tuple[ServedScore, ...] = ()
    logged_ts: int = 0

    def returns(self) -> list[float]:
        """What each of its rollouts earned."""
        returns: list[float] = self.rows.unpack().returns().tolist()
        return returns


def known_groups(
    log: PartitionAddress,
    offset: int,
    event: Flushed,
    wanted: Sequence[int] | None = None,
    *,
    all_targets: bool = False,
    logged_ts: int = 0,
) -> list[KnownGroup]:
    """Returns the groups that the flush at ``offset`` sealed, in its order.

    Args:
        wanted: the indexes of those that are returned, rising; None: all.
        all_targets: whether late scores change also groups that have their rewards.
        logged_ts: log time of the flush's record.
    """
    if not event.groups:
        return []
    segments, bounds = event.segments, offsets_of(event.groups.rows)
    assert bounds[-1] == len(segments.rewards), (log, offset)
    if wanted is None:
        wanted = range(len(event.groups))
    if not wanted:
        return []
    starts = bounds[:-1]
    begins = rollout_begins(segments, starts)
    # What a trajectory earned at its end is every earlier segment's: its last one has a reward.
    lasts = np.append(begins[1:], True)
    awaited = np.isnan(segments.rewards) & lasts
    has_rewards = (~np.logical_or.reduceat(awaited, starts)).tolist()
    earned = np.nan_to_num(segments.rewards)
    returns, of_group = returns_of(earned, begins), np.searchsorted(np.flatnonzero(begins), starts)
    lowest, highest = (of.reduceat(returns, of_group) for of in (np.minimum, np.maximum))
    all_equal = (lowest == highest).tolist()
    of_rows = (segments.weight_steps, segments.created_ts, earned, begins)
    rows = pack_rows(starts, *of_rows, wanted)
    edges = bounds.tolist()

    def targets(index: int) -> bytes:
        if has_rewards[index] and not all_targets:
            return b""
        first, end = edges[index : index + 2]
        own = np.flatnonzero(begins[first:end]) + first
        uids = [segments.uids[row] for row in own.tolist()]
        return pack_targets(log.environment, uids, awaited[first:end][lasts[first:end]])

    return [
        KnownGroup(
            GroupRef(*log, offset, index),
            Key(log.environment, example_id),
            header,
            event.files[file],
            event.now_ts,
            _policies(header, segments, *edges[index : index + 2]),
            split == TRAIN,
            has_rewards[index],
            all_equal[index],
            of_group,
            targets(index),
            logged_ts=logged_ts,
        )
        for index, of_group, example_id, file, split, header in zip(
            wanted, rows, *_of(event.groups, wanted), strict=True
        )
    ]


def _of(groups: SealedGroupColumns, wanted: Sequence[int]) -> tuple[Iterable[Any], ...]:
    """Example, file, split and header of those groups."""
    names = ("example_id", "file", "split", *GroupHeader._fields)
    columns = [groups.column(name) for name in names]
    if len(wanted) < len(groups):
        columns = [[column[index] for index in wanted] for column in columns]
    return (*columns[:3], map(GroupHeader._make, zip(*columns[3:], strict=True)))


def rollout_begins(segments: SealedSegments, starts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """bool [rows]: where a trajectory begins; its segments lie together, in their order."""
    begins: NDArray[np.bool_] = segments.segment_idxs == 0  # Its rollouts may have several uids.
    begins[starts] = True
    return begins


def _policies(
    group: GroupHeader, segments: SealedSegments, first: int, end: int
) -> tuple[PolicyRef, ...]:
    if group.policy_version != MIXED_POLICY:
        return _one_policy(group.lineage, group.policy_epoch, group.weight_step)
    epochs = segments.policy_epochs[first:end].tolist()
    steps = segments.weight_steps[first:end].tolist()
    distinct = {PolicyRef(group.lineage, *pair) for pair in zip(epochs, steps, strict=True)}
    return tuple(sorted(distinct))


@lru_cache(maxsize=1_024)  # Most groups of a flush have the same.
def _one_policy(lineage: str, epoch: int, step: int) -> tuple[PolicyRef, ...]:
    return (PolicyRef(lineage, epoch, step),)
