"""When a prompt of steps is sealed, and what becomes of what comes beyond it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness.assembling import NO_BOUND, Drive
from harness.rollouts import make_ended, make_entry
from rollstream.consumers.sealing.rows import FlushTarget, draft_flush
from rollstream.schemas.ids import PartitionAddress
from rollstream.schemas.ingest.entry import EntryKind
from rollstream.schemas.reasons import SettleReason

IDLE_S = 30.0
TARGET = FlushTarget(PartitionAddress("math", 1, 0), 7, "nonce", "name", "none", "root")


def step(drive: Drive, uid: str, index: int = 0, *, is_last: bool = False, **fields: Any) -> int:
    """A step of the prompt ``p``, of which nobody says how many trajectories it has."""
    given = {"group_uid": "p", "example_id": "p", "group_size": 0, **fields}
    named = {"rollout_uid": uid, "segment_idx": index, "is_last_segment": is_last}
    return drive.add(make_entry(**given, **named)._replace(kind=EntryKind.STEP))


def whole(drive: Drive, uid: str, **fields: Any) -> int:
    return step(drive, uid, is_last=True, **fields)


def drive_of(**config: Any) -> Drive:
    return Drive(**{"prompt_idle_s": IDLE_S, "target_group_size": 8, **config})


def reasons(drive: Drive) -> list[str]:
    return [reason.value for _, reason in sorted(drive.settled_offsets().items())]


@pytest.mark.proves("B3")
def test_without_a_number_a_prompt_waits_until_none_has_begun_for_a_time() -> None:
    drive = drive_of()
    whole(drive, "a")
    drive.wait(IDLE_S - 1)
    whole(drive, "b")
    drive.wait(IDLE_S - 1)
    assert drive.members() == []
    drive.wait(1)
    assert drive.members() == [("a", "b")]
    (group,) = drive.groups()
    assert group.reason == "idle"


@pytest.mark.proves("B3")
def test_one_finished_trajectory_without_a_number_is_a_prompt() -> None:
    drive = drive_of(min_group_size=2)
    whole(drive, "a")
    drive.wait(IDLE_S)
    assert drive.members() == [("a",)]


@pytest.mark.proves("B3")
def test_all_that_began_have_to_end_before_a_prompt_is_sealed() -> None:
    drive = drive_of()
    step(drive, "a")
    whole(drive, "b")
    whole(drive, "c")
    drive.wait(4 * IDLE_S)
    assert drive.members() == []
    step(drive, "a", 1, is_last=True)
    assert drive.members() == [("b", "c", "a", "a")]


@pytest.mark.proves("B3")
def test_with_a_number_one_that_begins_beyond_it_is_settled_and_the_others_are_waited_for() -> None:
    drive = drive_of()
    step(drive, "a", group_size=2)
    step(drive, "b", group_size=2)
    step(drive, "c", group_size=2)
    step(drive, "c", 1, group_size=2, is_last=True)
    step(drive, "b", 1, group_size=2, is_last=True)
    assert drive.members() == []
    step(drive, "a", 1, group_size=2, is_last=True)
    whole(drive, "d", group_size=2)
    drive.wait(10_000)
    assert drive.members() == [("b", "b", "a", "a")]
    assert reasons(drive) == ["beyond_size"] * 3


@pytest.mark.proves("B3")
def test_of_more_than_the_number_that_began_before_it_was_known_the_last_ones_are_beyond_it() -> (
    None
):
    drive = drive_of()
    for uid in "abc":
        step(drive, uid)
    step(drive, "c", 1, is_last=True, group_size=2)
    step(drive, "b", 1, is_last=True)
    assert drive.members() == [], "a goes on"
    step(drive, "a", 1, is_last=True)
    assert drive.members() == [("c", "c", "b", "b")]
    assert reasons(drive) == ["beyond_size"] * 2


@pytest.mark.proves("B3")
@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize(("size", "reason"), [(1, "beyond_size"), (0, "late")])
def test_what_comes_after_the_seal_makes_no_second_group(
    size: int, reason: str, *, committed: bool
) -> None:
    drive = drive_of()
    whole(drive, "a", group_size=size)
    drive.wait(IDLE_S)
    if committed:
        drive.commit()
    whole(drive, "b", group_size=size)
    step(drive, "c", group_size=size)
    drive.wait(10_000)
    assert drive.members() == [("a",)]
    assert reasons(drive) == [reason] * 2


@pytest.mark.proves("B3")
def test_what_has_not_ended_when_a_prompt_is_sealed_at_its_timeout_is_late() -> None:
    drive = drive_of(seal_timeout_s=300.0, min_group_size=1)
    whole(drive, "a", group_size=2)
    step(drive, "b", group_size=2)
    drive.wait(300)
    step(drive, "b", 1, group_size=2, is_last=True)
    drive.wait(10_000)
    assert drive.members() == [("a",)]
    assert reasons(drive) == ["late"] * 2


def test_another_example_of_a_prompt_fails_its_trajectory_by_name() -> None:
    drive = drive_of()
    whole(drive, "a", group_size=2)
    whole(drive, "b", group_size=2, example_id="other")
    assert drive.members() == [("a",)]
    assert reasons(drive) == ["example_mismatch"]
    (group,) = drive.groups()
    assert group.failed_members == 1


def test_a_later_step_of_another_example_fails_the_whole_trajectory() -> None:
    drive = drive_of()
    step(drive, "a", group_size=1)
    step(drive, "a", 1, is_last=True, group_size=1, example_id="other")
    assert drive.members() == []
    assert reasons(drive) == ["example_mismatch"] * 2


def test_an_end_that_comes_apart_finishes_a_prompt() -> None:
    drive = drive_of()
    step(drive, "a", group_size=1)
    drive.add(make_ended("a", 1))
    assert drive.members() == [("a",)]


@pytest.mark.parametrize(
    ("kind", "reward"), [(EntryKind.STEP, 0.0), (EntryKind.STEP_TO_SCORE, None)]
)
def test_a_last_step_without_a_reward_waits_for_a_score_only_if_it_says_so(
    kind: EntryKind, reward: float | None
) -> None:
    drive = drive_of()
    given = {"group_uid": "p", "group_size": 1, "rollout_uid": "a"}
    for index, earned in enumerate((0.5, None, None)):
        fields = {**given, "segment_idx": index, "is_last_segment": index == 2, "reward": earned}
        drive.add(make_entry(**fields)._replace(kind=kind))
    plan = drive.plan(NO_BOUND, NO_BOUND)
    assert plan is not None
    flushed = draft_flush(plan, TARGET, lambda path, data: None)
    nan = float("nan") if reward is None else reward
    np.testing.assert_array_equal(flushed.segments.rewards, [0.5, float("nan"), nan])


def test_a_prompt_that_rollouts_began_ends_as_it_began() -> None:
    drive = drive_of(target_group_size=2)
    drive.rollout("a", group_uid="p", example_id="p", group_size=0)
    whole(drive, "b")
    assert drive.members() == [("a", "b")]


def test_a_rejected_step_counts_as_failed() -> None:
    drive = drive_of(accept_policy_versions=("step-0",))
    whole(drive, "a", group_size=2, policy_version="old")
    whole(drive, "b", group_size=2)
    assert drive.members() == [("b",)]
    assert reasons(drive) == [SettleReason.VERSION_REJECTED.value]
