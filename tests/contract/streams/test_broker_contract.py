"""The contract of ``rollstream.streams.broker``, on the twin and on Kafka."""

from __future__ import annotations

import uuid

import pytest

from harness.brokers import COMPACTED, LOG_CONFIG, TIMEOUT_S, World, commit, read, until, write
from rollstream.streams.broker import (
    EARLIEST,
    END,
    Committed,
    Delivery,
    GroupReader,
    Record,
    TopicPartition,
    TopicSpec,
)
from rollstream.streams.errors import DeliveryUnknown, OffsetLost, RecordTooLarge, UnknownTopic
from rollstream.streams.partitioning import partition_of
from rollstream.streams.topics.layout import RECORD_BYTES_MAX

# --- appending ---


@pytest.mark.parametrize("retries", [True, False])
def test_reports_name_contiguous_offsets_and_the_brokers_time(world: World, retries: bool) -> None:
    where = TopicPartition(world.topic(partitions=2), 1)
    broker = world.broker()
    writer, reports = broker.writer(retries=retries), list[Delivery]()
    for number in range(50):
        writer.append(where.topic, b"%d" % number, partition=1, on_delivery=reports.append)
    assert writer.flush(TIMEOUT_S) == 0
    assert [(r.partition, r.offset, r.error) for r in reports] == [(1, n, None) for n in range(50)]
    records = read(broker.reader({where: 0}), 50)
    assert [record.timestamp_us for record in records] == [r.timestamp_us for r in reports]
    assert all(record.timestamp_us > 1_600_000_000_000_000 for record in records)


def test_callbacks_run_in_poll_not_in_append(world: World) -> None:
    topic = world.topic()
    writer, reports = world.broker().writer(linger_ms=0), list[Delivery]()
    writer.append(topic, b"x", on_delivery=reports.append)
    assert reports == []
    until(lambda: len(reports) == 1, lambda: writer.poll(0.1))


def test_keys_choose_partitions_by_murmur2(world: World) -> None:
    topic = world.topic(partitions=7)
    keys = [b"", b"a", b"ab", b"abc", b"abcd", b"group-17", "größe".encode(), bytes(range(256))]
    keys += [b"example-%d" % number for number in range(100)]
    writer, chosen = world.broker().writer(), list[int]()
    for key in keys:
        writer.append(topic, b"x", key=key, on_delivery=lambda d: chosen.append(d.partition))
        assert writer.flush(TIMEOUT_S) == 0
    expected = [partition_of(key, 7) for key in keys if key]
    assert chosen[1:] == expected  # An empty key: whichever partition, as without one.


def test_records_come_back_with_their_headers(world: World) -> None:
    where = TopicPartition(world.topic(), 0)
    broker = world.broker()
    writer = broker.writer()
    reports: list[Delivery] = []
    headers = (("schema", b"2"), ("empty", b""), ("schema", b"\xff"))
    writer.append(where.topic, b"value", headers=headers, on_delivery=reports.append)
    assert writer.flush(TIMEOUT_S) == 0
    (record,) = read(broker.reader({where: EARLIEST}), 1)
    assert (record.value, record.headers) == (b"value", headers)
    assert (reports[0].offset, record.timestamp_us) == (0, reports[0].timestamp_us)


def test_records_come_back_with_key_and_value(world: World) -> None:
    where = TopicPartition(world.topic(), 0)
    broker = world.broker()
    writer = broker.writer()
    writer.append(where.topic, b"value", key=b"key")
    writer.append(where.topic, b"")
    assert writer.flush(TIMEOUT_S) == 0
    records = read(broker.reader({where: EARLIEST}), 2)
    assert [record.headers for record in records] == [(), ()]
    assert [(r.topic, r.partition, r.offset, r.key, r.value) for r in records] == [
        (where.topic, 0, 0, b"key", b"value"),
        (where.topic, 0, 1, None, b""),
    ]


