"""A flush is planned to fit into one event, whatever its rollouts are called."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from harness.assembling import Drive
from rollstream.consumers.assembling import Plan
from rollstream.consumers.assembling.decisions import EVENT_BYTES_MAX, event_bytes
from rollstream.consumers.sealing.rows import FlushTarget, draft_flush
from rollstream.schemas import codec
from rollstream.schemas.ids import PartitionAddress
from rollstream.schemas.reasons import SettleReason
from rollstream.schemas.rules import NAME_CHARS_MAX

FIXED_BYTES = 1_024  # Of an event that settles nothing.
ADDRESS = PartitionAddress("e" * 200, 1, 0)
TARGET = FlushTarget(ADDRESS, 10**12, "0" * 32, "g1-p0-1000000", "zstd", "0" * 24)
NAMES = ("rollout_uid", "example_id", "group_uid", "lineage", "replica_id", "stop_reason", "split")
FACE = "\N{GRINNING FACE}"
LETTERS = ("n", "é", "字", FACE)  # Of one to four bytes.


def encoded_size(plan: Plan) -> int:
    return len(codec.encode(draft_flush(plan, TARGET, lambda path, data: None)))


def plans_of(drive: Drive) -> list[Plan]:
    """All that is decided, plan by plan."""
    plans = list(iter(drive.commit, None))
    assert plans
    return [plan for plan in plans if plan is not None]


def counted(plan: Plan) -> int:
    return FIXED_BYTES + sum(map(event_bytes, plan.decisions))


def groups_with(name: str, long: str) -> Drive:
    """Groups of one member with a short name and one, the older, with a long one; both members
    have it where a group's members share it. Each has a version, and so a file, of its own."""
    drive = Drive()
    for number in range(32):
        version = f"{number}" + 14 * FACE
        same: dict[str, Any] = {"group_uid": f"g{number}", "policy_version": version}
        older = {**same, "weight_step": 0, name: f"{number}{long}"}
        newer = {**(older if name in ("example_id", "group_uid") else same), "weight_step": 1}
        drive.rollout(f"a{number}", **newer)
        drive.rollout(older.pop("rollout_uid", f"b{number}"), **older)
    return drive


def failures(long: str) -> Drive:
    drive = Drive()
    for number in range(64):
        drive.fail(f"g{number}", 1, uid=f"{number}{long}")
    return drive


def expired(long: str) -> Drive:
    """Each of a version of its own, so in a file of its own, whose path is as long as can be."""
    drive = Drive(seal_timeout_s=1, expire_after_s=2)
    for number in range(64):
        drive.rollout(f"{number}{long}", policy_version=f"{number}" + 14 * FACE)
    drive.wait(10)
    return drive


@pytest.mark.parametrize(("name", "letter"), list(product(NAMES, LETTERS)))
def test_an_event_of_groups_is_no_larger_than_it_was_counted(name: str, letter: str) -> None:
    for plan in plans_of(groups_with(name, letter * 1_000)):
        assert encoded_size(plan) <= counted(plan)


def test_one_name_in_several_places_counts_as_often_as_it_is_written() -> None:
    drive = Drive(target_group_size=1, min_group_size=1)
    for number in range(32):
        same = f"{number}" + "n" * 1_000
        drive.rollout(same, **dict.fromkeys(NAMES[1:], same))
    for plan in plans_of(drive):
        assert encoded_size(plan) <= counted(plan)


@pytest.mark.parametrize("make", [failures, expired])
@pytest.mark.parametrize("letter", ["", *LETTERS])
def test_an_event_of_settlements_is_no_larger_than_it_was_counted(
    make: Callable[[str], Drive], letter: str
) -> None:
    for plan in plans_of(make(letter * 1_000)):
        assert encoded_size(plan) <= counted(plan)


def test_a_plan_is_bounded_by_the_bytes_of_names_and_not_by_their_characters() -> None:
    drive = Drive(target_group_size=1, min_group_size=1)
    long = "字" * (NAME_CHARS_MAX - 4)
    count = EVENT_BYTES_MAX // len(long.encode()) + 1
    for number in range(count):
        drive.rollout(f"u{number}", example_id=f"{number}{long}")
    plan = drive.commit()
    assert plan is not None
    assert 0 < plan.entries < count
    assert encoded_size(plan) <= EVENT_BYTES_MAX


LONG = "字" * (NAME_CHARS_MAX - 4)
TOO_MANY = EVENT_BYTES_MAX // len(LONG.encode()) + 10


def fitting_plans(drive: Drive) -> list[Plan]:
    """All that is decided, plan by plan; the event of each is within its bound."""
    plans = []
    while (plan := drive.commit()) is not None:
        assert encoded_size(plan) <= EVENT_BYTES_MAX
        plans.append(plan)
    return plans


def test_a_group_that_fits_into_no_event_is_settled_as_too_large_and_kept_for_people() -> None:
    drive = Drive(target_group_size=TOO_MANY)
    for number in range(TOO_MANY):
        drive.rollout(f"{number}{LONG}")
    plans = fitting_plans(drive)
    assert len(plans) == 2
    settled = [s for plan in plans for d in plan.decisions for s in d.settled]
    assert {s.reason for s in settled} == {SettleReason.TOO_LARGE}
    assert [s.offset for s in settled] == list(range(TOO_MANY))
    assert len(drive.kept_uids()) == TOO_MANY
    assert drive.assembler.decided.watermark == TOO_MANY


@pytest.mark.parametrize("sealed", [0, 2])
def test_settlements_that_do_not_fit_beside_their_group_are_split(sealed: int) -> None:
    drive = Drive(target_group_size=TOO_MANY + sealed)
    for number in range(sealed):
        drive.rollout(f"{number}", group_uid="g")
    for number in range(TOO_MANY):
        drive.fail("g", TOO_MANY + sealed, uid=f"{number}{LONG}")
    plans = fitting_plans(drive)
    assert len(plans) == 2
    assert [len(group.rows) for group in drive.groups()] == [sealed] * bool(sealed)
    assert set(drive.settled_offsets().values()) == {SettleReason.FAILED}
    assert len(drive.settled_offsets()) == TOO_MANY
    assert drive.assembler.decided.watermark == TOO_MANY + sealed


def test_rows_that_expire_together_are_split_with_their_settlements() -> None:
    drive = Drive(target_group_size=2 * TOO_MANY, min_group_size=2 * TOO_MANY, seal_timeout_s=1)
    for number in range(TOO_MANY):
        drive.rollout(f"{number}{LONG}")
    drive.wait(10_000)
    for plan in fitting_plans(drive):
        for decision in plan.decisions:
            kept = [row[2:] for row in decision.incomplete]
            assert kept == [(s.offset, s.entry) for s in decision.settled]
    assert len(drive.kept_uids()) == TOO_MANY
