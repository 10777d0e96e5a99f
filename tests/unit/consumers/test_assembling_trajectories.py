"""Members that are several segments."""

from __future__ import annotations

from typing import Any

import pytest

from harness.assembling import Drive, places_of
from harness.rollouts import make_entry, make_record
from rollstream.schemas.ids import prefix_hash
from rollstream.schemas.reasons import SealReason, SettleReason

LAG_ENTRIES_MAX = "rollstream.consumers.assembling.outcomes.LAG_ENTRIES_MAX"


def turn(drive: Drive, uid: str, idx: int, *, last: bool, **fields: object) -> int:
    return drive.rollout(uid, segment_idx=idx, is_last_segment=last, **fields)


@pytest.mark.proves("A17")
def test_a_trajectory_is_a_member_once_all_its_segments_are_here() -> None:
    drive = Drive()
    turn(drive, "t", 0, last=False)
    drive.rollout("a")
    turn(drive, "t", 2, last=True)
    assert drive.members() == []
    turn(drive, "t", 1, last=False)
    assert drive.members() == [("a", "t", "t", "t")]
    assert places_of(drive.groups()[0].rows) == [(1, 0), (0, 0), (3, 0), (2, 0)]


def test_a_trajectory_goes_on_under_a_newer_policy() -> None:
    drive = Drive(grouping="strict")
    turn(drive, "t", 0, last=False, policy_version="step-1")
    turn(drive, "t", 1, last=True, policy_version="step-2")
    drive.rollout("a", policy_version="step-1")
    assert drive.members() == [("t", "t", "a")]


@pytest.mark.proves("A17")
@pytest.mark.parametrize(
    "second",
    [{"continuation_of": "somebody-else"}, {"prefix_hash": "0" * 32}],
    ids=["continuation", "prefix"],
)
def test_a_chain_that_does_not_fit_is_broken_and_counts_as_failed(second: dict[str, str]) -> None:
    drive = Drive()
    turn(drive, "t", 0, last=False, group_uid="g", group_size=2)
    turn(drive, "t", 1, last=True, group_uid="g", group_size=2, **second)
    drive.rollout("a", group_uid="g", group_size=2)
    assert drive.members() == [("a",)]
    assert drive.settled_offsets() == dict.fromkeys((0, 1), SettleReason.BROKEN_CHAIN)


@pytest.mark.parametrize("others", [0, 1])
def test_a_broken_chain_is_settled_as_it_came_and_writes_no_bytes(others: int) -> None:
    drive = Drive()
    size = others + 1
    turn(drive, "t", 1, last=True, group_uid="g", group_size=size, continuation_of="other")
    turn(drive, "t", 0, last=False, group_uid="g", group_size=size)
    for number in range(others):
        drive.rollout(f"a{number}", group_uid="g", group_size=size)
    plan = drive.commit()
    assert plan is not None
    (decision,) = plan.decisions
    assert [(s.offset, s.segment_idx) for s in decision.settled] == [(0, 1), (1, 0)]
    record = make_record([make_entry(rollout_uid="a0", group_uid="g", group_size=size)])
    assert decision.size == others * record.size
    assert (drive.assembler.pending.entries, drive.assembler.held.size) == (0, 0)


def test_a_chain_that_fits_is_whole() -> None:
    drive = Drive(target_group_size=1, min_group_size=1)
    prefix = ""
    for idx in range(3):
        given = make_entry(
            rollout_uid="t",
            segment_idx=idx,
            is_last_segment=idx == 2,
            prompt_tokens=[idx],
            continuation_of="t" if idx else "",
            prefix_hash=prefix,
        )
        drive.add(given)
        prefix = prefix_hash(prefix, given.fields["prompt_tokens"], given.fields["output_tokens"])
    assert drive.members() == [("t", "t", "t")]


def test_a_segment_behind_the_last_breaks_the_chain() -> None:
    drive = Drive()
    turn(drive, "t", 1, last=True, group_uid="g", group_size=2)
    turn(drive, "t", 2, last=False, group_uid="g", group_size=2)
    turn(drive, "t", 0, last=False, group_uid="g", group_size=2)
    drive.rollout("a", group_uid="g", group_size=2)
    assert drive.members() == [("a",)]
    assert set(drive.settled_offsets()) == {0, 1, 2}