def test_each_report_comes_once_whoever_else_refers_to_its_callback(world: World) -> None:
    topic = world.topic(partitions=2, config={**LOG_CONFIG, "max.message.bytes": "5000"})
    writer, reports = world.broker().writer(), list[Delivery]()

    def told(delivery: Delivery) -> None:
        reports.append(delivery)

    told.itself = told  # type: ignore[attr-defined]  # A cycle, which no count of references ends.
    writer.append(topic, b"x" * 10, partition=1, on_delivery=told)
    assert reports == []
    until(lambda: len(reports) == 1, lambda: writer.poll(0.1))
    for size in (6000, 20):
        writer.append(topic, b"x" * size, partition=0, on_delivery=told)
        assert writer.flush(TIMEOUT_S) == 0
    assert [report[1:3] for report in reports] == [(1, 0), (0, -1), (0, 0)]
    assert [type(report.error) for report in reports] == [type(None), RecordTooLarge, type(None)]


def test_a_record_that_is_not_queued_is_never_reported(world: World) -> None:
    topic = world.topic()
    writer, reports = world.broker().writer(), list[Delivery]()
    with pytest.raises(RecordTooLarge):
        writer.append(topic, b"x" * (RECORD_BYTES_MAX + 1), on_delivery=reports.append)
    assert writer.flush(TIMEOUT_S) == 0
    assert reports == []


def test_a_record_over_the_clients_limit_is_refused_at_once(world: World) -> None:
    topic = world.topic()
    writer = world.broker().writer()
    with pytest.raises(RecordTooLarge, match=topic):
        writer.append(topic, b"x" * (RECORD_BYTES_MAX + 1))
    assert writer.flush(0.0) == 0


def test_a_record_over_the_topics_limit_is_reported(world: World) -> None:
    topic = world.topic(config={**LOG_CONFIG, "max.message.bytes": "5000"})
    writer, reports = world.broker().writer(), list[Delivery]()
    writer.append(topic, b"x" * 6000, on_delivery=reports.append)
    assert writer.flush(TIMEOUT_S) == 0
    assert isinstance(reports[0].error, RecordTooLarge)


def test_a_tombstone_comes_back_with_its_key_and_an_empty_value(world: World) -> None:
    topic = world.topic(config=COMPACTED)
    writer = world.broker().writer()
    for value in (b"what stood there", None):
        writer.append(topic, value, key=b"key", partition=0)
    assert writer.flush(TIMEOUT_S) == 0
    records = read(world.broker().reader({TopicPartition(topic, 0): EARLIEST}), 2)
    assert [one.key for one in records] == [b"key", b"key"]
    assert [one.value for one in records] == [b"what stood there", b""]


def test_an_append_to_no_topic_is_reported(world: World) -> None:
    writer, reports = world.broker().writer(), list[Delivery]()
    writer.append(f"missing.{uuid.uuid4().hex}", b"x", on_delivery=reports.append)
    assert writer.flush(TIMEOUT_S) == 0
    assert isinstance(reports[0].error, UnknownTopic)


def test_an_abandoned_writer_reports_each_append_once_and_leaves_a_beginning(world: World) -> None:
    where = TopicPartition(world.topic(), 0)
    broker = world.broker()
    writer, reports = broker.writer(), list[Delivery]()
    for number in range(200):
        writer.append(where.topic, b"%d" % number, partition=0, on_delivery=reports.append)
    writer.abandon()
    assert len(reports) == 200
    assert all(r.error is None or isinstance(r.error, DeliveryUnknown) for r in reports)
    write(broker, where, [b"end"])
    reader = broker.reader({where: 0})
    values: list[bytes] = []
    until(lambda: b"end" in values, lambda: values.extend(r.value for r in read(reader, 1)))
    landed = [value for value in values if value != b"end"]
    assert landed == [b"%d" % number for number in range(len(landed))]


# --- reading ---


def test_readers_start_where_they_are_told(world: World) -> None:
    topic = world.topic(partitions=3)
    first, second, third = (TopicPartition(topic, number) for number in range(3))
    broker = world.broker()
    for where in (first, second, third):
        write(broker, where, [b"%d" % number for number in range(10)])
    reader = broker.reader({first: 0, second: 7, third: END})
    seen = read(reader, 13)
    assert [r.offset for r in seen if r.partition == 0] == list(range(10))
    assert [r.offset for r in seen if r.partition == 1] == [7, 8, 9]
    write(broker, third, [b"new"])
    assert [(r.partition, r.value) for r in read(reader, 1)] == [(2, b"new")]


