"""Why members failed: few texts, whatever producers write."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from harness.seal_events import flushed
from rollstream.folds.life.dispatched import FAILED_REASONS_MAX, DispatchedGroups
from rollstream.schemas.events import FailedMembers
from rollstream.schemas.ids import PartitionAddress

LOGS = [PartitionAddress("math", 1, 0), PartitionAddress("math", 1, 1)]


def counted(*reasons: Iterable[str]) -> dict[str, int]:
    """Of each log those of its groups, of each of which two members failed."""
    groups = DispatchedGroups()
    for log, of_log in zip(LOGS, reasons, strict=False):
        for number, reason in enumerate(of_log):
            failed = FailedMembers(
                reason=reason, group_uids=(f"g-{number}",), members=np.array([2], np.int32)
            )
            groups.apply(log, replace(flushed(0, "n", [], 0), failed=(failed,)))
    return groups.failures().get("math", {})


def test_texts_that_differ_in_numbers_are_one_after_the_first_few_and_hide_no_other() -> None:
    timeouts = [f"timeout after {number / 100:.2f} s in worker-{number}" for number in range(5_000)]
    found = counted([*timeouts, "crashed", "crashed"])
    assert found["timeout after # s in worker-#"] == 2 * (5_000 - 4)
    assert {found.pop(text) for text in timeouts[:4]} == {2}
    assert found == {"timeout after # s in worker-#": 9_992, "crashed": 4}


def test_a_few_codes_stand_as_they_are() -> None:
    codes = ["exit code 1", "exit code 137", "exit code 1"]
    assert counted(codes, codes) == {"exit code 1": 8, "exit code 137": 4}


def test_what_producers_write_is_counted_in_a_bounded_number_of_texts() -> None:
    kinds = [f"{chr(97 + kind // 26)}{chr(97 + kind % 26)}: step" for kind in range(400)]
    found = counted(f"{kind} {number}" for number in range(6) for kind in kinds)
    assert len(found) <= FAILED_REASONS_MAX + 1
    assert sum(found.values()) == 2 * 6 * len(kinds)
    # Many kinds at first, and each of those that are named is counted to the last.
    assert found["aa: step 0"] == 2
    assert found["bm: step #"] == 2 * 6