def test_a_trajectory_that_failed_takes_its_segments_with_it() -> None:
    drive = Drive()
    turn(drive, "t", 0, last=False, group_uid="g", group_size=2)
    drive.fail("g", 2, uid="t")
    late = turn(drive, "t", 1, last=True, group_uid="g", group_size=2)
    drive.rollout("a", group_uid="g", group_size=2)
    assert drive.members() == [("a",)]
    assert drive.settled_offsets() == dict.fromkeys((0, 1, late), SettleReason.FAILED)


def test_a_trajectory_fails_once_however_often_it_is_said() -> None:
    drive = Drive()
    turn(drive, "t", 0, last=False, group_uid="g", group_size=3)
    turn(drive, "t", 1, last=True, group_uid="g", group_size=3, prefix_hash="0" * 32)
    drive.fail("g", 3, uid="t")
    drive.fail("g", 3, uid="t")
    drive.rollout("a", group_uid="g", group_size=3)
    assert drive.members() == []
    drive.rollout("b", group_uid="g", group_size=3)
    assert drive.members() == [("a", "b")]


def test_a_trajectory_that_is_not_whole_outlives_its_group() -> None:
    drive = Drive(target_group_size=3, min_group_size=1, seal_timeout_s=10, expire_after_s=100)
    turn(drive, "t", 0, last=False)
    drive.rollout("a")
    drive.wait(10)
    assert drive.members() == [("a",)]
    assert drive.assembler.decided.watermark == 0
    size = make_record([make_entry(rollout_uid="t", is_last_segment=False)]).size
    assert (drive.assembler.pending.entries, drive.assembler.held.size) == (1, size)
    turn(drive, "t", 1, last=True)
    drive.wait(10)
    assert drive.members() == [("a",), ("t", "t")]
    assert (drive.assembler.pending.entries, drive.assembler.held.size) == (0, 0)


def test_a_trajectory_that_never_ends_expires() -> None:
    drive = Drive(seal_timeout_s=10, expire_after_s=100)
    turn(drive, "t", 0, last=False)
    drive.wait(100)
    assert drive.settled_offsets() == {0: SettleReason.EXPIRED}
    assert drive.assembler.pending.entries == 0


def test_a_trajectory_that_never_ends_expires_however_often_its_key_is_sealed() -> None:
    drive = Drive(seal_timeout_s=10, expire_after_s=100)
    turn(drive, "t", 0, last=False)
    drive.rollout("a")
    drive.rollout("b")
    for number in range(9):
        drive.wait(10)
        drive.rollout(f"c{number}")
        drive.rollout(f"d{number}")
        assert len(drive.groups()) == number + 2
    assert drive.settled_offsets() == {}
    assert drive.assembler.decided.watermark == 0
    drive.wait(10)
    assert drive.settled_offsets() == {0: SettleReason.EXPIRED}
    assert drive.kept_uids() == ["t"]
    assert drive.assembler.decided.watermark == drive.assembler.position
    left = drive.assembler
    assert (left.pending.entries, left.held.size, len(left.pending.by_key)) == (0, 0, 0)


def test_a_trajectory_that_never_ends_expires_by_lag_however_often_its_key_is_sealed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LAG_ENTRIES_MAX, 40)
    drive = Drive(seal_timeout_s=10_000, expire_after_s=10_000)
    turn(drive, "t", 0, last=False)
    while drive.assembler.position <= 40:
        assert drive.settled_offsets() == {}
        drive.now_us += 1
        drive.rollout(f"u{drive.assembler.position}")
    drive.now_us += 1
    pending = drive.rollout("last")
    assert drive.settled_offsets() == {0: SettleReason.EXPIRED}
    assert drive.assembler.decided.watermark == pending


def test_a_trajectory_whose_key_is_not_sealed_again_expires_by_its_own_age() -> None:
    drive = Drive(target_group_size=3, min_group_size=1, seal_timeout_s=10, expire_after_s=100)
    turn(drive, "t", 0, last=False)
    drive.rollout("a")
    drive.wait(10)
    assert drive.members() == [("a",)]
    drive.wait(89)
    assert drive.settled_offsets() == {}
    drive.wait(1)
    assert drive.settled_offsets() == {0: SettleReason.EXPIRED}


