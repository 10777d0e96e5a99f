"""Appends to logs in memory."""

from __future__ import annotations

import threading
from collections import deque

from rollstream.streams.broker import Delivery, Headers, OnDelivery, TopicPartition
from rollstream.streams.errors import (
    BrokerError,
    BufferFull,
    DeliveryUnknown,
    PermanentBrokerError,
    RecordTooLarge,
    UnknownTopic,
)
from rollstream.streams.memory.logs import MemoryLogs
from rollstream.streams.partitioning import partition_of
from rollstream.streams.topics.layout import RECORD_BYTES_MAX

QUEUED_RECORDS_MAX = 100_000  # Reports that wait for `poll`; append raises BufferFull beyond.


class MemoryWriter:
    """A ``Writer``: ``append`` puts the record into the log, its report waits for ``poll``."""

    def __init__(self, logs: MemoryLogs) -> None:
        self._logs = logs
        self._reports: deque[tuple[OnDelivery, Delivery]] = deque()
        self._keyless = 0
        self._abandoned = False

    def append(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Headers = (),
        on_delivery: OnDelivery | None = None,
    ) -> None:
        assert not self._abandoned, "an abandoned writer is not used again"
        if len(self._reports) >= QUEUED_RECORDS_MAX:
            raise BufferFull(f"{QUEUED_RECORDS_MAX} records are queued; poll makes room")
        size = len(value or b"") + len(key or b"")
        if size > RECORD_BYTES_MAX:
            raise RecordTooLarge(f"{topic}: {size} bytes; the limit is {RECORD_BYTES_MAX}")
        number = -1 if partition is None else partition
        try:
            if partition is None:
                number = self._choose(topic, key)
            record = self._logs.append(TopicPartition(topic, number), key, value or b"", headers)
            delivery = Delivery(topic, number, record.offset, None, record.timestamp_us)
        except BrokerError as error:
            refused = value if isinstance(error, RecordTooLarge) else None
            delivery = Delivery(topic, number, -1, error, value=refused or b"")
        if on_delivery is not None:
            self._reports.append((on_delivery, delivery))

    def poll(self, timeout_s: float = 0.0) -> None:
        if not self._reports and timeout_s > 0:
            # Nothing can come, since reports are due at once; the wait takes its time all the same.
            self._logs.clock.wait(threading.Event(), timeout_s)
        for _ in range(len(self._reports)):
            try:
                on_delivery, delivery = self._reports.popleft()
            except IndexError:  # Another thread polls, too.
                return
            on_delivery(delivery)

    def flush(self, timeout_s: float) -> int:
        self.poll()
        return len(self._reports)

    def partitions(self, topic: str, timeout_s: float) -> int:
        spec = self._logs.topics().get(topic)
        if spec is None:
            raise UnknownTopic(f"{topic} does not exist; `rollstream topics create` makes topics")
        return spec.partitions

    def abandon(self) -> None:
        self._abandoned = True
        while self._reports:
            on_delivery, delivery = self._reports.popleft()
            if not isinstance(delivery.error, PermanentBrokerError):
                topic = delivery.topic
                doubt = DeliveryUnknown(f"{topic}: the writer was thrown away before its report")
                delivery = Delivery(topic, delivery.partition, -1, doubt)
            on_delivery(delivery)

    def _choose(self, topic: str, key: bytes | None) -> int:
        partitions = self.partitions(topic, 0.0)
        if key is not None:
            return partition_of(key, partitions)
        self._keyless += 1
        return self._keyless % partitions
