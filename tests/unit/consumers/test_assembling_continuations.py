"""Segments that name the rollout that they continue, and what becomes of those that do not fit."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from harness.assembling import Drive
from harness.rollouts import make_entry
from rollstream.schemas.ids import prefix_hash
from rollstream.schemas.reasons import SettleReason

pytestmark = pytest.mark.proves("A17")


def segment(drive: Drive, uid: str, idx: int, prior: str = "", **fields: Any) -> int:
    named: dict[str, Any] = {"group_uid": "g", "group_size": 2, "is_last_segment": False, **fields}
    return drive.rollout(uid, segment_idx=idx, continuation_of=prior, **named)


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_rollouts_that_each_continue_the_one_before_are_one_member(order: tuple[int, ...]) -> None:
    drive = Drive()
    drive.rollout("a", group_uid="g", group_size=2)
    for idx in order:
        segment(drive, f"r{idx}", idx, f"r{idx - 1}" if idx else "", is_last_segment=idx == 2)
    assert drive.members() == [("a", "r0", "r1", "r2")]
    assert drive.assembler.pending.entries == 0


@pytest.mark.parametrize("grouping", ["mixed", "strict"])
def test_a_continuation_under_a_newer_policy_that_comes_first_waits_for_the_rollout_before(
    grouping: str,
) -> None:
    drive = Drive(grouping=grouping, target_group_size=1, min_group_size=1)
    inferred: dict[str, Any] = {"group_uid": "", "group_size": 0}
    segment(drive, "r1", 1, "r0", policy_version="step-2", is_last_segment=True, **inferred)
    assert drive.members() == []
    segment(drive, "r0", 0, policy_version="step-1", **inferred)
    assert drive.members() == [("r0", "r1")]
    assert drive.assembler.pending.entries == 0


def test_a_later_segment_may_still_name_its_own_rollout() -> None:
    drive = Drive(target_group_size=1, min_group_size=1)
    segment(drive, "r0", 0, group_size=1)
    segment(drive, "r1", 1, "r0", group_size=1)
    segment(drive, "r1", 2, "r1", group_size=1, is_last_segment=True)
    assert drive.members() == [("r0", "r1", "r1")]


def test_a_first_segment_continues_nothing() -> None:
    drive = Drive()
    bad = segment(drive, "t", 0, "nobody", is_last_segment=True)
    drive.rollout("a", group_uid="g", group_size=2)
    assert drive.members() == [("a",)]
    assert drive.settled_offsets() == {bad: SettleReason.BROKEN_CHAIN}


def test_a_prefix_that_does_not_fit_is_settled_before_the_last_segment_comes() -> None:
    drive = Drive()
    drive.rollout("a", group_uid="g", group_size=2)
    first = segment(drive, "t", 0)
    second = segment(drive, "t", 1, prefix_hash="0" * 32)
    assert drive.members() == [("a",)], "the member failed, so the group is full"
    broken = SettleReason.BROKEN_CHAIN
    assert drive.settled_offsets() == {first: broken, second: broken}


def test_what_comes_of_a_broken_trajectory_later_is_settled_as_broken() -> None:
    drive = Drive()
    offsets = [segment(drive, "t", 0), segment(drive, "t", 1, prefix_hash="0" * 32)]
    offsets.append(segment(drive, "t", 2, "t", is_last_segment=True))
    offsets.append(segment(drive, "r3", 3, "t", is_last_segment=True))
    drive.rollout("a", group_uid="g", group_size=2)
    assert drive.members() == [("a",)]
    assert drive.settled_offsets() == dict.fromkeys(offsets, SettleReason.BROKEN_CHAIN)


def test_prefixes_of_rollouts_that_continue_each_other_are_checked() -> None:
    drive = Drive(target_group_size=1, min_group_size=1)
    given = make_entry(rollout_uid="r0", is_last_segment=False)
    drive.add(given)
    prefix = prefix_hash("", given.fields["prompt_tokens"], given.fields["output_tokens"])
    drive.rollout("r1", segment_idx=1, continuation_of="r0", prefix_hash=prefix)
    assert drive.members() == [("r0", "r1")]


def test_two_rollouts_that_continue_one_contradict_each_other() -> None:
    drive = Drive()
    offsets = [segment(drive, "r0", 0), segment(drive, "r1", 1, "r0")]
    offsets.append(segment(drive, "other", 1, "r0", is_last_segment=True))
    drive.rollout("a", group_uid="g", group_size=2)
    assert drive.members() == [("a",)]
    assert drive.settled_offsets() == dict.fromkeys(offsets, SettleReason.BROKEN_CHAIN)


@pytest.mark.parametrize("alone", [True, False])
def test_a_rollout_before_that_never_comes_is_a_broken_chain_at_expiry(alone: bool) -> None:
    drive = Drive(seal_timeout_s=10, expire_after_s=100)
    waiting = segment(drive, "r1", 1, "r0", is_last_segment=True)
    if not alone:
        drive.rollout("a", group_uid="g", group_size=2)
    drive.wait(99)
    assert drive.settled_offsets() == {}
    drive.wait(2)
    assert drive.settled_offsets()[waiting] == SettleReason.BROKEN_CHAIN
    if not alone:
        assert drive.settled_offsets()[waiting + 1] == SettleReason.EXPIRED
    assert drive.assembler.pending.entries == 0


def test_a_trajectory_whose_end_never_comes_still_expires() -> None:
    drive = Drive(seal_timeout_s=10, expire_after_s=100)
    offsets = [segment(drive, "r0", 0), segment(drive, "r1", 1, "r0")]
    drive.wait(101)
    assert drive.settled_offsets() == dict.fromkeys(offsets, SettleReason.EXPIRED)


def test_a_rollout_that_failed_takes_its_continuation_with_it() -> None:
    drive = Drive()
    offsets = [segment(drive, "r1", 1, "r0", is_last_segment=True)]
    drive.fail("g", 2, uid="r0")
    drive.rollout("a", group_uid="g", group_size=2)
    assert drive.members() == [("a",)]
    assert drive.settled_offsets()[offsets[0]] == SettleReason.FAILED
