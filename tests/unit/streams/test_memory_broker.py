"""What the twin offers beyond the contract, and what the contract suite cannot see in Kafka."""

from __future__ import annotations

import threading

import pytest

from harness.brokers import new_topic
from rollstream.runtime.clock import ManualClock
from rollstream.streams.broker import Delivery, TopicPartition
from rollstream.streams.errors import BufferFull, DeliveryUnknown
from rollstream.streams.memory import MemoryBroker, MemoryLogs
from rollstream.streams.memory.writer import QUEUED_RECORDS_MAX


def test_records_carry_the_given_clocks_time_in_milliseconds() -> None:
    clock = ManualClock(1_700_000_000_123_456)
    broker = MemoryBroker(clock=clock)
    where = TopicPartition(new_topic(broker, 1, {}), 0)
    writer = broker.writer()
    writer.append(where.topic, b"x")
    clock.advance(2.5)
    writer.append(where.topic, b"y")
    stamps = [record.timestamp_us for record in broker.reader({where: 0}).poll(9, 0)]
    assert stamps == [1_700_000_000_123_000, 1_700_000_002_623_000]


def test_an_idle_poll_takes_the_clocks_time_and_not_ours() -> None:
    clock = ManualClock()
    broker = MemoryBroker(clock=clock)
    reader = broker.reader({TopicPartition(new_topic(broker, 1, {}), 0): 0})
    assert reader.poll(10, 3600.0) == []
    assert clock.monotonic_s() == 3600.0


def test_a_waiting_reader_wakes_when_another_thread_appends() -> None:
    broker = MemoryBroker()
    where = TopicPartition(new_topic(broker, 1, {}), 0)
    values: list[bytes] = []
    reader = broker.reader({where: 0})

    def wait() -> None:
        values.extend(record.value for record in reader.poll(10, 30.0))

    waiting = threading.Thread(target=wait)
    waiting.start()
    broker.writer().append(where.topic, b"x")
    waiting.join(30.0)
    assert values == [b"x"]


@pytest.mark.proves("I8")
def test_a_writer_that_nobody_polls_is_full_at_its_bound() -> None:
    broker = MemoryBroker()
    topic = new_topic(broker, 1, {})
    writer, reports = broker.writer(), list[Delivery]()
    for _ in range(QUEUED_RECORDS_MAX):
        writer.append(topic, b"x", on_delivery=reports.append)
    with pytest.raises(BufferFull, match="poll makes room"):
        writer.append(topic, b"x", on_delivery=reports.append)
    writer.poll()
    writer.append(topic, b"x", on_delivery=reports.append)
    assert len(reports) == QUEUED_RECORDS_MAX


def test_abandoning_reports_doubt_although_the_records_are_there() -> None:
    broker = MemoryBroker()
    where = TopicPartition(new_topic(broker, 1, {}), 0)
    writer, reports = broker.writer(), list[Delivery]()
    writer.append(where.topic, b"x", on_delivery=reports.append)
    writer.abandon()
    assert [type(report.error) for report in reports] == [DeliveryUnknown]
    assert broker.reader({where: 0}).bounds(where, 1.0) == (0, 1)


def test_keyless_records_go_to_all_partitions() -> None:
    broker = MemoryBroker()
    topic = new_topic(broker, 3, {})
    writer, reports = broker.writer(), list[Delivery]()
    for _ in range(9):
        writer.append(topic, b"x", on_delivery=reports.append)
    writer.poll()
    assert sorted(report.partition for report in reports) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_an_evicted_member_learns_it_after_its_successor_has_the_partition() -> None:
    logs = MemoryLogs(ManualClock())
    broker = MemoryBroker(logs)
    topic = new_topic(broker, 1, {})
    where = TopicPartition(topic, 0)
    revoked: list[TopicPartition] = []
    zombie = broker.group_reader("g", [topic], on_revoked=revoked.append)
    zombie.poll(1, 0)
    zombie.begin(where, 0)
    successor = MemoryBroker(logs).group_reader("g", [topic], on_revoked=revoked.append)
    zombie.evict()
    successor.poll(1, 0)
    assert successor.assigned() == zombie.assigned() == {where}
    answer = zombie.commit(where, 5, "")
    assert revoked == []
    broker.writer().append(topic, b"x")
    assert zombie.poll(10, 0) == []
    assert revoked == [where]
    assert not answer.result(0)
    assert zombie.assigned() == frozenset()


def test_partitions_move_no_more_than_they_must() -> None:
    broker = MemoryBroker(clock=ManualClock())
    topic = new_topic(broker, 6, {})
    members = [broker.group_reader("g", [topic], on_revoked=lambda _: None) for _ in range(3)]
    held: list[frozenset[TopicPartition]] = []
    for joined in range(1, 4):
        for _ in range(3):
            for member in members[:joined]:
                member.poll(1, 0)
        held.append(members[0].assigned())
    assert [len(share) for share in held] == [6, 3, 2]
    assert held[0] > held[1] > held[2]
    assert sorted(len(member.assigned()) for member in members) == [2, 2, 2]
    assert frozenset().union(*(member.assigned() for member in members)) == held[0]
