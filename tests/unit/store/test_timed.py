"""Durations and failures of a store's calls, as Prometheus sees them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.failing_blobs import PassingBlobs
from rollstream.runtime.clock import ManualClock
from rollstream.runtime.metrics import catalogue as of
from rollstream.runtime.metrics.metric import Durations
from rollstream.runtime.metrics.timings import Timings
from rollstream.store import BlobInfo, StoreError
from rollstream.store.blobs import LISTED_AT_ONCE
from rollstream.store.memory import MemoryBlobs
from rollstream.store.timed import TimedBlobs

PAGE_S, CALLER_S = 2.0, 7.0


class SlowLists(PassingBlobs):
    """Each request of a list takes ``PAGE_S``; the one of page ``fails_at`` fails."""

    def __init__(self, clock: ManualClock, blobs: int, fails_at: int = -1) -> None:
        super().__init__(MemoryBlobs())
        self._clock, self._blobs, self._fails_at = clock, blobs, fails_at

    def list(self, prefix: str, *, after: str = "", limit: int | None = None) -> Iterator[BlobInfo]:
        for at in range(self._blobs):
            page, within = divmod(at, LISTED_AT_ONCE)
            if not within:
                self._clock.advance(PAGE_S)
                if page == self._fails_at:
                    raise StoreError("the store does not answer")
            yield BlobInfo(f"{prefix}{at:06d}", 1)


def listings(timings: Timings) -> tuple[int, float, float]:
    """How many requests of lists there were, their seconds, and how many failed."""
    values = {one.metric: one.value for one in timings.samples() if one.labels == ("list",)}
    times, failed = values[of.STORE_CALL], values[of.STORE_FAILURES]
    assert isinstance(times, Durations)
    assert isinstance(failed, int)
    return sum(times.counts), times.sum_s, failed


def test_each_request_of_a_list_is_timed_without_the_work_of_its_caller() -> None:
    clock, timings = ManualClock(), Timings()
    blobs = TimedBlobs(SlowLists(clock, 2 * LISTED_AT_ONCE + 1), timings, clock)
    count = 0
    for _ in blobs.list("a/"):
        count += 1
        clock.advance(CALLER_S)
    assert count == 2 * LISTED_AT_ONCE + 1
    assert listings(timings) == (3, 3 * PAGE_S, 0)


def test_a_list_that_fails_is_timed_and_counted_as_a_failure() -> None:
    clock, timings = ManualClock(), Timings()
    blobs = TimedBlobs(SlowLists(clock, 2 * LISTED_AT_ONCE, fails_at=1), timings, clock)
    with pytest.raises(StoreError, match="does not answer"):
        list(blobs.list("a/"))
    assert listings(timings) == (2, 2 * PAGE_S, 1)
