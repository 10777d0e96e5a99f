"""Readers of sealed groups go on where they were, also after Kafka forgot their consumer group."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from contract.consumers.test_sealed_groups import LATE, ids, take
from harness.brokers import TIMEOUT_S, until, write
from harness.faults import Append, Fate, FaultyBroker
from harness.sampler_worlds import LocalWorld, memory_world, world_of
from rollstream.consumers import SealedGroups
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.codec import decode_as, encode
from rollstream.schemas.events import ReaderPosition, position_key
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.broker import (
    EARLIEST,
    IDLE_S,
    Broker,
    Committed,
    GroupReader,
    LogReader,
    OnDelivery,
    Record,
    TopicPartition,
)
from rollstream.streams.compacted import newest_records
from rollstream.streams.errors import BrokerUnavailable, NotAuthorised
from rollstream.streams.memory import MemoryBroker, MemoryLogs
from rollstream.streams.memory.member import MemoryGroupReader
from rollstream.streams.reading import read_between
from rollstream.streams.topics.layout import Layout

NAME = "tests"
OTHER_LOG = [
    pytest.param(0, id="its claim is another"),
    pytest.param(9_000, id="its claim is beyond the end"),
]
pytestmark = pytest.mark.proves("A18")


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.broker)])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalWorld]:
    made = world_of(request, tmp_path)
    yield made
    made.close()


def reader(world: LocalWorld, broker: Broker | None = None) -> SealedGroups:
    return SealedGroups(
        NAME, ["math"], config=world.config, broker=broker or world.broker(), store=world.store
    )


def taken(groups: SealedGroups) -> list[str]:
    """The ids of the next flush."""
    return [group.id for group in take(groups, 1)]


def layout_of(world: LocalWorld) -> Layout:
    return Layout.of(world.config.kafka)


def group_of(world: LocalWorld) -> str:
    return layout_of(world).reader_group(NAME)


def positions_log(world: LocalWorld) -> TopicPartition:
    return TopicPartition(layout_of(world).positions("math"), 0)


def forget_group(world: LocalWorld, broker: Broker | None = None) -> None:
    """Deletes the offsets of the reader's group, as Kafka does after 7 days."""
    used = broker or world.broker()
    if isinstance(used, MemoryBroker):
        used.logs.group(group_of(world)).commits.clear()
        return
    admin = AdminClient({"bootstrap.servers": world.config.kafka.bootstrap})

    def deleted() -> bool:
        (answer,) = admin.delete_consumer_groups([group_of(world)]).values()
        try:
            answer.result(TIMEOUT_S)
        except KafkaException:
            return False  # The last member is leaving.
        return True

    until(deleted)
    assert committed_in(world, used) == {}


def committed(world: LocalWorld) -> int:
    """The offset that the group has of the first partition."""
    (first,) = committed_in(world, world.broker()).values()
    return first.offset


def committed_in(world: LocalWorld, broker: Broker) -> dict[TopicPartition, Committed]:
    """What the group has of the first partition."""
    where = layout_of(world).groups_log(PartitionAddress("math", 1, 0))
    return broker.admin().committed(group_of(world), [where], TIMEOUT_S)


def stored(world: LocalWorld) -> dict[bytes, int]:
    """What the topic holds of the first partition: key to offset."""
    records = newest_records(world.broker(), [positions_log(world)], Deadline(TIMEOUT_S))
    return {
        key: decode_as(ReaderPosition, record.value).next_offset
        for (_, key), record in records.items()
        if key is not None and record.value
    }


def all_stored(world: LocalWorld) -> list[Record]:
    """Every record of the first partition's positions."""
    where = positions_log(world)
    with closing(world.broker().reader({where: EARLIEST})) as log:
        end = log.bounds(where, TIMEOUT_S)[1]
        return list(read_between(log, where, 0, end, Deadline(TIMEOUT_S)))


def compact(world: LocalWorld) -> None:
    """In memory; Kafka compacts when it likes."""
    broker = world.broker()
    if isinstance(broker, MemoryBroker):
        broker.logs.compact(positions_log(world))


def test_a_reader_goes_on_after_its_group_was_forgotten(world: LocalWorld) -> None:
    writer = world.writer()
    flushed = [writer.flush(LATE) for _ in range(3)]
    for one in flushed[:2]:
        with reader(world) as groups:
            assert taken(groups) == ids(one)
            groups.commit()
        forget_group(world)
        compact(world)
    successor = world.writer()  # Its claim stands behind the position.
    last = successor.flush(LATE)
    with reader(world) as groups:
        assert [*taken(groups), *taken(groups)] == [*ids(flushed[2]), *ids(last)]
        groups.commit()
        assert groups.poll(timeout_s=0.1) == []


