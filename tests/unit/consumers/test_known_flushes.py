"""What plans know of flushes, in little memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from rollstream.consumers.retention.known import SPAN, KnownFlushes
from rollstream.consumers.retention.plan import FileGroups, FlushFiles

BYTES_MAX = 80  # A flush.


def flush_at(offset: int) -> FlushFiles:
    path = f"groups/environment=math/policy_version=step-{offset // 50}/segment=0/1-0-{offset}-7-0"
    groups = tuple(range(32))
    return FlushFiles(
        offset,
        1_700_000_000_000_000 + 150_000 * offset,
        (
            FileGroups(
                f"{path}.parquet", 100_000 + offset % 997, groups, f"step-{offset // 50}", 32
            ),
        ),
    )


@given(
    st.lists(st.tuples(st.sampled_from(["add", "forget"]), st.integers(0, 4 * SPAN)), max_size=60)
)
def test_it_knows_what_was_added_and_not_forgotten(calls: list[tuple[str, int]]) -> None:
    known, expected = KnownFlushes(), dict[int, FlushFiles]()
    for call, offset in calls:
        if call == "add":
            expected[offset] = flush_at(offset)
            known.add(expected[offset])
        else:
            expected.pop(offset, None)
            known.forget(offset)
        assert len(known) == len(expected)
    asked = {offset for _, offset in calls}
    assert {one: known.get(one) for one in asked} == {one: expected.get(one) for one in asked}
    assert {one for one in asked if one in known} == expected.keys()


def test_a_long_history_takes_few_bytes_a_flush() -> None:
    def offsets() -> Iterator[int]:
        return iter(range(0, 20 * SPAN, 2))

    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        known = KnownFlushes()
        for offset in offsets():
            known.add(flush_at(offset))
        assert 0 in known  # So the newest span is closed.
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert used / len(known) < BYTES_MAX, used / len(known)
