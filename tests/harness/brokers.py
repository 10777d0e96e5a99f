"""The two worlds in which the broker's contract is tested: in memory, and a real Kafka."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Protocol

import confluent_kafka
from confluent_kafka.admin import AdminClient

from rollstream.runtime.clock import SystemClock
from rollstream.runtime.deadline import Deadline
from rollstream.runtime.metrics.timings import Timings
from rollstream.streams.broker import (
    EARLIEST,
    Broker,
    GroupReader,
    LogReader,
    Record,
    TopicPartition,
    TopicSpec,
)
from rollstream.streams.kafka import KafkaBroker
from rollstream.streams.memory import MemoryBroker, MemoryLogs
from rollstream.streams.reading import read_between
from rollstream.streams.timed import TimedBroker

TIMEOUT_S = 30.0  # Nothing in a healthy test takes so long; a loaded machine is slow.
COMPACT_TIMEOUT_S = 120.0  # Kafka's cleaner looks every second here; a loaded machine is slow.
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "1",
    "min.cleanable.dirty.ratio": "0.01",
    "message.timestamp.type": "LogAppendTime",
}
LOG_CONFIG = {"message.timestamp.type": "LogAppendTime", "max.message.bytes": str(16 * 1024 * 1024)}


class World(Protocol):
    """A cluster, and brokers on it."""

    def broker(self) -> Broker:
        """A new handle on the same cluster."""

    def topic(self, partitions: int = 1, config: Mapping[str, str] = LOG_CONFIG) -> str:
        """Creates a topic with a unique name and returns it."""

    def drop_before(self, where: TopicPartition, offset: int) -> None:
        """Deletes the records below ``offset``, as retention does."""

    def cut_back(self, where: TopicPartition, end: int) -> None:
        """Deletes the records from ``end`` on, as where Kafka is restored from an older copy."""

    def compact(self, where: TopicPartition) -> None:
        """Returns once records were deleted that later ones of their keys replace; the topic has
        ``COMPACTED``."""

    def close(self) -> None: ...


class MemoryWorld:
    """Brokers in memory."""

    def __init__(self) -> None:
        self._logs = MemoryLogs()
        self._brokers: list[Broker] = []

    def broker(self) -> Broker:
        self._brokers.append(MemoryBroker(self._logs))
        return self._brokers[-1]

    def topic(self, partitions: int = 1, config: Mapping[str, str] = LOG_CONFIG) -> str:
        return new_topic(self.broker(), partitions, config)

    def drop_before(self, where: TopicPartition, offset: int) -> None:
        self._logs.drop_before(where, offset)

    def cut_back(self, where: TopicPartition, end: int) -> None:
        self._logs.cut_back(where, end)

    def compact(self, where: TopicPartition) -> None:
        self._logs.compact(where)

    def close(self) -> None:
        for broker in self._brokers:
            broker.close()


class TimedWorld(MemoryWorld):
    """Brokers in memory, whose calls are timed."""

    def broker(self) -> Broker:
        return TimedBroker(super().broker(), Timings(), SystemClock())


class KafkaWorld:
    """A real Kafka."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._brokers: list[Broker] = []

    def broker(self) -> Broker:
        self._brokers.append(KafkaBroker(self._bootstrap))
        return self._brokers[-1]

    def topic(self, partitions: int = 1, config: Mapping[str, str] = LOG_CONFIG) -> str:
        return new_topic(self.broker(), partitions, config)

    def drop_before(self, where: TopicPartition, offset: int) -> None:
        admin = AdminClient({"bootstrap.servers": self._bootstrap})
        position = confluent_kafka.TopicPartition(*where, offset)
        for future in admin.delete_records([position]).values():
            future.result(TIMEOUT_S)

    def cut_back(self, where: TopicPartition, end: int) -> None:
        cut_back(self._bootstrap, self.broker(), where, end)

    def compact(self, where: TopicPartition) -> None:
        broker, deadline = self.broker(), Deadline(COMPACT_TIMEOUT_S)
        while True:
            # The cleaner leaves the newest segment alone; a record begins one.
            write(broker, where, [b"filler"], key=b"filler")
            with closing(broker.reader({where: EARLIEST})) as reader:
                end = reader.bounds(where, TIMEOUT_S)[1]
                if len(list(read_between(reader, where, 0, end, deadline))) < end:
                    return
            deadline.wait(0.5)
            assert not deadline.passed(), f"{where} was not compacted"

    def close(self) -> None:
        for broker in self._brokers:
            broker.close()


def cut_back(bootstrap: str, broker: Broker, where: TopicPartition, end: int) -> None:
    """Makes the topic anew on a real Kafka, with the records below ``end`` of this partition."""
    with closing(broker.reader({where: 0})) as reader:
        kept = [record.value for record in read(reader, end)[:end]] if end else []
    admin, name = broker.admin(), where.topic
    spec = admin.describe([name], TIMEOUT_S)[name]
    deleting = AdminClient({"bootstrap.servers": bootstrap})
    for future in deleting.delete_topics([name]).values():
        future.result(TIMEOUT_S)
    until(lambda: not admin.describe([name], TIMEOUT_S))
    kept_config = {*LOG_CONFIG, "cleanup.policy", "retention.ms", "retention.bytes"}
    config = {key: value for key, value in spec.config.items() if key in kept_config}
    admin.create([TopicSpec(name, spec.partitions, config)], TIMEOUT_S)
    write(broker, where, kept)


def new_topic(broker: Broker, partitions: int, config: Mapping[str, str]) -> str:
    name = f"test.{uuid.uuid4().hex}"
    broker.admin().create([TopicSpec(name, partitions, dict(config))], TIMEOUT_S)
    return name


def write(
    broker: Broker, where: TopicPartition, values: list[bytes], key: bytes | None = None
) -> None:
    """Appends the values and returns once all are in the log."""
    writer = broker.writer()
    for value in values:
        writer.append(where.topic, value, key=key, partition=where.partition)
    assert writer.flush(TIMEOUT_S) == 0


def read(reader: LogReader, count: int) -> list[Record]:
    """Returns at least the next ``count`` records; fails where they do not come in time."""
    deadline = Deadline(TIMEOUT_S)
    records: list[Record] = []
    while len(records) < count:
        records += reader.poll(1000, 0.5)
        assert not deadline.passed(), f"{len(records)} of {count} records came"
    return records


def commit(member: GroupReader, where: TopicPartition, offset: int, metadata: str = "") -> bool:
    """Commits, and polls until the answer is there; what is read meanwhile is dropped."""
    answer = member.commit(where, offset, metadata)
    until(answer.done, lambda: member.poll(1, 0.05))
    return answer.result()


@contextmanager
def nobody_listens() -> Iterator[str]:
    """An address that refuses connections; until the end of the block nobody else gets its port."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


def until(done: Callable[[], bool], *turns: Callable[[], object]) -> None:
    """Runs each of ``turns`` again and again until ``done``; fails where that takes too long."""
    deadline = Deadline(TIMEOUT_S)
    while not done():
        for turn in turns:
            turn()
        assert not deadline.passed(), "never came true"
