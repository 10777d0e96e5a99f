"""Time-outs go by the brokers' clocks, whatever the sealer's clock says."""

from __future__ import annotations

import pytest

from harness.history import problems_of
from harness.sealing import SealWorld
from harness.wrong_clock import HOUR_US, WrongClock

SEAL_TIMEOUT_S = 60.0


@pytest.mark.proves("F24")
@pytest.mark.parametrize("ahead_us", [HOUR_US, -HOUR_US], ids=["ahead", "behind"])
def test_a_sealer_whose_clock_is_wrong_cuts_no_group_and_is_not_late(ahead_us: int) -> None:
    world = SealWorld(
        partitions=1, target_group_size=3, min_group_size=1, seal_timeout_s=SEAL_TIMEOUT_S
    )
    sealer = world.sealer(clock=WrongClock(world.clock, ahead_us))
    uids = ["first", "second"]
    for uid in uids:
        world.publish(uid, example_id="one")
    world.run(sealer, seconds=SEAL_TIMEOUT_S - 2)
    assert world.groups() == []
    world.run(sealer, seconds=4)
    assert world.groups() == [("first", "second")]
    assert problems_of(world, uids) == []


@pytest.mark.proves("F24")
def test_a_takeover_postpones_no_time_out() -> None:
    """Nothing arrives any more: the successor's claim is the newest record."""
    world = SealWorld(
        partitions=1, target_group_size=3, min_group_size=1, seal_timeout_s=SEAL_TIMEOUT_S
    )
    world.publish("alone")
    broker = world.new_broker()
    world.run(world.sealer(broker=broker), seconds=SEAL_TIMEOUT_S - 20)
    broker.close()
    world.logs.group(world.layout.sealer_group("math")).leave(0, world.logs.partition_counts())
    successor = world.sealer(clock=WrongClock(world.clock, -HOUR_US))
    world.run(successor, seconds=18)
    assert world.groups() == []
    world.run(successor, seconds=4)
    assert world.groups() == [("alone",)]
