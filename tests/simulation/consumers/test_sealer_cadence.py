"""When flushes of a partition begin."""

from __future__ import annotations

from harness.held_workers import HeldWorkers
from harness.sealing import SealWorld

INTERVAL_S = 10.0


def publish_pair(world: SealWorld, name: str) -> None:
    for number in range(2):
        world.publish(f"{name}-{number}", example_id=name)


def test_a_complete_group_waits_for_the_interval_and_no_longer() -> None:
    world = SealWorld(partitions=1, flush_interval_s=INTERVAL_S)
    sealer = world.sealer()
    world.run(sealer)
    publish_pair(world, "a")
    world.run(sealer, seconds=INTERVAL_S - 1)
    assert world.groups() == []
    world.run(sealer, seconds=2)
    assert world.groups() == [("a-0", "a-1")]


def test_what_was_decided_during_a_long_flush_follows_at_once() -> None:
    workers = HeldWorkers()
    world = SealWorld(partitions=1, flush_interval_s=INTERVAL_S)
    sealer = world.sealer(workers=workers)
    world.run(sealer)
    publish_pair(world, "a")
    world.run(sealer, seconds=INTERVAL_S - 1)
    workers.holding = True
    world.run(sealer, seconds=2)  # The flush begins, and stands still.
    publish_pair(world, "b")
    world.run(sealer, seconds=2 * INTERVAL_S)
    assert world.groups() == []
    workers.go_on()
    world.run(sealer, seconds=1)
    assert world.groups() == [("a-0", "a-1"), ("b-0", "b-1")]
