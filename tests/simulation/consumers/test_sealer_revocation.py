"""A partition that is taken away while a flush of it is on its way."""

from __future__ import annotations

import pytest

from harness.held_workers import HeldWorkers
from harness.history import problems_of
from harness.sealing import EvictableBroker, SealWorld


@pytest.mark.parametrize("successor_first", [False, True])
def test_a_flush_that_ends_after_its_partition_was_revoked_seals_nothing_twice(
    successor_first: bool,
) -> None:
    workers = HeldWorkers()
    world = SealWorld(partitions=1)
    broker = EvictableBroker(world.logs)
    owner = world.sealer(broker=broker, workers=workers)
    world.run(owner)
    workers.holding = True
    world.publish("a")
    world.publish("b")
    world.run(owner)
    successor = world.sealer()
    broker.evict()
    if successor_first:
        world.run(successor)
        assert world.groups() == [("a", "b")]
    assert len(owner.stats().partitions) == 1, "it waits for the job"
    workers.go_on()
    world.run(owner, successor, seconds=3)
    assert sum(len(sealer.stats().partitions) for sealer in (owner, successor)) == 1
    assert owner.stats().segments + successor.stats().segments == 2
    assert problems_of(world, "ab") == []
