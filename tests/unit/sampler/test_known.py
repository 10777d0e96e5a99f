"""What the sampler makes of a flush."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from harness.groups import GroupSpec, flush_of
from rollstream.folds.group.known import KnownGroup, known_groups
from rollstream.schemas.ids import PartitionAddress

NAN = float("nan")


def known(uids: tuple[str, ...], segments: list[int], rewards: list[float]) -> list[KnownGroup]:
    """Two groups of four rows each."""
    event = flush_of([GroupSpec(rewards=(0.0,) * 4)] * 2, name="a")
    sealed = replace(
        event.segments,
        uids=uids,
        segment_idxs=np.array(segments, np.int32),
        rewards=np.array(rewards, np.float64),
    )
    return known_groups(PartitionAddress("math", 1, 0), 7, replace(event, segments=sealed))


UIDS = ("t", "t", "t", "u", "v", "v", "w", "w")
SEGMENTS = [0, 1, 2, 0, 0, 1, 0, 1]


def test_what_a_trajectory_earned_at_its_end_is_every_earlier_segments() -> None:
    groups = known(UIDS, SEGMENTS, [NAN, NAN, 1.0, 0.5, NAN, 0.25, 0.75, 0.0])
    assert [group.has_rewards for group in groups] == [True, True]


def test_a_last_segment_without_a_reward_waits_for_its_score() -> None:
    groups = known(UIDS, SEGMENTS, [0.5, NAN, 1.0, 0.5, 0.25, NAN, NAN, NAN])
    assert [group.has_rewards for group in groups] == [True, False]


def test_segments_with_rewards_of_their_own_keep_them() -> None:
    given = [0.0, 0.5, 1.0, 0.0, 0.1, 0.2, 0.3, 0.4]
    groups = known(UIDS, SEGMENTS, given)
    assert_array_equal(groups[1].rows.unpack().earned, given[4:])
    assert_array_equal(groups[1].rows.unpack().begins, [True, False, True, False])


def test_a_rollout_of_one_segment_waits_for_its_own_score() -> None:
    rewards = [NAN, 1.0, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0]
    groups = known(tuple("abcdefgh"), [0] * 8, rewards)
    assert [group.has_rewards for group in groups] == [False, True]


@pytest.mark.proves("F20")
def test_a_group_is_all_equal_where_its_trajectories_earned_the_same_in_sum() -> None:
    alike = known(UIDS, SEGMENTS, [0.25, 0.5, 0.25, 1.0, 0.25, 1.0, 0.25, 1.0])
    assert [group.all_equal for group in alike] == [True, True]
    last_only = known(UIDS, SEGMENTS, [NAN, NAN, 1.0, 1.0, NAN, 1.0, 0.5, 0.5])
    assert [group.all_equal for group in last_only] == [True, True]
    differing = known(UIDS, SEGMENTS, [1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25])
    assert [group.all_equal for group in differing] == [False, False]