def test_an_expired_trajectory_takes_nobody_with_it() -> None:
    drive = Drive(target_group_size=3, seal_timeout_s=10, expire_after_s=100, max_per_replica=1)
    turn(drive, "t", 0, last=False, replica_id="r0")
    drive.rollout("a", replica_id="r1")
    drive.rollout("b", replica_id="r2")
    drive.wait(10)
    assert drive.members() == [("a", "b")]
    drive.wait(85)
    drive.rollout("c", replica_id="r3")
    drive.wait(5)
    assert drive.settled_offsets() == {0: SettleReason.EXPIRED}
    drive.rollout("d", replica_id="r0")
    drive.wait(10)
    assert drive.members() == [("a", "b"), ("c", "d")]
    assert drive.assembler.decided.watermark == drive.assembler.position


def test_what_outlived_its_group_leaves_the_order_of_ages_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LAG_ENTRIES_MAX, 40)
    drive = Drive(seal_timeout_s=10_000, expire_after_s=10_000)
    turn(drive, "t", 0, last=False)
    other = drive.rollout("other", example_id="ex-2")
    drive.rollout("a")
    drive.rollout("b")
    turn(drive, "t", 1, last=True)
    while drive.assembler.position <= other + 41:
        drive.now_us += 1
        drive.rollout(f"u{drive.assembler.position}", example_id="ex-3")
    assert drive.settled_offsets() == {other: SettleReason.EXPIRED}
    drive.rollout("c")
    assert ("t", "t", "c") in drive.members()


def test_an_end_makes_the_newest_segment_before_it_the_last() -> None:
    drive = Drive()
    turn(drive, "t", 0, last=False)
    turn(drive, "t", 1, last=False)
    drive.rollout("a")
    assert drive.members() == []
    end = drive.end("t")
    assert drive.members() == [("a", "t", "t")]
    assert drive.settled_offsets() == {end: SettleReason.ENDED}


def test_an_end_that_says_how_many_segments_there_are_waits_for_late_ones() -> None:
    drive = Drive(target_group_size=1, min_group_size=1)
    turn(drive, "t", 2, last=False)
    drive.end("t", 3)
    turn(drive, "t", 0, last=False)
    assert drive.members() == []
    turn(drive, "t", 1, last=False)
    assert drive.members() == [("t", "t", "t")]


def test_an_end_over_a_gap_waits_for_what_is_missing() -> None:
    drive = Drive(target_group_size=1, min_group_size=1)
    turn(drive, "t", 1, last=False)
    drive.end("t")
    assert drive.members() == []
    turn(drive, "t", 0, last=False)
    assert drive.members() == [("t", "t")]


@pytest.mark.parametrize("segments", [0, 7])
def test_the_first_end_counts_and_others_change_nothing(segments: int) -> None:
    drive = Drive(target_group_size=1, min_group_size=1)
    turn(drive, "t", 0, last=False)
    drive.end("t", 2)
    again = drive.end("t", segments)
    turn(drive, "t", 1, last=False)
    after = drive.end("t", segments)
    assert drive.members() == [("t", "t")]
    settled = drive.settled_offsets()
    assert (settled[again], settled[after]) == (SettleReason.NOT_OPEN, SettleReason.NOT_OPEN)


def test_an_end_before_all_segments_is_settled_at_once_and_may_be_repeated() -> None:
    drive = Drive(target_group_size=1, min_group_size=1)
    drive.end("t", 1)
    drive.commit()
    assert drive.assembler.decided.watermark == 1
    turn(drive, "t", 0, last=False)
    assert drive.members() == []
    drive.end("t", 1)
    assert drive.members() == [("t",)]
    assert drive.settled_offsets()[0] is SettleReason.NOT_OPEN


def test_a_segment_behind_the_end_breaks_its_trajectory() -> None:
    drive = Drive(target_group_size=2, min_group_size=1)
    turn(drive, "t", 0, last=False)
    end = drive.end("t", 2)
    late = turn(drive, "t", 2, last=False)
    drive.rollout("a")
    assert drive.members() == [("a",)]
    broken = dict.fromkeys((0, late), SettleReason.BROKEN_CHAIN)
    assert drive.settled_offsets() == {**broken, end: SettleReason.ENDED}


