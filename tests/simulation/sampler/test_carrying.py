"""What a step carries through crashes, rewinds and replacements: it is the step's before, is not
served anew while it may be carried, and comes again with the recorded batch."""

from __future__ import annotations

from collections import Counter

import pytest

from simulation.sampler.carrying import Carrying
from simulation.worlds import first_caught

SEEDS = 8


@pytest.mark.proves("D2", "F1", "F3", "I5", "I6")
def test_what_is_carried_is_held_and_recorded_through_crashes_and_rewinds() -> None:
    reached = Counter[str]()
    for seed in range(SEEDS):
        world = Carrying(seed)
        world.run()
        reached += world.reached
    assert {
        *("carried", "carried groups", "fewer groups", "carry lost"),
        *("rewinds", "crashes", "replacements", "drops"),
    } <= reached.keys()


@pytest.mark.proves("D2")
def test_a_fold_that_holds_nothing_for_the_next_step_is_caught() -> None:
    found = first_caught("carrying/not_held", 0)
    assert found is not None
    assert "waits and is served" in found.violation or "may be carried" in found.violation
