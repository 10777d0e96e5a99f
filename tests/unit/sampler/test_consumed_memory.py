"""Memory of groups that were fetched is given back."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from harness.decider import LOGS, Decider
from harness.groups import GroupSpec, flush_of
from rollstream.sampler.deciding.trainer import Ack, MarkCheckpointed
from rollstream.streams.folds.sampler import state
from rollstream.streams.folds.sampler.known_groups import NEWEST_MAX as KNOWN_NEWEST_MAX
from rollstream.streams.folds.sampler.sorted_rows import NEWEST_MAX as ROWS_NEWEST_MAX

GROUPS = 10_000
A_FLUSH = 125
A_FETCH = 50
assert max(KNOWN_NEWEST_MAX, ROWS_NEWEST_MAX) < GROUPS // 2, "most are held compactly"


def _held_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.proves("B5")
def test_what_was_fetched_takes_no_memory_once_it_is_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{state.__name__}.FINAL_BATCHES_KEPT", 10)  # These may be asked for again.
    sampler = Decider(order="ready", max_policy_lag=-1, off_branch="keep")
    log = LOGS[1]
    flushes = [
        flush_of(
            [GroupSpec(example_id=f"ex-{n}", rewards=(1.0,)) for n in range(A_FLUSH)],
            name=str(number),
            now_ts=number,
        )
        for number in range(GROUPS // A_FLUSH)
    ]
    tracemalloc.start()
    try:
        empty = _held_bytes()
        for offset, flush in enumerate(flushes):
            sampler.state.apply_groups(log, offset, flush)
        full = _held_bytes() - empty
        for step in range(GROUPS * 9 // 10 // A_FETCH):
            batch = sampler.serve(step, A_FETCH)
            sampler.decide(Ack(step=step, batch_id=batch.batch_id))
            sampler.decide(MarkCheckpointed(step=step))
            sampler.events.clear()  # The log is no memory of the sampler's.
        left = _held_bytes() - empty
    finally:
        tracemalloc.stop()
    assert len(sampler.state.ready) == GROUPS // 10
    assert left < full / 2, (left, full)
