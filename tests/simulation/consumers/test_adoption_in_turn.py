"""A sealer with little memory takes over many partitions: they are read in turn, and it is told."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from harness.history import problems_of
from harness.owned_logs import in_time, owner_of
from harness.sealing import TIMEOUT_S, SealWorld
from rollstream.consumers import audit
from rollstream.runtime.config.sections import SealersConfig
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.ids import PartitionAddress
from rollstream.status import measure, stuck_stages
from rollstream.streams.broker import Record
from rollstream.streams.memory import MemoryBroker
from rollstream.streams.memory.member import MemoryGroupReader

PARTITIONS = 6
GROUPS = 3  # Of a partition.
MEMBERS = 3
BOUND = 1024 * 1024
POLL_S = 0.8


class SlowBroker(MemoryBroker):
    """Each record takes a while."""

    def group_reader(self, *args: Any, **settings: Any) -> MemoryGroupReader:
        reader = super().group_reader(*args, **settings)
        poll = reader.poll

        def poll_one(records_max: int, timeout_s: float) -> list[Record]:
            self.logs.clock.wait(threading.Event(), POLL_S)
            return poll(1, timeout_s)

        vars(reader).update(poll=poll_one)
        return reader


def bounded_world(**config: Any) -> SealWorld:
    world = SealWorld(partitions=PARTITIONS, target_group_size=MEMBERS, min_group_size=1, **config)
    sealers = SealersConfig(memory_bytes=BOUND)
    world.config = world.config.model_copy(update={"sealers": sealers})
    return world


def publish(
    world: SealWorld, member: int, partitions: Sequence[int] = range(PARTITIONS)
) -> list[str]:
    """A member of each group; a group takes more than half of what a sealer may have in memory."""
    uids = []
    for number in range(GROUPS):
        for partition in partitions:
            uids.append(f"{partition}-{number}/{member}")
            name = {"group_uid": f"{partition}-{number}", "group_size": MEMBERS}
            tokens = np.arange(30_000)
            world.publish(uids[-1], partition=partition, output_tokens=tokens, **name)
    return uids


def stuck(world: SealWorld) -> list[str]:
    figures = measure(world.broker, world.config, Deadline(TIMEOUT_S, world.clock))
    return [one.reason for one in stuck_stages(figures, world.config)]


@pytest.mark.proves("I8")
def test_a_takeover_of_more_than_fits_into_memory_seals_every_group_whole() -> None:
    world = bounded_world(seal_timeout_s=20, expire_after_s=40)
    uids = [*publish(world, 0), *publish(world, 1)]
    broker = world.new_broker()
    world.run(world.sealer(broker=broker), seconds=2)
    broker.close()
    sealer = world.sealer()
    world.run(sealer, seconds=2)
    stats = sealer.stats()
    held = sum(one.pending_bytes for one in stats.partitions)
    pending = sum(one.pending for one in stats.partitions)
    assert (pending, held > 5 * BOUND) == (len(uids), True)
    assert BOUND / 2 < stats.memory_bytes <= BOUND
    uids += publish(world, 2)
    world.run(sealer, seconds=2)
    assert sealer.stats().memory_bytes == 0
    assert [len(group) for group in world.groups()] == [MEMBERS] * GROUPS * PARTITIONS
    assert problems_of(world, uids) == []
    sealer.close()


@pytest.mark.proves("I8", "F24")
def test_what_waits_for_its_turn_is_told_and_its_groups_wait_with_it() -> None:
    """Reading takes longer than the seal time-out, which goes by the log."""
    world = bounded_world(seal_timeout_s=5, expire_after_s=10)
    uids = [*publish(world, 0), *publish(world, 1), *publish(world, 2)]
    sealer = world.sealer(broker=SlowBroker(world.logs))
    told: set[str] = set()
    while audit_pending(world):
        world.run(sealer, seconds=5)
        told.update(stuck(world))
    assert any("reads others first" in one for one in told), told
    world.run(sealer, seconds=20)
    assert stuck(world) == []
    assert [len(group) for group in world.groups()] == [MEMBERS] * GROUPS * PARTITIONS
    assert problems_of(world, uids) == []
    sealer.close()


@pytest.mark.proves("I8")
def test_a_partition_that_is_claimed_again_reads_nothing_before_its_turn() -> None:
    """Else records behind its watermark would count as ones that the log does not have."""
    world = bounded_world()
    fenced, last = range(PARTITIONS - 1), [PARTITIONS - 1]
    uids = publish(world, 0, partitions=last)  # These fill the memory.
    sealer = world.sealer(broker=SlowBroker(world.logs))
    world.run(sealer, seconds=10)
    uids += publish(world, 0, partitions=fenced)
    world.run(sealer, seconds=20)
    assert sealer.stats().memory_bytes > BOUND / 2
    for partition in fenced:
        address = PartitionAddress("math", world.layout.generation, partition)
        where = world.layout.groups_log(address)
        owner_of(world.new_broker(), where, "zombie").claim(in_time())
    uids += [*publish(world, 1, partitions=fenced), *publish(world, 2, partitions=fenced)]
    world.run(sealer, seconds=120)
    assert "no_record" not in world.settled()
    uids += [*publish(world, 1, partitions=last), *publish(world, 2, partitions=last)]
    world.run(sealer, seconds=60)
    assert [len(group) for group in world.groups()] == [MEMBERS] * GROUPS * PARTITIONS
    assert problems_of(world, uids) == []
    sealer.close()


def audit_pending(world: SealWorld) -> int:
    report = audit(world.config, broker=world.broker, store=world.blobs, clock=world.clock)
    return sum(row.pending for row in report.partitions)
