"""When a group is sealed, and with whom."""

from __future__ import annotations

import pytest

from harness.assembling import NO_BOUND, Drive
from harness.rollouts import make_entry, make_record
from rollstream.schemas.ids import GroupKey
from rollstream.schemas.reasons import SealReason, SettleReason
from rollstream.streams.folds.entries import Stretch


@pytest.mark.proves("A6")
def test_a_group_is_sealed_by_the_member_that_completes_it() -> None:
    drive = Drive(target_group_size=3)
    drive.rollout("a")
    drive.rollout("b")
    assert drive.members() == []
    drive.rollout("c")
    assert drive.members() == [("a", "b", "c")]
    assert drive.groups()[0].reason is SealReason.FULL
    assert drive.assembler.decided.watermark == 3


@pytest.mark.proves("A6")
def test_time_out_seals_what_has_enough_members_in_log_time() -> None:
    drive = Drive(target_group_size=8, min_group_size=2, seal_timeout_s=10, expire_after_s=100)
    drive.rollout("a")
    drive.wait(9)
    drive.rollout("b")
    assert drive.members() == []
    drive.wait(1)
    assert drive.members() == [("a", "b")]
    assert drive.groups()[0].reason is SealReason.TIMEOUT


def test_a_record_moves_log_time_and_seals_before_it_is_added() -> None:
    drive = Drive(target_group_size=8, seal_timeout_s=10, expire_after_s=100)
    drive.rollout("a")
    drive.rollout("b")
    drive.now_us += 10_000_000
    drive.rollout("c")
    assert drive.members() == [("a", "b")]
    assert drive.assembler.pending.entries == 1


def test_log_time_never_goes_back() -> None:
    drive = Drive(target_group_size=8, seal_timeout_s=10, expire_after_s=100)
    drive.wait(50)
    drive.now_us = 0
    drive.rollout("a")
    drive.rollout("b")
    assert drive.assembler.now_us == 50_000_000
    drive.wait(59)
    assert drive.members() == []
    drive.wait(1)
    assert drive.members() == [("a", "b")]


def test_a_group_too_small_at_its_time_out_is_sealed_by_the_member_it_lacked() -> None:
    drive = Drive(target_group_size=8, min_group_size=2, seal_timeout_s=10, expire_after_s=100)
    drive.rollout("a")
    drive.wait(20)
    drive.rollout("b")
    assert drive.members() == [("a", "b")]
    assert drive.groups()[0].reason is SealReason.TIMEOUT


def test_a_group_that_stays_too_small_expires_with_its_rows() -> None:
    drive = Drive(target_group_size=8, min_group_size=2, seal_timeout_s=10, expire_after_s=100)
    offset = drive.rollout("a")
    drive.wait(99)
    assert drive.settled_offsets() == {}
    drive.wait(1)
    assert drive.settled_offsets() == {offset: SettleReason.EXPIRED}
    assert drive.kept_uids() == ["a"]


@pytest.mark.proves("A6")
def test_flush_seals_what_has_enough_members_and_leaves_the_rest() -> None:
    drive = Drive(target_group_size=8, min_group_size=2)
    drive.rollout("a")
    drive.rollout("b")
    drive.rollout("c", example_id="other")
    drive.assembler.flush()
    assert drive.members() == [("a", "b")]
    assert drive.groups()[0].reason is SealReason.FLUSH
    assert drive.assembler.pending.entries == 1
    assert drive.assembler.decided.watermark == 2


@pytest.mark.proves("A8")
def test_group_uid_joins_what_the_policy_version_would_part() -> None:
    drive = Drive()
    drive.rollout("a", group_uid="g", group_size=2, policy_version="step-1")
    drive.rollout("b", group_uid="g", group_size=2, policy_version="step-2")
    assert drive.members() == [("a", "b")]
    assert drive.groups()[0].key == GroupKey("math", "ex-1", 0, "", "g")


@pytest.mark.proves("A8")
@pytest.mark.parametrize(
    ("grouping", "sealed"), [("strict", [("a", "c")]), ("mixed", [("a", "b")])]
)
def test_inferred_groups_follow_the_configured_grouping(
    grouping: str, sealed: list[tuple[str, ...]]
) -> None:
    drive = Drive(grouping=grouping)
    drive.rollout("a", policy_version="step-1")
    drive.rollout("b", policy_version="step-2")
    drive.rollout("c", policy_version="step-1")
    assert drive.members() == sealed


