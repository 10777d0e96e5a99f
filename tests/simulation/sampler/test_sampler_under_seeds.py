"""A sampler that was only asleep, in a world that nothing else disturbs."""

from __future__ import annotations

import pytest

from rollstream.sampler import Fenced
from simulation.sampler.trainers import TURNS, Trainers


@pytest.mark.proves("F1", "I4")
@pytest.mark.parametrize("seed", range(10))
def test_a_sampler_that_was_only_asleep_decides_nothing_any_more(seed: int) -> None:
    world = Trainers(seed, trouble=0.0)
    for _ in range(TURNS // 2):
        world.act()
    trainer = world.trainers[0]
    trainer.begin_anew()  # A rival may have taken over.
    trainer.resume(None)
    old = trainer.client.sampler
    trainer.begin_anew()
    trainer.resume(None)
    for _ in range(2):
        with pytest.raises(Fenced, match="taken over"):
            old.publish_policy(99, policy_version="asleep")
    assert "asleep" not in str(world.decisions())
    for _ in range(TURNS // 2):
        world.act()
    world.check()
