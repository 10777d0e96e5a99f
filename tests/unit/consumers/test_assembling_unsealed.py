"""Dispatched groups that end and are not sealed."""

from __future__ import annotations

from harness.assembling import Drive
from rollstream.consumers.assembling.decisions import Failed, Unsealed
from rollstream.schemas.reasons import SettleReason


def unsealed(drive: Drive) -> list[Unsealed]:
    drive.commit()
    return [one.unsealed for one in drive.decisions if one.unsealed is not None]


def test_a_dispatched_group_of_which_nothing_came_expires_with_its_example() -> None:
    drive = Drive(seal_timeout_s=10, expire_after_s=100)
    offset = drive.dispatch("g", 2, example_id="ex-7")
    drive.wait(100)
    assert unsealed(drive) == [(SettleReason.EXPIRED, "ex-7")]
    assert drive.settled_offsets() == {offset: SettleReason.DISPATCHED}


def test_a_dispatched_group_that_stays_too_small_expires_with_its_example() -> None:
    drive = Drive(seal_timeout_s=10, expire_after_s=100)
    drive.dispatch("g", 2)
    drive.rollout("a", group_uid="g", group_size=2)
    drive.wait(100)
    assert unsealed(drive) == [(SettleReason.EXPIRED, "ex-1")]


def test_a_dispatched_group_whose_members_all_fail_ends_as_failed() -> None:
    drive = Drive()
    drive.dispatch("g", 2)
    drive.fail("g", 2, count=2)
    assert unsealed(drive) == [(SettleReason.FAILED, "ex-1")]


def test_a_dispatched_group_ends_for_the_reason_of_the_first_member_that_is_refused() -> None:
    drive = Drive(accept_policy_versions=("step-9",))
    drive.dispatch("g", 2)
    drive.rollout("a", group_uid="g", group_size=2, policy_version="step-1")
    drive.fail("g", 2)
    assert unsealed(drive) == [(SettleReason.VERSION_REJECTED, "ex-1")]


def test_a_sealed_group_is_not_among_them_nor_one_that_nobody_dispatched() -> None:
    drive = Drive(seal_timeout_s=10, expire_after_s=100)
    drive.dispatch("g", 2)
    drive.rollout("a", group_uid="g", group_size=2)
    drive.fail("g", 2)
    drive.rollout("b", group_uid="h", group_size=2)
    drive.wait(100)
    assert drive.members() == [("a",)]
    assert unsealed(drive) == []


def test_what_comes_too_late_for_a_sealed_group_is_no_dispatched_group() -> None:
    drive = Drive(seal_timeout_s=10, expire_after_s=100)
    drive.dispatch("g", 2)
    drive.rollout("a", group_uid="g", group_size=2)
    drive.rollout("b", group_uid="g", group_size=2)
    late = drive.rollout("c", group_uid="g", group_size=2)
    drive.wait(100)
    assert drive.settled_offsets()[late] is SettleReason.EXPIRED
    assert unsealed(drive) == []


def test_why_members_failed_ends_with_their_group_sealed_or_not() -> None:
    drive = Drive()
    drive.dispatch("g", 3)
    drive.rollout("a", group_uid="g", group_size=3)
    drive.fail("g", 3, reason="x" * 300)
    drive.fail("g", 3, reason="timed out")
    drive.dispatch("h", 2)
    drive.fail("h", 2, count=2, reason="timed out")
    drive.commit()
    assert [one.failed for one in drive.decisions] == [
        (Failed("x" * 200, "g", 1), Failed("timed out", "g", 1)),
        (Failed("timed out", "h", 2),),
    ]