def test_the_producers_group_size_wins_over_the_target() -> None:
    drive = Drive(target_group_size=2)
    for uid in "abc":
        drive.rollout(uid, group_uid="g", group_size=3)
    assert drive.members() == [("a", "b", "c")]


def test_eval_rollouts_are_sealed_apart_from_train_rollouts() -> None:
    drive = Drive()
    drive.rollout("a")
    drive.rollout("b", split="eval")
    drive.rollout("c", split="eval")
    assert drive.members() == [("b", "c")]
    assert drive.groups()[0].split == "eval"


def test_one_eval_member_makes_a_named_group_eval() -> None:
    drive = Drive()
    drive.rollout("a", group_uid="g")
    drive.rollout("b", group_uid="g", split="eval")
    assert drive.groups()[0].split == "eval"


@pytest.mark.proves("F16")
def test_failed_members_close_their_group_at_once() -> None:
    drive = Drive()
    dispatched = drive.dispatch("g", 3)
    drive.rollout("a", group_uid="g", group_size=3)
    failed = drive.fail("g", 3, count=2)
    assert drive.members() == [("a",)]
    assert drive.groups()[0].failed_members == 2
    assert drive.settled_offsets() == {
        dispatched: SettleReason.DISPATCHED,
        failed: SettleReason.FAILED,
    }
    assert drive.assembler.decided.watermark == 3


@pytest.mark.proves("F16")
def test_a_group_whose_members_all_failed_is_settled_without_a_group() -> None:
    drive = Drive()
    drive.dispatch("g", 2)
    drive.fail("g", 2)
    assert drive.settled_offsets() == {}
    drive.fail("g", 2)
    assert list(drive.settled_offsets().values()) == [
        SettleReason.DISPATCHED,
        SettleReason.FAILED,
        SettleReason.FAILED,
    ]
    assert drive.groups() == []


def test_a_dispatch_without_members_is_settled_by_age() -> None:
    drive = Drive(seal_timeout_s=10, expire_after_s=100)
    offset = drive.dispatch("g", 2)
    drive.wait(100)
    assert drive.settled_offsets() == {offset: SettleReason.DISPATCHED}


def test_a_failure_that_names_no_group_is_settled_alone() -> None:
    drive = Drive()
    assert drive.settled_offsets() == {}
    offset = drive.fail("", 0)
    assert drive.settled_offsets() == {offset: SettleReason.FAILED}


@pytest.mark.proves("A4")
def test_a_uid_that_is_pending_is_not_taken_twice() -> None:
    drive = Drive()
    drive.rollout("a")
    again = drive.rollout("a")
    drive.rollout("b")
    assert drive.members() == [("a", "b")]
    assert drive.settled_offsets() == {again: SettleReason.DUPLICATE}


@pytest.mark.proves("A4")
def test_a_uid_that_was_sealed_is_not_taken_again() -> None:
    drive = Drive()
    drive.rollout("a")
    drive.rollout("b")
    drive.commit()
    again = drive.rollout("a")
    assert drive.settled_offsets() == {again: SettleReason.DUPLICATE}


def test_a_duplicate_is_told_before_and_after_its_original_is_committed() -> None:
    drive = Drive()
    drive.rollout("a")
    drive.rollout("a")
    drive.commit()
    third = drive.rollout("a")
    drive.rollout("b")
    assert drive.members() == [("a", "b")]
    assert drive.settled_offsets()[third] is SettleReason.DUPLICATE


@pytest.mark.proves("A5")
def test_max_per_replica_caps_one_replicas_share() -> None:
    drive = Drive(target_group_size=3, max_per_replica=2)
    drive.rollout("a", replica_id="r1")
    drive.rollout("b", replica_id="r1")
    capped = drive.rollout("c", replica_id="r1")
    drive.rollout("d", replica_id="r2")
    assert drive.members() == [("a", "b", "d")]
    assert drive.settled_offsets() == {capped: SettleReason.REPLICA_CAP}


