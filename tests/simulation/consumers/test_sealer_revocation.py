"""A partition that is taken away while a claim or a flush of it is on its way."""

from __future__ import annotations

import pytest

from harness.faults import Fate, FaultyBroker
from harness.held_workers import HeldWorkers
from harness.history import claims, problems_of
from harness.owned_logs import only
from harness.sealing import EvictableBroker, SealWorld
from rollstream.consumers.sealing.environment import ASK_EVERY_S
from rollstream.schemas.events import Flushed


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


@pytest.mark.proves("F1")
def test_a_late_claim_of_a_zombie_stops_it_and_holds_its_successor_up_for_no_time() -> None:
    workers = HeldWorkers()
    workers.holding = True
    world = SealWorld(partitions=1)
    broker = EvictableBroker(world.logs)
    zombie = world.sealer(broker=broker, workers=workers)
    world.run(zombie)
    broker.evict()
    successor = world.sealer()
    world.run(successor)
    workers.go_on()  # Its claim is confirmed, and fences the successor.
    world.publish("a")
    world.publish("b")
    world.run(zombie, successor, seconds=ASK_EVERY_S / 2)
    assert world.groups() == [("a", "b")]
    assert [len(sealer.stats().partitions) for sealer in (zombie, successor)] == [0, 1]
    assert claims(world.confirmed_events()) == 3
    assert problems_of(world, "ab") == []


def test_a_flush_whose_outcome_is_known_to_nobody_ends_with_its_revoked_partition() -> None:
    workers = HeldWorkers()
    world = SealWorld(partitions=1)
    members = EvictableBroker(world.logs)
    broker = FaultyBroker(members, clock=world.clock)
    sealer = world.sealer(broker=broker, workers=workers)
    world.run(sealer)
    workers.holding = True
    world.publish("a")
    world.publish("b")
    world.run(sealer)
    members.evict()  # It joins again, and is assigned the same partition.
    broker.decide = only(Flushed, Fate.DOUBT_AND_DROP)
    workers.go_on()
    world.run(sealer)
    world.publish("c")
    world.publish("d")
    world.run(sealer)
    assert world.groups() == [("a", "b"), ("c", "d")]
    assert problems_of(world, "abcd") == []
