"""A sealer of many partitions uses few Kafka clients, and few threads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from harness.sealing import SealWorld
from rollstream.consumers import Sealer
from rollstream.runtime.deadline import Deadline
from rollstream.streams.broker import IDLE_S, TopicPartition
from rollstream.streams.memory import MemoryBroker, MemoryLogs
from rollstream.streams.memory.reader import MemoryReader

PARTITIONS = 48
CLIENTS_MAX = 12
THREADS_MAX = 60
TURN_S = 0.2
WITHIN_S = 60.0
pytestmark = pytest.mark.proves("F25")


def threads() -> list[str]:
    """The names of all threads of this process."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        try:
            found.append((task / "comm").read_text().strip())
        except OSError:  # It has ended.
            continue
    return found


def until_adopted(world: SealWorld, sealer: Sealer) -> list[tuple[int, int]]:
    """Runs until all partitions are read, and for as long until their groups are sealed; returns
    how many clients and threads there were, again and again."""
    seen, deadline = [], Deadline(WITHIN_S, world.clock)
    while sum(one.watermark for one in sealer.stats().partitions) < PARTITIONS:
        assert not deadline.passed(), sealer.stats()
        world.run(sealer, seconds=TURN_S)
        names = threads()
        seen.append((names.count("rdk:main"), len(names)))
    return seen


@pytest.mark.broker
def test_clients_and_threads_do_not_grow_with_partitions(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    """Each client has one main thread. While all are adopted, and all time out at once."""
    with SealWorld(
        kafka=kafka_bootstrap,
        root=tmp_path,
        partitions=PARTITIONS,
        seal_timeout_s=1.0,
        min_group_size=1,
    ) as world:
        for number in range(PARTITIONS):
            world.publish(f"u{number}", partition=number)
        before = threads()
        with world.sealer(workers=None) as sealer:
            seen = until_adopted(world, sealer)
    assert max(clients for clients, _ in seen) - before.count("rdk:main") <= CLIENTS_MAX
    assert max(count for _, count in seen) - len(before) <= THREADS_MAX


class CountingBroker(MemoryBroker):
    """Counts readers that are asked for something, as each then has a client."""

    def __init__(self, logs: MemoryLogs) -> None:
        super().__init__(logs)
        self.used: set[MemoryReader] = set()

    def reader(
        self, starts: Mapping[TopicPartition, int], *, idle_s: float = IDLE_S
    ) -> MemoryReader:
        reader = super().reader(starts, idle_s=idle_s)
        bounds = reader.bounds

        def counted(where: TopicPartition, timeout_s: float) -> tuple[int, int]:
            self.used.add(reader)
            return bounds(where, timeout_s)

        vars(reader)["bounds"] = counted
        return reader


def test_readers_in_memory_do_not_grow_with_partitions() -> None:
    """Also those that are made for one question, of a sealer that takes others' partitions over."""
    with SealWorld(partitions=PARTITIONS, seal_timeout_s=1.0, min_group_size=1) as world:
        for number in range(PARTITIONS):
            world.publish(f"u{number}", partition=number)
        for _ in range(2):
            broker = CountingBroker(world.logs)
            with world.sealer(broker=broker) as sealer:
                until_adopted(world, sealer)
                world.run(sealer, seconds=10.0)
            assert len(broker.used) <= CLIENTS_MAX
