"""The audit's ledger finds what may not be."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from harness.retiring import retired
from harness.seal_events import one_group as event
from rollstream.consumers.audit.ledger import NAMED_MAX, Ledger, Repeated, repeated
from rollstream.consumers.audit.repeats import Again, Repeats
from rollstream.consumers.audit.spilled import BUCKETS, BUFFER_BYTES_MAX
from rollstream.schemas.events import Flushed, Retired, SealedGroupColumns, TouchedOffsets


def ledger_of(*events: Flushed | Retired) -> Ledger:
    ledger = Ledger("math[0]", 0, Repeats())
    for offset, one in enumerate(events):
        ledger.apply(offset, one)
    return ledger


def closed(
    ledger: Ledger, records: Mapping[int, int], *, end: int, first: int = 0
) -> tuple[int, int]:
    """What was published and what is pending, where the log has ``records``: offset to number of
    entries."""
    for offset, count in records.items():
        ledger.check_record(offset, count)
    ledger.add_deleted(0, first)
    return ledger.close(end)


def one_each(end: int) -> dict[int, int]:
    return dict.fromkeys(range(end), 1)


def test_a_sound_log_has_no_problems() -> None:
    ledger = ledger_of(event("a", [0, 2], 1), event("b", [1, 3], 4, duplicate=[4, 5]))
    assert closed(ledger, one_each(6), end=6) == (6, 0)
    assert ledger.problems == []
    assert (ledger.sealed, ledger.settled) == (4, {"duplicate": 2})


def test_entries_are_accounted_for_each_by_itself() -> None:
    counts = {0: 3, 1: 4, 2: 2}
    first = event("a", [(0, 0), (0, 2), (1, 1)], 0, counts, stale=[(2, 1)])
    second = event("b", [(0, 1)], 1, counts, failed=[(1, 0)])
    ledger = ledger_of(first, second)
    records = {0: 3, 1: 4, 2: 2, 3: 5}
    published, pending = closed(ledger, records, end=4)
    assert ledger.problems == []
    assert (published, pending) == (14, 2 + 1 + 5)
    assert published == pending + ledger.sealed + ledger.settled.total()


def test_a_record_that_retention_took_after_it_was_settled_keeps_the_count_of_its_events() -> None:
    ledger = ledger_of(event("a", [(0, 0), (0, 1), (0, 2), 1], 2, {0: 3}))
    assert closed(ledger, {2: 4}, first=2, end=3) == (8, 4)
    assert ledger.problems == []


@pytest.mark.proves("F4")
@pytest.mark.parametrize(("actual", "named"), [(4, "0 has 4, not 3"), (2, "0 has 2, not 3")])
@pytest.mark.parametrize("watermark", [0, 1])
def test_a_record_with_another_number_of_entries_than_its_events_say_is_named(
    watermark: int, actual: int, named: str
) -> None:
    ledger = ledger_of(event("a", [(0, 0), (0, 1), (0, 2)], watermark, {0: 3}))
    closed(ledger, {0: actual, 1: 1}, end=2)
    assert any(named in found for found in ledger.problems), ledger.problems


@pytest.mark.proves("F4")
@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ([event("a", [0, 1], 2), event("b", [1, 2], 3)], "settled twice: (1, 0)"),
        ([event("a", [0, 0], 1)], "settled twice: (0, 0)"),
        ([event("a", [0, 1], 2, failed=[1])], "settled twice: (1, 0)"),
        (
            [event("a", [(1, 0)], 0, {1: 2}), event("b", [(1, 0)], 0, {1: 2})],
            "settled twice: (1, 0)",
        ),
        ([event("a", [0, 2], 3)], "below the watermark 3 nothing settled 1 offsets, from 1 on"),
        ([event("a", [0, 2], 2**60)], f"nothing settled {2**60 - 2} offsets, from 1 on"),
        (
            [event("a", [(0, 0), (0, 2)], 1, {0: 3})],
            "below the watermark 1 not all entries are settled: 0 (2 of 3)",
        ),
        (
            [event("a", [(0, 0)], 0, {0: 2}), event("b", [(0, 1)], 1, {0: 3})],
            "offset 0 has 3 entries, by an earlier event 2",
        ),
        ([event("a", [(0, 0), (0, 3)], 0, {0: 3})], "that it does not touch: (0, 3)"),
        ([event("a", [(0, -1)], 0, {0: 3})], "that it does not touch: (0, -1)"),
        ([event("a", [0, 1], 2), event("b", [3, 4], 1)], "the watermark goes back"),
        ([event("a", [7, 8], 0)], "beyond the end"),
        (
            [event("a", [0, 1], 3, lost=[2])],
            "records lost (1; one that nobody read counts as one entry): 2",
        ),
    ],
)
def test_what_may_not_be_is_named(events: list[Flushed], problem: str) -> None:
    ledger = ledger_of(*events)
    closed(ledger, one_each(5), end=5)
    assert any(problem in found for found in ledger.problems), ledger.problems


@pytest.mark.proves("F4")
def test_entries_of_offsets_that_the_event_does_not_touch_are_named() -> None:
    sound = event("a", [0, 1], 0)
    touched = TouchedOffsets(offsets=np.array([0]), counts=np.array([1], np.int32))
    ledger = ledger_of(replace(sound, touched=touched))
    assert any("that it does not touch: (1, 0)" in found for found in ledger.problems)


@pytest.mark.proves("F4")
def test_a_record_of_which_a_sealer_read_nothing_is_one_entry_however_many_it_has() -> None:
    """An older sealer could not read what a newer producer wrote; this version can."""
    ledger = ledger_of(event("g", [(0, 0)], 2, unreadable=[(1, 0)]))
    assert closed(ledger, {0: 1, 1: 64}, end=2) == (2, 0)
    assert ledger.problems == []
    other = ledger_of(event("g", [(0, 0)], 2, counts={1: 2}, unreadable=[(1, 0), (1, 1)]))
    closed(other, {0: 1, 1: 64}, end=2)
    assert "1 has 64, not 2" in other.problems[0]


def test_a_record_deleted_before_it_was_settled_is_named_and_counts() -> None:
    ledger = ledger_of(event("a", [(1, 0), (1, 2)], 0, {1: 3}))
    assert closed(ledger, {2: 4}, first=2, end=3) == (1 + 3 + 4, 1 + 1 + 4)
    (problem,) = ledger.problems
    assert "retention deleted records that are not settled (2, from 0 on)" in problem


def test_an_offset_without_a_record_that_nothing_settled_is_pending() -> None:
    """The marker of a transaction that no sealer has come to yet."""
    ledger = ledger_of(event("a", [0, 3], 1))
    assert closed(ledger, {0: 1, 2: 1, 3: 1}, end=4) == (4, 2)
    assert ledger.problems == []


def test_a_problem_names_the_first_ones_and_counts_the_rest() -> None:
    ledger = ledger_of(event("a", list(range(9)), 9), event("b", list(range(9)), 9))
    (problem,) = [found for found in ledger.problems if "twice" in found]
    named = ", ".join(f"({offset}, 0)" for offset in range(NAMED_MAX))
    assert problem.endswith(f"{named} and {9 - NAMED_MAX} more")


def test_groups_that_do_not_cover_their_file_are_named() -> None:
    flush = event("a", [0, 1], 2)
    (group,) = flush.groups
    ledger = ledger_of(replace(flush, groups=SealedGroupColumns.of([group._replace(row_start=1)])))
    assert any("begins at row 1" in found for found in ledger.problems)


@pytest.mark.proves("F4")
def test_segments_groups_and_files_that_come_twice_are_named_by_their_events() -> None:
    repeats = Repeats()
    first, second = Ledger("math[0]", 0, repeats), Ledger("math[3]", 3, repeats)
    first.apply(7, event("a", [0, 1], 2))
    assert repeated("math", repeats, 100) == Repeated([], [])
    second.apply(8, event("b", [0], 1))
    second.apply(9, event("b", [1], 2))
    assert repeated("math", repeats, 100) == Repeated(
        [
            "math: 1 segments are in two groups: math[3] event 8 and math[3] event 9",
            "math: 1 groups were sealed twice: math[3] event 8 and math[3] event 9",
            "math: 1 files are named twice: math[3] event 8 and math[3] event 9",
        ],
        [],
    )


@pytest.mark.proves("F4")
def test_a_uid_in_two_partitions_or_behind_the_horizon_is_its_producers_mistake() -> None:
    repeats = Repeats()
    first, second = Ledger("math[0]", 0, repeats), Ledger("math[3]", 3, repeats)
    first.apply(7, event("a", [0, 1], 2))
    first.apply(8, event("b", [2], 3))
    first.apply(9, renamed(event("d", [3], 4), "a-0"))
    second.apply(9, renamed(event("c", [0], 1), "a-1"))
    problems, mistakes = repeated("math", repeats, 3)
    assert problems == []
    two, late = mistakes
    assert two.startswith("math: 1 segments were published to two partitions under one rollout_uid")
    assert two.endswith(": math[0] event 7 and math[3] event 9")
    assert late.startswith("math: 1 segments were published again after more entries than dedupe_")
    assert late.endswith(": math[0] event 7 and math[0] event 9")
    problems, _ = repeated("math", repeats, 4)
    assert problems == ["math: 1 segments are in two groups: math[0] event 7 and math[0] event 9"]


def renamed(flushed: Flushed, uid: str) -> Flushed:
    """With another uid of its only segment."""
    return replace(flushed, segments=replace(flushed.segments, uids=(uid,)))


def test_repeats_are_found_among_more_names_than_are_kept_in_memory() -> None:
    rows = BUCKETS * BUFFER_BYTES_MAX // 32
    with Repeats() as repeats:
        tracemalloc.start()
        for number in range(3 * rows // 2):
            repeats.add(f"u{number}", number)
        used = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        for number in (0, rows):
            repeats.add(f"u{number}", number + 1)
        assert repeats.find() == [Again((0, 1), 0), Again((rows, rows + 1), 0)]
    assert used < 2 * BUCKETS * BUFFER_BYTES_MAX


def test_retired_files_need_not_exist_and_their_rows_still_count() -> None:
    sealed = [event("a", [0], 1), event("b", [1], 2)]
    ledger = ledger_of(*sealed, retired(0, "n", [(0, "a.parquet")]))
    assert ledger.problems == []
    assert ledger.files == 1
    assert (ledger.sealed, ledger.groups) == (2, 2)


def test_events_that_retire_name_the_one_before() -> None:
    files = [[(0, "a.parquet")], [(1, "b.parquet")]]
    first = retired(0, "n", files[0])
    sealed = (event("a", [0], 1), event("b", [1], 2), first)
    assert ledger_of(*sealed, retired(0, "n", files[1], previous=2)).problems == []
    (problem,) = ledger_of(*sealed, retired(0, "n", files[1])).problems
    assert "names -1" in problem
