"""What the logs say of late scores: which groups were left out, and what batches were served with.

It knows of versions only that all scores of a run are of one attempt: the first record of a group
counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rollstream.schemas.events import BatchServed, Flushed, Replaced, Scored
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.broker import TopicPartition
from rollstream.streams.folds.refs import GroupRef, ref_of
from rollstream.streams.owned.follow import ConfirmedEvent


class FirstScores(NamedTuple):
    """Of a group: where its first record stands, and its rewards by uid."""

    partition: int
    offset: int
    rewards: Mapping[str, float]


class LateGroup(NamedTuple):
    """A group with rollouts that were published without a reward: their uids by row."""

    group_id: str
    uids: Mapping[int, str]


def late_groups(
    sealed: Iterable[ConfirmedEvent], logs: Mapping[TopicPartition, PartitionAddress]
) -> dict[GroupRef, LateGroup]:
    """The groups that need scores."""
    found = {}
    for one in sealed:
        if not isinstance(one.event, Flushed):
            continue
        segments, end = one.event.segments, 0
        for index, group in enumerate(one.event.groups):
            first, end = end, end + group.rows
            late = np.flatnonzero(np.isnan(segments.rewards[first:end])).tolist()
            if late:
                ref = GroupRef(*logs[one.where], one.offset, index)
                uids = {row: segments.uids[first + row] for row in late}
                found[ref] = LateGroup(group.group_id, uids)
    return found


def first_scores(scores: Iterable[ConfirmedEvent]) -> tuple[dict[str, FirstScores], int]:
    """By group; and how many further records say something else."""
    first: dict[str, FirstScores] = {}
    others = 0
    for one in scores:
        assert isinstance(one.event, Scored), one
        rewards = {score.rollout_uid: score.reward for score in one.event.scores}
        found = FirstScores(one.where.partition, one.offset, rewards)
        others += first.setdefault(one.event.group_id, found).rewards != rewards
    return first, others


def score_problems(
    late: Mapping[GroupRef, LateGroup],
    first: Mapping[str, FirstScores],
    decisions: Sequence[ConfirmedEvent],
) -> list[str]:
    """Groups that were left out, and served ones whose scores are not those that were in effect
    when their batch was decided."""
    problems = [
        f"group {group.group_id} was never scored"
        for group in late.values()
        if group.group_id not in first
    ]
    for decision in decisions:
        if not isinstance(decision.event, BatchServed | Replaced):
            continue
        read_to = {at.partition: at.scores_next_offset for at in decision.event.cursor}
        for chosen in decision.event.groups:
            served = {one.row: one.reward for one in chosen.scores}
            group = late.get(ref_of(chosen))
            scores = None if group is None else first.get(group.group_id)
            if group is None or scores is None or scores.offset >= read_to[scores.partition]:
                expected = {}
            else:
                expected = {row: scores.rewards[uid] for row, uid in group.uids.items()}
            if served != expected or (group is not None and not expected):
                problems.append(
                    f"step {decision.event.step} has group {chosen.group_id} with scores {served}, "
                    f"where {expected} were in effect"
                )
    return problems