def test_an_end_expires_with_what_it_ended() -> None:
    drive = Drive(seal_timeout_s=10, expire_after_s=20)
    turn(drive, "t", 0, last=False)
    end = drive.end("t", 2)
    drive.rollout("a")
    drive.rollout("b")
    assert drive.members() == [("a", "b")]  # The trajectory goes on in a new group.
    assert end not in drive.settled_offsets()
    drive.wait(20)
    assert drive.settled_offsets() == {0: SettleReason.EXPIRED, end: SettleReason.ENDED}
    left = drive.assembler
    assert (left.pending.entries, left.held.size, len(left.pending.by_key)) == (0, 0, 0)


def _partial(**config: Any) -> Drive:
    """An assembler by whose configuration trajectories without an end are trained on."""
    sizes: dict[str, Any] = {"target_group_size": 3, "seal_timeout_s": 10, "expire_after_s": 100}
    return Drive(**{**sizes, "partial_trajectories": "train", **config})


@pytest.mark.proves("A17", "I2")
def test_what_came_of_a_trajectory_without_an_end_is_sealed_with_its_group_where_allowed() -> None:
    drive = _partial()
    turn(drive, "t", 0, last=False, reward=None)
    turn(drive, "t", 1, last=False, reward=0.5)
    drive.rollout("a")
    assert drive.members() == []
    drive.wait(10)
    assert drive.members() == [("a", "t", "t")]
    assert [group.reason for group in drive.groups()] == [SealReason.TIMEOUT]
    assert places_of(drive.groups()[0].rows) == [(2, 0), (0, 0), (1, 0)]
    again, late = turn(drive, "t", 1, last=True), turn(drive, "t", 2, last=True)
    drive.wait(100)
    assert len(drive.groups()) == 1
    assert drive.settled_offsets() == {
        again: SettleReason.DUPLICATE,
        late: SettleReason.EXPIRED,
    }
    assert drive.assembler.pending.entries == 0


@pytest.mark.proves("A17")
@pytest.mark.parametrize(
    ("idx", "fields", "reason"),
    [
        (2, {"reward": 0.5}, SettleReason.EXPIRED),
        (2, {"reward": 0.5, "continuation_of": "t"}, SettleReason.BROKEN_CHAIN),
        (1, {"reward": None}, SettleReason.EXPIRED),
        (1, {"reward": 0.5, "prefix_hash": "0" * 32}, SettleReason.BROKEN_CHAIN),
        (1, {"reward": 0.5, "continuation_of": "somebody-else"}, SettleReason.BROKEN_CHAIN),
    ],
    ids=["gap", "said-gap", "no-reward", "prefix", "continuation"],
)
def test_a_trajectory_without_an_end_that_cannot_be_trained_on_ends_unsealed(
    idx: int, fields: dict[str, object], reason: SettleReason
) -> None:
    drive = _partial()
    for uid in "ab":
        drive.rollout(uid)
    turn(drive, "t", 0, last=False, reward=0.5)
    turn(drive, "t", idx, last=False, **fields)
    drive.wait(10)
    assert drive.members() == [("a", "b")]
    drive.wait(90)
    assert drive.settled_offsets() == dict.fromkeys((2, 3), reason)


def test_a_full_group_leaves_a_trajectory_without_an_end_its_time() -> None:
    drive = _partial(target_group_size=2)
    turn(drive, "t", 0, last=False, reward=0.5)
    for uid in "ab":
        drive.rollout(uid)
    assert drive.members() == [("a", "b")]
    turn(drive, "t", 1, last=True)
    drive.rollout("c")
    assert drive.members() == [("a", "b"), ("t", "t", "c")]


def test_a_group_that_stayed_too_small_has_them_when_it_would_expire() -> None:
    drive = _partial()
    drive.rollout("a")
    drive.wait(10)
    turn(drive, "t", 0, last=False, reward=0.5)
    assert drive.members() == []
    drive.wait(90)
    assert drive.members() == [("a", "t")]


@pytest.mark.parametrize("allowed", ["drop", "train"])
def test_too_few_of_them_expire_with_their_group(allowed: str) -> None:
    drive = _partial(partial_trajectories=allowed)
    turn(drive, "t", 0, last=False, reward=0.5)
    drive.wait(100)
    assert drive.settled_offsets() == {0: SettleReason.EXPIRED}
    assert drive.assembler.pending.entries == 0
