"""What the seal logs say of groups that were dispatched."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from harness.seal_events import flushed
from rollstream.folds.life.dispatched import Dispatched, DispatchedGroups
from rollstream.schemas.events import Event, GroupsBegun, UnreadRanges, UnsealedGroups
from rollstream.schemas.ids import PartitionAddress
from rollstream.schemas.reasons import SettleReason

LOG = PartitionAddress("math", 1, 0)
NOW = 1_000_000_000


def begun(*groups: tuple[int, int, str], age_s: float = 0.0, now_ts: int = NOW) -> GroupsBegun:
    """Offset, entry and example of each."""
    return GroupsBegun(
        epoch=0,
        nonce="n",
        now_ts=now_ts,
        example_ids=tuple(example for *_, example in groups),
        entries=np.array([offset << 16 | entry for offset, entry, _ in groups], np.int64),
        ages_s=np.full(len(groups), age_s, np.float32),
    )


def examples(groups: DispatchedGroups) -> list[str]:
    return sorted(group.example_id for _, found in groups.open() for group in found)


def test_a_named_group_is_open_since_its_dispatch_until_that_is_settled() -> None:
    groups = DispatchedGroups()
    groups.apply(LOG, begun((3, 0, "a"), (3, 1, "b"), age_s=2.5))
    since_ts = NOW - 2_500_000
    assert groups.open() == [("math", [Dispatched("a", since_ts), Dispatched("b", since_ts)])]
    groups.apply(LOG, flushed(0, "n", [(4, 0)], 0, settled={"dispatched": [(3, 1)]}))
    assert examples(groups) == ["a"]
    assert groups.never_back.by_kind() == {}


def test_a_group_that_is_named_again_is_open_once_and_since_the_first_time() -> None:
    groups = DispatchedGroups()
    groups.apply(LOG, begun((3, 0, "a")))
    groups.apply(LOG, begun((3, 0, "a"), now_ts=NOW + 5_000_000))
    assert groups.open() == [("math", [Dispatched("a", NOW)])]


def test_an_entry_of_another_partition_ends_nothing() -> None:
    groups = DispatchedGroups()
    groups.apply(LOG, begun((3, 0, "a")))
    other = LOG._replace(partition=1)
    groups.apply(other, flushed(0, "n", [], 0, settled={"dispatched": [(3, 0)]}))
    assert examples(groups) == ["a"]


def test_groups_that_were_not_sealed_count_by_example_and_reason_also_where_never_named() -> None:
    groups = DispatchedGroups()
    ended = (
        UnsealedGroups(reason="expired", example_ids=("a", "a", "b")),
        UnsealedGroups(reason="failed", example_ids=("a",)),
    )
    groups.apply(LOG, replace(flushed(0, "n", [], 0), unsealed=ended))
    assert groups.never_back.by_kind() == {
        "expired": {"math": {"a": 2, "b": 1}},
        "failed": {"math": {"a": 1}},
    }


@pytest.mark.parametrize("reason", [SettleReason.LOST, SettleReason.UNREADABLE])
def test_a_group_whose_dispatch_nobody_can_read_any_more_never_comes(reason: SettleReason) -> None:
    groups = DispatchedGroups()
    groups.apply(LOG, begun((3, 0, "a"), (9, 0, "b")))
    groups.apply(LOG, flushed(0, "n", [], 0, settled={reason: [(3, 0)]}))
    assert examples(groups) == ["b"]
    assert groups.never_back.by_kind() == {reason: {"math": {"a": 1}}}


def test_a_group_whose_dispatch_is_in_a_lost_range_never_comes() -> None:
    groups = DispatchedGroups()
    groups.apply(LOG, begun((3, 0, "a"), (5, 2, "b"), (7, 0, "c")))
    lost = UnreadRanges(reason="lost", firsts=np.array([4]), stops=np.array([7]))
    groups.apply(LOG, replace(flushed(0, "n", [], 0), unread=(lost,)))
    assert examples(groups) == ["a", "c"]
    assert groups.never_back.by_kind() == {"lost": {"math": {"b": 1}}}


def test_groups_with_another_history_have_another_digest() -> None:
    failed = UnsealedGroups(reason="failed", example_ids=("a",))
    histories: list[list[Event]] = [
        [],
        [begun((3, 0, "a"))],
        [begun((3, 0, "b"))],
        [replace(flushed(0, "n", [], 0), unsealed=(failed,))],
    ]
    digests = set()
    for events in histories:
        groups = DispatchedGroups()
        for event in events:
            groups.apply(LOG, event)
        digests.add(repr(groups.sorted_items()))
    assert len(digests) == len(histories)