def test_poll_returns_at_most_what_was_asked_for(world: World) -> None:
    where = TopicPartition(world.topic(), 0)
    broker = world.broker()
    write(broker, where, [b"x"] * 25)
    reader, offsets = broker.reader({where: 0}), list[int]()
    while len(offsets) < 25:
        records = reader.poll(10, 0.5)
        assert len(records) <= 10
        offsets += [record.offset for record in records]
    assert offsets == list(range(25))
    assert reader.poll(10, 0.05) == []


def test_bounds_are_asked_of_the_broker(world: World) -> None:
    where = TopicPartition(world.topic(), 0)
    broker = world.broker()
    reader = broker.reader({where: 0})
    assert reader.bounds(where, TIMEOUT_S) == (0, 0)
    write(broker, where, [b"x"] * 5)
    assert reader.bounds(where, TIMEOUT_S) == (0, 5)
    world.drop_before(where, 2)
    assert reader.bounds(where, TIMEOUT_S) == (2, 5)
    other = TopicPartition(world.topic(), 0)
    assert reader.all_bounds([where, other], TIMEOUT_S) == {where: (2, 5), other: (0, 0)}
    assert reader.all_bounds([], TIMEOUT_S) == {}
    for logs in ([TopicPartition("no-such", 0)], [where, TopicPartition("no-such", 0)]):
        with pytest.raises(UnknownTopic):
            reader.all_bounds(logs, TIMEOUT_S)


def test_seek_goes_back_and_forth(world: World) -> None:
    where = TopicPartition(world.topic(), 0)
    broker = world.broker()
    write(broker, where, [b"%d" % number for number in range(100)])
    reader = broker.reader({where: 50})
    assert read(reader, 1)[0].offset == 50
    for offset in (10, 99, 0, 42):
        reader.seek(where, offset)
        assert read(reader, 1)[0].offset == offset


def test_a_paused_partition_is_not_read_until_it_is_sought(world: World) -> None:
    topic, broker = world.topic(partitions=2), world.broker()
    one, other = (TopicPartition(topic, number) for number in range(2))
    write(broker, one, [b"%d" % number for number in range(10)])
    reader = broker.reader({one: 0, other: 0})
    reader.pause(one)
    write(broker, other, [b"first"])
    assert [record.value for record in read(reader, 1)] == [b"first"]
    reader.seek(one, 3)
    assert [record.offset for record in read(reader, 7)] == [*range(3, 10)]
    reader.pause(one)
    reader.pause(one)
    write(broker, one, [b"unseen"])
    write(broker, other, [b"second"])
    assert [record.value for record in read(reader, 1)] == [b"second"]
    assert reader.poll(10, 0.2) == []
    reader.seek(one, 10)
    assert [record.value for record in read(reader, 1)] == [b"unseen"]


def test_one_reader_reads_one_log_after_the_other(world: World) -> None:
    topic, broker = world.topic(partitions=3), world.broker()
    logs = [TopicPartition(topic, number) for number in range(3)]
    for number, where in enumerate(logs):
        write(broker, where, [b"%d-%d" % (number, index) for index in range(5)])
    reader = broker.reader({})
    for number in (2, 0, 1, 0):
        reader.seek(logs[number], 3)
        expected = [b"%d-3" % number, b"%d-4" % number]
        assert [record.value for record in read(reader, 2)] == expected
        assert reader.bounds(logs[number], TIMEOUT_S) == (0, 5)
        reader.pause(logs[number])
        reader.pause(logs[number])
        assert reader.poll(10, 0.2) == []


@pytest.mark.parametrize("wanted", [3, 50])
def test_an_offset_that_is_not_in_the_log_is_said_until_sought(world: World, wanted: int) -> None:
    where = TopicPartition(world.topic(), 0)
    broker = world.broker()
    write(broker, where, [b"x"] * 10)
    world.drop_before(where, 6)
    reader = broker.reader({where: wanted})
    for _ in range(2):
        with pytest.raises(OffsetLost) as caught:
            until(lambda: False, lambda: reader.poll(10, 0.5))
        assert (caught.value.wanted, caught.value.first, caught.value.end) == (wanted, 6, 10)
    reader.seek(where, 6)
    assert read(reader, 4)[0].offset == 6


