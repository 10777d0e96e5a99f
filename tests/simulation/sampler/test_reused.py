"""Uses, masks and rewinds together: no group is served more often than allowed, nor is lost."""

from __future__ import annotations

from collections import Counter

import pytest

from simulation.sampler.reused import Reused

SEEDS = 16


@pytest.mark.proves("E2", "E4", "F1", "F3", "I5", "I6")
def test_groups_are_served_as_often_as_allowed_through_crashes_and_rewinds() -> None:
    reached = Counter[str]()
    for seed in range(SEEDS):
        world = Reused(seed)
        world.run()
        reached += world.reached
    assert {"uses again", "masks", "rewinds", "crashes", "replacements", "drops"} <= reached.keys()
