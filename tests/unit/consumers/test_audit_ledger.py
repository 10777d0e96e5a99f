"""The audit's ledger finds what may not be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from harness.groups import GroupSpec, flush_of
from rollstream.consumers.audit.ledger import Ledger, SegmentHashes
from rollstream.schemas.events import Flushed, Settlements


def settled(reason: str, *offsets: int) -> Settlements:
    return Settlements(
        reason=reason,
        offsets=np.array(offsets, np.int64),
        uids=("",) * len(offsets),
        segment_idxs=np.zeros(len(offsets), np.int32),
    )


def event(
    name: str, offsets: list[int], watermark: int, *extra: Settlements, **fields: Any
) -> Flushed:
    flush = flush_of([GroupSpec(rewards=(1.0,) * len(offsets))], name=name, watermark=watermark)
    segments = replace(flush.segments, offsets=np.array(offsets, np.int64))
    return replace(flush, segments=segments, settled=extra, **fields)


def ledger_of(*events: Flushed) -> Ledger:
    ledger = Ledger("math[0]", SegmentHashes())
    for offset, one in enumerate(events):
        ledger.apply(offset, one)
    return ledger


def test_a_sound_log_has_no_problems() -> None:
    ledger = ledger_of(event("a", [0, 2], 1), event("b", [1, 3], 4, settled("duplicate", 4, 5)))
    ledger.close(6)
    assert ledger.problems == []
    assert (ledger.sealed, ledger.settled) == (4, {"duplicate": 2})
    assert ledger.unsettled(8).tolist() == [6, 7]


@pytest.mark.proves("F4")
@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ([event("a", [0, 1], 2), event("b", [1, 2], 3)], "settled twice: 1"),
        ([event("a", [0, 0], 1)], "settled twice: 0"),
        ([event("a", [0, 1], 2, settled("failed", 1))], "settled twice: 1"),
        ([event("a", [0, 2], 3)], "below the watermark 3 nothing settled 1"),
        ([event("a", [0, 1], 2), event("b", [3, 4], 1)], "the watermark goes back"),
        ([event("a", [0, 1], 2), event("a", [2, 3], 4)], "is in two groups"),
        ([event("a", [7, 8], 0)], "beyond the end"),
        ([event("a", [0, 1], 3, settled("lost", 2))], "offsets lost (1): 2"),
    ],
)
def test_what_may_not_be_is_named(events: list[Flushed], problem: str) -> None:
    ledger = ledger_of(*events)
    ledger.close(5)
    assert any(problem in found for found in ledger.problems), ledger.problems


def test_groups_that_do_not_cover_their_file_are_named() -> None:
    flush = event("a", [0, 1], 2)
    (group,) = flush.groups
    ledger = ledger_of(replace(flush, groups=(replace(group, row_start=1),)))
    assert any("begins at row 1" in found for found in ledger.problems)