def test_offsets_lost_in_two_logs_are_said_until_both_are_sought(world: World) -> None:
    topic = world.topic(partitions=2)
    logs = [TopicPartition(topic, number) for number in range(2)]
    broker = world.broker()
    for where in logs:
        write(broker, where, [b"x"] * 10)
        world.drop_before(where, 6)
    reader = broker.reader(dict.fromkeys(logs, 0))
    with pytest.raises(OffsetLost):
        until(lambda: False, lambda: reader.poll(10, 0.5))
    for where in logs:
        reader.seek(where, 6)
    found = read(reader, 8)
    assert sorted((r.partition, r.offset) for r in found) == [
        (p, o) for p in (0, 1) for o in (6, 7, 8, 9)
    ]


@pytest.mark.parametrize("lost", [0, 1])
def test_an_offset_lost_in_one_log_takes_nothing_of_another(world: World, lost: int) -> None:
    topic = world.topic(partitions=2)
    logs = [TopicPartition(topic, number) for number in range(2)]
    broker = world.broker()
    for where in logs:
        write(broker, where, [b"x"] * 10)
    world.drop_before(logs[lost], 6)
    reader, found = broker.reader(dict.fromkeys(logs, 0)), list[Record]()
    with pytest.raises(OffsetLost):
        until(lambda: False, lambda: found.extend(reader.poll(100, 0.5)))
    reader.seek(logs[lost], 6)
    until(lambda: len(found) >= 14, lambda: found.extend(reader.poll(100, 0.5)))
    assert [r.offset for r in found if r.partition == lost] == [6, 7, 8, 9]
    assert [r.offset for r in found if r.partition != lost] == list(range(10))


def test_reading_no_topic_says_so(world: World) -> None:
    reader = world.broker().reader({TopicPartition(f"missing.{uuid.uuid4().hex}", 0): 0})
    with pytest.raises(UnknownTopic):
        until(lambda: False, lambda: reader.poll(10, 0.5))


def test_two_handles_share_one_log(world: World) -> None:
    where = TopicPartition(world.topic(), 0)
    write(world.broker(), where, [b"x"])
    assert read(world.broker().reader({where: 0}), 1)[0].value == b"x"


# --- groups ---


class Member:
    """A member of a group, and what it was told."""

    def __init__(self, world: World, group: str, topic: str) -> None:
        self.revoked: list[TopicPartition] = []
        self.reader: GroupReader = world.broker().group_reader(
            group, [topic], on_revoked=self.revoked.append
        )

    def turn(self) -> None:
        assert self.reader.poll(100, 0.05) == []

    def has(self, count: int) -> bool:
        return len(self.reader.assigned()) == count


def test_what_is_assigned_is_read_once_it_is_begun_and_where_it_is_told(world: World) -> None:
    topic = world.topic(partitions=2)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    write(world.broker(), first, [b"%d" % number for number in range(10)])
    write(world.broker(), second, [b"x"])
    member = Member(world, topic, topic)
    until(lambda: member.has(2), member.turn)
    member.turn()
    member.reader.begin(first, 4)
    assert [(r.partition, r.offset) for r in read(member.reader, 6)] == [
        (0, n) for n in range(4, 10)
    ]
    member.reader.pause(first)
    write(world.broker(), first, [b"10"])
    member.turn()
    member.reader.begin(first, 10)
    assert [r.offset for r in read(member.reader, 1)] == [10]


def test_commits_keep_offset_and_metadata(world: World) -> None:
    topic = world.topic(partitions=2)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    member = Member(world, topic, topic)
    until(lambda: member.has(2), member.turn)
    admin, both = world.broker().admin(), [first, second]
    assert admin.committed(topic, both, TIMEOUT_S) == {}
    assert commit(member.reader, first, 7, "claim=3")
    assert commit(member.reader, first, 9, "claim=5")
    member.reader.close()
    assert admin.committed(topic, both, TIMEOUT_S) == {first: Committed(9, "claim=5")}
    assert admin.committed(f"{topic}-of-nobody", both, TIMEOUT_S) == {}


