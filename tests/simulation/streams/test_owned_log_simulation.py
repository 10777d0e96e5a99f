"""Owners under seeds: no item twice, none lost, nothing acted upon and not there."""

from __future__ import annotations

import pytest

from simulation.broken.durable_for_confirmed import DurableForHeard
from simulation.broken.no_barrier import WithoutBarrier
from simulation.broken.no_doubt import WithoutDoubt
from simulation.broken.no_fence import without_fence
from simulation.streams.owners import MakeLog, Owners, first_failure

STEPS = 60


@pytest.mark.proves("I1", "I3", "I4")
@pytest.mark.parametrize("batch", range(4))
def test_owners_settle_each_item_once_whatever_goes_wrong(batch: int) -> None:
    for seed in range(batch * 15, batch * 15 + 15):
        Owners(seed).run(STEPS)


@pytest.mark.parametrize("make_log", [without_fence, DurableForHeard, WithoutBarrier, WithoutDoubt])
def test_a_broken_owned_log_is_caught(make_log: MakeLog) -> None:
    assert first_failure(make_log, range(100), STEPS) != ""
