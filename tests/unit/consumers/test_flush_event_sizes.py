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
from rollstream.schemas.rules import NAME_CHARS_MAX

FIXED_BYTES = 1_024  # Of an event that settles nothing.
ADDRESS = PartitionAddress("e" * 200, 1, 0)
TARGET = FlushTarget(ADDRESS, 10**12, "0" * 32, "g1-p0-1000000", "zstd", "0" * 24)
NAMES = ("rollout_uid", "example_id", "group_uid", "lineage", "replica_id", "stop_reason", "split")
FACE = "\N{GRINNING FACE}"
LETTERS = ("n", "é", "字", FACE)  # Of one to four bytes.


def encoded_size(plan: Plan) -> int:
    return len(codec.encode(draft_flush(plan, TARGET, lambda path, data: None)))


def planned(drive: Drive) -> Plan:
    plan = drive.commit()
    assert plan is not None
    assert drive.assembler.decided.entries == 0, "all of it is in this plan"
    return plan


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
    plan = planned(groups_with(name, letter * 1_000))
    assert encoded_size(plan) <= counted(plan)


def test_one_name_in_several_places_counts_as_often_as_it_is_written() -> None:
    drive = Drive(target_group_size=1, min_group_size=1)
    for number in range(32):
        same = f"{number}" + "n" * 1_000
        drive.rollout(same, **dict.fromkeys(NAMES[1:], same))
    plan = planned(drive)
    assert encoded_size(plan) <= counted(plan)


@pytest.mark.parametrize("make", [failures, expired])
@pytest.mark.parametrize("letter", ["", *LETTERS])
def test_an_event_of_settlements_is_no_larger_than_it_was_counted(
    make: Callable[[str], Drive], letter: str
) -> None:
    plan = planned(make(letter * 1_000))
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