def test_a_group_that_was_forgotten_gets_its_offset_back(world: LocalWorld) -> None:
    world.writer().flush(LATE)
    with reader(world) as groups:
        taken(groups)
        groups.commit()
    before = committed(world)
    forget_group(world)
    with reader(world) as groups:

        def is_back() -> bool:
            assert groups.poll(timeout_s=0.1) == []
            groups.commit()
            return bool(committed_in(world, world.broker()))

        until(is_back)
    assert committed(world) == before


def test_a_reader_of_another_name_begins_with_the_first_group(world: LocalWorld) -> None:
    flushed = world.writer().flush(LATE)
    with reader(world) as groups:
        taken(groups)
        groups.commit()
    with SealedGroups(
        f"{NAME}-2", ["math"], config=world.config, broker=world.broker(), store=world.store
    ) as others:
        assert taken(others) == ids(flushed)


def test_a_late_record_of_a_former_owner_moves_nothing_back(world: LocalWorld) -> None:
    writer = world.writer()
    flushed = [writer.flush(LATE) for _ in range(3)]
    for one in flushed[:2]:
        with reader(world) as groups:
            assert taken(groups) == ids(one)
            groups.commit()
    late = all_stored(world)[0]
    write(world.broker(), positions_log(world), [late.value], key=late.key)
    compact(world)
    forget_group(world)
    with reader(world) as groups:
        assert taken(groups) == ids(flushed[2])
        groups.commit()
    assert len(stored(world)) == 1, "an owner deletes what its own record replaces"


def test_a_late_record_of_its_own_moves_nothing_back(world: LocalWorld) -> None:
    fate = Fate.HOLD
    broker = FaultyBroker(world.broker(), lambda _: fate)
    writer = world.writer()
    flushed = [writer.flush(LATE) for _ in range(3)]
    with reader(world, broker) as groups:
        assert taken(groups) == ids(flushed[0])
        with pytest.raises(BrokerUnavailable, match="Commit again to store it"):
            groups.commit()
        fate = Fate.PASS
        assert taken(groups) == ids(flushed[1])
        groups.commit()
        assert broker.land() == 1
    compact(world)
    forget_group(world)
    with reader(world) as groups:
        assert taken(groups) == ids(flushed[2])


def test_a_commit_that_may_not_be_stored_is_stored_by_the_next(world: LocalWorld) -> None:
    fate = Fate.DOUBT_AND_DROP
    broker = FaultyBroker(world.broker(), lambda _: fate)
    writer = world.writer()
    flushed = [writer.flush(LATE) for _ in range(2)]
    with reader(world, broker) as groups:
        assert taken(groups) == ids(flushed[0])
        with pytest.raises(BrokerUnavailable, match="Commit again to store it"):
            groups.commit()
        fate = Fate.PASS
        groups.commit()
    forget_group(world)
    with reader(world) as groups:
        assert taken(groups) == ids(flushed[1])


def test_the_position_of_an_older_deployment_is_stored_by_the_first_commit(
    world: LocalWorld,
) -> None:
    writer = world.writer()
    writer.flush(LATE)
    with reader(world) as groups:
        taken(groups)
        groups.commit()
    for key in stored(world):
        write(world.broker(), positions_log(world), [b""], key=key)
    assert stored(world) == {}
    with reader(world) as groups:

        def is_stored() -> bool:
            assert groups.poll(timeout_s=0.1) == []
            groups.commit()
            return bool(stored(world))

        until(is_stored)
    assert [*stored(world).values()] == [committed(world)]
    forget_group(world)
    last = writer.flush(LATE)
    with reader(world) as groups:
        assert taken(groups) == ids(last)


@pytest.mark.parametrize("claim", OTHER_LOG)
def test_a_position_of_another_seal_log_does_not_count(world: LocalWorld, claim: int) -> None:
    writer = world.writer()
    flushed = [writer.flush(LATE) for _ in range(2)]
    wrong = ReaderPosition(next_offset=10_000, claim_epoch=claim, claim_nonce="another")
    key = position_key(NAME, 0, "former")
    write(world.broker(), positions_log(world), [encode(wrong)], key=key)
    with reader(world) as groups:
        assert taken(groups) == ids(flushed[0])
        groups.commit()
    assert [*stored(world)] != [key]
    forget_group(world)
    with reader(world) as groups:
        assert taken(groups) == ids(flushed[1])


