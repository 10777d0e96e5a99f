"""Late scores as files, while leaders are silent."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest

from harness.sealing import SealWorld
from rollstream.consumers.beside.context import ASK_S
from rollstream.consumers.sealing.score_files import EVERY_S
from rollstream.producers import ScoreProducer
from rollstream.store.layout import scores_of
from rollstream.streams.broker import IDLE_S, TopicPartition
from rollstream.streams.errors import BrokerUnavailable
from rollstream.streams.memory import MemoryBroker
from rollstream.streams.memory.reader import MemoryReader
from rollstream.streams.partitioning import partition_of

pytestmark = pytest.mark.proves("A18")


class SilentBroker(MemoryBroker):
    """Nobody says where the logs of scores of these partitions end."""

    def __init__(self, world: SealWorld, silent: Collection[int] = (0,)) -> None:
        super().__init__(world.logs)
        self._clock = world.clock
        self._silent = {TopicPartition(world.layout.scores("math"), one) for one in silent}
        self.asked = 0

    def reader(
        self, starts: Mapping[TopicPartition, int], *, idle_s: float = IDLE_S
    ) -> MemoryReader:
        reader = super().reader(starts, idle_s=idle_s)
        all_bounds = reader.all_bounds

        def unless_silent(
            logs: Collection[TopicPartition], timeout_s: float
        ) -> dict[TopicPartition, tuple[int, int]]:
            if self._silent.isdisjoint(logs):
                return all_bounds(logs, timeout_s)
            self.asked += 1
            self._clock.advance(timeout_s)
            raise BrokerUnavailable("the test's leader is silent")

        vars(reader).update(all_bounds=unless_silent)
        return reader


def test_a_silent_leader_holds_up_the_scores_of_its_own_partition_alone() -> None:
    world = SealWorld(partitions=4)
    broker = SilentBroker(world)
    with ScoreProducer(environment="math", scorer="tests", broker=world.broker) as producer:
        for number in range(8):
            producer.publish(rollout_uid=f"u{number}", reward=1.0)
    with world.sealer(broker=broker) as sealer:
        world.run(sealer, seconds=EVERY_S / 2)
        files = world.blobs.list(scores_of("math", 1))
        named = {blob.path.split("partition=")[1][0] for blob in files}
        tries = broker.asked
        world.run(sealer, seconds=EVERY_S / 3)
        assert broker.asked == tries, "the next attempt is a minute after the last one"
    assert named == {str(partition_of(f"u{one}".encode(), 4)) for one in range(8)} - {"0"}
    assert len(named) > 1


def test_a_sealer_that_ends_waits_for_no_more_silent_leaders_than_it_has_time_for() -> None:
    world = SealWorld(partitions=64)
    with world.sealer(broker=SilentBroker(world, range(64))) as sealer:
        world.run(sealer, seconds=200)
        assert len(sealer.stats().partitions) == 64
        begun_s = world.clock.monotonic_s()
    assert world.clock.monotonic_s() - begun_s < world.config.kafka.timeout_s + ASK_S
