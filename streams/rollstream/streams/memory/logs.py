"""Topics, their records and the groups that read them, in memory."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from rollstream.runtime.clock import Clock, SystemClock
from rollstream.streams.broker import EARLIEST, END, Headers, Record, TopicPartition, TopicSpec
from rollstream.streams.errors import OffsetLost, RecordTooLarge, UnknownTopic
from rollstream.streams.memory.group import MemoryGroup
from rollstream.streams.topics.layout import RECORD_BYTES_MAX

_DEFAULTS: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    "max.message.bytes": "1048588",
    "message.timestamp.type": "CreateTime",
    "min.insync.replicas": "1",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
}


@dataclass(slots=True)
class _Partition:
    first: int = 0
    records: list[Record | None] = field(default_factory=list)  # None: a marker, or deleted.

    @property
    def end(self) -> int:
        return self.first + len(self.records)


class MemoryLogs:
    """The topics and records of a cluster. Several brokers in threads of one process may share it.

    Records are stamped with ``clock``; retention and compaction do not run by themselves:
    ``drop_before`` and ``compact`` delete.

    Args:
        brokers: how many the cluster is said to have.
    """

    def __init__(self, clock: Clock | None = None, *, brokers: int = 1) -> None:
        self.clock = clock or SystemClock()
        self.brokers = brokers
        self.lock = threading.RLock()
        self._topics: dict[str, TopicSpec] = {}
        self._partitions: dict[str, list[_Partition]] = {}
        self._groups: dict[str, MemoryGroup] = {}
        self._waiters: set[threading.Event] = set()

    def create(self, spec: TopicSpec) -> None:
        """Creates the topic; one that exists is left as it is."""
        with self.lock:
            if spec.name in self._topics:
                return
            config = {**_DEFAULTS, **spec.config}
            replication = max(1, spec.replication)
            self._topics[spec.name] = spec._replace(config=config, replication=replication)
            self._partitions[spec.name] = [_Partition() for _ in range(spec.partitions)]
            for group in self._groups.values():
                group.balance(self.partition_counts())

    def topics(self) -> dict[str, TopicSpec]:
        with self.lock:
            return dict(self._topics)

    def partition_counts(self) -> dict[str, int]:
        return {name: spec.partitions for name, spec in self._topics.items()}

    def append(
        self, where: TopicPartition, key: bytes | None, value: bytes, headers: Headers = ()
    ) -> Record:
        """Appends under the clock's time.

        Raises:
            UnknownTopic: there is no such topic or partition.
            RecordTooLarge: the topic takes no record of this size.
        """
        with self.lock:
            partition = self._partition(where)
            config = self._topics[where.topic].config
            size_max = min(int(config["max.message.bytes"]), RECORD_BYTES_MAX)
            if len(value) + len(key or b"") > size_max:
                raise RecordTooLarge(f"{where}: {len(value)} bytes; the topic takes {size_max}")
            now_us = self.clock.now_us() // 1000 * 1000
            record = Record(*where, partition.end, now_us, key, value, headers)
            partition.records.append(record)
            self.wake()
        return record

    def add_marker(self, where: TopicPartition) -> None:
        """Somebody's transaction ends: its marker takes an offset, and no reader sees it."""
        with self.lock:
            self._partition(where).records.append(None)
            self.wake()

    def read(self, where: TopicPartition, offset: int, records_max: int) -> list[Record]:
        """The records of so many offsets from ``offset`` on; raises as ``read_on``."""
        return self.read_on(where, offset, records_max)[0]

    def read_on(
        self, where: TopicPartition, offset: int, records_max: int
    ) -> tuple[list[Record], int]:
        """The same, and the offset behind them, which markers take too.

        Raises:
            OffsetLost: the log begins later or ends earlier.
            UnknownTopic: there is no such topic or partition.
        """
        with self.lock:
            partition = self._partition(where)
            if not partition.first <= offset <= partition.end:
                raise OffsetLost(str(where), offset, partition.first, partition.end)
            start = offset - partition.first
            taken = partition.records[start : start + records_max]
            return [record for record in taken if record is not None], offset + len(taken)

    def bounds(self, where: TopicPartition) -> tuple[int, int]:
        with self.lock:
            partition = self._partition(where)
            return partition.first, partition.end

    def offset_at(self, where: TopicPartition, timestamp_us: int, end: int) -> int:
        """The first offset whose record is as new; ``end`` where none is."""
        with self.lock:
            partition = self._partition(where)
            records = [record for record in partition.records if record is not None]
            older = bisect_left(records, timestamp_us, key=lambda record: record.timestamp_us)
            return records[older].offset if older < len(records) else end

    def resolve(self, where: TopicPartition, offset: int) -> int:
        """Returns a start position as an offset."""
        if offset == EARLIEST:
            return self.bounds(where)[0]
        return self.bounds(where)[1] if offset == END else offset

    def drop_before(self, where: TopicPartition, offset: int) -> None:
        """Deletes the records below ``offset``, as retention would; beyond the end, as though there
        had been so many."""
        with self.lock:
            partition = self._partition(where)
            assert partition.first <= offset, (where, offset)
            del partition.records[: offset - partition.first]
            partition.first = offset

    def compact(self, where: TopicPartition) -> None:
        """Deletes each record that a later one of its key replaces."""
        with self.lock:
            records = self._partition(where).records
            newest = {record.key: index for index, record in enumerate(records) if record}
            records[:] = [
                record if record and newest[record.key] == index else None
                for index, record in enumerate(records)
            ]

    def cut_back(self, where: TopicPartition, end: int) -> None:
        """Deletes the records from ``end`` on, as where a disk is restored from an older copy."""
        with self.lock:
            partition = self._partition(where)
            assert partition.first <= end <= partition.end, (where, end)
            del partition.records[end - partition.first :]
            self.wake()

    def group(self, name: str) -> MemoryGroup:
        with self.lock:
            return self._groups.setdefault(name, MemoryGroup(name))

    def watch(self) -> threading.Event:
        """An event that is set at every append and group change; the caller clears it."""
        with self.lock:
            changed = threading.Event()
            self._waiters.add(changed)
            return changed

    def unwatch(self, changed: threading.Event) -> None:
        with self.lock:
            self._waiters.discard(changed)

    def wake(self) -> None:
        for changed in self._waiters:
            if not changed.is_set():  # Which is cheaper than to set it again.
                changed.set()

    def _partition(self, where: TopicPartition) -> _Partition:
        partitions = self._partitions.get(where.topic)
        if partitions is None or not 0 <= where.partition < len(partitions):
            raise UnknownTopic(f"{where} does not exist; `rollstream topics create` makes topics")
        return partitions[where.partition]