def test_a_deployment_without_the_topic_goes_on_with_its_group(
    world: LocalWorld, caplog: pytest.LogCaptureFixture
) -> None:
    writer = world.writer()
    flushed = [writer.flush(LATE) for _ in range(2)]
    broker = without_topic(world)
    with caplog.at_level(logging.WARNING):
        for one in flushed:
            with reader(world, broker) as groups:
                assert taken(groups) == ids(one)
                groups.commit()
                groups.commit()
                assert sum(positions_log(world).topic in it.message for it in caplog.records) == 1
            caplog.clear()
    forget_group(world, broker)
    with reader(world, broker) as groups:
        assert taken(groups) == ids(flushed[0])


def without_topic(world: LocalWorld) -> Broker:
    """The deployment as a version made it that had no such topic."""
    missing, broker = positions_log(world).topic, world.broker()
    if isinstance(broker, MemoryBroker):
        older = MemoryLogs()
        for name, spec in broker.logs.topics().items():
            if name != missing:
                older.create(spec)
                for partition in range(spec.partitions):
                    where = TopicPartition(name, partition)
                    for record in broker.logs.read(where, 0, 100):
                        older.append(where, record.key, record.value)
        return MemoryBroker(older)
    admin = AdminClient({"bootstrap.servers": world.config.kafka.bootstrap})
    (answer,) = admin.delete_topics([missing]).values()
    answer.result(TIMEOUT_S)
    until(lambda: not broker.admin().describe([missing], TIMEOUT_S))
    return broker


class Refusing(FaultyBroker):
    """Lacks the right to read a topic."""

    topic = ""

    def reader(self, starts: Mapping[TopicPartition, int], *, idle_s: float = IDLE_S) -> LogReader:
        if any(where.topic == self.topic for where in starts):
            raise NotAuthorised(f"{self.topic}: the test refuses it")
        return super().reader(starts, idle_s=idle_s)


def test_a_topic_that_is_refused_stops_nobody(
    world: LocalWorld, caplog: pytest.LogCaptureFixture
) -> None:
    writer = world.writer()
    flushed = [writer.flush(LATE) for _ in range(2)]

    def refuse(append: Append) -> Fate:
        assert append.topic != broker.topic, "what cannot be read is not written"
        return Fate.PASS

    broker = Refusing(world.broker(), refuse)
    broker.topic = positions_log(world).topic
    with caplog.at_level(logging.WARNING), reader(world, broker) as groups:
        for one in flushed:
            assert taken(groups) == ids(one)
            groups.commit()
    (warning,) = [it.message for it in caplog.records if broker.topic in it.message]
    assert "the test refuses it" in warning
    assert "7 days" in warning


class ReadOnly(FaultyBroker):
    """Lacks the right to write."""

    def before_append(self, append: Append, on_delivery: OnDelivery | None) -> OnDelivery | None:
        raise NotAuthorised(f"{append.topic}: the test refuses it")


def test_a_topic_that_may_only_be_read_still_says_where_to_go_on(
    world: LocalWorld, caplog: pytest.LogCaptureFixture
) -> None:
    writer = world.writer()
    flushed = [writer.flush(LATE) for _ in range(4)]
    with reader(world) as groups:
        assert taken(groups) == ids(flushed[0])
        groups.commit()
    forget_group(world)
    with caplog.at_level(logging.WARNING), reader(world, ReadOnly(world.broker())) as groups:
        for one in flushed[1:3]:
            assert taken(groups) == ids(one)
            groups.commit()
    assert sum("the test refuses it" in it.message for it in caplog.records) == 1
    with reader(world) as groups:
        assert taken(groups) == ids(flushed[3])


class KnownMembers(FaultyBroker):
    """Knows the members of groups that it made."""

    def __init__(self, inner: MemoryBroker) -> None:
        super().__init__(inner)
        self.members: list[MemoryGroupReader] = []

    def group_reader(
        self, group: str, topics: Sequence[str], *, on_revoked: Callable[[TopicPartition], None]
    ) -> GroupReader:
        member = super().group_reader(group, topics, on_revoked=on_revoked)
        assert isinstance(member, MemoryGroupReader)
        self.members.append(member)
        return member


def test_a_reader_that_lost_the_partition_stores_nothing(
    request: pytest.FixtureRequest,
) -> None:
    world = memory_world()
    request.addfinalizer(world.close)
    memory = world.broker()
    assert isinstance(memory, MemoryBroker)
    broker = KnownMembers(memory)
    writer = world.writer()
    flushed = [writer.flush(LATE) for _ in range(3)]
    with reader(world, broker) as zombie:
        assert taken(zombie) == ids(flushed[0])
        broker.members[0].evict()
        with reader(world) as owner:
            assert [*taken(owner), *taken(owner)] == [*ids(flushed[0]), *ids(flushed[1])]
            owner.commit()
            before = stored(world)
            zombie.commit()
            assert stored(world) == before
    forget_group(world)
    with reader(world) as groups:
        assert taken(groups) == ids(flushed[2])
