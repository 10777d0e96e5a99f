"""What is decided and not committed stays within its bound, whatever the sealer waits for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from harness.failing_blobs import FullBlobs
from harness.held_workers import HeldWorkers
from harness.history import problems_of
from harness.rollouts import make_entry
from harness.sealing import SealWorld
from rollstream.consumers import Sealer
from rollstream.consumers.sealing.intake import BACKLOG_FLUSHES_MAX, ENTRY_BYTES, RECORD_BYTES
from rollstream.consumers.sealing.sealer import WAIT_S
from rollstream.runtime.config.sections import SealersConfig
from rollstream.streams.broker import Record, TopicPartition
from rollstream.streams.memory import MemoryBroker
from rollstream.streams.memory.member import MemoryGroupReader
from rollstream.streams.reading import POLL_RECORDS_MAX

POLL_RECORDS = 4
FLUSH_ROLLOUTS = 8
MIB = 2**20
DECIDED_MAX = BACKLOG_FLUSHES_MAX * FLUSH_ROLLOUTS + POLL_RECORDS


class SipReader(MemoryGroupReader):
    """Reads a few records at a time."""

    def poll(self, records_max: int, timeout_s: float) -> list[Record]:
        return super().poll(min(records_max, POLL_RECORDS), timeout_s)


class SipBroker(MemoryBroker):
    """A broker whose group readers read a few records at a time."""

    def group_reader(
        self,
        group: str,
        topics: Sequence[str],
        *,
        on_revoked: Callable[[TopicPartition], None],
    ) -> MemoryGroupReader:
        return SipReader(self.logs, group, topics, on_revoked)


def publish_pairs(world: SealWorld, count: int, partition: int = 0) -> list[str]:
    uids = [f"p{partition}-{number}" for number in range(2 * count)]
    for number, uid in enumerate(uids):
        world.publish(uid, partition=partition, example_id=f"ex-{number // 2}")
    return uids


def position(sealer: Sealer, partition: int = 0) -> int:
    return sealer.stats().partitions[partition].position


def decided(sealer: Sealer, partition: int = 0) -> int:
    return sealer.stats().partitions[partition].decided


@pytest.mark.proves("I8")
def test_reading_pauses_while_a_flush_stands_still() -> None:
    workers = HeldWorkers()
    world = SealWorld(partitions=1, max_flush_rollouts=FLUSH_ROLLOUTS)
    sealer = world.sealer(broker=SipBroker(world.logs), workers=workers)
    world.run(sealer)
    workers.holding = True
    uids = publish_pairs(world, 50)
    world.run(sealer)
    assert FLUSH_ROLLOUTS < decided(sealer) <= DECIDED_MAX
    workers.go_on()
    world.run(sealer)
    assert position(sealer) == 100
    assert problems_of(world, uids) == []


@pytest.mark.proves("I8")
def test_reading_pauses_between_two_attempts_at_a_flush() -> None:
    world = SealWorld(partitions=1, max_flush_rollouts=FLUSH_ROLLOUTS)
    full = FullBlobs(world.blobs)
    sealer = world.sealer(broker=SipBroker(world.logs), store=full)
    uids = publish_pairs(world, 50)
    world.run(sealer)
    assert FLUSH_ROLLOUTS < decided(sealer) <= DECIDED_MAX
    full.refusing = False
    world.run(sealer, seconds=10)
    assert position(sealer) == 100
    assert problems_of(world, uids) == []


@pytest.mark.proves("I8")
def test_a_loss_in_another_partition_ends_no_pause() -> None:
    workers = HeldWorkers()
    world = SealWorld(partitions=2, max_flush_rollouts=FLUSH_ROLLOUTS)
    sealer = world.sealer(broker=SipBroker(world.logs), workers=workers)
    world.run(sealer)
    workers.holding = True
    publish_pairs(world, 50)
    world.run(sealer)
    assert position(sealer) <= DECIDED_MAX
    publish_pairs(world, 2, partition=1)
    world.logs.drop_before(world.source(0), 60)
    world.logs.drop_before(world.source(1), 2)
    world.run(sealer)
    assert position(sealer, 1) == 4
    assert position(sealer) <= DECIDED_MAX, "it is looked for once reading goes on"
    workers.go_on()
    world.run(sealer)
    assert [position(sealer, partition) for partition in range(2)] == [100, 4]


@pytest.mark.proves("I8")
@pytest.mark.parametrize("memory_bytes", [1, 2**30])
def test_reading_pauses_while_decisions_keep_large_records_of_which_they_have_little(
    memory_bytes: int,
) -> None:
    world = SealWorld(partitions=1, max_flush_bytes=MIB, max_pending_bytes=64 * MIB)
    sealers = SealersConfig(memory_bytes=memory_bytes)
    world.config = world.config.model_copy(update={"sealers": sealers})
    full = FullBlobs(world.blobs)
    sealer = world.sealer(broker=SipBroker(world.logs), store=full)
    for number in range(40):  # Of each record the duplicate alone is large.
        key = {"example_id": f"e-{number}"}
        world.publish_entries(
            make_entry(rollout_uid=f"{number}-a", **key),
            make_entry(rollout_uid=f"{number}-b", **key),
            make_entry(rollout_uid=f"{number}-a", attachments={"page": bytes(MIB)}, **key),
        )
    world.run(sealer, seconds=5)
    assert position(sealer) <= BACKLOG_FLUSHES_MAX + 1 + POLL_RECORDS
    full.refusing = False
    world.run(sealer, seconds=30)
    assert position(sealer) == 40


@pytest.mark.proves("I8")
def test_the_objects_of_small_records_count_where_their_payloads_do_not() -> None:
    world = SealWorld(partitions=1)
    world.config = world.config.model_copy(update={"sealers": SealersConfig(memory_bytes=0)})
    for number in range(50):
        world.publish(f"{number}", example_id=f"e-{number}")
    with world.sealer() as sealer:
        world.run(sealer, seconds=5)
        assert sealer.stats().partitions[0].pending == 50
        assert sealer.stats().memory_bytes == 50 * (RECORD_BYTES + ENTRY_BYTES)


def test_a_backlog_is_read_without_a_pause_while_a_flush_hangs() -> None:
    workers, records = HeldWorkers(), 10 * POLL_RECORDS_MAX
    with SealWorld() as world, world.sealer(workers=workers) as sealer:
        world.run(sealer)
        workers.holding = True
        for uid in ("a", "b"):
            world.publish(uid, partition=0)
        world.run(sealer)
        for number in range(records):
            world.publish(f"u{number}", partition=1, example_id=f"ex-{number}")
        world.run(sealer, seconds=2 * WAIT_S)
        [read] = [one.read for one in sealer.stats().environments.values()]
        workers.go_on()
    assert read == records + 2
