"""Figures of many partitions, which are read together."""

from __future__ import annotations

from contextlib import closing

import pytest

from harness.brokers import TIMEOUT_S, until, write
from harness.faults import FaultyBroker
from harness.owned_logs import owner_of, settle_confirmed
from rollstream.runtime.clock import ManualClock
from rollstream.runtime.config.sections import (
    EnvironmentConfig,
    KafkaConfig,
    RollstreamConfig,
)
from rollstream.runtime.config.store import StoreConfig
from rollstream.runtime.deadline import Deadline
from rollstream.schemas import codec
from rollstream.schemas.events import Claimed
from rollstream.status import measure
from rollstream.status.partitions import TOGETHER_MAX
from rollstream.streams.broker import TopicPartition
from rollstream.streams.memory import MemoryBroker
from rollstream.streams.topics.create import create_topics
from rollstream.streams.topics.layout import Layout
from rollstream.streams.topics.specs import specs_for
from rollstream.streams.troubles import CommitNote

PARTITIONS = TOGETHER_MAX + 3
LAYOUT = Layout()
CONFIG = RollstreamConfig(
    kafka=KafkaConfig(bootstrap="memory"),
    store=StoreConfig(root="file:///nowhere"),
    environments={"math": EnvironmentConfig(partitions=PARTITIONS)},
)


@pytest.fixture
def broker() -> FaultyBroker:
    broker = FaultyBroker(MemoryBroker(clock=ManualClock()))
    create_topics(broker.admin(), specs_for(LAYOUT, {"math": PARTITIONS}), TIMEOUT_S)
    return broker


def log_of(partition: int) -> TopicPartition:
    return TopicPartition(LAYOUT.groups("math"), partition)


def deadline() -> Deadline:
    return Deadline(TIMEOUT_S, ManualClock())


def test_each_partition_has_its_own_figures_and_one_that_cannot_be_read_hides_none(
    broker: FaultyBroker,
) -> None:
    for number in range(PARTITIONS):
        log = owner_of(broker, log_of(number), f"owner {number}")
        log.claim(Deadline(TIMEOUT_S))
        for _ in range(number % 5):
            settle_confirmed(log, 2)
    write(broker, TopicPartition(LAYOUT.rollouts("math"), 4), [b"a", b"b"])
    write(broker, log_of(7), [codec.encode(Claimed(owner="x", nonce="n"))[:12]])
    write(broker, log_of(8), [b"nobody's"])
    figures = measure(broker, CONFIG, deadline()).partitions
    assert [one.partition for one in figures] == list(range(PARTITIONS))
    assert [one.owner for one in figures] == [f"owner {number}" for number in range(PARTITIONS)]
    assert [one.settled for one in figures] == [2 * (number % 5) for number in range(PARTITIONS)]
    assert [one.partition for one in figures if one.aside] == [7]
    assert [(one.partition, one.foreign) for one in figures if one.foreign] == [(8, 1)]
    assert [one.ingest_end for one in figures if one.ingest_end] == [2]


def test_what_sealers_commit_says_where_their_logs_are_read_from(broker: FaultyBroker) -> None:
    log = owner_of(broker, log_of(0))
    log.claim(Deadline(TIMEOUT_S))
    for _ in range(100):
        settle_confirmed(log, 5)
    log.claim(Deadline(TIMEOUT_S))
    for _ in range(300):
        settle_confirmed(log, 5)
    before = broker.records_read
    measure(broker, CONFIG, deadline())
    without = broker.records_read - before
    where = TopicPartition(LAYOUT.rollouts("math"), 0)
    group = LAYOUT.sealer_group("math")
    with closing(broker.group_reader(group, [where.topic], on_revoked=lambda _: None)) as member:
        until(lambda: where in member.assigned(), lambda: member.poll(1, 0.0))
        done = member.commit(where, 0, CommitNote(log.epoch, "the disk is full").metadata())
        until(done.done, lambda: member.poll(1, 0.0))
        before = broker.records_read
        (figures, *_) = measure(broker, CONFIG, deadline()).partitions
    assert (figures.settled, figures.trouble) == (2000, "the disk is full")
    assert broker.records_read - before < without - 200
    (figures, *_) = measure(broker, CONFIG, deadline()).partitions
    assert figures.trouble == "", "a sealer that is gone says nothing any more"
