"""Members that are appended to a group before it is sealed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness.assembling import Drive
from harness.rollouts import make_entry
from rollstream.schemas.ingest.entry import EntryKind
from rollstream.schemas.reasons import SealReason, SettleReason

pytestmark = pytest.mark.proves("A17", "I2")
NAMED: dict[str, Any] = {"group_uid": "g", "group_size": 2}


def append(drive: Drive, uid: str, **fields: Any) -> int:
    entry = make_entry(**{"rollout_uid": uid, "group_uid": "g", "group_size": 0, **fields})
    return drive.add(entry._replace(kind=EntryKind.APPENDED))


def test_each_appended_member_makes_a_group_one_larger() -> None:
    drive = Drive()
    drive.rollout("a", **NAMED)
    append(drive, "b")
    append(drive, "c")
    assert drive.members() == []
    drive.rollout("d", **NAMED)
    assert drive.members() == [("a", "b", "c", "d")]
    assert drive.groups()[0].reason is SealReason.FULL


def test_one_may_be_appended_to_a_group_that_was_only_dispatched() -> None:
    drive = Drive()
    drive.dispatch("g", 1)
    append(drive, "b")
    assert drive.members() == []
    drive.rollout("a", **NAMED | {"group_size": 1})
    assert drive.members() == [("b", "a")]


@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "not-begun"])
def test_one_that_finds_no_group_is_settled_as_such_and_begins_none(sealed: bool) -> None:
    drive = Drive()
    for uid in "ab" if sealed else "":
        drive.rollout(uid, **NAMED)
    late = append(drive, "c")
    again = append(drive, "c")
    assert drive.members() == [("a", "b")] * sealed
    assert drive.settled_offsets() == {
        late: SettleReason.GROUP_SEALED,
        again: SettleReason.DUPLICATE,
    }
    assert drive.assembler.pending.entries == 0


def test_one_that_is_sent_twice_counts_once() -> None:
    drive = Drive()
    drive.rollout("a", **NAMED)
    append(drive, "b")
    append(drive, "b")
    drive.rollout("c", **NAMED)
    assert drive.members() == [("a", "b", "c")]


@pytest.mark.parametrize(
    ("config", "fields", "reason"),
    [
        ({}, {"token_arrays": {"x": np.zeros(3, "u1")}}, SettleReason.ARRAY_MISMATCH),
        (
            {"accept_policy_versions": ("p",)},
            {"policy_version": "q"},
            SettleReason.VERSION_REJECTED,
        ),
        ({"max_per_replica": 1}, {"replica_id": "r0"}, SettleReason.REPLICA_CAP),
    ],
    ids=["array-mismatch", "version-rejected", "replica-cap"],
)
def test_one_that_may_be_no_member_neither_holds_its_group_open_nor_closes_it(
    config: dict[str, Any], fields: dict[str, Any], reason: SettleReason
) -> None:
    drive = Drive(**config)
    arrays = {"token_arrays": {"x": np.zeros(3, "<f4")}}
    plain = {**NAMED, **arrays, "policy_version": "p"}
    drive.rollout("a", replica_id="r0", **plain)
    wrong = append(drive, "b", **{**arrays, "policy_version": "p", "replica_id": "r1", **fields})
    assert drive.members() == []
    drive.rollout("c", replica_id="r2", **plain)
    assert drive.members() == [("a", "c")]
    assert drive.settled_offsets() == {wrong: reason}


@pytest.mark.parametrize("version", ["p", "q"], ids=["accepted", "rejected"])
def test_one_that_failed_before_it_came_keeps_nobody_waiting(version: str) -> None:
    drive = Drive(accept_policy_versions=("p",))
    drive.rollout("a", policy_version="p", **NAMED)
    drive.fail("g", 3, uid="b")
    append(drive, "b", policy_version=version)
    drive.rollout("c", policy_version="p", **NAMED)
    assert drive.members() == [("a", "c")]


def test_a_trajectory_that_was_appended_is_one_member() -> None:
    drive = Drive()
    drive.rollout("a", **NAMED)
    append(drive, "t", is_last_segment=False)
    append(drive, "t", segment_idx=1)
    drive.rollout("c", **NAMED)
    assert drive.members() == [("a", "t", "t", "c")]