def test_a_second_member_gets_its_share_after_the_first_was_told(world: World) -> None:
    topic = world.topic(partitions=4)
    first = Member(world, topic, topic)
    until(lambda: first.has(4), first.turn)
    for where in first.reader.assigned():
        first.reader.begin(where, 0)
    second = Member(world, topic, topic)

    def nobody_shares() -> None:
        assert not first.reader.assigned() & second.reader.assigned()
        assert second.reader.assigned() <= set(first.revoked)

    until(
        lambda: first.has(2) and second.has(2),
        first.turn,
        nobody_shares,
        second.turn,
        nobody_shares,
    )
    assert set(first.revoked) == second.reader.assigned()
    assert second.revoked == []
    moved, kept = min(second.reader.assigned()), min(first.reader.assigned())
    assert not commit(first.reader, moved, 1)
    assert commit(first.reader, kept, 1)
    assert commit(second.reader, moved, 1)
    write(world.broker(), kept, [b"x"])
    write(world.broker(), moved, [b"y"])
    assert [r.value for r in read(first.reader, 1)] == [b"x"]  # It read on without a new begin.
    second.reader.begin(moved, 0)
    assert [r.value for r in read(second.reader, 1)] == [b"y"]


def test_what_a_leaving_member_had_goes_to_the_others(world: World) -> None:
    topic = world.topic(partitions=4)
    first, second = Member(world, topic, topic), Member(world, topic, topic)
    until(lambda: first.has(2) and second.has(2), first.turn, second.turn)
    before = len(first.revoked)
    first.reader.close()
    first.reader.close()
    until(lambda: second.has(4), second.turn)
    assert len(first.revoked) == before


# --- topics ---


def test_topics_are_described_as_they_were_created(world: World) -> None:
    admin = world.broker().admin()
    name = f"test.{uuid.uuid4().hex}"
    assert admin.describe([name], TIMEOUT_S) == {}
    wanted = {**LOG_CONFIG, "retention.ms": "-1", "cleanup.policy": "compact"}
    admin.create([TopicSpec(name, 3, wanted)], TIMEOUT_S)
    found = admin.describe([name], TIMEOUT_S)[name]
    assert found.partitions == 3
    assert found.replication == admin.brokers(TIMEOUT_S) == 1
    assert wanted.items() <= found.config.items()


def test_a_topic_that_exists_is_left_as_it_is(world: World) -> None:
    admin = world.broker().admin()
    name = f"test.{uuid.uuid4().hex}"
    admin.create([TopicSpec(name, 2, {"retention.ms": "1000000"})], TIMEOUT_S)
    admin.create([TopicSpec(name, 5, {"retention.ms": "2000000"})], TIMEOUT_S)
    found = admin.describe([name], TIMEOUT_S)[name]
    assert (found.partitions, found.config["retention.ms"]) == (2, "1000000")


def test_group_says_who_has_which_partition_until_they_leave(world: World) -> None:
    topic, broker = world.topic(partitions=2), world.broker()
    admin = broker.admin()
    admin.reach(TIMEOUT_S)
    assert admin.group(topic, TIMEOUT_S) == ({}, 0, True)
    member = broker.group_reader(topic, [topic], on_revoked=lambda _: None)
    both = {TopicPartition(topic, 0), TopicPartition(topic, 1)}
    until(lambda: member.assigned() == both, lambda: member.poll(1, 0.05))
    until(lambda: admin.group(topic, TIMEOUT_S).settled, lambda: member.poll(1, 0.05))
    owners, members, _ = admin.group(topic, TIMEOUT_S)
    assert (set(owners), len(set(owners.values())), members) == (both, 1, 1)
    member.close()
    until(lambda: admin.group(topic, TIMEOUT_S) == ({}, 0, True))


def test_offset_of_a_time_is_the_first_record_that_is_as_new(world: World) -> None:
    topic = world.topic(partitions=2)
    where, empty = TopicPartition(topic, 0), TopicPartition(topic, 1)
    broker = world.broker()
    reader = broker.reader({where: 0})

    def offset_at(timestamp_us: int) -> int:
        found = reader.offsets_at({where: 9, empty: 7}, timestamp_us, TIMEOUT_S)
        assert found[empty] == 7
        return found[where]

    assert offset_at(0) == 9
    write(broker, where, [b"a", b"b"])
    first, second = (record.timestamp_us for record in read(reader, 2))
    assert offset_at(0) == offset_at(first) == 0
    assert offset_at(second) == int(second > first)
    assert offset_at(second + 1) == 9, "as the caller says where none is as new"
    assert reader.offsets_at({}, 0, TIMEOUT_S) == {}
