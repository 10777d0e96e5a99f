"""Where partitions stand, and which stage is stuck."""

from __future__ import annotations

import pytest

from harness.sealing import SealWorld
from rollstream.consumers import first_stuck, status


@pytest.mark.proves("F17")
def test_nothing_published_is_the_producers_stage() -> None:
    world = SealWorld()
    rows = status(world.config, broker=world.broker, clock=world.clock)
    stuck = first_stuck(world.config, rows, world.clock.now_us())
    assert stuck is not None
    assert (stuck.stage, stuck.environment) == ("producers", "math")


@pytest.mark.proves("F17")
def test_no_sealer_is_the_sealers_stage() -> None:
    world = SealWorld()
    world.publish("a")
    world.clock.advance(60)
    rows = status(world.config, broker=world.broker, clock=world.clock)
    stuck = first_stuck(world.config, rows, world.clock.now_us())
    assert stuck is not None
    assert stuck.stage == "sealers"
    assert "no sealer ever claimed" in stuck.reason


@pytest.mark.proves("F17")
def test_a_sealer_that_ended_is_named() -> None:
    world = SealWorld(seal_timeout_s=1, expire_after_s=2)
    sealer = world.sealer()
    world.run(sealer)
    sealer.close()
    world.publish("a")
    world.clock.advance(60)
    rows = status(world.config, broker=world.broker, clock=world.clock)
    stuck = first_stuck(world.config, rows, world.clock.now_us())
    assert stuck is not None
    assert "its last owner was sealer-1" in stuck.reason


def test_a_group_that_waits_for_members_is_not_stuck() -> None:
    world = SealWorld(partitions=1)
    for uid in "abc":
        world.publish(uid)
    world.run(world.sealer())
    (row,) = status(world.config, broker=world.broker, clock=world.clock)
    assert (row.published, row.watermark, row.unsettled, row.sealed) == (3, 2, 1, 2)
    assert (row.owner, row.groups) == ("sealer-1", 1)
    assert row.newest_flush_ts is not None
    assert first_stuck(world.config, (row,), world.clock.now_us()) is None