@pytest.mark.proves("A7")
def test_only_accepted_policy_versions_are_admitted() -> None:
    drive = Drive(accept_policy_versions=("step-1",))
    rejected = drive.rollout("a", policy_version="step-0")
    drive.rollout("b", policy_version="step-1")
    drive.rollout("c", policy_version="step-1")
    assert drive.members() == [("b", "c")]
    assert drive.settled_offsets() == {rejected: SettleReason.VERSION_REJECTED}


def test_rejected_members_of_a_named_group_count_towards_its_size() -> None:
    drive = Drive(accept_policy_versions=("step-1",))
    drive.dispatch("g", 2)
    rejected = drive.rollout("a", group_uid="g", group_size=2, policy_version="step-0")
    assert drive.settled_offsets() == {}, "it is settled with its group"
    drive.rollout("b", group_uid="g", group_size=2, policy_version="step-1")
    assert drive.members() == [("b",)]
    assert drive.settled_offsets()[rejected] is SettleReason.VERSION_REJECTED


def test_a_late_member_begins_a_group_of_its_own() -> None:
    drive = Drive(target_group_size=3, seal_timeout_s=10, expire_after_s=20)
    for uid in "ab":
        drive.rollout(uid, group_uid="g", group_size=3)
    drive.wait(10)
    assert drive.members() == [("a", "b")]
    late = drive.rollout("c", group_uid="g", group_size=3)
    drive.wait(20)
    assert drive.settled_offsets() == {late: SettleReason.EXPIRED}


def test_too_many_pending_rollouts_expire_the_oldest_group() -> None:
    drive = Drive(target_group_size=64, max_pending_rollouts=64)
    for number in range(65):
        drive.rollout(f"u{number}", example_id=f"ex-{number // 32}")
    assert set(drive.settled_offsets()) == set(range(32))
    assert drive.assembler.pending.entries == 33


def test_too_many_pending_bytes_expire_the_oldest_group() -> None:
    drive = Drive(target_group_size=64, pending_bytes=1024 * 1024)
    padded = {"metadata": '{"x": "' + "x" * 10_000 + '"}'}
    size = make_record([make_entry(rollout_uid="u10", **padded)]).size
    for number in range(1024 * 1024 // size + 1):
        drive.rollout(f"u{number}", example_id=f"ex-{number // 32}", **padded)
    assert set(drive.settled_offsets()) == set(range(32))


def test_what_is_unreadable_or_lost_is_settled() -> None:
    drive = Drive()
    drive.assembler.unreadable(0, 0)
    known = [Stretch(1, 3, 0, ()), Stretch(3, 4, 1, (0,)), Stretch(4, 5, 0, ())]
    drive.assembler.unread(known, SettleReason.LOST)
    assert drive.settled_offsets() == {
        0: SettleReason.UNREADABLE,
        1: SettleReason.LOST,
        2: SettleReason.LOST,
        4: SettleReason.LOST,
    }
    assert drive.assembler.decided.watermark == 5


def test_a_plan_stays_the_same_until_it_is_committed() -> None:
    drive = Drive()
    for uid in "abcd":
        drive.rollout(uid)
    plan = drive.plan(2, NO_BOUND)
    assert plan is not None
    assert drive.plan(2, NO_BOUND) == plan
    assert (plan.entries, plan.watermark, drive.assembler.decided.watermark) == (2, 2, 0)
    drive.rollout("e")
    drive.assembler.commit(plan)
    assert drive.assembler.decided.watermark == 2
    assert drive.members() == [("c", "d")]


def test_a_stale_plan_cannot_be_committed() -> None:
    drive = Drive()
    for uid in "abcd":
        drive.rollout(uid)
    stale = drive.plan(2, NO_BOUND)
    assert stale is not None
    drive.commit()
    with pytest.raises(AssertionError, match="newest"):
        drive.assembler.commit(stale)


def test_a_plan_holds_one_decision_at_least_and_keeps_to_its_bounds() -> None:
    drive = Drive(target_group_size=4)
    for uid in "abcdefgh":
        drive.rollout(uid)
    by_entries = drive.plan(1, NO_BOUND)
    by_size = drive.plan(NO_BOUND, 100)
    both = drive.plan(8, NO_BOUND)
    assert by_entries is not None
    assert by_size is not None
    assert both is not None
    assert (by_entries.entries, by_size.entries, both.entries) == (4, 4, 8)
