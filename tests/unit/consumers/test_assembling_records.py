"""What an assembler makes of records of several entries, and what it keeps of them in memory."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from harness.assembling import NO_BOUND, Drive, places_of
from harness.rollouts import make_dispatched, make_entry, make_failed, members
from rollstream.consumers.assembling.decisions import NO_SEGMENT, values_of
from rollstream.schemas.ingest.entry import Entry
from rollstream.schemas.ingest.record import IngestRecord
from rollstream.schemas.reasons import SettleReason

LAG_ENTRIES_MAX = "rollstream.consumers.assembling.outcomes.LAG_ENTRIES_MAX"
MIB = 1024 * 1024
KIB_64 = np.arange(16 * 1024)  # Tokens of 64 KiB.


def sized(uid: str, tokens: Any = KIB_64, **fields: Any) -> Entry:
    return make_entry(rollout_uid=uid, prompt_tokens=tokens, **fields)


def test_members_of_one_record_are_rows_in_its_order() -> None:
    drive = Drive(target_group_size=4)
    drive.add(*members(4, example_id="x"), *members(0))
    drive.add(
        *(make_entry(rollout_uid=f"y{n}", example_id="y") for n in range(2)),
        make_entry(rollout_uid="z0", example_id="z"),
        *(make_entry(rollout_uid=f"y{n}", example_id="y") for n in (2, 3)),
    )
    first, second = drive.groups()
    assert places_of(first.rows) == [(0, entry) for entry in range(4)]
    assert places_of(second.rows) == [(1, entry) for entry in (0, 1, 3, 4)]
    assert drive.assembler.decided.watermark == 1, "an entry of the second record is pending"


def test_an_offset_is_settled_once_all_its_entries_are() -> None:
    drive = Drive()
    drive.add(*members(2, example_id="x"), make_entry(rollout_uid="late", example_id="y"))
    drive.rollout("alone", example_id="z")
    assert drive.members() == [("uid-0", "uid-1")]
    drive.rollout("other", example_id="z")
    assert drive.members() == [("uid-0", "uid-1"), ("alone", "other")]
    assert drive.assembler.decided.watermark == 0
    drive.rollout("last", example_id="y")
    assert drive.members()[2:] == [("late", "last")]
    assert drive.assembler.decided.watermark == 4


def test_a_plan_says_how_many_entries_the_offsets_have_that_it_touches() -> None:
    drive = Drive()
    drive.add(*members(2, example_id="x"), make_entry(rollout_uid="late", example_id="y"))
    drive.rollout("last", example_id="y")
    first = drive.commit(entries_max=2)
    assert first is not None
    assert (first.touched, first.settled, first.watermark) == ({0: 3}, {0: 2}, 0)
    second = drive.commit()
    assert second is not None
    assert (second.touched, second.settled) == ({0: 3, 1: 1}, {0: 1, 1: 1})
    assert second.watermark == 2


def test_bounds_count_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    drive = Drive(target_group_size=64, max_pending_rollouts=64)
    drive.add(*(make_entry(rollout_uid=f"u{n}", example_id=f"ex-{n // 32}") for n in range(65)))
    assert set(drive.settled()) == {(0, entry) for entry in range(32)}
    monkeypatch.setattr(LAG_ENTRIES_MAX, 40)
    drive = Drive(target_group_size=64, seal_timeout_s=10_000, expire_after_s=10_000)
    drive.rollout("old", example_id="old")
    drive.add(*(make_entry(rollout_uid=f"u{n}") for n in range(40)))
    assert drive.settled() == {}
    drive.now_us += 1
    drive.rollout("new")
    assert drive.settled() == {(0, 0): SettleReason.EXPIRED}


def test_what_an_earlier_owner_settled_is_no_duplicate_of_itself() -> None:
    drive = Drive()
    drive.segments_seen |= {"uid-0", "uid-1"}
    again = drive.add(*members(2, example_id="x"), *_named("a", "b"), settled={0, 1})
    assert drive.settled() == {}
    assert drive.members() == [("a", "b")]
    assert drive.assembler.decided.watermark == again + 1
    plan_of_twice = drive.add(*members(1, example_id="x"))
    assert drive.settled() == {(plan_of_twice, 0): SettleReason.DUPLICATE}


def test_what_was_settled_before_may_be_read_while_a_flush_is_on_its_way() -> None:
    drive = Drive()
    drive.add(*members(2, example_id="x"))
    plan = drive.plan(NO_BOUND, NO_BOUND)
    assert plan is not None
    drive.assembler.skip(1, drive.now_us, 3)
    drive.assembler.commit(plan)
    assert (plan.watermark, drive.assembler.decided.watermark) == (1, 2)


def test_a_dispatch_and_a_failure_count_in_the_order_of_the_entries_of_their_record() -> None:
    drive = Drive()
    named: dict[str, Any] = {"group_uid": "g", "group_size": 3}
    drive.add(
        make_dispatched(**named),
        make_entry(rollout_uid="a", **named),
        make_failed(rollout_uid="f", count=2, **named),
        make_entry(rollout_uid="late", **named),
    )
    assert drive.members() == [("a",)]
    assert drive.settled() == {(0, 0): SettleReason.DISPATCHED, (0, 2): SettleReason.FAILED}
    assert drive.assembler.pending.entries == 1


def test_a_dispatch_is_no_duplicate_of_another() -> None:
    drive = Drive()
    drive.segments_seen |= {"", ("", NO_SEGMENT)}  # As of dispatches that were settled before.
    drive.add(make_dispatched(group_uid="g", group_size=2), *_named("a", "b", group_uid="g"))
    assert drive.settled() == {(0, 0): SettleReason.DISPATCHED}


def test_a_failure_that_is_said_twice_counts_once() -> None:
    drive = Drive()
    named: dict[str, Any] = {"group_uid": "g", "group_size": 3}
    drive.add(make_failed(rollout_uid="f", **named), make_failed(rollout_uid="f", **named))
    drive.add(*_named("a", "b", **named))
    assert drive.members() == [("a", "b")]
    assert drive.groups()[0].failed_members == 1
    again = drive.add(make_failed(rollout_uid="f", **named))
    assert drive.settled()[again, 0] is SettleReason.DUPLICATE
    assert drive.assembler.pending.entries == 0, "it begins no group"


def _named(*uids: str, **fields: Any) -> list[Entry]:
    return [make_entry(rollout_uid=uid, **fields) for uid in uids]


# --- arrays that producers name ---


@pytest.mark.parametrize("other", [np.zeros(3, "u2"), np.zeros((3, 2), "u1")])
def test_a_member_whose_array_differs_from_the_first_ones_counts_as_failed(other: Any) -> None:
    drive = Drive()
    named = {"group_uid": "g", "group_size": 4}
    array = {"token_arrays": {"experts": np.zeros(3, "u1")}}
    drive.rollout("a", **named, **array)
    odd = drive.rollout("odd", **named, token_arrays={"experts": other})
    drive.rollout("without", **named)
    drive.rollout("b", **named, **array)
    assert drive.members() == [("a", "without", "b")]
    assert drive.groups()[0].failed_members == 1
    assert drive.settled() == {(odd, 0): SettleReason.ARRAY_MISMATCH}


def test_a_trajectory_whose_later_turn_has_another_array_is_settled_whole() -> None:
    drive = Drive()
    named: dict[str, Any] = {"group_uid": "g", "group_size": 2, "rollout_uid": "t"}
    drive.add(
        make_entry(**named, is_last_segment=False, token_arrays={"experts": np.zeros(3, "u1")})
    )
    drive.add(make_entry(**named, segment_idx=1, token_arrays={"experts": np.zeros(3, "u2")}))
    drive.add(make_entry(**{**named, "rollout_uid": "a"}))
    assert drive.members() == [("a",)]
    assert drive.settled() == dict.fromkeys([(0, 0), (1, 0)], SettleReason.ARRAY_MISMATCH)


# --- sizes ---


@pytest.mark.parametrize(
    "large",
    [
        {"prompt_tokens": np.zeros(MIB, np.int32)},
        {"token_arrays": {"experts": np.zeros((3, MIB), np.uint8)}},
        {"metadata": '{"x": "' + "字" * MIB + '"}'},
        {"attachments": {"page": bytes(3 * MIB)}},
    ],
    ids="".join,
)
def test_an_entry_counts_as_many_bytes_as_it_has_and_not_its_records_mean(
    large: dict[str, Any],
) -> None:
    """Each flush takes what fits, so that no large entry hides among small ones."""
    drive = Drive(target_group_size=1, min_group_size=1)
    drive.add(make_entry(rollout_uid="large", **large), *members(500))
    size = drive.assembler.decided.size
    assert 3 * MIB < size < 5 * MIB
    first, second = (drive.commit(size_max=2 * MIB) for _ in range(2))
    assert first is not None
    assert second is not None
    assert (first.entries, second.entries) == (1, 500)
    assert drive.assembler.decided.size == 0


# --- memory ---


def test_one_slow_group_keeps_no_large_record() -> None:
    """4 MiB, of which 64 KiB stay pending."""
    drive = Drive(pending_bytes=16 * MIB)
    entries = [sized(f"u{number}", example_id=f"ex-{number // 2}") for number in range(63)]
    drive.add(*entries)
    drive.commit()
    assert drive.assembler.pending.entries == 1
    assert reachable(drive) == drive.assembler.held.size < 128 * 1024
    drive.rollout("last", example_id="ex-31")
    (*_, group) = drive.groups()
    assert places_of(group.rows) == [(0, 62), (1, 0)]
    assert values_of(group.rows, "rollout_uid") == ["u62", "last"]


def test_small_entries_keep_no_large_one_for_long() -> None:
    """Less than half of the bytes stays pending, and most of the entries."""
    drive = Drive(pending_bytes=16 * MIB)
    pair = [sized(uid, np.zeros(MIB, np.int32), example_id="large") for uid in "ab"]
    drive.add(*pair, *(sized(f"u{n}", KIB_64[:10], example_id=f"ex-{n}") for n in range(40)))
    drive.commit()
    assert drive.assembler.pending.entries == 40
    assert reachable(drive) == drive.assembler.held.size < 64 * 1024


def test_trajectories_of_a_record_that_was_copied_are_complete_later() -> None:
    drive = Drive(pending_bytes=8 * MIB)
    turns = [
        sized("t", KIB_64[:100], example_id="slow", segment_idx=number, is_last_segment=False)
        for number in (0, 1)
    ]
    padding = [sized(f"u{number}", example_id=f"ex-{number // 2}") for number in range(40)]
    drive.add(*padding[:5], turns[1], *padding[5:9], turns[0], *padding[9:])
    drive.commit()
    assert drive.assembler.held.size < 64 * 1024
    drive.add(
        *_named("other", example_id="slow"),
        sized("t", KIB_64[:10], example_id="slow", segment_idx=2),
    )
    (*_, group) = drive.groups()
    assert places_of(group.rows) == [(1, 0), (0, 10), (0, 5), (1, 1)]
    assert values_of(group.rows, "segment_idx") == [0, 0, 1, 2]


@pytest.mark.parametrize("seed", range(8))
def test_no_more_is_reachable_than_is_counted(seed: int) -> None:
    """Groups that end soon, late and never, trajectories that break, duplicates, in records of any
    size: what is held is counted, within its bounds, at every moment."""
    rng = random.Random(seed)
    drive = Drive(
        target_group_size=3,
        pending_bytes=2 * MIB,
        seal_timeout_s=50,
        expire_after_s=100,
        accept_policy_versions=("step-0",),
    )
    for number in range(80):
        drive.now_us += rng.randrange(1_000_000)
        drive.add(*(_any_entry(rng, 40 * number + n) for n in range(rng.randint(1, 40))))
        check_memory(drive)
        if rng.random() < 0.3:
            drive.commit(entries_max=rng.choice([5, 50, NO_BOUND]))
            check_memory(drive)
    drive.wait(1_000)
    drive.wait(1_000)
    while drive.commit() is not None:
        check_memory(drive)
    assembler = drive.assembler
    assert (assembler.held.size, assembler.decided.held.size, reachable(drive)) == (0, 0, 0)
    assert assembler.decided.watermark == assembler.position


def _any_entry(rng: random.Random, number: int) -> Entry:
    return sized(
        f"u{number if rng.random() < 0.9 else rng.randrange(number + 1)}",
        np.arange(rng.choice([10, 100, 5_000])),
        example_id=f"ex-{rng.randrange(30)}",
        is_last_segment=rng.random() < 0.8,
        segment_idx=rng.choice([0, 0, 0, 1]),
        policy_version=rng.choice(["step-0"] * 9 + ["step-1"]),
        continuation_of=rng.choice(["", "", "nobody"]),
    )


def check_memory(drive: Drive) -> None:
    assembler = drive.assembler
    held = assembler.held
    assert held.size <= held.size_max
    assert reachable(drive) <= held.size + assembler.decided.held.size


def reachable(drive: Drive) -> int:
    """Bytes of every record that something pending or decided still refers to."""
    assembler = drive.assembler
    found: dict[int, IngestRecord] = {}

    def add(records: Iterable[IngestRecord]) -> None:
        found.update((id(record), record) for record in records)

    for group in assembler.pending.by_key.values():
        add(held.record for held, _ in group.rows)
        add(row.held.record for chain in group.chains.values() for row in chain.rows())
    plan = drive.plan(NO_BOUND, NO_BOUND)
    for decision in () if plan is None else plan.decisions:
        rows = decision.incomplete if decision.group is None else decision.group.rows
        add(record for record, _, _, _ in rows)
    return sum(record.size for record in found.values())
