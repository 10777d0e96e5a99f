"""A log that is lost, or damaged, and restored from a copy."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import NamedTuple, Self

from confluent_kafka.admin import AdminClient

from harness.kafka import REQUEST_TIMEOUT_S
from rollstream.runtime.deadline import Deadline
from rollstream.streams.broker import EARLIEST, Record, TopicPartition, TopicSpec
from rollstream.streams.kafka import KafkaBroker
from rollstream.streams.reading import bounds_in_time, read_between


class Backup(NamedTuple):
    """A topic of one partition, with all its records."""

    bootstrap: str
    topic: TopicSpec
    records: Sequence[Record]

    @classmethod
    def of(cls, bootstrap: str, topic: str) -> Self:
        """The topic as it is now; it lost no record so far."""
        where, deadline = TopicPartition(topic, 0), Deadline(REQUEST_TIMEOUT_S)
        with KafkaBroker(bootstrap) as broker, closing(broker.reader({where: EARLIEST})) as reader:
            spec = broker.admin().describe([topic], deadline.left_s())[topic]
            _, end = bounds_in_time(reader, where, deadline)
            records = list(read_between(reader, where, 0, end, deadline))
        assert [one.offset for one in records] == [*range(end)], "a restored log has these offsets"
        return cls(bootstrap, spec, records)

    def lose(self) -> None:
        """Makes the topic anew, without a record."""
        admin, name = AdminClient({"bootstrap.servers": self.bootstrap}), self.topic.name
        admin.delete_topics([name])[name].result(REQUEST_TIMEOUT_S)
        with KafkaBroker(self.bootstrap) as broker:
            broker.admin().create([self.topic], REQUEST_TIMEOUT_S)

    def restore(self) -> None:
        """Makes the topic anew, with the records that it had."""
        self.lose()
        with KafkaBroker(self.bootstrap) as broker:
            writer = broker.writer()
            for one in self.records:
                writer.append(
                    self.topic.name, one.value, key=one.key, partition=0, headers=one.headers
                )
            assert writer.flush(REQUEST_TIMEOUT_S) == 0
