"""Offsets that a sealer never reads: what retention deleted, and markers of transactions."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping

from harness.history import problems_of
from harness.sealing import SealWorld
from rollstream.consumers import audit
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.ids import PartitionAddress
from rollstream.status import measure
from rollstream.streams.broker import IDLE_S, TopicPartition
from rollstream.streams.errors import BrokerUnavailable
from rollstream.streams.memory import MemoryBroker, MemoryLogs
from rollstream.streams.memory.reader import MemoryReader


def test_what_retention_deleted_unread_is_settled_as_lost() -> None:
    world = SealWorld(partitions=1)
    for uid in "abcd":
        world.publish(uid)
    world.logs.drop_before(world.source(), 2)
    world.run(world.sealer())
    assert world.groups() == [("c", "d")]
    assert world.settled() == {"lost": 2}


def test_a_retention_accident_of_any_size_takes_one_small_event_and_no_memory() -> None:
    count = 100_000_000
    world = SealWorld(partitions=1)
    for uid in "ab":
        world.publish(uid)
    sealer = world.sealer()
    world.run(sealer)
    log = world.layout.groups_log(PartitionAddress("math", 1, 0))
    before = sum(len(record.value) for record in world.logs.read(log, 0, 100))
    world.logs.drop_before(world.source(), 2 + count)
    tracemalloc.start()
    world.run(sealer)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50 * 1024 * 1024
    after = sum(len(record.value) for record in world.logs.read(log, 0, 100))
    assert after - before < 1024
    world.published += count
    for uid in "cd":
        world.publish(uid)
    world.run(sealer)
    assert world.groups() == [("a", "b"), ("c", "d")]
    assert world.settled() == {"lost": count}
    report = audit(world.config, broker=world.broker, store=world.blobs, clock=world.clock)
    sums = report.environment("math")
    assert (sums.published, sums.pending, sums.balanced) == (4 + count, 0, True)
    assert [f"records lost ({count};" in problem for problem in report.problems] == [True]
    (figures,) = measure(world.broker, world.config, Deadline(10, world.clock)).partitions
    assert (figures.watermark, figures.settled, figures.touched) == (count + 4,) * 3


def test_losses_behind_a_pending_group_are_settled_once_whoever_seals() -> None:
    world = SealWorld(partitions=1)
    world.publish("a", example_id="ex-a")
    world.run(first := world.sealer())
    world.logs.drop_before(world.source(), 1000)
    world.run(first)
    assert world.settled() == {"lost": 999}
    first.close()
    # The successor begins at the watermark, and the pending rollout is gone as well.
    world.publish("b", example_id="ex-b")
    world.run(world.sealer())
    assert world.settled() == {"lost": 1000}


def test_markers_of_a_foreign_transaction_are_settled_wherever_they_stand() -> None:
    world = SealWorld(partitions=1, seal_timeout_s=2, min_group_size=1, target_group_size=3)
    world.logs.add_marker(world.source())
    world.publish("a")
    world.logs.add_marker(world.source())
    world.logs.add_marker(world.source())
    world.publish("b")
    world.logs.add_marker(world.source())  # Behind it log time moves on, so the group times out.
    world.published += 4
    assert problems_of(world, drained=False) == [], "before anybody sealed"
    world.run(first := world.sealer())
    first.close()
    world.run(world.sealer(), seconds=4)
    assert world.groups() == [("a", "b")]
    assert world.settled() == {"no_record": 4}
    assert problems_of(world, ["a", "b"]) == []
    (figures,) = measure(world.broker, world.config, Deadline(10, world.clock)).partitions
    assert (figures.backlog, figures.waiting, figures.lost) == (0, 0, 0)


class ShyBroker(MemoryBroker):
    """A broker that does not answer the first questions for bounds."""

    def __init__(self, logs: MemoryLogs) -> None:
        super().__init__(logs)
        self._silent = [True, True]

    def reader(
        self, starts: Mapping[TopicPartition, int], *, idle_s: float = IDLE_S
    ) -> MemoryReader:
        reader = super().reader(starts, idle_s=idle_s)
        answer = reader.bounds

        def bounds(where: TopicPartition, timeout_s: float) -> tuple[int, int]:
            if self._silent and ".rollouts." in where.topic:
                self._silent.pop()
                raise BrokerUnavailable("no answer")
            return answer(where, timeout_s)

        reader.bounds = bounds  # type: ignore[method-assign]
        return reader


def test_losses_in_several_partitions_are_found_once_the_broker_answers() -> None:
    world = SealWorld(partitions=2)
    for partition in range(2):
        for uid in "abcd":
            world.publish(f"{uid}{partition}", partition=partition)
        world.logs.drop_before(world.source(partition), 2)
    world.run(world.sealer(broker=ShyBroker(world.logs)))
    assert sorted(world.groups()) == [("c0", "d0"), ("c1", "d1")]
    assert world.settled() == {"lost": 4}


def test_a_loss_in_one_partition_takes_nothing_of_another() -> None:
    world = SealWorld(partitions=2)
    world.publish("x", partition=1)
    world.run(sealer := world.sealer())
    for uid in "abcd":
        world.publish(uid, partition=0)
    for uid in "yz":
        world.publish(uid, partition=1)
    world.logs.drop_before(world.source(1), 3)
    world.run(sealer)
    assert world.groups() == [("a", "b"), ("c", "d")]
    assert world.settled() == {"lost": 2}
