"""A flush writes few files, however many policy versions wait."""

from __future__ import annotations

from harness.assembling import NO_BOUND, Drive
from rollstream.consumers.assembling import Plan
from rollstream.consumers.assembling.decisions import FLUSH_FILES_MAX, files_of, values_of
from rollstream.schemas.reasons import SettleReason

VERSIONS = 3 * FLUSH_FILES_MAX


def interleaved(rounds: int = 4) -> Drive:
    """Groups of one rollout: the versions come one after the other, again and again."""
    drive = Drive(target_group_size=1, min_group_size=1)
    for number in range(rounds * VERSIONS):
        version = f"v{number % VERSIONS}"
        drive.rollout(f"u{number}", example_id=f"ex-{number}", policy_version=version)
    return drive


def plans_of(drive: Drive) -> list[Plan]:
    plans = []
    while (plan := drive.commit()) is not None:
        plans.append(plan)
    return plans


def uids_of(plan: Plan) -> list[str]:
    groups = [one.group for one in plan.decisions if one.group is not None]
    return [uid for group in groups for uid in values_of(group.rows, "rollout_uid")]


def test_versions_wait_for_a_later_flush() -> None:
    plans = plans_of(interleaved())
    found = [set().union(*map(files_of, plan.decisions)) for plan in plans]
    assert [len(files) for files in found] == [FLUSH_FILES_MAX] * (4 * 3)
    assert len(set().union(*found)) == VERSIONS


def test_each_flush_begins_with_the_oldest_group_and_keeps_the_order() -> None:
    drive = interleaved()
    first = plans_of(drive)[0]
    numbers = [int(uid[1:]) for uid in uids_of(first)]
    assert numbers == [*range(FLUSH_FILES_MAX)]


def test_the_watermark_waits_for_the_groups_that_wait() -> None:
    plans = plans_of(interleaved(rounds=1))
    assert [plan.watermark for plan in plans] == [
        FLUSH_FILES_MAX,
        2 * FLUSH_FILES_MAX,
        3 * FLUSH_FILES_MAX,
    ]


def test_a_plan_that_is_cut_stays_the_same_until_it_is_committed() -> None:
    drive = interleaved()
    plan = drive.plan(NO_BOUND, NO_BOUND)
    assert plan is not None
    assert drive.plan(NO_BOUND, NO_BOUND) == plan
    drive.rollout("late", example_id="late", policy_version="v0")
    drive.assembler.commit(plan)
    rest = [uid for plan in plans_of(drive) for uid in uids_of(plan)]
    assert len(rest) == 11 * FLUSH_FILES_MAX + 1
    decided = drive.assembler.decided
    assert (decided.entries, decided.size, decided.held.size) == (0, 0, 0)
    assert decided.committed == decided.end == 4 * VERSIONS + 1


def test_what_was_asked_before_a_group_is_not_committed_while_an_older_group_waits() -> None:
    drive = interleaved()
    plan = drive.commit()
    assert plan is not None
    decided = drive.assembler.decided
    assert decided.committed == FLUSH_FILES_MAX == len(plan.decisions)


def test_a_settlement_passes_no_group_that_waits() -> None:
    """A duplicate that is settled first would be settled as the only one after a kill."""
    drive = interleaved(rounds=1)
    drive.rollout(f"u{VERSIONS - 1}", example_id="again", policy_version="v0")
    *others, last = plans_of(drive)
    assert [[*plan.decisions[-1].settled] for plan in others] == [[], []]
    assert [one.reason for one in last.decisions[-1].settled] == [SettleReason.DUPLICATE]


def test_rows_of_many_versions_that_expire_together_are_settled_in_parts() -> None:
    drive = Drive(seal_timeout_s=1, expire_after_s=2, target_group_size=999, min_group_size=999)
    for number in range(VERSIONS):
        drive.rollout(f"u{number}", group_uid="g", group_size=999, policy_version=f"v{number}")
    drive.wait(10)
    plans = plans_of(drive)
    assert [len(set().union(*map(files_of, plan.decisions))) for plan in plans] == [
        FLUSH_FILES_MAX
    ] * 3
    assert drive.kept_uids() == [f"u{number}" for number in range(VERSIONS)]
