"""Compacted logs, in memory and on Kafka."""

from __future__ import annotations

import pytest

from harness.brokers import COMPACTED, TIMEOUT_S, World, write
from rollstream.runtime.deadline import Deadline
from rollstream.streams.broker import TopicPartition
from rollstream.streams.compacted import newest_records
from rollstream.streams.errors import UnknownTopic


def test_the_newest_record_of_each_key_is_found_in_each_partition(world: World) -> None:
    topic = world.topic(partitions=3, config=COMPACTED)
    logs = [TopicPartition(topic, number) for number in range(3)]
    broker = world.broker()
    write(broker, logs[0], [b"first", b"second"], key=b"a")
    write(broker, logs[0], [b"third"], key=b"b")
    world.compact(logs[0])
    write(broker, logs[1], [b"fourth"], key=b"a")
    found = newest_records(broker, logs, Deadline(TIMEOUT_S))
    wanted = {
        (0, b"a"): b"second",
        (0, b"b"): b"third",
        (1, b"a"): b"fourth",
    }
    values = {(where.partition, key): one.value for (where, key), one in found.items()}
    assert wanted.items() <= values.items()


def test_a_log_that_does_not_exist_is_named(world: World) -> None:
    with pytest.raises(UnknownTopic, match="nowhere"):
        newest_records(world.broker(), [TopicPartition("nowhere", 0)], Deadline(TIMEOUT_S))
